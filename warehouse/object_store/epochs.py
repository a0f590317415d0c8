"""Epochs: which machine a warehouse in an object store belongs to.

Whoever restores a warehouse claims the next epoch by a conditional write, and reads only then which copy of the catalog
is the last. Whoever has an older epoch publishes a copy first and looks for a newer epoch then, before it deletes what
the copy does not name. So either it sees the claim and deletes nothing, or who has claimed sees the copy.
"""

import socket
import time
import uuid
from collections.abc import Iterator

import msgspec

from windrow.catalog.records import CatalogCopyEntry, EpochEntry
from windrow.errors import DamageError, FormatError, StorageError
from windrow.object_store.location import ObjectStore

FIRST = 1


def _claim_name(epoch: int) -> str:
    return f"epochs/{epoch:08d}.json"


def _copy_name(epoch: int) -> str:
    return f"epochs/{epoch:08d}-copy.json"


def make_epoch(epoch: int) -> EpochEntry:
    """An epoch of this machine."""
    return EpochEntry(epoch=epoch, host=socket.gethostname(), at=time.time_ns() // 1000, nonce=uuid.uuid4().hex)


def claim_first(objects: ObjectStore, nonce: str) -> EpochEntry:
    """Claim the first epoch of a location for a new warehouse; `nonce` is its id, so that it can try again."""
    mine = msgspec.structs.replace(make_epoch(FIRST), nonce=nonce)
    content = msgspec.json.encode(mine)
    if objects.has_conditional_writes:
        there = None if objects.put_if_absent(_claim_name(FIRST), content) else find_epoch(objects, FIRST)
    else:
        there = find_epoch(objects, FIRST)
        if there is None:
            objects.put(_claim_name(FIRST), content)
    if there is not None and there.nonce != nonce:
        raise FormatError(
            f"{objects.location.uri} holds the segments of another warehouse, of {there.host}; choose another prefix, "
            f"or make a warehouse of it with 'windrow restore --from {objects.location.uri} FOLDER'"
        )
    return mine


def refuse_unconditional(objects: ObjectStore) -> None:
    """Refuse to take a warehouse over where two machines could both believe that they have."""
    if not objects.has_conditional_writes:
        raise StorageError(
            f"{objects.location.uri} cannot be taken over: {objects.location.scheme} is used without conditional "
            "writes, by which one of several machines is chosen; copy its objects to s3 or into a folder, and restore "
            "from there"
        )


def claim_next(objects: ObjectStore, epoch: int) -> EpochEntry:
    """Claim the epoch after `epoch`, or the first free one after it, for this machine."""
    for newest in find_epochs(objects, epoch):
        epoch = newest.epoch
    mine = make_epoch(epoch + 1)
    if not objects.put_if_absent(_claim_name(mine.epoch), msgspec.json.encode(mine)):
        raise StorageError(
            f"{objects.location.uri} was restored by another machine just now, as epoch {mine.epoch}; "
            "use that one, or restore again to take it over"
        )
    return mine


def find_epoch(objects: ObjectStore, epoch: int) -> EpochEntry | None:
    """Who has claimed an epoch; None if nobody has."""
    raw = objects.read_if_present(_claim_name(epoch))
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=EpochEntry)
    except msgspec.MsgspecError as error:
        raise DamageError(f"object {objects.uri(_claim_name(epoch))} is damaged ({error}); restore a backup") from None


def find_epochs(objects: ObjectStore, after: int) -> Iterator[EpochEntry]:
    """The epochs after `after`, in order; there is none without the one before it."""
    while (entry := find_epoch(objects, after + 1)) is not None:
        yield entry
        after += 1


def publish_copy(objects: ObjectStore, epoch: int, copy: CatalogCopyEntry) -> None:
    """Make a copy of the catalog the last one of an epoch."""
    objects.put(_copy_name(epoch), msgspec.json.encode(copy))


def find_copy(objects: ObjectStore, epoch: int) -> CatalogCopyEntry | None:
    """The last copy of the catalog that an epoch has published."""
    raw = objects.read_if_present(_copy_name(epoch))
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=CatalogCopyEntry)
    except msgspec.MsgspecError as error:
        raise DamageError(f"object {objects.uri(_copy_name(epoch))} is damaged ({error}); restore a backup") from None

"""Publications: a stream's window as a Delta table beside its segments, so that other engines read just its live rows.

A version of the table is the window of one commit: its files as they lie, with deletion vectors for rows that are not
in it. Nothing is copied. What a version names stays until it was replaced for as long as readers may hold it.
"""

import datetime as dt
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import HeldVersion, PublicationEntry, PublishedFile
from windrow.errors import DefinitionError, StorageError, WindrowError
from windrow.files import disk_errors
from windrow.formats import delta
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.segment_reader import Spans, read_spans
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.locks import locked
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

FORMATS = ("delta",)

_LOG = "_delta_log"
_LAST = "_last_checkpoint"
_CHECKPOINT_INTERVAL = 10
"""Versions from one checkpoint to the next: what Delta's own writers do."""
_SECONDS_FOR_LOCK = 60.0


@dataclass(frozen=True)
class Publication:
    """A stream that is published."""

    stream: str
    format: str
    path: Path
    """The folder that other engines open."""
    version: int | None
    """The table's last version; None before the first."""
    now: dt.datetime | None
    """The stream's clock at that version."""
    every: dt.timedelta
    hold: dt.timedelta


def publish(
    store: Store, stream: str, form: str, every: times.Duration | None, hold: times.Duration | None
) -> Publication:
    """Begin to publish a stream or view, or change how; its window as it is now is published before this returns."""
    store.check_writable()
    if store.remote is not None:
        raise StorageError(
            f"stream {stream!r} cannot be published: its files are in {store.remote.objects.location.uri}, and the "
            "folder that other engines would read is only their cache"
        )
    if form not in FORMATS:
        raise DefinitionError(f"format {form!r} is not one of {', '.join(FORMATS)}")
    given = {
        name: times.parse_duration(value, name)
        for name, value in (("every", every), ("hold", hold))
        if value is not None
    }
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, stream))
    with _locked(store, entry.id):
        publication = store.catalog.read(lambda tables: _find(tables, entry.id))
        changed = replace(publication or PublicationEntry(format=form, table=str(uuid.uuid4())), **given)
        if changed != publication:
            delta.to_delta_schema(entry.definition.schema)
            with store.catalog.write() as tables:
                find_stream(tables, stream)
                tables.put("publications", catalog_key(entry.id), changed)
        _publish_window(store, entry.id, stream)
    return next(status for status in list_publications(store) if status.stream == stream)


def unpublish(store: Store, stream: str) -> None:
    """End the publication of a stream; its Delta log is removed."""
    store.check_writable()
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, stream))
    with _locked(store, entry.id):
        with store.catalog.write() as tables:
            if _find(tables, entry.id) is None:
                raise DefinitionError(f"stream {stream!r} is not published")
            _forget(tables, entry.id)
        _remove_log(store, stream)


def _forget(tables: Tables, stream: int) -> None:
    tables.delete("publications", catalog_key(stream))
    tables.delete_prefix("published", catalog_key(stream))


def remove_log(store: Store, stream: int, name: str) -> None:
    """Remove the Delta log of a stream that was dropped, when nobody writes to it any more."""
    with _locked(store, stream):
        _remove_log(store, name)


def _remove_log(store: Store, stream: str) -> None:
    shutil.rmtree(store.stream_folder(stream) / _LOG, ignore_errors=True)


def list_publications(store: Store) -> list[Publication]:
    """All publications, by the names of their streams."""

    def read(tables: Tables) -> list[Publication]:
        publications = []
        for _, entry in tables.items("streams"):
            publication = _find(tables, entry.id)
            if publication is None:
                continue
            model, name = entry.definition.model, entry.definition.name
            now = None if publication.slide is None else times.to_datetime(model.slot_end(publication.slide))
            every, hold = dt.timedelta(microseconds=publication.every), dt.timedelta(microseconds=publication.hold)
            version = None if publication.version < 0 else publication.version
            publications.append(
                Publication(name, publication.format, store.stream_folder(name), version, now, every, hold)
            )
        return publications

    return store.catalog.read(read)


def publish_due(store: Store, *, at_once: bool = False) -> str | None:
    """Publish the windows that have changed since their last version, if that is long enough ago.

    Args:
        store: The warehouse.
        at_once: Also if it is not: rows were erased that the last version still shows.

    Returns:
        Why a window could not be published, in one sentence; the next slide tries again.
    """
    problem = None
    for stream in store.catalog.read(_find_due(None if at_once else store.clock())):
        try:
            with _locked(store, stream[0]):
                _publish_window(store, *stream)
        except (WindrowError, OSError) as error:
            problem = f"stream {stream[1]!r} was not published: {error}"
    return problem


def _find_due(now: int | None) -> Any:
    """A transaction's streams whose windows have changed and, at a wall time, may be published again."""

    def read(tables: Tables) -> list[tuple[int, str]]:
        records = {decode_last_int(key): record for key, record in tables.items("publications")}
        if not records:
            return []
        due = []
        for _, entry in tables.items("streams"):
            publication = records.get(entry.id)
            if publication is not None and (now is None or now - publication.at >= publication.every):
                _, state = find_stream(tables, entry.definition.name)
                if (state.slide, state.manifest) != (publication.slide, publication.manifest):
                    due.append((entry.id, entry.definition.name))
        return due

    return read


def _find(tables: Tables, stream: int) -> PublicationEntry | None:
    record: PublicationEntry | None = tables.get("publications", catalog_key(stream))
    return record


@contextmanager
def _locked(store: Store, stream: int) -> Iterator[None]:
    path = store.lock_path(stream).with_name(f"publish-{stream}.lock")
    path.parent.mkdir(exist_ok=True)
    with (
        disk_errors("publishing"),
        locked(path, "the publication of the stream", _SECONDS_FOR_LOCK, store.sleep),
    ):
        yield


@dataclass(frozen=True)
class _WindowFile:
    """A file of a window, and what tells whether the same rows of it are live as before."""

    segments: tuple[Segment, ...]
    whole: frozenset[int]
    """Numbers of the segments all of whose rows are in the window."""
    fingerprint: int

    @property
    def rows(self) -> int:
        """Rows of the file."""
        return self.segments[0].file_rows


def _publish_window(store: Store, stream: int, name: str) -> None:
    """Write the next version of a table: the difference of the last one and the newest window."""
    log = store.stream_folder(name) / _LOG
    if store.catalog.read(lambda tables: _find(tables, stream)) is None:
        return
    store.files.make_folder(log)
    publication = _place_pending(store, stream, log)
    assert publication is not None  # it is removed only under the lock that we hold
    with Snapshot(store, [name]) as snapshot:
        view = snapshot.view(name)
        bounds = view.bounds()
        files = _find_files(view.select(bounds), view)
        before = store.catalog.read(
            lambda tables: {key[8:].decode(): record for key, record in tables.items("published", catalog_key(stream))}
        )
        now = store.clock()
        after = {
            file: before[file]
            if file in before and before[file].fingerprint == published.fingerprint
            else _describe_file(store, view, published)
            for file, published in files.items()
        }
        schema = delta.to_delta_schema(view.schema)
        actions = _make_actions(publication, name, schema, before, after, now)
        version = publication.version + bool(actions)
        newest = HeldVersion(commit=snapshot.version, version=version)
        held = _hold(publication, newest, now, is_new=bool(actions))
        publication = replace(
            publication, version=version, schema=schema, at=now, slide=view.state.slide, manifest=view.state.manifest,
            held=held,
        )  # fmt: skip
        if actions:
            information = {"operation": "WRITE", "engineInfo": "windrow", "timestamp": now // 1000}
            parameters = {"slide": str(view.state.slide), "commit": str(snapshot.version)}
            information["operationParameters"] = parameters
            publication = replace(publication, pending=f".{version:020d}.{uuid.uuid4().hex}")
            _write_file(store, log / publication.pending, delta.encode_commit([{"commitInfo": information}, *actions]))
            store.files.reach("publish.staged")
        _record(store, stream, publication, before, after)
        store.files.reach("publish.committed")
    if actions:
        _place_pending(store, stream, log)
        store.files.reach("publish.placed")
        if version and version % _CHECKPOINT_INTERVAL == 0:
            _write_checkpoint(store, log, publication, name, after)
            _remove_old_versions(store, log, publication)


def _hold(publication: PublicationEntry, newest: HeldVersion, now: int, *, is_new: bool) -> tuple[HeldVersion, ...]:
    """The versions that readers may read when the newest one has come, or is found to be that of a later commit too."""
    replaced = [
        old if old.replaced else replace(old, replaced=now) for old in publication.held if is_new or old.replaced
    ]
    return (*(old for old in replaced if publication.is_held(old, now)), newest)


def _record(
    store: Store,
    stream: int,
    publication: PublicationEntry,
    before: dict[str, PublishedFile],
    after: dict[str, PublishedFile],
) -> None:
    with store.catalog.write() as tables:
        if _find(tables, stream) is None:
            raise DefinitionError("the stream was dropped while it was published")
        tables.put("publications", catalog_key(stream), publication)
        for file in before.keys() - after.keys():
            tables.delete("published", catalog_key(stream, file))
        for file, published in after.items():
            if before.get(file) != published:
                tables.put("published", catalog_key(stream, file), published)


def _place_pending(store: Store, stream: int, log: Path) -> PublicationEntry | None:
    """Give the last version its name, if a crash came before that; a log that was lost is begun anew."""
    publication = store.catalog.read(lambda tables: _find(tables, stream))
    if publication is None or publication.version < 0:
        return publication
    target, pending = log / f"{publication.version:020d}.json", log / (publication.pending or ".none")
    if pending.exists():
        if target.exists():
            raise StorageError(
                f"{target} was written by somebody else: a published table is only read; remove the file, or publish "
                "the stream anew with unpublish and publish"
            )
        store.files.rename(pending, target)
        store.files.sync(log)
    if target.exists():
        return publication
    shutil.rmtree(log)
    store.files.make_folder(log)
    anew = PublicationEntry(
        format=publication.format, table=str(uuid.uuid4()), every=publication.every, hold=publication.hold
    )
    with store.catalog.write() as tables:
        _forget(tables, stream)
        tables.put("publications", catalog_key(stream), anew)
    return anew


def _find_files(selection: Selection, view: StreamSnapshot) -> dict[str, _WindowFile]:
    """The files that the window needs."""
    segments: dict[str, list[Segment]] = defaultdict(list)
    for segment in selection.segments:
        segments[segment.file].append(segment)
    whole = frozenset(segment.id for segment in selection.whole)
    return {file: _make_window_file(tuple(parts), whole, view) for file, parts in segments.items()}


def _make_window_file(parts: tuple[Segment, ...], whole: frozenset[int], view: StreamSnapshot) -> _WindowFile:
    slide, now = view.state.slide or 0, view.now or 0
    identity = [
        (part.id, part.dead(slide), xxhash.xxh3_64_intdigest(part.expiries), now if part.max_ts > now else 0)
        for part in sorted(parts, key=lambda part: part.id)
    ]
    fingerprint = xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(identity)) >> 1
    return _WindowFile(parts, whole & {part.id for part in parts}, fingerprint)


def _describe_file(store: Store, view: StreamSnapshot, file: _WindowFile) -> PublishedFile:
    """Which rows of a file are not in the window, and what else the log says of it."""
    live = np.zeros(file.rows, bool)
    edge = [segment for segment in file.segments if segment.id not in file.whole]
    for segment in file.segments:
        live[segment.start : segment.stop] = True
    if edge:
        position, inside = 0, _find_live_rows(store, view, edge)
        for segment in edge:
            live[segment.start : segment.stop] = inside[position : position + segment.rows]
            position += segment.rows
    dead = len(live) - int(np.count_nonzero(live))
    name = file.segments[0].file
    return PublishedFile(
        fingerprint=file.fingerprint,
        size=store.reader.path(name).stat().st_size,
        rows=file.rows,
        dead=dead,
        vector=delta.encode_deletion_vector(~live) if dead else "",
    )


def _find_live_rows(store: Store, view: StreamSnapshot, segments: list[Segment]) -> Any:
    """Of the rows of some segments, one after the other, which are in the window."""
    bounds, full, definition = view.bounds(), view.stored_schema, view.entry.definition
    assert bounds is not None
    needed = [name for name in (definition.time, definition.expires) if name is not None]
    schema = pa.schema([full.field(name) for name in needed])
    inside = bounds.mask(read_spans(Spans.of_segments(segments), schema, full, store.reader), view.model)
    first = 0
    for segment in segments:
        inside[find_ended_rows(segment, bounds.now) - segment.start + first] = False
        first += segment.rows
    return inside


def _make_actions(
    publication: PublicationEntry,
    name: str,
    schema: str,
    before: dict[str, PublishedFile],
    after: dict[str, PublishedFile],
    now: int,
) -> list[dict[str, Any]]:
    """What turns the last version into the new one; nothing if it would be the same."""
    actions: list[dict[str, Any]] = []
    if publication.schema != schema:
        actions += [{"protocol": delta.make_protocol(schema)}]
        actions += [{"metaData": delta.make_metadata(publication.table, name, schema, publication.at or now)}]
    for file, old in before.items():
        if not _is_same(old, after.get(file)):
            actions.append({"remove": delta.make_removal(_relative(file, name), old.size, old.vector, old.dead, now)})
    actions += [
        {"add": _make_add(file, name, published, now)}
        for file, published in after.items()
        if not _is_same(before.get(file), published)
    ]
    return actions


def _is_same(old: PublishedFile | None, new: PublishedFile | None) -> bool:
    return old is not None and new is not None and old.vector == new.vector


def _relative(file: str, name: str) -> str:
    return file.removeprefix(f"streams/{name}/")


def _make_add(file: str, name: str, published: PublishedFile, now: int) -> dict[str, Any]:
    return delta.make_file_action(
        _relative(file, name), published.size, published.rows, published.vector, published.dead, now
    )


def _write_file(store: Store, path: Path, content: bytes) -> None:
    with store.files.sink(path) as sink:
        sink.write(content)
    store.files.sync(path)


def _write_checkpoint(
    store: Store, log: Path, publication: PublicationEntry, name: str, files: dict[str, PublishedFile]
) -> None:
    """Write the state of the last version. If a crash prevents it, readers go through more versions."""
    metadata = delta.make_metadata(publication.table, name, publication.schema, publication.at)
    adds = [_make_add(file, name, published, publication.at) for file, published in files.items()]
    staged = log / f".{uuid.uuid4().hex}"
    with store.files.sink(staged) as sink:
        delta.write_checkpoint(sink, delta.make_protocol(publication.schema), metadata, adds)
    store.files.sync(staged)
    store.files.rename(staged, log / f"{publication.version:020d}.checkpoint.parquet")
    _write_file(store, staged, msgspec.json.encode({"version": publication.version, "size": len(adds) + 2}))
    store.files.rename(staged, log / _LAST)
    store.files.sync(log)
    store.files.reach("publish.checkpointed")


def _remove_old_versions(store: Store, log: Path, publication: PublicationEntry) -> None:
    """Remove what no reader needs: all before the last checkpoint that is not newer than the oldest held version."""
    versions = {path: int(path.name[:20]) for path in log.iterdir() if path.name[:20].isdigit()}
    oldest = min(held.version for held in publication.held)
    checkpoints = [version for path, version in versions.items() if path.suffix == ".parquet" and version <= oldest]
    for path, version in versions.items():
        if checkpoints and version < max(checkpoints):
            store.files.unlink(path)
    for path in log.glob(
        ".*"
    ):  # left by a crash before its commit: we hold the lock, and the last version has its name
        store.files.unlink(path)

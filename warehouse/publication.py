"""Publications: a stream's window as a Delta table beside its segments, so that other engines read just its live rows.

A version of the table is the window of one commit: its files as they lie, with deletion vectors for rows that are not
in it. Nothing is copied. What a version names stays until it was replaced for as long as readers may hold it.

A slide records its version in its own transaction, with all that the version's file in the log will say. The file
gets its name after the commit; what a crash left out is written from the record by whoever slides, publishes or opens
next.
"""

import datetime as dt
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
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
from windrow.slide_hooks import Contribution, SlideContext
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

FORMATS = ("delta",)

_LOG = "_delta_log"
_LAST = "_last_checkpoint"
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
        publication = _catch_up(store, entry.id, stream)
        if publication is not None:
            publication = _publish_window(store, entry.id, stream, publication)
            _write_checkpoint_if_due(store, entry.id, stream, publication)
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
    for table in ("published", "published_versions"):
        tables.delete_prefix(table, catalog_key(stream))


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

    Versions that are recorded and have no name yet get it, and checkpoints that are due are written.

    Args:
        store: The warehouse.
        at_once: Also if it is not: rows were erased that the last version still shows.

    Returns:
        Why a window could not be published, in one sentence; the next slide tries again.
    """
    problem = None
    for stream, name, is_due in _find_unfinished(store, None if at_once else store.clock()):
        try:
            with _locked(store, stream):
                publication = _catch_up(store, stream, name)
                if publication is not None and is_due:
                    publication = _publish_window(store, stream, name, publication)
                if publication is not None:
                    _write_checkpoint_if_due(store, stream, name, publication)
        except (WindrowError, OSError) as error:
            problem = f"stream {name!r} was not published: {error}"
    return problem


def finish_versions(store: Store) -> None:
    """Give the versions their names that a process recorded and did not live to write; what fails waits for a slide."""
    for stream, name, _ in _find_unfinished(store, 0):
        with suppress(WindrowError, OSError), _locked(store, stream):
            _catch_up(store, stream, name)


def _find_unfinished(store: Store, now: int | None) -> list[tuple[int, str, bool]]:
    """Streams of whose publication something is to be done, and whether their windows may be published at a wall time.

    They have changed then, and the last version is old enough. Without a time, it always is.
    """

    def read(tables: Tables) -> list[tuple[int, str, bool]]:
        records = {decode_last_int(key): record for key, record in tables.items("publications")}
        unfinished = []
        for entry in [entry for _, entry in tables.items("streams") if entry.id in records] if records else ():
            name, publication = entry.definition.name, records[entry.id]
            _, state = find_stream(tables, name)
            is_due = (now is None or now - publication.at >= publication.every) and (
                (state.slide, state.manifest) != (publication.slide, publication.manifest)
            )
            log = store.stream_folder(name) / _LOG
            is_placed = publication.version < 0 or _version_path(log, publication.version).exists()
            if is_due or not is_placed or publication.needs_checkpoint:
                unfinished.append((entry.id, name, is_due))
        return unfinished

    return store.catalog.read(read)


def _find(tables: Tables, stream: int) -> PublicationEntry | None:
    record: PublicationEntry | None = tables.get("publications", catalog_key(stream))
    return record


def _lock(store: Store, stream: int) -> AbstractContextManager[None]:
    path = store.lock_path(stream).with_name(f"publish-{stream}.lock")
    path.parent.mkdir(exist_ok=True)
    return locked(path, "the publication of the stream", _SECONDS_FOR_LOCK, store.sleep)


@contextmanager
def _locked(store: Store, stream: int) -> Iterator[None]:
    with disk_errors("publishing"), _lock(store, stream):
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


@dataclass
class _Version:
    """The next version of a table, made and not recorded yet: it is what a slide's transaction, or another's, adds."""

    store: Store
    stream: int
    log: Path
    publication: PublicationEntry
    """As it will be; a slide's own commit is not known before that."""
    before: Mapping[str, PublishedFile]
    after: Mapping[str, PublishedFile]
    content: bytes
    """What its file in the log says; empty if it would be the same as the last one, which then stays."""
    of_slide: bool
    """Whether the window is that of the transaction under way, and not of a commit before it."""
    files: Sequence[str] = ()
    _staged: Path | None = None
    _staging: Future[None] | None = None

    def stage(self) -> None:
        """Begin to write the file under a hidden name, beside what the caller does until it is recorded."""
        if self.content:
            self._staged = self.log / f".{self.publication.version:020d}.{uuid.uuid4().hex}"
            self._staging = self.store.run_in_background(_write_staged, self.store, self._staged, self.content)

    def commit(self, tables: Tables) -> None:
        """Record it; nothing if the stream is not published any more."""
        key, publication = catalog_key(self.stream), self.publication
        if tables.raw("publications", key) is None:
            return
        if self.of_slide:
            *held, newest = publication.held
            held.append(replace(newest, commit=tables.version))
            publication = self.publication = replace(publication, manifest=tables.version, held=tuple(held))
        tables.put("publications", key, publication)
        if self.content:
            tables.put_raw("published_versions", catalog_key(self.stream, publication.version), self.content)
        for file in self.before.keys() - self.after.keys():
            tables.delete("published", catalog_key(self.stream, file))
        for file, published in self.after.items():
            if self.before.get(file) != published:
                tables.put("published", catalog_key(self.stream, file), published)

    def place(self) -> None:
        """Give the file its name, once the version is recorded."""
        if self._staged is None or self._staging is None:
            return
        self.store.files.reach("publish.committed")
        if self._staging.cancel():  # all who help are at something else
            _write_staged(self.store, self._staged, self.content)
        else:
            self._staging.result()
        _name_version(self.store, self._staged, _version_path(self.log, self.publication.version))

    def discard(self) -> None:
        """Remove the file of a version that was not recorded."""
        if self._staged is not None and self._staging is not None:
            if not self._staging.cancel():
                self._staging.exception()
            self.store.files.unlink(self._staged)


@contextmanager
def prepare_version(store: Store, context: SlideContext) -> Iterator[Contribution | None]:
    """The part of a slide that belongs to other engines: the version that shows the window as the slide leaves it.

    The slide is made whatever goes wrong here: `publish_due` comes after it, tries again, and says why.
    """
    with ExitStack() as stack:
        version = None
        with suppress(WindrowError, OSError, pa.ArrowException):
            version = _prepare_for_slide(store, context, stack)
        try:
            yield version
        except BaseException:
            if version is not None:
                version.discard()
            raise
        if version is not None:
            with suppress(WindrowError, OSError):
                version.place()


def _prepare_for_slide(store: Store, context: SlideContext, stack: ExitStack) -> _Version | None:
    """The version that belongs to a slide, its lock held; None if it is not yet time for one."""
    stream, name = context.entry.id, context.entry.definition.name
    publication = store.catalog.read(lambda tables: _find(tables, stream))
    if publication is None or store.clock() - publication.at < publication.every or context.remaining is None:
        return None
    stack.enter_context(_lock(store, stream))
    publication = _catch_up(store, stream, name)
    if publication is None:
        return None
    state = replace(context.state, slide=context.slide)
    view = StreamSnapshot(context.entry, state, context.remaining(), {})
    return _make_version(store, view, publication, commit=0, of_slide=True)


def _publish_window(store: Store, stream: int, name: str, publication: PublicationEntry) -> PublicationEntry:
    """Record and write the next version of a table, of the newest window."""
    with Snapshot(store, [name]) as snapshot:
        version = _make_version(store, snapshot.view(name), publication, commit=snapshot.version)
        try:
            with store.catalog.write() as tables:
                if _find(tables, stream) is None:
                    raise DefinitionError("the stream was dropped while it was published")
                version.commit(tables)
        except BaseException:
            version.discard()
            raise
    version.place()
    return version.publication


def _make_version(
    store: Store, view: StreamSnapshot, publication: PublicationEntry, commit: int, *, of_slide: bool = False
) -> _Version:
    """Make the next version: the difference of the last one and a window. Its file is being written then."""
    stream, name, now = view.entry.id, view.name, store.clock()
    log = store.stream_folder(name) / _LOG
    store.files.make_folder(log)
    files = _find_files(view.select(view.bounds()), view)
    before = store.catalog.read(
        lambda tables: {key[8:].decode(): record for key, record in tables.items("published", catalog_key(stream))}
    )
    after = {
        file: before[file]
        if file in before and before[file].fingerprint == published.fingerprint
        else _describe_file(store, view, published)
        for file, published in files.items()
    }
    schema = delta.to_delta_schema(view.schema)
    actions = _make_actions(publication, name, schema, before, after, now)
    number, content = publication.version + bool(actions), b""
    if actions:
        _refuse_if_there(_version_path(log, number))
        information = {"operation": "WRITE", "engineInfo": "windrow", "timestamp": now // 1000}
        information["operationParameters"] = {"slide": str(view.state.slide)}
        content = delta.encode_commit([{"commitInfo": information}, *actions])
    held = _hold(publication, HeldVersion(commit=commit, version=number), now, is_new=bool(actions))
    next_publication = replace(
        publication, version=number, schema=schema, at=now, slide=view.state.slide, manifest=view.state.manifest,
        held=held,
    )  # fmt: skip
    version = _Version(store, stream, log, next_publication, before, after, content, of_slide)
    version.stage()
    return version


def _hold(publication: PublicationEntry, newest: HeldVersion, now: int, *, is_new: bool) -> tuple[HeldVersion, ...]:
    """The versions that readers may read when the newest one has come, or is found to be that of a later commit too."""
    replaced = [
        old if old.replaced else replace(old, replaced=now) for old in publication.held if is_new or old.replaced
    ]
    return (*(old for old in replaced if publication.is_held(old, now)), newest)


def _version_path(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


def _refuse_if_there(path: Path) -> None:
    if path.exists():
        raise StorageError(
            f"{path} was written by somebody else: a published table is only read; remove the file, or publish "
            "the stream anew with unpublish and publish"
        )


def _write_staged(store: Store, path: Path, content: bytes) -> None:
    _write_file(store, path, content)
    store.files.reach("publish.staged")


def _name_version(store: Store, staged: Path, target: Path) -> None:
    """Give a durable file its name, which is made durable with the next checkpoint: until then the catalog knows it."""
    _refuse_if_there(target)
    store.files.rename(staged, target)
    store.files.reach("publish.placed")


def _catch_up(store: Store, stream: int, name: str) -> PublicationEntry | None:
    """Write the versions that are recorded and have no name; a log that was lost is begun anew.

    Returns:
        The publication, None if the stream is not published.
    """

    def read(tables: Tables) -> tuple[PublicationEntry | None, dict[int, bytes]]:
        items = tables.raw_items("published_versions", catalog_key(stream))
        return _find(tables, stream), {decode_last_int(key): bytes(raw) for key, raw in items}

    publication, recorded = store.catalog.read(read)
    if publication is None or publication.version < 0:
        return publication
    log, last = store.stream_folder(name) / _LOG, publication.version
    try:
        content = _version_path(log, last).read_bytes()
    except FileNotFoundError:
        if publication.pending and (log / publication.pending).exists():
            _name_version(store, log / publication.pending, _version_path(log, last))
            store.files.sync(log)
            return publication
        there = [int(path.stem) for path in log.glob("*.json") if path.stem.isdigit()]
        missing = range(max(there, default=last) + 1, last + 1)
        if not missing or not recorded.keys() >= set(missing):
            return _begin_anew(store, stream, log, publication)
        for number in missing:
            staged = log / f".{number:020d}.{uuid.uuid4().hex}"
            _write_staged(store, staged, recorded[number])
            _name_version(store, staged, _version_path(log, number))
        return publication
    if content != recorded.get(last, content):
        _refuse_if_there(_version_path(log, last))
    return publication


def _begin_anew(store: Store, stream: int, log: Path, publication: PublicationEntry) -> PublicationEntry:
    """Forget all versions: nothing is left of the log, or not enough."""
    shutil.rmtree(log, ignore_errors=True)
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
        (part.start, part.rows, part.dead(slide), xxhash.xxh3_64_intdigest(part.expiries), part.max_ts > now and now)
        for part in sorted(parts, key=lambda part: part.start)
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


def _write_checkpoint_if_due(store: Store, stream: int, name: str, publication: PublicationEntry) -> None:
    """Write the state of the last version, every tenth time, and forget what it and its names make superfluous.

    If a crash prevents it, readers go through more versions, and the next slide writes it.
    """
    if not publication.needs_checkpoint:
        return
    log = store.stream_folder(name) / _LOG
    files = store.catalog.read(
        lambda tables: {key[8:].decode(): record for key, record in tables.items("published", catalog_key(stream))}
    )
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
    with store.catalog.write() as tables:
        if _find(tables, stream) is None:
            return
        tables.put("publications", catalog_key(stream), replace(publication, checkpoint=publication.version))
        tables.delete_prefix("published_versions", catalog_key(stream))
    _remove_old_versions(store, log, publication)


def _remove_old_versions(store: Store, log: Path, publication: PublicationEntry) -> None:
    """Remove what no reader needs: all before the last checkpoint that is not newer than the oldest held version."""
    versions = {path: int(path.name[:20]) for path in log.iterdir() if path.name[:20].isdigit()}
    oldest = min(held.version for held in publication.held)
    checkpoints = [version for path, version in versions.items() if path.suffix == ".parquet" and version <= oldest]
    for path, version in versions.items():
        if checkpoints and version < max(checkpoints):
            store.files.unlink(path)
    for path in log.glob(".*"):  # left by a crash: we hold the lock, and the last version has its name
        store.files.unlink(path)

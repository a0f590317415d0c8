"""The one way in which data files come into the warehouse: stage, write, seal, publish, record.

A file is written in the staging folder of a living writer, made durable, renamed into its place, and named by a commit
(`Store.write_with_files`). Whatever fails before that commit leaves nothing that a reader could see.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import FileEntry, Layout, StreamEntry
from windrow.indexes.segment_builder import SegmentDraft
from windrow.indexes.segment_reader import compute_checksums
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.indexes.segments import Histogram, Segment, unpack_histogram
from windrow.slide_hooks import AppendContribution
from windrow.store import Store

CHUNK_BYTES = 64 << 20
CHUNK_ROWS = 1 << 20
"""Rows are sorted and written in chunks of at most this size, which bounds the memory of an append (`bench core`)."""
_ROW_GROUP_BYTES = 1 << 20
"""Aimed size of row groups in files that no layout governs: tables and rejected rows."""


@dataclass(frozen=True)
class Placement:
    """Where the rows of a segment go; the defaults are those of spooled rows, which a slide has yet to place."""

    layout: int
    row: int = -1
    """The insertion row of its cell."""
    first_slide: int = 0
    last_slide: int = 0
    """The slides that took its first and its last rows in."""


@dataclass
class StagedFile:
    """A sealed file and what the catalog will say of it."""

    path: Path
    rows: int
    bytes: int
    digest: str
    drafts: tuple[SegmentDraft, ...] = ()
    events: Histogram = b""
    written_here: bool = False
    """Its segments were written by this process, which then need not verify their checksums when it reads them."""
    placements: tuple[Placement, ...] = ()
    """Of each draft, if they are not spooled."""
    contributions: tuple[AppendContribution, ...] = ()
    """What the append's transaction puts down with it for synopses."""
    name: str = ""
    """Its path relative to the warehouse, once it is published."""

    @property
    def taken(self) -> int:
        """Rows that its drafts name; a file that Spark wrote may end in rows that were rejected."""
        return sum(draft.rows for draft in self.drafts)


class StagedWriter:
    """Writes one staged file. A block that ends in an error, or without `seal`, leaves no file.

    Args:
        store: The warehouse.
        path: Where to write, if `StagingWriter.stage` was asked before.
    """

    def __init__(self, store: Store, path: Path | None = None) -> None:
        self._store = store
        self.path = store.writer.stage() if path is None else path
        try:
            self.sink = store.files.sink(self.path)
        except BaseException:  # the file may be there although it could not be opened
            store.writer.discard([self.path])
            raise
        self._output: SegmentFileWriter | None = None
        self._sealed = False

    def write_segments(self, entry: StreamEntry, layout: Layout, schema: pa.Schema) -> SegmentFileWriter:
        """What takes the sorted rows of a stream's segments."""
        encodings = self._store.encodings[entry.id]
        row_group_bytes, key = layout.index.row_group_bytes, entry.definition.key
        self._output = SegmentFileWriter(self.sink, schema, row_group_bytes, key, encodings)
        return self._output

    def write_rows(self, schema: pa.Schema) -> SegmentFileWriter:
        """What takes rows in the order in which they are given."""
        self._output = SegmentFileWriter(self.sink, schema, _ROW_GROUP_BYTES)
        return self._output

    def seal(
        self,
        drafts: Iterable[SegmentDraft] = (),
        events: Histogram = b"",
        placements: Iterable[Placement] = (),
        *,
        soon: bool = False,
    ) -> StagedFile:
        """Make the file durable: at once, or with `soon` when it is published, which then must follow at once."""
        rows = 0
        if self._output is not None:
            self._output.close()
            rows = self._output.rows
        self.sink.close()
        size, digest = self._store.writer.seal(self.path, soon=soon)
        self._sealed = True
        drafts = tuple(drafts)
        return StagedFile(self.path, rows, size, digest, drafts, events, bool(drafts), tuple(placements))

    def discard(self) -> None:
        """Remove the file."""
        try:
            self.sink.close()
        finally:
            self._store.writer.discard([self.path])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or not self._sealed:
            self.discard()


def publish_files(store: Store, staged: Sequence[StagedFile], folder: Path, operation: str) -> list[str]:
    """Move sealed files into `folder`, durably; gives their names. A commit must name them, or they are orphans."""
    if not staged:
        return []
    names = store.writer.publish([file.path for file in staged], folder, operation)
    for file, name in zip(staged, names, strict=True):
        file.name = name
        store.published[name] = compute_checksums(store.root / name)
        store.sealed[name] = file.bytes, file.digest
    store.reader.trust(file.name for file in staged if file.written_here)
    return names


def record_file(tables: Tables, stream: int, staged: StagedFile) -> range:
    """Name a published file and the directories of its segments; gives the numbers of the segments."""
    count = len(staged.drafts)
    entry = FileEntry(
        stream=stream, rows=staged.rows, bytes=staged.bytes, digest=staged.digest, segments=count,
        min_ts=min((draft.min_ts for draft in staged.drafts), default=None),
        min_exp=min((draft.min_exp for draft in staged.drafts), default=None),
    )  # fmt: skip
    tables.put("files", staged.name.encode(), entry)
    first = tables.allocate("segments", count)
    for number, draft in enumerate(staged.drafts, first):
        tables.put_raw("directories", catalog_key(number), draft.directory)
    return range(first, first + count)


def record_placed(tables: Tables, stream: int, staged: StagedFile | None) -> list[Segment]:
    """The same for a file whose segments go into cells; gives the segments."""
    if staged is None:
        return []
    numbers = record_file(tables, stream, staged)
    return [make_segment(staged, *each) for each in zip(staged.drafts, numbers, staged.placements, strict=True)]


def make_segment(staged: StagedFile, draft: SegmentDraft, number: int, placement: Placement) -> Segment:
    """The catalog's record of a segment that lies in a published file."""
    return Segment(
        id=number,
        file=staged.name,
        start=draft.start,
        rows=draft.rows,
        file_rows=staged.rows,
        bytes=staged.bytes * draft.rows // max(1, staged.rows),
        layout=placement.layout,
        row=placement.row,
        column=draft.column,
        first_slide=placement.first_slide,
        last_slide=placement.last_slide,
        seq_base=0,
        min_ts=draft.min_ts,
        max_ts=draft.max_ts,
        min_exp=draft.min_exp,
        max_exp=draft.max_exp,
        expiries=draft.expiries,
    )


def split_chunks(rows: Iterable[pa.RecordBatch], schema: pa.Schema, limit: int) -> Iterator[pa.Table]:
    """Batches gathered or split into tables of about `limit` bytes and not too many rows: each costs memory to sort."""
    pending: list[pa.RecordBatch] = []
    size = count = 0
    for batch in rows:
        pieces = max(1, -(-batch.nbytes // limit), -(-batch.num_rows // CHUNK_ROWS))
        step = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, step):
            piece = batch.slice(start, step)
            pending.append(piece)
            size += piece.nbytes
            count += piece.num_rows
            if size >= limit or count >= CHUNK_ROWS:
                yield pa.Table.from_batches(pending, schema)
                pending, size, count = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending, schema)


def find_late_slots(events: Iterable[Histogram], slide: int | None) -> tuple[tuple[int, int], ...]:
    """The slots that rows of spooled files fall in though `slide` had passed them already, as ranges."""
    if slide is None:
        return ()
    slots = np.unique(np.concatenate([np.empty(0, np.int64), *(unpack_histogram(each)[0] for each in events)]))
    late = slots[slots <= slide]
    starts = np.flatnonzero(np.diff(late, prepend=late[:1] - 2) > 1)
    ends = np.append(starts[1:], len(late)) - 1
    return tuple((int(late[first]), int(late[last])) for first, last in zip(starts, ends, strict=True) if len(late))


def count_late_rows(events: Histogram, slide: int | None) -> int:
    """How many rows of a spooled file fall in slots that were already slid past at `slide`."""
    if slide is None:
        return 0
    slots, counts = unpack_histogram(events)
    return int(counts[slots <= slide].sum())

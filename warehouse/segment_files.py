"""Files on their way into the catalog: chunks of rows, what was written of them, and the segments they become."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from windrow.indexes.segment_builder import SegmentDraft
from windrow.indexes.segments import Histogram, Segment, unpack_histogram
from windrow.slide_hooks import AppendContribution

CHUNK_BYTES = 64 << 20
CHUNK_ROWS = 1 << 20


@dataclass
class StagedFile:
    """A sealed file and what the catalog will say of it."""

    path: Path
    rows: int
    bytes: int
    digest: str
    cuts: tuple[SegmentDraft, ...]
    events: Histogram
    written_here: bool = False
    """By this process, not by a worker of Spark."""
    tallies: tuple[AppendContribution, ...] = ()
    """What is put down with it for those who follow the stream."""

    @property
    def taken(self) -> int:
        """Rows that its cuts name; a file that Spark wrote may end in rows that were rejected."""
        return sum(cut.rows for cut in self.cuts)


def make_segment(
    cut: SegmentDraft,
    number: int,
    file: str,
    staged: StagedFile,
    layout: int,
    *,
    row: int,
    slide: int,
    first_slide: int | None = None,
) -> Segment:
    """The catalog's record of a cut that lies in a staged file."""
    return Segment(
        id=number,
        file=file,
        start=cut.start,
        rows=cut.rows,
        file_rows=staged.rows,
        bytes=staged.bytes * cut.rows // max(1, staged.rows),
        layout=layout,
        row=row,
        column=cut.column,
        first_slide=slide if first_slide is None else first_slide,
        last_slide=slide,
        seq_base=0,
        min_ts=cut.min_ts,
        max_ts=cut.max_ts,
        min_exp=cut.min_exp,
        max_exp=cut.max_exp,
        expiries=cut.expiries,
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


def count_late_rows(events: Histogram, slide: int | None) -> int:
    """How many rows of a spooled file fall in slots that were already slid past at `slide`."""
    if slide is None:
        return 0
    slots, counts = unpack_histogram(events)
    return int(counts[slots <= slide].sum())

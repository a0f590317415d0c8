"""Segments under another lifetime: the same rows in the same files, with other expiries in their records."""

import pyarrow as pa
from msgspec.structs import replace

from windrow.indexes.row_model import RowModel
from windrow.indexes.rowreading import read_ranges
from windrow.indexes.segment_reader import FileReader
from windrow.indexes.segments import Segment, pack_histogram
from windrow.native import rows as native_rows


def retimed(segment: Segment, model: RowModel, full: pa.Schema, reader: FileReader) -> Segment:
    """A segment's record as `model` sees its rows; it goes to a layout without expiry columns (see `flattened`).

    Only streams whose rows all live equally long are retimed, so its event times are all that is read.
    """
    rows = read_ranges(
        {segment.file: [(segment.start, segment.stop)]}, pa.schema([full.field(model.time)]), full, reader
    )
    ts, _ = model.times(rows)
    exp, _ = model.expiries(rows, ts)
    return replace(
        segment,
        column=0,
        min_exp=int(exp.min()),
        max_exp=int(exp.max()),
        expiries=pack_histogram(*native_rows.histogram(model.slots(exp))),
    )

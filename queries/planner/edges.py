"""The edge of a small window: of its segments only the rows in the window are handed to DuckDB, in one batch.

DuckDB could compare the times itself, and does in large windows. But then the view that says with what to compare them
is made anew at each slide, and every segment is a batch, which costs more than looking at some thousand rows.
"""

import pyarrow as pa

from windrow.indexes.manifest import Manifest
from windrow.indexes.rowreading import Spans, read_live_spans, read_within
from windrow.indexes.segment_reader import FileReader
from windrow.indexes.selection import Selection
from windrow.snapshot import StreamView

_FEW = 100_000
"""Rows that one thread has picked sooner than DuckDB's would have begun."""


def is_small(view: StreamView, selection: Selection, reader: FileReader) -> bool:
    """Whether the edge of a window is worth picking here: it has few rows, and its pages need not be unpacked."""
    edge = Manifest.of(selection.edge)
    if edge.rows > _FEW:
        return False
    files = edge.files()
    reader.mapped_all(tuple(files), view.stored_schema)  # what is not known yet says nothing
    return not reader.unpacks(files)


def shown(schema: pa.Schema) -> pa.Schema:
    """The columns as they are handed out: texts as views of the files that they lie in, so that none is copied."""
    return pa.schema([field.with_type(_viewed(field.type)) for field in schema])


def _viewed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string_view()
    return pa.binary_view() if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else kind


def rows(view: StreamView, selection: Selection, schema: pa.Schema, reader: FileReader) -> list[pa.RecordBatch]:
    """The rows at the edge that are in the window, with some of the columns that are `shown`."""
    spans, bounds, full = Spans.of_segments(selection.edge), selection.edge_bounds(), view.stored_schema
    limits = bounds.limits(view.model, full)
    found = None if limits is None else read_within(spans, limits, schema, full, reader)
    if found is not None:
        return [found]
    stored = pa.schema([full.field(name) for name in schema.names])
    copied = read_live_spans(spans, bounds, view.model, stored, full, reader)
    batches: list[pa.RecordBatch] = copied.cast(schema).to_batches()
    return batches

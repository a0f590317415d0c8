"""Segment files, as they are written: rows gathered in storage order, row groups that never straddle two segments.

Rows that gain from neither dictionary nor compression go straight from where they lie into the file's pages
(`native/parquet_writer.pyx`); pyarrow writes the others. Row groups are sized in bytes, so that a row range costs
what it holds and not more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.indexes.judging import Judge, is_plain
from windrow.indexes.row_model import Int64s
from windrow.native import parquet_writer


class SegmentFileWriter:
    """Writes rows in storage order into one Parquet file; each segment starts new row groups.

    Args:
        sink: An Arrow output stream.
        schema: Of the rows, with `_seq`.
        row_group_bytes: Aimed size of a row group.
        sorted_by: Columns whose minimum and maximum per row group are worth keeping.
        judge: Says which columns are worth a dictionary or compression; without one, the first rows do.
    """

    def __init__(
        self,
        sink: Any,
        schema: pa.Schema,
        row_group_bytes: int,
        sorted_by: Sequence[str] = (),
        judge: Judge | None = None,
    ) -> None:
        self._sink = sink
        self._judge = judge or Judge()
        self._schema = schema
        self._row_group_bytes = row_group_bytes
        self._sorted_by = list(sorted_by)
        self._output: _Pages | _Arrow | None = None
        self._pending: list[tuple[pa.Table, Int64s | None]] = []
        self._pending_bytes = 0
        self.rows = 0

    @property
    def digest(self) -> str | None:
        """XXH3 of the closed file's bytes, if it is known without reading them again."""
        return self._output.pages.digest if isinstance(self._output, _Pages) else None

    def add(self, table: pa.Table, order: Int64s | None = None, *, last: bool = True) -> None:
        """Append rows of one segment: those of `table`, or those that `order` names, in its order.

        `last` ends the segment, so that the next row group starts a new one.
        """
        rows = table.num_rows if order is None else len(order)
        self.rows += rows
        self._pending.append((table, order))
        self._pending_bytes += table.nbytes * rows // max(1, table.num_rows)
        if last or self._pending_bytes >= 4 * self._row_group_bytes:
            self._flush()

    def _flush(self) -> None:
        table, order = _joined(self._pending)
        rows, size = table.num_rows if order is None else len(order), self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._output is None:
            self._output = self._begin(table, order)
        if rows:
            self._output.write(table, order, group_rows(rows, size, self._row_group_bytes))

    def _begin(self, table: pa.Table, order: Int64s | None) -> "_Pages | _Arrow":
        settings = self._judge.settings(table, order, self._sorted_by)
        if is_plain(settings):
            try:
                return _Pages(self._sink, self._schema, settings["write_statistics"] or ())
            except parquet_writer.Declined:
                pass
        return _Arrow(self._sink, self._schema, settings)

    def close(self) -> None:
        """Write what is pending and the footer."""
        if self._pending:
            self._flush()
        if self._output is not None:
            self._output.close()


class _Pages:
    """Rows as plain pages, by our own writer."""

    def __init__(self, sink: Any, schema: pa.Schema, extremes: Sequence[str]) -> None:
        self.pages = parquet_writer.PageWriter(sink, schema, extremes)

    def write(self, table: pa.Table, order: Int64s | None, per_group: int) -> None:
        columns = [_one(column) for column in table.columns]
        picked = np.arange(table.num_rows, dtype=np.int64) if order is None else order
        for start in range(0, len(picked), per_group):
            self.pages.add_group(columns, picked[start : start + per_group])

    def close(self) -> None:
        self.pages.close()


class _Arrow:
    """Rows as pyarrow writes them, with dictionaries and compression."""

    def __init__(self, sink: Any, schema: pa.Schema, settings: dict[str, Any]) -> None:
        self._writer = pq.ParquetWriter(sink, schema, **settings)

    def write(self, table: pa.Table, order: Int64s | None, per_group: int) -> None:
        rows = table if order is None else table.take(pa.array(order))
        self._writer.write_table(rows, row_group_size=per_group)

    def close(self) -> None:
        self._writer.close()

    def __del__(self) -> None:
        # After a failure the sink is closed already: pyarrow would complain on stderr that it cannot write a footer.
        if hasattr(self, "_writer"):
            self._writer.is_open = False


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _joined(pending: Sequence[tuple[pa.Table, Int64s | None]]) -> tuple[pa.Table, Int64s | None]:
    """Several pieces as one."""
    if len(pending) == 1:
        return pending[0]
    table = pa.concat_tables([piece for piece, _ in pending])
    if all(order is None for _, order in pending):
        return table, None
    orders, before = [], 0
    for piece, order in pending:
        orders.append((np.arange(piece.num_rows, dtype=np.int64) if order is None else order) + before)
        before += piece.num_rows
    return table, np.concatenate(orders)


def group_rows(rows: int, size: int, row_group_bytes: int) -> int:
    """Rows per row group so that each holds about `row_group_bytes`, of equal size."""
    groups = max(1, round(size / row_group_bytes))
    return int(max(32, -(-rows // groups)))

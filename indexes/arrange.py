"""Rows become segments: cut by expiry column, sorted by (search key, expiry, arrival), with directories and figures."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.indexes.model import SEQ, Int64s, RowModel
from windrow.indexes.partitioners import Partitioner
from windrow.indexes.segments import pack_histogram
from windrow.native import directory as native_directory
from windrow.native import rows as native_rows


@dataclass(frozen=True)
class Cut:
    """One segment to be: a run of rows of one expiry column in an arranged table."""

    column: int
    start: int
    rows: int
    min_ts: int
    max_ts: int
    min_exp: int
    max_exp: int
    expiries: bytes
    directory: bytes


@dataclass(frozen=True)
class Arranged:
    """A table in storage order and where its segments are."""

    table: pa.Table
    cuts: tuple[Cut, ...]


def arrange(
    table: pa.Table, model: RowModel, partitioner: Partitioner, ts: Int64s, exp: Int64s, seq: Int64s
) -> Arranged:
    """Put `table` (without `_seq`) in storage order.

    Args:
        table: Rows, all of them acceptable.
        model: How to read them.
        partitioner: Gives the expiry column.
        ts: Event times.
        exp: Expiry times.
        seq: Arrival order, becomes the hidden column.
    """
    slots = model.slots(exp)
    columns = partitioner.columns_of(slots) if partitioner.columns > 1 else None
    keys = model.encoded_keys(table) if model.key else None
    order = native_rows.sort_order(columns, keys, exp)
    picked = pa.array(order)
    ordered = table.append_column(SEQ, pa.array(seq)).combine_chunks().take(picked)
    if keys is not None:
        keys = keys.take(picked)
    ts, exp, slots = ts[order], exp[order], slots[order]
    if columns is None:
        values, starts = [0], [0]
    else:
        found, begins = native_rows.boundaries(columns[order])
        values, starts = found.tolist(), begins.tolist()
    stops = [*starts[1:], len(order)]
    cuts = tuple(
        cut_of(value, start, stop, ts, exp, slots, keys)
        for value, start, stop in zip(values, starts, stops, strict=True)
    )
    return Arranged(ordered, cuts)


def cut_of(column: int, start: int, stop: int, ts: Int64s, exp: Int64s, slots: Int64s, keys: pa.Array | None) -> Cut:
    """The statistics and directory of rows [start, stop) of an arranged table."""
    part = slice(start, stop)
    own = keys.slice(start, stop - start) if keys is not None else None
    return Cut(
        column=int(column),
        start=start,
        rows=stop - start,
        min_ts=int(ts[part].min()),
        max_ts=int(ts[part].max()),
        min_exp=int(exp[part].min()),
        max_exp=int(exp[part].max()),
        expiries=pack_histogram(*native_rows.histogram(slots[part])),
        directory=native_directory.build(own) if own is not None else b"",
    )


def arrival(rows: int, before: int) -> Int64s:
    """Arrival ordinals of `rows` rows that follow `before` others."""
    return np.arange(before, before + rows, dtype=np.int64)

"""Windows that go by the order of rows, ``[ROWS n PARTITION BY k]`` and ``[SESSION …]``: which rows a slide changes.

A row is in such a window from when it comes until newer rows of its key push it out, or until it expires. Only where
lifetimes differ can a row that expires bring an older one back.
"""

import numpy as np
import pyarrow as pa

from windrow.indexes.row_model import Bools, Int64s
from windrow.native import key_encoding as native_keys
from windrow.native import rows as native_rows
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.engine.types import quote_name
from windrow.queries.sql.window_spec import CountWindow, OrderedWindow
from windrow.queries.views.input_rows import ComparedRows

_KEYS, _NUMBER = "_v keys", "_v number"


def compare_windows(
    pooled: PooledCursor, window: OrderedWindow, rows: ComparedRows, time: pa.Field
) -> tuple[Bools, Bools]:
    """Which rows were in their key's window at the last update, and which are now.

    Args:
        pooled: A cursor.
        window: Its keys are as the stream spells them.
        rows: All rows of some keys.
        time: The column that rows are ordered by first.
    """
    groups = _number_keys(pooled, rows, window.keys)
    contested = np.ones(len(rows), bool)
    if isinstance(window, CountWindow):  # most keys have fewer rows
        contested = np.bincount(groups, minlength=1)[groups] > window.count
    some, groups = rows.select(contested), groups[contested]
    times = some.take(time.name).cast(pa.int64()).to_numpy() if time.type.unit == "ns" else some.begins
    places = native_keys.encode([pa.array(each) for each in (groups, times, some.sequence)])
    order = native_rows.sort_order(None, places, None)[::-1]  # keys together, of each the newest first
    had, has = rows.had.copy(), rows.has.copy()
    pause = 0 if isinstance(window, CountWindow) else window.pause * (1000 if time.type.unit == "ns" else 1)
    for result, alive in ((had, some.had), (has, some.has)):
        newest, inside = order[alive[order]], np.zeros(len(some), bool)
        starts = np.flatnonzero(np.diff(groups[newest], prepend=-1))
        counts = np.diff(starts, append=len(newest))
        if isinstance(window, CountWindow):
            inside[newest] = np.arange(len(newest)) - np.repeat(starts, counts) < window.count
        else:
            paused = np.diff(times[newest], prepend=0) <= -pause
            paused[starts] = False
            pauses = np.cumsum(paused)
            inside[newest] = pauses == np.repeat(pauses[starts], counts)
        result[contested] = inside
    return had, has


def _number_keys(pooled: PooledCursor, rows: ComparedRows, names: tuple[str, ...]) -> Int64s:
    """A number for each key, equal for rows with equal keys."""
    if not names:
        return np.zeros(len(rows), np.int64)
    columns = [rows.take(name) for name in names]
    if all(native_keys.is_supported(column.type) for column in columns):
        numbers: Int64s = native_keys.encode(columns).dictionary_encode().indices.to_numpy().astype(np.int64)
        return numbers
    pooled.offer_table(_KEYS, pa.table([*columns, np.arange(len(rows))], [*names, _NUMBER]))
    ranked = f"dense_rank() OVER (ORDER BY {', '.join(map(quote_name, names))})"
    table = pooled.cursor.sql(f"SELECT {ranked} AS k FROM {quote_name(_KEYS)} ORDER BY {quote_name(_NUMBER)}")
    ranks: Int64s = table.to_arrow_table().column(0).to_numpy()
    return ranks

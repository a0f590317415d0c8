"""What has come and what has gone between two answers: multiset differences, in the order of the answer they are from.

Rows are compared as SQL's EXCEPT ALL does: nulls are equal to each other, and a row that is there twice counts twice.
"""

import pyarrow as pa

from windrow.queries.engine import instance
from windrow.store import Store


def difference(store: Store, left: pa.Table, right: pa.Table | None) -> pa.Table:
    """The rows of `left` that are not in `right`, as often as they are there more often."""
    if right is None or not right.num_rows or not left.num_rows:
        return left
    names = [f"c{at}" for at in range(left.num_columns)]
    cursor = instance.cursor(store)
    try:
        cursor.register("_left", left.rename_columns(names))
        cursor.register("_right", right.rename_columns(names))
        found = cursor.sql(_statement(names)).to_arrow_table()
    finally:
        cursor.close()
    return left.take(found.column(0))


def _statement(names: list[str]) -> str:
    columns = ", ".join(names)

    def counted(relation: str) -> str:
        numbered = f"SELECT *, row_number() OVER () AS _row FROM {relation}"
        return f"SELECT *, row_number() OVER (PARTITION BY {columns} ORDER BY _row) AS _copy FROM ({numbered})"

    same = " AND ".join(f"l.{name} IS NOT DISTINCT FROM r.{name}" for name in (*names, "_copy"))
    return f"SELECT l._row - 1 FROM ({counted('_left')}) l ANTI JOIN ({counted('_right')}) r ON {same} ORDER BY l._row"


def delivered_rows(store: Store, output: str, now: pa.Table, before: pa.Table | None) -> pa.Table:
    """What a run delivers: the whole answer, what is new in it, or what is no longer in it."""
    if output == "inserts":
        return difference(store, now, before)
    if output == "deletes":
        return now.slice(0, 0) if before is None else difference(store, before, now)
    return now

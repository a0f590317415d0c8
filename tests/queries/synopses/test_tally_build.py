"""What a slide keeps of new rows is what plain Python adds up, whether arrays or DuckDB did it."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.catalog.records import SynopsisColumn, SynopsisEntry
from windrow.queries.synopses import tally
from windrow.queries.synopses.partial_aggregates import ROWS

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us")), ("k", pa.int64()), ("p", pa.uint8()), ("v", pa.int32()), ("t", pa.string())]
)
EDGES = st.sampled_from([None, -(1 << 63), (1 << 63) - 1, 0, 1, -1])
ROW = st.fixed_dictionaries(
    {
        "k": st.one_of(st.sampled_from([None, 1, 2, 300, -7]), EDGES),
        "p": st.sampled_from([None, 0, 255]),
        "v": st.sampled_from([None, -5, 7, (1 << 31) - 1, -(1 << 31)]),
        "t": st.sampled_from([None, "a"]),
    }
)
COLUMNS = (
    ROWS,
    SynopsisColumn(key="s", build="sum(v\n)", merge="sum", type="HUGEINT"),
    SynopsisColumn(key="n", build="count(v\n)", merge="sum", type="BIGINT"),
    SynopsisColumn(key="l", build='min(_row."V"\n)', merge="min", type="INTEGER"),
    SynopsisColumn(key="m", build="max(p\n)", merge="max", type="UTINYINT"),
    SynopsisColumn(key="t", build="count(t\n)", merge="sum", type="BIGINT"),
)


def entry(
    groups: list[tuple[str, str, str]], columns: tuple[SynopsisColumn, ...] = COLUMNS, **more: Any
) -> SynopsisEntry:
    asked = {"where": "", "where_key": "", "expiring": False} | more
    return SynopsisEntry(
        stream=1, number=1, terms=(), groups=tuple(groups), columns=columns, kind="basic", slots=4, floor=0, slide=None,
        why="", **asked,
    )  # fmt: skip


def plainly(rows: list[dict[str, Any]], names: list[str]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    actual: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        actual.setdefault(tuple(row[name] for name in names), []).append(row)

    def kept(members: list[dict[str, Any]]) -> tuple[Any, ...]:
        v, p = ([row[name] for row in members if row[name] is not None] for name in ("v", "p"))
        texts = sum(row["t"] is not None for row in members)
        return len(members), sum(v) if v else None, len(v), min(v, default=None), max(p, default=None), texts

    return {group: kept(members) for group, members in actual.items()}


@example([{"k": (1 << 63) - 1, "p": 0, "v": 7, "t": None}, {"k": None, "p": 0, "v": 7, "t": None}], ["k"])
@given(st.lists(ROW, min_size=1, max_size=40), st.sampled_from([[], ["k"], ["p"], ["k", "p"], ["p", "v"]]))
def test_groups_are_kept_as_python_adds_them_up(rows: list[dict[str, Any]], names: list[str]) -> None:
    """Nulls in groups and values, negative numbers, both ends of 64 bits; too wide groups are left to DuckDB."""
    kinds = {"k": "BIGINT", "p": "UTINYINT", "v": "INTEGER"}
    (recipe,) = tally.make_build_plans([entry([(f"_row.{n.upper()}", n, kinds[n]) for n in names])], SCHEMA)
    assert recipe is not None
    table = pa.table({f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in SCHEMA})
    given_ = tally.SlotRows(table)
    if not given_.fits(recipe):
        assert "k" in names
        assert any(abs(row["k"] or 0) > 300 for row in rows)
        return
    built = given_.build(recipe)
    width = len(names)
    report = [tuple(row.values()) for row in built.to_pylist()]
    assert {row[:width]: row[width:] for row in report} == plainly(rows, names)
    assert len(report) == len(plainly(rows, names))


@pytest.mark.parametrize(
    "refused",
    [
        entry([("k % 2", "g", "BIGINT")]),
        entry([("t", "g", "VARCHAR")]),
        entry([("k", "g", "BIGINT")], where="v > 1", where_key="w"),
        entry([("k", "g", "BIGINT")], expiring=True),
        entry([], (ROWS, SynopsisColumn(key="s", build="sum(k\n)", merge="sum", type="HUGEINT"))),
        entry(
            [], (ROWS, SynopsisColumn(key="s", build="sum(v\n) FILTER (WHERE k > 1\n)", merge="sum", type="HUGEINT"))
        ),
        entry([], (ROWS, SynopsisColumn(key="s", build="sum(v + 1\n)", merge="sum", type="HUGEINT"))),
    ],
)
def test_what_is_not_plain_is_left_to_duckdb(refused: SynopsisEntry) -> None:
    assert tally.make_build_plans([refused], SCHEMA) == [None]

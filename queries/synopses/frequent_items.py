"""Lists of frequent items: the heaviest groups of what one slide brought into one event slot, with exact weights.

Merged over a window they bound the weight of every group: what a group has on lists is certain, and a list that does
not name it hides at most what the heaviest group left out has (see docs/references.md, [1], chapter 6). Late rows have
lists of their own, so nothing is ever corrected; where lifetimes differ, weights are kept by expiry slot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.catalog.records import SummaryEntry
from windrow.indexes.arrow_arrays import to_arrow, to_numpy
from windrow.queries.engine import arrow_ipc
from windrow.queries.synopses import node_store
from windrow.queries.synopses.node_store import fetch_rows

Int64s = npt.NDArray[np.int64]
ROWS, SUM = "rows", "sum"
"""What a summary counts: rows, or the values of a column."""
SUM_COLUMN, LEAST_COLUMN = "c1", "c2"
"""Of a summary of sums: what its groups add up to, and the least value, which says whether any is negative."""
_EVER = 1 << 62
"""The expiry slot of rows that leave with their event slot."""
_MOST_WEIGHT = 1 << 61
"""Lists whose weights come near what 64 bits hold are not merged."""


class FrequentList(msgspec.Struct, frozen=True, kw_only=True):
    """The heaviest groups of some rows, as it lies in the catalog."""

    rows: bytes
    """Arrow IPC: the group columns ``g…``, the weight ``n``, and with lifetimes of their own the expiry slot ``x``."""
    total: int = 0
    """All weights on the list together."""
    left_out: tuple[tuple[int, int], ...] = ()
    """What a group that is not on it weighs at most: (slot, weight), ascending; a weight holds for clocks before its
    slot and from the slot before that on. Empty: there is no such group."""
    problem: str = ""
    """Why it cannot be used, such as a negative value."""

    def most_left_out(self, slide: int) -> int:
        """What a group that is not on it weighs at most, of rows that live at a slide."""
        return next((weight for slot, weight in self.left_out if slot > slide), 0)


class UnusableListError(Exception):
    """Why lists bound nothing; a user reads it if he asks for the bounds themselves."""


# -- making lists ----------------------------------------------------------------------------------------------------


def make_lists(cursor: Any, entry: SummaryEntry, rows: str) -> dict[int, FrequentList]:
    """The lists of some rows, by event slot.

    Args:
        cursor: Of DuckDB.
        entry: What is counted of which rows, and how many groups a list names.
        rows: A relation with the stream's columns, `node_store.SLOT` and `node_store.EXPIRY`.
    """
    counted, kind, frequent = entry.counted, entry.kind, entry.frequent
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE _groups AS {node_store.build_sql(counted, rows)}")
    try:
        problems = _find_problems(cursor) if kind == SUM else {}
        weight = "c0" if kind == ROWS else f"coalesce({SUM_COLUMN}, 0)"
        usable = f" WHERE slot NOT IN ({', '.join(map(str, problems))})" if problems else ""
        source = f"(SELECT *, CAST({weight} AS BIGINT) AS n FROM _groups{usable})"
        groups = [f"g{position}" for position in range(len(counted.groups))]
        make = _make_by_expiry if counted.expiring else _make_by_slot
        lists = make(cursor, source, groups, frequent)
    finally:
        cursor.execute("DROP TABLE IF EXISTS _groups")
    return lists | {slot: FrequentList(rows=b"", problem=problem) for slot, problem in problems.items()}


def _find_problems(cursor: Any) -> dict[int, str]:
    """Slots with values that cannot be bounded, and why."""
    rows = cursor.execute(
        f"SELECT slot, min({LEAST_COLUMN}), sum({SUM_COLUMN}) FROM _groups GROUP BY slot "
        f"HAVING min({LEAST_COLUMN}) < 0 OR sum({SUM_COLUMN}) > {_MOST_WEIGHT}"
    ).fetchall()
    return {
        slot: f"a value is {least}, and sums of negative values have no bounds"
        if least < 0
        else f"values add up to {total}, which is too large to be bounded"
        for slot, least, total in rows
    }


def _make_by_slot(cursor: Any, source: str, groups: list[str], frequent: int) -> dict[int, FrequentList]:
    """Of rows that leave with their event slot: the heaviest groups and the first that is left out."""
    columns = ", ".join([*groups, "n"])
    sql = f"SELECT slot, {columns} FROM {source} QUALIFY {_rank_sql('slot', 'n')} <= {frequent + 1}"
    lists = {}
    for slot, rows in node_store.split_rows_by_slot(fetch_rows(cursor, sql)).items():
        ordered = rows.sort_by([("n", "descending")])
        named = ordered.slice(0, frequent)
        rest = ordered.column("n")[frequent].as_py() if ordered.num_rows > frequent else None
        lists[slot] = _make_list(named, () if rest is None else ((_EVER, rest),))
    return lists


def _make_by_expiry(cursor: Any, source: str, groups: list[str], frequent: int) -> dict[int, FrequentList]:
    """Of rows with lifetimes of their own: the groups that are heaviest altogether, with what leaves when.

    At an expiry slot, a group that is left out weighs at most what the heaviest one weighs altogether, and at most what
    the heaviest parts that leave then and later add up to.
    """
    names = ", ".join(groups)
    whole = f"SELECT slot, {names}, CAST(sum(n) AS BIGINT) AS n FROM {source} GROUP BY ALL"
    ranked = f"SELECT *, {_rank_sql('slot', 'n')} AS place FROM ({whole}) QUALIFY place <= {frequent + 1}"
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE _ranked AS {ranked}")
    same = " AND ".join(f"p.{name} IS NOT DISTINCT FROM r.{name}" for name in ("slot", *groups))
    named = f"_ranked r ON r.place <= {frequent} AND {same}"
    parts = ", ".join(f"p.{name}" for name in (*groups, "x", "n"))
    listed = fetch_rows(cursor, f"SELECT p.slot, {parts} FROM {source} p JOIN {named}")
    left_out = cursor.execute(
        f"SELECT p.slot, p.x, CAST(max(p.n) AS BIGINT) FROM {source} p ANTI JOIN {named} "
        "GROUP BY 1, 2 ORDER BY 1, 2 DESC"
    ).fetchall()
    first = dict(cursor.execute(f"SELECT slot, n FROM _ranked WHERE place = {frequent + 1}").fetchall())
    cursor.execute("DROP TABLE IF EXISTS _ranked")
    steps: dict[int, list[tuple[int, int]]] = {}
    for slot, expiry, weight in left_out:
        slot_steps = steps.setdefault(slot, [])
        later = slot_steps[-1][1] if slot_steps else 0
        slot_steps.append((expiry, min(first[slot], later + weight)))
    tables = node_store.split_rows_by_slot(listed)
    return {slot: _make_list(rows, tuple(reversed(steps.get(slot, ())))) for slot, rows in tables.items()}


def _rank_sql(part: str, weight: str) -> str:
    return f"row_number() OVER (PARTITION BY {part} ORDER BY {weight} DESC)"


def _make_list(rows: pa.Table, left_out: tuple[tuple[int, int], ...]) -> FrequentList:
    batch = arrow_ipc.as_single_batch(rows)
    assert batch is not None
    total = int(sum(rows.column("n").to_pylist()))
    return FrequentList(rows=arrow_ipc.encode_batch(batch), total=total, left_out=left_out)


# -- merging lists ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupBounds:
    """What lists say of the weights of groups in a window, heaviest first."""

    groups: pa.Table
    """Columns ``g…``: every group that surely has weight."""
    lower: Int64s
    upper: Int64s
    left_out: int
    """What a group that is on no list weighs at most."""
    whole: bool
    """Whether the lists surely name all groups that there are, with all of their rows."""
    lists: int = 0

    def certain(self, most: int) -> npt.NDArray[np.bool_]:
        """Which groups are certainly among the `most` heaviest: fewer than so many others can be heavier."""
        ordered = np.sort(self.upper)
        heavier = len(ordered) - np.searchsorted(ordered, self.lower, side="right") - (self.upper > self.lower)
        return (self.lower >= self.left_out) & (heavier < most)

    def find_candidates(self, most: int) -> Int64s | None:
        """Positions of the groups among which the `most` heaviest are, ties at the end included; None: not known.

        Any choice of the heaviest, however ties are broken, is made of groups that weigh at least what the last of the
        `most` greatest lower bounds is.
        """
        if len(self.lower) < most:
            return np.arange(len(self.lower)) if self.whole else None
        least = self.lower[most - 1]
        return np.flatnonzero(self.upper >= least) if self.whole or self.left_out < least else None


@dataclass(frozen=True)
class DecodedList:
    """A list in memory."""

    stored: FrequentList
    rows: pa.Table = field(repr=False)
    firsts: npt.NDArray[np.bool_] = field(repr=False)
    """Which row of each group comes first; a group has one for each of its expiry slots."""

    @classmethod
    def of(cls, raw: bytes) -> "DecodedList":
        """A list out of the catalog."""
        stored = decode_list(raw)
        rows = pa.ipc.open_stream(pa.py_buffer(stored.rows)).read_all() if stored.rows else pa.table({})
        firsts = np.ones(rows.num_rows, bool)
        if "x" in rows.column_names:
            firsts[:] = False
            firsts[_number_groups(rows.drop_columns(["x", "n"]))[1]] = True
        return cls(stored, rows, firsts)


encode_list: Callable[[FrequentList], bytes] = msgspec.msgpack.encode
"""A list as bytes."""
_DECODER = msgspec.msgpack.Decoder(FrequentList)


def decode_list(raw: bytes) -> FrequentList:
    """The list that was encoded."""
    return _DECODER.decode(raw)


def merge_lists(lists: Sequence[DecodedList], entry: SummaryEntry, slide: int) -> GroupBounds:
    """The bounds that lists give at a slide.

    Raises:
        UnusableListError: why they give none.
    """
    for each in lists:
        if each.stored.problem:
            raise UnusableListError(each.stored.problem)
    most = [each.stored.most_left_out(slide) for each in lists]
    if sum(each.stored.total for each in lists) + sum(most) > _MOST_WEIGHT:
        raise UnusableListError("values add up to more than can be bounded")
    whole = entry.kind == ROWS and not any(most)  # groups may well add up to nothing, but not consist of nothing
    named = [(each, hidden) for each, hidden in zip(lists, most, strict=True) if each.rows.num_rows]
    if not named:
        nothing = np.zeros(0, np.int64)
        return GroupBounds(pa.table({}), nothing, nothing, sum(most), whole, len(lists))
    rows = pa.concat_tables([each.rows for each, _ in named])
    weights = to_numpy(rows.column("n"))
    if entry.counted.expiring:
        weights = np.where(to_numpy(rows.column("x")) > slide, weights, 0)
    groups = rows.select([f"g{position}" for position in range(len(entry.counted.groups))])
    numbers, firsts = _number_groups(groups)
    lower, upper = np.zeros(len(firsts), np.int64), np.full(len(firsts), sum(most), np.int64)
    np.add.at(lower, numbers, weights)
    np.add.at(upper, numbers, weights - np.concatenate([each.firsts * hidden for each, hidden in named]))
    order = np.lexsort((-upper, -lower))
    order = order[lower[order] > 0]
    return GroupBounds(groups.take(to_arrow(firsts[order])), lower[order], upper[order], sum(most), whole, len(lists))


def _number_groups(groups: pa.Table) -> tuple[Int64s, Int64s]:
    """Which group each row is of, and a row of each group; null is a value like others."""
    numbers = np.zeros(groups.num_rows, np.int64)
    for column in groups.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        joined = numbers * len(encoded.dictionary) + to_numpy(encoded.indices)
        _, numbers = np.unique(joined, return_inverse=True)
    firsts = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return numbers, firsts

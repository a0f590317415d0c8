"""Answers straight from the totals of a pass, without a statement in DuckDB: its groups, its order, its first rows.

Only what `finals` recognises is done here, and only while it is exact: whatever is not gives None, and DuckDB is asked.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.native import group_aggregate as kernels
from windrow.queries.synopses import node_store
from windrow.queries.synopses.array_engine import ArraySynopsis, Numbers, Ranking
from windrow.queries.synopses.evaluate import AnswerPlan
from windrow.queries.synopses.query_shape import ArrayStatement, OutputColumn, SortColumn

_EXACT_FLOAT_LIMIT = 1 << 53
_EXTREMES = {"min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}
Positions = npt.NDArray[np.int64]
_Values = tuple[Numbers, npt.NDArray[np.bool_] | None]
"""Values, and where they are null."""


class _NeedsDuckDBError(Exception):
    """Only DuckDB can say."""


@dataclass
class _Frequencies:
    """How often values occur, in the order of a ranking."""

    upto: Positions
    before: Positions
    """How many there are in all parts before each."""
    total: Positions
    there: npt.NDArray[np.bool_]


@dataclass
class WindowTotals:
    """The totals of one window; made once for all who ask for it."""

    passed: ArraySynopsis
    totals: list[Numbers]
    frequencies: dict[tuple[int, int], _Frequencies] = field(default_factory=dict)
    rows: dict[int, Numbers] = field(default_factory=dict)
    """By ranked column: how many rows each run of equal other columns has."""

    def frequency(self, ranking: Ranking, column: int) -> _Frequencies:
        """How often each value occurs in a counted column."""
        at = ranking.column, column
        if at not in self.frequencies:
            counts = np.where(ranking.valued, self.totals[column][ranking.numbers], 0)
            upto = np.cumsum(counts)
            before = (upto - counts)[ranking.starts]
            self.frequencies[at] = _Frequencies(upto, before, upto[ranking.stops - 1] - before, counts > 0)
        return self.frequencies[at]

    def counts(self, ranking: Ranking | None) -> Numbers:
        """How many rows each group has."""
        if ranking is None:
            return self.totals[0]
        if ranking.column not in self.rows:
            self.rows[ranking.column] = np.add.reduceat(self.totals[0][ranking.numbers], ranking.starts)
        return self.rows[ranking.column]


def answer_from_totals(window: WindowTotals, planned: AnswerPlan, direct: ArrayStatement) -> pa.Table | None:
    """The answer of a plan over one synopsis; None if DuckDB must give it."""
    if not len(window.passed.numbering):
        return None
    try:
        return _StatementAnswer(window, planned, direct).table()
    except _NeedsDuckDBError:
        return None


class _StatementAnswer:
    """One statement over one window."""

    def __init__(self, window: WindowTotals, planned: AnswerPlan, direct: ArrayStatement) -> None:
        self.window, self.shape, self.direct = window, planned.asked.shape, direct
        need, entry = self.shape.needs[0], window.passed.entry
        places, names = node_store.find_group_positions(entry, need), node_store.name_columns(entry)
        assert places is not None
        self.places = places
        if need.counted and not window.passed.rankable(places[-1]):
            raise _NeedsDuckDBError
        self.columns = [int(names[column.key][1:]) for column in need.columns]
        self.ranking = window.passed.ranked(places[-1]) if need.counted else None
        self.counts = window.counts(self.ranking)

    def table(self) -> pa.Table:
        """The answer."""
        final = self.direct.final
        rows = self._sorted(self._candidates())
        rows = rows[final.offset : None if final.limit is None else final.offset + final.limit]
        schema = self.direct.schema
        arrays = [self._array(column, rows, f.type) for column, f in zip(final.columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _candidates(self) -> Positions:
        """Groups that may be in the answer: those that come first by the first column, or all that have rows."""
        final = self.direct.final
        if not self.shape.decomposed.groups and not self.counts.any():
            raise _NeedsDuckDBError  # an answer about no rows
        most = None if final.limit is None else final.limit + final.offset
        first = final.orders[0] if final.orders else None
        if not most or first is None or first.column.group or most >= len(self.counts):
            return np.flatnonzero(self.counts > 0)
        values, nulls = self._aggregate(first.column.number, None)
        if nulls is not None and (nulls & (self.counts > 0)).any():
            return np.flatnonzero(self.counts > 0)
        return kernels.first(_widen(values), _widen(self.counts), most, descending=first.descending)

    def _sorted(self, rows: Positions) -> Positions:
        keys: list[Any] = []
        for order in reversed(self.direct.final.orders):
            values, nulls = self._keys(order, rows)
            # Not, where minus would overflow: it turns the order of whole numbers round as well.
            keys.append(values if not order.descending else ~values if values.dtype.kind == "i" else -values)
            if nulls is not None:
                keys.append(~nulls if order.nulls_first else nulls)
        return rows[np.lexsort(keys)] if keys and len(rows) > 1 else rows

    def _keys(self, order: SortColumn, rows: Positions) -> _Values:
        if not order.column.group:
            values, nulls = self._aggregate(order.column.number, rows)
            return (values, None) if nulls is None else (np.where(nulls, 0, values), nulls)
        at = self.places[order.column.number]
        ranks = self.window.passed.numbering.ranks(at)
        if ranks is None:
            raise _NeedsDuckDBError
        codes = self.window.passed.numbering.codes(at, self._numbers(rows))
        return ranks[0][codes], ranks[1][codes]

    def _numbers(self, rows: Positions) -> Positions:
        """The number of a group of each run, which has the same columns but for the one that is counted."""
        return rows if self.ranking is None else self.ranking.numbers[self.ranking.starts[rows]]

    def _array(self, column: OutputColumn, rows: Positions, kind: pa.DataType) -> pa.Array:
        if column.group:
            values = self.window.passed.numbering.values(self.places[column.number], self._numbers(rows))
            return values if values.type == kind else values.cast(kind)
        found, nulls = self._aggregate(column.number, rows)
        return pa.array(found, mask=nulls).cast(kind)

    # -- aggregates --------------------------------------------------------------------------------------------------

    def _aggregate(self, number: int, rows: Positions | None) -> _Values:
        """An aggregate of some groups, or of all."""
        plain = self.shape.finishes[number].plain
        assert plain is not None
        word, at = str(plain[0]), self.columns[int(plain[1])]
        if word in ("disc", "cont", "distinct"):
            return self._of_values(word, at, float(plain[2]) if len(plain) > 2 else 0.0, rows)
        totals = self.window.totals
        own = totals[at] if rows is None else totals[at][rows]
        if word == "count":
            return own, None
        if word in _EXTREMES:
            return own, own == _EXTREMES[word]
        counted = totals[self.columns[int(plain[2])]]
        nulls = None
        if counted is not totals[0]:  # otherwise every group that is there has a value
            counted = counted if rows is None else counted[rows]
            nulls = counted == 0
        elif word == "avg" and rows is not None:
            counted = counted[rows]
        if own.dtype == np.float64 and not np.isfinite(own).all():
            raise _NeedsDuckDBError
        return (own, nulls) if word == "sum" else (_divide(own, counted), nulls)

    def _of_values(self, word: str, at: int, fraction: float, rows: Positions | None) -> _Values:
        """A quantile, or how many values there are."""
        ranking = self.ranking
        assert ranking is not None
        found = self.window.frequency(ranking, at)
        chosen = slice(None) if rows is None else rows
        if word == "distinct":
            there: Numbers = np.add.reduceat(found.there.astype(np.int64), ranking.starts)
            return there[chosen], None
        total, before = found.total[chosen], found.before[chosen]
        if word == "disc":
            place = np.maximum(np.ceil(total * fraction).astype(np.int64), 1)
            return _positions_to_numbers(ranking, np.searchsorted(found.upto, before + place, "left")), total == 0
        exact = (total - 1) * fraction
        low, high = np.floor(exact), np.ceil(exact)
        below = _positions_to_numbers(
            ranking, np.searchsorted(found.upto, before + low.astype(np.int64), "right")
        ).astype(np.float64)
        above = _positions_to_numbers(
            ranking, np.searchsorted(found.upto, before + high.astype(np.int64), "right")
        ).astype(np.float64)
        return below + (above - below) * (exact - low), total == 0


def _positions_to_numbers(ranking: Ranking, places: Positions) -> Numbers:
    return ranking.values[np.minimum(places, len(ranking.values) - 1)]


def _divide(total: Numbers, count: Numbers) -> Numbers:
    if total.dtype != np.float64 and len(total) and max(int(total.max()), -int(total.min())) > _EXACT_FLOAT_LIMIT:
        raise _NeedsDuckDBError
    return total / np.maximum(count, 1)


def _widen(values: Numbers) -> Numbers:
    return values if values.dtype == np.float64 else np.ascontiguousarray(values, np.int64)

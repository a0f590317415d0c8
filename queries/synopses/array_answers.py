"""Answers of statements straight from the totals of an array synopsis, without DuckDB: groups, order and first rows.

Only the final selects that `query_shape` recognises are answered here, and only while the result is exact; in all other
cases the answer is None and DuckDB runs the statement.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.native import group_aggregate as kernels
from windrow.queries.synopses.array_engine import ArraySynopsis, Numbers, Ranking
from windrow.queries.synopses.merged_answers import AnswerPlan
from windrow.queries.synopses.query_shape import ArrayStatement, OutputColumn, SortColumn

_EXACT_FLOAT_LIMIT = 1 << 53
"""Integers up to this are exact as floats."""
_EXTREMES = {"min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}
Positions = npt.NDArray[np.int64]
_Values = tuple[Numbers, npt.NDArray[np.bool_] | None]
"""Values, and where they are null."""


class _NeedsDuckDBError(Exception):
    """Only DuckDB can give an exact answer."""


@dataclass
class _Frequencies:
    """How often values occur, in the order of a ranking."""

    counts: Positions
    """How often each value occurs."""
    upto: Positions
    before: Positions
    """How many there are in all parts before each."""
    total: Positions


@dataclass
class WindowTotals:
    """The totals of one window, computed once for all queries over it."""

    synopsis: ArraySynopsis
    totals: list[Numbers]
    frequencies: dict[tuple[int, int], _Frequencies] = field(default_factory=dict)
    rows: dict[int, Numbers] = field(default_factory=dict)
    """By ranked column: how many rows each run of equal other columns has."""
    ranked: dict[tuple[int, int], Numbers] = field(default_factory=dict)
    """By ranked column and array: totals in the order of a ranking."""

    def frequency(self, ranking: Ranking, column: int) -> _Frequencies:
        """How often each value occurs in a counted column."""
        key = ranking.column, column
        if key not in self.frequencies:
            counts = self._rank(ranking, column)
            if not ranking.all_valued:
                counts = np.where(ranking.valued, counts, 0)
            upto = np.cumsum(counts)
            before = upto[ranking.starts] - counts[ranking.starts]
            self.frequencies[key] = _Frequencies(counts, upto, before, upto[ranking.stops - 1] - before)
        return self.frequencies[key]

    def _rank(self, ranking: Ranking, column: int) -> Numbers:
        """The totals of a column in the order of a ranking; columns that are one array are put in order once."""
        key = ranking.column, id(self.totals[column])
        if key not in self.ranked:
            self.ranked[key] = self.totals[column][ranking.numbers]
        return self.ranked[key]

    def counts(self, ranking: Ranking | None) -> Numbers:
        """How many rows each group has."""
        if ranking is None:
            return self.totals[0]
        if ranking.column not in self.rows:
            self.rows[ranking.column] = np.add.reduceat(self._rank(ranking, 0), ranking.starts)
        return self.rows[ranking.column]


def answer_from_totals(window: WindowTotals, plan: AnswerPlan, statement: ArrayStatement) -> pa.Table | None:
    """The answer of a plan over one synopsis; None if DuckDB must give it."""
    if not len(window.synopsis.numbering):
        return None
    try:
        return _StatementAnswer(window, plan, statement).table()
    except _NeedsDuckDBError:
        return None


class _StatementAnswer:
    """One statement over one window."""

    def __init__(self, window: WindowTotals, plan: AnswerPlan, statement: ArrayStatement) -> None:
        self.window, self.shape, self.statement = window, plan.statement.shape, statement
        need, source = self.shape.needs[0], plan.sources[0][0]
        self.positions, self.columns = source.groups, source.columns
        if need.counted and not window.synopsis.rankable(self.positions[-1]):
            raise _NeedsDuckDBError
        self.ranking = window.synopsis.ranked(self.positions[-1]) if need.counted else None
        self.counts = window.counts(self.ranking)

    def table(self) -> pa.Table:
        """The answer as a table."""
        final = self.statement.final
        rows = self._sorted(self._candidates())
        rows = rows[final.offset : None if final.limit is None else final.offset + final.limit]
        schema = self.statement.schema
        arrays = [self._array(column, rows, f.type) for column, f in zip(final.columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def _candidates(self) -> Positions:
        """Groups that may be in the answer: those that come first by the first column, or all that have rows."""
        final = self.statement.final
        if not self.shape.decomposed.groups and not self.counts.any():
            raise _NeedsDuckDBError  # an answer about no rows
        row_limit = None if final.limit is None else final.limit + final.offset
        first = final.orders[0] if final.orders else None
        if not row_limit or first is None or first.column.group or row_limit >= len(self.counts):
            return np.flatnonzero(self.counts > 0)
        values, nulls = self._aggregate(first.column.number, None)
        if nulls is not None and (nulls & (self.counts > 0)).any():
            return np.flatnonzero(self.counts > 0)
        return kernels.find_top(_widen(values), _widen(self.counts), row_limit, descending=first.descending)

    def _sorted(self, rows: Positions) -> Positions:
        keys: list[Any] = []
        for order in reversed(self.statement.final.orders):
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
        position = self.positions[order.column.number]
        ranks = self.window.synopsis.numbering.ranks(position)
        if ranks is None:
            raise _NeedsDuckDBError
        codes = self.window.synopsis.numbering.codes(position, self._numbers(rows))
        return ranks[0][codes], ranks[1][codes]

    def _numbers(self, rows: Positions) -> Positions:
        """The number of a group of each run, which has the same columns but for the one that is counted."""
        return rows if self.ranking is None else self.ranking.numbers[self.ranking.starts[rows]]

    def _array(self, column: OutputColumn, rows: Positions, kind: pa.DataType) -> pa.Array:
        if column.group:
            values = self.window.synopsis.numbering.values(self.positions[column.number], self._numbers(rows))
            return values if values.type == kind else values.cast(kind)
        totals, nulls = self._aggregate(column.number, rows)
        return pa.array(totals, mask=nulls).cast(kind)

    # -- aggregates --------------------------------------------------------------------------------------------------

    def _aggregate(self, number: int, rows: Positions | None) -> _Values:
        """An aggregate of some groups, or of all."""
        plain = self.shape.finishes[number].plain
        assert plain is not None
        operation, column = str(plain[0]), self.columns[int(plain[1])]
        if operation in ("disc", "cont", "distinct"):
            return self._of_values(operation, column, float(plain[2]) if len(plain) > 2 else 0.0, rows)
        totals = self.window.totals
        values = totals[column] if rows is None else totals[column][rows]
        if operation == "count":
            return values, None
        if operation in _EXTREMES:
            return values, values == _EXTREMES[operation]
        counted = totals[self.columns[int(plain[2])]]
        nulls = None
        if counted is not totals[0]:  # otherwise every group that is there has a value
            counted = counted if rows is None else counted[rows]
            nulls = counted == 0
        elif operation == "avg" and rows is not None:
            counted = counted[rows]
        if values.dtype == np.float64 and not np.isfinite(values).all():
            raise _NeedsDuckDBError
        return (values, nulls) if operation == "sum" else (_divide(values, counted), nulls)

    def _of_values(self, operation: str, column: int, fraction: float, rows: Positions | None) -> _Values:
        """A quantile, or how many values there are."""
        ranking = self.ranking
        assert ranking is not None
        frequencies = self.window.frequency(ranking, column)
        chosen = slice(None) if rows is None else rows
        if operation == "distinct":
            distinct: Numbers = np.add.reduceat((frequencies.counts > 0).astype(np.int64), ranking.starts)
            return distinct[chosen], None
        total, before = frequencies.total[chosen], frequencies.before[chosen]
        if operation == "disc":
            rank = np.maximum(np.ceil(total * fraction).astype(np.int64), 1)
            return _positions_to_numbers(ranking, np.searchsorted(frequencies.upto, before + rank, "left")), total == 0
        exact = (total - 1) * fraction
        low, high = np.floor(exact), np.ceil(exact)
        below = _positions_to_numbers(
            ranking, np.searchsorted(frequencies.upto, before + low.astype(np.int64), "right")
        ).astype(np.float64)
        above = _positions_to_numbers(
            ranking, np.searchsorted(frequencies.upto, before + high.astype(np.int64), "right")
        ).astype(np.float64)
        return below + (above - below) * (exact - low), total == 0


def _positions_to_numbers(ranking: Ranking, positions: Positions) -> Numbers:
    return ranking.values[np.minimum(positions, len(ranking.values) - 1)]


def _divide(total: Numbers, count: Numbers) -> Numbers:
    if total.dtype != np.float64 and len(total) and max(int(total.max()), -int(total.min())) > _EXACT_FLOAT_LIMIT:
        raise _NeedsDuckDBError
    return total / np.maximum(count, 1)


def _widen(values: Numbers) -> Numbers:
    return values if values.dtype == np.float64 else np.ascontiguousarray(values, np.int64)

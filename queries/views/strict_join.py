"""What a slide changes in a plain outer, semi or anti join of two streams, without a statement.

A result is a pair of rows that fit, or a row without a partner. It was there if its rows lived at the last update, and
is there if they live now; so what came and what has gone is told by the rows' numbers, and columns are gathered for
these results only. All other strict statements are computed by `strict_update.py` with DuckDB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.row_model import Bools, Int64s
from windrow.native.hash_match import Matcher
from windrow.queries.views.input_rows import ComparedRows
from windrow.queries.views.key_rows import plain_type
from windrow.queries.views.plan import PlainJoin, PlanPart

_PAIRING = {"INNER", "LEFT", "RIGHT", "FULL"}
"""Joins that show pairs."""
_ALONE = {"INNER": (), "LEFT": (0,), "RIGHT": (1,), "FULL": (0, 1), "SEMI": (0,), "ANTI": (0,)}
"""The sides of which rows are shown alone: without a partner, or with SEMI those that have one."""
_NONE = -1
"""Stands for the partner of a row that has none."""


def can_join_plainly(join: PlainJoin, parts: Sequence[PlanPart], view: StreamDefinition) -> bool:
    """Whether this module can compute the results of a view."""
    schemas = [part.definition.schema for part in parts if part.definition is not None]
    for columns in join.keys:
        kinds = [schema.field(column).type for schema, column in zip(schemas, columns, strict=True)]
        if kinds[0] != kinds[1] or not pa.types.is_integer(kinds[0]) or pa.types.is_uint64(kinds[0]):
            return False
    kinds_by_name = {name: plain_type(schemas[number].field(column).type) for name, number, column in join.columns}
    fields = [field for field in view.schema if field.name not in (view.time, view.expires)]
    return len(kinds_by_name) == len(join.columns) and all(kinds_by_name.get(f.name) == f.type for f in fields)


@dataclass(frozen=True)
class JoinResults:
    """Results of a join.

    Args:
        rows: For each side the number of a result's row; `_NONE` if it has none there.
        begins: When each result begins.
        ends: When each ends.
    """

    rows: tuple[Int64s, Int64s]
    begins: Int64s
    ends: Int64s

    def __len__(self) -> int:
        return len(self.begins)


class PlainJoinChanges:
    """The results that came and that have gone.

    Args:
        join: The statement.
        sides: The rows of both inputs on which changed results can depend.
        now: The view's clock.
    """

    def __init__(self, join: PlainJoin, sides: Sequence[ComparedRows], now: int) -> None:
        self._join, self._sides = join, sides
        self._begins, self._ends = [side.begins for side in sides], [side.ends for side in sides]
        pairs = self._match()
        had, has = (getattr(sides[0], name)[pairs[0]] & getattr(sides[1], name)[pairs[1]] for name in ("had", "has"))
        pieces = [(pairs, had, has)] if join.kind in _PAIRING else []
        for number in _ALONE[join.kind]:
            side = sides[number]
            had_partner, has_partner = (self._find_matched(pairs[number][which], number) for which in (had, has))
            if join.kind == "SEMI":
                had_partner, has_partner = ~had_partner, ~has_partner
            rows = np.arange(len(side.had)), np.full(len(side.had), _NONE, np.int64)
            pieces.append(((rows[number], rows[1 - number]), side.had & ~had_partner, side.has & ~has_partner))
        self.came = self._collect([(rows, is_there & ~was) for rows, was, is_there in pieces])
        gone = self._collect([(rows, was & ~is_there) for rows, was, is_there in pieces])
        early = gone.ends > now
        self.gone = JoinResults((gone.rows[0][early], gone.rows[1][early]), gone.begins[early], gone.ends[early])

    def _match(self) -> tuple[Int64s, Int64s]:
        """All pairs of rows that fit; a null fits nothing."""
        columns = [[side.take(pair[number]) for pair in self._join.keys] for number, side in enumerate(self._sides)]
        valid = np.logical_and.reduce([~column.is_null().to_numpy(zero_copy_only=False) for column in columns[1]])
        places = np.flatnonzero(valid)
        keys = [column.filter(to_arrow(valid)).to_numpy() for column in columns[1]]
        left, right, _ = Matcher(keys).match([[column] for column in columns[0]])
        return left, places[right]

    def _find_matched(self, rows: Int64s, number: int) -> Bools:
        matched = np.zeros(len(self._sides[number].had), bool)
        matched[rows] = True
        return matched

    def _collect(self, pieces: Sequence[tuple[tuple[Int64s, Int64s], Bools]]) -> JoinResults:
        left, right = (np.concatenate([rows[number][chosen] for rows, chosen in pieces]) for number in (0, 1))
        # A result begins with the last of its rows and ends with the first.
        begins = np.maximum(
            self._pick(self._begins[0], left, least=True), self._pick(self._begins[1], right, least=True)
        )
        ends = np.minimum(self._pick(self._ends[0], left, least=False), self._pick(self._ends[1], right, least=False))
        return JoinResults((left, right), begins, ends)

    @staticmethod
    def _pick(times: Int64s, rows: Int64s, *, least: bool) -> Int64s:
        """The times of rows; of none what decides nothing."""
        limits = np.iinfo(np.int64)
        return np.append(times, limits.min if least else limits.max)[rows]

    def read(self, results: JoinResults, begins: str, ends: str, start: int = 0, stop: int | None = None) -> pa.Table:
        """Some results: when they begin and end under these names, then their columns."""
        part = slice(start, stop)
        columns = {begins: to_arrow(results.begins[part]), ends: to_arrow(results.ends[part])}
        picks = [_Pick(side, numbers[part]) for side, numbers in zip(self._sides, results.rows, strict=True)]
        return pa.table(columns | {name: picks[number].take(column) for name, number, column in self._join.columns})

    def read_new(self, begins: str, ends: str, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The results that came."""
        for start in range(0, len(self.came), batch_rows):
            yield from self.read(self.came, begins, ends, start, start + batch_rows).to_batches()


class _Pick:
    """Rows of a side by their numbers, as often as these say; `_NONE` stands for nulls."""

    def __init__(self, side: ComparedRows, numbers: Int64s) -> None:
        chosen = np.zeros(len(side) + 1, bool)  # the last one is of `_NONE`
        chosen[numbers] = True
        self._rows = side.select(chosen[:-1])
        self._positions = pa.array(np.cumsum(chosen)[numbers] - 1, mask=numbers == _NONE)

    def take(self, column: str) -> pa.Array:
        return self._rows.take(column).take(self._positions)

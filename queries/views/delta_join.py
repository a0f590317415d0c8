"""New results of plain joins (streams whose joined columns are integers) without a DuckDB statement.

New rows of one stream look for partners in the other streams, one after the other, in the order that `join_order.py`
chooses. A kernel matches the keys over decoded columns; other columns are gathered only for rows that have a partner.
All other plans are updated by `delta_sql.py`; both classify rows as new or known in the same way.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.row_model import NEVER, SEQ, Int64s, to_microseconds
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.native.hash_match import Matcher
from windrow.queries.sql.window_spec import AllRows, RangeWindow
from windrow.queries.views import join_order
from windrow.queries.views.delta_sql import BATCH_ROWS, UpdateInputs, translating_errors
from windrow.queries.views.inputs import ALL, KNOWN, NEW, find_row_filter, may_matter
from windrow.queries.views.part_rows import (
    MAX_BATCH_BYTES,
    MAX_HELD_ROWS,
    PartRows,
    batch_segments,
    compact_column,
    open_segments,
    take_values,
)
from windrow.queries.views.partner_filter import (
    MAX_LOOKUP_KEYS,
    encode_partner_ranges,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.queries.views.plan import PlanBranch, PlanPart, Prune, ViewPlan
from windrow.queries.views.storage import DIED_COLUMN
from windrow.store import Store

ColumnPlace = tuple[int, str]
"""A part, by number, and a column of it."""


@dataclass(frozen=True)
class ChainStep:
    """A stream in which partners are looked for.

    Args:
        number: Of the part.
        keys: Columns that were reached before, and for each the column of this stream that must equal it.
        carried: Columns that were reached before and are needed later.
        columns: The columns of this stream that are needed later.
    """

    number: int
    keys: tuple[tuple[ColumnPlace, str], ...]
    carried: tuple[ColumnPlace, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class JoinChain:
    """The order in which new rows of one stream are joined with all other streams.

    Args:
        columns: The columns of the new rows that are needed.
        steps: The other streams.
        sources: Where the columns of a result come from.
    """

    columns: tuple[str, ...]
    steps: tuple[ChainStep, ...]
    sources: tuple[ColumnPlace, ...]


def find_equal_columns(branch: PlanBranch) -> list[frozenset[ColumnPlace]]:
    """Sets of joined columns that are equal in every result."""
    classes: list[frozenset[ColumnPlace]] = []
    for link in branch.links:
        linked = frozenset([(link.left, link.left_column), (link.right, link.right_column)])
        overlapping = [columns for columns in classes if columns & linked]
        classes = [columns for columns in classes if not columns & linked] + [linked.union(*overlapping)]
    return classes


def are_linked(equal: Sequence[frozenset[ColumnPlace]], number: int, reached: set[int]) -> bool:
    """Whether a part must have a column equal with one that was reached."""
    parts = ({owner for owner, _ in columns} for columns in equal)
    return any(number in numbers and numbers & reached for numbers in parts)


def can_chain(branch: PlanBranch) -> bool:
    """Whether each stream can be reached from each other one, and none is compared with itself."""
    equal, numbers = find_equal_columns(branch), [part.number for part in branch.streams]
    reached = {numbers[0]}
    for _ in numbers:
        reached |= {number for number in numbers if are_linked(equal, number, reached)}
    alone = all(len({number for number, _ in columns}) == len(columns) for columns in equal)
    return alone and reached == set(numbers)


def make_chain(
    seed: int, order: Sequence[int], equal: Sequence[frozenset[ColumnPlace]], wanted: Sequence[ColumnPlace]
) -> JoinChain:
    """The chain that joins new rows of a part with the other parts in a given order.

    Args:
        seed: The part with the new rows.
        order: The others.
        equal: As `find_equal_columns` gives them.
        wanted: The columns of a result.
    """
    order_of = {number: step for step, number in enumerate((seed, *order))}
    first = {place: min(columns, key=lambda column: order_of[column[0]]) for columns in equal for place in columns}
    sources = tuple(first.get(place, place) for place in wanted)
    keys = [
        tuple((first[place], place[1]) for place in sorted(first) if place[0] == number and first[place] != place)
        for number in order
    ]
    steps = []
    for step, number in enumerate(order):
        later = {*sources, *(place for columns in keys[step + 1 :] for place, _ in columns)}
        carried = tuple(sorted(place for place in later if order_of[place[0]] <= step))
        steps.append(ChainStep(number, keys[step], carried, _columns_of(number, later)))
    return JoinChain(
        _columns_of(seed, {*sources, *(place for columns in keys for place, _ in columns)}), tuple(steps), sources
    )


def _columns_of(number: int, places: set[ColumnPlace]) -> tuple[str, ...]:
    return tuple(sorted(column for owner, column in places if owner == number))


@dataclass(frozen=True)
class RowCombinations:
    """Combinations of rows of some parts, which may become results when the other parts join.

    Args:
        begins: When each begins: with the last of its parts.
        ends: When each ends: with the first of its parts.
        columns: What later steps and the result need.
    """

    begins: Int64s
    ends: Int64s
    columns: Mapping[ColumnPlace, pa.Array]

    @property
    def rows(self) -> int:
        """The number of combinations."""
        return len(self.begins)

    @property
    def nbytes(self) -> int:
        """The bytes of all columns."""
        return int(self.begins.nbytes + self.ends.nbytes + sum(column.nbytes for column in self.columns.values()))

    def key_columns(self, column_places: Sequence[ColumnPlace]) -> tuple[list[Int64s], Int64s | None]:
        """Columns of integers, and the combinations where none of them is null; None: all."""
        columns = [self.columns[place] for place in column_places]
        rows = None
        if any(column.null_count for column in columns):
            valid = [column.is_valid().to_numpy(zero_copy_only=False) for column in columns]
            rows = np.flatnonzero(np.logical_and.reduce(valid))
            columns = [column.take(pa.array(rows)) for column in columns]
        return [column.to_numpy() for column in columns], rows

    @classmethod
    def concat(cls, several: Iterable["RowCombinations"]) -> "RowCombinations":
        """The combinations of several, which have the same columns."""
        parts = list(several)
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.begins for part in parts]),
            np.concatenate([part.ends for part in parts]),
            {place: pa.concat_arrays([part.columns[place] for part in parts]) for place in parts[0].columns},
        )


_BEGINS, _ENDS = "begins", "ends"
_RowFilter = tuple[bool, bool, int, bool]
"""Whether rows must be checked by arrival and by time, what is added to their sequence, and whether some are ahead."""


def can_join_natively(plan: ViewPlan, view: StreamDefinition) -> bool:
    """Whether this module can compute the results of a view."""
    if not plan.result_columns or not all(
        isinstance(part.reference.window, AllRows | RangeWindow) for part in plan.streams
    ):
        return False
    parts = {part.number: part.definition for part in plan.streams if part.definition is not None}
    if any(definition.model.floor is not None for definition in parts.values()) or not can_chain(plan.branches[0]):
        return False
    for link in plan.branches[0].links:
        left_type = parts[link.left].schema.field(link.left_column).type
        right_type = parts[link.right].schema.field(link.right_column).type
        if left_type != right_type or not pa.types.is_integer(left_type) or pa.types.is_uint64(left_type):
            return False
    result_types = {name: parts[number].schema.field(column).type for name, number, column in plan.result_columns}
    view_fields = [field for field in view.schema if field.name not in (view.time, view.expires, DIED_COLUMN)]
    return len(result_types) == len(plan.result_columns) and all(
        result_types.get(field.name) == field.type for field in view_fields
    )


class NativeJoin:
    """One update of one view.

    Args:
        store: The warehouse.
        update: What it reads.
    """

    def __init__(self, store: Store, update: UpdateInputs) -> None:
        self.store = store
        self.update = update
        self.streams = update.plan.branches[0].streams
        self.equal = find_equal_columns(update.plan.branches[0])
        self.distinct: dict[int, dict[str, float]] = {}
        """As in `SqlUpdate`; two streams have only one order, so nothing is counted for them."""
        self.pending: int | None = None
        """No duplicates are eliminated here."""
        self._groups: dict[tuple[int, str], dict[_RowFilter, list[Segment]]] = {}

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """New results: when they begin and end in microseconds, then their columns."""
        numbers = [part.number for part in self.streams]
        wanted = [(number, column) for _, number, column in self.update.plan.result_columns]
        names = [_BEGINS, _ENDS, *(name for name, _, _ in self.update.plan.result_columns)]
        with translating_errors(self.update.name):
            for seed in self.streams:
                order = join_order.choose_partner_order(
                    seed.number, numbers, self.update.rates, partial(are_linked, self.equal)
                )
                chain = make_chain(seed.number, order, self.equal, wanted)
                if all(self._find_segments(step.number, self._choose_rows(step, seed)) for step in chain.steps):
                    for new_rows in _join_combinations(self._read_new_rows(seed, chain.columns)):
                        for result in self._complete(seed, new_rows, chain.steps):
                            columns = [result.columns[place] for place in chain.sources]
                            yield pa.RecordBatch.from_arrays([result.begins, result.ends, *columns], names=names)

    def _complete(
        self, seed: PlanPart, combinations: RowCombinations, steps: Sequence[ChainStep]
    ) -> Iterator[RowCombinations]:
        """Combinations with rows of all streams that are left."""
        if not steps:
            yield combinations
            return
        joined = self._join_step(seed, combinations, steps[0])
        # Each step reads a whole window, so many combinations go into it at once; no step follows the last one.
        for batch in joined if len(steps) == 1 else _join_combinations(joined):
            yield from self._complete(seed, batch, steps[1:])

    def _join_step(self, seed: PlanPart, combinations: RowCombinations, step: ChainStep) -> Iterator[RowCombinations]:
        """Combinations with rows of one more stream."""
        keys, rows = combinations.key_columns([place for place, _ in step.keys])
        matcher = Matcher(keys)
        if not matcher.distinct:
            return
        part, which = self.update.plan.parts[step.number], self._choose_rows(step, seed)
        for row_filter, part_rows in self._read_partners(part, which, combinations, step, matcher):
            columns, start = [part_rows.column(column) for _, column in step.keys], 0
            while start < part_rows.stop:
                positions, matched, start = matcher.match(columns, start, BATCH_ROWS)
                if len(matched):
                    matched = matched if rows is None else rows[matched]
                    yield from self._combine_matches(
                        combinations, step, part_rows, positions, matched, row_filter, which
                    )

    def _combine_matches(
        self,
        combinations: RowCombinations,
        step: ChainStep,
        part_rows: PartRows,
        positions: Int64s,
        matched: Int64s,
        row_filter: _RowFilter,
        which: str,
    ) -> Iterator[RowCombinations]:
        """Combinations with the rows that match them, as far as both live at the same time."""
        part = self.update.plan.parts[step.number]
        begins = self._begin_times(part, part_rows, positions)
        ends = np.minimum(combinations.ends[matched], self._end_times(part, part_rows, positions, begins))
        counts = self._select_rows(part, part_rows, positions, begins, row_filter, which)
        begins = np.maximum(combinations.begins[matched], begins)
        alive = (begins < ends) & (ends > self.update.interval.floor)
        if counts is not None:
            alive &= counts
        if not alive.all():
            positions, matched, begins, ends = positions[alive], matched[alive], begins[alive], ends[alive]

        def gather(rows: slice) -> RowCombinations:
            columns = {place: take_values([combinations.columns[place]], matched[rows]) for place in step.carried}
            columns |= {(step.number, column): part_rows.take(column, positions[rows]) for column in step.columns}
            return RowCombinations(begins[rows], ends[rows], columns)

        yield from _gather_in_pieces(gather, 0, len(matched))

    # -- which rows ----------------------------------------------------------------------------------------------------

    def _choose_rows(self, step: ChainStep, seed: PlanPart) -> str:
        """All rows of streams before the seed, known rows of streams behind it: so each combination is found once."""
        numbers = [part.number for part in self.streams]
        return ALL if numbers.index(step.number) < numbers.index(seed.number) else KNOWN

    def _find_segments(self, number: int, which: str) -> dict[_RowFilter, list[Segment]]:
        """The segments of a part that hold such rows, by the filter that selects the rows."""
        if (number, which) not in self._groups:
            part, interval, groups = (
                self.update.plan.parts[number],
                self.update.interval,
                dict[_RowFilter, list[Segment]](),
            )
            for segment in self.update.inputs[part.name].segments:
                row_filter = find_row_filter(segment, self.update.positions[part.name], which, interval.before)
                if row_filter is not None and may_matter(part, segment, interval):
                    base = segment.seq_base if row_filter[0] else 0
                    groups.setdefault((*row_filter, base, segment.max_ts > interval.now), []).append(segment)
            self._groups[number, which] = groups
        return self._groups[number, which]

    def _select_rows(
        self, part: PlanPart, part_rows: PartRows, positions: Int64s, begins: Int64s, row_filter: _RowFilter, which: str
    ) -> npt.NDArray[np.bool_] | None:
        """Which of some rows count; None: all. Expired rows are left out later, with the results."""
        (mixed, ahead, base, later), interval = row_filter, self.update.interval
        if not (mixed or ahead or later):
            return None
        counts = begins <= interval.now
        if mixed or ahead:
            is_known = np.ones(len(begins), bool)
            if mixed:
                arrived = (part_rows.take(SEQ, positions).to_numpy() + base) >> SEQ_BITS
                is_known &= arrived <= self.update.positions[part.name].ordinal
            if ahead and interval.before is not None:
                is_known &= begins <= interval.before
            counts &= is_known if which == KNOWN else ~is_known
        return counts

    @staticmethod
    def _begin_times(part: PlanPart, part_rows: PartRows, positions: Int64s) -> Int64s:
        """When rows of a part begin."""
        assert part.definition is not None
        return to_microseconds(part_rows.take(part.definition.time, positions))[0]

    @staticmethod
    def _end_times(part: PlanPart, part_rows: PartRows, positions: Int64s, begins: Int64s) -> Int64s:
        """When rows of a part cease to count; the same rule as `ends_sql`."""
        assert part.definition is not None
        model = part.definition.model
        lives = [life for life in (None if model.expires else model.lifetime, part.window) if life is not None]
        ends = begins + min(lives) if lives else np.full(len(begins), NEVER, np.int64)
        return (
            ends
            if model.expires is None
            else np.minimum(ends, to_microseconds(part_rows.take(model.expires, positions))[0])
        )

    # -- columns -------------------------------------------------------------------------------------------------------

    def _read_new_rows(self, seed: PlanPart, columns: Sequence[str]) -> Iterator[RowCombinations]:
        """New rows of a stream, with which a chain begins."""
        for row_filter, segments in self._find_segments(seed.number, NEW).items():
            for batch in batch_segments(segments):
                schema = self._schema(seed, batch, columns, row_filter)
                part_rows = PartRows.from_batches(list(self._read(seed, schema, batch)))
                positions = part_rows.positions
                begins = self._begin_times(seed, part_rows, positions)
                ends = self._end_times(seed, part_rows, positions, begins)
                counts = self._select_rows(seed, part_rows, positions, begins, row_filter, NEW)
                if counts is not None:
                    positions, begins, ends = positions[counts], begins[counts], ends[counts]

                def gather(
                    rows: slice, part_rows: PartRows = part_rows, chosen: tuple[Int64s, ...] = (positions, begins, ends)
                ) -> RowCombinations:
                    taken = {(seed.number, column): part_rows.take(column, chosen[0][rows]) for column in columns}
                    return RowCombinations(chosen[1][rows], chosen[2][rows], taken)

                for new_rows in _gather_in_pieces(gather, 0, len(positions)):
                    if len(self.streams) > 2:
                        self._count_values(seed, new_rows.columns)
                    yield new_rows

    def _count_values(self, seed: PlanPart, rows: Mapping[ColumnPlace, pa.Array]) -> None:
        """Count the values of joined columns, for the next time that an order is chosen."""
        value_counts = self.distinct.setdefault(seed.number, {})
        for place in rows.keys() & set().union(*self.equal):
            values = Matcher([rows[place].drop_null().to_numpy()]).distinct
            value_counts[place[1]] = max(value_counts.get(place[1], 0.0), float(values))

    def _read_partners(
        self, part: PlanPart, which: str, combinations: RowCombinations, step: ChainStep, matcher: Matcher
    ) -> Iterator[tuple[_RowFilter, PartRows]]:
        """The rows of a stream that may have a partner, some segments at a time."""
        assert part.definition is not None
        groups = self._find_segments(part.number, which)
        prune = self._choose_ranges(
            part, combinations, step, matcher, [segment for batch in groups.values() for segment in batch]
        )
        names = {column for _, column in step.keys}.union(step.columns)
        for row_filter, segments in groups.items():
            chosen = prune(segments) if prune is not None else None
            if chosen is None:
                for batch in batch_segments(segments):
                    yield row_filter, open_segments(self.store.columns, part.definition, batch)
            elif chosen[0]:
                schema = self._schema(part, chosen[0], names, row_filter)
                yield row_filter, PartRows.from_batches(list(self._read(part, schema, *chosen)))

    def _choose_ranges(
        self,
        part: PlanPart,
        combinations: RowCombinations,
        step: ChainStep,
        matcher: Matcher,
        segments: Sequence[Segment],
    ) -> Prune | None:
        """Which rows of a stream can match, where it is searched by joined columns and these have few values."""
        definition = part.definition
        assert definition is not None
        bound = {own_column: place for place, own_column in step.keys}
        columns = list(itertools.takewhile(bound.__contains__, definition.key))
        if not columns or matcher.distinct > min(max_lookup_keys(segments, by_kernel=True), MAX_LOOKUP_KEYS):
            return None
        rows = pa.table([combinations.columns[bound[column]] for column in columns], columns)
        values = rows.group_by(columns, use_threads=False).aggregate([]).drop_null()
        ranges = encode_partner_ranges(definition, values.columns)
        return None if ranges is None else prune_by_directory(self.store, definition, ranges)

    def _schema(
        self, part: PlanPart, segments: Sequence[Segment], columns: Collection[str], row_filter: _RowFilter
    ) -> pa.Schema:
        """The columns that are read of a part where all of them are read at once."""
        assert part.definition is not None
        full, model = part.definition.stored_schema, part.definition.model
        names = {*columns, model.time, model.expires, SEQ if row_filter[0] else None}
        repeating = self.store.columns.find_repeating(segments, full)
        return pa.schema([compact_column(field, field.name in repeating) for field in full if field.name in names])

    def _read(
        self, part: PlanPart, schema: pa.Schema, segments: Sequence[Segment], ranges: SegmentRanges | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert part.definition is not None
        return self.store.columns.read_batches(segments, schema, part.definition.stored_schema, ranges)


def _join_combinations(several: Iterable[RowCombinations]) -> Iterator[RowCombinations]:
    """The same combinations, as many together as memory allows."""
    waiting, rows, size = list[RowCombinations](), 0, 0
    for combination in several:
        waiting.append(combination)
        rows, size = rows + combination.rows, size + combination.nbytes
        if rows >= MAX_HELD_ROWS or size >= MAX_BATCH_BYTES:
            yield RowCombinations.concat(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield RowCombinations.concat(waiting)


def _gather_in_pieces(gather: Callable[[slice], RowCombinations], start: int, stop: int) -> Iterator[RowCombinations]:
    """Gather columns of some rows, in as many pieces as needed: an array of texts holds 2 GB at most."""
    if start == stop:
        return
    try:
        gathered = gather(slice(start, stop))
    except pa.ArrowCapacityError:
        if stop - start == 1:
            raise
        middle = (start + stop) // 2
        yield from _gather_in_pieces(gather, start, middle)
        yield from _gather_in_pieces(gather, middle, stop)
        return
    yield gathered

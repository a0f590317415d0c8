"""New results of plain joins, streams that have whole numbers in common, without a statement to plan and run.

New rows of one stream look for partners in one other after the other, in the order of `ordering.py`. Keys are matched
first, by a kernel and over decoded columns; whatever else a result needs is gathered for those rows only that have a
partner. Which rows meet is told as in `maintaining.py`, where all other plans go.

Joins of streams as a chain: what new rows of one are compared with in each of the others, and what is carried along.

Columns that a result has equal are compared with the first of them that is reached, which from then on stands for all.

Rows of a window, column by column as they lie decoded in memory, and results that are made of them.

A window has many segments, each of which is a chunk here. Keys are looked up in all of them; of everything else only
what was found is gathered, by a kernel where the type allows it.
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
from windrow.native import hash_match as native_matches
from windrow.native.hash_match import Matcher
from windrow.queries.sql.window_spec import AllRows, RangeWindow
from windrow.queries.views import join_order
from windrow.queries.views.delta_sql import BATCH_ROWS, UpdateInputs, translating_errors
from windrow.queries.views.inputs import ALL, KNOWN, NEW, find_row_filter, may_matter
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
        kept: What was reached before and is needed later.
        taken: The columns of this stream that are.
    """

    number: int
    keys: tuple[tuple[ColumnPlace, str], ...]
    kept: tuple[ColumnPlace, ...]
    taken: tuple[str, ...]


@dataclass(frozen=True)
class JoinChain:
    """The way of new rows through all streams.

    Args:
        taken: The columns of the new rows that are needed.
        steps: The other streams.
        sources: Where the columns of a result come from.
    """

    taken: tuple[str, ...]
    steps: tuple[ChainStep, ...]
    sources: tuple[ColumnPlace, ...]


def find_equal_columns(branch: PlanBranch) -> list[frozenset[ColumnPlace]]:
    """The joined columns, those together that every result has equal."""
    found: list[frozenset[ColumnPlace]] = []
    for link in branch.links:
        own = frozenset([(link.left, link.left_column), (link.right, link.right_column)])
        touched = [each for each in found if each & own]
        found = [each for each in found if not each & own] + [own.union(*touched)]
    return found


def are_linked(equal: Sequence[frozenset[ColumnPlace]], number: int, reached: set[int]) -> bool:
    """Whether a part must have a column equal with one that was reached."""
    parts = ({owner for owner, _ in own} for own in equal)
    return any(number in own and own & reached for own in parts)


def can_chain(branch: PlanBranch) -> bool:
    """Whether each stream can be reached from each other one, and none is compared with itself."""
    equal, numbers = find_equal_columns(branch), [part.number for part in branch.streams]
    reached = {numbers[0]}
    for _ in numbers:
        reached |= {number for number in numbers if are_linked(equal, number, reached)}
    alone = all(len({number for number, _ in own}) == len(own) for own in equal)
    return alone and reached == set(numbers)


def make_chain(
    seed: int, order: Sequence[int], equal: Sequence[frozenset[ColumnPlace]], wanted: Sequence[ColumnPlace]
) -> JoinChain:
    """The way from new rows of a part through others in a given order.

    Args:
        seed: The part with the new rows.
        order: The others.
        equal: As `find_equal_columns` gives them.
        wanted: The columns of a result.
    """
    turns = {number: turn for turn, number in enumerate((seed, *order))}
    first = {place: min(own, key=lambda each: turns[each[0]]) for own in equal for place in own}
    sources = tuple(first.get(place, place) for place in wanted)
    keys = [
        tuple((first[place], place[1]) for place in sorted(first) if place[0] == number and first[place] != place)
        for number in order
    ]
    steps = []
    for turn, number in enumerate(order):
        later = {*sources, *(place for own in keys[turn + 1 :] for place, _ in own)}
        kept = tuple(sorted(place for place in later if turns[place[0]] <= turn))
        steps.append(ChainStep(number, keys[turn], kept, _columns_of(number, later)))
    return JoinChain(_columns_of(seed, {*sources, *(place for own in keys for place, _ in own)}), tuple(steps), sources)


def _columns_of(number: int, places: set[ColumnPlace]) -> tuple[str, ...]:
    return tuple(sorted(column for owner, column in places if owner == number))


_ROW = (1 << 32) - 1


class PartRows:
    """Some rows of a part, in chunks.

    Args:
        lengths: Of the chunks.
        read: Gives a column, an array for each chunk.
    """

    def __init__(self, lengths: Sequence[int], read: Callable[[str], Sequence[pa.Array]]) -> None:
        self.stop = len(lengths) << 32
        """The place behind the last row."""
        self._lengths = lengths
        self._read = read
        self._known: dict[str, Sequence[pa.Array]] = {}

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch]) -> "PartRows":
        """Rows that were read with all their columns."""
        return cls([batch.num_rows for batch in batches], lambda name: [batch.column(name) for batch in batches])

    @property
    def places(self) -> Int64s:
        """Those of all rows."""
        own = [np.arange(length, dtype=np.int64) + (at << 32) for at, length in enumerate(self._lengths)]
        return np.concatenate(own) if own else np.empty(0, np.int64)

    def column(self, name: str) -> Sequence[pa.Array]:
        """A column, an array for each chunk."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def take(self, name: str, places: Int64s) -> pa.Array:
        """What a column has at some places."""
        return take_values(self.column(name), places)


def take_values(chunks: Sequence[pa.Array], places: Int64s) -> pa.Array:
    """What chunks of a column have at some places, without a dictionary."""
    if not any(isinstance(chunk, pa.ChunkedArray) for chunk in chunks) and native_matches.gathers(chunks[0].type):
        return native_matches.gather(chunks, places)
    starts = np.cumsum([0, *map(len, chunks)])
    flat = [piece for chunk in chunks for piece in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    found = pa.chunked_array(flat).take(pa.array(starts[places >> 32] + (places & _ROW)))
    whole = found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
    return whole.dictionary_decode() if pa.types.is_dictionary(whole.type) else whole


@dataclass(frozen=True)
class RowCombinations:
    """Combinations of rows of some parts, which may become results when the other parts join.

    Args:
        begins: With the last of its parts, each.
        ends: With the first of them.
        columns: What later steps and the result need.
    """

    begins: Int64s
    ends: Int64s
    columns: Mapping[ColumnPlace, pa.Array]

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.begins)

    @property
    def nbytes(self) -> int:
        """How large."""
        return int(self.begins.nbytes + self.ends.nbytes + sum(column.nbytes for column in self.columns.values()))

    def keys(self, places: Sequence[ColumnPlace]) -> tuple[list[Int64s], Int64s | None]:
        """Columns of whole numbers, and which combinations have them all; None: every one."""
        own = [self.columns[place] for place in places]
        rows = None
        if any(column.null_count for column in own):
            valid = [column.is_valid().to_numpy(zero_copy_only=False) for column in own]
            rows = np.flatnonzero(np.logical_and.reduce(valid))
            own = [column.take(pa.array(rows)) for column in own]
        return [column.to_numpy() for column in own], rows

    @classmethod
    def together(cls, several: Iterable["RowCombinations"]) -> "RowCombinations":
        """All combinations of several, which have the same columns."""
        own = list(several)
        if len(own) == 1:
            return own[0]
        return cls(
            np.concatenate([each.begins for each in own]),
            np.concatenate([each.ends for each in own]),
            {place: pa.concat_arrays([each.columns[place] for each in own]) for place in own[0].columns},
        )


_BEGINS, _ENDS = "begins", "ends"
_MAX_HELD_ROWS = 1 << 20
"""Rows of a stream that are looked at together: the columns of more might not fit into memory."""
_MAX_BATCH_BYTES = 64 << 20
"""Combinations of so many bytes go on to the next stream before others are looked for."""
_RowFilter = tuple[bool, bool, int, bool]
"""Whether rows are told apart by arrival and by time, what is added to their sequence, and whether some are ahead."""


def can_join_natively(plan: ViewPlan, view: StreamDefinition) -> bool:
    """Whether a view's results can be found here."""
    if not plan.taken or not all(isinstance(part.reference.window, AllRows | RangeWindow) for part in plan.streams):
        return False
    parts = {part.number: part.definition for part in plan.streams if part.definition is not None}
    if any(definition.model.floor is not None for definition in parts.values()) or not can_chain(plan.branches[0]):
        return False
    for link in plan.branches[0].links:
        one = parts[link.left].schema.field(link.left_column).type
        other = parts[link.right].schema.field(link.right_column).type
        if one != other or not pa.types.is_integer(one) or pa.types.is_uint64(one):
            return False
    given = {name: parts[number].schema.field(column).type for name, number, column in plan.taken}
    own = [field for field in view.schema if field.name not in (view.time, view.expires, DIED_COLUMN)]
    return len(given) == len(plan.taken) and all(given.get(field.name) == field.type for field in own)


class NativeJoin:
    """One update of one view.

    Args:
        store: The warehouse.
        given: What it reads.
    """

    def __init__(self, store: Store, given: UpdateInputs) -> None:
        self.store = store
        self.given = given
        self.streams = given.plan.branches[0].streams
        self.equal = find_equal_columns(given.plan.branches[0])
        self.distinct: dict[int, dict[str, float]] = {}
        """As `Maintenance` has it; of two streams there is only one order."""
        self._groups: dict[tuple[int, str], dict[_RowFilter, list[Segment]]] = {}

    def results(self) -> Iterator[pa.RecordBatch]:
        """New results: when they begin and end in microseconds, then their columns."""
        numbers = [part.number for part in self.streams]
        wanted = [(number, column) for _, number, column in self.given.plan.taken]
        names = [_BEGINS, _ENDS, *(name for name, _, _ in self.given.plan.taken)]
        with translating_errors(self.given.name):
            for seed in self.streams:
                order = join_order.choose_partner_order(
                    seed.number, numbers, self.given.rates, partial(are_linked, self.equal)
                )
                way = make_chain(seed.number, order, self.equal, wanted)
                if all(self._grouped(step.number, self._which(step, seed)) for step in way.steps):
                    for fresh in _join_combinations(self._fresh(seed, way.taken)):
                        for found in self._completed(seed, fresh, way.steps):
                            columns = [found.columns[place] for place in way.sources]
                            yield pa.RecordBatch.from_arrays([found.begins, found.ends, *columns], names=names)

    def _completed(
        self, seed: PlanPart, begun: RowCombinations, steps: Sequence[ChainStep]
    ) -> Iterator[RowCombinations]:
        """Combinations with rows of all streams that are left."""
        if not steps:
            yield begun
            return
        found = self._met(seed, begun, steps[0])
        # Each step looks at a whole window, so it had better do so for many at once; the last has none behind it.
        for further in found if len(steps) == 1 else _join_combinations(found):
            yield from self._completed(seed, further, steps[1:])

    def _met(self, seed: PlanPart, begun: RowCombinations, step: ChainStep) -> Iterator[RowCombinations]:
        """Combinations with rows of one more stream."""
        keys, rows = begun.keys([place for place, _ in step.keys])
        matcher = Matcher(keys)
        if not matcher.distinct:
            return
        part, which = self.given.plan.parts[step.number], self._which(step, seed)
        for told, stretch in self._stretches(part, which, begun, step, matcher):
            columns, start = [stretch.column(own) for _, own in step.keys], 0
            while start < stretch.stop:
                places, own, start = matcher.match(columns, start, BATCH_ROWS)
                if len(own):
                    own = own if rows is None else rows[own]
                    yield from self._pairs(begun, step, stretch, places, own, told, which)

    def _pairs(
        self,
        begun: RowCombinations,
        step: ChainStep,
        stretch: PartRows,
        places: Int64s,
        own: Int64s,
        told: _RowFilter,
        which: str,
    ) -> Iterator[RowCombinations]:
        """Combinations and places of rows that have met, as far as they ever live together."""
        part = self.given.plan.parts[step.number]
        begins = self._begins(part, stretch, places)
        ends = np.minimum(begun.ends[own], self._ends(part, stretch, places, begins))
        counting = self._counts(part, stretch, places, begins, told, which)
        begins = np.maximum(begun.begins[own], begins)
        alive = (begins < ends) & (ends > self.given.moment.floor)
        if counting is not None:
            alive &= counting
        if not alive.all():
            places, own, begins, ends = places[alive], own[alive], begins[alive], ends[alive]

        def gather(rows: slice) -> RowCombinations:
            columns = {place: take_values([begun.columns[place]], own[rows]) for place in step.kept}
            columns |= {(step.number, column): stretch.take(column, places[rows]) for column in step.taken}
            return RowCombinations(begins[rows], ends[rows], columns)

        yield from _gather_in_pieces(gather, 0, len(own))

    # -- which rows ----------------------------------------------------------------------------------------------------

    def _which(self, step: ChainStep, seed: PlanPart) -> str:
        """All rows of streams before that of the new rows, known ones of those behind: so each combination is once."""
        numbers = [part.number for part in self.streams]
        return ALL if numbers.index(step.number) < numbers.index(seed.number) else KNOWN

    def _grouped(self, number: int, which: str) -> dict[_RowFilter, list[Segment]]:
        """The segments of a part that hold such rows, by how those are told apart."""
        if (number, which) not in self._groups:
            part, moment, found = self.given.plan.parts[number], self.given.moment, dict[_RowFilter, list[Segment]]()
            for segment in self.given.sides[part.name].segments:
                told = find_row_filter(segment, self.given.seen[part.name], which, moment.before)
                if told is not None and may_matter(part, segment, moment):
                    base = segment.seq_base if told[0] else 0
                    found.setdefault((*told, base, segment.max_ts > moment.now), []).append(segment)
            self._groups[number, which] = found
        return self._groups[number, which]

    def _counts(
        self, part: PlanPart, stretch: PartRows, places: Int64s, begins: Int64s, told: _RowFilter, which: str
    ) -> npt.NDArray[np.bool_] | None:
        """Which of some rows count; None: all. That their lives are not over is seen in the results."""
        (mixed, ahead, base, later), moment = told, self.given.moment
        if not (mixed or ahead or later):
            return None
        counting = begins <= moment.now
        if mixed or ahead:
            known = np.ones(len(begins), bool)
            if mixed:
                arrived = (stretch.take(SEQ, places).to_numpy() + base) >> SEQ_BITS
                known &= arrived <= self.given.seen[part.name].ordinal
            if ahead and moment.before is not None:
                known &= begins <= moment.before
            counting &= known if which == KNOWN else ~known
        return counting

    @staticmethod
    def _begins(part: PlanPart, stretch: PartRows, places: Int64s) -> Int64s:
        """When rows of a part begin."""
        assert part.definition is not None
        return to_microseconds(stretch.take(part.definition.time, places))[0]

    @staticmethod
    def _ends(part: PlanPart, stretch: PartRows, places: Int64s, begins: Int64s) -> Int64s:
        """When they cease to count, as `ends_sql` has it."""
        assert part.definition is not None
        model = part.definition.model
        lives = [life for life in (None if model.expires else model.lifetime, part.window) if life is not None]
        ends = begins + min(lives) if lives else np.full(len(begins), NEVER, np.int64)
        return (
            ends if model.expires is None else np.minimum(ends, to_microseconds(stretch.take(model.expires, places))[0])
        )

    # -- and their columns ---------------------------------------------------------------------------------------------

    def _fresh(self, seed: PlanPart, columns: Sequence[str]) -> Iterator[RowCombinations]:
        """New rows of a stream, to begin with."""
        for told, segments in self._grouped(seed.number, NEW).items():
            for own in _batch_segments(segments):
                schema = self._schema(seed, own, columns, told)
                stretch = PartRows.of(list(self._read(seed, schema, own)))
                places = stretch.places
                begins = self._begins(seed, stretch, places)
                ends = self._ends(seed, stretch, places, begins)
                counting = self._counts(seed, stretch, places, begins, told, NEW)
                if counting is not None:
                    places, begins, ends = places[counting], begins[counting], ends[counting]

                def gather(
                    rows: slice, stretch: PartRows = stretch, own: tuple[Int64s, ...] = (places, begins, ends)
                ) -> RowCombinations:
                    found = {(seed.number, column): stretch.take(column, own[0][rows]) for column in columns}
                    return RowCombinations(own[1][rows], own[2][rows], found)

                for fresh in _gather_in_pieces(gather, 0, len(places)):
                    if len(self.streams) > 2:
                        self._measure(seed, fresh.columns)
                    yield fresh

    def _measure(self, seed: PlanPart, rows: Mapping[ColumnPlace, pa.Array]) -> None:
        """Count the values of joined columns, for the next time that an order is chosen."""
        counted = self.distinct.setdefault(seed.number, {})
        for place in rows.keys() & set().union(*self.equal):
            values = Matcher([rows[place].drop_null().to_numpy()]).distinct
            counted[place[1]] = max(counted.get(place[1], 0.0), float(values))

    def _stretches(
        self, part: PlanPart, which: str, begun: RowCombinations, step: ChainStep, matcher: Matcher
    ) -> Iterator[tuple[_RowFilter, PartRows]]:
        """The rows of a stream that may have a partner, some segments at a time."""
        there = self._grouped(part.number, which)
        prune = self._prune(part, begun, step, matcher, [segment for own in there.values() for segment in own])
        names = {own for _, own in step.keys}.union(step.taken)
        for told, segments in there.items():
            chosen = prune(segments) if prune is not None else None
            if chosen is None:
                for own in _batch_segments(segments):
                    yield told, self._whole(part, own)
            elif chosen[0]:
                schema = self._schema(part, chosen[0], names, told)
                yield told, PartRows.of(list(self._read(part, schema, *chosen)))

    def _whole(self, part: PlanPart, segments: Sequence[Segment]) -> PartRows:
        """All rows of segments; only the columns that are asked for are decoded."""
        assert part.definition is not None
        cache, full = self.store.columns, part.definition.stored_schema
        repeating = cache.repeating(segments, full)
        lengths = [segment.rows for segment in segments]
        return PartRows(
            lengths, lambda name: cache.column(segments, _compact_column(full.field(name), name in repeating), full)
        )

    def _prune(
        self, part: PlanPart, begun: RowCombinations, step: ChainStep, matcher: Matcher, segments: Sequence[Segment]
    ) -> Prune | None:
        """Which rows of a stream can match, where it is searched by joined columns and these have few values."""
        definition = part.definition
        assert definition is not None
        bound = {own: place for place, own in step.keys}
        columns = list(itertools.takewhile(bound.__contains__, definition.key))
        if not columns or matcher.distinct > min(max_lookup_keys(segments), MAX_LOOKUP_KEYS):
            return None
        rows = pa.table([begun.columns[bound[column]] for column in columns], columns)
        values = rows.group_by(columns, use_threads=False).aggregate([]).drop_null()
        ranges = encode_partner_ranges(definition, values.columns)
        return None if ranges is None else prune_by_directory(self.store, part, ranges)

    def _schema(
        self, part: PlanPart, segments: Sequence[Segment], columns: Collection[str], told: _RowFilter
    ) -> pa.Schema:
        """What is read of a part where all of it is read at once."""
        assert part.definition is not None
        full, model = part.definition.stored_schema, part.definition.model
        names = {*columns, model.time, model.expires, SEQ if told[0] else None}
        repeating = self.store.columns.repeating(segments, full)
        return pa.schema([_compact_column(field, field.name in repeating) for field in full if field.name in names])

    def _read(
        self, part: PlanPart, schema: pa.Schema, segments: Sequence[Segment], picks: SegmentRanges | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert part.definition is not None
        return self.store.columns.batches(segments, schema, part.definition.stored_schema, picks)


def _compact_column(field: pa.Field, repeats: bool) -> pa.Field:
    """A column as it is held: text that repeats as a dictionary."""
    return field.with_type(pa.dictionary(pa.int32(), field.type)) if repeats else field


def _join_combinations(several: Iterable[RowCombinations]) -> Iterator[RowCombinations]:
    """The same combinations, as many together as memory allows."""
    waiting, rows, size = list[RowCombinations](), 0, 0
    for each in several:
        waiting.append(each)
        rows, size = rows + each.rows, size + each.nbytes
        if rows >= _MAX_HELD_ROWS or size >= _MAX_BATCH_BYTES:
            yield RowCombinations.together(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield RowCombinations.together(waiting)


def _batch_segments(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments that are looked at together."""
    own, rows, size = list[Segment](), 0, 0
    for segment in segments:
        own.append(segment)
        rows, size = rows + segment.rows, size + segment.bytes
        if rows >= _MAX_HELD_ROWS or size >= _MAX_BATCH_BYTES:
            yield own
            own, rows, size = [], 0, 0
    if own:
        yield own


def _gather_in_pieces(gather: Callable[[slice], RowCombinations], start: int, stop: int) -> Iterator[RowCombinations]:
    """What is gathered of some rows, in as many pieces as it takes: an array of texts holds 2 GB at most."""
    if start == stop:
        return
    try:
        found = gather(slice(start, stop))
    except pa.ArrowCapacityError:
        if stop - start == 1:
            raise
        middle = (start + stop) // 2
        yield from _gather_in_pieces(gather, start, middle)
        yield from _gather_in_pieces(gather, middle, stop)
        return
    yield found

"""New results of the plainest join, two streams with one whole number in common, without a statement to plan and run.

Keys are matched first, by a kernel and over decoded columns; whatever else a result needs is taken for those rows only
that have a partner. Which rows meet is told as in `maintaining.py`, where all other plans go.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.columns import Picks
from windrow.indexes.model import NEVER, SEQ, Int64s, micros
from windrow.indexes.segments import SEQ_BITS, Segment
from windrow.native.matches import Matcher
from windrow.queries.views.binding import ALL, KNOWN, NEW, Prune, matters, told_apart
from windrow.queries.views.maintaining import BATCH_ROWS, Given, telling
from windrow.queries.views.plans import Link, Part, Plan
from windrow.queries.views.seeking import MOST_KEYS, by_directory, key_ranges, worth_seeking
from windrow.queries.views.storing import DIED
from windrow.queries.windows import All, Range
from windrow.store import Store

_BEGINS, _ENDS = "begins", "ends"
_MOST_HELD = 1 << 20
"""Rows of a partner that are looked at before those that were met are taken out of them, all at once."""
_Told = tuple[bool, bool, int, bool]
"""Whether rows are told apart by arrival and by time, what is added to their sequence, and whether some are ahead."""


def is_plain(plan: Plan, view: StreamDefinition) -> bool:
    """Whether a view's results can be found here."""
    parts = {part.number: part.definition for part in plan.streams}
    if not plan.taken or not all(isinstance(part.reference.window, All | Range) for part in plan.streams):
        return False
    link = plan.branches[0].links[0]
    kinds = []
    for number, column in ((link.left, link.left_column), (link.right, link.right_column)):
        definition = parts[number]
        if definition is None or definition.model.floor is not None:
            return False
        kinds.append(definition.schema.field(column).type)
    one, other = kinds
    if one != other or not pa.types.is_integer(one) or pa.types.is_uint64(one):
        return False
    given = {}
    for name, number, column in plan.taken:
        definition = parts[number]
        assert definition is not None
        given[name] = definition.schema.field(column).type
    own = [field for field in view.schema if field.name not in (view.time, view.expires, DIED)]
    return len(given) == len(plan.taken) and all(given.get(field.name) == field.type for field in own)


class Matching:
    """One update of one view.

    Args:
        store: The warehouse.
        given: What it reads.
    """

    def __init__(self, store: Store, given: Given) -> None:
        self.store = store
        self.given = given
        self.distinct: dict[int, dict[str, float]] = {}
        """As `Maintenance` has it; of two streams there is only one order."""

    def results(self) -> Iterator[pa.RecordBatch]:
        """New results: when they begin and end in microseconds, then their columns."""
        first, second = self.given.plan.branches[0].streams
        with telling(self.given.name):
            yield from self._met(first, second, KNOWN)
            yield from self._met(second, first, ALL)

    def _met(self, seed: Part, partner: Part, which: str) -> Iterator[pa.RecordBatch]:
        """Results of the new rows of one stream with rows of the other."""
        fresh, there = self._grouped(seed, NEW), self._grouped(partner, which)
        if not fresh or not there:
            return
        link = self.given.plan.branches[0].links[0].seen_from(seed.number)
        schema = self._schema(seed, link.left_column, fresh)
        parts = [
            _counting(rows, self._counts(seed, rows, NEW, told))
            for told, segments in fresh.items()
            for rows in self._read(seed, schema, segments)
        ]
        rows = pa.Table.from_batches(parts, schema).combine_chunks()
        keys = rows.column(link.left_column)
        numbers = np.flatnonzero(keys.is_valid().to_numpy()) if keys.null_count else None
        matcher = Matcher(keys.drop_null().to_numpy())
        if matcher.distinct:
            ready = _Ready(self, link, partner, rows, numbers)
            for told, segments in self._sought(ready, matcher, there):
                yield from self._pairs(ready, matcher, which, told, segments)

    def _pairs(
        self, ready: "_Ready", matcher: Matcher, which: str, told: _Told, chosen: tuple[Sequence[Segment], Picks | None]
    ) -> Iterator[pa.RecordBatch]:
        """Results with rows of some segments of the partner, many segments' together: each has few."""
        partner, (segments, picks) = ready.partner, chosen
        schema = self._schema(partner, ready.link.right_column, {told: segments})
        place = schema.get_field_index(ready.link.right_column)
        wanted = [name for name in schema.names if name in ready.wanted]
        batches: list[pa.RecordBatch] = []
        met: list[Int64s] = []
        new: list[Int64s] = []
        seen = count = 0

        def results() -> Iterator[pa.RecordBatch]:
            if count:
                rows = pa.Table.from_batches(batches).select(wanted).take(pa.array(np.concatenate(met)))
                yield ready.results(rows, np.concatenate(new), self._counts(partner, rows, which, told))

        for batch in self._read(partner, schema, segments, picks):
            keys, start = batch.column(place), 0
            valid = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False)) if keys.null_count else None
            values = (keys if valid is None else keys.drop_null()).to_numpy()
            batches.append(batch)
            while start < len(values):
                found, own, start = matcher.match(values, start, BATCH_ROWS)
                met.append((found if valid is None else valid[found]) + seen)
                new.append(own)
                count += len(own)
                if count >= BATCH_ROWS:
                    yield from results()
                    met, new, count = [], [], 0
            seen += batch.num_rows
            if seen >= _MOST_HELD:
                yield from results()
                batches, met, new, seen, count = [], [], [], 0, 0
        yield from results()

    def _sought(
        self, ready: "_Ready", matcher: Matcher, there: Mapping[_Told, Sequence[Segment]]
    ) -> Iterator[tuple[_Told, tuple[Sequence[Segment], Picks | None]]]:
        """The segments that are read, and which of their rows if the partner is searched by the column."""
        prune = self._prune(ready, matcher, [segment for own in there.values() for segment in own])
        for told, segments in there.items():
            chosen = (prune(segments) if prune is not None else None) or (segments, None)
            if chosen[0]:
                yield told, chosen

    def _prune(self, ready: "_Ready", matcher: Matcher, segments: Sequence[Segment]) -> Prune | None:
        """Which rows of a partner can match, where it is searched by the column and the new rows have few values."""
        definition = ready.partner.definition
        assert definition is not None
        most = min(worth_seeking(segments), MOST_KEYS)
        if not definition.key or definition.key[0] != ready.link.right_column or matcher.distinct > most:
            return None
        ranges = key_ranges(definition, [pa.chunked_array([ready.column(ready.link.left_column).drop_null().unique()])])
        return None if ranges is None else by_directory(self.store, ready.partner, ranges)

    # -- which rows ----------------------------------------------------------------------------------------------------

    def _grouped(self, part: Part, which: str) -> dict[_Told, list[Segment]]:
        """The segments that hold such rows, by how those are told apart."""
        moment, found = self.given.moment, dict[_Told, list[Segment]]()
        for segment in self.given.sides[part.name].segments:
            told = told_apart(segment, self.given.seen[part.name], which, moment.before)
            if told is not None and matters(part, segment, moment):
                base = segment.seq_base if told[0] else 0
                found.setdefault((*told, base, segment.max_ts > moment.now), []).append(segment)
        return found

    def _counts(
        self, part: Part, rows: pa.RecordBatch | pa.Table, which: str, told: _Told
    ) -> npt.NDArray[np.bool_] | None:
        """Which of some rows count; None: all. That their lives are not over is seen in the results."""
        (mixed, ahead, base, later), moment = told, self.given.moment
        if not (mixed or ahead or later):
            return None
        begins = self.begins(part, rows)
        counting = begins <= moment.now
        if mixed or ahead:
            known = np.ones(len(begins), bool)
            if mixed:
                known &= ((rows.column(SEQ).to_numpy() + base) >> SEQ_BITS) <= self.given.seen[part.name].ordinal
            if ahead and moment.before is not None:
                known &= begins <= moment.before
            counting &= known if which == KNOWN else ~known
        return counting

    @staticmethod
    def begins(part: Part, rows: pa.RecordBatch | pa.Table) -> Int64s:
        """When rows of a part begin."""
        assert part.definition is not None
        return micros(rows.column(part.definition.time))[0]

    @staticmethod
    def ends(part: Part, rows: pa.RecordBatch | pa.Table, begins: Int64s) -> Int64s:
        """When they cease to count, as `ends_sql` has it."""
        assert part.definition is not None
        model = part.definition.model
        lives = [life for life in (None if model.expires else model.lifetime, part.window) if life is not None]
        ends = begins + min(lives) if lives else np.full(len(begins), NEVER, np.int64)
        return ends if model.expires is None else np.minimum(ends, micros(rows.column(model.expires))[0])

    # -- and their columns ---------------------------------------------------------------------------------------------

    def _schema(self, part: Part, column: str, groups: Mapping[_Told, Sequence[Segment]]) -> pa.Schema:
        """What is read of a part, text that repeats as a dictionary."""
        assert part.definition is not None
        full, model = part.definition.stored_schema, part.definition.model
        names = {column, model.time, *(taken for _, number, taken in self.given.plan.taken if number == part.number)}
        names |= {SEQ} if any(told[0] for told in groups) else set()
        names |= {model.expires} if model.expires is not None else set()
        repeating = self.store.columns.repeating([s for own in groups.values() for s in own], full)
        return pa.schema(
            [
                field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in repeating else field
                for field in full
                if field.name in names
            ]
        )

    def _read(
        self, part: Part, schema: pa.Schema, segments: Sequence[Segment], picks: Picks | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert part.definition is not None
        return self.store.columns.batches(segments, schema, part.definition.stored_schema, picks)


class _Ready:
    """New rows of a stream, ready to be joined with rows of another."""

    def __init__(
        self, work: Matching, link: Link, partner: Part, rows: pa.Table, numbers: npt.NDArray[np.int64] | None
    ) -> None:
        self.link, self.partner, self.rows = link, partner, rows
        self._work, self._numbers = work, numbers
        seed = work.given.plan.parts[link.left]
        self._begins = work.begins(seed, rows)
        self._ends = work.ends(seed, rows, self._begins)
        self._taken = [
            # What both have in common is taken from here, where it is taken once.
            (name, link.left, link.left_column) if (number, column) == (link.right, link.right_column) else each
            for each in work.given.plan.taken
            for name, number, column in [each]
        ]
        assert partner.definition is not None
        model = partner.definition.model
        self.wanted = {model.time, model.expires, SEQ, *(c for _, number, c in self._taken if number == link.right)}
        """The columns of the partner that are taken."""

    def results(self, met: pa.Table, new: Int64s, counting: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
        """Results of pairs: rows of the partner, and the numbers of new rows among those that have a key."""
        rows = new if self._numbers is None else self._numbers[new]
        work = self._work
        begins = work.begins(self.partner, met)
        ends = np.minimum(self._ends[rows], work.ends(self.partner, met, begins))
        begins = np.maximum(self._begins[rows], begins)
        alive = (begins < ends) & (ends > work.given.moment.floor)
        if counting is not None:
            alive &= counting
        if not alive.all():
            kept = np.flatnonzero(alive)
            met, rows, begins, ends = met.take(pa.array(kept)), rows[kept], begins[kept], ends[kept]
        places = pa.array(rows)
        arrays = [pa.array(begins), pa.array(ends)]
        for _, number, column in self._taken:
            own = self.column(column).take(places) if number == self.link.left else _flat(met.column(column))
            arrays.append(own.dictionary_decode() if pa.types.is_dictionary(own.type) else own)
        return pa.RecordBatch.from_arrays(arrays, names=[_BEGINS, _ENDS, *(name for name, _, _ in self._taken)])

    def column(self, name: str) -> pa.Array:
        """One of the new rows."""
        return _flat(self.rows.column(name))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _counting(rows: pa.RecordBatch, counting: npt.NDArray[np.bool_] | None) -> pa.RecordBatch:
    return rows if counting is None else rows.filter(pa.array(counting))

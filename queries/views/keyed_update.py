"""Views whose rows belong to keys, such as groups: a slide replaces the rows of the keys that it changes.

A key changes when rows of it come or expire. Its result is computed anew from its rows alone and compared with what the
view has of it: rows that are no longer there end now, which the slide records as end overrides, and rows that are not
there yet are stored. So the work follows the changed keys, not the window.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.row_model import Int64s
from windrow.indexes.segments import Segment
from windrow.queries.engine.types import quote_name
from windrow.queries.views.delta_sql import SqlUpdate, UpdateInputs, translating_errors
from windrow.queries.views.inputs import (
    ALL,
    NEW,
    InputPosition,
    SegmentGroup,
    ends_sql,
    time_sql,
)
from windrow.queries.views.partner_filter import (
    MAX_LOOKUP_KEYS,
    Mask,
    encode_partner_ranges,
    make_mask,
    max_lookup_keys,
    prune_by_directory,
)
from windrow.queries.views.plan import PlanPart, Prune
from windrow.queries.views.storage import RowEnding
from windrow.store import Store

_CHANGED, _STORED, _DIFFERENCE = "_v changed", "_v stored", "_v difference"
_PLACE = "_windrow_place"
_BEGINS, _ENDS = "_windrow_begins", "_windrow_ends"
_ROW = (1 << 32) - 1
"""The bits of a place that are the row in its file; those above are the segment."""


@dataclass(frozen=True)
class RowKeys:
    """The columns that say to which key a row belongs.

    Args:
        source: Columns of the stream that is read.
        result: The same among the view's columns.
    """

    source: tuple[str, ...]
    result: tuple[str, ...]


class KeyedUpdate(SqlUpdate):
    """One update of one view.

    Args:
        store: The warehouse.
        update: What it reads.
        definition: Of the view's stream.
        keys: Of its rows.
    """

    begins_with_slide = False
    """Whether all new rows begin with the slide, so that a row that stays as it was may have begun earlier."""

    def __init__(self, store: Store, update: UpdateInputs, definition: StreamDefinition, keys: RowKeys) -> None:
        super().__init__(store, update)
        self.definition = definition
        self.keys = keys
        self.endings: list[RowEnding] = []
        """Stored rows that end with this slide."""

    @property
    def part(self) -> PlanPart:
        """The stream that is read."""
        return self.plan.streams[0]

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """New rows: when they begin and end in microseconds, then their columns; `endings` is complete after them."""
        reusable = False
        with translating_errors(self.update.name):
            try:
                yield from self._replace_rows()
                for name in self._temporary:
                    self.pooled.cursor.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
                reusable = True
            finally:
                self.pooled.release(reusable=reusable)

    def select_results(self, rows: str) -> str:
        """The result of the rows of some keys: when each begins and ends, then the view's columns."""
        raise NotImplementedError

    def _replace_rows(self) -> Iterator[pa.RecordBatch]:
        part, state = self.part, self.update.inputs[self.part.name]
        everything = self.update.interval.before is None
        if not everything and not self._find_changed_keys():
            return
        groups = self.binder.find_groups(part, state, InputPosition(0, None), ALL)
        values = None if everything else self._read_first_key()
        segments = [segment for group in groups for segment in group.segments]
        prune, value_filter = self._restrict(state.definition, segments, self.keys.source, values)
        only = "" if everything else self._is_changed(self.keys.source)
        self.binder.register_part(
            part, state.definition, groups, self.plan.time_columns(part), prune, value_filter, only=only
        )
        results = self.select_results(quote_name(part.relation))
        if everything:
            yield from self._run(results)
        else:
            yield from self._store_difference(results, values)

    # -- changed keys --------------------------------------------------------------------------------------------------

    def _find_changed_keys(self) -> bool:
        """Store the keys of rows that came or expired; False if there are none."""
        part, state, interval = self.part, self.update.inputs[self.part.name], self.update.interval
        assert interval.before is not None
        groups = list(self.binder.find_groups(part, state, self.update.positions[part.name], NEW))
        if self._may_change_by_expiry():
            ends = ends_sql(state.definition.model, state.definition.schema, part.window)
            condition = f"{ends} > {interval.before} AND {ends} <= {interval.now}"
            expiring = tuple(s for s in state.segments if s.max_exp > interval.before and self._may_expire(s))
            groups += [SegmentGroup(expiring, condition, 0)] if expiring else []
        if not groups:
            return False
        selects = []
        for number, group in enumerate(groups):
            relation = f"{part.relation} changed {number}"
            self.binder.columns(relation, state.definition, group.segments, None)
            columns = ", ".join(f"{quote_name(name)} AS {_key(n)}" for n, name in enumerate(self.keys.source))
            where = f" WHERE {group.condition}" if group.condition else ""
            selects.append(f"SELECT {columns or '1 AS k'} FROM {quote_name(relation)}{where}")
        return self._store_temporary(_CHANGED, f"SELECT DISTINCT * FROM ({' UNION ALL '.join(selects)})") > 0

    def _may_change_by_expiry(self) -> bool:
        """Whether rows that expire can change more of a result than that they are gone themselves."""
        return True

    def _may_expire(self, segment: Segment) -> bool:
        """Whether rows of a segment can end until now, by their expiry or by the window."""
        window, now = self.part.window, self.update.interval.now
        return segment.min_exp <= now or (window is not None and segment.min_ts + window <= now)

    def _is_changed(self, columns: Sequence[str]) -> str:
        """The condition that a row's key is among the changed ones."""
        same = " AND ".join(f"{_key(n)} IS NOT DISTINCT FROM {quote_name(name)}" for n, name in enumerate(columns))
        return f"EXISTS (FROM {quote_name(_CHANGED)} WHERE {same})" if same else ""

    def _read_first_key(self) -> pa.Array | None:
        """The changed values of the first key; None if a null is among them, or there is no key."""
        if not self.keys.source:
            return None
        sql = f"SELECT DISTINCT {_key(0)} FROM {quote_name(_CHANGED)}"
        values = self.pooled.cursor.sql(sql).to_arrow_table().column(0).combine_chunks()
        return None if values.null_count else values

    def _restrict(
        self,
        definition: StreamDefinition,
        segments: Sequence[Segment],
        columns: Sequence[str],
        values: pa.Array | None,
    ) -> tuple[Prune | None, tuple[str, Mask] | None]:
        """What of a stream need not be read, by the first of its columns with keys and its values."""
        if values is None:
            return None, None
        column, kind, prune = columns[0], definition.schema.field(columns[0]).type, None
        if definition.key[:1] == (column,) and len(values) <= min(max_lookup_keys(segments), MAX_LOOKUP_KEYS):
            ranges = encode_partner_ranges(definition, [pa.chunked_array([values])])
            prune = None if ranges is None else prune_by_directory(self.store, definition, ranges)
        if not values.type.equals(kind) or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
            return prune, None
        return prune, (column, make_mask(values))

    # -- what is stored ------------------------------------------------------------------------------------------------

    def _store_difference(self, results: str, values: pa.Array | None) -> Iterator[pa.RecordBatch]:
        """The rows of changed keys that are not stored yet; those that are stored but should not be, end now."""
        previous, now = self.update.previous, self.update.interval.now
        assert previous is not None
        segments = [segment for segment in previous.segments if segment.max_exp > now]
        self._offer_stored(segments, values)
        definition, names = self.definition, [_BEGINS, _ENDS, *self._result_columns()]
        columns = ", ".join(map(quote_name, names))
        begins = time_sql(definition.time, definition.schema.field(definition.time).type)
        ends = ends_sql(definition.model, definition.schema, None)
        condition = " AND ".join(term for term in (f"{ends} > {now}", self._is_changed(self.keys.result)) if term)
        stored_columns = ", ".join(map(quote_name, self._result_columns()))
        stored = f"SELECT {begins}, {ends}, {stored_columns}, {_PLACE} FROM {quote_name(_STORED)} WHERE {condition}"
        types = self._describe_columns(stored)
        typed = ", ".join(
            f"CAST({quote_name(name)} AS {kind}) AS {quote_name(name)}" for name, kind in zip(names, types, strict=True)
        )
        new = f"SELECT {typed}, NULL::BIGINT FROM ({results}) AS _new({columns})"
        by = ", ".join(map(quote_name, names[1:] if self.begins_with_slide else names))
        begun = f"max({_BEGINS}) AS {_BEGINS}, " if self.begins_with_slide else ""
        self._store_temporary(
            _DIFFERENCE,
            f"SELECT {begun}{by}, count(*) - count({_PLACE}) AS wanted, count({_PLACE}) AS present, "
            f"list({_PLACE}) FILTER ({_PLACE} IS NOT NULL) AS places "
            f"FROM ({new} UNION ALL {stored}) AS _rows({columns}, {_PLACE}) "
            f"GROUP BY {by} HAVING count(*) <> 2 * count({_PLACE})",
        )
        self._end_rows(segments)
        yield from self._run(
            f"SELECT {columns} FROM (SELECT *, unnest(range(wanted - present)) FROM {quote_name(_DIFFERENCE)} "
            f"WHERE wanted > present)"
        )

    def _result_columns(self) -> list[str]:
        """The view's columns besides its times."""
        return [n for n in self.definition.schema.names if n not in (self.definition.time, self.definition.expires)]

    def _describe_columns(self, sql: str) -> list[str]:
        """DuckDB's types of a query's columns."""
        return [str(row[1]) for row in self.pooled.cursor.execute(f"DESCRIBE {sql}").fetchall()][:-1]

    def _end_rows(self, segments: Sequence[Segment]) -> None:
        sql = (
            f"SELECT unnest(places[wanted + 1:]) AS place, {_ENDS} AS ends "
            f"FROM {quote_name(_DIFFERENCE)} WHERE present > wanted"
        )
        rows = self.pooled.cursor.sql(f"SELECT * FROM ({sql}) ORDER BY place").to_arrow_table()
        places, ends = (rows.column(number).to_numpy() for number in (0, 1))
        bounds = np.searchsorted(places >> 32, np.arange(len(segments) + 1))
        for number, segment in enumerate(segments):
            start, stop = bounds[number], bounds[number + 1]
            if start < stop:
                now = np.full(stop - start, self.update.interval.now, np.int64)
                self.endings.append(RowEnding(segment.id, places[start:stop] & _ROW, ends[start:stop], now))

    def _offer_stored(self, segments: Sequence[Segment], values: pa.Array | None) -> None:
        """Let DuckDB find the view's rows, each with the segment and row where it lies."""
        definition, now = self.definition, self.update.interval.now
        full, cache = definition.stored_schema, self.store.columns
        prune, value_filter = self._restrict(definition, segments, self.keys.result, values)
        pruned = prune(segments) if prune is not None else None
        ranges: SegmentRanges | None = None if pruned is None else pruned[1]
        numbers = {segment.id: number for number, segment in enumerate(segments)}
        chosen = segments if pruned is None else pruned[0]

        def read(narrow: pa.Schema) -> Iterable[pa.RecordBatch]:
            wanted = pa.schema([field for field in narrow if field.name != _PLACE])
            key = None if value_filter is None else wanted.get_field_index(value_filter[0])
            for segment in chosen:
                rows = _list_rows(segment, ranges)
                ended, start = find_ended_rows(segment, now), 0
                for batch in cache.read_batches([segment], wanted, full, ranges):
                    these, start = rows[start : start + batch.num_rows], start + batch.num_rows
                    if value_filter is not None and key is not None and key >= 0:
                        passing = value_filter[1](batch.column(key))
                        batch, these = batch.take(pa.array(passing)), these[passing]  # noqa: PLW2901
                    if len(ended):
                        stays = np.flatnonzero(~np.isin(these, ended))
                        batch, these = batch.take(pa.array(stays)), these[stays]  # noqa: PLW2901
                    if len(these):
                        places = pa.array(these + (numbers[segment.id] << 32))
                        columns = [places if f.name == _PLACE else batch.column(f.name) for f in narrow]
                        yield pa.RecordBatch.from_arrays(columns, schema=narrow)

        schema = pa.schema([*full, pa.field(_PLACE, pa.int64())])
        self.pooled.offer_source(_STORED, schema, read, sum(segment.rows for segment in chosen))


def _list_rows(segment: Segment, ranges: SegmentRanges | None) -> Int64s:
    """The rows of a segment that are read, as its file counts them."""
    if ranges is None:
        return np.arange(segment.start, segment.stop, dtype=np.int64)
    starts, stops = ranges[segment.id]
    return np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in zip(starts, stops, strict=True)] or [[]]).astype(
        np.int64
    )


def _key(number: int) -> str:
    return f"_windrow_k{number}"

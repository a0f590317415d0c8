"""Updates of strict views from new rows: what was in the result for the rows that changed, and what is now.

A strict view that is divided into partitions (see `partitions.py`) is computed twice at a slide, for the partitions
alone of which rows came, ended before their time, or ended where that brings other results: as of its last slide and as
of this one. What is only in the first has ended and is found again in the view's own segments, what is only in the
second has come. So no row need say why it is there, and late rows, lagging inputs and views of views are no special
cases.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import to_arrow
from windrow.queries.engine import arrow_source, cursor_pool
from windrow.queries.engine.types import quote_name
from windrow.queries.sql import parse_tree
from windrow.queries.views.delta_sql import BATCH_ROWS, UpdateInputs, translating_errors
from windrow.queries.views.input_rows import InputRows
from windrow.queries.views.inputs import ALL, InputState, RelationBinder, UpdateInterval
from windrow.queries.views.key_rows import KeyedRows, KeySet, PlacedRows, end_places, plain_type
from windrow.queries.views.plan import Partition, PlanPart
from windrow.queries.views.storage import RowEnding, match_copies
from windrow.queries.views.strict_join import JoinSide, PlainJoinChanges, can_join_plainly
from windrow.store import Store

_CHANGES, _STATE = "_v changes", "_v state"
_ENDED, _STAYS, _NEW = 0, 1, 2
"""Rows of an input that an override has ended since the last update; that were there; that have come."""
_CAME = f'"{_STATE}" = {_NEW}'
_COPIES, _COPY = "_v copies", "_v copy"


class StrictUpdate:
    """One update of one strict view.

    Args:
        store: The warehouse.
        update: What it reads.
    """

    def __init__(self, store: Store, update: UpdateInputs) -> None:
        assert update.plan.partition is not None
        self.store, self.update, self.plan = store, update, update.plan
        self.partition: Partition = update.plan.partition
        self.pooled = cursor_pool.take_cursor(store)
        self.distinct: dict[int, dict[str, float]] = {}
        """As in `SqlUpdate`; nothing is counted here."""
        self.pending: int | None = None
        """No duplicates are eliminated here."""
        self._select_new: str | None = None
        """The statement for the results that came."""
        self._joined: PlainJoinChanges | None = None
        """The same, where no statement is needed."""
        self._temporary: list[str] = []

    def find_endings(self) -> list[RowEnding]:
        """Rows of the view that have ended before their time; to be called before `compute_results`."""
        try:
            with translating_errors(self.update.name):
                if self.update.interval.before is None:
                    self._register_whole()
                    self._select_new = f"SELECT * FROM ({self.plan.sql}\n)"
                    return []
                changed = self._read_changed_rows()
                if not changed:
                    return []
                return self._find_ended(self._compute_changes(changed))
        except BaseException:
            self.pooled.release(reusable=False)
            raise

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """Results that have come: when they begin and end in microseconds, then their columns."""
        reusable = False
        try:
            with translating_errors(self.update.name):
                if self._joined is not None:
                    yield from self._joined.read_new(self.plan.begins, self.plan.ends, BATCH_ROWS)
                elif self._select_new is not None:
                    yield from arrow_source.run_streaming(self.pooled.cursor, self._select_new, None, BATCH_ROWS)[0]
                for name in self._temporary:
                    self.pooled.cursor.execute(f"DROP TABLE IF EXISTS {quote_name(name)}")
            reusable = True
        finally:
            self.pooled.release(reusable=reusable)

    # -- the rows that matter ------------------------------------------------------------------------------------------

    def _state(self, part: PlanPart) -> InputState:
        return self.update.inputs[part.name]

    def _register_whole(self) -> None:
        """All rows that live now."""
        now = self.update.interval.now
        binder = RelationBinder(self.store, self.pooled, UpdateInterval(None, now, now))
        for part in self.plan.parts:
            state, position = self._state(part), self.update.positions[part.name]
            groups = binder.find_groups(part, state, position, ALL)
            binder.register_part(part, state.definition, groups, self.plan.time_columns(part))

    def _read_changed_rows(self) -> dict[int, dict[int, PlacedRows]]:
        """The rows of the changed partitions, by part and state; none if nothing changed."""
        inputs = {part.number: self._open_input(part) for part in self.plan.parts}
        changed = {n: rows.find_changed(watched=n in self.partition.watched) for n, rows in inputs.items()}
        schema = self._key_schema()
        keys = {
            number: [inputs[number].collect_keys(rows, schema)]
            for number, rows in changed.items()
            if any(map(len, rows))
        }
        states = dict[int, dict[int, PlacedRows]]()
        for part in self.plan.parts if keys else ():
            # What a new row of such a part does has nothing to do with the others of that part.
            alone = part.number in self.partition.alone
            known_keys = [table for n, tables in keys.items() if n != part.number or not alone for table in tables]
            known = inputs[part.number].read_known(KeySet.collect(known_keys, schema))
            came, ended = changed[part.number].new, changed[part.number].ended
            states[part.number] = {_NEW: came, _ENDED: ended, _STAYS: known}
        return states

    def _open_input(self, part: PlanPart) -> InputRows:
        state, position = self._state(part), self.update.positions[part.name]
        columns = self.partition.columns[part.number]
        return InputRows(self.store, part, state, position, self.update.interval, columns)

    def _key_schema(self) -> pa.Schema:
        """The types of the partitions' columns, which are the same in all parts."""
        part = self.plan.parts[0]
        fields = [self._state(part).definition.schema.field(name) for name in self.partition.columns[part.number]]
        return pa.schema([(f"c{position}", plain_type(field.type)) for position, field in enumerate(fields)])

    def _offer(self, part: PlanPart, rows: Mapping[int, PlacedRows]) -> None:
        """Let DuckDB find rows with their state."""
        begins, ends = self.plan.time_columns(part)
        tables = []
        for state, placed in rows.items():
            columns: dict[str, pa.Array] = {name: placed.take(name) for name in self._columns(part)}
            columns |= {begins: to_arrow(placed.begins), ends: to_arrow(placed.ends)}
            columns[_STATE] = to_arrow(np.full(len(placed), state, np.int8))
            tables.append(pa.table(columns))
        self.pooled.offer_table(self._table(part), pa.concat_tables(tables).combine_chunks())

    def _columns(self, part: PlanPart) -> list[str]:
        """The columns that the statement may read."""
        names = self._state(part).definition.schema.names
        named = {name.lower() for name in self.partition.columns[part.number]}
        for visit in parse_tree.walk(self.plan.statement.tree):
            if visit.node.get("class") == "STAR" and visit.node["relation_name"].lower() in ("", part.alias.lower()):
                return list(names)
            path = [str(name).lower() for name in visit.node.get("column_names") or ()]
            if path and (len(path) != 2 or path[0] == part.alias.lower()):
                named.update(path)  # what is longer may be a field of a column
            named.update(name.lower() for name in visit.node.get("using_columns") or ())
        return [name for name in names if name.lower() in named]

    def _table(self, part: PlanPart) -> str:
        return f"{part.relation} rows"

    def _shown(self, part: PlanPart) -> str:
        return ", ".join(map(quote_name, [*self._columns(part), *self.plan.time_columns(part)]))

    # -- results -------------------------------------------------------------------------------------------------------

    def _compute_changes(self, changed: Mapping[int, Mapping[int, PlacedRows]]) -> pa.Table:
        """Find what came, for `compute_results`, and give what has gone: its columns, and when it began and ends."""
        join, previous, now = self.partition.join, self.update.previous, self.update.interval.now
        if join is not None and previous is not None and can_join_plainly(join, self.plan.parts, previous.definition):
            sides = [_make_side(changed[part.number], now) for part in self.plan.parts]
            self._joined = PlainJoinChanges(join, sides, now)
            return self._joined.read(self._joined.gone, self.plan.begins, self.plan.ends)
        for part in self.plan.parts:
            self._offer(part, changed[part.number])
        self._store_changes()
        self._select_new = f"SELECT * EXCLUDE ({quote_name(_STATE)}) FROM {quote_name(_CHANGES)} WHERE {_CAME}"
        return self.pooled.cursor.sql(f"FROM {quote_name(_CHANGES)} WHERE NOT {_CAME}").to_arrow_table()

    def _store_changes(self) -> None:
        """The results of the changed partitions that only the last update had, and those that only this one has."""
        now, answers = self.update.interval.now, []
        for there in (f"{{state}} <> {_NEW}", f"{{state}} <> {_ENDED} AND {{ends}} > {now}"):
            inputs = []
            for part in self.plan.parts:
                where = there.format(state=quote_name(_STATE), ends=quote_name(self.plan.time_columns(part)[1]))
                rows = f"SELECT {self._shown(part)} FROM {quote_name(self._table(part))} WHERE {where}"
                inputs.append(f"{quote_name(part.relation)} AS ({rows})")
            answers.append(f"(WITH {', '.join(inputs)} SELECT * FROM ({self.plan.sql}\n))")
        before, after = answers
        state, copies = quote_name(_STATE), quote_name(_COPIES)
        # One aggregate counts the copies on both sides; EXCEPT ALL would number them by a window function, twice.
        self._store(
            _CHANGES,
            f"WITH net AS (SELECT * EXCLUDE ({copies}), sum({copies})::BIGINT AS {copies} "
            f"FROM (SELECT 1 AS {copies}, * FROM {after} UNION ALL SELECT -1, * FROM {before}) GROUP BY ALL) "
            f"SELECT if({copies} > 0, {_NEW}, {_ENDED})::TINYINT AS {state}, * EXCLUDE ({copies}, {quote_name(_COPY)}) "
            f"FROM (SELECT *, unnest(range(abs({copies}))) AS {quote_name(_COPY)} FROM net WHERE {copies} <> 0) "
            f"WHERE {copies} > 0 OR {quote_name(self.plan.ends)} > {now}",
        )

    def _find_ended(self, gone: pa.Table) -> list[RowEnding]:
        """Find the results that are no more among the view's rows."""
        previous, now = self.update.previous, self.update.interval.now
        assert previous is not None
        if not gone.num_rows:
            return []
        definition = previous.definition
        schema = pa.schema([(name, plain_type(definition.schema.field(name).type)) for name in definition.key])
        keys = KeySet.collect([gone.select(schema.names).cast(schema)], schema) if schema.names else None
        segments = [segment for segment in previous.segments if segment.max_exp > now]
        stored = KeyedRows(self.store, definition, definition.key).read(segments, keys)
        stored = stored.select(stored.last_ends > now)
        names = [n for n in definition.schema.names if n not in (definition.time, definition.expires)]
        times = {self.plan.begins: to_arrow(stored.begins), self.plan.ends: to_arrow(stored.ends)}
        columns = pa.table({name: stored.take(name) for name in names} | times)
        stays = match_copies(columns, gone.select(columns.column_names).cast(columns.schema))[0]
        return end_places(segments, stored.select(stays), now)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _run(self, sql: str) -> None:
        self.pooled.cursor.execute(sql)

    def _store(self, name: str, sql: str) -> None:
        """Keep the rows of a query until the update is over."""
        self._run(f"CREATE OR REPLACE TEMP TABLE {quote_name(name)} AS {sql}")
        self._temporary.append(name)


def _make_side(changed: Mapping[int, PlacedRows], now: int) -> JoinSide:
    """Rows by state as one side of a join: those that lived at the last update, and those that live now."""
    state = np.repeat(list(changed), list(map(len, changed.values())))
    ends = np.concatenate([rows.ends for rows in changed.values()])
    return JoinSide(list(changed.values()), state != _NEW, (state != _ENDED) & (ends > now))

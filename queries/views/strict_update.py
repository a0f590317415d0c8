"""Updates of strict views from new rows: what was in the result for the rows that changed, and what is now.

A strict view that is divided into partitions (see `partitions.py`) is computed twice at a slide, for the partitions
alone of which rows came, ended before their time, or ended where that brings other results: as of its last slide and as
of this one. What is only in the first has ended and is found again in the view's own segments, what is only in the
second has come. So no row need say why it is there, and late rows, lagging inputs and views of views are no special
cases.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from windrow.indexes.arrow_arrays import to_arrow
from windrow.queries.engine import arrow_source, cursor_pool
from windrow.queries.engine.types import quote_name
from windrow.queries.sql import parse_tree
from windrow.queries.sql.window_spec import CountWindow, OrderedWindow
from windrow.queries.views.count_window import compare_windows
from windrow.queries.views.delta_sql import BATCH_ROWS, UpdateInputs, translating_errors
from windrow.queries.views.input_rows import ComparedRows, InputRows
from windrow.queries.views.inputs import ALL, InputState, RelationBinder, UpdateInterval
from windrow.queries.views.key_rows import KeyedRows, KeySet, end_places, plain_type
from windrow.queries.views.plan import Partition, PlanPart
from windrow.queries.views.storage import RowEnding, match_copies
from windrow.queries.views.strict_join import PlainJoinChanges, can_join_plainly
from windrow.store import Store

_CHANGES, _CAME = "_v changes", "_v came"
_HAD, _HAS = "_v had", "_v has"
"""Whether a row of an input lived at the last update, and whether it lives now."""
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
        self._came: Iterator[pa.RecordBatch] = iter(())
        """The results that came."""
        self._reads_all = not self.partition.divided
        """Whether any row may have come into the result or left it, whatever its values."""
        self._temporary: list[str] = []

    def find_endings(self) -> list[RowEnding]:
        """Rows of the view that have ended before their time; to be called before `compute_results`."""
        try:
            with translating_errors(self.update.name):
                if self.update.interval.before is None:
                    self._register_whole()
                    self._came = self._run(f"SELECT * FROM ({self.plan.sql}\n)")
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
                yield from self._came
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

    def _read_changed_rows(self) -> dict[int, ComparedRows]:
        """The rows of the changed partitions, by part; none if nothing changed."""
        inputs = {part.number: self._open_input(part) for part in self.plan.parts}
        changed = {n: rows.find_changed(watched=n in self.partition.watched) for n, rows in inputs.items()}
        schema, window = self._key_schema(), self.partition.window
        keys = {
            number: [inputs[number].collect_keys(rows, schema)]
            for number, rows in changed.items()
            if any(map(len, rows))
        }
        if not keys:
            return {}
        nulls = {n: inputs[n].describe(changed[n]) for n in self.partition.not_in}
        if any(had[1] and has[1] for had, has in nulls.values()):
            return {}  # there was no result, and there is none
        self._reads_all |= any(had != has for had, has in nulls.values())
        newest = window.count if isinstance(window, CountWindow) and not window.keys else None
        compared = dict[int, ComparedRows]()
        for part in self.plan.parts:
            # What a new row of such a part does has nothing to do with the others of that part.
            alone = part.number in self.partition.alone
            other_keys = [table for n, tables in keys.items() if n != part.number or not alone for table in tables]
            wanted = None if self._reads_all else KeySet.collect(other_keys, schema)
            compared[part.number] = inputs[part.number].compare(changed[part.number], wanted, newest)
        if not self._reads_all:
            self._leave_nulls_out(compared, {self.partition.not_in[n] for n, (_, has) in nulls.items() if has[0]})
        return compared

    def _leave_nulls_out(self, compared: dict[int, ComparedRows], numbers: Iterable[int]) -> None:
        """Leave out rows that are no results: a null is not known not to be in anything that has rows."""
        for number in numbers:
            (name,) = self.partition.columns[number]
            compared[number] = compared[number].select(
                ~compared[number].take(name).is_null().to_numpy(zero_copy_only=False)
            )

    def _open_input(self, part: PlanPart) -> InputRows:
        state, position = self._state(part), self.update.positions[part.name]
        columns = self.partition.columns[part.number]
        return InputRows(self.store, part, state, position, self.update.interval, columns)

    def _key_schema(self) -> pa.Schema:
        """The types of the partitions' columns, which are the same in all parts."""
        part = self.plan.parts[0]
        fields = [self._state(part).definition.schema.field(name) for name in self.partition.columns[part.number]]
        return pa.schema([(f"c{position}", plain_type(field.type)) for position, field in enumerate(fields)])

    def _offer(self, part: PlanPart, rows: ComparedRows) -> None:
        """Let DuckDB find rows."""
        begins, ends = self.plan.time_columns(part)
        columns: dict[str, pa.Array] = {name: rows.take(name) for name in self._columns(part)}
        columns |= {begins: to_arrow(rows.begins), ends: to_arrow(rows.ends)}
        self.pooled.offer_table(
            self._table(part), pa.table(columns | {_HAD: pa.array(rows.had), _HAS: pa.array(rows.has)})
        )

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

    def _compute_changes(self, changed: Mapping[int, ComparedRows]) -> pa.Table:
        """Find what came, for `compute_results`, and give what has gone: its columns, and when it began and ends."""
        join, previous, now = self.partition.join, self.update.previous, self.update.interval.now
        if (
            join is not None
            and previous is not None
            and not self._reads_all
            and can_join_plainly(join, self.plan.parts, previous.definition)
        ):
            changes = PlainJoinChanges(join, [changed[part.number] for part in self.plan.parts], now)
            self._came = changes.read_new(self.plan.begins, self.plan.ends, BATCH_ROWS)
            return changes.read(changes.gone, self.plan.begins, self.plan.ends)
        if self.partition.window is not None:
            return self._compare_window(self.partition.window, changed[self.plan.parts[0].number])
        for part in self.plan.parts:
            self._offer(part, changed[part.number])
        self._store_changes()
        came = quote_name(_CAME)
        results = f"SELECT * EXCLUDE ({came}) FROM {quote_name(_CHANGES)} WHERE"
        self._came = self._run(f"{results} {came}")
        return self.pooled.cursor.sql(f"{results} NOT {came}").to_arrow_table()

    def _compare_window(self, window: OrderedWindow, rows: ComparedRows) -> pa.Table:
        """The same of a count or session window: the statement is only run for rows that came into it or left it."""
        (part,), now, answers = self.plan.parts, self.update.interval.now, []
        definition = self._state(part).definition
        had, has = compare_windows(self.pooled, window, rows, definition.schema.field(definition.time))
        stays = had & has & self._can_compare_results
        for chosen in (had & ~stays & (rows.ends > now), has & ~stays):
            self._offer(part, rows.select(chosen))
            self.pooled.create_view(part.relation, f"SELECT {self._shown(part)} FROM {quote_name(self._table(part))}")
            answers.append(self.pooled.cursor.sql(f"SELECT * FROM ({self.plan.sql}\n)").to_arrow_table())
        gone, came = answers
        self._came = iter(came.to_batches())
        return gone

    def _store_changes(self) -> None:
        """The results of the changed partitions that only the last update had, and those that only this one has."""
        now, answers = self.update.interval.now, []
        for lived in (_HAD, _HAS):
            inputs = []
            for part in self.plan.parts:
                rows = f"SELECT {self._shown(part)} FROM {quote_name(self._table(part))} WHERE {quote_name(lived)}"
                inputs.append(f"{quote_name(part.relation)} AS ({rows})")
            answers.append(f"(WITH {', '.join(inputs)} SELECT * FROM ({self.plan.sql}\n))")
        before, after = answers
        came, copies = quote_name(_CAME), quote_name(_COPIES)
        # One aggregate counts the copies on both sides; EXCEPT ALL would number them by a window function, twice.
        self._store(
            _CHANGES,
            f"WITH net AS (SELECT * EXCLUDE ({copies}), sum({copies})::BIGINT AS {copies} "
            f"FROM (SELECT 1 AS {copies}, * FROM {after} UNION ALL SELECT -1, * FROM {before}) GROUP BY ALL) "
            f"SELECT {copies} > 0 AS {came}, * EXCLUDE ({copies}, {quote_name(_COPY)}) "
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
        begins = gone.column(self.plan.begins).to_numpy()
        stored = stored.select((stored.last_ends > now) & np.isin(stored.begins, begins))
        hidden = (definition.time, definition.expires)
        # Where lists and structs are shown, whole keys are replaced, so that it does not matter which row has which.
        names = [f.name for f in definition.schema if f.name not in hidden and not pa.types.is_nested(f.type)]
        times = {self.plan.begins: to_arrow(stored.begins), self.plan.ends: to_arrow(stored.ends)}
        columns = pa.table({name: stored.take(name) for name in names} | times)
        has_gone = match_copies(columns, gone.select(columns.column_names).cast(columns.schema))[0]
        return end_places(segments, stored.select(has_gone), now)

    @property
    def _can_compare_results(self) -> bool:
        """Whether results can be told apart by their values."""
        assert self.update.previous is not None
        return not any(pa.types.is_nested(field.type) for field in self.update.previous.definition.schema)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _run(self, sql: str) -> Iterator[pa.RecordBatch]:
        yield from arrow_source.run_streaming(self.pooled.cursor, sql, None, BATCH_ROWS)[0]

    def _store(self, name: str, sql: str) -> None:
        """Keep the rows of a query until the update is over."""
        self.pooled.cursor.execute(f"CREATE OR REPLACE TEMP TABLE {quote_name(name)} AS {sql}")
        self._temporary.append(name)

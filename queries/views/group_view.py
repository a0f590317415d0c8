"""Views with GROUP BY from new rows: partial aggregates by group and expiry slot, and the groups that a slide changes.

The partial aggregates are a view of their own: a slide adds those of the new rows, and the index lets them go slot by
slot. The view with the groups merges those of the groups of which some have come or gone. A group's row ends with the
next of its partial aggregates that goes; where new rows change it before, an end override says so.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa

from windrow.catalog.records import GroupedStatement, TableEntry
from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.row_model import NEVER
from windrow.queries.engine import arrow_source, cursor_pool
from windrow.queries.engine.types import quote_name
from windrow.queries.sql.split_aggregate import read_engine_functions
from windrow.queries.views.delta_sql import (
    BATCH_ROWS,
    SqlUpdate,
    UpdateInputs,
    register_empty_parts,
    translating_errors,
)
from windrow.queries.views.group_plan import (
    ENDS,
    describe_groups,
    finished_sql,
    is_grouped,
    partials_sql,
    split_groups,
)
from windrow.queries.views.input_rows import ChangedRows, InputRows
from windrow.queries.views.inputs import ALL, InputPosition, RelationBinder, UpdateInterval
from windrow.queries.views.key_rows import KeyedRows, KeySet, end_places, plain_type
from windrow.queries.views.plan import ViewPlan
from windrow.queries.views.planner import make_plan
from windrow.queries.views.storage import RowEnding, match_copies
from windrow.queries.views.update_patterns import Pattern
from windrow.store import Store

_BEGINS, _ENDS = "_windrow_begins", "_windrow_ends"


class PartialUpdate(SqlUpdate):
    """One update of a view of partial aggregates.

    Args:
        store: The warehouse.
        update: What it reads.
        definition: Of the view's stream.
        groups: The statement.
    """

    def __init__(
        self, store: Store, update: UpdateInputs, definition: StreamDefinition, groups: GroupedStatement
    ) -> None:
        super().__init__(store, update)
        self._definition, self._groups = definition, groups

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """New partial aggregates: when they begin and end in microseconds, then their columns."""
        plan, model, now = self.plan, self._definition.model, self.update.interval.now
        slots = f"(({quote_name(plan.ends)} - {now} + {model.delta - 1}) // {model.delta})"
        ends = f"{NEVER}::BIGINT" if model.expires is None else f"{now} + {slots} * {model.delta}"
        reusable = False
        with translating_errors(self.update.name):
            try:
                for sql in self._prepare_terms():
                    yield from self._run(partials_sql(self._groups, sql, f"{now}::BIGINT", ends))
                reusable = True
            finally:
                self.pooled.release(reusable=reusable)


class GroupUpdate(SqlUpdate):
    """One update of a view with GROUP BY.

    Args:
        store: The warehouse.
        update: What it reads: partial aggregates.
        definition: Of the view's stream.
        groups: The statement.
    """

    def __init__(
        self, store: Store, update: UpdateInputs, definition: StreamDefinition, groups: GroupedStatement
    ) -> None:
        super().__init__(store, update)
        self._definition, self._groups = definition, groups
        self._part = update.plan.streams[0]
        self._names = [n for n in definition.schema.names if n not in (definition.time, definition.expires)]
        self._came: Iterator[pa.RecordBatch] = iter(())

    def find_endings(self) -> list[RowEnding]:
        """Stored rows that end now, since their group is another one; to be called before `compute_results`."""
        try:
            with translating_errors(self.update.name):
                if self.update.interval.before is None:
                    part, state = self._part, self.update.inputs[self._part.name]
                    groups = self.binder.find_groups(part, state, InputPosition(0, None), ALL)
                    self.binder.register_part(part, state.definition, groups, self.plan.time_columns(part))
                    self._came = self._run(self._select_groups())
                    return []
                return self._replace_rows()
        except BaseException:
            self.pooled.release(reusable=False)
            raise

    def compute_results(self) -> Iterator[pa.RecordBatch]:
        """New rows: when they begin and end in microseconds, then their columns."""
        reusable = False
        try:
            with translating_errors(self.update.name):
                yield from self._came
            reusable = True
        finally:
            self.pooled.release(reusable=reusable)

    def _select_groups(self) -> str:
        """The rows of some groups, from their partial aggregates."""
        now, longest = self.update.interval.now, self._definition.longest_life
        _, ends = self.plan.time_columns(self._part)
        nothing = NEVER if longest is None else now + longest  # of a total over no rows
        columns = ", ".join(map(quote_name, self._names))
        return (
            f"SELECT {now}::BIGINT, coalesce({ENDS}, {nothing})::BIGINT, {columns} "
            f"FROM ({finished_sql(self._groups, quote_name(self._part.relation), quote_name(ends))})"
        )

    def _replace_rows(self) -> list[RowEnding]:
        """Compute the groups of which partial aggregates came or ended, and compare them with what is stored."""
        update, part = self.update, self._part
        columns = tuple(f"g{number}" for number in range(len(self._groups.types)))
        source = InputRows(
            self.store, part, update.inputs[part.name], update.positions[part.name], update.interval, columns
        )
        changed = source.find_changed(watched=True)
        # Without groups there is one row, also when there is nothing to add up.
        if columns and not any(map(len, changed)):
            return []
        keys = self._collect_keys(source, changed) if columns else None
        rows = source.read_live(keys)
        _, ends = self.plan.time_columns(part)
        table = rows.table(part.columns).append_column(ends, to_arrow(rows.last_ends))
        self.pooled.offer_table(part.relation, table)
        results = arrow_source.run_streaming(self.pooled.cursor, self._select_groups(), None, BATCH_ROWS)[0].read_all()
        return self._compare_results(results, keys)

    def _collect_keys(self, source: InputRows, changed: ChangedRows) -> KeySet | None:
        """The groups that have changed; None if they cannot be told from others, so that any may have."""
        fields = [source.definition.schema.field(name) for name in source.columns]
        schema = pa.schema([(field.name, plain_type(field.type)) for field in fields])
        stored_types = [plain_type(self._definition.schema.field(name).type) for name in self._groups.keys]
        if stored_types != schema.types:
            return None
        return KeySet.collect([source.collect_keys(changed, schema)], schema)

    def _compare_results(self, results: pa.Table, keys: KeySet | None) -> list[RowEnding]:
        """Find the rows that are not stored yet, for `compute_results`, and those that are but should not be."""
        previous, definition, names = self.update.previous, self._definition, self._names
        assert previous is not None
        now = self.update.interval.now
        segments = [segment for segment in previous.segments if segment.max_exp > now]
        stored = KeyedRows(self.store, definition, self._groups.keys).read(segments, keys)
        stored = stored.select(stored.last_ends > now)
        fields = [definition.schema.field(name) for name in names]
        new_columns = [results.column(n + 2).cast(field.type) for n, field in enumerate(fields)]
        new = pa.table([results.column(0), results.column(1), *new_columns], [_BEGINS, _ENDS, *names])
        if not any(pa.types.is_nested(field.type) for field in fields):  # such values are not compared
            # A row that stays as it was may have begun earlier.
            old = pa.table([to_arrow(stored.last_ends), *map(stored.take, names)], [_ENDS, *names])
            stays, is_stored = match_copies(old, new.select(old.column_names).cast(old.schema))
            stored, new = stored.select(~stays), new.filter(to_arrow(~is_stored))
        self._came = iter(new.to_batches())
        return end_places(segments, stored, now)


def plan_groups(
    store: Store,
    plan: ViewPlan,
    name: str,
    streams: Mapping[str, StreamDefinition],
    tables: Mapping[str, TableEntry],
    schemas: Mapping[str, pa.Schema],
    schema: pa.Schema,
) -> tuple[str, GroupedStatement] | None:
    """The statement of the partial aggregates of a view, and what finishes them; None if it has no groups.

    Args:
        store: The warehouse.
        plan: Of the view, if it were recomputed.
        name: Of the view of partial aggregates.
        streams: All streams there are.
        tables: All tables there are.
        schemas: Their columns.
        schema: Of the statement's result.

    Raises:
        CannotSplitError: why it cannot be kept from new rows.
        ViewError: what is grouped cannot.
    """
    if not is_grouped(plan):
        return None
    pooled = cursor_pool.take_cursor(store)
    try:
        split = split_groups(plan, read_engine_functions(pooled.cursor))
        inner = make_plan(name, split.inner_sql, streams, schemas)
        if inner.label.pattern is Pattern.STRICT or inner.distinct:
            return None
        register_empty_parts(store, pooled, RelationBinder(store, pooled, UpdateInterval(None, 0, 0)), inner, tables)
        rows = f"(SELECT * FROM ({inner.sql}\n) LIMIT 0) AS _row"
        return split.inner_sql, describe_groups(
            pooled.cursor, split, rows, plan.statement.text.rstrip().rstrip(";"), schema
        )
    finally:
        pooled.release(reusable=False)

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
from windrow.queries.engine import cursor_pool
from windrow.queries.engine.types import quote_name
from windrow.queries.sql.split_aggregate import read_engine_functions
from windrow.queries.views.delta_sql import SqlUpdate, UpdateInputs, register_empty_parts, translating_errors
from windrow.queries.views.group_plan import (
    ENDS,
    describe_groups,
    finished_sql,
    is_grouped,
    partials_sql,
    split_groups,
)
from windrow.queries.views.inputs import RelationBinder, UpdateInterval
from windrow.queries.views.key_rows import KeySet, PlacedRows
from windrow.queries.views.keyed_update import KeyedUpdate
from windrow.queries.views.plan import RowKeys, ViewPlan
from windrow.queries.views.planner import make_plan
from windrow.queries.views.update_patterns import Pattern
from windrow.store import Store


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


class GroupUpdate(KeyedUpdate):
    """One update of a view with GROUP BY.

    Args:
        store: The warehouse.
        update: What it reads: partial aggregates.
        definition: Of the view's stream.
        groups: The statement.
    """

    begins_with_slide = True

    def __init__(
        self, store: Store, update: UpdateInputs, definition: StreamDefinition, groups: GroupedStatement
    ) -> None:
        source = tuple(f"g{number}" for number in range(len(groups.types)))
        super().__init__(store, update, definition, RowKeys(source, groups.keys))
        self._groups = groups

    def select_results(self) -> str:
        """The rows of some groups, from their partial aggregates."""
        now, longest = self.update.interval.now, self.definition.longest_life
        _, ends = self.plan.time_columns(self.part)
        nothing = NEVER if longest is None else now + longest  # of a total over no rows
        columns = ", ".join(map(quote_name, self.result_names))
        return (
            f"SELECT {now}::BIGINT, coalesce({ENDS}, {nothing})::BIGINT, {columns} "
            f"FROM ({finished_sql(self._groups, quote_name(self.part.relation), quote_name(ends))})"
        )

    def offer_rows(self, rows: PlacedRows) -> None:
        """Partial aggregates, each with its end."""
        _, ends = self.plan.time_columns(self.part)
        table = rows.table(self.part.columns).append_column(ends, to_arrow(rows.last_ends))
        self.pooled.offer_table(self.part.relation, table)

    def _find_changed_keys(self) -> tuple[bool, KeySet | None]:
        """Without groups there is one row, also when there is nothing to add up."""
        return super()._find_changed_keys() if self.keys.source else (True, None)


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

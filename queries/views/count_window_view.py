"""Views over windows that go by the order of rows, ``[ROWS n PARTITION BY k]`` and ``[SESSION …]``, from new rows.

A row is in such a window from when it comes until newer rows of its key push it out, which an end override says, or
until it expires. Only where lifetimes differ can a row that expires bring an older one back.
"""

from collections.abc import Sequence

from windrow.definitions import StreamDefinition
from windrow.indexes.arrow_arrays import to_arrow
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import Segment
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.planner import resolve_keys
from windrow.queries.planner.scan_sql import ordered_window_sql
from windrow.queries.sql.window_spec import CountWindow, OrderedWindow
from windrow.queries.views.delta_sql import UpdateInputs
from windrow.queries.views.key_rows import PlacedRows
from windrow.queries.views.keyed_update import KeyedUpdate
from windrow.queries.views.plan import RowKeys
from windrow.store import Store


class CountWindowUpdate(KeyedUpdate):
    """One update of a view over such a window.

    Args:
        store: The warehouse.
        update: What it reads.
        definition: Of the view's stream.
        keys: Of its rows.
    """

    def __init__(self, store: Store, update: UpdateInputs, definition: StreamDefinition, keys: RowKeys) -> None:
        super().__init__(store, update, definition, keys)
        window, source = self.part.reference.window, update.inputs[self.part.name].definition
        assert isinstance(window, OrderedWindow)
        self._window = resolve_keys(source.name, source.schema, window)

    def changes_by_expiry(self) -> bool:
        """Rows that live equally long expire as they came: the oldest of a window first."""
        return self.update.inputs[self.part.name].definition.expires is not None

    def select_results(self) -> str:
        """The rows of the statement."""
        now, begins, ends = self.update.interval.now, quote_name(self.plan.begins), quote_name(self.plan.ends)
        return f"SELECT * FROM ({self.plan.sql}\n) WHERE {begins} < {ends} AND {ends} > {now}"

    def choose_segments(self, segments: Sequence[Segment]) -> list[Segment]:
        """Those with rows that may be among the newest; of a window with keys any may be."""
        if self.keys.source or not isinstance(self._window, CountWindow):
            return list(segments)
        now, wanted = self.update.interval.now, self._window.count
        for segment in sorted(segments, key=lambda each: each.min_ts, reverse=True):
            if segment.max_ts <= now < segment.min_exp:
                wanted -= segment.rows
            if wanted <= 0:
                return [each for each in segments if each.max_ts >= segment.min_ts]
        return list(segments)

    def offer_rows(self, rows: PlacedRows) -> None:
        """The rows of the window, each with its beginning and end."""
        part, schema = self.part, self.update.inputs[self.part.name].definition.schema
        hidden = self.plan.time_columns(part)
        table = rows.table(schema.names)
        for name, values in zip(hidden, (rows.begins, rows.last_ends), strict=True):
            table = table.append_column(name, to_arrow(values))
        table = table.append_column(SEQ, to_arrow(rows.sequence))
        relation = f"{part.relation} rows"
        self.pooled.offer_table(relation, table)
        source = f"SELECT * FROM {quote_name(relation)}"
        time = schema.field(self.update.inputs[part.name].definition.time)
        self.pooled.create_view(part.relation, ordered_window_sql(source, [*schema.names, *hidden], time, self._window))

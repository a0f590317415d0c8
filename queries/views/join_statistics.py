"""What the catalog knows of the inputs of a join view: how fast rows come, and in which order new ones are joined."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from windrow.catalog.records import ViewInput
from windrow.definitions import StreamDefinition
from windrow.queries.views.delta_join import are_linked, can_join_natively, find_equal_columns
from windrow.queries.views.delta_sql import are_joined
from windrow.queries.views.inputs import InputState, UpdateInterval
from windrow.queries.views.join_order import InputRate, Linked, choose_partner_order, probe_cost
from windrow.queries.views.plan import PlanBranch, ViewPlan

_STATISTICS_DECAY = 0.9
"""The weight that statistics from before an update keep after it: half after seven. Not measured."""
_SECOND = 1_000_000


@dataclass(frozen=True)
class JoinOrder:
    """How new rows of one input of a join find their partners.

    Args:
        input: Its name in the statement.
        partners: The others, in the order in which they are joined.
        rate: How many rows of the input come in a second; None before the view has slid.
        values: How many values its joined columns have; None where that was not counted, as of joins of two.
        cost: How many rows are compared in a second; None if the rate or the values of an input are not known.
    """

    input: str
    partners: tuple[str, ...]
    rate: float | None = None
    values: float | None = None
    cost: float | None = None

    def __str__(self) -> str:
        figures = [] if self.rate is None else [f"{self.rate:,.4g} rows/s"]
        figures += [] if self.values is None else [f"{self.values:,.0f} values"]
        figures += [] if self.cost is None else [f"{self.cost:,.4g} comparisons/s"]
        return f"{self.input} meets {', then '.join(self.partners)}" + (f" ({', '.join(figures)})" if figures else "")


def list_join_orders(plan: ViewPlan, view: StreamDefinition, records: Mapping[str, ViewInput]) -> tuple[JoinOrder, ...]:
    """For each input of each join of a view, the order that its next new rows would take.

    Args:
        plan: Of the view.
        view: The stream that it is.
        records: Of its inputs, by name.
    """
    native = can_join_natively(plan, view)
    return tuple(
        order
        for branch in plan.branches
        if len(branch.streams) > 1
        for order in _list_branch_orders(plan, branch, records, native=native)
    )


def _list_branch_orders(
    plan: ViewPlan, branch: PlanBranch, records: Mapping[str, ViewInput], *, native: bool
) -> list[JoinOrder]:
    names = {part.number: part.alias for part in branch.streams}
    rates = {number: estimate_rate(plan, number, records[plan.parts[number].name]) for number in names}
    complete = {number: rate for number, rate in rates.items() if rate is not None}
    linked: Linked = partial(are_linked, find_equal_columns(branch)) if native else partial(are_joined, branch)
    orders = []
    for number, name in names.items():
        record = records[plan.parts[number].name]
        rate = record.rows / record.span * _SECOND if record.span else None
        if rate is None or len(complete) < len(names):
            probes = choose_partner_order(number, list(names), {}, linked)
            orders.append(JoinOrder(name, tuple(names[other] for other in probes), rate))
            continue
        probes = choose_partner_order(number, list(names), complete, linked)
        cost = probe_cost(complete[number], [complete[other] for other in probes]) * _SECOND
        values = complete[number].values if len(names) > 2 else None
        orders.append(JoinOrder(name, tuple(names[other] for other in probes), rate, values, cost))
    return orders


def estimate_rate(plan: ViewPlan, number: int, record: ViewInput) -> InputRate | None:
    """The catalog's statistics of a part, for the order of joins."""
    part = plan.parts[number]
    columns = {
        link.from_part(number).left_column
        for branch in plan.branches
        for link in branch.links
        if number in (link.left, link.right)
    }
    values = [record.distinct[column] for column in columns if column in record.distinct]
    if not record.span or not (values or len(plan.streams) == 2):
        return None
    arrivals = record.rows / record.span
    window = float(part.life) if part.life is not None else max(record.span, 1.0)
    return InputRate(arrivals, window, max(1.0, *values) if values else 1.0)


def update_statistics(
    record: ViewInput,
    state: InputState,
    interval: UpdateInterval,
    plan: ViewPlan,
    name: str,
    distinct: dict[int, dict[str, float]],
) -> ViewInput:
    """The statistics of an input after an update: its rate, and how many values its joined columns have."""
    new_rows = sum(s.rows for s in state.segments if record.slide is None or s.first_slide > record.slide)
    first = min((s.min_ts for s in state.segments), default=interval.now)
    span = interval.now - (first if interval.before is None else interval.before)
    value_counts = dict(record.distinct)
    for part in plan.streams:
        if part.name == name:
            for column, values in distinct.get(part.number, {}).items():
                value_counts[column] = max(values, _STATISTICS_DECAY * value_counts.get(column, 0.0))
    return replace(
        record,
        seen=state.ordinal,
        slide=state.slide,
        rows=_STATISTICS_DECAY * record.rows + new_rows,
        span=_STATISTICS_DECAY * record.span + max(1, span),
        distinct=value_counts,
    )

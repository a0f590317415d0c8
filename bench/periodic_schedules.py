"""The experiment of section 8.5 of [1] (docs/references.md): policies for 40 to 240 periodic queries.

Time is virtual, so that other programs do not decide which policy wins: a merge costs one unit, as in [1], or as long
as this machine needs for it. Slides come at a fixed interval.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windrow.queries.periodic.scheduler import (
    CONSERVATIVE,
    HYBRID,
    POLICIES,
    ScheduledQuery,
    ScheduledTask,
    Scheduler,
    SchedulingGroup,
)
from windrow.queries.synopses.cost_model import execution_cost

GROUPS = ("src", "dst", "src, dst", "proto", "port", "proto, port", "len by proto", "len")
COUNTS = (40, 80, 160, 240)
RATES = (1500, 3000)
DISTINCT = {"src": 1000, "dst": 1000, "proto": 100, "port": 100, "len": 1460}
"""Distinct values at the lower rate; twice as many at the higher one, as in [1]."""
FINISHING = 0.1
"""What finishing an answer costs, as a share of touching every counter of its window once: [1] does not say."""
FINISHINGS = (0.0, 0.05, FINISHING, 0.2)


@dataclass(frozen=True)
class Prices:
    """What one group's work costs.

    Args:
        slot: Merging one slot into a running answer.
        finish: Finishing one query's answer.
    """

    slot: float
    finish: float


@dataclass(frozen=True)
class Outcome:
    """What a policy reached."""

    throughput: float
    """Queries re-executed per slide."""
    latency: float
    """Slides by which re-executions came too late, on average."""
    tasks: int


def workload(count: int, seed: int = 8) -> list[SchedulingGroup]:
    """Eight groups of queries with windows of 20 to 100 slots and periods up to half of that."""
    chance = random.Random(seed)
    groups = []
    for name in GROUPS:
        members = []
        for number in range(count // len(GROUPS)):
            window = chance.randint(20, 100)
            members.append(ScheduledQuery(f"{name} {number}", window, chance.randint(1, window // 2)))
        groups.append(SchedulingGroup(tuple(members)))
    return groups


def counted(rate: int, finishing: float = FINISHING) -> list[Prices]:
    """Prices in counters that are touched: those of a slot, and a share of those of a whole window for finishing."""
    factor, prices = rate // RATES[0], []
    for name in GROUPS:
        domain = 1.0
        for column in name.replace(" by ", ", ").split(", "):
            domain *= DISTINCT[column] * factor
        of_slot = domain * (1 - (1 - 1 / domain) ** rate)
        of_window = domain * (1 - (1 - 1 / domain) ** (60 * rate))
        prices.append(Prices(of_slot, of_window * finishing))
    return prices


def priced(groups: Sequence[SchedulingGroup], prices: Sequence[Prices]) -> list[SchedulingGroup]:
    """Groups whose members carry what finishing costs in merges of a slot, for the cost model."""
    return [
        SchedulingGroup(
            tuple(
                ScheduledQuery(m.name, m.window, m.period, m.priority, price.finish / price.slot) for m in group.members
            )
        )
        for group, price in zip(groups, prices, strict=True)
    ]


def cost_of(tasks: Sequence[ScheduledTask], prices: Sequence[Prices]) -> float:
    """What a joint execution costs."""
    price = prices[tasks[0].group]
    members = [member for task in tasks for member in task.members]
    return price.slot * execution_cost("basic", [m.window for m in members]) + price.finish * len(members)


def simulate(
    policy: str, groups: Sequence[SchedulingGroup], prices: Sequence[Prices], interval: float, slides: int
) -> Outcome:
    """Execute for so many slides, one task after the other, never idle."""
    scheduler = Scheduler(policy, priced(groups, prices), early=True)
    last: dict[str, int] = {}
    periods = {member.name: member.period for group in groups for member in group.members}
    clock, executed, late, runs = 0.0, 0, 0.0, 0
    while clock < interval * slides:
        tasks = scheduler.next()
        clock += cost_of(tasks, prices)
        scheduler.slid(int(clock // interval) - scheduler.clock)
        scheduler.done(tasks)
        for member in (member for task in tasks for member in task.members):
            executed += 1
            if member.name in last:
                late += max(0, scheduler.clock - last[member.name] - periods[member.name])
                runs += 1
            last[member.name] = scheduler.clock
    for name, period in periods.items():  # whoever waits at the end has waited too
        waited = scheduler.clock - last.get(name, 0) - period
        if waited > 0:
            late, runs = late + waited, runs + 1
    return Outcome(executed / slides, late / max(1, runs), len(scheduler.tasks))


def interval_for(prices: Sequence[Prices]) -> float:
    """A slide's length at which 40 queries without sharing are just too many, as on the machine of [1]."""
    groups = workload(COUNTS[0])
    demand = 0.0
    for number, group in enumerate(groups):
        by_period: dict[int, list[ScheduledQuery]] = {}
        for member in group.members:
            by_period.setdefault(member.period, []).append(member)
        for period, members in by_period.items():
            demand += cost_of([ScheduledTask(number, tuple(members), period, 0)], prices) / period
    return demand / 1.2


def experiment(
    prices: Callable[[int], Sequence[Prices]], slides: int, advance: Callable[[str], None]
) -> dict[tuple[int, int], dict[str, Outcome]]:
    """All policies at both rates with 40 to 240 queries; the interval is the same for both rates."""
    interval, found = interval_for(prices(RATES[0])), {}
    for rate in RATES:
        for count in COUNTS:
            groups = workload(count)
            found[rate, count] = {
                policy: simulate(policy, groups, prices(rate), interval, slides) for policy in POLICIES
            }
            advance(f"{count} queries, {rate} rows a slide")
    return found


def gains(slides: int) -> dict[float, list[float]]:
    """Hybrid's throughput over conservative's at the lower rate, for each count, by what finishing costs."""
    factors = {}
    for finishing in FINISHINGS:
        prices = counted(RATES[0], finishing)
        interval, factors[finishing] = interval_for(prices), []
        for count in COUNTS:
            hybrid, conservative = (
                simulate(policy, workload(count), prices, interval, slides).throughput
                for policy in (HYBRID, CONSERVATIVE)
            )
            factors[finishing].append(hybrid / conservative)
    return factors

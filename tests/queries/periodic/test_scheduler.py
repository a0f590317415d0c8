"""Costs, aligned periods and the schedulers, on the worked example of seven queries and by counting by hand."""

import random
from itertools import pairwise

import pytest

import windrow
from windrow.queries.periodic.scheduler import (
    POLICIES,
    ScheduledQuery,
    ScheduledTask,
    Scheduler,
    SchedulingGroup,
    make_tasks,
    order_batches,
)
from windrow.queries.synopses.cost_model import (
    SubGroup,
    SynopsisLoad,
    align_periods,
    choose_kind,
    execution_cost,
    schedule_cost,
)

# Q1 … Q7: MAX over windows of one synopsis, in minutes.
SEVEN = (
    ScheduledQuery("Q1", 10, 2), ScheduledQuery("Q2", 5, 2), ScheduledQuery("Q3", 6, 2), ScheduledQuery("Q4", 15, 3), ScheduledQuery("Q5", 12, 3),
    ScheduledQuery("Q6", 20, 5), ScheduledQuery("Q7", 30, 5),
)  # fmt: skip
PARTS = (SubGroup(2, (10, 5, 6)), SubGroup(3, (15, 12)), SubGroup(5, (20, 30)))


def by_hand(periods: tuple[int, ...]) -> float:
    """Minute by minute: whoever is due is executed together, for the merges of the longest window."""
    longest, total = (9, 14, 29), 0
    for minute in range(1, 31):
        total += max((cost for cost, period in zip(longest, periods, strict=True) if minute % period == 0), default=0)
    return total / 30


@pytest.mark.parametrize(
    ("periods", "cost"),
    [((2, 2, 5), 11.4), ((2, 2, 2), 14.5), ((2, 3, 3), 12.67), ((2, 3, 2), 16.83)],
)  # fmt: skip
def test_the_worked_example_costs_what_is_printed(periods: tuple[int, ...], cost: float) -> None:
    assert round(schedule_cost("basic", PARTS, periods), 2) == cost
    assert schedule_cost("basic", PARTS, periods) == pytest.approx(by_hand(periods))


def test_the_first_printed_cost_has_one_execution_too_few() -> None:
    """Conservative: printed 11.63 = 349/30; by hand 358/30, one more execution of the first sub-group (cost 9)."""
    cost = schedule_cost("basic", PARTS, (2, 3, 5))
    assert cost == pytest.approx(by_hand((2, 3, 5))) == pytest.approx(358 / 30)
    assert round(cost - 9 / 30, 2) == 11.63


def test_two_sub_groups_cost_what_is_printed() -> None:
    assert round(schedule_cost("basic", PARTS[:2], (2, 3)), 2) == 7.67
    assert schedule_cost("basic", PARTS[:2], (2, 2)) == 7.0


def test_hybrid_aligns_the_second_sub_group_with_the_first() -> None:
    assert align_periods("basic", PARTS).periods == (2, 2, 5)
    assert [(task.period, len(task.members)) for task in make_tasks("hybrid", [SchedulingGroup(SEVEN)])] == [
        (2, 5),
        (5, 2),
    ]


def test_aligning_many_sub_groups_never_costs_more_than_leaving_them() -> None:
    chance = random.Random(3)
    parts = [SubGroup(chance.randint(1, 40), (chance.randint(20, 100),)) for _ in range(12)]
    periods = tuple(part.period for part in parts)
    actual = align_periods("basic", parts)
    assert actual.cost <= schedule_cost("basic", parts, periods)
    assert all(aligned <= period for aligned, period in zip(actual.periods, periods, strict=True))


def test_other_kinds_put_each_window_together_by_itself() -> None:
    assert execution_cost("basic", (5, 9, 30)) == 29
    assert execution_cost("running", (5, 9, 30, 30)) == 3
    assert execution_cost("interval", (8, 8)) == execution_cost("interval", (8,))


def test_kinds_follow_their_costs() -> None:
    """Many windows share one pass; one long window is put together from few nodes; late rows spoil running sums."""
    many = tuple((n, 1) for n in range(20, 100, 2))
    assert choose_kind(SynopsisLoad(100, 50, 1000, 0, many, True))[0] == "basic"
    assert choose_kind(SynopsisLoad(100, 50, 60, 0, ((100, 4),), False))[0] == "interval"
    assert choose_kind(SynopsisLoad(100, 50, 60, 0, ((100, 1), (80, 1)), True))[0] == "running"
    assert choose_kind(SynopsisLoad(100, 50, 60, 1, ((100, 4),), True))[0] != "running"


# -- schedules -------------------------------------------------------------------------------------------------------


def executions(policy: str, groups: list[SchedulingGroup], minutes: int) -> dict[str, list[int]]:
    """When each query is executed if there is time for everything."""
    scheduler = Scheduler(policy, groups)
    actual: dict[str, list[int]] = {member.name: [] for group in groups for member in group.members}
    for minute in range(1, minutes + 1):
        scheduler.slid()
        while tasks := scheduler.next():
            scheduler.done(tasks)
            for member in (member for task in tasks for member in task.members):
                actual[member.name].append(minute)
    return actual


@pytest.mark.parametrize("policy", POLICIES)
def test_without_overload_no_query_waits_longer_than_its_period(policy: str) -> None:
    actual = executions(policy, [SchedulingGroup(SEVEN)], 30)
    for member in SEVEN:
        gaps = [later - sooner for sooner, later in pairwise([0, *actual[member.name]])]
        assert max(gaps) <= member.period
    if policy in ("conservative", "no-sharing"):
        assert actual["Q6"] == [5, 10, 15, 20, 25, 30]
    if policy == "aggressive":
        assert actual["Q7"] == list(range(2, 31, 2))


def late(policy: str, behind: dict[int, int]) -> list[list[str]]:
    """What is executed, in which order, with sub-groups (by their period) late by so many slides."""
    names = {period: [m.name for m in SEVEN if m.period == period] for period in (2, 3, 5)}
    scheduler = Scheduler(policy, [SchedulingGroup(SEVEN)])
    for task in scheduler.tasks:
        task.deadline = -max(behind[member.period] for member in task.members)
    actual = []
    for _ in range(3):
        tasks = scheduler.next()
        actual.append(sorted(member.name for task in tasks for member in task.members))
        scheduler.done(tasks)
        if not tasks:
            break
    assert sorted(names[2] + names[3] + names[5]) == sorted(m.name for m in SEVEN)
    return [each for each in actual if each]


def test_late_queries_share_as_far_as_the_policy_lets_them() -> None:
    """The first sub-group is two slides late, the second one, the third is due just now."""
    behind = {2: 2, 3: 1, 5: 0}
    one, two, three = ["Q1", "Q2", "Q3"], ["Q4", "Q5"], ["Q6", "Q7"]
    assert late("conservative", behind) == [one, two, three]
    assert late("no-sharing", behind) == [one, two, three]
    assert late("hybrid+late", behind) == [one + two, three]
    assert late("hybrid+late-pending", behind) == [one + two + three]


def test_pending_queries_do_not_share_while_nothing_is_late() -> None:
    assert late("hybrid+late-pending", {2: 0, 3: 0, 5: -3}) == [["Q1", "Q2", "Q3", "Q4", "Q5"]]


def test_groups_are_never_mixed_and_priority_breaks_ties() -> None:
    groups = [
        SchedulingGroup((ScheduledQuery("low", 5, 1),)),
        SchedulingGroup((ScheduledQuery("high", 9, 1, priority=3),)),
    ]
    scheduler = Scheduler("conservative", groups)
    scheduler.slid()
    assert [task.members[0].name for task in scheduler.next()] == ["high"]
    assert order_batches("conservative", groups, {}) == [["high"], ["low"]]
    assert order_batches("conservative", groups, {"low": 1}) == [["low"], ["high"]]


def drawn_groups(chance: random.Random) -> list[SchedulingGroup]:
    """Up to five groups of up to five queries."""
    return [
        SchedulingGroup(
            tuple(
                ScheduledQuery(f"{group}.{number}", chance.randint(1, 20), chance.randint(1, 6), chance.choice((0, 1)))
                for number in range(chance.randint(1, 5))
            )
        )
        for group in range(chance.randint(1, 5))
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_batches_come_in_the_order_in_which_they_would_be_asked_for_one_by_one(policy: str) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        groups = drawn_groups(chance)
        late = {member.name: chance.choice((0, 0, 1, 3)) for group in groups for member in group.members}
        scheduler = Scheduler(policy, groups)
        if policy == "no-sharing":
            singles = [(t.group, m, t.period, t.deadline) for t in scheduler.tasks for m in t.members]
            scheduler.tasks = [ScheduledTask(group, (m,), period, deadline) for group, m, period, deadline in singles]
        for task in scheduler.tasks:
            task.deadline = -max(late[member.name] for member in task.members)
        batches = []
        while chosen := scheduler.next():
            batches.append([member.name for task in chosen for member in task.members])
            scheduler.tasks = [task for task in scheduler.tasks if not any(task is done for done in chosen)]
        assert order_batches(policy, groups, late) == batches, f"seed {seed}"


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(windrow.WindrowError, match="no scheduling policy 'eager'; choose one of no-sharing"):
        Scheduler("eager", [])

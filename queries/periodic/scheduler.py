"""When standing queries are executed, and which of them together: earliest deadline first over groups that share.

The scheduler only counts slides: the caller says when the synopses were updated, asks what to execute next, and says
when it is done. Deadlines are slides, so nothing is counted down.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.errors import DefinitionError
from windrow.queries.synopses.cost_model import SubGroup, align_periods
from windrow.queries.synopses.kinds import BASIC

NO_SHARING, AGGRESSIVE, CONSERVATIVE = "no-sharing", "aggressive", "conservative"
HYBRID, HYBRID_LATE, HYBRID_LATE_PENDING = "hybrid", "hybrid+late", "hybrid+late-pending"
POLICIES = (NO_SHARING, AGGRESSIVE, CONSERVATIVE, HYBRID, HYBRID_LATE, HYBRID_LATE_PENDING)


@dataclass(frozen=True)
class ScheduledQuery:
    """A query as the scheduler sees it."""

    name: str
    window: int
    """In slots."""
    period: int
    """In slides."""
    priority: int = 0
    finishing: float = 0.0
    """What finishing its answer costs, in merges."""


@dataclass(frozen=True)
class SchedulingGroup:
    """Queries that may be executed together."""

    members: tuple[ScheduledQuery, ...]
    kind: str = BASIC


@dataclass
class ScheduledTask:
    """Queries that are always executed together, and when next."""

    group: int
    members: tuple[ScheduledQuery, ...]
    period: int
    deadline: int
    """The slide by which they should be executed again."""

    @property
    def priority(self) -> int:
        """The highest of its members'."""
        return max(member.priority for member in self.members)


def check_policy(policy: str) -> None:
    """Refuse an unknown policy."""
    if policy not in POLICIES:
        raise DefinitionError(f"there is no scheduling policy {policy!r}; choose one of {', '.join(POLICIES)}")


def make_tasks(policy: str, groups: Sequence[SchedulingGroup], clock: int = 0) -> list[ScheduledTask]:
    """The tasks that a policy makes of groups; each is first due a period from now."""
    check_policy(policy)
    tasks = []
    for number, group in enumerate(groups):
        by_period: dict[int, list[ScheduledQuery]] = {}
        for member in group.members:
            by_period.setdefault(member.period, []).append(member)
        if policy == AGGRESSIVE:
            period = min(by_period)
            tasks.append(ScheduledTask(number, group.members, period, clock + period))
            continue
        parts = sorted(by_period.items())
        periods = tuple(period for period, _ in parts)
        if policy in (HYBRID, HYBRID_LATE, HYBRID_LATE_PENDING):
            periods = aligned_periods(group)
        merged: dict[int, list[ScheduledQuery]] = {}
        for (_, members), period in zip(parts, periods, strict=True):
            merged.setdefault(period, []).extend(members)
        tasks += [ScheduledTask(number, tuple(queries), period, clock + period) for period, queries in merged.items()]
    return tasks


def aligned_periods(group: SchedulingGroup) -> tuple[int, ...]:
    """The period of each sub-group, in the order of their own periods, under hybrid scheduling."""
    by_period: dict[int, list[ScheduledQuery]] = {}
    for member in group.members:
        by_period.setdefault(member.period, []).append(member)
    parts = [
        SubGroup(period, tuple(m.window for m in members), sum(m.finishing for m in members))
        for period, members in sorted(by_period.items())
    ]
    return align_periods(group.kind, parts).periods


class Scheduler:
    """Decides what is executed next.

    Args:
        policy: One of `POLICIES`.
        groups: Queries that may be executed together.
        clock: The slide that the synopses are of.
        early: Execute the next task also before it is due, when nothing else is; else wait for the next slide.
    """

    def __init__(self, policy: str, groups: Sequence[SchedulingGroup], clock: int = 0, *, early: bool = False) -> None:
        self.policy, self.clock, self.early = policy, clock, early
        self.tasks = make_tasks(policy, groups, clock)

    def slid(self, slides: int = 1) -> None:
        """The synopses were updated."""
        self.clock += slides

    def until_deadline(self, task: ScheduledTask) -> int:
        """How many slides are left; negative if it is late."""
        return task.deadline - self.clock

    def next(self) -> list[ScheduledTask]:
        """The tasks to execute now, together; none if nothing is due."""
        if not self.tasks:
            return []
        lowest = min(map(self.until_deadline, self.tasks))
        if lowest > 0 and not self.early:
            return []
        candidates = [task for task in self.tasks if self._may_join(task, lowest)]
        # The one that is chosen must itself be among the most urgent ones: late sharing only lets others join it.
        urgent = [task for task in candidates if self.until_deadline(task) == lowest]
        chosen = max(urgent, key=lambda task: task.priority)
        if self.policy == NO_SHARING:
            return [chosen]
        return [chosen, *(task for task in candidates if task is not chosen and task.group == chosen.group)]

    def order_all(self) -> list[list[ScheduledTask]]:
        """All that is due in the order of `next`, if no slide comes meanwhile and each task is executed once."""
        by_group: dict[int, list[ScheduledTask]] = {}
        for task in self.tasks:
            by_group.setdefault(task.group, []).append(task)
        ordered, chosen_ids = [], set[int]()
        for task in sorted(self.tasks, key=lambda task: (task.deadline, -task.priority)):
            lowest = self.until_deadline(task)
            if id(task) in chosen_ids or (lowest > 0 and not self.early):
                continue
            others = () if self.policy == NO_SHARING else by_group[task.group]
            together = [o for o in others if o is not task and id(o) not in chosen_ids and self._may_join(o, lowest)]
            ordered.append([task, *together])
            chosen_ids.update(map(id, ordered[-1]))
        return ordered

    def _may_join(self, task: ScheduledTask, lowest: int) -> bool:
        seconds = self.until_deadline(task)
        if self.policy == HYBRID_LATE and lowest < 0:
            return seconds < 0
        if self.policy == HYBRID_LATE_PENDING and lowest < 0:
            return seconds <= 0
        return seconds == lowest

    def done(self, tasks: Sequence[ScheduledTask]) -> None:
        """They were executed; the next deadline counts from now, also for what was late."""
        for task in tasks:
            task.deadline = self.clock + task.period


def order_batches(policy: str, groups: Sequence[SchedulingGroup], late: dict[str, int]) -> list[list[str]]:
    """Due queries in the order in which to answer them, those that go together in one batch.

    Args:
        policy: One of `POLICIES`.
        groups: Due queries that may be executed together.
        late: By how many slides each is past its deadline; 0 if it is due just now.
    """
    scheduler = Scheduler(policy, groups)
    if policy == NO_SHARING:  # queries of one period are one task there; here each is by itself
        scheduler.tasks = [
            ScheduledTask(t.group, (m,), t.period, t.deadline) for t in scheduler.tasks for m in t.members
        ]
    for task in scheduler.tasks:
        task.deadline = -max(late.get(member.name, 0) for member in task.members)
    return [[member.name for task in tasks for member in task.members] for tasks in scheduler.order_all()]

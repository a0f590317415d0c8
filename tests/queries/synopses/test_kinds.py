"""What slides change and what windows are made of, against a plain list of what came in each slot."""

import random
from collections import Counter

import pytest

from windrow.queries.synopses.kinds import (
    INTERVAL,
    KINDS,
    RUNNING,
    Node,
    NodeOperations,
    advance_nodes,
    cover_slots,
    interval_nodes_read,
    reaches_behind,
)


class Plain:
    """A synopsis of counts, kept by `advance`, beside the truth."""

    def __init__(self, kind: str, slots: int) -> None:
        self.kind, self.slots = kind, slots
        self.nodes: dict[Node, Counter[str]] = {}
        self.truth: dict[int, Counter[str]] = {}
        self.slide: int | None = None
        self.read: set[Node] = set()
        self.rebased = -(10**9)

    def move(self, slide: int, came: dict[int, Counter[str]]) -> None:
        for slot, counts in came.items():
            self.truth[slot] = self.truth.get(slot, Counter()) + counts
        rebase = self.kind == RUNNING and slide - self.rebased >= self.slots
        ahead = [
            node.right
            for node in self.nodes
            if node.level == 0 and node.right > (slide if self.slide is None else self.slide)
        ]
        earlier = self.nodes
        if self.kind == INTERVAL:  # a slide sees no other nodes than those that it says it reads
            self.read = interval_nodes_read(self.slots, self.slide, came, ahead)
            earlier = {node: value for node, value in self.nodes.items() if node in self.read}
        work = NodeOperations(earlier.get, lambda parts: sum(parts, Counter()), lambda a, b: (a - b) or None)
        changed = advance_nodes(self.kind, self.slots, self.slide, slide, came, work, ahead=ahead, rebase=rebase)
        self.nodes |= {node: value for node, value in changed.items() if value is not None}
        for node in [n for n in self.nodes if reaches_behind(n, slide - self.slots) or changed.get(n, True) is None]:
            del self.nodes[node]
        self.slide, self.rebased = slide, slide - self.slots if rebase else self.rebased

    def check(self) -> None:
        assert self.slide is not None
        for n in range(1, self.slots + 1):
            total: Counter[str] = Counter()
            for node, sign in cover_slots(self.kind, self.slots, self.slide - n, self.slide):
                for name, count in self.nodes.get(node, Counter()).items():
                    total[name] += sign * count
            right = sum((self.truth.get(s, Counter()) for s in range(self.slide - n + 1, self.slide + 1)), Counter())
            assert {k: v for k, v in total.items() if v} == dict(right), (self.kind, self.slots, n)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_every_window_at_every_slide_is_what_came_in_its_slots(kind: str, seed: int) -> None:
    chance = random.Random(seed)
    plain = Plain(kind, chance.choice((1, 2, 3, 5, 8, 13, 16)))
    slide = chance.randint(-5, 5)
    for _ in range(40):
        slide += chance.choice((1, 1, 1, 1, 2, 3, 3 * plain.slots))
        late_and_ahead = [slide, slide, slide - chance.randint(0, plain.slots + 2), slide + chance.randint(1, 3)]
        came = {s: Counter(chance.choices("abc", k=2)) for s in late_and_ahead if chance.random() < 0.6}
        plain.move(slide, came)
        plain.check()


@pytest.mark.parametrize("slots", [8, 16, 32, 64])
def test_sizes_are_those_of_the_design(slots: int) -> None:
    """At most 2b-1 nodes of an interval synopsis and 2·log2(b)-2 for a window; b+1 prefixes of a running one."""
    most = dict.fromkeys(KINDS, 0)
    for kind in KINDS:
        plain = Plain(kind, slots)
        for slide in range(1, 3 * slots):
            plain.move(slide, {slide: Counter("a")})
            most[kind] = max(most[kind], len(plain.nodes))
            if kind == "interval" and slide >= slots:
                widest = max(len(cover_slots(kind, slots, slide - n, slide)) for n in range(1, slots + 1))
                assert widest <= 2 * (slots.bit_length() - 1) - 2
    assert most["basic"] == slots
    assert most["interval"] <= 2 * slots - 1
    assert most["running"] <= slots + 1


@pytest.mark.parametrize("slots", [3600, 30 * 86400])
def test_what_a_slide_reads_follows_the_slots_it_takes_in(slots: int) -> None:
    """Every node of the window was visited at each slide: 472 ms for ten rows where a week has slots of a second."""
    plain = Plain(INTERVAL, slots)
    for slide in range(1, 200):
        plain.move(slide, {slide: Counter("a")})
        assert len(plain.read) <= 2 * 3 * slots.bit_length() + 1

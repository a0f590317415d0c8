"""The three kinds of synopsis as pure arithmetic on slots: what a slide changes, and what a window is made of.

    basic       ├─┼─┼─┼─┼─┼─┼─┼─┤        one node for each slot; a window of n slots is n nodes
    interval    ├─┼─┼─┼─┼─┼─┼─┼─┤        and one for each aligned pair, four, eight …;
                ├───┼───┼───┼───┤        a window is about 2·log2(n) nodes
                ├───────┼───────┤
    running     ├────────────────►       all slots up to one; a window is one prefix minus another

The values of nodes are opaque here: they are only merged and subtracted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

BASIC, INTERVAL, RUNNING = "basic", "interval", "running"
KINDS = (BASIC, INTERVAL, RUNNING)
_PREFIX_LEVEL = -1

T = TypeVar("T")


class Node(NamedTuple):
    """Slots whose states are kept together."""

    level: int
    """It holds 2 to the `level` slots; -1: all slots up to `left`."""
    left: int
    """The slot before its first one."""

    @property
    def right(self) -> int:
        """Its last slot."""
        return self.left if self.level == _PREFIX_LEVEL else self.left + (1 << self.level)


def slot_node(slot: int) -> Node:
    """The node of one slot."""
    return Node(0, slot - 1)


def prefix_node(slot: int) -> Node:
    """The node of everything up to a slot."""
    return Node(_PREFIX_LEVEL, slot)


def levels(kind: str, slots: int) -> range:
    """The levels that nodes of a synopsis can have, those of slots that wait for the clock among them."""
    return range(_PREFIX_LEVEL, 1) if kind == RUNNING else range(1 if kind == BASIC else slots.bit_length())


def cover_slots(kind: str, slots: int, after: int, upto: int) -> list[tuple[Node, int]]:
    """The nodes that make up the slots (after, upto], each with its sign; youngest first.

    Args:
        kind: Of the synopsis.
        slots: How far it reaches back.
        after: The slot before the window.
        upto: Its last slot.
    """
    if kind == RUNNING:
        return [(prefix_node(upto), 1), (prefix_node(after), -1)]
    if kind == BASIC:
        return [(slot_node(slot), 1) for slot in range(upto, after, -1)]
    nodes, start, top_level = [], after, slots.bit_length() - 1
    while start < upto:
        level = next(k for k in range(top_level, -1, -1) if start % (1 << k) == 0 and start + (1 << k) <= upto)
        nodes.append((Node(level, start), 1))
        start += 1 << level
    return nodes[::-1]


@dataclass(frozen=True)
class NodeOperations(Generic[T]):
    """How to work on what lies in nodes.

    Args:
        fetch: What lies in a node, None for nothing.
        merge: One of several.
        subtract: The first without the second.
    """

    fetch: Callable[[Node], T | None]
    merge: Callable[[list[T]], T]
    subtract: Callable[[T, T], T | None]


def advance_nodes(
    kind: str,
    slots: int,
    previous: int | None,
    slide: int,
    new_values: Mapping[int, T],
    operations: NodeOperations[T],
    *,
    ahead: Iterable[int] = (),
    rebase: bool = False,
) -> dict[Node, T | None]:
    """What a slide changes: nodes with what lies in them now, None where nothing is left.

    Nodes that reach back behind the synopsis are not in the answer; whoever keeps them drops them by `reaches_behind`.

    Args:
        kind: Of the synopsis.
        slots: How far it reaches back.
        previous: The slide before, None if nothing is kept yet.
        slide: The slide.
        new_values: What came in, by event slot; slots after the slide's wait for the clock.
        operations: On what lies in nodes.
        ahead: Slots after `previous` in which something is kept already.
        rebase: Count running sums anew from the oldest slot.
    """
    floor = slide - slots
    recent = {slot: value for slot, value in new_values.items() if slot > floor}
    change = _NodeChanges(operations)
    if kind == RUNNING:
        _advance_running(change, slots, previous, slide, recent, rebase=rebase)
        return change.changed
    for slot, value in recent.items():
        change.add(slot_node(slot), [value])
    if kind == INTERVAL:
        for level in range(1, slots.bit_length()):
            _advance_level(change, level, floor, previous, slide, recent, ahead)
    return change.changed


def reaches_behind(node: Node, floor: int) -> bool:
    """Whether a node reaches back behind the slots after `floor`."""
    return node.left < floor


class _NodeChanges(Generic[T]):
    """Nodes as a slide changes them."""

    def __init__(self, operations: NodeOperations[T]) -> None:
        self.operations = operations
        self.changed: dict[Node, T | None] = {}

    def get(self, node: Node) -> T | None:
        return self.changed[node] if node in self.changed else self.operations.fetch(node)

    def add(self, node: Node, values: Iterable[T]) -> None:
        old = self.get(node)
        parts = [*([] if old is None else [old]), *values]
        if parts:
            self.changed[node] = parts[0] if len(parts) == 1 else self.operations.merge(parts)

    def build(self, node: Node, parts: Iterable[T | None]) -> None:
        present = [part for part in parts if part is not None]
        if present:
            self.changed[node] = present[0] if len(present) == 1 else self.operations.merge(present)


def _advance_level(
    change: _NodeChanges[T],
    level: int,
    floor: int,
    previous: int | None,
    slide: int,
    new_values: Mapping[int, T],
    ahead: Iterable[int],
) -> None:
    """Nodes of a level that are full now are made of their halves; full ones take in what came late."""
    size = 1 << level
    touched: dict[int, list[T]] = {_left_of(slot, size): [] for slot in _touched_slots(previous, new_values, ahead)}
    for slot, value in new_values.items():
        touched[_left_of(slot, size)].append(value)
    for first, late in touched.items():
        node = Node(level, first)
        if first < floor or node.right > slide:
            continue
        if previous is None or node.right > previous:
            change.build(node, [change.get(Node(level - 1, first)), change.get(Node(level - 1, first + size // 2))])
        elif late:
            change.add(node, late)


def _left_of(slot: int, size: int) -> int:
    """The slot before the aligned run of so many slots that a slot belongs to."""
    return (slot - 1) // size * size


def _touched_slots(previous: int | None, new_slots: Iterable[int], ahead: Iterable[int]) -> set[int]:
    """A slot of every interval node that a slide changes; all other nodes hold what they held, or nothing."""
    return {*new_slots, *ahead, *(() if previous is None else (previous,))}


def interval_nodes_read(slots: int, previous: int | None, new_slots: Iterable[int], ahead: Iterable[int]) -> set[Node]:
    """The nodes of an interval synopsis that a slide looks at: a few for each slot that it takes in and each level."""
    nodes = {slot_node(slot) for slot in new_slots}
    for slot in _touched_slots(previous, new_slots, ahead):
        for level in range(1, slots.bit_length()):
            first, half = _left_of(slot, 1 << level), 1 << (level - 1)
            nodes |= {Node(level, first), Node(level - 1, first), Node(level - 1, first + half)}
    return nodes


def _advance_running(
    change: _NodeChanges[T], slots: int, previous: int | None, slide: int, new_values: Mapping[int, T], *, rebase: bool
) -> None:
    """Every prefix from the oldest slot on; what came late is in all prefixes from its slot on."""
    floor = slide - slots
    first_slot = floor if previous is None or previous < floor else previous
    for slot in (slot for slot in new_values if slot > slide):
        change.add(slot_node(slot), [new_values[slot]])
    late = sorted(slot for slot in new_values if slot <= first_slot)
    if late:
        for end in range(late[0], first_slot + 1):
            change.add(prefix_node(end), [new_values[slot] for slot in late if slot <= end])
    last = change.get(prefix_node(first_slot))
    for end in range(first_slot + 1, slide + 1):
        stored_ahead = change.operations.fetch(slot_node(end))
        parts = [last, stored_ahead, new_values.get(end)]
        change.build(prefix_node(end), parts)
        if stored_ahead is not None:
            change.changed[slot_node(end)] = None
        last = change.changed.get(prefix_node(end))
    if rebase:
        base = change.get(prefix_node(floor))
        for end in range(floor, slide + 1):
            value = change.get(prefix_node(end))
            if base is not None and value is not None:
                change.changed[prefix_node(end)] = change.operations.subtract(value, base)

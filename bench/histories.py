"""Histories of sub-window reads and window movements in the notation of [1] (docs/references.md), and their isolation.

``rQ1[0] w5[0] c5 …``: query Q1 reads sub-window 0, movement 5 replaces it and commits. Serialization graphs say
which of the isolation levels of section 7.3 such a history has.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_OPERATION = re.compile(r"([rwca])(Q\w+|\d+)(?:\[(\d+)\])?$")


@dataclass(frozen=True)
class Operation:
    """A read, write, commit or abort (``r w c a``) of a transaction: a query (Q…) or a movement (a number)."""

    kind: str
    who: str
    item: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}{self.who}" + ("" if self.item is None else f"[{self.item}]")


History = tuple[Operation, ...]
Edge = tuple[str, str]


def parse(text: str) -> History:
    """A history out of its notation."""
    operations = []
    for word in text.split():
        match = _OPERATION.match(word)
        if match is None:
            raise ValueError(f"{word!r} is not an operation such as rQ1[0], w5[0], c5 or aQ1")
        operations.append(Operation(match[1], match[2], None if match[3] is None else int(match[3])))
    return tuple(operations)


def edges(history: Iterable[Operation]) -> set[Edge]:
    """The serialization graph of what was not aborted: who comes before whom, because they touch one sub-window."""
    done = _lasting(history)
    return {
        (one.who, other.who)
        for position, one in enumerate(done)
        for other in done[position + 1 :]
        if one.item is not None and one.item == other.item and one.who != other.who and "w" in (one.kind, other.kind)
    }


def is_serializable(history: Iterable[Operation]) -> bool:
    """Whether the graph has no cycle."""
    left = edges(history)
    while left:
        free = {one for one, _ in left} - {other for _, other in left}
        if not free:
            return False
        left = {edge for edge in left if edge[0] not in free}
    return True


def is_window_serializable(history: Iterable[Operation]) -> bool:
    """Theorem 7.1: each query comes after the movements up to some number, and before all later ones."""
    graph = edges(history)
    for query in _queries(history):
        before = [int(one) for one, other in graph if other == query and _moves(one)]
        after = [int(other) for one, other in graph if one == query and _moves(other)]
        if before and after and max(before) > min(after):
            return False
    return is_serializable(history)


def is_latest_window_serializable(history: Iterable[Operation]) -> bool:
    """Theorem 7.2: each query comes after all movements that happened while it ran."""
    done = _lasting(history)
    graph = edges(done)
    for query in _queries(done):
        places = [position for position, operation in enumerate(done) if operation.who == query]
        meanwhile = {operation.who for operation in done[places[0] : places[-1]] if operation.kind == "w"}
        if any((query, movement) in graph for movement in meanwhile):
            return False
    return is_window_serializable(done)


def is_commit_order_preserving(history: Iterable[Operation]) -> bool:
    """Section 7.6: whoever comes before another also commits before it."""
    done = _lasting(history)
    commits = {operation.who: position for position, operation in enumerate(done) if operation.kind == "c"}
    return all(commits[one] < commits[other] for one, other in edges(done) if one in commits and other in commits)


def state_read(history: Iterable[Operation], query: str, count: int) -> int | None:
    """Figure 7.5: the last movement that a query saw, None if it read what never was a window of `count` parts."""
    done = _lasting(history)
    first = min(int(operation.who) for operation in done if operation.kind == "w")
    versions = {number % count: number for number in range(first - count, first)}
    seen = []
    for operation in done:
        if operation.kind == "w" and operation.item is not None:
            versions[operation.item] = int(operation.who)
        elif operation.kind == "r" and operation.who == query and operation.item is not None:
            seen.append(versions[operation.item])
    return max(seen) if sorted(seen) == list(range(max(seen) - count + 1, max(seen) + 1)) else None


def _lasting(history: Iterable[Operation]) -> History:
    """The history without what was aborted."""
    operations = tuple(history)
    aborted = {operation.who for operation in operations if operation.kind == "a"}
    return tuple(operation for operation in operations if operation.who not in aborted)


def _queries(history: Iterable[Operation]) -> list[str]:
    return sorted({operation.who for operation in _lasting(history) if operation.kind == "r"})


def _moves(who: str) -> bool:
    return who.isdigit()

"""Joins of streams as a chain: what new rows of one are compared with in each of the others, and what is carried along.

Columns that a result has equal are compared with the first of them that is reached, which from then on stands for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.queries.views.plan import Branch

Place = tuple[int, str]
"""A part, by number, and a column of it."""


@dataclass(frozen=True)
class Step:
    """A stream in which partners are looked for.

    Args:
        number: Of the part.
        keys: Columns that were reached before, and for each the column of this stream that must equal it.
        kept: What was reached before and is needed later.
        taken: The columns of this stream that are.
    """

    number: int
    keys: tuple[tuple[Place, str], ...]
    kept: tuple[Place, ...]
    taken: tuple[str, ...]


@dataclass(frozen=True)
class Chain:
    """The way of new rows through all streams.

    Args:
        taken: The columns of the new rows that are needed.
        steps: The other streams.
        sources: Where the columns of a result come from.
    """

    taken: tuple[str, ...]
    steps: tuple[Step, ...]
    sources: tuple[Place, ...]


def equal_columns(branch: Branch) -> list[frozenset[Place]]:
    """The joined columns, those together that every result has equal."""
    found: list[frozenset[Place]] = []
    for link in branch.links:
        own = frozenset([(link.left, link.left_column), (link.right, link.right_column)])
        touched = [each for each in found if each & own]
        found = [each for each in found if not each & own] + [own.union(*touched)]
    return found


def are_linked(equal: Sequence[frozenset[Place]], number: int, reached: set[int]) -> bool:
    """Whether a part must have a column equal with one that was reached."""
    parts = ({owner for owner, _ in own} for own in equal)
    return any(number in own and own & reached for own in parts)


def can_chain(branch: Branch) -> bool:
    """Whether each stream can be reached from each other one, and none is compared with itself."""
    equal, numbers = equal_columns(branch), [part.number for part in branch.streams]
    reached = {numbers[0]}
    for _ in numbers:
        reached |= {number for number in numbers if are_linked(equal, number, reached)}
    alone = all(len({number for number, _ in own}) == len(own) for own in equal)
    return alone and reached == set(numbers)


def chain(seed: int, order: Sequence[int], equal: Sequence[frozenset[Place]], wanted: Sequence[Place]) -> Chain:
    """The way from new rows of a part through others in a given order.

    Args:
        seed: The part with the new rows.
        order: The others.
        equal: As `equal_columns` gives them.
        wanted: The columns of a result.
    """
    turns = {number: turn for turn, number in enumerate((seed, *order))}
    first = {place: min(own, key=lambda each: turns[each[0]]) for own in equal for place in own}
    sources = tuple(first.get(place, place) for place in wanted)
    keys = [
        tuple((first[place], place[1]) for place in sorted(first) if place[0] == number and first[place] != place)
        for number in order
    ]
    steps = []
    for turn, number in enumerate(order):
        later = {*sources, *(place for own in keys[turn + 1 :] for place, _ in own)}
        kept = tuple(sorted(place for place in later if turns[place[0]] <= turn))
        steps.append(Step(number, keys[turn], kept, _of(number, later)))
    return Chain(_of(seed, {*sources, *(place for own in keys for place, _ in own)}), tuple(steps), sources)


def _of(number: int, places: set[Place]) -> tuple[str, ...]:
    return tuple(sorted(column for owner, column in places if owner == number))

"""Covers by predicates: which synopses with narrower or wider conditions add up to the rows of a query (rule SS4).

Conditions are disjunctions of ``column operator constant``. Where rows must not count twice, the terms of a cover must
be disjoint; that is concluded only where the constants have exactly the column's type.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import combinations, pairwise
from typing import Any

import pyarrow as pa

Term = tuple[str, str, str, str]
"""Column, operator, kind of constant, constant."""
MAX_COVER = 3
"""Synopses that a cover may be made of: each must be read for every answer."""
DUPLICATE_INSENSITIVE = {"min", "max", "bool_and", "bool_or", "bit_and", "bit_or"}
"""Merges to which the same row twice makes no difference."""
_EXACT_FLOAT = 1 << 53


def literal_reader(schema: pa.Schema) -> Callable[[Term], Any]:
    """How to read the constants of terms over a schema: as values that compare as DuckDB compares; None if unsure."""
    types = {field.name.lower(): field.type for field in schema}

    def read(term: Term) -> Any:
        column, _, kind, text = term
        column_type = types.get(column)
        if column_type is None:
            return None
        if kind == "STRING":
            return text.encode() if pa.types.is_string(column_type) or pa.types.is_large_string(column_type) else None
        if kind == "INTEGER" and pa.types.is_integer(column_type):
            return Decimal(text)
        if kind in ("INTEGER", "NUMERIC") and pa.types.is_decimal(column_type):
            return Decimal(text)
        if kind == "INTEGER" and pa.types.is_floating(column_type) and abs(int(text)) < _EXACT_FLOAT:
            return Decimal(text)
        return None

    return read


_Interval = tuple[tuple[Any, bool] | None, tuple[Any, bool] | None]
"""Lower and upper end, each with whether it belongs to it; None: no end."""


def _intervals(operator: str, value: Any) -> list[_Interval]:
    if operator == "=":
        return [((value, True), (value, True))]
    if operator == "<>":
        return [(None, (value, False)), ((value, False), None)]
    if operator in ("<", "<="):
        return [(None, (value, operator == "<="))]
    return [((value, operator == ">="), None)]


def _intersect(one: _Interval, other: _Interval) -> bool:
    for (low, _), (_, high) in ((one, other), (other, one)):
        if low is None or high is None:
            continue
        if low[0] > high[0] or (low[0] == high[0] and not (low[1] and high[1])):
            return False
    return True


def are_all_disjoint(terms: Sequence[Term], read: Callable[[Term], Any]) -> bool:
    """Whether each row satisfies at most one of the terms: sorted by where they begin, neighbours must not meet."""
    if len(terms) < 2:
        return True
    values = [read(term) for term in terms]
    if (
        len({term[0] for term in terms}) > 1
        or len({isinstance(value, bytes) for value in values}) > 1
        or None in values
    ):
        return False
    intervals = [each for term, value in zip(terms, values, strict=True) for each in _intervals(term[1], value)]
    intervals.sort(key=lambda each: (0,) if each[0] is None else (1, each[0][0], not each[0][1]))
    return not any(_intersect(one, other) for one, other in pairwise(intervals))


def find_cover(
    wanted: Sequence[Term],
    candidates: Mapping[int, Sequence[Term]],
    merges: Sequence[str],
    *,
    subtractable: bool,
    read: Callable[[Term], Any],
) -> list[tuple[int, int]] | None:
    """Candidates, each with its sign, that together give the rows of `wanted`; None if there are none.

    Args:
        wanted: Terms of the query.
        candidates: Terms of each synopsis that keeps the same groups and columns.
        merges: How the columns are merged.
        subtractable: Whether rows can be taken out again.
        read: Reads constants.
    """
    if not wanted:
        return None
    sensitive = not set(merges) <= DUPLICATE_INSENSITIVE
    usable = {number: tuple(terms) for number, terms in candidates.items() if terms}
    cover = _smallest_cover(tuple(wanted), usable, sensitive, read)
    if cover is not None:
        return [(number, 1) for number in cover]
    if not subtractable:
        return None
    for number, terms in usable.items():
        if not set(wanted) < set(terms) or not are_all_disjoint(terms, read):
            continue
        rest = tuple(term for term in terms if term not in set(wanted))
        others = {other_number: t for other_number, t in usable.items() if other_number != number}
        less = _smallest_cover(rest, others, True, read)
        if less is not None and len(less) < MAX_COVER:
            return [(number, 1), *((other_number, -1) for other_number in less)]
    return None


def _smallest_cover(
    wanted: tuple[Term, ...], usable: Mapping[int, tuple[Term, ...]], sensitive: bool, read: Callable[[Term], Any]
) -> tuple[int, ...] | None:
    """The fewest candidates whose terms together are exactly the wanted ones."""
    fitting = {number: terms for number, terms in usable.items() if set(terms) <= set(wanted)}
    if sensitive and not are_all_disjoint(wanted, read):
        return None
    for count in range(1, MAX_COVER + 1):
        for chosen in combinations(sorted(fitting), count):
            terms = [term for number in chosen for term in fitting[number]]
            if set(terms) == set(wanted) and (not sensitive or len(terms) == len(set(terms))):
                return chosen
    return None

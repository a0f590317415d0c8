"""Spark's logical plans, read operator by operator in the JVM."""

import re
from collections.abc import Iterator
from typing import Any

_NUMBER = re.compile(r"#(\d+)L?(?=[,})]|$)")
"""Of an attribute, as Spark writes it."""
_ATTRIBUTE = re.compile(r"(\w+)#(\d+)L?")
_ATTRIBUTES = re.compile(r"\w+\(((?:\w+#\d+L?(?:, )?)*)\)")
"""A sequence of attributes whose names are words."""


_WITHOUT_INPUT = ("LogicalRelation", "LocalRelation", "OneRowRelation", "UnresolvedRelation")
"""Operators that read, and have neither inputs nor subqueries: nothing is asked of the JVM about them."""


def find_kind(node: Any) -> str:
    """The name of an operator's or expression's class."""
    name: str = node.nodeName()
    return name


def find_numbers(attributes: Any) -> set[int]:
    """The numbers of a set or sequence of attributes, by one call into the JVM; a strange name may add others."""
    return {int(number) for number in _NUMBER.findall(attributes.toString())}


def find_names(attributes: Any) -> dict[int, str]:
    """The names of a sequence of attributes by their numbers, by one call into the JVM if the names are usual ones."""
    text: str = attributes.toString()
    written = _ATTRIBUTES.fullmatch(text)
    if written is None:
        return {attribute.exprId().id(): attribute.name() for attribute in list_items(attributes)}
    return {int(number): name for name, number in _ATTRIBUTE.findall(written[1])}


def list_items(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala."""
    return [sequence.apply(number) for number in range(sequence.size())]


def walk_with_kinds(plan: Any) -> Iterator[tuple[Any, str, Any]]:
    """All operators, each with the name of its class and the condition of the filter right above it, or None."""
    has_subqueries = bool(plan.subqueriesAll().size())
    pending: list[tuple[Any, Any]] = [(plan, None)]
    while pending:
        node, condition = pending.pop()
        kind = find_kind(node)
        yield node, kind, condition
        if kind not in _WITHOUT_INPUT:
            below = node.condition() if kind == "Filter" else None
            pending += [(child, below) for child in list_items(node.children())]
            if has_subqueries:
                pending += [(inner, None) for inner in list_items(node.subqueries())]


def split_condition(condition: Any) -> Iterator[Any]:
    """The conditions that must all hold for one to hold."""
    if find_kind(condition) == "And":
        yield from split_condition(condition.left())
        yield from split_condition(condition.right())
    else:
        yield condition

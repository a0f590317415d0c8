"""Spark's logical plans, read operator by operator in the JVM."""

from collections.abc import Iterator
from typing import Any


def find_kind(node: Any) -> str:
    """The name of an operator's or expression's class."""
    name: str = node.getClass().getSimpleName()
    return name


def list_items(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala."""
    return [sequence.apply(number) for number in range(sequence.size())]


def walk(plan: Any) -> Iterator[Any]:
    """All operators of a plan, and of the subqueries in its expressions."""
    for node, _ in walk_with_conditions(plan):
        yield node


def walk_with_conditions(plan: Any) -> Iterator[tuple[Any, Any]]:
    """All operators, each with the condition of the filter right above it, or None."""
    pending: list[tuple[Any, Any]] = [(plan, None)]
    while pending:
        node, condition = pending.pop()
        yield node, condition
        below = node.condition() if find_kind(node) == "Filter" else None
        pending += [(child, below) for child in list_items(node.children())]
        pending += [(inner, None) for inner in list_items(node.subqueries())]


def split_condition(condition: Any) -> Iterator[Any]:
    """The conditions that must all hold for one to hold."""
    if find_kind(condition) == "And":
        yield from split_condition(condition.left())
        yield from split_condition(condition.right())
    else:
        yield condition

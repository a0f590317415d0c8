"""What a statement's text says of itself, found once for all statements of its template; planner and execution ask it.

The columns that it may read are more than it does, never less; names that it compares come from tokens only, so they
may err: nothing but the advisor's counts depends on them. The hidden column ``_seq`` of ordered queries numbers a
stream's rows by (time, arrival); a statement that names it can use it like a column, ``SELECT *`` never shows it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from windrow.indexes.row_model import SEQ
from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Statement, cached_per_template
from windrow.queries.sql.volatility import has_volatile_constant

SEQUENCE_TYPE = pa.decimal128(38, 0)
"""The sequence is a 128-bit integer, time above and arrival below; DuckDB's planner sees it as this type."""
_COMPARISONS = frozenset(("=", "==", "<", ">", "<=", ">=", "in", "between"))
_SIDES = ("left", "right")
_CONDITIONS = ("where_clause", "having", "qualify", "condition")


@dataclass(frozen=True)
class StatementAnalysis:
    """All names are in lower case."""

    read: frozenset[str] | None
    """Names of columns that it may read, among others; None if it may read columns that it does not name."""
    restricted: frozenset[str] | None
    """Names that conditions compare with something else than a column, or with one of these; None: maybe any."""
    compared: frozenset[str]
    """Names that stand right before a comparison."""
    uses_sequence: bool
    """Whether it names the hidden sequence."""
    shows_sequence: bool
    """Whether a select list whose rows become rows of the answer names it."""
    has_pivot: bool
    """Whether DuckDB runs it as several statements."""
    is_volatile: bool
    """Whether DuckDB's planner may turn something in it into a constant that depends on when it is run."""

    def columns_read(self, names: Sequence[str]) -> list[str]:
        """Those of a relation's columns that it may read."""
        return [name for name in names if self.read is None or name.lower() in self.read]

    def columns_compared(self, names: Sequence[str]) -> list[str]:
        """Those of a relation's columns that it compares."""
        return [name for name in names if name.lower() in self.compared]

    def may_restrict(self, names: Iterable[str]) -> bool:
        """Whether conditions may say which values of one of these columns count."""
        return self.restricted is None or any(name.lower() in self.restricted for name in names)

    def hidden_columns(self, names: Sequence[str]) -> list[int]:
        """Which columns of the answer show the sequence only because of a star."""
        if not self.uses_sequence or self.shows_sequence:
            return []
        return [index for index, name in enumerate(names) if name.lower() == SEQ]


@cached_per_template
def analyse(statement: Statement) -> StatementAnalysis:
    """What is known of a statement and all others of its template."""
    tokens = statement.source.tokens
    return StatementAnalysis(
        _find_read_names(statement),
        _find_restricted_names(statement),
        frozenset(
            token.name.lower()
            for token, following in pairwise(tokens)
            if token.is_name and (following.text in _COMPARISONS or following.word in _COMPARISONS)
        ),
        any(token.is_name and token.name.lower() == SEQ for token in tokens),
        _selects_sequence(statement.tree),
        any("pivot" in token.word for token in tokens),
        has_volatile_constant(statement),
    )


def _find_read_names(statement: Statement) -> frozenset[str] | None:
    names, single, relations = set[str](), set[str](), set[str]()
    for visit in parse_tree.walk(statement.tree):
        node = visit.node
        kind = node.get("class") or node.get("type")
        if kind in ("STAR", "POSITIONAL_REFERENCE", "PIVOT", "SHOW_REF") or node.get("ref_type") == "NATURAL":
            return None
        if node.get("column_name_alias"):
            return None
        if "class" not in node:
            relations.update(str(node.get(word) or "").lower() for word in ("alias", "table_name"))
        if kind == "COLUMN_REF" and len(node["column_names"]) == 1:
            single.add(node["column_names"][0].lower())
        names.update(_find_texts([*node.values(), *(node.get("literal") or {}).values()]))
    return None if single & relations else frozenset(names)  # a relation's name as a value is the whole row


def _find_texts(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value.lower()
        elif isinstance(value, list):
            yield from _find_texts(item for item in value if isinstance(item, str | list))


def _find_restricted_names(statement: Statement) -> frozenset[str] | None:
    """DuckDB concludes from ``a = b AND b > 5`` that ``a > 5``, so what a restricted name equals is restricted too."""
    restricted, equal = set[str](), list[tuple[str, str]]()
    for visit in parse_tree.walk(statement.tree):
        if visit.node.get("ref_type") == "NATURAL":
            return None
        pending = [condition for condition in map(visit.node.get, _CONDITIONS) if condition]
        while pending:
            node = pending.pop()
            if node.get("class") == "CONJUNCTION":
                pending += node["children"]
            elif node.get("class") == "COMPARISON" and all(node[side].get("class") == "COLUMN_REF" for side in _SIDES):
                left, right = (node[side]["column_names"][-1].lower() for side in _SIDES)
                equal.append((left, right))
            elif node.get("type") == "OPERATOR_NOT":
                pending += node["children"]
            elif _may_restrict(node):
                restricted.update(_find_columns(node))
    grown = True
    while grown:
        implied = {name for pair in equal if not restricted.isdisjoint(pair) for name in pair} - restricted
        restricted |= implied
        grown = bool(implied)
    return frozenset(restricted)


def _may_restrict(condition: parse_tree.Node) -> bool:
    """Not if it compares columns or leaves nearly all rows; conditions inside a query are looked at by themselves."""
    if condition.get("class") != "COMPARISON":
        return condition.get("class") != "SUBQUERY"
    columns = {tuple(v.node["column_names"]) for v in parse_tree.walk(condition) if v.node.get("column_names")}
    return len(columns) == 1 and condition["type"] != "COMPARE_NOTEQUAL"


def _find_columns(expression: parse_tree.Node) -> Iterator[str]:
    """All parts of the names in an expression, but for those inside queries in it."""
    pending: list[Any] = [expression]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            yield from (str(name).lower() for name in node.get("column_names") or ())
            pending += [value for field, value in node.items() if field != "subquery"]


def _selects_sequence(tree: dict[str, Any]) -> bool:
    if tree.get("type") == "SELECT_NODE":
        return any(
            item.get("class") == "COLUMN_REF" and item["column_names"][-1].lower() == SEQ
            for item in tree["select_list"]
        )
    inner = [*(tree.get(side) for side in ("left", "right", "child")), *tree.get("children", ())]
    return any(_selects_sequence(node) for node in inner if isinstance(node, dict))

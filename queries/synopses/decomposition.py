"""A statement over one stream in its pieces: which rows, which groups, which aggregates, and what is done with them.

Expressions are the user's own text, cut out at token level and confirmed by DuckDB's parser. Only the stream's alias in
front of a column is replaced by one name for all statements, so that pieces of several statements can be combined.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xxhash

from windrow.queries.sql import window_spec
from windrow.queries.sql.parse_tree import Node, find_location, parse_statements
from windrow.queries.sql.split_aggregate import (
    CannotSplitError,
    EngineFunctions,
    StatementSplitter,
    walk_nodes,
    without_locations,
)
from windrow.queries.sql.statement import Reference, Statement

ROW_ALIAS = "_row"
"""The name of the stream in every piece."""
_UNSUPPORTED_CLASSES = ("SUBQUERY", "LAMBDA", "PARAMETER", "WINDOW")


@dataclass(frozen=True)
class Expression:
    """A piece of a statement."""

    text: str
    key: str
    """What it is, however it was written: equal for ``p.src`` and ``SRC``."""


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate of a statement."""

    name: str
    text: str
    """As it was written, with its FILTER."""
    key: str
    arguments: tuple[Expression, ...]
    constant: tuple[bool, ...]
    """Which of the arguments are constants."""
    condition: Expression | None
    """Of FILTER."""
    distinct: bool
    within: Expression | None
    """What it is ordered by: ``WITHIN GROUP (ORDER BY …)``."""


@dataclass(frozen=True)
class Comparison:
    """``column operator constant``."""

    column: str
    operator: str
    kind: str
    """DuckDB's word for the kind of constant: INTEGER, NUMERIC or STRING."""
    value: str

    @property
    def term(self) -> tuple[str, str, str, str]:
        """As the catalog stores it."""
        return self.column, self.operator, self.kind, self.value


@dataclass(frozen=True)
class DecomposedStatement:
    """The pieces of a statement."""

    stream: str
    window: window_spec.WindowSpec
    where: Expression | None
    terms: tuple[Comparison, ...] | None
    """WHERE as a disjunction of comparisons, None if it is something else; empty without WHERE."""
    groups: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    final: str
    """The rest of the statement: it reads group columns and finished aggregates from the relation `done`."""
    prefix: str

    @property
    def done(self) -> str:
        """The relation that `final` reads."""
        return f"{self.prefix}done"

    def group_column(self, number: int) -> str:
        """The name of a group's column in `done`."""
        return f"{self.prefix}g{number}"

    def aggregate_column(self, number: int) -> str:
        """The name of an aggregate's column in `done`."""
        return f"{self.prefix}a{number}"


@lru_cache(maxsize=1024)
def decompose_statement(
    statement: Statement, stream: Reference, columns: tuple[str, ...], functions: EngineFunctions
) -> DecomposedStatement:
    """Decompose a statement that reads one stream and nothing else.

    Args:
        statement: As parsed and confined.
        stream: Its only reference.
        columns: Of the stream.
        functions: Of the engine.

    Raises:
        CannotSplitError: why it cannot be answered from states of slots.
    """
    return _Decomposer(statement, stream, {stream.alias: columns}, functions).decomposed()


class _Decomposer(StatementSplitter):
    """Decomposes one statement."""

    def decomposed(self) -> DecomposedStatement:
        """All its pieces."""
        self._refuse()
        self._refuse_nested()
        clauses, groups, expected = self._take_apart()
        for node in [*groups, *self.aggregates, self.tree["where_clause"] or {}]:
            if any(each.get("class") in _UNSUPPORTED_CLASSES for each in walk_nodes(node)):
                raise CannotSplitError("a condition, group or aggregate has a subquery or a parameter")
        final = self._final(clauses, expected)
        where = self.tree["where_clause"]
        return DecomposedStatement(
            stream=self.stream.name,
            window=self.stream.window,
            where=None if where is None else self._expression(where),
            terms=_find_terms(where, {name.lower() for name in self.names}),
            groups=tuple(map(self._expression, groups)),
            calls=tuple(map(self._call, self.aggregates)),
            final=final,
            prefix=self.prefix,
        )

    def _refuse_nested(self) -> None:
        table = self.tree["from_table"]
        if table["type"] != "BASE_TABLE":
            raise CannotSplitError("it joins")
        if any(node.get("class") == "WINDOW" for node in walk_nodes(self.tree["group_expressions"])):
            raise CannotSplitError("it groups by a window function")
        alias = self.stream.alias.lower()
        if alias in self.names and any(self._qualified(node) for node in walk_nodes(self.tree)):
            raise CannotSplitError("the stream and one of its columns have the same name")

    def _aggregate(self, node: Node) -> int:
        """Every aggregate is accepted; `partial_aggregates` decides whether its states can be stored."""
        if node["export_state"] or node["schema"]:
            raise CannotSplitError(f"{node['function_name']} gives its state, or is of a schema")
        inner = [inner_node for argument in node["arguments"] for inner_node in walk_nodes(argument["expression"])]
        if any(self._is_aggregate(inner_node) for inner_node in inner):
            raise CannotSplitError("an aggregate stands in another one")
        keys = [self._key(aggregate) for aggregate in self.aggregates]
        if self._key(node) in keys:
            return keys.index(self._key(node))
        self.aggregates.append(node)
        return len(keys)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _qualified(self, node: Node) -> bool:
        """Whether a column is written with the stream's alias."""
        if node.get("class") != "COLUMN_REF" or len(node["column_names"]) < 2:
            return False
        return bool(node["column_names"][0].lower() == self.stream.alias.lower())

    def _expression(self, node: Node) -> Expression:
        """The text of a piece, under the name that the stream has in all pieces."""
        start, stop = self._span(node)
        tokens = {token.start: token.stop for token in self.statement.source.tokens}
        replacements = []
        for inner_node in walk_nodes(node):
            if self._qualified(inner_node):
                offset = find_location(inner_node)
                if offset is None or offset not in tokens:
                    raise CannotSplitError("a column has no place")
                replacements.append((offset, tokens[offset], ROW_ALIAS))
        saved, self.replacements = self.replacements, replacements
        text = self._text(start, stop)
        self.replacements = saved
        # Comments end with their line; what follows the piece must not become part of one.
        parsed = parse_statements(f"SELECT {text}\n")
        if not isinstance(parsed, list) or len(parsed) != 1 or len(parsed[0]["select_list"]) != 1:
            raise CannotSplitError("a piece of it is no expression")
        if _unqualified(parsed[0]["select_list"][0]) != _unqualified(self._renamed(node)):
            raise CannotSplitError("a piece of it reads differently on its own")
        return Expression(text, _short_key(self._key(node)))

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        changed = {name: self._renamed(item) for name, item in value.items()}
        if self._qualified(value):
            changed["column_names"] = [ROW_ALIAS, *value["column_names"][1:]]
        return changed

    def _call(self, node: Node) -> AggregateCall:
        whole = self._expression(node)
        arguments = [argument["expression"] for argument in node["arguments"]]
        if any(argument["name"] for argument in node["arguments"]):
            raise CannotSplitError("an aggregate has named arguments")
        if any(argument.get("class") == "STAR" for argument in arguments):
            raise CannotSplitError("an aggregate is of all columns")
        orders = node["order_bys"]["orders"]
        if len(orders) > 1 or any(o["type"] not in ("ORDER_DEFAULT", "ASCENDING") for o in orders):
            raise CannotSplitError("an aggregate over an order of several expressions, or a descending one")
        return AggregateCall(
            name=str(node["function_name"]).lower(),
            text=whole.text,
            key=whole.key,
            arguments=tuple(map(self._expression, arguments)),
            constant=tuple(argument.get("class") == "CONSTANT" for argument in arguments),
            condition=None if node["filter"] is None else self._expression(node["filter"]),
            distinct=bool(node["distinct"]),
            within=self._expression(orders[0]["expression"]) if orders else None,
        )


def _unqualified(node: Node) -> Any:
    return {**without_locations(node), "alias": ""}


def _short_key(key: Any) -> str:
    """A key as a short text: only ever compared."""
    return str(xxhash.xxh3_128_hexdigest(repr(key).encode()))


_OPERATORS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
_MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _find_terms(where: Node | None, columns: set[str]) -> tuple[Comparison, ...] | None:
    """A disjunction of comparisons, each once; None if the condition is anything else."""
    if where is None:
        return ()
    if where["class"] == "CONJUNCTION" and where["type"] == "CONJUNCTION_OR":
        parts = [_find_terms(child, columns) for child in where["children"]]
        if any(part is None for part in parts):
            return None
        return tuple(dict.fromkeys(comparison for part in parts if part is not None for comparison in part))
    if where["class"] == "OPERATOR" and where["type"] == "COMPARE_IN":
        first, *rest = where["children"]
        comparisons = [_find_comparison(first, "=", constant, columns) for constant in rest]
    elif where["class"] == "COMPARISON" and where["type"] in _OPERATORS:
        operator = _OPERATORS[where["type"]]
        left, right = where["left"], where["right"]
        if left.get("class") == "CONSTANT":
            left, right, operator = right, left, _MIRRORED[operator]
        comparisons = [_find_comparison(left, operator, right, columns)]
    else:
        return None
    return (
        None
        if None in comparisons
        else tuple(dict.fromkeys(comparison for comparison in comparisons if comparison is not None))
    )


def _find_comparison(column: Node, operator: str, constant: Node, columns: set[str]) -> Comparison | None:
    if column.get("class") != "COLUMN_REF" or constant.get("class") != "CONSTANT":
        return None
    literal = constant.get("literal") or {}
    name = column["column_names"][-1].lower()
    if len(column["column_names"]) > 2 or name not in columns or literal.get("kind") not in _CONSTANT_KINDS:
        return None
    return Comparison(name, operator, literal["kind"], str(literal["text"]))


_CONSTANT_KINDS = ("INTEGER", "NUMERIC", "STRING")

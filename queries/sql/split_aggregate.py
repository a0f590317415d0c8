"""A statement split in two, to be computed slot by slot: a query for partial states, and one over finished aggregates.

Both are the user's own text with pieces replaced, never written from a tree. Each is parsed again and compared with the
user's tree; a statement that does not come out equal is not split, so a wrong offset never costs an answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from windrow.indexes.bounded_cache import BoundedCache
from windrow.queries.sql import parse_tree, volatility
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.statement import Reference, Statement

CLAUSES = ("select", "from", "where", "group", "having", "window", "qualify", "order", "limit", "offset")
LOCATION_FIELDS = ("query_location", "query_location_length")


class CannotSplitError(Exception):
    """Why a statement cannot be computed slot by slot; it never reaches a user."""


def find_clauses(statement: Statement) -> dict[str, tuple[int, int]]:
    """The clauses of a statement by their first word: where they begin and end, in bytes."""
    tokens = statement.source.tokens
    starts: list[tuple[str, int]] = []
    depth, end = 0, len(statement.sql.encode())
    for position, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        elif token.text == ";" and depth == 0:
            end = token.start
            break
        elif depth == 0 and token.word in CLAUSES and not _is_inside(tokens, position):
            starts.append((token.word, token.start))
    stops = [*(start for _, start in starts[1:]), end]
    clauses = {word: (start, stop) for (word, start), stop in zip(starts, stops, strict=True)}
    if len(clauses) != len(starts) or "select" not in clauses or "from" not in clauses:
        raise CannotSplitError("its clauses were not found")
    return clauses


def find_free_prefix(data: bytes) -> str:
    """A prefix that occurs nowhere in a text, for names of our own."""
    lower = data.lower()
    return next(name for n in range(10_000) if (name := f"_p{n}_").encode() not in lower)


def walk_nodes(value: Any) -> Iterator[Node]:
    """Every node in a part of a tree."""
    if isinstance(value, list):
        for item in value:
            yield from walk_nodes(item)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk_nodes(item)


def without_locations(value: Any) -> Any:
    """A part of a tree without the offsets in the text."""
    if isinstance(value, list):
        return [without_locations(item) for item in value]
    if isinstance(value, dict):
        return {key: without_locations(item) for key, item in value.items() if key not in LOCATION_FIELDS}
    return value


def are_equal(one: Any, other: Any, *, parameters: bool = True) -> bool:
    """Whether two parts without offsets are equal; without `parameters`, but for their numbers and the outer alias."""
    if parameters:
        return bool(one == other)
    left, right = ({**part, "alias": ""} for part in (one, other))
    return _without_numbers(left) == _without_numbers(right)  # type: ignore[no-any-return]


def _without_numbers(value: Any) -> Any:
    """A part without the numbers of its parameters, which depend on its position in the statement."""
    if isinstance(value, list):
        return [_without_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_numbers(item) for key, item in value.items() if key != "identifier"}
    return value


def parse_single_select(text: str) -> Node:
    """The tree of a text that must be one SELECT."""
    answer = parse_tree.parse_statements(text)
    if isinstance(answer, parse_tree.Refusal) or len(answer) != 1 or answer[0]["type"] != "SELECT_NODE":
        raise CannotSplitError("a piece of it is no query")
    return answer[0]


def find_group_position(node: Node, count: int) -> int:
    """The select item that a constant in GROUP BY means."""
    literal = node.get("literal") or {}
    if literal.get("kind") != "INTEGER" or not 1 <= int(literal["text"]) <= count:
        raise CannotSplitError("a group is a constant")
    return int(literal["text"]) - 1


def _is_inside(tokens: Sequence[Any], position: int) -> bool:
    """Whether the first word of a clause is part of an expression here: IS DISTINCT FROM, WITHIN GROUP."""
    words = [token.word for token in tokens[max(0, position - 2) : position + 1]]
    return words in (["is", "distinct", "from"], ["not", "distinct", "from"]) or words[-2:] == ["within", "group"]


def count_occurrences(table: Node, relation: str) -> int:
    """How many rows of FROM can come from one row of a relation: 0, 1, or 2 where that is unknown."""
    if table["type"] == "BASE_TABLE":
        return int(table["table_name"] == relation)
    if table["type"] != "JOIN" or table["ref_type"] not in ("REGULAR", "NATURAL", "CROSS", "ASOF"):
        return 2
    left, right = count_occurrences(table["left"], relation), count_occurrences(table["right"], relation)
    kind = table["join_type"]
    keeps = {"INNER": (1, 1), "LEFT": (1, 0), "SEMI": (1, 0), "ANTI": (1, 0), "RIGHT": (0, 1)}.get(kind, (0, 0))
    if table["ref_type"] == "ASOF":
        keeps = (keeps[0], 0)  # which row of the right side is nearest depends on all of them
    if (left and not keeps[0]) or (right and not keeps[1]):
        return 2
    return left + right


MERGEABLE_AGGREGATES = {
    "sum", "sum_no_overflow", "fsum", "kahan_sum", "sumkahan", "count", "count_star", "count_if", "countif", "avg",
    "mean", "favg", "min", "max", "product", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor", "arg_min",
    "argmin", "min_by", "arg_max", "argmax", "max_by", "stddev", "stddev_samp", "stddev_pop", "variance",
    "var_samp", "var_pop", "sem", "skewness", "kurtosis", "kurtosis_pop", "corr", "covar_samp", "covar_pop",
    "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy",
    "regr_syy", "median", "quantile", "quantile_cont", "quantile_disc", "mad", "approx_count_distinct",
}  # fmt: skip
"""Aggregates whose states, merged, give what one pass over the rows gives (in sums of floats up to rounding)."""
_FINAL_CLAUSES = ("window", "qualify", "order", "limit", "offset")


@dataclass(frozen=True)
class EngineFunctions:
    """The engine's functions that matter here, by name in lower case."""

    aggregates: frozenset[str]


@dataclass(frozen=True)
class SplitStatement:
    """A statement in two.

    `near` and `far` give states; `near` reads the column `leave` of the stream's relation, `far` does not.
    """

    prefix: str
    groups: int
    aggregates: int
    near: str
    far: str
    near_parameters: frozenset[str]
    """Names of the parameters that `near` and `far` take."""
    final: str
    final_parameters: frozenset[str]

    @property
    def leave(self) -> str:
        """The column with the slide at which a row leaves the window."""
        return f"{self.prefix}leave"

    @property
    def finished(self) -> str:
        """The relation that `final` reads: group columns, then finished aggregates."""
        return f"{self.prefix}done"

    @property
    def columns(self) -> tuple[list[str], list[str]]:
        """Names of group and of aggregate columns."""
        return [f"{self.prefix}g{n}" for n in range(self.groups)], [
            f"{self.prefix}a{n}" for n in range(self.aggregates)
        ]


_functions: BoundedCache[str, EngineFunctions] = BoundedCache(1)
"""They are the same for every instance of a process."""


def read_engine_functions(cursor: Any) -> EngineFunctions:
    """The functions that the engine has."""

    def read() -> EngineFunctions:
        rows = cursor.execute("SELECT lower(function_name), function_type FROM duckdb_functions()").fetchall()
        return EngineFunctions(frozenset(name for name, kind in rows if kind == "aggregate"))

    return _functions.get_or_make("functions", read)


@lru_cache(maxsize=256)
def split_statement(
    statement: Statement,
    stream: Reference,
    relations: tuple[tuple[str, tuple[str, ...]], ...],
    functions: EngineFunctions,
) -> SplitStatement:
    """Split a statement that reads one stream.

    Args:
        statement: As parsed and confined.
        stream: Its only reference to a stream.
        relations: Alias and columns of each relation in FROM.
        functions: Of the engine.

    Raises:
        CannotSplitError: it cannot be split, or not by this module.
    """
    return StatementSplitter(statement, stream, dict(relations), functions).parts()


class StatementSplitter:
    """Splits one statement."""

    def __init__(
        self,
        statement: Statement,
        stream: Reference,
        relations: Mapping[str, Sequence[str]],
        functions: EngineFunctions,
    ) -> None:
        self.statement = statement
        self.tree = statement.tree
        self.data = statement.sql.encode()
        self.relations = relations
        self.functions = functions
        self.names = [name.lower() for columns in relations.values() for name in columns]
        self.prefix = find_free_prefix(self.data)
        self.stream = stream
        self.replacements: list[tuple[int, int, str]] = []
        self.aggregates: list[Node] = []

    def parts(self) -> SplitStatement:
        """The statement in two."""
        self._refuse()
        clauses, groups, expected = self._take_apart()
        near, far = self._state_queries(groups, clauses)
        final = self._final(clauses, expected)
        return SplitStatement(
            prefix=self.prefix,
            groups=len(groups),
            aggregates=len(self.aggregates),
            near=near,
            far=far,
            near_parameters=find_parameters(near),
            final=final,
            final_parameters=find_parameters(final),
        )

    def _take_apart(self) -> tuple[dict[str, tuple[int, int]], list[Node], dict[str, Any]]:
        """The clauses, the groups, and what the final query has to parse to; collects the aggregates."""
        clauses = find_clauses(self.statement)
        groups = self._groups()
        keys = [self._key(node) for node in groups]
        self._refuse_ambiguous(keys)
        expected = {
            name: self._replace(self.tree[name], keys) for name in ("select_list", "having", "qualify", "modifiers")
        }
        if not self.aggregates and not groups:
            raise CannotSplitError("it has neither aggregates nor groups")
        return clauses, groups, expected

    # -- what cannot be split --------------------------------------------------------------------------------------

    def _refuse(self) -> None:
        tree = self.tree
        if tree["type"] != "SELECT_NODE" or tree["cte_map"]["map"]:
            raise CannotSplitError("it is not a single SELECT")
        if tree["sample"] is not None or len(tree["group_sets"]) > 1:
            raise CannotSplitError("it samples, or groups in several ways")
        for visit in parse_tree.walk(tree):
            node = visit.node
            if volatility.find_volatile_call(node) is not None:
                raise CannotSplitError("it calls a function that differs from query to query")
            if node.get("sample") is not None or node.get("column_name_alias"):
                raise CannotSplitError("it samples or renames a relation's columns")
        for name in ("select_list", "group_expressions", "having", "qualify"):
            for node in walk_nodes(tree[name]):
                if node.get("class") in ("STAR", "SUBQUERY", "LAMBDA", "POSITIONAL_REFERENCE"):
                    raise CannotSplitError(f"it has a {node['class'].lower()} outside of FROM and WHERE")
        if any(node.get("class") in ("SUBQUERY", "LAMBDA") for node in walk_nodes(tree["modifiers"])):
            raise CannotSplitError("it orders by a subquery")
        if count_occurrences(tree["from_table"], self.stream.relation) != 1:
            raise CannotSplitError("not every row of FROM comes from one row of the stream")

    def _refuse_ambiguous(self, keys: list[Any]) -> None:
        """An alias that hides a column may mean another thing in HAVING and ORDER BY of the second query."""
        hiding = {
            node["alias"].lower()
            for node in self.tree["select_list"]
            if node["alias"].lower() in self.names and self._key(node) != ("column", node["alias"].lower())
        }
        orders = [order["expression"] for modifier in self.tree["modifiers"] for order in modifier.get("orders", ())]
        inner = [node for order in orders if order["class"] != "COLUMN_REF" for node in walk_nodes(order)]
        for node in [*walk_nodes(self.tree["having"]), *walk_nodes(self.tree["qualify"]), *inner]:
            if _unqualified_name(node) in hiding:
                raise CannotSplitError("an alias has the name of a column")
        if any(_unqualified_name(order) in hiding and self._key(order) in keys for order in orders):
            raise CannotSplitError("an alias has the name of a group's column")

    # -- offsets in the text --------------------------------------------------------------------------------------

    def _text(self, start: int, stop: int) -> str:
        """The user's text with the replacements that lie in it."""
        pieces, end = [], start
        for first, last, text in sorted(self.replacements):
            if first < start or last > stop:
                continue
            pieces += [self.data[end:first], text.encode()]
            end = last
        return b"".join([*pieces, self.data[end:stop]]).decode()

    def _span(self, node: Node) -> tuple[int, int]:
        """Where an expression begins and ends: the hull of the offsets that DuckDB gives for it and what is in it."""
        places = [
            (offset, offset + inner["query_location_length"])
            for inner in walk_nodes(node)
            if (offset := parse_tree.find_location(inner)) is not None
        ]
        if not places:
            raise CannotSplitError("an expression has no place")
        span = min(start for start, _ in places), max(stop for _, stop in places)
        alone = parse_tree.parse_statements(f"SELECT {self.data[span[0] : span[1]].decode()}")
        if isinstance(alone, parse_tree.Refusal) or len(alone) != 1 or len(alone[0]["select_list"]) != 1:
            raise CannotSplitError("an expression was not found again")
        if not are_equal(without_locations(alone[0]["select_list"][0]), without_locations(node), parameters=False):
            raise CannotSplitError("an expression reads differently on its own")
        return span

    # -- groups and aggregates -------------------------------------------------------------------------------------

    def _groups(self) -> list[Node]:
        """The expressions of GROUP BY: written out, by position, by alias or ALL."""
        items = self.tree["select_list"]
        if self.tree["aggregate_handling"] == "FORCE_AGGREGATES":
            for item in items:
                if self._has_aggregate(item) and any(n.get("class") == "COLUMN_REF" for n in self._outside(item)):
                    raise CannotSplitError("GROUP BY ALL with a column beside an aggregate")
                if any(node.get("class") == "WINDOW" for node in walk_nodes(item)):
                    raise CannotSplitError("GROUP BY ALL with a window function")
            return [item for item in items if not self._has_aggregate(item)]
        groups = []
        for node in self.tree["group_expressions"]:
            if node["class"] == "CONSTANT":
                groups.append(items[find_group_position(node, len(items))])
            elif node["class"] == "COLUMN_REF" and len(node["column_names"]) == 1:
                groups.append(self._named(node, items))
            else:
                groups.append(node)
        if any(self._has_aggregate(group) for group in groups):
            raise CannotSplitError("a group is an aggregate")
        return groups

    def _named(self, node: Node, items: list[Node]) -> Node:
        name = node["column_names"][0].lower()
        if name in self.names:
            return node  # a column wins over an alias in GROUP BY
        named = [item for item in items if item["alias"].lower() == name]
        if len(named) != 1:
            raise CannotSplitError("a group is neither a column nor an alias")
        return named[0]

    def _is_aggregate(self, node: Node) -> bool:
        return node.get("class") == "FUNCTION" and str(node["function_name"]).lower() in self.functions.aggregates

    def _has_aggregate(self, node: Node) -> bool:
        return any(self._is_aggregate(each) for each in walk_nodes(node))

    def _outside(self, value: Any) -> Iterator[Node]:
        """The nodes of an expression that are not part of an aggregate."""
        if isinstance(value, list):
            for item in value:
                yield from self._outside(item)
        elif isinstance(value, dict) and not self._is_aggregate(value):
            yield value
            for item in value.values():
                yield from self._outside(item)

    def _key(self, node: Node) -> Any:
        """A key that equal expressions share, so that ``p.src`` and ``SRC`` are one."""
        if node.get("class") == "COLUMN_REF":
            path = [name.lower() for name in node["column_names"]]
            aliases = {alias.lower(): [c.lower() for c in columns] for alias, columns in self.relations.items()}
            if len(path) == 2 and path[1] in aliases.get(path[0], ()) and self.names.count(path[1]) == 1:
                path = path[1:]
            return ("column", *path)
        rest = {key: self._keys(value) for key, value in node.items() if key not in (*LOCATION_FIELDS, "alias")}
        return tuple(sorted(rest.items(), key=lambda item: item[0]))

    def _keys(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self._keys(item) for item in value)
        return self._key(value) if isinstance(value, dict) else value

    def _replace(self, value: Any, keys: list[Any]) -> Any:
        """The tree with aggregates and groups as columns; notes the replacements in the text."""
        if isinstance(value, list):
            return [self._replace(item, keys) for item in value]
        if not isinstance(value, dict):
            return value
        if self._is_aggregate(value):
            return self._replace_by_column(value, f"{self.prefix}a{self._aggregate(value)}")
        if "class" in value and value["class"] != "CONSTANT" and self._key(value) in keys:
            return self._replace_by_column(value, f"{self.prefix}g{keys.index(self._key(value))}")
        return {name: self._replace(item, keys) for name, item in value.items()}

    def _replace_by_column(self, node: Node, column: str) -> Node:
        self.replacements.append((*self._span(node), column))
        return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": node["alias"], "column_names": [column]}

    def _aggregate(self, node: Node) -> int:
        name = str(node["function_name"]).lower()
        if name not in MERGEABLE_AGGREGATES or node["distinct"] or node["export_state"] or node["schema"]:
            raise CannotSplitError(f"states of {name} do not merge into what one pass gives")
        if node["order_bys"]["orders"] and name not in ("quantile_cont", "quantile_disc"):
            raise CannotSplitError("an aggregate over an order")
        keys = [self._key(aggregate) for aggregate in self.aggregates]
        if self._key(node) in keys:
            return keys.index(self._key(node))
        self.aggregates.append(node)
        return len(keys)

    # -- the two queries -------------------------------------------------------------------------------------------

    def _state_queries(self, groups: list[Node], clauses: Mapping[str, tuple[int, int]]) -> tuple[str, str]:
        replacements, self.replacements = self.replacements, self._find_unnamed_parameters()
        columns = [f"{self._text(*self._span(node))}\n AS {self.prefix}g{n}" for n, node in enumerate(groups)]
        columns += [
            f"{self._text(*self._span(node))}\n EXPORT_STATE AS {self.prefix}a{n}"
            for n, node in enumerate(self.aggregates)
        ]
        rest = self._text(*clauses["from"])
        if "where" in clauses:
            rest += "\n" + self._text(*clauses["where"])
        self.replacements = replacements
        self.replacements = replacements + self._find_unnamed_parameters()
        leave = f"{self.prefix}leave"
        near = f"SELECT {', '.join([leave, *columns])} {rest}\nGROUP BY {_positions(len(groups) + 1)}"
        grouped = f"\nGROUP BY {_positions(len(groups))}" if groups else ""
        far = f"SELECT {', '.join(columns)} {rest}{grouped}"
        for text, first in ((near, 1), (far, 0)):
            self._check_state_query(text, groups, first)
        return near, far

    def _check_state_query(self, text: str, groups: list[Node], first: int) -> None:
        tree = parse_single_select(text)
        exported = [{**node, "export_state": True} for node in self.aggregates]
        items = [without_locations(node) | {"alias": ""} for node in tree["select_list"][first:]]
        same = are_equal(items, [without_locations(node) | {"alias": ""} for node in [*groups, *exported]])
        for name in ("from_table", "where_clause"):
            same = same and are_equal(without_locations(tree[name]), without_locations(self.tree[name]))
        if not same or tree["having"] is not None or tree["modifiers"] or tree["cte_map"]["map"]:
            raise CannotSplitError("the query for its states reads differently")

    def _final(self, clauses: Mapping[str, tuple[int, int]], expected: dict[str, Any]) -> str:
        finished = f"{self.prefix}done"
        text = f"{self._text(*clauses['select'])}\nFROM {finished}\n"
        if "having" in clauses:
            start, stop = clauses["having"]
            text += "WHERE" + self._text(start + len("having"), stop) + "\n"
        text += "\n".join(self._text(*clauses[word]) for word in _FINAL_CLAUSES if word in clauses)
        tree = parse_single_select(text)
        same = all(
            are_equal(without_locations(tree[name]), without_locations(expected[name]))
            for name in ("select_list", "qualify", "modifiers")
        )
        same = (
            same
            and are_equal(without_locations(tree["where_clause"]), without_locations(expected["having"]))
            and tree["having"] is None
        )
        table = tree["from_table"]
        if not same or table["type"] != "BASE_TABLE" or table["table_name"] != finished or tree["group_expressions"]:
            raise CannotSplitError("the query over its finished states reads differently")
        return text

    # -- parameters ------------------------------------------------------------------------------------------------

    def _find_unnamed_parameters(self) -> list[tuple[int, int, str]]:
        """A ``?`` counts from the beginning of its statement, so in a part of it it must get a name."""
        places = []
        for node in walk_nodes(self.tree):
            offset = parse_tree.find_location(node) if node.get("class") == "PARAMETER" else None
            if offset is not None and self.data[offset : offset + 1] == b"?":
                places.append((offset, offset + 1, f"${node['identifier']}"))
        inside = [(start, stop) for start, stop, _ in self.replacements]
        return [place for place in places if not any(start <= place[0] < stop for start, stop in inside)]


def find_parameters(text: str) -> frozenset[str]:
    """Names of the parameters of a query."""
    return frozenset(
        str(node["identifier"]) for node in walk_nodes(parse_single_select(text)) if node.get("class") == "PARAMETER"
    )


def _unqualified_name(node: Node) -> str:
    """The name in lower case of a column reference without a relation; else empty."""
    single = node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1
    return str(node["column_names"][0]).lower() if single else ""


def _positions(count: int) -> str:
    return ", ".join(str(number + 1) for number in range(count))

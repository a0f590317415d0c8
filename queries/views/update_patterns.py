"""Update patterns: how the rows of a plan leave it, which decides whether and how the plan can be kept on disk.

The rules follow docs/references.md, [1], chapter 3, with its errors corrected: a join with one window is weak (not
weakest), a union is weakest only if its inputs' rows live equally long, and rows with their own lifetimes are weak.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import duckdb

from windrow.definitions import StreamDefinition
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.window_spec import CountWindow, OffsetWindow, RangeWindow, SessionWindow, WindowSpec


class Pattern(IntEnum):
    """The four classes, each containing those before it."""

    MONOTONIC = 0
    WEAKEST = 1
    WEAK = 2
    STRICT = 3

    def __str__(self) -> str:
        return self.name.lower()


MAINTENANCE_TEXT = {
    Pattern.MONOTONIC: "append only: no row ever leaves",
    Pattern.WEAKEST: "wave index: rows leave in the order in which they came",
    Pattern.WEAK: "doubly partitioned index: each row's end is known when it comes, but not the same for all",
    Pattern.STRICT: "recomputed at each slide: later rows decide when a row leaves",
}
"""How a result of each class is kept on disk."""
OVERRIDE_TEXT = "doubly partitioned index: later rows end a row sooner than is stored with it, or bring it back"
"""How a strict result is kept that new rows keep up."""


@dataclass(frozen=True)
class Label:
    """A plan's class, and the operator that decides it.

    Args:
        pattern: The class.
        why: That operator, in words.
        life: How long every row lives, where that is one number.
        static: A table: it has no windows, and joining with it leaves the other side's class as it is.
    """

    pattern: Pattern
    why: str
    life: int | None = None
    static: bool = False

    def __str__(self) -> str:
        return f"{self.pattern} ({self.why})"


LabelLeaf = Callable[[Node], Label]
"""The label of a relation that a statement names."""

STATIC_LABEL = Label(Pattern.MONOTONIC, "nothing changes", static=True)


def label_stream(definition: StreamDefinition, window: WindowSpec) -> Label:
    """The label of a window over a stream."""
    name = definition.name
    if isinstance(window, CountWindow):
        return Label(Pattern.STRICT, f"a count window over {name}: newer rows push the oldest out")
    if isinstance(window, SessionWindow):
        return Label(Pattern.STRICT, f"a session window over {name}: newer rows begin another session")
    if definition.has_overrides:
        return Label(Pattern.STRICT, f"rows of view {name} can end before their time")
    length = window.length if isinstance(window, RangeWindow | OffsetWindow) else None
    lifetime = definition.longest_life
    if isinstance(window, OffsetWindow) and lifetime is not None:
        lifetime -= window.offset
    if definition.expires is not None:
        return Label(Pattern.WEAK, f"rows of {name} have their own lifetimes")
    lives = [life for life in (lifetime, length) if life is not None]
    if not lives:
        return Label(Pattern.MONOTONIC, f"rows of {name} never expire")
    return Label(Pattern.WEAKEST, f"all rows of {name} live equally long", min(lives))


def label_table(name: str, *, retroactive: bool) -> Label:
    """The label of a table; one whose changes affect what is there already makes any join with it strict."""
    if retroactive:
        return Label(Pattern.STRICT, f"table {name} is retroactive: its changes reach back", static=True)
    return STATIC_LABEL


def label_query(tree: Node, leaf: LabelLeaf) -> Label:
    """The update pattern of a query."""
    return _Labeller(leaf).query(tree, {})


@lru_cache(maxsize=1)
def _read_aggregates() -> frozenset[str]:
    """DuckDB's aggregates and window functions."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute("SELECT lower(function_name), function_type FROM duckdb_functions()").fetchall()
    aggregates = {name for name, kind in rows if kind == "aggregate"}
    return frozenset(aggregates - {name for name, kind in rows if kind in ("scalar", "macro")} | {"count_star"})


_AGGREGATING_MACROS = {"prev", "next", "avgw", "maxw", "rangew"}


def list_expressions(node: Any) -> Iterator[Node]:
    """The expressions in a piece of a tree, without going into queries inside it."""
    if isinstance(node, list):
        for item in node:
            yield from list_expressions(item)
    elif isinstance(node, dict):
        if "class" in node:
            yield node
        for name, item in node.items():
            if name not in ("subquery", "from_table", "cte_map") and isinstance(item, dict | list):
                yield from list_expressions(item)


def has_groups(select: Node) -> bool:
    """Whether a SELECT puts rows into groups, also by ``GROUP BY ALL``, which names none."""
    return bool(
        select["group_expressions"] or select["group_sets"] or select["aggregate_handling"] != "STANDARD_HANDLING"
    )


def reads_several_rows(node: Node) -> bool:
    """Whether an expression looks at more than one row."""
    if node.get("class") == "WINDOW":
        return True
    name = str(node.get("function_name", "")).lower()
    return node.get("class") == "FUNCTION" and (name in _read_aggregates() or name in _AGGREGATING_MACROS)


def label_distinct(inner: Label) -> Label:
    """Duplicate elimination that keeps the duplicate which lives longest."""
    if inner.static or inner.pattern in (Pattern.MONOTONIC, Pattern.STRICT):
        return inner
    return Label(Pattern.WEAK, "DISTINCT: a value lives as long as the last of its rows")


def label_union(parts: list[Label]) -> Label:
    """All rows of several inputs."""
    worst = max(parts, key=lambda part: part.pattern)
    if all(part.static for part in parts):
        return worst
    lives = {part.life for part in parts if not part.static}
    if worst.pattern is Pattern.WEAKEST and len(lives) > 1:
        return Label(Pattern.WEAK, "UNION of windows of different lengths")
    return Label(worst.pattern, worst.why, worst.life)


def label_join(left: Label, right: Label, kind: str, form: str) -> Label:
    """A join of two inputs."""
    if left.static and right.static:
        return max((left, right), key=lambda part: part.pattern)
    if left.static or right.static:
        return _label_table_join(left, right, kind, form)
    if form not in ("REGULAR", "CROSS", "NATURAL"):
        return Label(Pattern.STRICT, f"an {form} join of streams: later rows can be nearer")
    if kind != "INNER":
        word = {"ANTI": "negation", "SEMI": "a semi-join"}.get(kind, f"a {kind} OUTER join")
        return Label(Pattern.STRICT, f"{word} of streams: a later row can change what is there")
    worst = max((left, right), key=lambda part: part.pattern)
    if worst.pattern is Pattern.STRICT:
        return worst
    if worst.pattern is Pattern.MONOTONIC:
        return Label(Pattern.MONOTONIC, "a join of streams whose rows never expire")
    return Label(Pattern.WEAK, "a join of windows: a result ends with the first of its parts")


def _label_table_join(left: Label, right: Label, kind: str, form: str) -> Label:
    """A join with a table: only new rows look at it, unless it is retroactive."""
    table, stream = (left, right) if left.static else (right, left)
    keeping = {"INNER", "RIGHT"} if left.static else {"INNER", "LEFT", "SEMI", "ANTI"}
    if table.pattern is Pattern.STRICT or stream.pattern is Pattern.STRICT:
        return Label(Pattern.STRICT, (table if table.pattern is Pattern.STRICT else stream).why)
    if kind not in keeping or form not in ("REGULAR", "CROSS", "NATURAL", "ASOF") or (form == "ASOF" and left.static):
        return Label(Pattern.STRICT, f"a {kind} join that keeps the rows of a table: a later row can change them")
    return Label(stream.pattern, stream.why, stream.life)


class _Labeller:
    """Walks a statement's tree from the leaves up."""

    def __init__(self, leaf: LabelLeaf) -> None:
        self._leaf = leaf

    def query(self, node: Node, labels: Mapping[str, Label]) -> Label:
        """A query, given what the names of WITH queries around it stand for."""
        for entry in (node.get("cte_map") or {}).get("map", ()):
            inner = self.query(entry["value"]["query_node"], labels)
            labels = {**labels, entry["key"].lower(): inner}
        if node["type"] == "SELECT_NODE":
            label = self._select(node, labels)
        elif node["type"] == "SET_OPERATION_NODE":
            label = self._set(node, labels)
        else:
            return Label(Pattern.STRICT, "a recursive query")
        return self._modified(node, label)

    def _modified(self, node: Node, label: Label) -> Label:
        for modifier in node["modifiers"]:
            if modifier["type"] in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
                return Label(Pattern.STRICT, "LIMIT: newer rows push others out")
            if modifier["type"] == "DISTINCT_MODIFIER":
                if modifier["distinct_on_targets"]:
                    return Label(Pattern.STRICT, "DISTINCT ON: a later row can take a row's place")
                label = label_distinct(label)
        return label

    def _set(self, node: Node, labels: Mapping[str, Label]) -> Label:
        parts = [self.query(child, labels) for child in node["children"]]
        if node["setop_type"] not in ("UNION", "UNION_BY_NAME"):
            word = "negation" if node["setop_type"] == "EXCEPT" else "an intersection"
            return Label(Pattern.STRICT, f"{node['setop_type']}: {word}, which later rows can change")
        united = label_union(parts)
        return united if node["setop_all"] else label_distinct(united)

    def _select(self, node: Node, labels: Mapping[str, Label]) -> Label:
        label = self._from(node["from_table"], labels)
        inside = [
            expression
            for name in ("select_list", "where_clause", "having", "qualify")
            for expression in list_expressions(node[name])
        ]
        for expression in inside:
            if expression.get("class") == "SUBQUERY":
                inner = self.query(expression["subquery"]["node"], labels)
                if not inner.static or inner.pattern is Pattern.STRICT:
                    return Label(Pattern.STRICT, "a subquery over a stream: later rows can change its answer")
        if label.static:
            return label
        if has_groups(node) or any(map(reads_several_rows, inside)):
            return Label(Pattern.STRICT, "an aggregate or window function: a new row replaces the old value")
        if node["qualify"] is not None or node["sample"] is not None:
            return Label(Pattern.STRICT, "QUALIFY or a sample: later rows can change what is in it")
        return label

    def _from(self, node: Node, labels: Mapping[str, Label]) -> Label:
        kind = node["type"]
        if kind == "BASE_TABLE":
            path = node["qualified_name"]["path"]
            if len(path) == 1 and path[0].lower() in labels:
                return labels[path[0].lower()]
            return self._leaf(node)
        if kind == "SUBQUERY":
            return self.query(node["subquery"]["node"], labels)
        if kind == "JOIN":
            left, right = self._from(node["left"], labels), self._from(node["right"], labels)
            return label_join(left, right, node["join_type"], node["ref_type"])
        if kind in ("EMPTY", "EXPRESSION_LIST", "TABLE_FUNCTION"):
            return STATIC_LABEL
        return Label(Pattern.STRICT, f"{kind.replace('_', ' ').lower()}: later rows can change it")

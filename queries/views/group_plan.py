"""Takes a GROUP BY statement apart, so that a view of it can be kept from new rows.

What is grouped becomes a view of its own, which keeps no rows but partial aggregates: for each group and expiry slot
what can be added up later. The statement's own view finishes the aggregates of the groups that a slide changes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.catalog.records import GroupedStatement
from windrow.queries.engine.types import quote_name
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.split_aggregate import (
    CannotSplitError,
    EngineFunctions,
    StatementSplitter,
    walk_nodes,
)
from windrow.queries.sql.statement import Statement
from windrow.queries.synopses.decomposition import AggregateCall, DecomposedStatement, Expression
from windrow.queries.synopses.partial_aggregates import StatementNeeds, find_needs, merge_expressions, state_sql
from windrow.queries.views.plan import ViewPlan
from windrow.queries.views.update_patterns import has_groups, list_expressions, reads_several_rows

ENDS = "_windrow_ends"
"""Beside merged aggregates: when the first of the rows that a group has ends."""
_WHOLE_AGGREGATES = {"median", "mad", "quantile", "quantile_cont", "quantile_disc", "approx_quantile"}
"""Aggregates whose states hold every value, or are only about the same after merging."""


@dataclass(frozen=True)
class GroupSplit:
    """A GROUP BY statement in pieces.

    Args:
        inner_sql: The rows that are grouped: columns ``g0…`` that group them, ``a0…`` that are aggregated.
        decomposed: Groups and aggregates over those columns, and the rest of the statement.
        group_items: The number of the select item that each group is.
    """

    inner_sql: str
    decomposed: DecomposedStatement
    group_items: tuple[int, ...]


def is_grouped(plan: ViewPlan) -> bool:
    """Whether a statement is one SELECT with groups or aggregates."""
    tree = plan.statement.tree
    if tree["type"] != "SELECT_NODE":
        return False
    items = [node for name in ("select_list", "having") for node in list_expressions(tree[name])]
    return has_groups(tree) or any(map(reads_several_rows, items))


def split_groups(plan: ViewPlan, functions: EngineFunctions) -> GroupSplit:
    """Take a GROUP BY statement apart.

    Raises:
        CannotSplitError: why its aggregates cannot be kept in parts.
    """
    relations = {part.alias: part.columns for part in plan.parts}
    return _GroupSplitter(plan.statement, relations, plan, functions).split()


class _GroupSplitter(StatementSplitter):
    """Splits one statement; a join is a relation as any other."""

    def __init__(
        self, statement: Statement, relations: Mapping[str, Sequence[str]], plan: ViewPlan, functions: EngineFunctions
    ) -> None:
        super().__init__(statement, plan.streams[0].reference, relations, functions)
        self._columns: dict[object, tuple[str, str]] = {}
        """Names and texts of the columns that are aggregated, by what they are."""

    def split(self) -> GroupSplit:
        """All pieces."""
        self._refuse()
        if self.tree["modifiers"] or self.tree["qualify"] is not None:
            raise CannotSplitError("it has ORDER BY, LIMIT, DISTINCT or QUALIFY beside its groups")
        if any(node.get("class") == "WINDOW" for node in walk_nodes(self.tree)):
            raise CannotSplitError("it has a window function")
        clauses, groups, expected = self._take_apart()
        calls = tuple(map(self._call, self.aggregates))
        items = list(self._find_group_items(expected["select_list"], len(groups)))
        final = self._final(clauses, expected)
        columns = [f"{self._written(*self._span(node))}\n AS g{number}" for number, node in enumerate(groups)]
        columns += [f"{text}\n AS {name}" for name, text in self._columns.values()]
        source = "\n".join(self._written(*clauses[word]) for word in ("from", "where") if word in clauses)
        keys = tuple(Expression(f"g{number}", f"g{number}") for number in range(len(groups)))
        decomposed = DecomposedStatement(
            stream="", window=self.stream.window, where=None, terms=(), groups=keys, calls=calls, final=final,
            prefix=self.prefix,
        )  # fmt: skip
        return GroupSplit(f"SELECT {', '.join(columns) or '1 AS a0'} {source}", decomposed, tuple(items))

    def _find_group_items(self, select_list: Sequence[Node], count: int) -> Iterator[int]:
        """Where each group stands in the select list; rows of the view are found by them."""
        names = [node["column_names"] if node.get("class") == "COLUMN_REF" else None for node in select_list]
        for number in range(count):
            if [f"{self.prefix}g{number}"] not in names:
                raise CannotSplitError("a column of GROUP BY is not in its select list")
            yield names.index([f"{self.prefix}g{number}"])

    def _written(self, start: int, stop: int) -> str:
        """A piece of the statement as the user wrote it."""
        return self.statement.source.data[start:stop].decode()

    def _call(self, node: Node) -> AggregateCall:
        """An aggregate over columns of the inner rows."""
        name = str(node["function_name"]).lower()
        if node["distinct"] or name in _WHOLE_AGGREGATES or node["order_bys"]["orders"]:
            raise CannotSplitError(f"{name}{' of distinct values' if node['distinct'] else ''} has no parts")
        arguments = [argument["expression"] for argument in node["arguments"]]
        if any(argument["name"] for argument in node["arguments"]):
            raise CannotSplitError("an aggregate has named arguments")
        texts = [
            self._written(*self._span(each)) if each.get("class") == "CONSTANT" else self._column(each)
            for each in arguments
        ]
        condition = None if node["filter"] is None else self._column(node["filter"])
        written = f"count({', '.join(texts) or '*'}\n)" if name == "count_star" else f"{name}({', '.join(texts)}\n)"
        text = written + ("" if condition is None else f" FILTER (WHERE {condition})")
        return AggregateCall(
            name=name,
            text=text,
            key=text,
            arguments=tuple(Expression(each, each) for each in texts),
            constant=tuple(each.get("class") == "CONSTANT" for each in arguments),
            condition=None if condition is None else Expression(condition, condition),
            distinct=False,
            within=None,
        )

    def _column(self, node: Node) -> str:
        """The name of the inner column with the values of an expression."""
        if any(each.get("class") in ("SUBQUERY", "LAMBDA", "PARAMETER") for each in walk_nodes(node)):
            raise CannotSplitError("an aggregate is of a subquery or a lambda")
        text = self._written(*self._span(node))
        return self._columns.setdefault(self._key(node), (f"a{len(self._columns)}", text))[0]


def describe_groups(
    cursor: object, split: GroupSplit, rows: str, statement: str, schema: pa.Schema
) -> GroupedStatement:
    """What the catalog keeps of a GROUP BY statement.

    Args:
        cursor: To ask DuckDB for types.
        split: The statement.
        rows: A relation with the inner columns, as the text behind FROM.
        statement: The whole of it.
        schema: Of its result.

    Raises:
        CannotSplitError: an aggregate cannot be finished from parts.
    """
    needs: StatementNeeds = find_needs(cursor, split.decomposed, rows)
    if len(needs.needs) > 1 or needs.needs[0].counted:
        raise CannotSplitError("an aggregate needs every value")
    need, prefix = needs.needs[0], split.decomposed.prefix
    done = [f"g{number} AS {prefix}g{number}" for number in range(len(need.groups))]
    done += [f"{ENDS} AS {prefix}x"]
    done += [
        f"CAST({finish.expression} AS {finish.type}) AS {split.decomposed.aggregate_column(number)}"
        for number, finish in enumerate(needs.finishes)
    ]
    selected = split.decomposed.final[len("select") :]
    return GroupedStatement(
        statement=statement,
        keys=tuple(schema.names[item] for item in split.group_items),
        types=need.types,
        columns=need.columns,
        finished=f"SELECT {', '.join(done)} FROM ({{merged}})",
        final=f"WITH {split.decomposed.done} AS ({{finished}}) SELECT {prefix}x,{selected}",
        names=tuple(schema.names),
    )


# -- SQL -------------------------------------------------------------------------------------------------------------


def partials_sql(groups: GroupedStatement, rows: str, begins: str, ends: str) -> str:
    """Partial aggregates of inner rows by group and end: when they begin and end, then their columns.

    Args:
        groups: The statement.
        rows: A SELECT of the inner rows.
        begins: When all of the partial aggregates begin.
        ends: When each inner row ends for the view.
    """
    columns = [f"g{number}" for number in range(len(groups.types))]
    builds = [
        f"{column.build} AS c{number}"
        if column.merge == "state"
        else f"CAST({column.build} AS {column.type}) AS c{number}"
        for number, column in enumerate(groups.columns)
    ]
    by = ", ".join(str(number + 2) for number in range(len(columns) + 1))
    return f"SELECT {begins}, {ends}, {', '.join([*columns, *builds])} FROM ({rows}) AS _row GROUP BY 1, {by}"


def finished_sql(groups: GroupedStatement, partials: str, ends: str) -> str:
    """The rows of the result from partial aggregates: when each ends, then the statement's columns.

    Args:
        groups: The statement.
        partials: A relation of partial aggregates.
        ends: When each of them ends, over its columns.
    """
    by = [f"g{number}" for number in range(len(groups.types))]
    typed = [f"CAST(g{number} AS {kind}) AS g{number}" for number, kind in enumerate(groups.types)]
    typed += [
        f"{state_sql(f'c{number}', column.state)} AS c{number}"
        if column.state is not None
        else f"CAST(c{number} AS {column.type}) AS c{number}"
        for number, column in enumerate(groups.columns)
    ]
    names = {column.key: f"c{number}" for number, column in enumerate(groups.columns)}
    merged = [f"{text} AS c{number}" for number, text in enumerate(merge_expressions(groups.columns, names))]
    grouped = f" GROUP BY {', '.join(by)}" if by else ""
    source = f"SELECT {', '.join(typed)}, {ends} AS {ENDS} FROM {partials}"
    whole = f"SELECT {', '.join([*by, *merged])}, min({ENDS}) AS {ENDS} FROM ({source}){grouped}"
    final = groups.final.replace("{finished}", groups.finished.replace("{merged}", whole), 1)
    columns = ", ".join(map(quote_name, groups.names))
    return f"SELECT * FROM ({final}\n) AS _result({quote_name(ENDS)}, {columns})"

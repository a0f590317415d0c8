"""From a view's statement to a plan: its update pattern, its branches, and what each of them joins.

What cannot be a view is refused here, with the reason.

The text of a view that is run: the user's own, with relations of ours and each result's life before its columns.

Names of relations are replaced where they stand, two columns (when a result begins and ends) are put before each select
list, and DuckDB's parser confirms that nothing else has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from windrow import times
from windrow.definitions import StreamDefinition
from windrow.errors import ViewError
from windrow.queries.engine.types import quote_name
from windrow.queries.sql import macros, parse_tree, volatility
from windrow.queries.sql.confinement import confine
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.split_aggregate import find_free_prefix, without_locations
from windrow.queries.sql.statement import Statement, parse
from windrow.queries.sql.window_clause import SYSTEM_SCHEMA
from windrow.queries.sql.window_spec import AllRows, RangeWindow
from windrow.queries.views import update_patterns
from windrow.queries.views.plan import JoinLink, PlanBranch, PlanPart, ViewPlan, list_base_tables, list_selects
from windrow.queries.views.update_patterns import Label, Pattern


def edit_statement(name: str, plan: ViewPlan) -> str:
    """The statement with relations of our own, and each result's life before its columns."""
    statement = plan.statement
    edits = [*_relation_edits(plan), *_select_edits(name, plan), *_union_edits(statement)]
    data, done, pieces = statement.sql.encode(), 0, []
    for start, stop, text in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        pieces += [data[done:start], text.encode()]
        done = stop
    return b"".join([*pieces, data[done:]]).decode().rstrip().rstrip(";")


def _relation_edits(plan: ViewPlan) -> Iterator[tuple[int, int, str]]:
    statement = plan.statement
    nodes = [node for select in list_selects(statement.tree) for node in list_base_tables(select["from_table"])]
    for part, node in zip(plan.parts, nodes, strict=True):
        if part.reference.span is None:
            raise ViewError(f"{part.name!r} was not found in the statement; write it plainly after FROM or JOIN")
        start, stop = (len(statement.text[:at].encode()) for at in part.reference.span)
        written = statement.sql.encode()[start:stop].decode()
        behind = written[len(node["table_name"]) :] if written.startswith(node["table_name"]) else ""
        alias = "" if node["alias"] else f" AS {quote_name(part.alias)}"
        yield start, stop, f"{quote_name(part.relation)}{behind}{alias}"


def _select_edits(name: str, plan: ViewPlan) -> Iterator[tuple[int, int, str]]:
    tokens = plan.statement.source.tokens
    places = [at for at, token in enumerate(tokens) if token.word == "select"]
    if len(places) != len(plan.branches):
        raise ViewError(f"view {name!r}: write each of its queries as SELECT … FROM …")
    stops = [*places[1:], len(tokens)]
    for branch, at, stop in zip(plan.branches, places, stops, strict=True):
        after = tokens[at]
        if tokens[at + 1].word in ("distinct", "all"):
            yield tokens[at + 1].start, tokens[at + 1].stop, " "
            after = tokens[at + 1]
        both = [[f"{quote_name(p.alias)}.{quote_name(plan.hidden(p)[n])}" for p in branch.streams] for n in (0, 1)]
        begins, ends = (f"{word}({', '.join(of)})" for word, of in zip(("greatest", "least"), both, strict=True))
        yield after.stop, after.stop, f" {begins} AS {quote_name(plan.begins)}, {ends} AS {quote_name(plan.ends)},"
        yield from _star_edits(name, plan, branch, at, stop)


def _star_edits(name: str, plan: ViewPlan, branch: PlanBranch, first: int, stop: int) -> Iterator[tuple[int, int, str]]:
    """A star stands for the columns that users know of."""
    tokens = plan.statement.source.tokens
    for at in range(first + 1, stop):
        before = tokens[at - 1]
        if tokens[at].text != "*" or not (before.word in ("select", "distinct", "all") or before.text in (",", ".")):
            continue
        own = branch.streams
        if before.text == ".":
            own = tuple(part for part in own if part.alias.lower() == tokens[at - 2].name.lower())
        hidden = ", ".join(quote_name(column) for part in own for column in plan.hidden(part))
        if not hidden:
            continue
        if at + 1 < len(tokens) and tokens[at + 1].word == "exclude":
            if tokens[at + 2].text != "(":
                raise ViewError(f"view {name!r}: write EXCLUDE with parentheses, as in * EXCLUDE (column)")
            yield tokens[at + 2].stop, tokens[at + 2].stop, f"{hidden}, "
        else:
            yield tokens[at].stop, tokens[at].stop, f" EXCLUDE ({hidden})"


def _union_edits(statement: Statement) -> Iterator[tuple[int, int, str]]:
    tokens = statement.source.tokens
    for at, token in enumerate(tokens):
        if token.word == "union":
            following = tokens[at + 1]
            if following.word == "distinct":
                yield following.start, following.stop, "ALL"
            elif following.word != "all":
                yield token.stop, token.stop, " ALL"


def confirm_edit(name: str, before: Sequence[Node], sql: str) -> None:
    """The edited text must read as the statement did, with two columns more in each SELECT."""
    answer = parse_tree.parse_statements(sql)
    after = list(list_selects(answer[0])) if isinstance(answer, list) and len(answer) == 1 else []
    same = len(after) == len(before)
    for old, new in zip(before, after, strict=False):
        same = same and _plain_select_list(old["select_list"]) == _plain_select_list(new["select_list"][2:])
        same = same and without_locations(old["where_clause"]) == without_locations(new["where_clause"])
    if not same:
        raise ViewError(
            f"view {name!r}: the statement could not be followed; name its columns one by one, "
            "and write it as SELECT … FROM … JOIN … ON … WHERE …"
        )


def _plain_select_list(items: list[Any]) -> list[Any]:
    """A select list without places and without what its stars leave out."""
    found = []
    for item in without_locations(items):
        dropped = {"exclude_list", "qualified_exclude_list"} if item.get("class") == "STAR" else set()
        found.append({key: value for key, value in item.items() if key not in dropped})
    return found


def make_plan(
    name: str,
    sql: str,
    streams: Mapping[str, StreamDefinition],
    tables: Mapping[str, pa.Schema],
    retroactive: Sequence[str] = (),
) -> ViewPlan:
    """Read a view's statement, or say why it cannot be one.

    Args:
        name: Of the view, for messages.
        sql: Its statement.
        streams: All streams there are.
        tables: The columns of all tables there are.
        retroactive: Tables whose changes reach back.
    """
    statement = parse(sql)
    folded = {known.lower(): known for known in (*streams, *tables)}
    for each in statement.references:
        if each.schema.lower() == SYSTEM_SCHEMA:
            raise ViewError(f"view {name!r}: windrow.{each.name} is of the catalog; a view reads streams and tables")
    confine(statement, lambda each: not each.schema and each.name.lower() in folded)
    _check_statement(name, statement, streams, folded)
    parts = tuple(_find_parts(statement, streams, tables, folded))
    if not any(part.definition for part in parts):
        raise ViewError(f"view {name!r} reads no stream; ask the table itself, or store the answer with put_table")
    found = update_patterns.label_query(statement.tree, _label_leaves(parts, retroactive))
    prefix = find_free_prefix(statement.sql.encode())
    if found.pattern is Pattern.STRICT:
        own = tuple(replace(part, relation=part.reference.relation) for part in parts)
        return ViewPlan(statement, found, own, (), False, statement.sql.rstrip().rstrip(";"), prefix)
    selects = list(_union_selects(name, statement.tree))
    distinct = _is_distinct(name, statement.tree)
    branches = tuple(_find_branches(name, selects, parts))
    draft = ViewPlan(statement, found, parts, branches, distinct, "", prefix)
    text = edit_statement(name, draft)
    confirm_edit(name, selects, text)
    taken = _map_result_columns(selects[0], branches[0]) if len(selects) == 1 and not distinct else ()
    return ViewPlan(statement, found, parts, branches, distinct, text, prefix, taken)


def _check_statement(
    name: str, statement: Statement, streams: Mapping[str, StreamDefinition], folded: Mapping[str, str]
) -> None:
    if statement.explain:
        raise ViewError(f"view {name!r}: a view is a query, without EXPLAIN")
    nodes = [visit.node for visit in parse_tree.walk(statement.tree)]
    if any(node.get("class") == "PARAMETER" for node in nodes):
        raise ViewError(f"view {name!r}: a view takes no parameters; write the values into its statement")
    if any(node.get("sample") is not None for node in nodes):
        raise ViewError(f"view {name!r}: a sample is another one each time; a view must depend on its rows alone")
    fickle = next(filter(None, map(volatility.find_volatile_call, nodes)), None)
    if fickle is not None:
        raise ViewError(f"view {name!r}: {fickle} gives something else each time; a view must depend on its rows alone")
    if macros.uses_sequence(statement):
        raise ViewError(f"view {name!r}: _seq is not kept in views; leave it and the macros that need it out")
    for reference in statement.references:
        definition = streams.get(folded[reference.name.lower()])
        window = reference.window
        if definition is None:
            if not isinstance(window, AllRows):
                raise ViewError(f"view {name!r}: {reference.name} is a table, which has no windows")
        elif isinstance(window, RangeWindow):
            _check_range(name, definition, window)


def _check_range(name: str, definition: StreamDefinition, window: RangeWindow) -> None:
    kept = definition.longest_life
    if window.slide is not None:
        raise ViewError(f"view {name!r}: a view moves with its inputs; leave SLIDE out of {window}")
    if kept is not None and window.length > kept:
        raise ViewError(
            f"view {name!r}: stream {definition.name!r} keeps rows for {times.format_duration(kept)}; "
            f"a window of {times.format_duration(window.length)} would not be complete"
        )


def _find_parts(
    statement: Statement,
    streams: Mapping[str, StreamDefinition],
    tables: Mapping[str, pa.Schema],
    folded: Mapping[str, str],
) -> Iterator[PlanPart]:
    for number, reference in enumerate(statement.references):
        own = folded[reference.name.lower()]
        definition = streams.get(own)
        schema = tables[own] if definition is None else definition.schema
        yield PlanPart(number, reference, own, definition, tuple(schema.names), f"_v{number}")


def _label_leaves(parts: Sequence[PlanPart], retroactive: Sequence[str]) -> update_patterns.LabelLeaf:
    by_relation = {part.reference.relation.lower(): part for part in parts}

    def leaf(node: Node) -> Label:
        part = by_relation[node["qualified_name"]["path"][-1].lower()]
        if part.definition is None:
            return update_patterns.label_table(part.name, retroactive=part.name in retroactive)
        return update_patterns.label_stream(part.definition, part.reference.window)

    return leaf


# -- the shape of a plan that can be kept up from new rows -----------------------------------------------------------


def _union_selects(name: str, node: Node) -> Iterator[Node]:
    """The SELECTs of a union, in the order of the text."""
    if node["cte_map"]["map"]:
        raise ViewError(f"view {name!r}: make the WITH query a view of its own, and name that here")
    if node["type"] == "SET_OPERATION_NODE":
        for child in node["children"]:
            yield from _union_selects(name, child)
        return
    for each in parse_tree.walk(node):
        if each.node.get("class") == "STAR" and each.node["columns"]:
            raise ViewError(f"view {name!r}: name the columns instead of COLUMNS(…)")
        if each.node.get("type") == "SUBQUERY":
            raise ViewError(f"view {name!r}: make the inner query a view of its own, and name that here")
    if any(modifier["type"] == "ORDER_MODIFIER" for modifier in node["modifiers"]):
        raise ViewError(f"view {name!r}: rows of a view have no order; put ORDER BY into the queries that ask it")
    yield node


def _is_distinct(name: str, tree: Node) -> bool:
    """Whether duplicates are eliminated, which only the outermost step may do."""

    def own(node: Node) -> bool:
        if any(modifier["type"] == "DISTINCT_MODIFIER" for modifier in node["modifiers"]):
            return True
        return node["type"] == "SET_OPERATION_NODE" and not node["setop_all"]

    def inner(node: Node) -> bool:
        return any(own(child) or inner(child) for child in node.get("children", ()))

    outermost = own(tree)
    if any(modifier["type"] == "ORDER_MODIFIER" for modifier in tree["modifiers"]):
        raise ViewError(f"view {name!r}: rows of a view have no order; put ORDER BY into the queries that ask it")
    if not outermost and inner(tree):
        raise ViewError(f"view {name!r}: make the part with DISTINCT a view of its own, and name that here")
    return outermost


def _find_branches(name: str, selects: Sequence[Node], parts: Sequence[PlanPart]) -> Iterator[PlanBranch]:
    left = list(parts)
    for select in selects:
        own = []
        for _ in list_base_tables(select["from_table"]):
            own.append(left.pop(0))
        if not any(part.definition for part in own):
            raise ViewError(f"view {name!r}: a SELECT of it reads no stream; its rows would never come")
        yield PlanBranch(tuple(own), tuple(_find_links(select, own)))


def _find_links(select: Node, parts: Sequence[PlanPart]) -> Iterator[JoinLink]:
    """Equalities of columns that every result fulfils."""
    for condition in (*_inner_conditions(select["from_table"]), select["where_clause"]):
        for each in _split_conjuncts(condition):
            if each.get("class") == "COMPARISON" and each["type"] == "COMPARE_EQUAL":
                left, right = _resolve_column(each["left"], parts), _resolve_column(each["right"], parts)
                if left and right and left[0].number != right[0].number:
                    yield JoinLink(left[0].number, left[1], right[0].number, right[1])
    yield from _find_using(select["from_table"], parts)


def _inner_conditions(node: Node) -> Iterator[Node]:
    if node["type"] == "JOIN":
        if node["join_type"] == "INNER" and node["ref_type"] == "REGULAR" and node["condition"] is not None:
            yield node["condition"]
        yield from _inner_conditions(node["left"])
        yield from _inner_conditions(node["right"])


def _find_using(node: Node, parts: Sequence[PlanPart]) -> Iterator[JoinLink]:
    if node["type"] != "JOIN":
        return
    yield from _find_using(node["left"], parts)
    yield from _find_using(node["right"], parts)
    # The last column of an ASOF join's USING is no equality.
    if node["join_type"] != "INNER" or node["ref_type"] != "REGULAR" or not node["using_columns"]:
        return
    relations = [{t["table_name"].lower() for t in list_base_tables(node[side])} for side in ("left", "right")]
    for column in node["using_columns"]:
        sides = [
            [
                (p, c)
                for p in parts
                if p.reference.relation.lower() in own
                for c in p.columns
                if c.lower() == column.lower()
            ]
            for own in relations
        ]
        # What a USING further down has made one counts as one, and the first stands for all of it.
        made = [1 + _count_using(node[side], column) for side in ("left", "right")]
        one_each = [len(side) for side in sides] == made
        if one_each and sides[0][0][0].number != sides[1][0][0].number:
            (left, one), (right, other) = sides[0][0], sides[1][0]
            yield JoinLink(left.number, one, right.number, other)


def _count_using(node: Node, column: str) -> int:
    """How many plain inner joins of a tree have a column in USING."""
    inner = (join for join in _list_joins(node) if join["join_type"] == "INNER" and join["ref_type"] == "REGULAR")
    return sum(column.lower() in (each.lower() for each in join["using_columns"]) for join in inner)


def _map_result_columns(select: Node, branch: PlanBranch) -> tuple[tuple[str, int, str], ...]:
    """What each column of a result is, if all are columns of streams that only equalities join; else nothing."""
    own, joins = branch.streams, list(_list_joins(select["from_table"]))
    plain = all(join["join_type"] == "INNER" and join["ref_type"] in ("REGULAR", "CROSS") for join in joins)
    if not joins or not plain or len(own) != len(branch.parts):
        return ()
    shared = [column for join in joins for column in join["using_columns"]]
    asked = [*shared, *(each for join in joins for each in _split_conjuncts(join["condition"]))]
    asked += _split_conjuncts(select["where_clause"])
    beside = any(
        select.get(each) for each in ("group_expressions", "group_sets", "having", "qualify", "sample", "modifiers")
    )
    sides = list_base_tables(select["from_table"])
    if len(asked) != len(branch.links) or beside or any(side["sample"] or side["column_name_alias"] for side in sides):
        return ()
    columns = []
    for item in select["select_list"]:
        found = _resolve_column(item, own) or _merged_column(item, own, shared)
        if found is None:
            return ()
        columns.append((item["alias"] or found[1], found[0].number, found[1]))
    return tuple(columns)


def _list_joins(node: Node) -> Iterator[Node]:
    if node["type"] == "JOIN":
        yield node
        yield from _list_joins(node["left"])
        yield from _list_joins(node["right"])


def _merged_column(node: Node, parts: Sequence[PlanPart], shared: Sequence[str]) -> tuple[PlanPart, str] | None:
    """The first part's own, of a column that USING has made one of several; its name alone would be of none else."""
    names = [each.lower() for each in node.get("column_names", ())]
    if node.get("class") != "COLUMN_REF" or len(names) != 1 or names[0] not in {each.lower() for each in shared}:
        return None
    return next((part, own) for part in parts for own in part.columns if own.lower() == names[0])


def _split_conjuncts(node: Node | None) -> Iterator[Node]:
    if node is None:
        return
    if node.get("class") == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _split_conjuncts(child)
    else:
        yield node


def _resolve_column(node: Node, parts: Sequence[PlanPart]) -> tuple[PlanPart, str] | None:
    """The part and column that an expression is, if it is plainly one."""
    if node.get("class") != "COLUMN_REF" or len(node["column_names"]) > 2:
        return None
    *alias, column = (each.lower() for each in node["column_names"])
    found = [
        (part, own)
        for part in parts
        if not alias or part.alias.lower() == alias[0]
        for own in part.columns
        if own.lower() == column
    ]
    return found[0] if len(found) == 1 else None

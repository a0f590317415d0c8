"""From a view's statement to a plan: its update pattern, its branches, what each of them joins, and its SQL.

A statement that cannot be a view is refused here, with the reason. The SQL is the user's own text: names of relations
are replaced, two columns (when a result begins and ends) are put before each select list, and DuckDB's parser confirms
that nothing else has changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from windrow import times
from windrow.catalog.records import ViewEntry
from windrow.definitions import StreamDefinition
from windrow.errors import ViewError
from windrow.queries.engine import instance
from windrow.queries.engine.types import quote_name
from windrow.queries.planner.planner import resolve_keys
from windrow.queries.planner.scan_sql import read_table_schema
from windrow.queries.sql import parse_tree, volatility
from windrow.queries.sql.analysis import analyse
from windrow.queries.sql.confinement import confine
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.split_aggregate import (
    CannotSplitError,
    find_free_prefix,
    read_engine_functions,
    without_locations,
)
from windrow.queries.sql.statement import Reference, Statement, parse, refuse_past
from windrow.queries.sql.window_clause import SYSTEM_SCHEMA
from windrow.queries.sql.window_spec import AllRows, CalendarWindow, OffsetWindow, OrderedWindow, RangeWindow
from windrow.queries.views import update_patterns
from windrow.queries.views.group_plan import is_grouped, split_groups
from windrow.queries.views.partitions import find_partition
from windrow.queries.views.plan import (
    JoinLink,
    Partition,
    PlanBranch,
    PlanPart,
    ViewPlan,
    list_base_tables,
    list_selects,
)
from windrow.queries.views.update_patterns import Label, Pattern
from windrow.snapshot import Snapshot


def edit_statement(name: str, plan: ViewPlan) -> str:
    """The statement with relations of our own, and two columns with the beginning and end of each result."""
    statement = plan.statement
    edits = [*_relation_edits(plan), *_select_edits(name, plan), *_union_edits(statement)]
    data, copied, pieces = statement.sql.encode(), 0, []
    for start, stop, text in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        pieces += [data[copied:start], text.encode()]
        copied = stop
    return b"".join([*pieces, data[copied:]]).decode().rstrip().rstrip(";")


def _relation_edits(plan: ViewPlan) -> Iterator[tuple[int, int, str]]:
    statement = plan.statement
    nodes = [node for select in list_selects(statement.tree) for node in list_base_tables(select["from_table"])]
    for part, node in zip(plan.parts, nodes, strict=True):
        if part.reference.span is None:
            raise ViewError(f"{part.name!r} was not found in the statement; write it plainly after FROM or JOIN")
        start, stop = (len(statement.text[:offset].encode()) for offset in part.reference.span)
        written = statement.sql.encode()[start:stop].decode()
        suffix = written[len(node["table_name"]) :] if written.startswith(node["table_name"]) else ""
        alias = "" if node["alias"] else f" AS {quote_name(part.alias)}"
        yield start, stop, f"{quote_name(part.relation)}{suffix}{alias}"


def _select_edits(name: str, plan: ViewPlan) -> Iterator[tuple[int, int, str]]:
    tokens = plan.statement.source.tokens
    positions = [position for position, token in enumerate(tokens) if token.word == "select"]
    if len(positions) != len(plan.branches):
        raise ViewError(f"view {name!r}: write each of its queries as SELECT … FROM …")
    stops = [*positions[1:], len(tokens)]
    for branch, position, stop in zip(plan.branches, positions, stops, strict=True):
        after = tokens[position]
        if tokens[position + 1].word in ("distinct", "all"):
            yield tokens[position + 1].start, tokens[position + 1].stop, " "
            after = tokens[position + 1]
        bounds = [
            [f"{quote_name(p.alias)}.{quote_name(plan.time_columns(p)[n])}" for p in branch.streams] for n in (0, 1)
        ]
        begins, ends = (
            f"{word}({', '.join(columns)})" for word, columns in zip(("greatest", "least"), bounds, strict=True)
        )
        yield after.stop, after.stop, f" {begins} AS {quote_name(plan.begins)}, {ends} AS {quote_name(plan.ends)},"
        yield from _star_edits(name, plan, branch, position, stop)


def _star_edits(name: str, plan: ViewPlan, branch: PlanBranch, first: int, stop: int) -> Iterator[tuple[int, int, str]]:
    """Exclude our own columns from each star."""
    tokens = plan.statement.source.tokens
    for position in range(first + 1, stop):
        before = tokens[position - 1]
        if tokens[position].text != "*" or not (
            before.word in ("select", "distinct", "all") or before.text in (",", ".")
        ):
            continue
        parts = branch.streams
        if before.text == ".":
            parts = tuple(part for part in parts if part.alias.lower() == tokens[position - 2].name.lower())
        hidden = ", ".join(quote_name(column) for part in parts for column in plan.time_columns(part))
        if not hidden:
            continue
        if position + 1 < len(tokens) and tokens[position + 1].word == "exclude":
            if tokens[position + 2].text != "(":
                raise ViewError(f"view {name!r}: write EXCLUDE with parentheses, as in * EXCLUDE (column)")
            yield tokens[position + 2].stop, tokens[position + 2].stop, f"{hidden}, "
        else:
            yield tokens[position].stop, tokens[position].stop, f" EXCLUDE ({hidden})"


def _union_edits(statement: Statement) -> Iterator[tuple[int, int, str]]:
    tokens = statement.source.tokens
    for position, token in enumerate(tokens):
        if token.word == "union":
            following = tokens[position + 1]
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
    plain = []
    for item in without_locations(items):
        dropped = {"exclude_list", "qualified_exclude_list"} if item.get("class") == "STAR" else set()
        plain.append({key: value for key, value in item.items() if key not in dropped})
    return plain


def make_plan(
    name: str,
    sql: str,
    streams: Mapping[str, StreamDefinition],
    tables: Mapping[str, pa.Schema],
    retroactive: Sequence[str] = (),
    *,
    recompute: bool = False,
) -> ViewPlan:
    """Read a view's statement, or say why it cannot be one.

    Args:
        name: Of the view, for messages.
        sql: Its statement.
        streams: All streams there are.
        tables: The columns of all tables there are.
        retroactive: Tables whose changes reach back.
        recompute: Have every slide compute it from scratch, also where new rows would do.
    """
    statement = parse(sql)
    refuse_past(statement.references, "a view")
    folded = {known_name.lower(): known_name for known_name in (*streams, *tables)}
    for reference in statement.references:
        if reference.schema.lower() == SYSTEM_SCHEMA:
            raise ViewError(
                f"view {name!r}: windrow.{reference.name} is of the catalog; a view reads streams and tables"
            )
    confine(statement, lambda reference: not reference.schema and reference.name.lower() in folded)
    check_statement(name, statement)
    _check_windows(name, statement, streams, folded)
    parts = tuple(_find_parts(statement, streams, tables, folded))
    if not any(part.definition for part in parts):
        raise ViewError(f"view {name!r} reads no stream; ask the table itself, or store the answer with put_table")
    label = update_patterns.label_query(statement.tree, _label_leaves(parts, retroactive))
    prefix = find_free_prefix(statement.sql.encode())
    if recompute and label.pattern is not Pattern.STRICT:
        label = Label(Pattern.STRICT, "recompute=True: every slide computes it from scratch")
    if label.pattern is Pattern.STRICT:
        keyed = None if recompute else _plan_count_window(name, statement, parts, label, prefix)
        if keyed is not None:
            return keyed
        draft = ViewPlan(statement, label, parts, (), False, "", prefix)
        partitioned = None if recompute else find_partition(statement, parts, draft.begins, draft.ends, prefix)
        if partitioned is not None:
            return replace(draft, sql=partitioned.sql, partition=partitioned.partition)
        plain_parts = tuple(replace(part, relation=part.reference.relation) for part in parts)
        return ViewPlan(statement, label, plain_parts, (), False, statement.sql.rstrip().rstrip(";"), prefix)
    selects = list(_union_selects(name, statement.tree))
    distinct = _is_distinct(name, statement.tree)
    branches = tuple(_find_branches(name, selects, parts))
    draft = ViewPlan(statement, label, parts, branches, distinct, "", prefix)
    text = edit_statement(name, draft)
    confirm_edit(name, selects, text)
    taken = _map_result_columns(selects[0], branches[0]) if len(selects) == 1 and not distinct else ()
    return ViewPlan(statement, label, parts, branches, distinct, text, prefix, taken)


def _keeps_groups(
    snapshot: Snapshot, plan: ViewPlan, streams: Mapping[str, StreamDefinition], tables: Mapping[str, pa.Schema]
) -> bool:
    """Whether a statement has groups that would be kept from new rows."""
    if not is_grouped(plan):
        return False
    try:
        with instance.open_cursor(snapshot.store) as cursor:
            split = split_groups(plan, read_engine_functions(cursor))
        inner = make_plan("", split.inner_sql, streams, tables)
    except (CannotSplitError, ViewError):
        return False
    return inner.label.pattern is not Pattern.STRICT and not inner.distinct


def _plan_count_window(
    name: str, statement: Statement, parts: Sequence[PlanPart], label: Label, prefix: str
) -> ViewPlan | None:
    """The plan of a selection from one stream in a count or session window; None of any other statement.

    Its keys must be among the columns of the result, since the rows that newer ones push out are found by them.
    """
    part = parts[0]
    window, definition = part.reference.window, part.definition
    if len(parts) > 1 or definition is None or not isinstance(window, OrderedWindow):
        return None
    unordered = update_patterns.label_query(statement.tree, lambda _: Label(Pattern.WEAK, ""))
    if unordered.pattern is Pattern.STRICT or statement.tree["type"] != "SELECT_NODE" or statement.tree["modifiers"]:
        return None
    window = resolve_keys(definition.name, definition.schema, window)
    shown = [_find_result_column(statement.tree["select_list"], part, key) for key in window.keys]
    if None in shown:
        return None
    # Rows that live equally long expire as they came, the oldest of a window first; else one may bring others back.
    watched = frozenset[int]() if definition.expires is None else frozenset([part.number])
    partition = Partition(
        {part.number: window.keys}, watched, frozenset(), part.life,
        window=window, shown=tuple(each for each in shown if each is not None),
    )  # fmt: skip
    try:
        selects = list(_union_selects(name, statement.tree))
        branch = next(_find_branches(name, selects, parts))
        draft = ViewPlan(statement, label, tuple(parts), (branch,), False, "", prefix, partition=partition)
        text = edit_statement(name, draft)
        confirm_edit(name, selects, text)
    except ViewError:  # what cannot be followed is computed from scratch
        return None
    return replace(draft, sql=text)


def _find_result_column(items: Sequence[Node], part: PlanPart, column: str) -> str | None:
    """Under which name a column of the only part is in a result; None if it is not, or not for sure."""
    for item in items:
        if item.get("class") == "STAR":
            changed = ("replace_list", "rename_list", "exclude_list", "qualified_exclude_list")
            return None if any(item.get(each) for each in changed) else column
        resolved = _resolve_column(item, (part,))
        if resolved is not None and resolved[1] == column:
            return item["alias"] or resolved[1]
    return None


def expand_views(name: str, sql: str, views: Mapping[str, ViewEntry]) -> str:
    """The statement with recomputed views as WITH queries, from their own statements.

    A recomputed view has rows for the instants at which it was computed; a view above it has other instants too.

    Args:
        name: Of the view, for messages.
        sql: Its statement.
        views: All views, by name.
    """
    statement, queries = parse(sql), {}
    recomputed = {
        view.name.lower(): view
        for view in views.values()
        if view.recompute or (view.grouped is not None and not view.partials_of)
    }
    for reference in statement.references:
        view = None if reference.schema else recomputed.get(reference.name.lower())
        if view is None:
            continue
        if not isinstance(reference.window, AllRows):
            raise ViewError(
                f"view {name!r}: {view.name} is computed anew at each slide and has no windows; leave it out"
            )
        text = (view.sql if view.grouped is None else view.grouped.statement).rstrip().rstrip(";")
        queries[view.name] = f"{quote_name(view.name)} AS ({text}\n)"
    if not queries:
        return sql
    tokens = statement.source.tokens
    words = [token.word for token in tokens[:2]]
    count = 0 if words[0] != "with" else 2 if words[1] == "recursive" else 1
    stop = tokens[count - 1].stop if count else 0
    before, after = (part.decode() for part in (statement.source.data[:stop], statement.source.data[stop:]))
    return f"{before or 'WITH'} {', '.join(queries.values())}{',' if count else ''} {after}"


def check_statement(name: str, statement: Statement) -> None:
    """Refuse what depends on more than the rows that it reads, or has no place in a view."""
    if statement.explain:
        raise ViewError(f"view {name!r}: a view is a query, without EXPLAIN")
    nodes = [visit.node for visit in parse_tree.walk(statement.tree)]
    if any(node.get("class") == "PARAMETER" for node in nodes):
        raise ViewError(f"view {name!r}: a view takes no parameters; write the values into its statement")
    if parse_tree.add_pivot_lists(statement.source) != statement.source.data.decode():
        raise ViewError(
            f"view {name!r}: the columns of a view stay as they are, so name the pivot's values, "
            "as in PIVOT … ON column IN ('a', 'b')"
        )
    if any(node.get("sample") is not None for node in nodes):
        raise ViewError(f"view {name!r}: a sample is another one each time; a view must depend on its rows alone")
    volatile = next(filter(None, map(volatility.find_volatile_call, nodes)), None)
    if volatile is not None:
        raise ViewError(
            f"view {name!r}: {volatile} gives something else each time; a view must depend on its rows alone"
        )
    if analyse(statement).uses_sequence:
        raise ViewError(f"view {name!r}: _seq is not kept in views; leave it and the macros that need it out")


def _check_windows(
    name: str, statement: Statement, streams: Mapping[str, StreamDefinition], folded: Mapping[str, str]
) -> None:
    for reference in statement.references:
        _check_window(name, reference, streams.get(folded[reference.name.lower()]))


def _check_window(name: str, reference: Reference, definition: StreamDefinition | None) -> None:
    window = reference.window
    if definition is None:
        if not isinstance(window, AllRows):
            raise ViewError(f"view {name!r}: {reference.name} is a table, which has no windows")
    elif isinstance(window, CalendarWindow):
        raise ViewError(f"view {name!r}: a view moves with its inputs, and {window} does not; ask it of the view")
    elif isinstance(window, RangeWindow | OffsetWindow):
        _check_range(name, definition, window)
    elif isinstance(window, OrderedWindow):
        resolve_keys(definition.name, definition.schema, window, ViewError)


def _check_range(name: str, definition: StreamDefinition, window: RangeWindow | OffsetWindow) -> None:
    lifetime = definition.longest_life
    if window.slide is not None:
        raise ViewError(f"view {name!r}: a view moves with its inputs; leave SLIDE out of {window}")
    if lifetime is not None and window.reach > lifetime:
        raise ViewError(
            f"view {name!r}: stream {definition.name!r} keeps rows for {times.format_duration(lifetime)}; "
            f"a window that begins {times.format_duration(window.reach)} before the clock would not be complete"
        )


def _find_parts(
    statement: Statement,
    streams: Mapping[str, StreamDefinition],
    tables: Mapping[str, pa.Schema],
    folded: Mapping[str, str],
) -> Iterator[PlanPart]:
    for number, reference in enumerate(statement.references):
        known_name = folded[reference.name.lower()]
        definition = streams.get(known_name)
        schema = tables[known_name] if definition is None else definition.schema
        yield PlanPart(number, reference, known_name, definition, tuple(schema.names), f"_v{number}")


def _label_leaves(parts: Sequence[PlanPart], retroactive: Sequence[str]) -> update_patterns.LabelLeaf:
    by_relation = {part.reference.relation.lower(): part for part in parts}

    def leaf(node: Node) -> Label:
        part = by_relation[node["qualified_name"]["path"][-1].lower()]
        if part.definition is None:
            return update_patterns.label_table(part.name, retroactive=part.name in retroactive)
        return update_patterns.label_stream(part.definition, part.reference.window)

    return leaf


def describe_pattern(statement: Statement, snapshot: Snapshot) -> str:
    """The update pattern of any statement in words, and how a view of it would be kept; empty if it reads no stream."""
    streams = {name: snapshot.view(name).entry.definition for name in snapshot.streams()}
    tables = {name: read_table_schema(entry) for name, entry in snapshot.tables.items()}
    folded = {name.lower(): name for name in (*streams, *tables)}
    references = {each.relation.lower(): each for each in statement.references if not each.schema}
    if not any(folded.get(each.name.lower()) in streams for each in references.values()):
        return ""

    def leaf(node: Node) -> Label:
        reference = references.get(node["qualified_name"]["path"][-1].lower())
        definition = None if reference is None else streams.get(folded.get(reference.name.lower(), ""))
        if reference is None or definition is None:
            return update_patterns.STATIC_LABEL
        if definition.pattern == str(Pattern.STRICT) and not definition.has_overrides:
            return Label(Pattern.STRICT, f"view {definition.name} is computed anew at each slide")
        return update_patterns.label_stream(definition, reference.window)

    try:
        label = update_patterns.label_query(statement.tree, leaf)
    except KeyError:  # a pivot is not one query but several, with nodes of its own
        label = Label(Pattern.STRICT, "a pivot: a new row replaces the old value")
    text = update_patterns.MAINTENANCE_TEXT[label.pattern]
    if label.pattern is Pattern.STRICT and all(each.name.lower() in folded for each in statement.references):
        parts = tuple(_find_parts(statement, streams, tables, folded))
        prefix = find_free_prefix(statement.sql.encode())
        kept_up = (
            find_partition(statement, parts, "t", "e", prefix) is not None
            or _plan_count_window("", statement, parts, label, prefix) is not None
            or _keeps_groups(snapshot, ViewPlan(statement, label, parts, (), False, "", prefix), streams, tables)
        )
        text = update_patterns.OVERRIDE_TEXT if kept_up else text
    return f"{label}; kept as a view: {text}"


# -- the shape of a plan that can be kept up from new rows -----------------------------------------------------------


def _union_selects(name: str, node: Node) -> Iterator[Node]:
    """The SELECTs of a union, in the order of the text."""
    if node["cte_map"]["map"]:
        raise ViewError(f"view {name!r}: make the WITH query a view of its own, and name that here")
    if node["type"] == "SET_OPERATION_NODE":
        for child in node["children"]:
            yield from _union_selects(name, child)
        return
    for visit in parse_tree.walk(node):
        if visit.node.get("class") == "STAR" and visit.node["columns"]:
            raise ViewError(f"view {name!r}: name the columns instead of COLUMNS(…)")
        if visit.node.get("type") == "SUBQUERY":
            raise ViewError(
                f"view {name!r}: make the inner query a view of its own, and name that here; "
                "where it reads only tables, write SEMI JOIN or ANTI JOIN instead of IN or EXISTS"
            )
    if any(modifier["type"] == "ORDER_MODIFIER" for modifier in node["modifiers"]):
        raise ViewError(f"view {name!r}: rows of a view have no order; put ORDER BY into the queries that ask it")
    yield node


def _is_distinct(name: str, tree: Node) -> bool:
    """Whether duplicates are eliminated, which only the outermost step may do."""

    def eliminates(node: Node) -> bool:
        if any(modifier["type"] == "DISTINCT_MODIFIER" for modifier in node["modifiers"]):
            return True
        return node["type"] == "SET_OPERATION_NODE" and not node["setop_all"]

    def inner(node: Node) -> bool:
        return any(eliminates(child) or inner(child) for child in node.get("children", ()))

    outermost = eliminates(tree)
    if any(modifier["type"] == "ORDER_MODIFIER" for modifier in tree["modifiers"]):
        raise ViewError(f"view {name!r}: rows of a view have no order; put ORDER BY into the queries that ask it")
    if not outermost and inner(tree):
        raise ViewError(f"view {name!r}: make the part with DISTINCT a view of its own, and name that here")
    return outermost


def _find_branches(name: str, selects: Sequence[Node], parts: Sequence[PlanPart]) -> Iterator[PlanBranch]:
    remaining = list(parts)
    for select in selects:
        branch_parts = []
        for _ in list_base_tables(select["from_table"]):
            branch_parts.append(remaining.pop(0))
        if not any(part.definition for part in branch_parts):
            raise ViewError(f"view {name!r}: a SELECT of it reads no stream; its rows would never come")
        yield PlanBranch(tuple(branch_parts), tuple(_find_links(select, branch_parts)))


def _find_links(select: Node, parts: Sequence[PlanPart]) -> Iterator[JoinLink]:
    """Equalities of columns that every result fulfils."""
    for condition in (*_inner_conditions(select["from_table"]), select["where_clause"]):
        for term in parse_tree.split_conjuncts(condition):
            if term.get("class") == "COMPARISON" and term["type"] == "COMPARE_EQUAL":
                left, right = _resolve_column(term["left"], parts), _resolve_column(term["right"], parts)
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
                if p.reference.relation.lower() in names
                for c in p.columns
                if c.lower() == column.lower()
            ]
            for names in relations
        ]
        # What a USING further down has made one counts as one, and the first stands for all of it.
        expected = [1 + _count_using(node[side], column) for side in ("left", "right")]
        unambiguous = [len(side) for side in sides] == expected
        if unambiguous and sides[0][0][0].number != sides[1][0][0].number:
            (left, left_column), (right, right_column) = sides[0][0], sides[1][0]
            yield JoinLink(left.number, left_column, right.number, right_column)


def _count_using(node: Node, column: str) -> int:
    """How many plain inner joins of a tree have a column in USING."""
    inner = (join for join in _list_joins(node) if join["join_type"] == "INNER" and join["ref_type"] == "REGULAR")
    return sum(column.lower() in (name.lower() for name in join["using_columns"]) for join in inner)


def _map_result_columns(select: Node, branch: PlanBranch) -> tuple[tuple[str, int, str], ...]:
    """The source of each result column, if all are columns of streams that only equalities join; else nothing."""
    streams, joins = branch.streams, list(_list_joins(select["from_table"]))
    plain = all(join["join_type"] == "INNER" and join["ref_type"] in ("REGULAR", "CROSS") for join in joins)
    if not joins or not plain or len(streams) != len(branch.parts):
        return ()
    shared = [column for join in joins for column in join["using_columns"]]
    conditions = [*shared, *(term for join in joins for term in parse_tree.split_conjuncts(join["condition"]))]
    conditions += parse_tree.split_conjuncts(select["where_clause"])
    has_other_clauses = any(
        select.get(term) for term in ("group_expressions", "group_sets", "having", "qualify", "sample", "modifiers")
    )
    tables = list_base_tables(select["from_table"])
    if (
        len(conditions) != len(branch.links)
        or has_other_clauses
        or any(table["sample"] or table["column_name_alias"] for table in tables)
    ):
        return ()
    columns = []
    for item in select["select_list"]:
        resolved = _resolve_column(item, streams) or _merged_column(item, streams, shared)
        if resolved is None:
            return ()
        columns.append((item["alias"] or resolved[1], resolved[0].number, resolved[1]))
    return tuple(columns)


def _list_joins(node: Node) -> Iterator[Node]:
    if node["type"] == "JOIN":
        yield node
        yield from _list_joins(node["left"])
        yield from _list_joins(node["right"])


def _merged_column(node: Node, parts: Sequence[PlanPart], shared: Sequence[str]) -> tuple[PlanPart, str] | None:
    """The first part's own, of a column that USING has made one of several; its name alone would be of none else."""
    names = [name.lower() for name in node.get("column_names", ())]
    if node.get("class") != "COLUMN_REF" or len(names) != 1 or names[0] not in {name.lower() for name in shared}:
        return None
    return next((part, column) for part in parts for column in part.columns if column.lower() == names[0])


def _resolve_column(node: Node, parts: Sequence[PlanPart]) -> tuple[PlanPart, str] | None:
    """The part and column that an expression is, if it is plainly one."""
    if node.get("class") != "COLUMN_REF" or len(node["column_names"]) > 2:
        return None
    *alias, column = (name.lower() for name in node["column_names"])
    matches = [
        (part, part_column)
        for part in parts
        if not alias or part.alias.lower() == alias[0]
        for part_column in part.columns
        if part_column.lower() == column
    ]
    return matches[0] if len(matches) == 1 else None

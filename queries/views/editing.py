"""The text of a view that is run: the user's own, with relations of ours and each result's life before its columns.

Names of relations are replaced where they stand, two columns (when a result begins and ends) are put before each select
list, and DuckDB's parser confirms that nothing else has changed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from windrow.errors import ViewError
from windrow.queries.engine.types import quoted
from windrow.queries.sql import parse_tree
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.split_aggregate import plain
from windrow.queries.sql.statement import Statement
from windrow.queries.views.plan import Branch, Plan, base_tables, selects_of


def edited(name: str, plan: Plan) -> str:
    """The statement with relations of our own, and each result's life before its columns."""
    statement = plan.statement
    edits = [*_relation_edits(plan), *_select_edits(name, plan), *_union_edits(statement)]
    data, done, pieces = statement.sql.encode(), 0, []
    for start, stop, text in sorted(edits, key=lambda edit: (edit[0], edit[1])):
        pieces += [data[done:start], text.encode()]
        done = stop
    return b"".join([*pieces, data[done:]]).decode().rstrip().rstrip(";")


def _relation_edits(plan: Plan) -> Iterator[tuple[int, int, str]]:
    statement = plan.statement
    nodes = [node for select in selects_of(statement.tree) for node in base_tables(select["from_table"])]
    for part, node in zip(plan.parts, nodes, strict=True):
        if part.reference.span is None:
            raise ViewError(f"{part.name!r} was not found in the statement; write it plainly after FROM or JOIN")
        start, stop = (len(statement.text[:at].encode()) for at in part.reference.span)
        written = statement.sql.encode()[start:stop].decode()
        behind = written[len(node["table_name"]) :] if written.startswith(node["table_name"]) else ""
        alias = "" if node["alias"] else f" AS {quoted(part.alias)}"
        yield start, stop, f"{quoted(part.relation)}{behind}{alias}"


def _select_edits(name: str, plan: Plan) -> Iterator[tuple[int, int, str]]:
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
        both = [[f"{quoted(p.alias)}.{quoted(plan.hidden(p)[n])}" for p in branch.streams] for n in (0, 1)]
        begins, ends = (f"{word}({', '.join(of)})" for word, of in zip(("greatest", "least"), both, strict=True))
        yield after.stop, after.stop, f" {begins} AS {quoted(plan.begins)}, {ends} AS {quoted(plan.ends)},"
        yield from _star_edits(name, plan, branch, at, stop)


def _star_edits(name: str, plan: Plan, branch: Branch, first: int, stop: int) -> Iterator[tuple[int, int, str]]:
    """A star stands for the columns that users know of."""
    tokens = plan.statement.source.tokens
    for at in range(first + 1, stop):
        before = tokens[at - 1]
        if tokens[at].text != "*" or not (before.word in ("select", "distinct", "all") or before.text in (",", ".")):
            continue
        own = branch.streams
        if before.text == ".":
            own = tuple(part for part in own if part.alias.lower() == tokens[at - 2].name.lower())
        hidden = ", ".join(quoted(column) for part in own for column in plan.hidden(part))
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


def confirm(name: str, before: Sequence[Node], sql: str) -> None:
    """The edited text must read as the statement did, with two columns more in each SELECT."""
    answer = parse_tree.statements(sql)
    after = list(selects_of(answer[0])) if isinstance(answer, list) and len(answer) == 1 else []
    same = len(after) == len(before)
    for old, new in zip(before, after, strict=False):
        same = same and _bare(old["select_list"]) == _bare(new["select_list"][2:])
        same = same and plain(old["where_clause"]) == plain(new["where_clause"])
    if not same:
        raise ViewError(
            f"view {name!r}: the statement could not be followed; name its columns one by one, "
            "and write it as SELECT … FROM … JOIN … ON … WHERE …"
        )


def _bare(items: list[Any]) -> list[Any]:
    """A select list without places and without what its stars leave out."""
    found = []
    for item in plain(items):
        dropped = {"exclude_list", "qualified_exclude_list"} if item.get("class") == "STAR" else set()
        found.append({key: value for key, value in item.items() if key not in dropped})
    return found

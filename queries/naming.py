"""What a statement does with columns, as far as its text and its tree tell.

Of the columns that it can possibly read this may name too many, never too few.
"""

from collections.abc import Sequence

from windrow.queries import trees
from windrow.queries.statements import Statement, by_likeness

_UNSAID = {"STAR", "POSITIONAL_REFERENCE"}
"""Expressions that mean columns without naming them."""
_UNNAMED = {"PIVOT", "SHOW_REF"}
"""Relations that mean all columns of what they are made of."""

_SUMS = {"sum", "avg", "mean"}


def columns_named(statement: Statement, columns: Sequence[str]) -> frozenset[str] | None:
    """Those of a relation's columns that the statement can read; None if that may be any."""
    words = _words(statement)
    if words is None or not all(name.isascii() for name in columns):  # DuckDB's cases are not Python's
        return None
    return frozenset(name for name in columns if name.lower() in words)


@by_likeness
def _words(statement: Statement) -> frozenset[str] | None:
    """Every word of a statement that can be a column's name, in lower case; None if it may mean others too."""
    relations = {name.lower() for r in statement.references for name in (r.name, r.alias, r.relation)}
    words = {token.name.lower() for token in statement.source.tokens if token.named}
    for visit in trees.walk(statement.tree):
        node = visit.node
        if node.get("class") in _UNSAID or str(node.get("type")) in _UNNAMED or node.get("ref_type") == "NATURAL":
            return None
        if node.get("column_name_alias"):
            return None
        path = [str(name).lower() for name in node.get("column_names") or ()]
        if path and path[-1] in relations:  # a row as a whole
            return None
        words.update(path)
    return frozenset(words)


@by_likeness
def adds_up(statement: Statement, columns: tuple[str, ...]) -> bool:
    """Whether it only adds up columns of all rows, or of all that are equal in some.

    Of its own tables DuckDB knows the least and the greatest value. So it can add up in 64 bits instead of 128, and
    group by numbers that lie close together without a hash table. Where there is more to do with a row, in particular
    where rows are filtered, its scan of a table is no quicker than that of Arrow.
    """
    names, found = {name.lower() for name in columns}, False
    for visit in trees.walk(statement.tree):
        node = visit.node
        if node.get("where_clause") or node.get("filter") or node.get("qualify") or str(node.get("type")) == "JOIN":
            return False
        for group in node.get("group_expressions") or ():
            if str((group.get("column_names") or [""])[-1]).lower() not in names:
                return False
        found = found or (node.get("class") == "FUNCTION" and str(node.get("function_name")).lower() in _SUMS)
    return found

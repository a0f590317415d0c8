"""Predicates over one row, as checks of a stream have them: confined and typed when they are declared."""

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from windrow import row_checks
from windrow.errors import DefinitionError
from windrow.queries.sql import parse_tree
from windrow.queries.sql.confinement import find_problem
from windrow.queries.sql.volatility import find_volatile_call

_MOST_CHECKS = 64
_OTHER_CLAUSES = ("where_clause", "having", "qualify", "sample")
_OF_MANY_ROWS = {"SUBQUERY": "a subquery", "WINDOW": "a window function", "PARAMETER": "a parameter", "STAR": "*"}


def check_predicates(stream: str, schema: pa.Schema, checks: Mapping[str, str]) -> row_checks.Checks:
    """Checks as a definition keeps them, or what is wrong with one: it must speak of one row and be true or false."""
    if not isinstance(checks, Mapping):
        raise DefinitionError(
            f"stream {stream!r}: checks={checks!r} are no predicates; give them like {{'amount >= 0': 'reject'}}"
        )
    if len(checks) > _MOST_CHECKS:
        raise DefinitionError(f"stream {stream!r}: {len(checks)} checks are too many; join some of them by AND")
    for predicate, outcome in checks.items():
        if outcome not in row_checks.OUTCOMES:
            raise DefinitionError(
                f"stream {stream!r}: what the check {predicate!r} does with a row is {outcome!r}; choose "
                "'reject' (the row) or 'refuse' (the append)"
            )
        problem = find_predicate_problem(predicate, schema)
        if problem is not None:
            raise DefinitionError(f"stream {stream!r}: the check {predicate!r} cannot be used: {problem}")
    return tuple((predicate.strip(), outcome) for predicate, outcome in checks.items())


def find_predicate_problem(predicate: str, schema: pa.Schema) -> str | None:
    """Why a text is no predicate over one row with these columns; None if it is one."""
    if not isinstance(predicate, str) or not predicate.strip():
        return "it is no SQL text"
    parsed = parse_tree.parse_statements(f"SELECT ({predicate}\n)")
    alone = parse_tree.parse_statements(f"SELECT {predicate}")  # "a) OR (b" is one expression in parentheses only
    for refusal in (alone, parsed):
        if isinstance(refusal, parse_tree.Refusal):
            return refusal.message.partition("\n")[0]
    assert not isinstance(parsed, parse_tree.Refusal)
    node = parsed[0]
    if (
        len(parsed) != 1
        or node["type"] != "SELECT_NODE"
        or len(node["select_list"]) != 1
        or node["from_table"]["type"] != "EMPTY"
        or node["modifiers"]
        or node["group_expressions"]
        or any(node[clause] is not None for clause in _OTHER_CLAUSES)
    ):
        return "it is more than one expression"
    for visit in parse_tree.walk(node["select_list"][0]):
        role = visit.node.get("class")
        problem = find_problem(visit.node)
        if problem is not None:
            return problem
        if role in _OF_MANY_ROWS:
            return f"it has {_OF_MANY_ROWS[role]}, where it must speak of one row"
        if (volatile := find_volatile_call(visit.node)) is not None and volatile.lower() not in map(
            str.lower, schema.names
        ):
            return f"{volatile} may be different when the rows are appended again"
    try:
        kind = row_checks.bind(schema, predicate)
    except duckdb.Error as error:
        return str(error).splitlines()[0]
    return None if kind == "BOOLEAN" else f"it is of type {kind}, and must be true or false"

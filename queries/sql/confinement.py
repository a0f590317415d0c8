"""What a statement may contain: known nodes, relations and table functions, and no function that reaches outside.

This is the first of two barriers; the second is the instance, which is locked and cannot reach other files.
"""

from collections.abc import Callable

from windrow.errors import ConfinementError, QueryError
from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Reference, Statement
from windrow.queries.sql.window_clause import SYSTEM_SCHEMA

QUERY_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
RELATION_NODES = {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF"}
MODIFIER_NODES = {"ORDER_MODIFIER", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER", "DISTINCT_MODIFIER"}
ORDER_NODES = {"ORDER_DEFAULT", "ASCENDING", "DESCENDING"}
EXPRESSION_CLASSES = {
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "DEFAULT", "FUNCTION",
    "LAMBDA", "LAMBDA_REF", "OPERATOR", "PARAMETER", "POSITIONAL_REFERENCE", "STAR", "SUBQUERY", "TYPE", "WINDOW",
}  # fmt: skip
TABLE_FUNCTIONS = {
    "generate_series", "icu_calendar_names", "json_each", "json_tree", "pg_timezone_names", "range",
    "regexp_split_to_table", "repeat", "repeat_row", "unnest",
}  # fmt: skip
"""Table functions that compute from their arguments alone."""

SHOW_TYPES = {"DESCRIBE", "SUMMARY"}
DENIED_FUNCTIONS = {
    # what the process and the engine know
    "getenv", "current_setting",
    # what lasts longer than the query
    "nextval", "currval", "setval", "write_log",
    # SQL inside a string, which no tree shows
    "query", "query_table", "json_execute_serialized_sql", "json_serialize_plan", "json_deserialize_sql",
    # files, were they ever callable as expressions
    "glob", "read_text", "read_blob", "read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_parquet",
    "parquet_scan", "read_duckdb", "sniff_csv", "which_secret",
    # time and memory for nothing, or states that only the engine may make
    "sleep_ms", "pg_sleep", "to_aggregate_state",
}  # fmt: skip
DENIED_PREFIXES = ("__internal_", "duckdb_", "pragma_", "read_", "pg_get_", "parquet_")

Exists = Callable[[Reference], bool]


def confine(statement: Statement, exists: Exists) -> None:
    """Refuse a statement that could do anything else than read relations of the warehouse.

    Args:
        statement: As parsed; its tree is the tree of exactly the SQL that will run.
        exists: Whether a reference names a relation that the query may read.

    Raises:
        ConfinementError: it reaches for something a query may not touch.
        QueryError: it names a relation that does not exist.
    """
    for visit in parse_tree.walk(statement.tree):
        problem = find_problem(visit.node)
        if problem is not None:
            raise statement.error(parse_tree.find_location(visit.node), problem, ConfinementError)
    for reference in statement.references:
        if reference.schema.lower() not in ("", SYSTEM_SCHEMA) or not exists(reference):
            raise _unknown_relation_error(statement, reference)


def find_problem(node: parse_tree.Node) -> str | None:
    """Why this very node may be in no statement, without what lies below it; None if it may."""
    kind, role = node.get("type"), node.get("class")
    if role is not None:
        if role not in EXPRESSION_CLASSES:
            return f"{_describe_kind(role)} cannot be used in a query"
        return _function_problem(node) if role in ("FUNCTION", "WINDOW") else None
    if not isinstance(kind, str) or kind in QUERY_NODES or kind in MODIFIER_NODES or kind in ORDER_NODES:
        return None
    if kind not in RELATION_NODES:
        return f"{_describe_kind(kind)} cannot be used in a query; only SELECT can"
    return _relation_problem(node, kind)


def _relation_problem(node: parse_tree.Node, kind: str) -> str | None:
    if kind == "TABLE_FUNCTION":
        function = node["function"]
        name = str(function.get("function_name", "")).lower()
        if function.get("class") != "FUNCTION" or name not in TABLE_FUNCTIONS:
            return f"the table function {name} cannot be used in a query"
    elif kind == "SHOW_REF":
        if node["show_type"] not in SHOW_TYPES or node["query"] is None:
            return "SHOW like this cannot be used here; SHOW TABLES lists what can be asked, and DESCRIBE its columns"
    elif kind == "BASE_TABLE" and node.get("at_clause") is not None:
        return "AT cannot be used here; write [FROM TIMESTAMP '…' TO TIMESTAMP '…'] behind the stream's name"
    return None


def _function_problem(node: parse_tree.Node) -> str | None:
    names = {str(node.get("function_name", "")).lower(), str(node["qualified_name"]["path"][-1]).lower()}
    for name in sorted(names):
        if name in DENIED_FUNCTIONS or name.startswith(DENIED_PREFIXES):
            return f"the function {name} cannot be used in a query"
    return None


def _unknown_relation_error(statement: Statement, reference: Reference) -> QueryError:
    name = f"{reference.schema}.{reference.name}" if reference.schema else reference.name
    offset = None if reference.span is None else len(statement.text[: reference.span[0]].encode())
    if reference.schema.lower() not in ("", SYSTEM_SCHEMA):
        message = f"{name!r} is outside the warehouse; name streams, tables and views without a schema"
        return statement.error(offset, message, ConfinementError)
    if any(sign in reference.name for sign in "./\\:*"):
        message = f"{name!r} is not a stream or table, and a query cannot read files"
        return statement.error(offset, message, ConfinementError)
    return statement.error(offset, f"there is no stream, table or view {name!r}; SHOW TABLES lists them")


def _describe_kind(kind: str) -> str:
    return kind.removesuffix("_NODE").removesuffix("_QUERY").replace("_", " ")

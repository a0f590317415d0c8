"""Volatile functions, which may give something else when they are called again: clocks, randomness, session state.

DuckDB lists which of its functions are volatile, but not which macros call them, nor that ``age`` with one argument
reads the clock. ``user`` is not volatile: there is no login here, so it is always the same.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from duckdb import __version__ as duckdb_version

from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Statement, cached_per_template

_BARE_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""Names that read the clock even without parentheses, where no column has that name."""


class VolatileFunctions(NamedTuple):
    """Names in lower case, macros among them."""

    names: frozenset[str]
    clocks: frozenset[str]
    """Those of them that have one value within a transaction; DuckDB's planner may replace them by a constant."""


_KNOWN_VERSION = "2.0.0"
_KNOWN_CLOCKS = frozenset({
    "ago", "current_catalog", "current_database", "current_date", "current_schema", "current_schemas",
    "current_setting", "current_time", "current_timestamp", "get_current_time", "get_current_timestamp",
    "getvariable", "in_search_path", "localtime", "localtimestamp", "now", "pg_conf_load_time",
    "pg_postmaster_start_time", "today", "transaction_timestamp", "txid_current",
})  # fmt: skip
_KNOWN_OTHERS = frozenset({
    "assert_true", "current_connection_id", "current_query", "current_query_id", "current_transaction_id", "currval",
    "error", "gen_random_uuid", "json_group_object", "nextval", "pg_sleep", "random", "setseed", "setval", "sleep_ms",
    "stats", "uuid", "uuidv4", "uuidv7", "vector_type", "write_log",
})  # fmt: skip
"""What DuckDB of that version lists: to ask it takes as long as the first statement of a process (`bench cold`)."""


_ALIKE = frozenset({"assert_true()", "error()", "json_group_object()"})
"""Of these, those that give the same, or fail, whenever they are called with the same values."""


@lru_cache(maxsize=1)
def _volatile_functions() -> VolatileFunctions:
    if duckdb_version == _KNOWN_VERSION:
        return VolatileFunctions(_KNOWN_CLOCKS | _KNOWN_OTHERS, _KNOWN_CLOCKS)
    return list_volatile_functions()


def list_volatile_functions() -> VolatileFunctions:
    """As DuckDB itself lists them."""
    functions = parse_tree.list_functions()
    within = {name for name, stability, _ in functions if stability == "CONSISTENT_WITHIN_QUERY"}
    volatile = {name for name, stability, _ in functions if stability == "VOLATILE"}
    macros = [(name, definition) for name, _, definition in functions if definition is not None]
    return VolatileFunctions(
        _add_calling_macros(macros, within | volatile | _BARE_CLOCKS),
        _add_calling_macros(macros, within | _BARE_CLOCKS),
    )


def _add_calling_macros(macros: Collection[tuple[str, str]], names: Collection[str]) -> frozenset[str]:
    """The functions, and all macros that call them directly or through other macros."""
    calling, count = set(names), 0
    while len(calling) > count:
        count = len(calling)
        calling |= {name for name, definition in macros if not calling.isdisjoint(re.findall(r"\w+", definition))}
    return frozenset(calling)


def find_volatile_call(node: parse_tree.Node) -> str | None:
    """The volatile function that this very expression calls, without what lies below it; None for none."""
    if node.get("class") == "COLUMN_REF":
        path = [str(name).lower() for name in node["column_names"]]
        return path[0] if len(path) == 1 and path[0] in _BARE_CLOCKS else None
    name = str(node.get("function_name") or "").lower()
    until_today = name == "age" and len(node.get("arguments", ())) == 1
    return f"{name}()" if until_today or name in _volatile_functions().names else None


def find_change(statement: Statement) -> str | None:
    """What in a statement gives something else each time, over the same rows too; None if nothing does."""
    for visit in parse_tree.walk(statement.tree):
        call = find_volatile_call(visit.node)
        if call is not None and call not in _ALIKE:
            return call
        if visit.node.get("sample") is not None:
            return "a sample"
    return None


@cached_per_template
def has_volatile_constant(statement: Statement) -> bool:
    """Whether DuckDB's planner may turn something in the statement into a constant that depends on when it is run."""
    tokens = statement.source.tokens
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        name = token.name.lower() if token.is_name else ""
        calls = following is not None and following.text == "("
        if name in _BARE_CLOCKS or (calls and (name == "age" or name in _volatile_functions().clocks)):
            return True
    return False

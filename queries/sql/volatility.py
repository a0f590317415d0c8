"""Functions that need not give the same when they are asked again: the wall clock, chance, and what a session knows.

DuckDB says which of its functions are such, but not which macros, nor that ``age`` of one time is that until today. Who
is asking (``user``) is the same always: nobody logs in here.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

import duckdb

from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Statement, cached_per_template

_BARE_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""What is a clock without parentheses too, where no column has that name."""


@dataclass(frozen=True)
class _VolatileFunctions:
    unsteady: frozenset[str]
    clocks: frozenset[str]
    """Those of them that are one value within a transaction, which a planner may put in their place."""


@lru_cache(maxsize=1)
def _read_volatile_functions() -> _VolatileFunctions:
    with duckdb.connect(":memory:") as engine:
        rows = engine.execute("SELECT lower(function_name), stability FROM duckdb_functions()").fetchall()
        macros = engine.execute(
            "SELECT lower(function_name), lower(macro_definition) FROM duckdb_functions() WHERE function_type = 'macro'"
        ).fetchall()
    within = {name for name, stability in rows if stability == "CONSISTENT_WITHIN_QUERY"}
    volatile = {name for name, stability in rows if stability == "VOLATILE"}
    return _VolatileFunctions(
        _add_calling_macros(macros, within | volatile | _BARE_CLOCKS),
        _add_calling_macros(macros, within | _BARE_CLOCKS),
    )


def _add_calling_macros(macros: Collection[tuple[str, str]], names: Collection[str]) -> frozenset[str]:
    """Functions, and the macros that name them, or name such a macro."""
    found, before = set(names), 0
    while len(found) > before:
        before = len(found)
        found |= {name for name, definition in macros if not found.isdisjoint(re.findall(r"\w+", definition))}
    return frozenset(found)


def find_volatile_call(node: parse_tree.Node) -> str | None:
    """The unsteady function that an expression calls, as it is written, whatever lies below it; None for none."""
    if node.get("class") == "COLUMN_REF":
        path = [str(name).lower() for name in node["column_names"]]
        return path[0] if len(path) == 1 and path[0] in _BARE_CLOCKS else None
    name = str(node.get("function_name") or "").lower()
    until_today = name == "age" and len(node.get("arguments", ())) == 1
    return f"{name}()" if until_today or name in _read_volatile_functions().unsteady else None


@cached_per_template
def has_volatile_constant(statement: Statement) -> bool:
    """Whether a constant of the statement may depend on when it is run."""
    tokens = statement.source.tokens
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        name = token.name.lower() if token.named else ""
        calls = following is not None and following.text == "("
        if name in _BARE_CLOCKS or (calls and (name == "age" or name in _read_volatile_functions().clocks)):
            return True
    return False

"""Checks arguments as users give them, so that an error names the wrong one before anything is done."""

from collections.abc import Mapping, Sequence
from typing import Any

from windrow.errors import DefinitionError, QueryError


def check_statement(statement: object, params: object = None) -> None:
    """Refuse what is no statement, and parameters that cannot be bound to one."""
    if not isinstance(statement, str):
        raise QueryError(f"a statement is text, not {_kind(statement)}")
    if params is None or isinstance(params, Mapping) or _is_list(params):
        return
    raise QueryError(f"params={params!r} cannot be bound; give a list for ? and $1, or a dict for $name")


def check_names(given: Any, what: str) -> tuple[str, ...]:
    """Names, of which a single one may stand for itself."""
    if isinstance(given, str):
        return (given,)
    if not _is_list(given) or not all(isinstance(name, str) for name in given):
        raise DefinitionError(f"{what}={given!r} must be a name or a list of names")
    return tuple(given)


def _is_list(given: object) -> bool:
    return isinstance(given, Sequence | set | frozenset) and not isinstance(given, str | bytes)


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"

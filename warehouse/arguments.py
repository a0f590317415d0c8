"""Checks arguments as users give them, so that an error names the wrong one before anything is done."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windrow.errors import DefinitionError, FormatError, QueryError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B\s*", re.IGNORECASE)


def check_statement(statement: object, params: object = None) -> None:
    """Refuse what is no statement, and parameters that cannot be bound to one."""
    if not isinstance(statement, str):
        raise QueryError(f"a statement is text, not {_kind(statement)}")
    if params is None or isinstance(params, Mapping) or _is_list(params):
        return
    raise QueryError(f"params={params!r} cannot be bound; give a list for ? and $1, or a dict for $name")


def check_path(value: str | os.PathLike[str]) -> Path:
    """A path; one with a NUL character is refused."""
    path = Path(value)
    if "\0" in str(path):
        raise FormatError(f"the path {str(path)!r} holds a NUL character, which no path can; remove it")
    return path


def check_size(value: object, what: str) -> int | None:
    """The bytes of a size such as ``"500MB"``, None without one."""
    if value is None:
        return None
    size = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if size is None:
        raise QueryError(f"{value!r} is not a {what} limit; write one such as '500MB' or '2GB'")
    return int(float(size[1]) * (1024 if size[3] else 1000) ** " KMGT".index(size[2].upper() or " "))


def check_share(value: object, what: str) -> float | None:
    """A share of all, from 0 to 1, None without one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise DefinitionError(f"{what}={value!r} is no share; write one from 0 to 1, such as 0.01")
    return float(value)


def check_count(value: object, what: str, meaning: str) -> int:
    """A whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise QueryError(f"{what}={value!r} is not {meaning}; write a whole number such as 12")
    return value


def check_names(value: Any, what: str) -> tuple[str, ...]:
    """Names, of which a single one may stand for itself."""
    if isinstance(value, str):
        return (value,)
    if not _is_list(value) or not all(isinstance(name, str) for name in value):
        raise DefinitionError(f"{what}={value!r} must be a name or a list of names")
    return tuple(value)


def find_first_failing(count: int, fails: Callable[[int, int], bool]) -> int:
    """Find the first of `count` items that fails, by halving; at least one of them does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(low, middle) else (middle, high)
    return low


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes)


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"

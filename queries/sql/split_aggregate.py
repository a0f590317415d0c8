"""Pieces of a statement: clauses by their words, trees without places, and which joins keep the rows of a stream.

Whoever cuts a statement finds a piece here at token level and lets DuckDB's parser confirm it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from windrow.queries.sql import parse_tree
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.statement import Statement

CLAUSES = ("select", "from", "where", "group", "having", "window", "qualify", "order", "limit", "offset")
PLACES = ("query_location", "query_location_length")


class CannotCutError(Exception):
    """Why a statement cannot be computed slot by slot; only ever seen by our own code."""


def clauses_of(statement: Statement) -> dict[str, tuple[int, int]]:
    """The clauses of a statement by their first word: where they begin and end, in bytes."""
    tokens = statement.source.tokens
    found: list[tuple[str, int]] = []
    depth, end = 0, len(statement.sql.encode())
    for at, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        elif token.text == ";" and depth == 0:
            end = token.start
            break
        elif depth == 0 and token.word in CLAUSES and not _is_inside(tokens, at):
            found.append((token.word, token.start))
    stops = [*(start for _, start in found[1:]), end]
    clauses = {word: (start, stop) for (word, start), stop in zip(found, stops, strict=True)}
    if len(clauses) != len(found) or "select" not in clauses or "from" not in clauses:
        raise CannotCutError("its clauses were not found")
    return clauses


def free_prefix(data: bytes) -> str:
    """The beginning of names that occur nowhere in a text."""
    lower = data.lower()
    return next(name for n in range(10_000) if (name := f"_p{n}_").encode() not in lower)


def nodes(value: Any) -> Iterator[Node]:
    """Every object in a piece of a tree."""
    if isinstance(value, list):
        for item in value:
            yield from nodes(item)
    elif isinstance(value, dict):
        yield value
        for item in value.values():
            yield from nodes(item)


def plain(value: Any) -> Any:
    """A piece of a tree without places."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in PLACES}
    return value


def equal(one: Any, other: Any, *, parameters: bool = True) -> bool:
    """Whether two pieces without places are equal; the outermost alias of an expression on its own does not count."""
    if parameters:
        return bool(one == other)
    blank = [{**each, "alias": ""} for each in (one, other)]
    return _renumbered(blank[0]) == _renumbered(blank[1])  # type: ignore[no-any-return]


def _renumbered(value: Any) -> Any:
    """A piece without the numbers of its parameters, which depend on where it stands."""
    if isinstance(value, list):
        return [_renumbered(item) for item in value]
    if isinstance(value, dict):
        return {key: _renumbered(item) for key, item in value.items() if key != "identifier"}
    return value


def only(text: str) -> Node:
    """The tree of a text that must be one SELECT."""
    answer = parse_tree.statements(text)
    if isinstance(answer, parse_tree.Refusal) or len(answer) != 1 or answer[0]["type"] != "SELECT_NODE":
        raise CannotCutError("a piece of it is no query")
    return answer[0]


def position(node: Node, count: int) -> int:
    """The select item that a constant in GROUP BY means."""
    literal = node.get("literal") or {}
    if literal.get("kind") != "INTEGER" or not 1 <= int(literal["text"]) <= count:
        raise CannotCutError("a group is a constant")
    return int(literal["text"]) - 1


def _is_inside(tokens: Sequence[Any], at: int) -> bool:
    """Whether a clause's word is part of an expression: IS DISTINCT FROM, WITHIN GROUP."""
    words = [token.word for token in tokens[max(0, at - 2) : at + 1]]
    return words in (["is", "distinct", "from"], ["not", "distinct", "from"]) or words[-2:] == ["within", "group"]


def holds(table: Node, relation: str) -> int:
    """How often each row of a relation can stand behind a row of FROM; 2 where that cannot be said."""
    if table["type"] == "BASE_TABLE":
        return int(table["table_name"] == relation)
    if table["type"] != "JOIN" or table["ref_type"] not in ("REGULAR", "NATURAL", "CROSS", "ASOF"):
        return 2
    left, right = holds(table["left"], relation), holds(table["right"], relation)
    kind = table["join_type"]
    keeps = {"INNER": (1, 1), "LEFT": (1, 0), "SEMI": (1, 0), "ANTI": (1, 0), "RIGHT": (0, 1)}.get(kind, (0, 0))
    if table["ref_type"] == "ASOF":
        keeps = (keeps[0], 0)  # which row of the right side is nearest depends on all of them
    if (left and not keeps[0]) or (right and not keeps[1]):
        return 2
    return left + right

"""Trees of PIVOT statements without an IN list, which DuckDB runs as several statements and therefore gives no tree of.

For the check only, ``ON a, b IN (SELECT …)`` is read as ``ON (a) IN (''), b IN ((SELECT …), '')``. No token is
taken away or moved, and what is put in parentheses must be an expression, so the tree holds all that DuckDB will run.
"""

from collections.abc import Iterator

from windrow.queries.sql import parse_tree
from windrow.queries.sql.tokens import Source, Token, read

_OPEN, _CLOSE = "([{", ")]}"
_ENDS = ("union", "except", "intersect", "group", "order", "limit", "offset", "fetch")
_QUERIES = ("select", "with", "from", "values", "table", "pivot", "unpivot", "pivot_wider", "pivot_longer")

Insert = tuple[int, bytes]


def statements(sql: str) -> list[parse_tree.Node] | None:
    """The trees of a text whose statements are queries and pivots, None if it is anything else or cannot be told."""
    kinds = parse_tree.kinds(sql)
    if "MULTI" not in kinds or any(kind not in ("SELECT", "MULTI") for kind in kinds):
        return None
    answer = parse_tree.statements(with_lists(read(sql)))
    return answer if isinstance(answer, list) and len(answer) == len(kinds) else None


def with_lists(source: Source) -> str:
    """The text with an IN list for every pivot expression that has none."""
    inserts: list[Insert] = []
    for at, token in enumerate(source.tokens):
        if token.word in ("pivot", "pivot_wider"):
            for entry in _entries(source.tokens, at + 1):
                inserts += _inserts(source.tokens, entry)
    pieces, done = [], 0
    for offset, piece in sorted(inserts, key=lambda insert: insert[0]):
        pieces += [source.data[done:offset], piece]
        done = offset
    return b"".join([*pieces, source.data[done:]]).decode()


def _inserts(tokens: tuple[Token, ...], entry: list[int]) -> list[Insert]:
    """What makes one ON expression, given by the positions of its tokens outside brackets, an IN list."""
    last = _closing(tokens, entry[-1])
    if not any(tokens[at].word == "in" for at in entry):
        return [(tokens[entry[0]].start, b"("), (tokens[last].stop, b") IN ('')")]
    if last > entry[-1] and tokens[entry[-1] + 1].word in _QUERIES:
        return [(tokens[entry[-1]].stop, b"("), (tokens[last].start, b"), ''")]
    return []


def _closing(tokens: tuple[Token, ...], at: int) -> int:
    """The position of the bracket that closes the one at `at`, or `at` if there is none."""
    depth = 0
    for position in range(at, len(tokens)):
        if tokens[position].kind == "operator":
            depth += (tokens[position].text in _OPEN) - (tokens[position].text in _CLOSE)
        if depth <= 0:
            return position
    return len(tokens) - 1


def _entries(tokens: tuple[Token, ...], start: int) -> Iterator[list[int]]:
    """The expressions of a pivot's ON list: what stands behind the last ON of its own level, between commas."""
    level = list(_level(tokens, start))
    places = [n for n, at in enumerate(level) if tokens[at].word == "on"]
    entry: list[int] = []
    for at in level[places[-1] + 1 :] if places else ():
        if tokens[at].word == "using":
            break
        if tokens[at].text != ",":
            entry.append(at)
        elif entry:
            yield entry
            entry = []
    if entry:
        yield entry


def _level(tokens: tuple[Token, ...], start: int) -> Iterator[int]:
    """Positions of a pivot's tokens outside brackets; a bracket counts by its first token."""
    at = start
    while at < len(tokens):
        token = tokens[at]
        if token.text == ";" or token.word in _ENDS or (token.kind == "operator" and token.text in _CLOSE):
            return
        yield at
        at = _closing(tokens, at) + 1

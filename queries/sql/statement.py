"""A statement with window clauses, taken apart: the SQL that DuckDB will run, and the relations that it reads.

The SQL is the user's text with only ``name [clause]`` replaced, and as many bytes long, so that every place that DuckDB
names is a place in the text as written.

Statements that differ only in constants: what was understood of one holds for all of them.

A constant counts as such only where nothing but its value can matter: a plain number or string right behind a
comparison, in a condition that stands for itself in WHERE. Everything else must be equal to the byte, also the lengths
of the constants, and DuckDB's own tokenizer must cut both texts alike; so their trees differ in those values alone.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import duckdb

from windrow.errors import ConfinementError, QueryError
from windrow.queries.sql import parse_tree, window_clause
from windrow.queries.sql.tokens import Source, Token, read
from windrow.queries.sql.window_clause import Candidate
from windrow.queries.sql.window_spec import All, WindowSpec

_CONSTANT = re.compile(rb"(?<=[=<>])\s*(?:(0|[1-9][0-9]{0,17})|'([ !#-&(-\[\]-~]*)')(?![\w.'$])")
"""A number of up to 18 digits, or a string without quotes, backslashes and whatever is not printed in ASCII."""
_KINDS = {"numeric_const": "INTEGER", "string_const": "STRING"}

Path = tuple[str | int, ...]


def normalized(text: str) -> bytes | None:
    """A text with all that may be such a constant blotted out, byte by byte; None if it holds nothing of the kind."""
    if not text.isascii():
        return None
    data = bytearray(text.encode())
    places = _places(bytes(data))
    for start, stop in places:
        data[start:stop] = b"0" * (stop - start)
    return bytes(data) if places else None


def _places(data: bytes) -> list[tuple[int, int]]:
    """Where constants may stand, strings without their quotes."""
    return [found.span(found.lastindex or 0) for found in _CONSTANT.finditer(data)]


@dataclass(frozen=True)
class Constant:
    """A constant of a statement: its number among the tokens, and the path to its value in the tree."""

    token: int
    path: Path


@dataclass(frozen=True)
class Model:
    """What a statement tells of those that are alike."""

    source: Source
    tree: parse_tree.Node
    constants: tuple[Constant, ...]
    cut: list[tuple[int, Any]]
    """As DuckDB's tokenizer cuts it."""

    def source_of(self, text: str) -> Source | None:
        """A text, which is the same when blotted, in tokens; None if DuckDB cuts it in another way after all."""
        if duckdb.tokenize(text) != self.cut:
            return None
        data, tokens = text.encode(), list(self.source.tokens)
        for constant in self.constants:
            token = tokens[constant.token]
            tokens[constant.token] = Token(token.kind, data[token.start : token.stop].decode(), token.start, token.stop)
        return Source(text, data, tuple(tokens))

    def tree_of(self, source: Source) -> parse_tree.Node:
        """The tree of a statement that is alike: the same, but for its own constants."""
        tree = self.tree
        for constant in self.constants:
            tree = _put(tree, constant.path, _value(source.tokens[constant.token].text))
        return tree

    def sql_of(self, sql: str, source: Source) -> str:
        """What DuckDB runs for a statement that is alike; `sql` is what it runs for this one."""
        data = bytearray(sql.encode())
        for constant in self.constants:
            token = source.tokens[constant.token]
            data[token.start : token.stop] = token.text.encode()
        return data.decode()


def model_of(source: Source, tree: parse_tree.Node) -> Model | None:
    """What a statement tells of those that are alike; None if something in it that looks like a constant is none."""
    if tree.get("type") != "SELECT_NODE" or not tree.get("where_clause"):
        return None
    if any("pivot" in token.word for token in source.tokens):
        return None  # its tree may be that of another text
    compared = {(node["query_location"], node["query_location_length"]): (node, at) for node, at in _compared(tree)}
    numbers = {token.start: number for number, token in enumerate(source.tokens)}
    constants = []
    for first, last in _places(source.data):
        quote = source.data[first - 1 : first] == b"'"  # DuckDB counts quotes in
        start, stop = first - quote, last + quote
        number = numbers.get(start)
        node, at = compared.get((start, stop - start), (None, ()))
        if number is None or node is None or not _is_token(source.tokens[number], stop, node["literal"]):
            return None
        constants.append(Constant(number, (*at, "literal", "text")))
    return Model(source, tree, tuple(constants), duckdb.tokenize(source.text)) if constants else None


def _is_token(token: Token, stop: int, literal: dict[str, str]) -> bool:
    """Whether a token is exactly what a constant of the tree was read from."""
    return token.stop == stop and literal == {"kind": _KINDS.get(token.kind), "text": _value(token.text)}


def _value(written: str) -> str:
    return written[1:-1] if written[0] == "'" else written


def _compared(tree: parse_tree.Node) -> Iterator[tuple[parse_tree.Node, Path]]:
    """The constants that whole conditions of WHERE compare something with."""
    pending: list[tuple[parse_tree.Node, Path]] = [(tree["where_clause"], ("where_clause",))]
    while pending:
        node, at = pending.pop()
        if node.get("type") == "CONJUNCTION_AND":
            pending += [(child, (*at, "children", number)) for number, child in enumerate(node["children"])]
        elif node.get("class") == "COMPARISON":
            for side in ("left", "right"):
                if node[side].get("class") == "CONSTANT" and "literal" in node[side]:
                    yield node[side], (*at, side)


def _put(node: Any, path: Path, value: str) -> Any:
    """A copy with something else at the end of a path; what does not lie on it is shared."""
    if not path:
        return value
    copied: Any = list(node) if isinstance(node, list) else dict(node)
    copied[path[0]] = _put(node[path[0]], path[1:], value)
    return copied


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NO_ALIAS = ("table", "describe", "desc", "summarize", "show")
_REMEMBERED = 256

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Reference:
    """A relation that a statement reads.

    Args:
        name: Of the stream, table or view, as written without quotes.
        schema: ``windrow`` for a system table, empty for all others.
        window: Which rows; `All` where there is no clause.
        alias: What the statement calls it.
        span: First character and one past the last in the text, None where DuckDB does not keep the place.
        relation: The name under which DuckDB will look for it while the statement runs.
    """

    name: str
    schema: str
    window: WindowSpec
    alias: str
    span: tuple[int, int] | None
    relation: str


@dataclass(frozen=True)
class Statement:
    """One query, read and understood but not yet checked against what exists.

    Args:
        text: As written.
        sql: What DuckDB runs: `text` with placeholders for windowed relations.
        references: In the order of the text, one for each place.
        explain: Empty, ``explain`` or ``explain analyze``; those words are blank in `sql`.
        tree: DuckDB's parse tree of `sql`, for the planner and the confinement.
        model: The first statement that differed from this one only in constants; None: this is the first.
    """

    text: str
    sql: str
    references: tuple[Reference, ...]
    explain: str
    source: Source = field(repr=False, compare=False)
    tree: parse_tree.Node = field(repr=False, compare=False)
    model: "Statement | None" = field(default=None, repr=False, compare=False)
    notes: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)
    """What was found out about it and all that are alike; see `by_likeness`."""

    def __hash__(self) -> int:
        return hash(self.text)  # asked for again and again, and nearly all that tells statements apart

    @property
    def like(self) -> "Statement":
        """The statement that was parsed for this one and all that are alike."""
        return self.model or self

    def sql_of(self, reference: Reference) -> str:
        """What stands in `sql` in the place of a reference; empty if that place is not known."""
        start, stop = (len(self.text[:at].encode()) for at in reference.span or (0, 0))
        return self.sql.encode()[start:stop].decode()

    def error(self, offset: int | None, message: str, kind: type[QueryError] = QueryError) -> QueryError:
        """An error that shows the place; messages speak of relations as the user wrote them."""
        for reference in self.references:
            written = reference.name.replace("\\", r"\\")
            message = re.sub(rf"\b{re.escape(reference.relation)}\b", written, message)
        return kind(message) if offset is None else self.source.error(offset, message, kind)


def by_likeness(find: Callable[Concatenate[Statement, P], T]) -> Callable[Concatenate[Statement, P], T]:
    """Find something once for all statements that are alike; it must not depend on the constants they differ in."""

    @wraps(find)
    def found(statement: Statement, /, *rest: P.args, **named: P.kwargs) -> T:
        like, asked = statement.like, (find, rest, tuple(named.items()))
        try:
            known: T = like.notes[asked]
        except KeyError:
            if len(like.notes) >= _REMEMBERED:
                like.notes.clear()
            known = like.notes[asked] = find(like, *rest, **named)
        return known

    return found


_models: OrderedDict[bytes, tuple[Statement, Model]] = OrderedDict()
_guard = threading.Lock()


@lru_cache(maxsize=_REMEMBERED)
def parse(text: str) -> Statement:
    """Read one statement, or say where it is wrong.

    Raises:
        QueryError: a syntax error, at its place in `text`.
        ConfinementError: not exactly one query.
    """
    blotted = normalized(text)
    known = None if blotted is None else _models.get(blotted)
    source = None if known is None else known[1].source_of(text)
    if known is not None and source is not None:
        first, model = known
        sql = model.sql_of(first.sql, source)
        return Statement(text, sql, first.references, "", source, model.tree_of(source), first)
    statement = _parsed(text)
    if blotted is not None:
        _remember(blotted, statement)
    return statement


def _remember(blotted: bytes, statement: Statement) -> None:
    """Take a statement for the model of all that are alike, if that is safe."""
    model = None if statement.explain else model_of(statement.source, statement.tree)
    if model is not None:
        with _guard:
            _models[blotted] = statement, model
            while len(_models) > _REMEMBERED:
                _models.popitem(last=False)


def _parsed(text: str) -> Statement:
    source, explain = _without_explain(read(text))
    candidates = window_clause.find(source, parse_tree.instant)
    prefix = _free_prefix(source, candidates)
    sql, tree, candidates = _settle(source, candidates, prefix)
    return Statement(text, sql, tuple(_references(source, tree, candidates, prefix)), explain, source, tree)


def _without_explain(source: Source) -> tuple[Source, str]:
    words = [token.word for token in source.tokens[:2]]
    count = 0 if words[:1] != ["explain"] else 2 if words[1:] in (["analyze"], ["analyse"]) else 1
    if not count:
        return source, ""
    stop = source.tokens[count - 1].stop
    data = bytearray(source.data)
    for token in source.tokens[:count]:
        data[token.start : token.stop] = b" " * (token.stop - token.start)
    kept = tuple(token for token in source.tokens if token.start >= stop)
    return Source(source.text, bytes(data), kept), "explain analyze" if count == 2 else "explain"


def _free_prefix(source: Source, candidates: list[Candidate]) -> str:
    """The beginning of a name that occurs nowhere in the text, short enough for `name [ROWS 1]` to hold it."""
    if not candidates:
        return ""
    lower = source.data.lower()
    longer = (f"_{a}{b}" for a in _DIGITS[10:] for b in _DIGITS)
    for letters in ("_w", *(f"_{letter}" for letter in _DIGITS[10:]), *longer):
        if letters.encode() not in lower:
            return letters
    raise QueryError("the statement uses every short name that begins with an underscore; rename some of them")


def _placeholder(prefix: str, number: int) -> str:
    if number >= len(_DIGITS) ** 2:
        raise QueryError(f"a statement can have at most {len(_DIGITS) ** 2} window clauses")
    high, low = divmod(number, len(_DIGITS))
    return prefix + (_DIGITS[high] if high else "") + _DIGITS[low]


def _render(source: Source, candidates: list[Candidate], prefix: str, aliased: Iterable[bool]) -> str:
    pieces, done = [], 0
    for number, (candidate, alias) in enumerate(zip(candidates, aliased, strict=True)):
        name = _placeholder(prefix, number) + (f" AS {candidate.written}" if alias else "")
        room = candidate.stop - candidate.start
        if len(name.encode()) > room:
            raise source.error(
                candidate.start, "this name is too short among so many; give the stream an alias with AS"
            )
        pieces += [source.data[done : candidate.start], name.encode().ljust(room)]
        done = candidate.stop
    return b"".join([*pieces, source.data[done:]]).decode()


def _settle(source: Source, candidates: list[Candidate], prefix: str) -> tuple[str, parse_tree.Node, list[Candidate]]:
    """The SQL and its tree, with an alias exactly where the user gave none and one can stand."""
    aliased = [_wants_alias(source, candidate) for candidate in candidates]
    for attempt in range(4):
        sql = _render(source, candidates, prefix, aliased)
        tree = _tree(source, sql, candidates, final=not any(aliased))
        if tree is None:
            aliased = [False] * len(candidates)
            continue
        places = {visit.node["table_name"]: visit.node for visit in parse_tree.walk(tree) if _is_relation(visit)}
        names = [_placeholder(prefix, number) for number in range(len(candidates))]
        kept = [name in places or candidate.required for name, candidate in zip(names, candidates, strict=True)]
        if not all(kept):
            candidates = [candidate for candidate, keep in zip(candidates, kept, strict=True) if keep]
            aliased = [alias for alias, keep in zip(aliased, kept, strict=True) if keep]
            continue
        for name, candidate in zip(names, candidates, strict=True):
            if name not in places:
                raise _misplaced(source, candidate)
        wanted = [
            alias or (attempt < 3 and not places[name]["alias"] and parse_tree.location(places[name]) is not None)
            for name, alias in zip(names, aliased, strict=True)
        ]
        if wanted == aliased:
            return sql, tree, candidates
        aliased = wanted
    raise source.error(0, "the window clauses of this statement could not be placed; give each stream an alias with AS")


def _is_relation(visit: parse_tree.Visit) -> bool:
    return visit.node.get("type") == "BASE_TABLE" and len(visit.node["qualified_name"]["path"]) == 1


def _wants_alias(source: Source, candidate: Candidate) -> bool:
    """A guess, so that one look at the tree is usually enough to know."""
    tokens = source.tokens
    after = tokens[candidate.after] if candidate.after < len(tokens) else None
    before = tokens[candidate.before] if candidate.before >= 0 else None
    if after is not None and (after.word == "as" or after.kind == "identifier"):
        return False
    return before is None or not (before.text == ":" or before.word in _NO_ALIAS)


def _tree(source: Source, sql: str, candidates: list[Candidate], *, final: bool) -> parse_tree.Node | None:
    """The tree of the one statement in `sql`; None if it cannot be read and there is something left to try."""
    answer = parse_tree.statements(sql)
    if isinstance(answer, parse_tree.Refusal) and not answer.select:
        answer = parse_tree.pivot_statements(sql) or answer
    if isinstance(answer, parse_tree.Refusal):
        if not answer.select:
            raise ConfinementError(f"only queries can be asked here, not {_kind(sql)}")
        if not final:
            return None
        raise _syntax_error(source, candidates, answer)
    if len(answer) != 1:
        raise ConfinementError(f"one statement at a time, please: this text holds {len(answer) or 'none'}")
    return answer[0]


def _kind(sql: str) -> str:
    found = [kind.replace("_", " ") for kind in parse_tree.statement_kinds(sql) if kind not in ("SELECT", "MULTI")]
    return found[0] if found else "this statement"


def _syntax_error(source: Source, candidates: list[Candidate], refusal: parse_tree.Refusal) -> QueryError:
    offset = refusal.offset
    if offset is None:
        return QueryError(refusal.message)
    for candidate in candidates:
        if candidate.start <= offset < candidate.stop:
            return _misplaced(source, candidate)
    return window_clause.misread(source, offset) or source.error(offset, refusal.message)


def _misplaced(source: Source, candidate: Candidate) -> QueryError:
    """A clause that follows something else than a relation; most often its alias."""
    before = source.tokens[max(0, candidate.before - 1) : candidate.before + 1]
    if before and (before[-1].kind == "identifier" or before[-1].text == ")" or before[-1].word == "as"):
        stream = before[0 if before[-1].word == "as" else -1].text
        form = f"{'stream' if stream == ')' else stream} [WINDOW …] AS {candidate.written}"
        return source.error(candidate.clause, f"the window clause stands before the alias: {form}")
    return source.error(candidate.clause, "a window clause stands directly after the name of a stream in FROM or JOIN")


def _references(source: Source, tree: parse_tree.Node, candidates: list[Candidate], prefix: str) -> Iterator[Reference]:
    windowed = {_placeholder(prefix, number): candidate for number, candidate in enumerate(candidates)}
    for visit in parse_tree.walk(tree):
        node = visit.node
        if node.get("type") != "BASE_TABLE" or "class" in node:
            continue
        path, alias = node["qualified_name"]["path"], node["alias"]
        candidate = windowed.get(path[-1]) if len(path) == 1 else None
        if candidate is not None:
            if len(candidate.path) == 1 and candidate.path[0].lower() in visit.hidden:
                message = f"{candidate.written} is the WITH query of that name here; a window clause goes with a stream"
                raise source.error(candidate.clause, message)
            yield Reference(
                name=candidate.path[-1],
                schema=".".join(candidate.path[:-1]),
                window=candidate.window,
                alias=alias or candidate.path[-1],
                span=_span(source, candidate.start, candidate.stop),
                relation=path[-1],
            )
        elif len(path) > 1 or path[0].lower() not in visit.hidden:
            offset = parse_tree.location(node)
            yield Reference(
                name=path[-1],
                schema=".".join(path[:-1]),
                window=All(),
                alias=alias or path[-1],
                span=None if offset is None else _span(source, offset, _name_stop(source, offset, len(path))),
                relation=path[-1],
            )


def _name_stop(source: Source, offset: int, parts: int) -> int:
    for at, token in enumerate(source.tokens):
        if token.start == offset:
            colon = 2 if at + 1 < len(source.tokens) and source.tokens[at + 1].text == ":" else 0
            return source.tokens[min(at + colon + 2 * (parts - 1), len(source.tokens) - 1)].stop
    return offset


def _span(source: Source, start: int, stop: int) -> tuple[int, int]:
    encoded = source.text.encode()
    return len(encoded[:start].decode()), len(encoded[:stop].decode())

"""A statement with window clauses, parsed: the SQL that DuckDB will run, and the relations that it reads.

The SQL is the user's text with only ``name [clause]`` replaced, and as many bytes long, so that every offset that
DuckDB names is an offset in the text as written. Statements that differ only in constants share one template, so that
what was found out about one holds for all. A constant counts as such only where the tree has it as a constant at that
very place, a string only where it is compared, matched or cast: elsewhere it may name something. All else must be equal
to the byte, also the lengths of the constants, and DuckDB's tokenizer must split both texts equally; so their trees
differ in those values alone.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import duckdb

from windrow.errors import ConfinementError, QueryError
from windrow.indexes.bounded_cache import BoundedCache, Findings, cached_in_findings
from windrow.past import Past
from windrow.queries.sql import parse_tree, window_clause
from windrow.queries.sql.tokens import SourceText, Token, tokenize
from windrow.queries.sql.window_clause import ClauseCandidate
from windrow.queries.sql.window_spec import AllRows, WindowSpec

_CONSTANT = re.compile(
    rb"""(?<![\w.$'"])(?:((?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,18})?)|'([ !#-&(-\[\]-~]*)')(?![\w.'$])"""
)
"""A number of up to 18 digits, or a string of printable ASCII without quotes and backslashes."""
_KINDS = {"numeric_const": ("INTEGER", "NUMERIC"), "string_const": ("STRING",)}
_PATTERN_FUNCTIONS = frozenset({
    "~~", "!~~", "~~*", "!~~*", "~~~", "^@", "contains", "ends_with", "prefix", "regexp_full_match", "regexp_matches",
    "starts_with", "suffix",
})  # fmt: skip
"""Functions whose strings can be nothing but patterns."""
_STRING_TYPES = frozenset({"COMPARE_IN", "COMPARE_NOT_IN"})
_STRING_CLASSES = frozenset({"COMPARISON", "BETWEEN", "CAST"})
_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_MAX_CONSTANTS = 200
"""Constants of a template. Not measured: bounds the time of copying a tree."""

TreePath = tuple[str | int, ...]
Span = tuple[int, int]


def _find_constant_spans(data: bytes) -> list[Span]:
    """Where constants may be, strings without their quotes."""
    return [match.span(match.lastindex or 0) for match in _CONSTANT.finditer(data)]


def normalize(data: bytes, spans: Iterable[Span]) -> bytes:
    """A text in which every digit of a number and every byte of a string that may be a constant is ``0``."""
    changed = bytearray(data)
    for start, stop in spans:
        is_text = data[start - 1 : start] == b"'"
        changed[start:stop] = b"0" * (stop - start) if is_text else data[start:stop].translate(_ZEROS)
    return bytes(changed)


@dataclass(frozen=True)
class TemplateConstant:
    """A constant of a statement: its number among the tokens, the path to its value in the tree, its place."""

    token: int
    path: TreePath
    span: Span


@dataclass(frozen=True)
class StatementTemplate:
    """A statement by which others that differ only in constants need not be parsed."""

    source: SourceText
    tree: parse_tree.Node
    constants: tuple[TemplateConstant, ...]
    duckdb_tokens: list[tuple[int, Any]]
    """As DuckDB's tokenizer splits it."""

    def source_of(self, text: str) -> SourceText | None:
        """A text that is equal when normalized, in tokens; None if DuckDB splits it differently after all."""
        if duckdb.tokenize(text) != self.duckdb_tokens:
            return None
        data, tokens = text.encode(), list(self.source.tokens)
        for constant in self.constants:
            token = tokens[constant.token]
            tokens[constant.token] = Token(token.kind, data[token.start : token.stop].decode(), token.start, token.stop)
        return SourceText(text, data, tuple(tokens))

    def tree_of(self, source: SourceText) -> parse_tree.Node:
        """The tree of a statement of this template: the same, but with its own constants."""
        tree: parse_tree.Node = dict(self.tree)
        copies: dict[TreePath, Any] = {(): tree}
        for constant in self.constants:
            node: Any = tree
            for depth, step in enumerate(constant.path[:-1], 1):
                place = constant.path[:depth]
                if place not in copies:
                    inner = node[step]
                    copies[place] = node[step] = list(inner) if isinstance(inner, list) else dict(inner)
                node = copies[place]
            node[constant.path[-1]] = _value(source.tokens[constant.token].text)
        return tree

    def sql_of(self, sql: str, source: SourceText) -> str:
        """What DuckDB runs for a statement of this template; `sql` is what it runs for the first one."""
        data = bytearray(sql.encode())
        for constant in self.constants:
            token = source.tokens[constant.token]
            data[token.start : token.stop] = token.text.encode()
        return data.decode()


def make_template(source: SourceText, tree: parse_tree.Node, spans: Sequence[Span]) -> StatementTemplate | None:
    """The template of a statement; None if it has no constants, or too many. Of `spans` some may be none."""
    if len(spans) > _MAX_CONSTANTS or any("pivot" in token.word for token in source.tokens):
        return None  # the tree of a pivot is that of a changed text
    by_end = {stop: (start, node, path) for start, stop, node, path in _find_constants(tree)}
    numbers = {token.start: number for number, token in enumerate(source.tokens)}
    constants = []
    for first, last in spans:
        quote = source.data[first - 1 : first] == b"'"  # DuckDB counts quotes in
        start, stop = first - quote, last + quote
        number = numbers.get(start)
        position, node, path = by_end.get(stop, (None, {}, ()))
        if (
            number is not None
            and position in (start, None)
            and _is_token(source.tokens[number], stop, node.get("literal"))
        ):
            constants.append(TemplateConstant(number, (*path, "literal", "text"), (first, last)))
    return StatementTemplate(source, tree, tuple(constants), duckdb.tokenize(source.text)) if constants else None


def _is_token(token: Token, stop: int, literal: dict[str, str] | None) -> bool:
    """Whether a token is exactly what a constant of the tree was read from."""
    return (
        token.stop == stop
        and literal is not None
        and literal["kind"] in _KINDS.get(token.kind, ())
        and literal == {"kind": literal["kind"], "text": _value(token.text)}
    )


def _value(written: str) -> str:
    return written[1:-1] if written[0] == "'" else written


def _find_constants(tree: parse_tree.Node) -> Iterator[tuple[int | None, int, parse_tree.Node, TreePath]]:
    """Constants with start (None: not known) and stop; strings only where they cannot name anything."""
    pending: list[tuple[Any, TreePath, bool]] = [(tree, (), False)]
    while pending:
        node, path, strings = pending.pop()
        if isinstance(node, list):
            pending += [(item, (*path, n), strings) for n, item in enumerate(node) if isinstance(item, dict | list)]
            continue
        kind, location = node.get("class"), parse_tree.find_location(node)
        if kind == "CONSTANT":
            if location is not None and _is_constant(node, strings=strings):
                yield location, location + node["query_location_length"], node, path
            continue
        if kind == "CAST" and location is not None:
            child = node["child"]
            if child.get("class") == "CONSTANT" and parse_tree.find_location(child) is None:  # DATE '2025-01-01'
                if _is_constant(child, strings=True):
                    yield None, location + node["query_location_length"], child, (*path, "child")
                continue
        if kind is not None:
            strings = (
                kind in _STRING_CLASSES
                or node.get("type") in _STRING_TYPES
                or (kind == "FUNCTION" and node["function_name"] in _PATTERN_FUNCTIONS)
            )
        elif "type" in node:
            strings = False
        pending += [(of, (*path, name), strings) for name, of in node.items() if isinstance(of, dict | list)]


def _is_constant(node: parse_tree.Node, *, strings: bool) -> bool:
    return "literal" in node and (strings or node["literal"]["kind"] != "STRING")


_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_NO_ALIAS = ("table", "describe", "desc", "summarize", "show")
_MAX_CACHED = 256
"""Statements, templates, and findings of one template that are remembered."""

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
        past: The state that is asked, if not the present one.
    """

    name: str
    schema: str
    window: WindowSpec
    alias: str
    span: tuple[int, int] | None
    relation: str
    past: Past | None = None

    @property
    def clause(self) -> str:
        """Window and state as a clause."""
        if self.past is None:
            return str(self.window)
        return f"[{self.past}]" if isinstance(self.window, AllRows) else f"{str(self.window)[:-1]} {self.past}]"


def refuse_past(references: Iterable[Reference], what: str) -> None:
    """Refuse a clause of the past where a statement is kept to be run at slides to come."""
    for reference in references:
        if reference.past is not None:
            raise QueryError(
                f"{what} is computed at each slide, so {reference.past} cannot stand in it; ask it with sql()"
            )


@dataclass(frozen=True)
class Statement:
    """One query, read and understood but not yet checked against what exists.

    Args:
        text: As written.
        sql: What DuckDB runs: `text` with placeholders for windowed relations.
        references: In the order of the text, one for each place.
        explain: Empty, ``explain`` or ``explain analyze``; those words are blank in `sql`.
        tree: DuckDB's parse tree of `sql`, for the planner and the confinement.
        template: The first statement that differed from this one only in constants; None: this is the first.
    """

    text: str
    sql: str
    references: tuple[Reference, ...]
    explain: str
    source: SourceText = field(repr=False, compare=False)
    tree: parse_tree.Node = field(repr=False, compare=False)
    template: "Statement | None" = field(default=None, repr=False, compare=False)
    findings: Findings = field(default_factory=lambda: BoundedCache(_MAX_CACHED), repr=False, compare=False)
    """What was found out about it and all statements of its template; see `cached_per_template`."""

    def __hash__(self) -> int:
        return hash(self.text)  # computed often, and the text says nearly all that tells statements apart

    @property
    def asks_past(self) -> bool:
        """Whether it asks for another state than the present one."""
        return any(reference.past is not None for reference in self.references)

    @property
    def representative(self) -> "Statement":
        """The statement that was parsed for this one and all others of its template."""
        return self.template or self

    def sql_of(self, reference: Reference) -> str:
        """What stands in `sql` in the place of a reference; empty if that place is not known."""
        start, stop = (len(self.text[:offset].encode()) for offset in reference.span or (0, 0))
        return self.sql.encode()[start:stop].decode()

    def error(self, offset: int | None, message: str, kind: type[QueryError] = QueryError) -> QueryError:
        """An error that shows the place; messages speak of relations as the user wrote them."""
        for reference in self.references:
            written = reference.name.replace("\\", r"\\")
            message = re.sub(rf"\b{re.escape(reference.relation)}\b", written, message)
        return kind(message) if offset is None else self.source.error(offset, message, kind)


def cached_per_template(find: Callable[Concatenate[Statement, P], T]) -> Callable[Concatenate[Statement, P], T]:
    """Compute something once for all statements of a template; it must not depend on the constants they differ in."""
    kept = cached_in_findings(find)

    @wraps(find)
    def cached(statement: Statement, /, *rest: P.args, **named: P.kwargs) -> T:
        return kept(statement.representative, *rest, **named)

    return cached


_templates: BoundedCache[bytes, tuple[Statement, StatementTemplate]] = BoundedCache(_MAX_CACHED)
"""By the text with its constants normalized."""
_constants: BoundedCache[bytes, tuple[Span, ...]] = BoundedCache(_MAX_CACHED)
"""Which of the places that look like constants are some, by the text with all of them normalized."""


_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)


@lru_cache(maxsize=_MAX_CACHED)
def parse(text: str) -> Statement:
    """Read one statement, or say where it is wrong.

    Raises:
        QueryError: a syntax error, at its place in `text`.
        ConfinementError: not exactly one query.
    """
    if _SHOW_TABLES.fullmatch(text):
        text = "SELECT name, kind FROM windrow.relations ORDER BY name"
    data = text.encode() if text.isascii() else b""
    spans = _find_constant_spans(data)
    normalized = normalize(data, spans)
    if spans and (cached_constants := _constants.get(normalized)) is not None:
        cached = _templates.get(normalize(data, cached_constants))
        if cached is not None and (source := cached[1].source_of(text)) is not None:
            first, first_template = cached
            sql, tree = first_template.sql_of(first.sql, source), first_template.tree_of(source)
            return Statement(text, sql, first.references, "", source, tree, first)
    statement = _parse_uncached(text)
    if spans and not statement.explain:
        template = make_template(statement.source, statement.tree, spans)
        if template is not None:
            cached_constants = tuple(constant.span for constant in template.constants)
            _constants.put(normalized, cached_constants)
            _templates.put(normalize(data, cached_constants), (statement, template))
    return statement


def _parse_uncached(text: str) -> Statement:
    source, explain = _without_explain(tokenize(text))
    candidates = window_clause.find_candidates(source, parse_tree.parse_timestamp)
    prefix = find_free_prefix(source, candidates)
    sql, tree, candidates = _place_clauses(source, candidates, prefix)
    return Statement(text, sql, tuple(_references(source, tree, candidates, prefix)), explain, source, tree)


def _without_explain(source: SourceText) -> tuple[SourceText, str]:
    words = [token.word for token in source.tokens[:2]]
    count = 0 if words[:1] != ["explain"] else 2 if words[1:] in (["analyze"], ["analyse"]) else 1
    if not count:
        return source, ""
    stop = source.tokens[count - 1].stop
    data = bytearray(source.data)
    for token in source.tokens[:count]:
        data[token.start : token.stop] = b" " * (token.stop - token.start)
    tokens = tuple(token for token in source.tokens if token.start >= stop)
    return SourceText(source.text, bytes(data), tokens), "explain analyze" if count == 2 else "explain"


def find_free_prefix(source: SourceText, candidates: list[ClauseCandidate]) -> str:
    """The beginning of a name that occurs nowhere in the text, short enough for `name [ROWS 1]` to hold it."""
    if not candidates:
        return ""
    lower = source.data.lower()
    longer = (f"_{a}{b}" for a in _DIGITS[10:] for b in _DIGITS)
    for letters in ("_w", *(f"_{letter}" for letter in _DIGITS[10:]), *longer):
        if letters.encode() not in lower:
            return letters
    raise QueryError("the statement uses every short name that begins with an underscore; rename some of them")


def make_placeholder(prefix: str, number: int) -> str:
    """The name that stands for the relation of that number."""
    if number >= len(_DIGITS) ** 2:
        raise QueryError(f"a statement can have at most {len(_DIGITS) ** 2} window clauses")
    high, low = divmod(number, len(_DIGITS))
    return prefix + (_DIGITS[high] if high else "") + _DIGITS[low]


def render_clauses(source: SourceText, candidates: list[ClauseCandidate], prefix: str, aliased: Iterable[bool]) -> str:
    """The text with a name in the place of each relation and its clause, as many bytes long."""
    pieces, end = [], 0
    for number, (candidate, alias) in enumerate(zip(candidates, aliased, strict=True)):
        name = make_placeholder(prefix, number) + (f" AS {candidate.written}" if alias else "")
        length = candidate.stop - candidate.start
        if len(name.encode()) > length:
            raise source.error(
                candidate.start, "this name is too short among so many; give the stream an alias with AS"
            )
        pieces += [source.data[end : candidate.start], name.encode().ljust(length)]
        end = candidate.stop
    return b"".join([*pieces, source.data[end:]]).decode()


def _place_clauses(
    source: SourceText, candidates: list[ClauseCandidate], prefix: str
) -> tuple[str, parse_tree.Node, list[ClauseCandidate]]:
    """The SQL and its tree, with an alias exactly where the user gave none and one can stand."""
    aliased = [wants_alias(source, candidate) for candidate in candidates]
    for attempt in range(4):
        sql = render_clauses(source, candidates, prefix, aliased)
        tree = _tree(source, sql, candidates, final=not any(aliased))
        if tree is None:
            aliased = [False] * len(candidates)
            continue
        places = {visit.node["table_name"]: visit.node for visit in parse_tree.walk(tree) if _is_relation(visit)}
        names = [make_placeholder(prefix, number) for number in range(len(candidates))]
        confirmed = [name in places or candidate.required for name, candidate in zip(names, candidates, strict=True)]
        if not all(confirmed):
            candidates = [candidate for candidate, keep in zip(candidates, confirmed, strict=True) if keep]
            aliased = [alias for alias, keep in zip(aliased, confirmed, strict=True) if keep]
            continue
        for name, candidate in zip(names, candidates, strict=True):
            if name not in places:
                raise _misplaced(source, candidate)
        wanted = [
            alias or (attempt < 3 and not places[name]["alias"] and parse_tree.find_location(places[name]) is not None)
            for name, alias in zip(names, aliased, strict=True)
        ]
        if wanted == aliased:
            return sql, tree, candidates
        aliased = wanted
    raise source.error(0, "the window clauses of this statement could not be placed; give each stream an alias with AS")


def _is_relation(visit: parse_tree.Visit) -> bool:
    return visit.node.get("type") == "BASE_TABLE" and len(visit.node["qualified_name"]["path"]) == 1


def wants_alias(source: SourceText, candidate: ClauseCandidate) -> bool:
    """A guess that usually makes one look at the tree enough."""
    tokens = source.tokens
    after = tokens[candidate.after] if candidate.after < len(tokens) else None
    before = tokens[candidate.before] if candidate.before >= 0 else None
    if after is not None and (after.word == "as" or after.kind == "identifier"):
        return False
    return before is None or not (before.text == ":" or before.word in _NO_ALIAS)


def _tree(source: SourceText, sql: str, candidates: list[ClauseCandidate], *, final: bool) -> parse_tree.Node | None:
    """The tree of the one statement in `sql`; None if it cannot be read and there is something left to try."""
    answer = parse_tree.parse_statements(sql)
    if isinstance(answer, parse_tree.Refusal) and not answer.select:
        answer = parse_tree.parse_pivots(sql) or answer
    if isinstance(answer, parse_tree.Refusal):
        if not answer.select:
            kind = _kind(sql)
            advice = f"; {_INSTEAD[kind]}" if kind in _INSTEAD else ""
            raise ConfinementError(f"only queries can be asked here, not {kind}{advice}")
        if not final:
            return None
        raise _syntax_error(source, candidates, answer)
    if len(answer) != 1:
        raise ConfinementError(f"one statement at a time, please: this text holds {len(answer) or 'none'}")
    return answer[0]


_INSTEAD = {
    "INSERT": "rows come in by append()",
    "UPDATE": "rows cannot be changed, replay() mends rejected ones",
    "DELETE": "rows leave when they expire, or for good by erase()",
    "CREATE": "create_stream(), create_view() and put_table() make what can be asked",
    "DROP": "drop_stream(), drop_view(), drop_table() and drop_query() remove what can be asked",
    "ALTER": "alter_stream() changes a stream",
    "PRAGMA": "SHOW TABLES and DESCRIBE say what there is",
}
"""What does in Windrow what a statement that is no query would do."""


def _kind(sql: str) -> str:
    kinds = [kind.replace("_", " ") for kind in parse_tree.list_statement_kinds(sql) if kind not in ("SELECT", "MULTI")]
    return kinds[0] if kinds else "this statement"


def _syntax_error(source: SourceText, candidates: list[ClauseCandidate], refusal: parse_tree.Refusal) -> QueryError:
    offset = refusal.offset
    if offset is None:
        return QueryError(refusal.message)
    for candidate in candidates:
        if candidate.start <= offset < candidate.stop:
            return _misplaced(source, candidate)
    return window_clause.explain_misread_clause(source, offset) or source.error(offset, refusal.message)


def _misplaced(source: SourceText, candidate: ClauseCandidate) -> QueryError:
    """A clause that follows something else than a relation; most often its alias."""
    before = source.tokens[max(0, candidate.before - 1) : candidate.before + 1]
    if before and (before[-1].kind == "identifier" or before[-1].text == ")" or before[-1].word == "as"):
        stream = before[0 if before[-1].word == "as" else -1].text
        form = f"{'stream' if stream == ')' else stream} [WINDOW …] AS {candidate.written}"
        return source.error(candidate.clause, f"the window clause stands before the alias: {form}")
    return source.error(candidate.clause, "a window clause stands directly after the name of a stream in FROM or JOIN")


def _references(
    source: SourceText, tree: parse_tree.Node, candidates: list[ClauseCandidate], prefix: str
) -> Iterator[Reference]:
    windowed = {make_placeholder(prefix, number): candidate for number, candidate in enumerate(candidates)}
    for visit in parse_tree.walk(tree):
        node = visit.node
        if node.get("type") != "BASE_TABLE" or "class" in node:
            continue
        path, alias = node["qualified_name"]["path"], node["alias"]
        if len(path) == 2 and path[0].lower() == "recurring" and path[1].lower() in visit.cte_names:
            continue  # all rows that a recursive query USING KEY has found so far
        candidate = windowed.get(path[-1]) if len(path) == 1 else None
        if candidate is not None:
            if len(candidate.path) == 1 and candidate.path[0].lower() in visit.cte_names:
                message = f"{candidate.written} is the WITH query of that name here; a window clause goes with a stream"
                raise source.error(candidate.clause, message)
            yield Reference(
                name=candidate.path[-1],
                schema=".".join(candidate.path[:-1]),
                window=candidate.window,
                alias=alias or candidate.path[-1],
                span=find_span(source, candidate.start, candidate.stop),
                relation=path[-1],
                past=candidate.past,
            )
        elif len(path) > 1 or path[0].lower() not in visit.cte_names:
            offset = parse_tree.find_location(node)
            yield Reference(
                name=path[-1],
                schema=".".join(path[:-1]),
                window=AllRows(),
                alias=alias or path[-1],
                span=None if offset is None else find_span(source, offset, _name_stop(source, offset, len(path))),
                relation=path[-1],
            )


def _name_stop(source: SourceText, offset: int, parts: int) -> int:
    for position, token in enumerate(source.tokens):
        if token.start == offset:
            colon = 2 if position + 1 < len(source.tokens) and source.tokens[position + 1].text == ":" else 0
            return source.tokens[min(position + colon + 2 * (parts - 1), len(source.tokens) - 1)].stop
    return offset


def find_span(source: SourceText, start: int, stop: int) -> tuple[int, int]:
    """First character and one past the last of bytes of the text."""
    encoded = source.text.encode()
    return len(encoded[:start].decode()), len(encoded[:stop].decode())

"""SQL text in tokens of DuckDB's own tokenizer, texts of several statements split at semicolons, and places in errors.

Offsets are bytes of UTF-8, as DuckDB gives them; only messages use lines and columns of the text as written. A
semicolon in a string or a comment splits nothing.
"""

import re
from dataclasses import dataclass

import duckdb

from windrow.errors import QueryError

# DuckDB's parser takes these for spaces outside quotes, its tokenizer does not; tried on every code point.
_UNICODE_SPACES = re.compile("[\u00a0\u2000-\u200b\u202f\u205f\u2060\u3000\ufeff]")
_WHITE = b" \t\n\v\f\r"
_EXCERPT_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Token:
    """One token; `kind` is identifier, keyword, numeric_const, string_const or operator."""

    kind: str
    text: str
    start: int
    stop: int

    @property
    def word(self) -> str:
        """The token in lower case if it is a bare word, else an empty string."""
        return self.text.lower() if self.is_name and self.text[:1] not in ('"', "`") else ""

    @property
    def is_name(self) -> bool:
        """Whether it can be (part of) the name of a relation."""
        return self.kind in ("identifier", "keyword")

    @property
    def name(self) -> str:
        """The name that the token means: without its quotes."""
        quote = self.text[0]
        return self.text[1:-1].replace(quote * 2, quote) if quote in '"`' else self.text


@dataclass(frozen=True)
class SourceText:
    """A statement as written, the bytes that stand for it, and its tokens without comments.

    `data` has as many bytes as the text: only spaces outside quotes that are not ASCII became ASCII spaces.
    """

    text: str
    data: bytes
    tokens: tuple[Token, ...]

    def find_line_and_column(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1 and in characters, of a byte offset."""
        before = self.text.encode()[:offset].decode(errors="ignore")
        return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    def error(self, offset: int, message: str, kind: type[QueryError] = QueryError) -> QueryError:
        """An error that shows the place in the text as written."""
        line, column = self.find_line_and_column(min(offset, len(self.data)))
        shown = self.text.split("\n")[line - 1].rstrip("\r")
        cut = max(0, column - 1 - _EXCERPT_CHARACTERS // 2) if len(shown) > _EXCERPT_CHARACTERS else 0
        label = f"line {line}: {'…' if cut else ''}"
        excerpt = shown[cut : cut + _EXCERPT_CHARACTERS].replace("\t", " ")
        return kind(f"{message}\n{label}{excerpt}\n{' ' * (len(label) + column - 1 - cut)}^", line, column)


def tokenize(text: str) -> SourceText:
    """The tokens of a statement; refuses text that no parser should get."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise QueryError("the statement is not valid text: it holds half of a surrogate pair") from None
    if b"\x00" in data:
        raise QueryError("the statement holds a NUL character; remove it")
    if _UNICODE_SPACES.search(text):
        data = _replace_unicode_spaces(data)
    return SourceText(text, data, tuple(token for token in _tokenize_bytes(data) if token.kind != "comment"))


def _tokenize_bytes(data: bytes) -> list[Token]:
    starts: list[int] = []
    kinds: list[str] = []
    for start, kind in duckdb.tokenize(data.decode()):
        # DuckDB gives both tokens of "$[" the place of the first.
        starts.append(start if not starts or start > starts[-1] else starts[-1] + 1)
        kinds.append(kind.name)
    tokens = []
    for name, start, stop in zip(kinds, starts, [*starts, len(data)][1:], strict=True):
        raw = data[start:stop].rstrip(_WHITE)
        tokens.append(Token(name, raw.decode(), start, start + len(raw)))
    return tokens


def _replace_unicode_spaces(data: bytes) -> bytes:
    pieces, end = [], 0
    for token in _tokenize_bytes(data):
        if token.kind in ("comment", "string_const") or token.text[0] in '"`':
            continue
        plain = _UNICODE_SPACES.sub(lambda space: " " * len(space[0].encode()), token.text)
        pieces += [data[end : token.start], plain.encode()]
        end = token.stop
    return b"".join([*pieces, data[end:]])


def split_statements(text: str) -> list[str]:
    """The statements of a text, without their semicolons; empty ones are left out."""
    statements, _ = _split_at_semicolons(text)
    return statements


def is_finished(text: str) -> bool:
    """Whether a text that is being typed ends with a semicolon, so that it can be run."""
    statements, rest = _split_at_semicolons(text)
    return bool(statements) and not rest


def _split_at_semicolons(text: str) -> tuple[list[str], bool]:
    """The statements, and whether the last of them lacks its semicolon."""
    data, start, statements, rest = text.encode(), 0, [], False
    tokens = tokenize(text).tokens
    for token in tokens:
        if token.text == ";":
            if rest:
                statements.append(data[start : token.start].decode().strip())
            start, rest = token.stop, False
        else:
            rest = True
    if rest:
        statements.append(data[start:].decode().strip())
    return statements, rest

"""Statements that differ only in constants: what was understood of one holds for all of them.

A constant counts as such only where nothing but its value can matter: a plain number or string right behind a
comparison, in a condition that stands for itself in WHERE. Everything else must be equal to the byte, also the lengths
of the constants, and DuckDB's own tokenizer must cut both texts alike; so their trees differ in those values alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb

from windrow.queries.sql import parse_tree
from windrow.queries.sql.tokens import Source, Token

_CONSTANT = re.compile(rb"(?<=[=<>])\s*(?:(0|[1-9][0-9]{0,17})|'([ !#-&(-\[\]-~]*)')(?![\w.'$])")
"""A number of up to 18 digits, or a string without quotes, backslashes and whatever is not printed in ASCII."""
_KINDS = {"numeric_const": "INTEGER", "string_const": "STRING"}

Path = tuple[str | int, ...]


def blotted(text: str) -> bytes | None:
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

"""Window clauses in the SQL of another engine: they are read as in ours, and all else is left as it was written.

The text keeps its length, so that each place that the other engine names in an error is a place in the text as written.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from windrow.errors import QueryError
from windrow.queries.sql import parse_tree, window_clause
from windrow.queries.sql.statement import (
    Reference,
    find_free_prefix,
    find_span,
    make_placeholder,
    render_clauses,
    wants_alias,
)
from windrow.queries.sql.tokens import Token, tokenize
from windrow.queries.sql.window_clause import ClauseCandidate

_ESCAPE = re.compile(r"\\.", re.DOTALL)
_QUOTED = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


@dataclass(frozen=True)
class ForeignStatement:
    """A statement whose window clauses were replaced by names.

    Args:
        text: As written.
        candidates: SQL without clauses, in the order in which the other engine should be asked for it: they differ in
            where an alias stands, which only its parser knows.
        references: The relations with a window, and system tables.
        names: The names in it that may be relations without a window, in lower case; among them are those of columns.
    """

    text: str
    candidates: tuple[str, ...]
    references: tuple[Reference, ...]
    names: frozenset[str]

    def written(self, reference: Reference) -> str:
        """A relation with its clause, as it stands in the text."""
        assert reference.span is not None
        return self.text[slice(*reference.span)]

    def error(self, offset: int | None, message: str) -> QueryError:  # noqa: ARG002 - only our own parser shows places
        """An error that speaks of relations as the user wrote them."""
        return QueryError(self.reword(message))

    def reword(self, message: str) -> str:
        """A message of the other engine that speaks of relations as the user wrote them."""
        for reference in self.references:
            message = re.sub(rf"\b{re.escape(reference.relation)}\b", reference.name.replace("\\", r"\\"), message)
        return message


def find_clauses(text: str) -> ForeignStatement:
    """Read the window clauses of a statement, or say what is wrong with one."""
    masked = _QUOTED.sub(lambda quoted: _ESCAPE.sub("__", quoted[0]), text)  # our tokenizer knows no escapes
    source = replace(tokenize(masked), text=text)
    clauses = window_clause.find_candidates(source, parse_tree.parse_timestamp)
    source = replace(source, data=text.encode()) if masked != text else source
    prefix = find_free_prefix(source, clauses)
    guessed = [wants_alias(source, candidate) for candidate in clauses]
    spellings = dict.fromkeys((tuple(guessed), (False,) * len(clauses), (True,) * len(clauses)))
    references = tuple(
        Reference(
            name=candidate.path[-1],
            schema=".".join(candidate.path[:-1]),
            window=candidate.window,
            alias=candidate.path[-1],
            span=find_span(source, candidate.start, candidate.stop),
            relation=make_placeholder(prefix, number),
            past=candidate.past,
        )
        for number, candidate in enumerate(clauses)
    )
    candidates = tuple(render_clauses(source, clauses, prefix, aliased) for aliased in spellings)
    return ForeignStatement(text, candidates, references, frozenset(_find_names(source.tokens, clauses)))


def _find_names(tokens: Sequence[Token], clauses: Sequence[ClauseCandidate]) -> Iterator[str]:
    """Names that do not belong to a relation with a clause, are not qualified, and qualify no other."""
    for number, token in enumerate(tokens):
        beside = (tokens[place].text for place in (number - 1, number + 1) if 0 <= place < len(tokens))
        in_clause = any(clause.start <= token.start < clause.stop for clause in clauses)
        if token.is_name and not in_clause and "." not in beside:
            yield token.name.lower()

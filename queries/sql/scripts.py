"""A text with several statements, cut where DuckDB's own tokenizer sees a semicolon, never in a string or a comment.

Nothing else is read into the text: each statement is parsed, confined and run as if it had been given alone.
"""

from windrow.queries.sql.tokens import read


def split(text: str) -> list[str]:
    """The statements of a text, without their semicolons; empty ones are left out."""
    statements, _ = _cut(text)
    return statements


def is_finished(text: str) -> bool:
    """Whether a text that is being typed ends with a semicolon, so that it can be run."""
    statements, rest = _cut(text)
    return bool(statements) and not rest


def _cut(text: str) -> tuple[list[str], bool]:
    """The statements, and whether the last of them lacks its semicolon."""
    data, start, found, rest = text.encode(), 0, [], False
    tokens = read(text).tokens
    for token in tokens:
        if token.text == ";":
            if rest:
                found.append(data[start : token.start].decode().strip())
            start, rest = token.stop, False
        else:
            rest = True
    if rest:
        found.append(data[start:].decode().strip())
    return found, rest

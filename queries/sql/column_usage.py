"""Which columns a statement compares with something, for the advisor's counts.

It looks at tokens only, so it is quick and may err; nothing but advice depends on it.
"""

from collections.abc import Sequence
from itertools import pairwise

from windrow.queries.sql.statement import Statement, cached_per_template

_COMPARISONS = frozenset(("=", "==", "<", ">", "<=", ">=", "in", "between"))


@cached_per_template
def find_compared_names(statement: Statement) -> frozenset[str]:
    """Names, in lower case, that stand right before a comparison."""
    tokens = statement.source.tokens
    return frozenset(
        token.name.lower()
        for token, following in pairwise(tokens)
        if token.is_name and (following.text in _COMPARISONS or following.word in _COMPARISONS)
    )


def find_filtered_columns(statement: Statement, names: Sequence[str]) -> list[str]:
    """Those of a stream's columns that the statement compares."""
    compared = find_compared_names(statement)
    return [name for name in names if name.lower() in compared]

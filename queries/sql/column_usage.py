"""Which columns a statement compares with constants: what the advisor counts, so it may err, and must be quick."""

from collections.abc import Sequence
from itertools import pairwise

from windrow.queries.sql.statement import Statement, cached_per_template

_COMPARISONS = frozenset(("=", "==", "<", ">", "<=", ">=", "in", "between"))


@cached_per_template
def find_compared_names(statement: Statement) -> frozenset[str]:
    """Names, in lower case, that stand right before a comparison."""
    tokens = statement.source.tokens
    return frozenset(
        one.name.lower()
        for one, two in pairwise(tokens)
        if one.named and (two.text in _COMPARISONS or two.word in _COMPARISONS)
    )


def find_filtered_columns(statement: Statement, names: Sequence[str]) -> list[str]:
    """Those of a stream's columns that the statement compares."""
    found = find_compared_names(statement)
    return [name for name in names if name.lower() in found]

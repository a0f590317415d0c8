"""The hidden column ``_seq`` of ordered queries, which numbers a stream's rows by (time, arrival).

A statement that names it can use it like a column; ``SELECT *`` never shows it, whatever else the statement does.
"""

from typing import Any

import pyarrow as pa

from windrow.indexes.row_model import SEQ
from windrow.queries.sql.statement import Statement, cached_per_template

SEQUENCE_TYPE = pa.decimal128(38, 0)
"""The sequence is a 128-bit integer, time above and arrival below; DuckDB's planner sees it as this type."""


@cached_per_template
def uses_sequence(statement: Statement) -> bool:
    """Whether the statement names the hidden sequence."""
    return any(token.is_name and token.name.lower() == SEQ for token in statement.source.tokens)


def find_hidden_columns(statement: Statement, names: list[str]) -> list[int]:
    """Which columns of the answer show the sequence only because of a star."""
    if not uses_sequence(statement) or _selects_sequence(statement.tree):
        return []
    return [index for index, name in enumerate(names) if name.lower() == SEQ]


def _selects_sequence(tree: dict[str, Any]) -> bool:
    """Whether a select list whose rows become rows of the answer names the sequence."""
    if tree.get("type") == "SELECT_NODE":
        return any(
            item.get("class") == "COLUMN_REF" and item["column_names"][-1].lower() == SEQ
            for item in tree["select_list"]
        )
    inner = [*(tree.get(side) for side in ("left", "right", "child")), *tree.get("children", ())]
    return any(_selects_sequence(node) for node in inner if isinstance(node, dict))

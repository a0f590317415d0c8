"""Ordered queries: the hidden sequence of rows by (time, arrival), and macros that look back and ahead along it.

A statement that names ``_seq`` can use it like a column; ``SELECT *`` never shows it, whatever else the statement does.
"""

from typing import Any

import pyarrow as pa

from windrow.indexes.row_model import SEQ
from windrow.queries.sql.statement import Statement, cached_per_template

SEQUENCE_TYPE = pa.decimal128(38, 0)
"""How a stand-in shows the sequence, which is a 128-bit integer: time above, arrival below."""
_FRAME = "ROWS BETWEEN w PRECEDING AND CURRENT ROW"
MACROS = (
    "prev(x, seq) AS lag(x) OVER (ORDER BY seq), (x, seq, per) AS lag(x) OVER (PARTITION BY per ORDER BY seq)",
    "next(x, seq) AS lead(x) OVER (ORDER BY seq), (x, seq, per) AS lead(x) OVER (PARTITION BY per ORDER BY seq)",
    (
        f"avgw(w, x, seq) AS avg(x) OVER (ORDER BY seq {_FRAME}), "
        f"(w, x, seq, per) AS avg(x) OVER (PARTITION BY per ORDER BY seq {_FRAME})"
    ),
    (
        f"maxw(w, x, seq) AS max(x) OVER (ORDER BY seq {_FRAME}), "
        f"(w, x, seq, per) AS max(x) OVER (PARTITION BY per ORDER BY seq {_FRAME})"
    ),
    # Rows of the same time that arrived later are not before this one, though a RANGE frame would take them in.
    (
        "rangew(v, t, seq) AS count(*) OVER (ORDER BY t RANGE BETWEEN v PRECEDING AND CURRENT ROW) - 1 "
        "- (count(*) OVER (PARTITION BY t) - row_number() OVER (PARTITION BY t ORDER BY seq))"
    ),
)
"""``w`` is a number of rows, which may differ from row to row; ``rangew`` says how many rows back ``v`` reaches."""


def define_macros(connection: Any) -> None:
    """Make the macros known to a DuckDB."""
    for macro in MACROS:
        connection.execute(f"CREATE MACRO {macro}")


@cached_per_template
def uses_sequence(statement: Statement) -> bool:
    """Whether the statement names the hidden sequence."""
    return any(token.named and token.name.lower() == SEQ for token in statement.source.tokens)


def find_hidden_columns(statement: Statement, names: list[str]) -> list[int]:
    """Which columns of the answer show the sequence only because of a star."""
    if not uses_sequence(statement) or _selects_sequence(statement.tree):
        return []
    return [at for at, name in enumerate(names) if name.lower() == SEQ]


def _selects_sequence(tree: dict[str, Any]) -> bool:
    """Whether a select list whose rows become the answer's names it."""
    if tree.get("type") == "SELECT_NODE":
        return any(
            item.get("class") == "COLUMN_REF" and item["column_names"][-1].lower() == SEQ
            for item in tree["select_list"]
        )
    inner = [*(tree.get(side) for side in ("left", "right", "child")), *tree.get("children", ())]
    return any(_selects_sequence(node) for node in inner if isinstance(node, dict))

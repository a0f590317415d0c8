"""The macros of ordered queries, which every instance has: they look back and ahead along the hidden row sequence.

They are DuckDB's own SQL and are defined before an instance is locked; statements use them like any other function.
"""

from typing import Any

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
    # A RANGE frame also takes in rows of the same time that arrived later; they do not come before this row.
    (
        "rangew(v, t, seq) AS count(*) OVER (ORDER BY t RANGE BETWEEN v PRECEDING AND CURRENT ROW) - 1 "
        "- (count(*) OVER (PARTITION BY t) - row_number() OVER (PARTITION BY t ORDER BY seq))"
    ),
)
"""``w`` is a number of rows, which may differ from row to row; ``rangew`` says how many rows back ``v`` reaches."""


def define_macros(connection: Any) -> None:
    """Define the macros in a DuckDB instance."""
    for macro in MACROS:
        connection.execute(f"CREATE MACRO {macro}")

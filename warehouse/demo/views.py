"""The demo's scene with a view: a join of two streams that is kept on disk, and what running the join gives."""

from typing import TYPE_CHECKING

from windrow.cli import terminal

if TYPE_CHECKING:
    from windrow.demo import Facts, Stage

LINES = (
    "SELECT p.src, p.dst, p.len, q.ts AS answered_at",
    "FROM packets [WINDOW 5 MINUTES] p JOIN packets [WINDOW 2 MINUTES] q ON p.src = q.dst AND p.dst = q.src",
    "WHERE p.ts < q.ts",
)


def kept_join(stage: "Stage") -> "Facts":
    """Declare a view, and compare it with its query."""
    stage.tell("Which packets were answered? A join of two windows, declared once and kept from then on:")
    stage.typed("windrow view create answered", *(f"  {line}" for line in LINES), "  --key src")
    sql = "\n".join(LINES)
    view = stage.wh.create_view("answered", sql, key="src")
    rows = stage.wh.stream("answered").live_rows
    stage.tell(f"Its update pattern is {view.pattern}: {view.why}. Its index is {view.index}.")
    direct = stage.wh.sql(f"SELECT count(*) FROM ({sql})").fetchall()[0][0]
    equal = direct == rows
    stage.tell(
        f"It holds {terminal.count(rows, 'result')} with lifetimes of their own; running the join gives "
        f"{'as many' if equal else f'{direct:,}'}. Each slide of packets moves it from now on."
    )
    return {"rows": rows, "equal": equal, "pattern": view.pattern}

"""The demo's scene with SQL: a join with a table, two windows of one stream side by side, and what a question reads.

Each answer is compared with plain arithmetic over all that was generated.
"""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.cli import terminal
from windrow.cli.sql import show_explanation
from windrow.cli.writers import show_rows

if TYPE_CHECKING:
    from windrow.demo import Facts, Stage

HOSTS = ["gateway", "printer", "camera", "laptop", "phone"]
JOINED = (
    "SELECT name, count(*) AS packets, sum(len) AS bytes",
    "FROM packets [WINDOW 10 MINUTES] JOIN hosts USING (src)",
    "GROUP BY name ORDER BY bytes DESC",
)
COMPARED = (
    "SELECT src, new.bytes, round(new.bytes / old.bytes, 2) AS ratio",
    "FROM (SELECT src, sum(len) AS bytes FROM packets [WINDOW 1 MINUTE] GROUP BY src) AS new",
    "JOIN (SELECT src, sum(len) / 10 AS bytes FROM packets [WINDOW 10 MINUTES] GROUP BY src) AS old USING (src)",
    "WHERE new.bytes > 1.1 * old.bytes ORDER BY new.bytes DESC LIMIT 5",
)
PROBED = "SELECT dst, len FROM packets [WINDOW 2 MINUTES] WHERE src = 17"


def ad_hoc(stage: "Stage") -> "Facts":
    """Ask in SQL."""
    stage.wh.put_table("hosts", pa.table({"src": pa.array(range(1, 6), pa.int64()), "name": HOSTS}))
    stage.tell("Who sent how much in the last ten minutes? A window of a stream joined with a small table:")
    stage.typed("windrow table put hosts hosts.csv", "windrow sql", *(f"  {line}" for line in JOINED))
    joined = _ask(stage, JOINED)
    expected = _expected(stage)
    equal = {name: (int(count), int(size)) for name, count, size in joined} == expected
    stage.tell(f"\nPlain arithmetic gives {'the same' if equal else f'something else: {expected}'}.\n")
    stage.tell("Who sends more in this minute than in its last ten? Two windows of one stream in one statement:")
    stage.typed(*COMPARED)
    compared = _ask(stage, COMPARED)
    stage.tell("\nOne host's packets: the search key leads to a few rows of a few segments, and EXPLAIN says so:")
    stage.typed(f'windrow explain "{PROBED}"')
    told = stage.wh.explain(PROBED)
    if not stage.quiet:
        show_explanation(told)
    (pruned,) = told.relations
    return {
        "equal": equal,
        "joined": [list(row) for row in joined],
        "compared": len(compared),
        "rows": list(pruned.rows),
        "path": pruned.path,
    }


def _ask(stage: "Stage", lines: tuple[str, ...]) -> list[tuple[str, int, int]]:
    from windrow.queries.answer import show_windows

    answer = stage.wh.sql("\n".join(lines))
    windows, table = answer.windows, answer.arrow()
    if not stage.quiet:
        show_rows(table.to_reader())
    stage.tell(f"{terminal.count(table.num_rows, 'row')} of {show_windows(windows)}")
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _expected(stage: "Stage") -> dict[str, tuple[int, int]]:
    """Packets and bytes of each host in the last ten minutes of all that was generated."""
    rows = pa.concat_tables(stage.packets)
    now = stage.wh.stream("packets").now or 0
    ts = rows.column("ts").cast(pa.int64()).to_numpy()
    inside = (ts > now - 600_000_000) & (ts <= now)
    source, sent = rows.column("src").to_numpy()[inside], rows.column("len").to_numpy()[inside].astype(np.int64)
    return {
        name: (int(np.sum(source == number)), int(sent[source == number].sum()))
        for number, name in enumerate(HOSTS, 1)
        if np.any(source == number)
    }

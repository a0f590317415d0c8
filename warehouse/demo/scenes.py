"""The demo's scene with SQL: a join with a table, two windows of one stream side by side, and what a question reads.

Each answer is compared with plain arithmetic over all that was generated.

The demo's scene with the advisor: which layout would serve a stream, and the move of a live one to another.

The demo's scene with periodic queries: minutes pass without anybody asking, and every run is there all the same.

What the runs say is compared with plain arithmetic over all that was generated.

The demo's scene with Spark: a DataFrame goes into a stream without leaving the JVM; a window comes out as one.

The demo's scene with a view: a join of two streams that is kept on disk, and what running the join gives.
"""

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.cli import terminal
from windrow.cli.sql import show_explanation
from windrow.cli.writers import show_rows
from windrow.indexes.partitioners import Index
from windrow.times import SECOND, format_time, parse_instant, to_datetime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windrow.demo import DemoState, Facts
    from windrow.indexes.cost_model import Estimate

SHOWN_LAYOUTS = 4
LEASES_BY_HOST = "SELECT host, count(*), max(exp) FROM leases GROUP BY host ORDER BY host"


def play_layout(stage: "DemoState") -> "Facts":
    """Ask the advisor, turn a live stream to another layout and key, and compare answers before and after."""
    advice = stage.wh.advise("leases")
    stage.tell("Nobody has to know how many cells an index should have. The advisor goes by what was measured:")
    stage.typed("windrow advise leases")
    layouts: dict[str, Estimate] = {}
    for each in advice.alternatives:  # some differ only in how much they merge
        layouts.setdefault(str(each.index), each)
    shown = list(layouts.values())[:SHOWN_LAYOUTS]
    if advice.current not in shown:
        shown.append(advice.current)
    times = [[terminal.format_seconds(t / 1e3) for t in (e.update, e.probe, e.scan, e.total)] for e in shown]
    marks = [" (now)" if each.index == advice.current.index else "" for each in shown]
    rows = [(f"{each.index}{mark}", *own) for each, mark, own in zip(shown, marks, times, strict=True)]
    columns = ("layout", "update", "probe", "scan", "a slide")
    stage.table(columns, rows, right=columns[1:])
    before = stage.wh.sql(LEASES_BY_HOST).fetchall()
    stage.tell("A live stream can move to another layout and search key; nothing pauses, and every answer stays exact:")
    stage.typed("windrow stream relayout leases --index 'round-robin 2 2' --key host --move")
    report = stage.wh.relayout("leases", Index("round-robin", 2, 2), key="host", move="now")
    equal = stage.wh.sql(LEASES_BY_HOST).fetchall() == before
    stage.tell(
        f"leases is {report.index} by {terminal.names(report.key)} now, {terminal.size(report.moved_bytes)} were moved;"
        f" all {terminal.count(len(before), 'host')} have {'the same rows as before' if equal else 'OTHER ROWS'}."
    )
    return {"layout": str(report.index), "key": list(report.key), "done": report.done, "equal": equal}


MINUTES = 4
EACH_MINUTE = "SELECT count(*) AS packets, sum(len) AS bytes FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]"
BUSIEST = (
    "SELECT src, sum(len) AS bytes FROM packets [WINDOW 10 MINUTES SLIDE 1 MINUTE] "
    "GROUP BY src ORDER BY bytes DESC, src LIMIT 5"
)
NEWCOMERS = "SELECT DISTINCT src FROM packets [WINDOW 2 MINUTES SLIDE 2 MINUTES] WHERE src < 50"
TREND = "SELECT strftime(_window_end, '%H:%M') AS minute, packets, bytes FROM each_minute ORDER BY minute"


def play_periodic(stage: "DemoState") -> "Facts":
    """Queries that are answered as their windows slide."""
    wh = stage.wh
    stage.tell("Three questions are asked once, and answered from now on. One wants every run, and a report of each:")
    stage.typed(
        f'windrow query add each_minute "{EACH_MINUTE}" --missed every --sink html',
        f'windrow query add busiest "{BUSIEST}" --missed every',
        f'windrow query add newcomers "{NEWCOMERS}" --output inserts',
    )
    wh.add_query("each_minute", EACH_MINUTE, missed="every", sink="html")
    wh.add_query("busiest", BUSIEST, missed="every")
    wh.add_query("newcomers", NEWCOMERS, output="inserts")
    stage.tell(f"{MINUTES} minutes pass, and nobody makes a round ('windrow serve' would after each slide). Then:")
    ends = _minutes_pass(stage)
    stage.typed("windrow query run")
    reports = wh.run_due()
    columns = ("query", "slide", "outcome", "rows", "behind", "answered by")
    rows = [(r.query, r.slide, r.outcome, r.rows, f"{r.staleness:g} s", r.how) for r in reports]
    stage.table(columns, rows, right=("slide", "rows", "behind"))
    stage.tell("What was delivered is a table like any other:")
    stage.typed(f'windrow sql "{TREND}"')
    trend = wh.sql(TREND).fetchall()
    stage.table(("minute", "packets", "bytes"), trend, right=("packets", "bytes"))
    equal = [(count, size) for _, count, size in trend] == [_sent(stage, end) for end in ends]
    stage.tell(f"Plain arithmetic gives {'the same' if equal else 'something else'} for each of the minutes.")
    files = sorted(path for path in (wh.path / "results" / "each_minute").glob("*.html") if "latest" not in path.name)
    stage.tell(f"{terminal.count(len(files), 'report')} with a chart: results/each_minute/each_minute-latest.html")
    made = {query.name: query.runs for query in wh.queries()}
    return {"equal": equal, "runs": made, "files": len(files), "trend": [list(row) for row in trend]}


def _minutes_pass(stage: "DemoState") -> list[int]:
    """Packets of both probes, minute by minute; gives the ends of the minutes."""
    from windrow.demo import START, generate_packets

    now = stage.wh.stream("packets").now or START
    first = (now - START) // (60 * SECOND) + 1
    ends = []
    for minute in range(first, first + MINUTES):
        for source in ("north", "south"):
            stage.wh.append("packets", generate_packets(stage, minute, max(50, stage.rows // 4)), source=source)
        ends.append(START + minute * 60 * SECOND)
        report = stage.wh.slide("packets", to=to_datetime(ends[-1]))
        stage.tell(f"  slide {report.slide}, now {format_time(report.now)}: {report.inserted:,} packets in")
    stage.tell("")
    return ends


def _sent(stage: "DemoState", end: int) -> tuple[int, int]:
    """Packets and bytes of the minute that ends at `end`."""
    rows = pa.concat_tables(stage.packets)
    ts = rows.column("ts").cast(pa.int64()).to_numpy()
    inside = (ts > end - 60 * SECOND) & (ts <= end)
    return int(inside.sum()), int(rows.column("len").to_numpy()[inside].astype(np.int64).sum())


CLICKS = 300_000
_BEGIN = "2025-06-02T08:00:00"


def play_spark(stage: "DemoState") -> "Facts":
    """Clicks arrive through Spark, minute by minute; a report takes a window out again."""
    if importlib.util.find_spec("pyspark") is None:
        stage.tell("Spark is not installed here; 'pip install windrow[spark]' and Java 17 add this scene.")
        return {"skipped": "pyspark is not installed"}
    stage.tell(
        f"{CLICKS:,} clicks of three minutes, made and written by Spark in local mode; starting it takes a while."
    )
    stage.typed(
        "windrow.spark.append(df, wh, 'clicks', batch_id='job-1'); wh.slide('clicks')",
        "with windrow.spark.window(spark, wh, 'clicks', '2 minutes') as df: df.groupBy('page').count()",
    )
    from windrow.ingest.session import quiet_session

    with quiet_session("windrow demo") as spark:
        return _ingest_clicks(stage, spark)


def _ingest_clicks(stage: "DemoState", spark: "SparkSession") -> "Facts":
    import pyarrow as pa

    import windrow.spark as door

    start = parse_instant(_BEGIN)
    clicks = spark.range(CLICKS).selectExpr(
        f"timestamp_micros({start} + 1 + id * {180_000_000 // CLICKS}) AS ts",
        "id % 5000 AS user",
        "concat('/page/', CAST(pmod(hash(id), 20) AS STRING)) AS page",
        "CAST(pmod(hash(id, 7), 900) AS INT) AS millis",
    )
    stamp = pa.timestamp("us", "UTC")
    schema = pa.schema([("ts", stamp), ("user", pa.int64()), ("page", pa.string()), ("millis", pa.int32())])
    stage.wh.create_stream("clicks", schema, time="ts", key="user", slide="1 minute", lifetime="10 minutes")
    report = door.append(clicks, stage.wh, "clicks", batch_id="job-1")
    again = door.append(clicks, stage.wh, "clicks", batch_id="job-1")
    slid = stage.wh.slide("clicks", to="2025-06-02T08:03:00")
    stage.tell(
        f"{report.accepted:,} rows in; the retried job changed nothing: {again.duplicate}; now {format_time(slid.now)}\n"
    )
    with door.window(spark, stage.wh, "clicks", "2 minutes") as window:
        rows = window.groupBy("page").count().orderBy("count", "page", ascending=False).limit(5).collect()
    stage.table(("page", "clicks in two minutes, by Spark"), [(row["page"], row["count"]) for row in rows])
    return {"accepted": report.accepted, "duplicate": again.duplicate, "top": [[r["page"], r["count"]] for r in rows]}


HOSTS = ["gateway", "printer", "camera", "laptop", "phone"]
BYTES_BY_HOST = (
    "SELECT name, count(*) AS packets, sum(len) AS bytes",
    "FROM packets [WINDOW 10 MINUTES] JOIN hosts USING (src)",
    "GROUP BY name ORDER BY bytes DESC",
)
GROWING_SOURCES = (
    "SELECT src, new.bytes, round(new.bytes / old.bytes, 2) AS ratio",
    "FROM (SELECT src, sum(len) AS bytes FROM packets [WINDOW 1 MINUTE] GROUP BY src) AS new",
    "JOIN (SELECT src, sum(len) / 10 AS bytes FROM packets [WINDOW 10 MINUTES] GROUP BY src) AS old USING (src)",
    "WHERE new.bytes > 1.1 * old.bytes ORDER BY new.bytes DESC LIMIT 5",
)
ONE_SOURCE = "SELECT dst, len FROM packets [WINDOW 2 MINUTES] WHERE src = 17"


def play_sql(stage: "DemoState") -> "Facts":
    """Ask in SQL."""
    stage.wh.put_table("hosts", pa.table({"src": pa.array(range(1, 6), pa.int64()), "name": HOSTS}))
    stage.tell("Who sent how much in the last ten minutes? A window of a stream joined with a small table:")
    stage.typed("windrow table put hosts hosts.csv", "windrow sql", *(f"  {line}" for line in BYTES_BY_HOST))
    joined = _run_and_show(stage, BYTES_BY_HOST)
    expected = _expected(stage)
    equal = {name: (int(count), int(size)) for name, count, size in joined} == expected
    stage.tell(f"\nPlain arithmetic gives {'the same' if equal else f'something else: {expected}'}.\n")
    stage.tell("Who sends more in this minute than in its last ten? Two windows of one stream in one statement:")
    stage.typed(*GROWING_SOURCES)
    compared = _run_and_show(stage, GROWING_SOURCES)
    stage.tell("\nOne host's packets: the search key leads to a few rows of a few segments, and EXPLAIN says so:")
    stage.typed(f'windrow explain "{ONE_SOURCE}"')
    told = stage.wh.explain(ONE_SOURCE)
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


def _run_and_show(stage: "DemoState", lines: tuple[str, ...]) -> list[tuple[str, int, int]]:
    from windrow.queries.answer import describe_windows

    answer = stage.wh.sql("\n".join(lines))
    windows, table = answer.windows, answer.arrow()
    if not stage.quiet:
        show_rows(table.to_reader())
    stage.tell(f"{terminal.count(table.num_rows, 'row')} of {describe_windows(windows)}")
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _expected(stage: "DemoState") -> dict[str, tuple[int, int]]:
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


ANSWERED_PACKETS = (
    "SELECT p.src, p.dst, p.len, q.ts AS answered_at",
    "FROM packets [WINDOW 5 MINUTES] p JOIN packets [WINDOW 2 MINUTES] q ON p.src = q.dst AND p.dst = q.src",
    "WHERE p.ts < q.ts",
)


def play_views(stage: "DemoState") -> "Facts":
    """Declare a view, and compare it with its query."""
    stage.tell("Which packets were answered? A join of two windows, declared once and kept from then on:")
    stage.typed("windrow view create answered", *(f"  {line}" for line in ANSWERED_PACKETS), "  --key src")
    sql = "\n".join(ANSWERED_PACKETS)
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

"""The scenes of the demo: each shows one part of windrow on generated data and returns the figures that it showed.

The data are leases and packets of a small network. Answers are compared with plain arithmetic over all rows that were
generated, which the state of the demo keeps.
"""

import dataclasses
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.cli import terminal
from windrow.cli.admin import show_status
from windrow.cli.clock import slide_to_json
from windrow.cli.sql import show_explanation
from windrow.cli.writers import show_rows
from windrow.indexes.partitioners import Index
from windrow.slide import SlideReport
from windrow.times import SECOND, format_time, parse_instant, to_datetime
from windrow.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windrow.indexes.cost_model import Estimate

START = parse_instant("2025-06-02T08:00:00")
MINUTE = 60 * SECOND
UTC = pa.timestamp("us", "UTC")
LEASES = pa.schema([("ts", UTC), ("host", pa.string()), ("port", pa.int32()), ("exp", UTC)])
PACKETS = pa.schema([("ts", UTC), ("src", pa.int64()), ("dst", pa.int64()), ("len", pa.int32())])
SILENT_MINUTES = 5

Facts = dict[str, Any]


@dataclass
class DemoState:
    """What the scenes share: the warehouse, a seeded source of random data, and all packets that were generated."""

    wh: Warehouse
    updates: int
    rows: int
    random: np.random.Generator
    quiet: bool = False
    packets: list[pa.Table] = field(default_factory=list)
    """All packets that were generated, to compare answers with."""

    def say(self, text: str) -> None:
        """Print a sentence, unless the demo writes JSON."""
        if not self.quiet:
            terminal.say(text)

    def show_commands(self, *lines: str) -> None:
        """Print what a user would type."""
        for line in lines:
            self.say(f"  {line}")
        self.say("")

    def print_table(self, columns: tuple[str, ...], rows: list[tuple[Any, ...]], right: tuple[str, ...] = ()) -> None:
        """Print a table, unless the demo writes JSON."""
        if not self.quiet:
            terminal.print_table(columns, rows, right=right)
            terminal.say("")


def generate_leases(demo: DemoState, update: int) -> pa.Table:
    """Generate two minutes of leases: each has its own lifetime, one in twenty arrives late, a few are invalid."""
    count, random = demo.rows, demo.random
    ts = START + (update - 1) * 2 * MINUTE + random.integers(1, 2 * MINUTE, count)
    late = random.random(count) < 0.05
    ts -= np.where(late, random.integers(0, 10 * MINUTE, count), 0)
    life = random.integers(1, 60 * MINUTE, count)
    host = (200 * random.random(count) ** 2).astype(np.int64)
    names = np.array([f"10.0.{n // 250}.{n % 250}" for n in range(200)])
    exp = ts + life + np.where(random.random(count) < 0.0005, 90 * MINUTE, 0)
    return pa.table(
        [
            pa.array(ts, UTC, mask=random.random(count) < 0.0005),
            pa.array(names[host]),
            pa.array(random.choice([22, 53, 80, 443], count), pa.int32()),
            pa.array(exp, UTC),
        ],
        schema=LEASES,
    )


def generate_packets(demo: DemoState, minute: int, count: int) -> pa.Table:
    """Generate one minute of packets: a few hosts send most of them, and every fifth one answers an earlier one."""
    random = demo.random
    ts = np.sort(START + (minute - 1) * MINUTE + random.integers(1, MINUTE + 1, count))
    ts[-1:] = START + minute * MINUTE
    src = np.minimum(random.zipf(1.4, count), 5000).astype(np.int64)
    dst = random.integers(1, 5000, count)
    answers = np.arange(1, count)[random.random(count - 1) < 0.2]
    answered = (answers * random.random(len(answers))).astype(np.int64)
    src[answers], dst[answers] = dst[answered], src[answered]
    length = random.choice(np.array([40, 52, 576, 1500], np.int32), count)
    table = pa.table([pa.array(ts, UTC), src, dst, length], schema=PACKETS)
    demo.packets.append(table)
    return table


def play_streams(demo: DemoState) -> Facts:
    """Two streams."""
    demo.say("Leases end when they end; packets are kept for 16 minutes, and come from two probes.")
    demo.show_commands(
        "windrow stream create leases --column ts:timestamptz --column host:varchar --column port:int \\",
        "    --column exp:timestamptz --time ts --key host --key port --slide '2 minutes' \\",
        "    --expires exp --max-lifetime '2 hours' --index 'round-robin 4 4'",
        "windrow stream create packets --column ts:timestamptz --column src:bigint --column dst:bigint \\",
        "    --column len:int --time ts --key src --slide '1 minute' --lifetime '16 minutes' \\",
        "    --source north --source south",
    )
    demo.wh.create_stream(
        "leases",
        LEASES,
        time="ts",
        key=["host", "port"],
        slide="2 minutes",
        expires="exp",
        max_lifetime="2 hours",
        index=Index("round-robin", 4, 4),
    )
    demo.wh.create_stream(
        "packets", PACKETS, time="ts", key="src", slide="1 minute", lifetime="16 minutes", sources=["north", "south"]
    )
    statuses = [demo.wh.stream(name) for name in ("leases", "packets")]
    demo.print_table(("stream", "index", "why"), [(s.name, s.index, s.index_why) for s in statuses])
    return {s.name: s.index for s in statuses}


def play_lifetimes(demo: DemoState) -> Facts:
    """Rows with lifetimes of their own come and go; the cost follows the batch."""
    demo.say(
        f"{demo.updates} batches of {demo.rows:,} leases, each appended and slid in. "
        "A slide touches at most 7 of 16 cells:"
    )
    demo.show_commands("report = wh.append('leases', batch); report = wh.slide('leases', to=t)")
    reports: list[SlideReport] = []
    for update in range(1, demo.updates + 1):
        demo.wh.append("leases", generate_leases(demo, update), batch_id=f"batch-{update}")
        reports.append(demo.wh.slide("leases", to=to_datetime(START + update * 2 * MINUTE)))
    step = max(1, demo.updates // 12)
    columns = ("slide", "now", "in", "late", "out", "cells touched", "merged", "dropped", "bytes merged", "took")
    rows = [
        (
            r.slide,
            format_time(r.now),
            f"{r.inserted:,}",
            f"{r.late:,}",
            f"{r.expired:,}",
            r.touched,
            r.rebuilt,
            r.dropped,
            terminal.size(r.bytes_written),
            terminal.format_seconds(r.seconds),
        )
        for r in reports[step - 1 :: step]
    ]
    demo.print_table(columns, rows, right=columns[2:])
    return {"slides": [slide_to_json(report) for report in reports]}


def play_silence(demo: DemoState) -> Facts:
    """A source falls silent: the stream waits, and says for whom."""
    minutes = max(12, demo.updates // 2)
    share = max(50, demo.rows // 4)
    for minute in range(1, minutes + 1):
        for source in ("north", "south"):
            if source == "north" or minute <= minutes - SILENT_MINUTES:
                demo.wh.append("packets", generate_packets(demo, minute, share), source=source)
        demo.wh.slide("packets")
    status = demo.wh.stream("packets")
    end = START + minutes * MINUTE
    waiting = status.waiting_for
    demo.say(
        f"For the last {SILENT_MINUTES} minutes the probe 'south' said nothing. 'north' goes on; the window waits:"
    )
    demo.show_commands("windrow status")
    if not demo.quiet:
        show_status(demo.wh.status())
    demo.say(f"\n'south' had nothing to send, and says so. The stream catches up {SILENT_MINUTES} slots in one update:")
    demo.show_commands(f"windrow heartbeat packets --source south --up-to {format_time(end)}", "windrow slide packets")
    demo.wh.heartbeat("packets", source="south", up_to=to_datetime(end))
    report = demo.wh.slide("packets")
    demo.print_table(
        ("slide", "from", "now", "in", "out", "took"),
        [
            (
                report.slide,
                format_time(status.now),
                format_time(report.now),
                f"{report.inserted:,}",
                f"{report.expired:,}",
                terminal.format_seconds(report.seconds),
            )
        ],
        right=("in", "out", "took"),
    )
    return {"waited_for": list(waiting), "slide": slide_to_json(report)}


def play_asking(demo: DemoState) -> Facts:
    """Answers by key and by window, the same as plain arithmetic over all that was generated."""
    demo.say("The rows of one host and port, straight through the directory:")
    demo.show_commands("windrow probe leases --key 10.0.0.7,443 --window '10 minutes' --limit 5")
    rows = demo.wh.probe("leases", key=("10.0.0.7", 443), window="10 minutes").sort_by("ts")
    if not demo.quiet:
        show_rows(rows.slice(0, 5).to_reader())
    demo.say(
        f"{terminal.count(rows.num_rows, 'row')}\n\n"
        "Who sent most in the last ten minutes? A scan, and Arrow's own group by:"
    )
    demo.show_commands(
        "rows = wh.scan('packets', window='10 minutes', columns=['src', 'len']).read_all()",
        "rows.group_by('src').aggregate([('len', 'count'), ('len', 'sum')])",
    )
    scanned = demo.wh.scan("packets", window="10 minutes", columns=["src", "len"]).read_all()
    top = _find_top_sources(scanned)
    generated = _generated_packets(demo, parse_instant(demo.wh.now("packets")), 10)
    expected = _find_top_sources(generated)
    demo.print_table(
        ("src", "packets", "bytes"), [(s, f"{n:,}", f"{b:,}") for s, n, b in top], right=("src", "packets", "bytes")
    )
    equal = top == expected and scanned.num_rows == generated.num_rows
    demo.say(
        "Plain arithmetic over everything that was generated gives "
        f"{'the same' if equal else 'something else: ' + str(expected)}."
    )
    return {"probe_rows": rows.num_rows, "top": [list(row) for row in top], "equal": equal}


def _generated_packets(demo: DemoState, end: int, minutes: int) -> pa.Table:
    """Find the generated packets of the minutes before `end`, without asking the warehouse."""
    packets = pa.concat_tables(demo.packets)
    ts = packets.column("ts").cast(pa.int64()).to_numpy()
    return packets.filter(pa.array((ts > end - minutes * MINUTE) & (ts <= end)))


def _find_top_sources(rows: pa.Table) -> list[tuple[int, int, int]]:
    source, sent = rows.column("src").to_numpy(), rows.column("len").to_numpy().astype(np.int64)
    packets, octets = np.bincount(source), np.bincount(source, weights=sent).astype(np.int64)
    order = np.lexsort((np.arange(len(octets)), -octets))[:5]
    return [(int(s), int(packets[s]), int(octets[s])) for s in order]


def play_rejected(demo: DemoState) -> Facts:
    """Rows that cannot be taken are kept apart, with the reason."""
    rows = demo.wh.rejected("leases")
    reasons = rows.group_by("_reason").aggregate([("_reason", "count")]).sort_by("_reason")
    counts = dict(zip(reasons.column("_reason").to_pylist(), reasons.column("_reason_count").to_pylist(), strict=True))
    demo.say("Leases that could not be taken did not spoil their batches:")
    demo.show_commands("windrow stream rejected leases")
    demo.print_table(
        ("reason", "rows"), [(reason, f"{number:,}") for reason, number in counts.items()], right=("rows",)
    )
    return {"rejected": counts}


def play_twice(demo: DemoState) -> Facts:
    """The same batch again changes nothing."""
    batch = pa.table(
        [
            pa.array([START + (demo.updates * 2 + 1) * MINUTE], UTC),
            ["10.0.0.7"],
            pa.array([443], pa.int32()),
            pa.array([START + (demo.updates * 2 + 30) * MINUTE], UTC),
        ],
        schema=LEASES,
    )
    first = demo.wh.append("leases", batch, batch_id="again")
    second = demo.wh.append("leases", batch, batch_id="again")
    demo.say("A batch with an id is in once, however often it is sent:")
    demo.show_commands("windrow append leases batch.parquet --batch-id again   # twice")
    rows = [(n, r.accepted, r.duplicate) for n, r in (("first", first), ("second", second))]
    demo.print_table(("append", "rows", "duplicate"), rows, right=("rows",))
    return {"duplicate": [first.duplicate, second.duplicate]}


def play_upkeep(demo: DemoState) -> Facts:
    """Everything verified, and what is no longer needed removed."""
    demo.say("Every file, checksum, sort order, directory entry and cell, verified; then the clean-up:")
    demo.show_commands("windrow check", "windrow gc")
    report, freed = demo.wh.check(), demo.wh.gc()
    for problem in report.problems:
        demo.say(problem)
    counts = {"segment": report.segments, "file": report.files, "row": report.rows}
    checked = ", ".join(terminal.count(number, word) for word, number in counts.items())
    demo.say(
        f"{terminal.count(len(report.problems), 'problem')} in {checked}; "
        f"{terminal.count(freed.files, 'replaced file')} removed"
    )
    return {"check": dataclasses.asdict(report), "gc": dataclasses.asdict(freed)}


SHOWN_LAYOUTS = 4
LEASES_BY_HOST = "SELECT host, count(*), max(exp) FROM leases GROUP BY host ORDER BY host"


def play_layout(demo: DemoState) -> Facts:
    """Ask the advisor, turn a live stream to another layout and key, and compare answers before and after."""
    advice = demo.wh.advise("leases")
    demo.say("Nobody has to know how many cells an index should have. The advisor goes by what was measured:")
    demo.show_commands("windrow advise leases")
    layouts: dict[str, Estimate] = {}
    for estimate in advice.alternatives:  # some differ only in how much they merge
        layouts.setdefault(str(estimate.index), estimate)
    shown = list(layouts.values())[:SHOWN_LAYOUTS]
    if advice.current not in shown:
        shown.append(advice.current)
    times = [[terminal.format_seconds(t / 1e3) for t in (e.update, e.probe, e.scan, e.total)] for e in shown]
    marks = [" (now)" if estimate.index == advice.current.index else "" for estimate in shown]
    rows = [(f"{estimate.index}{mark}", *cells) for estimate, mark, cells in zip(shown, marks, times, strict=True)]
    columns = ("layout", "update", "probe", "scan", "a slide")
    demo.print_table(columns, rows, right=columns[1:])
    before = demo.wh.sql(LEASES_BY_HOST).fetchall()
    demo.say("A live stream can move to another layout and search key; nothing pauses, and every answer stays exact:")
    demo.show_commands("windrow stream relayout leases --index 'round-robin 2 2' --key host --move")
    report = demo.wh.relayout("leases", Index("round-robin", 2, 2), key="host", move="now")
    equal = demo.wh.sql(LEASES_BY_HOST).fetchall() == before
    demo.say(
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


def play_periodic(demo: DemoState) -> Facts:
    """Queries that are answered as their windows slide."""
    wh = demo.wh
    demo.say("Three questions are asked once, and answered from now on. One wants every run, and a report of each:")
    demo.show_commands(
        f'windrow query add each_minute "{EACH_MINUTE}" --missed every --sink html',
        f'windrow query add busiest "{BUSIEST}" --missed every',
        f'windrow query add newcomers "{NEWCOMERS}" --output inserts',
    )
    wh.add_query("each_minute", EACH_MINUTE, missed="every", sink="html")
    wh.add_query("busiest", BUSIEST, missed="every")
    wh.add_query("newcomers", NEWCOMERS, output="inserts")
    demo.say(f"{MINUTES} minutes pass, and nobody makes a round ('windrow serve' would after each slide). Then:")
    ends = _append_minutes(demo)
    demo.show_commands("windrow query run")
    reports = wh.run_due()
    columns = ("query", "slide", "outcome", "rows", "behind", "answered by")
    rows = [(r.query, r.slide, r.outcome, r.rows, f"{r.staleness:g} s", r.how) for r in reports]
    demo.print_table(columns, rows, right=("slide", "rows", "behind"))
    demo.say("What was delivered is a table like any other:")
    demo.show_commands(f'windrow sql "{TREND}"')
    trend = wh.sql(TREND).fetchall()
    demo.print_table(("minute", "packets", "bytes"), trend, right=("packets", "bytes"))
    equal = [(count, size) for _, count, size in trend] == [
        _count_packets(_generated_packets(demo, end, 1)) for end in ends
    ]
    demo.say(f"Plain arithmetic gives {'the same' if equal else 'something else'} for each of the minutes.")
    files = sorted(path for path in (wh.path / "results" / "each_minute").glob("*.html") if "latest" not in path.name)
    demo.say(f"{terminal.count(len(files), 'report')} with a chart: results/each_minute/each_minute-latest.html")
    runs = {query.name: query.runs for query in wh.queries()}
    return {"equal": equal, "runs": runs, "files": len(files), "trend": [list(row) for row in trend]}


def _append_minutes(demo: DemoState) -> list[int]:
    """Append packets of both probes minute by minute; return the ends of the minutes."""
    now = parse_instant(demo.wh.now("packets") or to_datetime(START))
    first = (now - START) // (MINUTE) + 1
    ends = []
    for minute in range(first, first + MINUTES):
        for source in ("north", "south"):
            demo.wh.append("packets", generate_packets(demo, minute, max(50, demo.rows // 4)), source=source)
        ends.append(START + minute * MINUTE)
        report = demo.wh.slide("packets", to=to_datetime(ends[-1]))
        demo.say(f"  slide {report.slide}, now {format_time(report.now)}: {report.inserted:,} packets in")
    demo.say("")
    return ends


CLICKS = 300_000
_BEGIN = "2025-06-02T08:00:00"


def play_spark(demo: DemoState) -> Facts:
    """Clicks arrive through Spark, minute by minute; a report takes a window out again."""
    if importlib.util.find_spec("pyspark") is None:
        demo.say("Spark is not installed here; 'pip install windrow[spark]' and Java 17 add this scene.")
        return {"skipped": "pyspark is not installed"}
    demo.say(f"{CLICKS:,} clicks of three minutes, made and written by Spark in local mode; starting it takes a while.")
    demo.show_commands(
        "windrow.spark.append(df, wh, 'clicks', batch_id='job-1'); wh.slide('clicks')",
        "with windrow.spark.window(spark, wh, 'clicks', '2 minutes') as df: df.groupBy('page').count()",
    )
    from windrow.ingest.session import quiet_session

    with quiet_session("windrow demo") as spark:
        return _ingest_clicks(demo, spark)


def _ingest_clicks(demo: DemoState, spark: "SparkSession") -> Facts:
    import windrow.spark

    start = parse_instant(_BEGIN)
    clicks = spark.range(CLICKS).selectExpr(
        f"timestamp_micros({start} + 1 + id * {180_000_000 // CLICKS}) AS ts",
        "id % 5000 AS user",
        "concat('/page/', CAST(pmod(hash(id), 20) AS STRING)) AS page",
        "CAST(pmod(hash(id, 7), 900) AS INT) AS millis",
    )
    stamp = pa.timestamp("us", "UTC")
    schema = pa.schema([("ts", stamp), ("user", pa.int64()), ("page", pa.string()), ("millis", pa.int32())])
    demo.wh.create_stream("clicks", schema, time="ts", key="user", slide="1 minute", lifetime="10 minutes")
    report = windrow.spark.append(clicks, demo.wh, "clicks", batch_id="job-1")
    again = windrow.spark.append(clicks, demo.wh, "clicks", batch_id="job-1")
    slid = demo.wh.slide("clicks", to="2025-06-02T08:03:00")
    demo.say(
        f"{report.accepted:,} rows in; the retried job changed nothing: {again.duplicate}; "
        f"now {format_time(slid.now)}\n"
    )
    with windrow.spark.window(spark, demo.wh, "clicks", "2 minutes") as window:
        rows = window.groupBy("page").count().orderBy("count", "page", ascending=False).limit(5).collect()
    demo.print_table(("page", "clicks in two minutes, by Spark"), [(row["page"], row["count"]) for row in rows])
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


def play_sql(demo: DemoState) -> Facts:
    """Ask in SQL."""
    demo.wh.put_table("hosts", pa.table({"src": pa.array(range(1, 6), pa.int64()), "name": HOSTS}))
    demo.say("Who sent how much in the last ten minutes? A window of a stream joined with a small table:")
    demo.show_commands("windrow table put hosts hosts.csv", "windrow sql", *(f"  {line}" for line in BYTES_BY_HOST))
    joined = _run_and_show(demo, BYTES_BY_HOST)
    expected = _count_by_host(demo)
    equal = {name: (int(count), int(size)) for name, count, size in joined} == expected
    demo.say(f"\nPlain arithmetic gives {'the same' if equal else f'something else: {expected}'}.\n")
    demo.say("Who sends more in this minute than in its last ten? Two windows of one stream in one statement:")
    demo.show_commands(*GROWING_SOURCES)
    compared = _run_and_show(demo, GROWING_SOURCES)
    demo.say("\nOne host's packets: the search key leads to a few rows of a few segments, and EXPLAIN says so:")
    demo.show_commands(f'windrow explain "{ONE_SOURCE}"')
    explanation = demo.wh.explain(ONE_SOURCE)
    if not demo.quiet:
        show_explanation(explanation)
    (relation,) = explanation.relations
    return {
        "equal": equal,
        "joined": [list(row) for row in joined],
        "compared": len(compared),
        "rows": list(relation.rows),
        "path": relation.path,
    }


def _run_and_show(demo: DemoState, lines: tuple[str, ...]) -> list[tuple[str, int, int]]:
    from windrow.queries.answer import describe_windows

    answer = demo.wh.sql("\n".join(lines))
    windows, table = answer.windows, answer.arrow()
    if not demo.quiet:
        show_rows(table.to_reader())
    demo.say(f"{terminal.count(table.num_rows, 'row')} of {describe_windows(windows)}")
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _count_packets(packets: pa.Table) -> tuple[int, int]:
    """Count packets and their bytes."""
    return packets.num_rows, int(packets.column("len").to_numpy().astype(np.int64).sum())


def _count_by_host(demo: DemoState) -> dict[str, tuple[int, int]]:
    """Count the packets and bytes of each host in the last ten minutes of all that was generated."""
    packets = _generated_packets(demo, parse_instant(demo.wh.now("packets")), 10)
    source = packets.column("src").to_numpy()
    hosts = {name: packets.filter(pa.array(source == number)) for number, name in enumerate(HOSTS, 1)}
    return {name: _count_packets(rows) for name, rows in hosts.items() if rows.num_rows}


ANSWERED_PACKETS = (
    "SELECT p.src, p.dst, p.len, q.ts AS answered_at",
    "FROM packets [WINDOW 5 MINUTES] p JOIN packets [WINDOW 2 MINUTES] q ON p.src = q.dst AND p.dst = q.src",
    "WHERE p.ts < q.ts",
)


def play_views(demo: DemoState) -> Facts:
    """Declare a view, and compare it with its query."""
    demo.say("Which packets were answered? A join of two windows, declared once and kept from then on:")
    demo.show_commands("windrow view create answered", *(f"  {line}" for line in ANSWERED_PACKETS), "  --key src")
    sql = "\n".join(ANSWERED_PACKETS)
    view = demo.wh.create_view("answered", sql, key="src")
    rows = demo.wh.stream("answered").live_rows
    demo.say(f"Its update pattern is {view.pattern}: {view.why}. Its index is {view.index}.")
    direct = demo.wh.sql(f"SELECT count(*) FROM ({sql})").fetchall()[0][0]
    equal = direct == rows
    demo.say(
        f"It holds {terminal.count(rows, 'result')} with lifetimes of their own; running the join gives "
        f"{'as many' if equal else f'{direct:,}'}. Each slide of packets moves it from now on."
    )
    return {"rows": rows, "equal": equal, "pattern": view.pattern}

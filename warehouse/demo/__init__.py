"""The demo: a small network's leases and packets, generated, kept in windows, asked and checked, scene by scene.

Each scene is a function that shows something and gives the figures it showed; a new part of windrow adds a scene to
`SCENES`.
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.cli import terminal
from windrow.cli.admin import show_status
from windrow.cli.clock import slide_to_json
from windrow.cli.writers import show_rows
from windrow.demo.scenes import play_layout, play_periodic, play_spark, play_sql, play_views
from windrow.errors import DefinitionError
from windrow.indexes.partitioners import Index
from windrow.slide import SlideReport
from windrow.times import SECOND, format_time, parse_instant, to_datetime
from windrow.warehouse import Warehouse

START = parse_instant("2025-06-02T08:00:00")
MINUTE = 60 * SECOND
UTC = pa.timestamp("us", "UTC")
LEASES = pa.schema([("ts", UTC), ("host", pa.string()), ("port", pa.int32()), ("exp", UTC)])
PACKETS = pa.schema([("ts", UTC), ("src", pa.int64()), ("dst", pa.int64()), ("len", pa.int32())])
SILENT_MINUTES = 5

Facts = dict[str, Any]
Ints = npt.NDArray[np.int64]


@dataclass
class DemoState:
    """What the scenes share: the warehouse, the seeded randomness, and the truth to compare with."""

    wh: Warehouse
    updates: int
    rows: int
    random: np.random.Generator
    quiet: bool = False
    packets: list[pa.Table] = field(default_factory=list)
    """All packets that were generated, to check answers with."""

    def tell(self, text: str) -> None:
        """Say a sentence."""
        if not self.quiet:
            terminal.say(text)

    def typed(self, *lines: str) -> None:
        """Show what a user would type."""
        for line in lines:
            self.tell(f"  {line}")
        self.tell("")

    def table(self, columns: tuple[str, ...], rows: list[tuple[Any, ...]], right: tuple[str, ...] = ()) -> None:
        """Show a table."""
        if not self.quiet:
            terminal.print_table(columns, rows, right=right)
            terminal.say("")


def generate_leases(stage: DemoState, update: int) -> pa.Table:
    """Two minutes of leases: each lives as long as it was asked for, one in twenty arrives late, a few are broken."""
    count, random = stage.rows, stage.random
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


def generate_packets(stage: DemoState, minute: int, count: int) -> pa.Table:
    """One minute of packet headers: a few hosts send most of them, and every fifth packet answers an earlier one."""
    random = stage.random
    ts = np.sort(START + (minute - 1) * MINUTE + random.integers(1, MINUTE + 1, count))
    ts[-1:] = START + minute * MINUTE
    src = np.minimum(random.zipf(1.4, count), 5000).astype(np.int64)
    dst = random.integers(1, 5000, count)
    answers = np.arange(1, count)[random.random(count - 1) < 0.2]
    answered = (answers * random.random(len(answers))).astype(np.int64)
    src[answers], dst[answers] = dst[answered], src[answered]
    length = random.choice(np.array([40, 52, 576, 1500], np.int32), count)
    table = pa.table([pa.array(ts, UTC), src, dst, length], schema=PACKETS)
    stage.packets.append(table)
    return table


def play_streams(stage: DemoState) -> Facts:
    """Two streams."""
    stage.tell("Leases end when they end; packets are kept for 16 minutes, and come from two probes.")
    stage.typed(
        "windrow stream create leases --column ts:timestamptz --column host:varchar --column port:int \\",
        "    --column exp:timestamptz --time ts --key host --key port --slide '2 minutes' \\",
        "    --expires exp --max-lifetime '2 hours' --index 'round-robin 4 4'",
        "windrow stream create packets --column ts:timestamptz --column src:bigint --column dst:bigint \\",
        "    --column len:int --time ts --key src --slide '1 minute' --lifetime '16 minutes' \\",
        "    --source north --source south",
    )
    stage.wh.create_stream(
        "leases",
        LEASES,
        time="ts",
        key=["host", "port"],
        slide="2 minutes",
        expires="exp",
        max_lifetime="2 hours",
        index=Index("round-robin", 4, 4),
    )
    stage.wh.create_stream(
        "packets", PACKETS, time="ts", key="src", slide="1 minute", lifetime="16 minutes", sources=["north", "south"]
    )
    statuses = [stage.wh.stream(name) for name in ("leases", "packets")]
    stage.table(("stream", "index", "why"), [(s.name, s.index, s.index_why) for s in statuses])
    return {s.name: s.index for s in statuses}


def play_lifetimes(stage: DemoState) -> Facts:
    """Rows with lifetimes of their own come and go; the cost follows the batch."""
    stage.tell(
        f"{stage.updates} batches of {stage.rows:,} leases, each appended and slid in. "
        "A slide touches at most 7 of 16 cells:"
    )
    stage.typed("report = wh.append('leases', batch); report = wh.slide('leases', to=t)")
    reports: list[SlideReport] = []
    for update in range(1, stage.updates + 1):
        stage.wh.append("leases", generate_leases(stage, update), batch_id=f"batch-{update}")
        reports.append(stage.wh.slide("leases", to=to_datetime(START + update * 2 * MINUTE)))
    step = max(1, stage.updates // 12)
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
    stage.table(columns, rows, right=columns[2:])
    return {"slides": [slide_to_json(report) for report in reports]}


def play_silence(stage: DemoState) -> Facts:
    """A source falls silent: the stream waits, and says for whom."""
    minutes = max(12, stage.updates // 2)
    share = max(50, stage.rows // 4)
    for minute in range(1, minutes + 1):
        for source in ("north", "south"):
            if source == "north" or minute <= minutes - SILENT_MINUTES:
                stage.wh.append("packets", generate_packets(stage, minute, share), source=source)
        stage.wh.slide("packets")
    status = stage.wh.stream("packets")
    end = START + minutes * MINUTE
    waiting = status.waiting_for
    stage.tell(
        f"For the last {SILENT_MINUTES} minutes the probe 'south' said nothing. 'north' goes on; the window waits:"
    )
    stage.typed("windrow status")
    if not stage.quiet:
        show_status(stage.wh.status())
    stage.tell(
        f"\n'south' had nothing to send, and says so. The stream catches up {SILENT_MINUTES} slots in one update:"
    )
    stage.typed(f"windrow heartbeat packets --source south --up-to {format_time(end)}", "windrow slide packets")
    stage.wh.heartbeat("packets", source="south", up_to=to_datetime(end))
    report = stage.wh.slide("packets")
    stage.table(
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


def play_asking(stage: DemoState) -> Facts:
    """Answers by key and by window, the same as plain arithmetic over all that was generated."""
    stage.tell("The rows of one host and port, straight through the directory:")
    stage.typed("windrow probe leases --key 10.0.0.7,443 --window '10 minutes' --limit 5")
    found = stage.wh.probe("leases", key=("10.0.0.7", 443), window="10 minutes").sort_by("ts")
    if not stage.quiet:
        show_rows(found.slice(0, 5).to_reader())
    stage.tell(
        f"{terminal.count(found.num_rows, 'row')}\n\n"
        "Who sent most in the last ten minutes? A scan, and Arrow's own group by:"
    )
    stage.typed(
        "rows = wh.scan('packets', window='10 minutes', columns=['src', 'len']).read_all()",
        "rows.group_by('src').aggregate([('len', 'count'), ('len', 'sum')])",
    )
    scanned = stage.wh.scan("packets", window="10 minutes", columns=["src", "len"]).read_all()
    top = _find_top_sources(scanned)
    expected = _find_top_sources(_last_minutes(stage, 10))
    stage.table(
        ("src", "packets", "bytes"), [(s, f"{n:,}", f"{b:,}") for s, n, b in top], right=("src", "packets", "bytes")
    )
    equal = top == expected and scanned.num_rows == _last_minutes(stage, 10).num_rows
    stage.tell(
        "Plain arithmetic over everything that was generated gives "
        f"{'the same' if equal else 'something else: ' + str(expected)}."
    )
    return {"probe_rows": found.num_rows, "top": [list(row) for row in top], "equal": equal}


def _last_minutes(stage: DemoState, minutes: int) -> pa.Table:
    """The truth: every generated packet whose time is in the window."""
    everything = pa.concat_tables(stage.packets)
    now = stage.wh.stream("packets").now or 0
    ts = everything.column("ts").cast(pa.int64()).to_numpy()
    return everything.filter(pa.array((ts > now - minutes * MINUTE) & (ts <= now)))


def _find_top_sources(rows: pa.Table) -> list[tuple[int, int, int]]:
    source, sent = rows.column("src").to_numpy(), rows.column("len").to_numpy().astype(np.int64)
    packets, octets = np.bincount(source), np.bincount(source, weights=sent).astype(np.int64)
    order = np.lexsort((np.arange(len(octets)), -octets))[:5]
    return [(int(s), int(packets[s]), int(octets[s])) for s in order]


def play_rejected(stage: DemoState) -> Facts:
    """Rows that cannot be taken are kept apart, with the reason."""
    rows = stage.wh.rejected("leases")
    reasons = rows.group_by("_reason").aggregate([("_reason", "count")]).sort_by("_reason")
    counted = dict(zip(reasons.column("_reason").to_pylist(), reasons.column("_reason_count").to_pylist(), strict=True))
    stage.tell("Leases that could not be taken did not spoil their batches:")
    stage.typed("windrow stream rejected leases")
    stage.table(("reason", "rows"), [(reason, f"{number:,}") for reason, number in counted.items()], right=("rows",))
    return {"rejected": counted}


def play_twice(stage: DemoState) -> Facts:
    """The same batch again changes nothing."""
    batch = pa.table(
        [
            pa.array([START + (stage.updates * 2 + 1) * MINUTE], UTC),
            ["10.0.0.7"],
            pa.array([443], pa.int32()),
            pa.array([START + (stage.updates * 2 + 30) * MINUTE], UTC),
        ],
        schema=LEASES,
    )
    first = stage.wh.append("leases", batch, batch_id="again")
    second = stage.wh.append("leases", batch, batch_id="again")
    stage.tell("A batch with an id is in once, however often it is sent:")
    stage.typed("windrow append leases batch.parquet --batch-id again   # twice")
    told = [(n, r.accepted, r.duplicate) for n, r in (("first", first), ("second", second))]
    stage.table(("append", "rows", "duplicate"), told, right=("rows",))
    return {"duplicate": [first.duplicate, second.duplicate]}


def play_upkeep(stage: DemoState) -> Facts:
    """Everything verified, and what is no longer needed removed."""
    stage.tell("Every file, checksum, sort order, directory entry and cell, verified; then the clean-up:")
    stage.typed("windrow check", "windrow gc")
    report, freed = stage.wh.check(), stage.wh.gc()
    for problem in report.problems:
        stage.tell(problem)
    counts = {"segment": report.segments, "file": report.files, "row": report.rows}
    looked = ", ".join(terminal.count(number, word) for word, number in counts.items())
    stage.tell(
        f"{terminal.count(len(report.problems), 'problem')} in {looked}; "
        f"{terminal.count(freed.files, 'replaced file')} removed"
    )
    return {"check": dataclasses.asdict(report), "gc": dataclasses.asdict(freed)}


@dataclass(frozen=True)
class Scene:
    """One part of the demo."""

    name: str
    title: str
    play: Callable[[DemoState], Facts]


SCENES = (
    Scene("streams", "Two streams", play_streams),
    Scene("lifetimes", "Every row has its own lifetime", play_lifetimes),
    Scene("silence", "A silent source", play_silence),
    Scene("asking", "Asking", play_asking),
    Scene("sql", "Asking in SQL", play_sql),
    Scene("views", "A join that is kept", play_views),
    Scene("periodic", "Asked again and again", play_periodic),
    Scene("layout", "Another layout, while it is in use", play_layout),
    Scene("rejected", "Rows that cannot be taken", play_rejected),
    Scene("twice", "The same batch twice", play_twice),
    Scene("spark", "Through Spark", play_spark),
    Scene("upkeep", "Looking after it", play_upkeep),
)


def run(
    folder: str | None,
    *,
    updates: int = 36,
    rows: int = 8000,
    seed: int = 1,
    as_json: bool = False,
    skip: Collection[str] = (),
) -> None:
    """Play the scenes in a new warehouse in `folder`, or in a temporary one."""
    names = [scene.name for scene in SCENES]
    for name in skip:
        if name not in names:
            raise DefinitionError(f"the demo has no scene {name!r}; it has {', '.join(names)}")
    facts: dict[str, Facts] = {}
    with _open_folder(folder) as path, Warehouse(path) as wh:
        stage = DemoState(wh, updates, rows, np.random.default_rng(seed), quiet=as_json)
        for number, scene in enumerate((scene for scene in SCENES if scene.name not in skip), 1):
            stage.tell(f"{'' if number == 1 else chr(10)}{number}. {scene.title}\n")
            facts[scene.name] = scene.play(stage)
        if folder is not None:
            stage.tell(f"\nThe warehouse is in {path}. Try: windrow -w {path} status")
        else:
            stage.tell("\nThe warehouse was temporary and is gone; 'windrow demo --folder PATH' keeps it.")
    if as_json:
        terminal.write_json({"path": folder, "scenes": facts})


@contextlib.contextmanager
def _open_folder(folder: str | None) -> Iterator[Path]:
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="windrow-demo-") as made:
        yield Path(made) / "warehouse"

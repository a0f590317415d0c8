"""`bench history`: what history, earlier states, fresh answers, erasing, `erase_within` and publishing cost.

Times are processor times, medians of turns that alternate between what is compared; an erasure and Delta's are elapsed,
since they are mostly disk.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

import windrow
from bench import machine, report
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow.background import Background, background_of
from windrow.times import SECOND, to_datetime

MINUTE = 60 * SECOND
LIFETIME = 10
"""Minutes that rows live."""
ERASED = 100
SCHEMA = pa.schema([
    ("ts", pa.timestamp("us", "UTC")), ("exp", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("a", pa.int64()),
    ("b", pa.int64()),
])  # fmt: skip


def work(*, quick: bool) -> int:  # noqa: ARG001 - every bench is asked
    """How many times `advance` will be called."""
    return 5


def bench(*, quick: bool, results: Results, scratch: Path, advance: Callable[[str], None]) -> tuple[str, list[Aim]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    host = machine.describe(scratch)
    figures: dict[str, Any] = {"machine": host}
    turns = 24 if quick else 60
    steps: tuple[tuple[str, Callable[[Path], dict[str, float]]], ...] = (
        ("slides", lambda folder: measure_slides(folder, 20_000, turns)),
        ("past", lambda folder: measure_past(folder, 20_000, turns)),
        ("erase", lambda folder: measure_erasure(folder, 1_000_000)),
        ("publish", lambda folder: measure_publication(folder, 20_000, turns)),
        ("limit", lambda folder: measure_limit(folder, 5_000, 40 if quick else 120)),
    )
    for name, measure in steps:
        with TemporaryDirectory(dir=scratch) as folder:
            figures[name] = measure(Path(folder))
        advance(name)
    slides, past, erase, publish = (figures[name] for name in ("slides", "past", "erase", "publish"))
    aims = [
        Aim("a slide with history / without, background work apart", slides["history"] / slides["plain"], 1.05),
        Aim("scan AS OF an earlier commit / live scan, for each row", past["then"] / past["live"], 1.3),
        Aim(
            "SQL AS OF an earlier commit / the same over the live window, for each row",
            past["sql_then"] / past["sql"],
            1.3,
        ),
        Aim('isolation="fresh" / "snapshot", both from files', past["fresh"] / past["snapshot"], 1.3),
        Aim("the same where the rows are in memory", past["fresh_memory"] / past["memory"], 1.3),
        Aim(f"erasing {ERASED} near-unique keys / Delta's delete and vacuum", erase["windrow"] / erase["delta"], 1.0),
        Aim("publishing a version / a slide", publish["version"] / publish["slide"], 1.1),
        Aim("the same, elapsed", publish["version_elapsed"] / publish["slide_elapsed"], 1.1),
        Aim("bytes that erase_within wrote again / once in each limit", figures["limit"]["ratio"], 1.05),
    ]
    measured = [
        ["a slide of 20,000 rows without history", f"{slides['plain']:.1f}"],
        ["with it", f"{slides['history']:.1f}"],
        ["background work beside it: merges of history, for each slide", f"{slides['background']:.1f}"],
        ['SQL at isolation="snapshot" over 200,000 rows, from files', f"{past['snapshot']:.1f}"],
        ["the same from rows in memory, where statements have asked for them before", f"{past['memory']:.1f}"],
        ['"fresh", with 20,000 rows spooled, from files', f"{past['fresh']:.1f}"],
        ["the same from rows in memory", f"{past['fresh_memory']:.1f}"],
        [f"erasing {ERASED} of {erase['rows']:,.0f} keys, elapsed", f"{erase['windrow']:,.0f}"],
        ["of that, overwriting the catalog's free pages", f"{erase['wipe']:,.0f}"],
        ["Delta: delete, then vacuum", f"{erase['delta']:,.0f}"],
        ["a slide of a stream that is not published", f"{publish['slide']:.1f}"],
        ["what a slide that publishes a version takes longer", f"{publish['version']:.1f}"],
        ["the slide, elapsed", f"{publish['slide_elapsed']:.1f}"],
        ["what the other takes longer, elapsed", f"{publish['version_elapsed']:.1f}"],
    ]
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims)]
    parts += [report.table(["medians", "ms"], measured)]
    figures["wanted"] = verdicts(aims)
    results.write("history", figures)
    return "\n\n".join(parts), aims


class Stream:
    """A stream of a warehouse that gets rows each minute, a quarter of them late."""

    def __init__(self, folder: Path, rows: int, seed: int, **options: Any) -> None:
        self.wh = windrow.open(folder, clock=lambda: ORIGIN + 1_000_000 * MINUTE + time.monotonic_ns() // 1000)
        self.rows, self.minute, self.chance = rows, 0, np.random.default_rng(seed)
        options = {"lifetime": f"{LIFETIME} minutes", "index": windrow.Index("round-robin", 4, 4)} | options
        self.wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", max_ahead="900 days", **options)

    def make(self) -> pa.Table:
        """The rows of the next minute."""
        count, chance = self.rows, self.chance
        back = np.where(chance.random(count) < 0.25, chance.integers(1, 4, count), 0)
        ts = ORIGIN + (self.minute - back) * MINUTE + 1 + chance.integers(0, MINUTE, count)
        lives = np.where(chance.random(count) < 0.5, LIFETIME, chance.integers(4, LIFETIME, count))
        columns = [ts, ts + lives * MINUTE, *(chance.integers(0, 1 << 40, count) for _ in range(3))]
        arrays = [pa.array(values).cast(kind) for values, kind in zip(columns, SCHEMA.types, strict=True)]
        return pa.table(arrays, schema=SCHEMA)

    def append(self) -> None:
        """A minute of rows."""
        self.wh.append("s", self.make())
        self.minute += 1

    def slide(self, clock: Callable[[Callable[[], Any]], float] | None = None) -> float:
        """To the end of the last minute; gives milliseconds, of processor time if nothing else is said."""
        return (clock or processor_time)(lambda: self.wh.slide("s", to=to_datetime(ORIGIN + self.minute * MINUTE)))

    def go_on(self, minutes: int) -> None:
        """Append and slide, and again."""
        for _ in range(minutes):
            self.append()
            self.slide()


def processor_time(call: Callable[[], Any]) -> float:
    """Milliseconds of processor time of all threads."""
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e3


def elapsed_time(call: Callable[[], Any]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def leave_work(*_: object) -> bool:
    """Stands in for background work: a mock would be counted."""
    return False


def measure_slides(folder: Path, rows: int, turns: int) -> dict[str, float]:
    """Slides of two streams that differ in their history, in turns, and the background work that one leaves."""
    streams = {
        name: Stream(folder / name, rows, 1, **options)
        for name, options in (("plain", {}), ("history", {"history": "60 minutes"}))
    }
    spent: dict[str, list[float]] = {name: [] for name in streams}
    for stream in streams.values():
        stream.go_on(2 * LIFETIME)
    background = 0.0
    for _ in range(turns):
        for name, stream in streams.items():
            stream.append()
            with mock.patch.object(Background, "run", leave_work):
                spent[name].append(stream.slide())
        waiting = background_of(streams["history"].wh._store)
        background += processor_time(partial(waiting.run, 60.0))
    for stream in streams.values():
        stream.wh.close()
    return {name: statistics.median(times) for name, times in spent.items()} | {"background": background / turns}


def measure_past(folder: Path, rows: int, turns: int) -> dict[str, float]:
    """Scans and statements of an earlier commit beside those of the live window, and fresh answers."""
    stream = Stream(folder, rows, 2, history="60 minutes")
    stream.go_on(LIFETIME + 6)
    wh = stream.wh
    commit = wh.sql("SELECT 1 FROM s LIMIT 1").version
    stream.go_on(12)
    stream.append()
    statement = "SELECT count(*), sum(a), min(b) FROM s"
    spent: dict[str, list[float]] = {}

    def count(source: Any) -> int:
        return sum(batch.num_rows for batch in source.scan("s"))

    def take(name: str, call: Callable[[], Any], amount: int = 1) -> None:
        spent.setdefault(name, []).append(processor_time(call) / amount)

    with wh.snapshot() as live, wh.snapshot(as_of=commit) as then:
        live_rows, rows_then = count(live), count(then)
        if then.sql("SELECT count(*) FROM s").fetchall() != [(rows_then,)]:
            raise WrongAnswerError("an earlier commit has other rows in SQL than in a scan")
        wh.sql(statement, isolation="fresh").fetchall()
        time.sleep(1)  # until its rows are in memory
        for _ in range(turns):
            wh._store.scan_cache.clear()
            take("live", lambda: count(live), live_rows)
            take("then", lambda: count(then), rows_then)
            take("sql_then", lambda: then.sql(statement).fetchall(), rows_then)
            wh.sql(statement).fetchall()  # what was just read lies in the processor's caches, of both that follow
            take("memory", lambda: wh.sql(statement).fetchall())
            take("fresh_memory", lambda: wh.sql(statement, isolation="fresh").fetchall())
            with mock.patch("windrow.queries.planner.reads.row_cache", return_value=None):
                take("sql", lambda: live.sql(statement).fetchall(), live_rows)
                take("snapshot", lambda: wh.sql(statement).fetchall())
                take("fresh", lambda: wh.sql(statement, isolation="fresh").fetchall())
    wh.close()
    return {name: statistics.median(times) for name, times in spent.items()}


def measure_erasure(folder: Path, rows: int) -> dict[str, float]:
    """A hundred of many keys that are nearly all different, from fifty files here and in Delta."""
    import deltalake

    from windrow import erasure

    first = Stream(folder / "first", 100, 3)  # so that neither loads its modules in what is measured
    first.go_on(1)
    first.wh.erase("s", where="k >= 0")
    first.wh.close()
    deltalake.write_deltalake(str(folder / "first_delta"), first.make())
    deltalake.DeltaTable(str(folder / "first_delta")).delete("k >= 0")
    files = 50
    stream = Stream(folder / "w", rows // files, 3, lifetime="2 hours")
    for _ in range(files):
        table = stream.make()
        stream.wh.append("s", table)
        stream.minute += 1
        stream.slide()
        deltalake.write_deltalake(str(folder / "delta"), table, mode="append")
    chosen = stream.wh.scan("s", columns=["k"]).read_all().column("k").unique()
    keys = stream.chance.choice(chosen.to_numpy(), ERASED, replace=False).tolist()
    table = deltalake.DeltaTable(str(folder / "delta"))

    def delete() -> None:
        table.delete(f"k IN ({', '.join(map(str, keys))})")
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    ours = elapsed_time(lambda: stream.wh.erase("s", keys=keys))
    theirs = elapsed_time(delete)
    wiped = elapsed_time(lambda: erasure.wipe(stream.wh._store))
    left = stream.wh.sql(f"SELECT count(*) FROM s WHERE k IN ({', '.join(map(str, keys))})").fetchall()
    if left != [(0,)]:
        raise WrongAnswerError(f"{left} rows are left of what was erased")
    stream.wh.close()
    return {"windrow": ours, "delta": theirs, "rows": rows, "wipe": wiped}


def measure_publication(folder: Path, rows: int, turns: int) -> dict[str, float]:
    """Slides of two streams, of which one publishes a version with each; what it costs is what they differ by."""
    streams = {name: Stream(folder / name, rows, 4) for name in ("slide", "version")}
    for name, stream in streams.items():
        stream.go_on(LIFETIME + 2)
        if name == "version":
            stream.wh.publish("s", every="1 microsecond", hold="1 minute")
    spent: dict[str, list[float]] = {}
    for turn in range(2 * turns):
        suffix, clock = (("", processor_time), ("_elapsed", elapsed_time))[turn % 2]
        for name, stream in streams.items():
            stream.append()
            spent.setdefault(f"{name}{suffix}", []).append(stream.slide(clock))
    (published,) = streams["version"].wh.publications()
    if published.version != 2 * turns:
        raise WrongAnswerError(f"{2 * turns} slides have published {published.version} versions")
    for stream in streams.values():
        stream.wh.close()
    slides = {name: statistics.median(times) for name, times in spent.items()}
    return slides | {
        f"version{suffix}": slides[f"version{suffix}"] - slides[f"slide{suffix}"] for suffix in ("", "_elapsed")
    }


def measure_limit(folder: Path, rows: int, slides: int) -> dict[str, float]:
    """Bytes that `erase_within` wrote again, beside once in each limit of every row's life; merges are switched off."""
    within = 3
    stream = Stream(
        folder, rows, 5, lifetime=None, expires="exp", max_lifetime=f"{LIFETIME} minutes",
        erase_within=f"{within} minutes", index=windrow.Index("wave-insertion", 4, 1, maintenance="norebuild"),
    )  # fmt: skip
    segments, seen = folder / "streams" / "s" / "segments", set[Path]()
    appended = written = rewrites = 0
    for _ in range(slides):
        table = stream.make()
        stream.wh.append("s", table)
        stream.minute += 1
        for is_slide in (False, True):
            if is_slide:
                stream.slide()
            files = set(segments.iterdir()) - seen
            size = sum(file.stat().st_size for file in files)
            appended, written = (appended, written + size) if is_slide else (appended + size, written)
            seen |= files
        lives = (
            table.column("exp").cast(pa.int64()).to_numpy() - table.column("ts").cast(pa.int64()).to_numpy()
        ) // MINUTE
        rewrites += int((lives // within).sum())
    stream.wh.close()
    return {"written": written, "appended": appended, "ratio": written / (appended * rewrites / (rows * slides))}

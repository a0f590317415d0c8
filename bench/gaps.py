"""`bench gaps`: what the ledger of gaps costs a slide, and what revisions cost a round of 240 periodic queries.

The ledger's processor time is set beside that of a slide, and its elapsed time; rounds are compared by processor time.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import windrow
from bench import machine, periodic, report
from bench.periodic import DELTA, SCHEMA, SLOTS, SlidStream
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.workload import ORIGIN
from windrow import slide
from windrow.times import to_datetime

SOURCES = ("a", "b", "c")
LATE = 4
"""Slots by which late rows are late: so many delivered windows of each query have changed."""
REVISED = 5


def work(*, quick: bool) -> int:  # noqa: ARG001 - every bench is asked
    """How many times `advance` will be called."""
    return 2


def bench(*, quick: bool, results: Results, scratch: Path, advance: Callable[[str], None]) -> tuple[str, list[Aim]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    host = machine.describe(scratch)
    with TemporaryDirectory(dir=scratch) as folder:
        ledger = measure_ledger(Path(folder) / "ledger", 10_000, 20 if quick else 200)
    advance("the ledger")
    with TemporaryDirectory(dir=scratch) as folder:
        rounds = measure_rounds(Path(folder) / "rounds", 1_000 if quick else 10_000, 5 if quick else 15)
    advance("revisions")
    aims = [
        Aim("a slide / the same without the ledger, elapsed", ledger["ratio"], 1.02),
        Aim("a round of 240 queries with 20 revisions / without", rounds["ratio"], 1.2),
    ]
    measured = [
        ["elapsed in a slide of 10,000 rows of three sources, one of them failed", f"{ledger['elapsed']:.2f}"],
        ["processor time of that slide, which writes no rows again", f"{ledger['slide']:.2f}"],
        ["of that, the ledger of gaps", f"{ledger['ledger']:.3f}"],
        ["processor time of a round of 240 periodic queries", f"{rounds['plain']:,.0f}"],
        ["of one with 20 revisions", f"{rounds['revised']:,.0f}"],
    ]
    parts = [machine.summarise(host), "### What was wanted", report.aims_table(aims)]
    parts += [report.table(["medians", "ms"], measured)]
    figures = {"machine": host, "ledger": ledger, "rounds": rounds, "wanted": verdicts(aims)}
    results.write("gaps", figures)
    return "\n\n".join(parts), aims


def measure_ledger(folder: Path, rows: int, slides: int) -> dict[str, float]:
    """Milliseconds of slides with a growing gap, and of what writes the ledger in them."""
    spent, shares = [0.0], []
    record = slide.record_gaps

    def timed(*given: Any) -> None:
        started = time.thread_time()
        record(*given)
        spent[0] += time.thread_time() - started

    with (
        windrow.open(folder, clock=lambda: ORIGIN + 100_000 * DELTA) as wh,
        mock.patch.object(slide, "record_gaps", timed),
    ):
        wh.create_stream(
            "packets", SCHEMA, time="ts", key="src", slide="10 seconds", lifetime="1000 seconds", sources=list(SOURCES),
            on_source_failure="exclude",
        )  # fmt: skip
        made = SlidStream(wh, rows)
        for number in range(slides + 5):
            table = made.make()
            for source in SOURCES[: 3 if number < 3 else 2]:
                wh.append("packets", table.slice(SOURCES.index(source) * rows // 3, rows // 3), source=source)
                wh.heartbeat("packets", source=source, up_to=to_datetime(ORIGIN + made.slot * DELTA))
            if number == 3:
                wh.fail_source("packets", SOURCES[2], "unplugged")
            spent[0], started, begun = 0.0, time.process_time(), time.perf_counter()
            wh.slide("packets")
            if number >= 5:
                shares.append((time.perf_counter() - begun, time.process_time() - started, spent[0]))
        if [gap.kind for gap in wh.gaps("packets") if gap.source == SOURCES[2]][-1:] != ["failed"]:
            raise WrongAnswerError("the failed source has no gap")
    elapsed, slid, ledger = (statistics.median(figure) * 1e3 for figure in zip(*shares, strict=True))
    return {
        "elapsed": elapsed, "slide": slid, "ledger": ledger,
        "ratio": elapsed / (elapsed - ledger), "processor": slid / (slid - ledger),
    }  # fmt: skip


def measure_rounds(folder: Path, rows: int, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of rounds with and without revisions, in turns over one warehouse."""
    asked = periodic.queries(240)
    with windrow.open(folder, clock=lambda: ORIGIN + 100_000 * DELTA) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", slide="10 seconds", lifetime="1100 seconds")
        world = SlidStream(wh, rows)
        for _ in range(SLOTS):
            world.slide()
        revised = asked[:: len(asked) // REVISED][:REVISED]
        periodic.register(world, asked, {query.name: LATE * DELTA for query in revised})
        for _ in range(LATE + 1):
            world.slide()
            wh.run_due()
        spent: dict[int, list[float]] = {0: [], REVISED * LATE: []}
        for number in range(2 * rounds):
            late = world.make(back=LATE).slice(0, 10) if number % 2 else SCHEMA.empty_table()
            wh.append("packets", late)
            world.slide()
            started = time.process_time()
            runs = wh.run_due()
            seconds = time.process_time() - started
            count = sum(run.revision > 0 for run in runs)
            if count not in spent or len(runs) != len(asked) + count or {r.outcome for r in runs} != {"delivered"}:
                raise WrongAnswerError(f"{len(runs)} runs, {count} of them revisions")
            spent[count].append(seconds * 1e3)
    plain, with_revisions = (statistics.median(spent[count]) for count in (0, REVISED * LATE))
    return {"plain": plain, "revised": with_revisions, "ratio": with_revisions / plain}

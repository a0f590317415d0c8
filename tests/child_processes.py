"""Functions that tests run in other processes: importable by name, and called with plain values only."""

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import recorded_history
from faulty_disks import KillAtCall, KillAtStep
from sample_streams import SHAPES


def run(path: str, shape: str, operations: list[Any], progress: str, files: Any = None) -> None:
    """Perform operations, noting in a file how many are done."""
    with Path(progress).open("ab", buffering=0) as log, recorded_history.open_warehouse(Path(path), files=files) as wh:
        for operation in operations:
            recorded_history.perform(wh, SHAPES[shape], operation)
            log.write(b".")


def run_until_step(path: str, shape: str, operations: list[Any], progress: str, step: str, nth: int) -> None:
    """Perform operations and kill this process at the nth pass of a named step."""
    run(path, shape, operations, progress, KillAtStep(step, nth))


def run_until_call(path: str, shape: str, operations: list[Any], progress: str, nth: int) -> None:
    """Perform operations and kill this process at the nth function call, which can be repeated exactly."""
    left = nth

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    run(path, shape, operations, progress)


def run_until_alarm(path: str, shape: str, operations: list[Any], progress: str, seconds: float) -> None:
    """Perform operations and kill this process after some time, perhaps inside the kernel, LMDB or Arrow."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    run(path, shape, operations, progress)


def open_with_little_address_space(path: str, queue: Any) -> None:
    """Open a warehouse where a process may not reserve a map of 1 TiB."""
    import resource

    import windrow

    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
    try:
        windrow.open(path)
    except windrow.WindrowError as error:
        queue.put((type(error).__name__, str(error)))
    else:
        queue.put(("nothing", ""))


def run_with_small_files(path: str, shape: str, operations: list[Any], limit: int, queue: Any) -> None:
    """Perform operations where no file may grow beyond `limit` bytes, as under a quota; then without."""
    import resource

    import windrow

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with recorded_history.open_warehouse(Path(path)) as wh:
        before, (soft, hard) = recorded_history.state(wh), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        message = ""
        try:
            for operation in operations:
                recorded_history.perform(wh, SHAPES[shape], operation)
                before = recorded_history.state(wh)
        except windrow.WindrowError as error:
            message = f"{type(error).__name__}: {error}"
        same = recorded_history.state(wh) == before
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        queue.put((message, same))
        for operation in operations:
            recorded_history.perform(wh, SHAPES[shape], operation)


def adopt_and_die(path: str, nth: int) -> None:
    """Adopt a copied folder and die before the nth sync or rename."""
    from windrow.adoption import adopt

    adopt(path, files=KillAtCall(nth))


def open_and_tell_id(path: str, queue: Any) -> None:
    """Open a warehouse for writing and say which id its marker has."""
    import json

    with recorded_history.open_warehouse(Path(path)):
        queue.put(json.loads((Path(path) / "windrow.json").read_text())["uuid"])


# -- Every slide inserts rows that carry its number, so that an answer shows which slide's state it is. ---------------

SLOTS, PER_SLOT, KEYS = 4, 30, 5
"""Rows live for SLOTS slots; each slot has PER_SLOT rows, evenly over KEYS keys."""


def numbered_rows(slot: int) -> Any:
    """Make the rows of one slot."""
    import pyarrow as pa

    from sample_streams import BASE, DELTA, US

    ts = [BASE + (slot - 1) * DELTA + 1 + i for i in range(PER_SLOT)]
    return pa.table(
        {
            "ts": pa.array(ts, US),
            "k": [i % KEYS for i in range(PER_SLOT)],
            "slot": [slot] * PER_SLOT,
            "n": range(PER_SLOT),
        }
    )


def create_numbered(path: str, index: Any, **options: Any) -> None:
    """Create a warehouse for numbered rows."""
    from sample_streams import DELTA

    with recorded_history.open_warehouse(Path(path), **options) as wh:
        wh.create_stream(
            "s",
            numbered_rows(1).schema,
            time="ts",
            key="k",
            slide=f"{DELTA} us",
            lifetime=f"{SLOTS * DELTA} us",
            index=index,
        )


def slide_numbered(wh: Any, slot: int) -> Any:
    """Append and slide one slot."""
    from sample_streams import BASE, DELTA, when

    wh.append("s", numbered_rows(slot), batch_id=str(slot))
    return wh.slide("s", to=when(BASE + slot * DELTA))


def slot_of_answer(slots: list[int], per_slot: int) -> int:
    """Find the slide whose state an answer is; it is an error if there is none."""
    from collections import Counter

    counts = Counter(slots)
    if not counts:
        return 0
    last = max(counts)
    whole = dict.fromkeys(range(max(1, last - SLOTS + 1), last + 1), per_slot)
    if counts != whole:
        raise AssertionError(f"no slide has this state: {sorted(counts.items())}")
    return last


def write_numbered(path: str, stop: str, gc: bool) -> None:
    """Slide again and again until the file `stop` exists."""
    slot = 0
    with recorded_history.open_warehouse(Path(path)) as wh:
        while not Path(stop).exists():
            slot += 1
            slide_numbered(wh, slot)
            if gc and slot % 5 == 0:
                wh.gc()


def write_numbered_changing(path: str, stop: str, seed: int) -> None:
    """Slide again and again, with changes of layout and search key, moves of rows, and cancelled relayouts."""
    import random

    from windrow import Index

    slot, choice = 0, random.Random(seed)
    layouts = [Index(name, 3) for name in ("round-robin", "wave-insertion", "chronological", "wave-expiry")]
    with recorded_history.open_warehouse(Path(path)) as wh:
        while not Path(stop).exists():
            slot += 1
            slide_numbered(wh, slot)
            move = choice.choice((False, "steps", "now"))
            if slot % 3 == 0:
                wh.relayout("s", choice.choice(layouts), key=choice.choice(("k", ["k", "n"])), move=move, budget=1)
            elif slot % 7 == 0 and (change := wh.stream("s").relayout) is not None and change.can_cancel:
                wh.cancel_relayout("s")
            else:
                wh.relayout_step("s", budget=1)


def read_numbered(path: str, states: int) -> None:
    """Scan, probe and take snapshots until so many different states were seen."""
    seen, last, answers = set(), 0, 0
    with recorded_history.open_warehouse(Path(path)) as wh:
        while len(seen) < states:
            slot = slot_of_answer(wh.scan("s", columns=["slot"]).read_all().column("slot").to_pylist(), PER_SLOT)
            probed = slot_of_answer(wh.probe("s", answers % KEYS).column("slot").to_pylist(), PER_SLOT // KEYS)
            with wh.snapshot() as snapshot:
                both = (
                    slot_of_answer(snapshot.scan("s").read_all().column("slot").to_pylist(), PER_SLOT),
                    slot_of_answer(
                        snapshot.probe("s", between=(0, 1)).column("slot").to_pylist(), 2 * PER_SLOT // KEYS
                    ),
                )
            if not last <= slot <= probed <= both[0] == both[1]:
                raise AssertionError(f"time went backwards: {last, slot, probed, both}")
            seen |= {slot, probed, both[0]}
            last, answers = both[0], answers + 1


def scan_slowly(path: str, queue: Any, go: Any) -> None:
    """Take a snapshot and the first batch of a scan, wait for a message, and read the rest."""
    with recorded_history.open_warehouse(Path(path)) as wh:
        snapshot = wh.snapshot()
        reader = snapshot.scan("s", columns=["slot"])
        slots = reader.read_next_batch().column("slot").to_pylist()
        queue.put("holding")
        go.get()
        slots += reader.read_all().column("slot").to_pylist()
        queue.put((slot_of_answer(slots, PER_SLOT), snapshot.probe("s", 0).num_rows))


def scan_once(path: str, queue: Any) -> None:
    """Scan once and probe once."""
    with recorded_history.open_warehouse(Path(path)) as wh:
        slot = slot_of_answer(wh.scan("s").read_all().column("slot").to_pylist(), PER_SLOT)
        queue.put((slot, wh.probe("s", 0).num_rows, wh.stream("s").slide))


def check_and_leave(path: str, queue: Any) -> None:
    """Open, reclaim, check, read and close."""
    with recorded_history.open_warehouse(Path(path)) as wh:
        wh.gc()
        problems = list(wh.check().problems)
        queue.put((problems, recorded_history.state(wh)))


def append_many(path: str, shape: str, batches: list[Any], queue: Any) -> None:
    """Append batches of rows, each under its id."""
    with recorded_history.open_warehouse(Path(path)) as wh:
        reports = [wh.append("s", SHAPES[shape].table(rows), batch_id=batch) for rows, batch in batches]
    queue.put(sum(not report.duplicate for report in reports))


def append_and_hash(path: str, shape: str, batches: list[Any], queue: Any) -> None:
    """Append batches, and read every byte of the folder in between, as a backup program does."""
    import hashlib

    with recorded_history.open_warehouse(Path(path)) as wh:
        for rows, batch in batches:
            for folder, _, names in os.walk(path):
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        hashlib.sha256(Path(folder, name).read_bytes()).digest()
            wh.append("s", SHAPES[shape].table(rows), batch_id=batch)
            wh.scan("s").read_all()
    queue.put(len(batches))


def fork_and_use(path: str, queue: Any) -> None:
    """Fork with an open warehouse and a snapshot: the child is refused, the parent goes on."""
    import gc

    import windrow

    wh = recorded_history.open_warehouse(Path(path))
    slide_numbered(wh, 1)
    snapshot = wh.snapshot()
    pins = sorted(p.name for p in (Path(path) / "catalog" / "pins").iterdir())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            for use in (
                lambda: wh.append("s", numbered_rows(2)),
                lambda: wh.slide("s"),
                lambda: wh.scan("s"),
                wh.streams,
                lambda: wh.probe("s", 1),
                wh.gc,
                wh.check,
                wh.status,
                lambda: wh.heartbeat("s", up_to="2026-01-01"),
                lambda: snapshot.scan("s"),
                lambda: snapshot.probe("s", 0),
                lambda: wh.drop_stream("s"),
                wh.snapshot,
            ):
                try:
                    use()
                except windrow.ClosedError as error:
                    refused += "fork" in str(error)
            reopened = recorded_history.open_warehouse(Path(path))
            slide_numbered(reopened, 2)
            snapshot.close()
            wh.close()
            reopened.close()
            gc.collect()
            code = 0 if refused == 13 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    pins_after = sorted(p.name for p in (Path(path) / "catalog" / "pins").iterdir())
    old = slot_of_answer(snapshot.scan("s").read_all().column("slot").to_pylist(), PER_SLOT)
    new = slot_of_answer(wh.scan("s").read_all().column("slot").to_pylist(), PER_SLOT)
    third = slide_numbered(wh, 3).slide
    problems = list(wh.check().problems)
    queue.put((os.waitstatus_to_exitcode(status), pins == pins_after, old, new, third is not None, problems))
    wh.close()


def hold_and_wait(path: str, queue: Any) -> None:
    """Take a snapshot, start a scan, and hold both for ever."""
    wh = recorded_history.open_warehouse(Path(path))
    held = [wh.snapshot(), wh.scan("s")]
    queue.put(len(held))
    signal.pause()


def stage_and_wait(path: str, queue: Any, step: str) -> None:
    """Append and slide up to a step, and wait there for ever."""
    from faulty_disks import CallAtStep

    def stop() -> None:
        queue.put(step)
        signal.pause()

    wh = recorded_history.open_warehouse(Path(path), files=CallAtStep(step, stop))
    slide_numbered(wh, 1)
    slide_numbered(wh, 2)
    slide_numbered(wh, 3)
    queue.put("never stopped")


def read_damaged(path: str, file: str, seed: int, turns: int, queue: Any) -> None:
    """Flip bytes of a segment file, one at a time, and read it: rows or DamageError, nothing else, and no crash."""
    import random
    from collections import Counter

    import windrow

    choice, outcomes = random.Random(seed), Counter()
    target = Path(path) / file
    whole = target.read_bytes()
    for _ in range(turns):
        bad = bytearray(whole)
        bad[choice.randrange(len(bad))] ^= 1 << choice.randrange(8)
        target.write_bytes(bad)
        with recorded_history.open_warehouse(Path(path)) as wh:
            for read in (lambda wh=wh: wh.scan("s").read_all(), lambda wh=wh: wh.probe("s", between=(0, 3))):
                try:
                    read()
                    outcomes["read"] += 1
                except windrow.DamageError:
                    outcomes["DamageError"] += 1
            outcomes["checked"] += not wh.check().ok
    target.write_bytes(whole)
    queue.put(dict(outcomes))


# -- Periodic queries --------------------------------------------------------------------------------------------------


def create_periodic(path: str) -> None:
    """Create a warehouse for numbered rows with periodic queries of every kind of delivery."""
    from sample_streams import DELTA

    create_numbered(path, "auto")
    window = f"s [WINDOW {2 * DELTA} MICROSECONDS SLIDE {{}} MICROSECONDS]"
    counted = f"SELECT slot, count(*) AS n FROM {window} GROUP BY slot ORDER BY slot"
    with recorded_history.open_warehouse(Path(path)) as wh:
        # Its rows are too wide for the catalog.
        padded = counted.replace(
            "slot, count", "string_agg(md5((slot * n)::VARCHAR), '' ORDER BY n) AS pad, slot, count"
        )
        wh.add_query("newest", padded.format(DELTA))
        wh.add_query("each", counted.format(2 * DELTA), missed="every", sink="csv", keep=3)
        wh.add_query("come", counted.format(DELTA), missed="every", output="inserts", sink="jsonl")
        wh.add_query("gone", counted.format(DELTA), output="deletes", missed="skip")


def shrink_inline_results() -> None:
    """Lower the limits of inline results, so that small ones are also written to files and merged."""
    from windrow.queries.periodic import result_store

    result_store.INLINE_BYTES = 1800
    result_store.TAIL_RUNS = 2


def slide_and_run(wh: Any, slot: int) -> list[Any]:
    """Slide in one slot of numbered rows and run what is due."""
    slide_numbered(wh, slot)
    return list(wh.run_due())


def run_periodic_until_step(path: str, progress: str, step: str, nth: int, slots: int) -> None:
    """Slide and run, and kill this process at the nth pass of a step."""
    shrink_inline_results()
    with (
        Path(progress).open("ab", buffering=0) as log,
        recorded_history.open_warehouse(Path(path), files=KillAtStep(step, nth)) as wh,
    ):
        for slot in range(1, slots + 1):
            slide_and_run(wh, slot)
            log.write(b".")


def slide_until_step(path: str, to: str, step: str, nth: int = 1) -> None:
    """Slide stream s to a time, and kill this process at the nth pass of a step."""
    import windrow

    far = 1_900_000_000_000_000
    with windrow.open(path, files=KillAtStep(step, nth), clock=lambda: far) as wh:
        wh.slide("s", to=to)


def merge_history_until_step(path: str, step: str) -> None:
    """Merge the history of stream s, and kill this process at a step."""
    import windrow
    from windrow.history_merge import merge_in_steps

    with windrow.open(path, files=KillAtStep(step, 1)) as wh:
        for _ in merge_in_steps(wh._store, "s"):
            pass


def run_due_until_step(path: str, step: str, nth: int) -> None:
    """Run what is due, and what is to be made from history, and kill this process at the nth pass of a step."""
    shrink_inline_results()
    with recorded_history.open_warehouse(Path(path), files=KillAtStep(step, nth)) as wh:
        wh.run_due()


def run_periodic_rounds(path: str, stop: str, queue: Any) -> None:
    """Run what is due until the file `stop` exists; report what this process delivered."""
    shrink_inline_results()
    done = []
    with recorded_history.open_warehouse(Path(path)) as wh:
        while not Path(stop).exists():
            done += [(run.query, run.slide, run.outcome) for run in wh.run_due()]
        done += [(run.query, run.slide, run.outcome) for run in wh.run_due()]
    queue.put(done)


def run_views_until_step(path: str, operations: list[Any], progress: str, step: str, nth: int) -> None:
    """Perform operations of `view_histories`, noting each, and kill this process at the nth pass of a step."""
    import view_histories

    with (
        view_histories.open_warehouse(path, files=KillAtStep(step, nth)) as wh,
        open(progress, "ab", buffering=0) as done,
    ):
        for operation in operations:
            view_histories.perform(wh, operation)
            done.write(b".")


REVISED_SLOTS = 6


def create_revised(path: str) -> None:
    """Create a warehouse for numbered rows with queries whose windows are revised."""
    from sample_streams import DELTA

    create_numbered(path, "auto")
    window = f"s [WINDOW {2 * DELTA} MICROSECONDS SLIDE {DELTA} MICROSECONDS]"
    counted = f"SELECT slot, count(*) AS n FROM {window} GROUP BY slot ORDER BY slot"
    revise = f"{2 * DELTA} us"
    with recorded_history.open_warehouse(Path(path)) as wh:
        wh.add_query("whole", counted, revise=revise, sink="csv")
        wh.add_query("wide", counted.replace("slot,", "repeat('x', 2000) AS pad, slot,"), revise=revise)
        wh.add_query("come", counted, revise=revise, output="inserts", missed="every")


def revise_slot(wh: Any, slot: int) -> None:
    """Slide in a slot, with late rows of the one before and of the one before that; run what is due and revise."""
    from sample_streams import BASE, DELTA, when

    wh.append("s", numbered_rows(slot), batch_id=str(slot))
    for back in (1, 2):
        if slot > back and slot % (back + 1) == 0:
            wh.append("s", numbered_rows(slot - back).slice(0, 3), batch_id=f"{slot} late {back}")
    wh.slide("s", to=when(BASE + slot * DELTA))
    wh.run_due()


def revise_until_step(path: str, progress: str, step: str, nth: int) -> None:
    """Slide, run and revise, and kill this process at the nth pass of a step."""
    shrink_inline_results()
    with (
        Path(progress).open("ab", buffering=0) as log,
        recorded_history.open_warehouse(Path(path), files=KillAtStep(step, nth)) as wh,
    ):
        for slot in range(1, REVISED_SLOTS + 1):
            revise_slot(wh, slot)
            log.write(b".")


GAP_STEPS = 8


def perform_gap_step(wh: Any, number: int) -> None:
    """One step of a history with gaps: forced slides, a failure, late rows that cover what was missing."""
    import pyarrow as pa

    from sample_streams import BASE, when

    def rows(*seconds: int) -> Any:
        return pa.table(
            {"ts": pa.array([BASE + s * 1_000_000 for s in seconds], pa.timestamp("us", "UTC")), "n": seconds}
        )

    def at(seconds: int) -> str:
        return when(BASE + seconds * 1_000_000)

    steps = (
        lambda: [wh.append("s", rows(1, 10), source=source, batch_id="1") for source in ("a", "b")],
        lambda: wh.slide("s", to=at(10)),
        lambda: wh.append("s", rows(20), source="a", batch_id="2"),
        lambda: wh.slide("s", to=at(20), force=True),
        lambda: wh.fail_source("s", "b", "burnt"),
        lambda: [wh.append("s", rows(30), source="a", batch_id="3"), wh.slide("s", to=at(30), force=True)],
        lambda: wh.append("s", rows(15, 25, 40), source="b", batch_id="4", covers=(at(10), at(30))),
        lambda: [wh.append("s", rows(40), source="a", batch_id="5"), wh.slide("s", to=at(40))],
    )
    steps[number]()


def open_gapped(path: str, files: Any = None) -> Any:
    """A warehouse whose stream has two sources, made if it is not there."""
    import pyarrow as pa

    import windrow

    wh = recorded_history.open_warehouse(Path(path), files=files)
    if "s" not in wh.streams():
        schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
        options = {"sources": ["a", "b"], "on_source_failure": "exclude", "max_ahead": "2000 days"}
        index = windrow.Index("round-robin", 2, 2, row_group_bytes=4096)
        wh.create_stream("s", schema, time="ts", slide="10 seconds", lifetime="10 minutes", index=index, **options)
    return wh


def make_gaps_until_step(path: str, progress: str, step: str, nth: int) -> None:
    """Perform the history with gaps, and kill this process at the nth pass of a step."""
    with Path(progress).open("ab", buffering=0) as log, open_gapped(path, KillAtStep(step, nth)) as wh:
        for number in range(GAP_STEPS):
            perform_gap_step(wh, number)
            log.write(b".")


def repair_until_step(path: str, step: str) -> None:
    """Repair a stream, and kill this process at a step."""
    with recorded_history.open_warehouse(Path(path), files=KillAtStep(step, 1)) as wh:
        wh.repair("s", give_up=True)


def send_until_step(path: str, address: str, step: str) -> None:
    """Run what is due, and kill this process at a step of the delivery."""
    import windrow

    with windrow.open(path, allow_hosts=[address], files=KillAtStep(step, 1)) as wh:
        wh.run_due()


RESULT_VIEWS = {
    "busy": "SELECT _window_end, n FROM each WHERE n > 1",
    "recent": "SELECT sum(n)::BIGINT AS total, count(*) AS runs FROM each [WINDOW 3 MINUTES]",
    "joined": "SELECT e._window_end AS upto, e.n, p.n AS pair FROM each e JOIN pairs p ON e._window_end = p._window_end",
}
"""Views of the results of two queries, one of which runs every second minute."""
RESULT_STEPS = 7


def open_result_views(path: str, files: Any = None, missed: str = "latest") -> Any:
    """A warehouse with views of results, made if it is not there."""
    import pyarrow as pa

    wh = recorded_history.open_warehouse(Path(path), files=files)
    if "a" not in wh.streams():
        schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
        wh.create_stream("a", schema, time="ts", slide="1 minute", lifetime="1 hour", max_ahead="2000 days")
        wh.slide("a", to="2026-01-01T00:00:00Z")
        select = "SELECT count(*) AS n FROM a [WINDOW {0} MINUTES SLIDE {0} MINUTES]"
        wh.add_query("each", select.format(1), revise="10 minutes", missed=missed, keep=1000)
        wh.add_query("pairs", select.format(2), revise="10 minutes", missed=missed, keep=1000)
        for name, sql in RESULT_VIEWS.items():
            wh.create_view(name, sql)
    return wh


def append_minutes(wh: Any, *minutes: int, to: int) -> None:
    """Append a row in each of these minutes, and slide to the end of one."""
    import pyarrow as pa

    from windrow.times import parse_instant

    begin = parse_instant("2026-01-01T00:00:00Z")
    ts = pa.array([begin + minute * 60_000_000 - 1 for minute in minutes], pa.timestamp("us", "UTC"))
    wh.append("a", pa.table({"ts": ts, "k": range(len(minutes))}))
    wh.slide("a", to=f"2026-01-01T00:{to:02}:00Z")


def perform_result_step(wh: Any, number: int) -> None:
    """One step of a history of results: a minute with some rows, in the sixth also late ones, and a round."""
    late = (2, 3) if number == 5 else ()
    append_minutes(wh, *[number + 1] * (number % 3), *late, to=number + 1)
    wh.run_due()


def move_result_views_until_step(path: str, progress: str, step: str, nth: int) -> None:
    """Perform the history of results, and kill this process at the nth pass of a step."""
    with Path(progress).open("ab", buffering=0) as log, open_result_views(path, KillAtStep(step, nth)) as wh:
        for number in range(RESULT_STEPS):
            perform_result_step(wh, number)
            log.write(b".")


def slide_with_history(path: str, first: int, last: int, step: str, nth: int) -> None:
    """Append and slide a stream with history, until the nth time that a step is reached."""
    import windrow
    from minute_streams import fill_minutes

    with windrow.open(path, files=KillAtStep(step, nth)) as wh:
        fill_minutes(wh, "s", first, last)


def erase_until_step(path: str, key: str, step: str) -> None:
    """Erase a key from the stream, until a step is reached."""
    import windrow

    with windrow.open(path, files=KillAtStep(step, 1)) as wh:
        wh.erase("s", keys=[key])


def replace_until_step(path: str, rows: Any, step: str) -> None:
    """Replace batch 1 of the stream, until a step is reached."""
    import windrow

    with windrow.open(path, files=KillAtStep(step, 1)) as wh:
        wh.append("s", rows, batch_id="1", replace=True)


def work_in_store_until_step(path: str, first: int, last: int, step: str, nth: int) -> None:
    """Append and slide minutes of packets with a copy of the catalog after each, until a step is reached."""
    import windrow
    from packet_warehouse import append_and_slide

    with windrow.open(path, files=KillAtStep(step, nth)) as wh:
        for minute in range(first, last + 1):
            append_and_slide(wh, minute)
            wh.gc()


def append_until_refused(path: str, first: int, last: int, said: str) -> None:
    """Append minutes of packets, durably in the store, noting each that was confirmed, until one is refused."""
    import windrow
    from packet_warehouse import make_minute

    with Path(said).open("a", buffering=1) as log, windrow.open(path, copy_every="1 hour") as wh:
        for minute in range(first, last + 1):
            try:
                wh.append("packets", make_minute(minute), batch_id=f"minute {minute}", durable="store")
            except windrow.StorageError as error:
                log.write(f"refused {error}\n")
                return
            log.write(f"{minute}\n")


def join_until_step(path: str, step: str, nth: int) -> None:
    """Ask standing aggregates over a join, append and slide, until a step is reached."""
    import windrow
    from sample_streams import BASE

    with windrow.open(path, clock=lambda: BASE + 3_600_000_000, files=KillAtStep(step, nth)) as wh:
        ask_joins(wh)


def ask_joins(wh: Any) -> None:
    """Two streams and two queries over their join; what was done before is not done again."""
    import pyarrow as pa

    from sample_streams import BASE, DELTA, when

    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int32())])
    for name in "st":
        wh.create_stream(
            name, schema, time="ts", key="k", slide="10 seconds", lifetime="60 seconds", if_not_exists=True
        )
    for slot in range(1, 8):
        for name in "st":
            ts = [BASE + slot * DELTA - n * DELTA // 8 for n in range(12)]
            times = pa.array(ts, pa.int64()).cast(schema.field("ts").type)
            columns = [times, [(n + slot) % 5 for n in range(12)], [n * slot for n in range(12)]]
            wh.append(name, pa.table(columns, schema=schema), batch_id=str(slot))
            wh.slide(name, to=when(BASE + slot * DELTA))
        if slot == 2:
            known = {query.name for query in wh.queries()}
            for number, seconds in enumerate((40, 30)):
                clause = f"[WINDOW {seconds} SECONDS SLIDE 10 SECONDS]"
                join = f"s {clause} x JOIN t {clause} y USING (k)"
                if f"q{number}" not in known:
                    wh.add_query(
                        f"q{number}", f"SELECT k, count(*) AS c, sum(x.v) AS s FROM {join} GROUP BY k ORDER BY k"
                    )
        wh.run_due()

"""Operations that a process may be killed in, each with a warehouse to do it in and the truth before and after it.

prepared           killed operation         the same again     one slide more
───●───────────────────────×─────────────────────●──────────────────●────
 before            before or after             after              last         what must be seen

All functions that take a `Child` run in processes of their own; see `system_calls`.
"""

import copy
import csv
import ctypes
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import child_processes
import recorded_history
import view_histories
import windrow
from oracle import Oracle
from recorded_history import STREAM, Operation
from sample_streams import BASE, DELTA, LAYOUTS, SHAPES, Shape, plain
from system_calls import LIBRARY, Child, normalised, watched, work_in_turn
from windrow import Index
from windrow.catalog.environment import Tables
from windrow.orphans import data_files, named_files

State = dict[str, Any]
"""What can be seen, by the name of what is asked. After a kill each is as before the operation or as after it."""
HOUR = 3_600_000_000


@dataclass(frozen=True)
class Case:
    """An operation to be killed in."""

    prepare: Callable[[Path], None]
    do: Callable[[windrow.Warehouse], Any]
    """The operation; doing it again is harmless."""
    go_on: Callable[[windrow.Warehouse], None]
    see: Callable[[windrow.Warehouse], State]
    before: Callable[[], State]
    after: Callable[[], State]
    last: Callable[[], State]
    clock: int
    at_once: bool = True
    """Whether all of it is one commit."""
    pinned: Callable[[windrow.snapshot.Snapshot], Any] = lambda _: None
    """What a snapshot that was taken before must show for ever: `pinned_is`."""
    pinned_is: Callable[[], Any] = lambda: None
    in_child: Callable[[], None] = lambda: None
    """Settings of processes that write."""
    meanwhile: Callable[[Path], None] = lambda _: None
    """What happens to the folder after the process has opened it and before the operation begins,"""
    later: int = 0
    """and how long that takes."""

    def open(self, path: Path | str, later: Callable[[], int] = lambda: 0) -> windrow.Warehouse:
        """The warehouse, at its wall time or `later`."""
        return windrow.open(path, clock=lambda: self.clock + later())


# -- what is done in processes of their own ----------------------------------------------------------------------------


def prepare(child: Child, name: str, path: str) -> None:
    """Make the warehouse that an operation is killed in."""
    case = CASES[name]
    case.in_child()
    case.prepare(Path(path))
    child.acknowledge()


def trace(child: Child, name: str, path: str, log: str) -> None:
    """Do the operation and write down every call."""
    _operate(child, name, path, in_turn=True, log=log)


def operate(child: Child, name: str, path: str, log: str, nth: int, before: bool, in_turn: bool) -> None:
    """Do the operation, write down every call, and die after, or before, the nth."""
    _operate(child, name, path, in_turn=in_turn, log=log, nth=nth, before=before)


def _operate(child: Child, name: str, path: str, *, in_turn: bool, **watching: Any) -> None:
    case = CASES[name]
    case.in_child()
    if in_turn:
        work_in_turn()
    passed = 0
    wh = case.open(path, lambda: passed)
    case.meanwhile(Path(path))
    passed = case.later
    with watched(path, **watching):
        case.do(wh)
        child.acknowledge()
        wh.close()


def open_for_writing(child: Child, path: str, clock: int, log: str, nth: int) -> None:
    """Open a warehouse, which converts one of an earlier format, and die after the nth call."""
    work_in_turn()
    with watched(path, log=log, nth=nth):
        wh = windrow.open(path, clock=lambda: clock)
        child.acknowledge()
        wh.close()


def operate_kept(child: Child, name: str, path: str, log: str, folder: str) -> None:
    """Do the operation, write down every call and when it was done, and keep each file as it was synced."""
    library = ctypes.CDLL(os.environ[LIBRARY])
    library.system_calls_keep(folder.encode())

    def acknowledge() -> None:
        with open(log, "a") as calls:
            calls.write("acknowledged\t\t\t0\t-1\n")

    report = copy.copy(child)
    report.acknowledge = acknowledge  # type: ignore[method-assign]
    _operate(report, name, path, in_turn=True, log=log)
    child.acknowledge()


def back_up(child: Child, name: str, folder: str, log: str, nth: int) -> None:
    """Back up `folder`/warehouse to `folder`/backup beside a base, write down every call, and die after the nth."""
    case = CASES[name]
    case.in_child()
    work_in_turn()
    wh = case.open(f"{folder}/warehouse")
    with watched(folder, log=log, nth=nth):
        wh.backup(f"{folder}/backup", f"{folder}/base" if Path(folder, "base").exists() else None)
        child.acknowledge()
        wh.close()


def restore(child: Child, name: str, folder: str, log: str, nth: int) -> None:
    """Restore `folder`/backup to `folder`/restored, write down every call, and die after the nth."""
    CASES[name].in_child()
    with watched(folder, log=log, nth=nth):
        windrow.restore(f"{folder}/backup", f"{folder}/restored")
        child.acknowledge()


def succeed(child: Child, name: str, path: str, acknowledged: bool) -> None:
    """Come after a process that died: commit, do the same again, go on, clean up. Gives what was wrong."""
    case, wrong = CASES[name], []
    case.in_child()
    with case.open(path) as wh:
        with wh._store.catalog.write():  # what a process committed that died before it could tell is seen from now on
            pass
        when = "after another commit"
        wrong += neither(case, when, case.see(wh), acknowledged=acknowledged) + missing_files(when, wh)
        case.do(wh)
        wrong += differences("after the retry", case.see(wh), case.after())
        case.go_on(wh)
        wrong += differences("after another slide", case.see(wh), case.last())
        wh.gc()
    child.give(wrong)


def clean_up(child: Child, name: str, path: str) -> None:
    """Come long after a process that died: nothing of it may be left. Gives what was wrong."""
    case, wrong = CASES[name], []
    case.in_child()
    for left in Path(path, "catalog", "pins").iterdir():  # of which the file itself says how old it is
        os.utime(left, (left.stat().st_mtime - 7200,) * 2)
    for hours in (4, 6):
        with case.open(path, lambda hours=hours: hours * HOUR) as wh:
            wh.gc()
    with case.open(path, lambda: 8 * HOUR) as wh:
        wrong += differences("hours later", case.see(wh), case.last())
        wrong += [f"check: {problem}" for problem in wh.check().problems]
        named = wh._store.catalog.read(named_files)
        wrong += [f"{file} is left and nothing names it" for file in data_files(Path(path)) if file not in named]
    for folder in ("staging", "catalog/pins"):
        wrong += [f"{folder} still has {left.name}" for left in Path(path, folder).iterdir()]
    hidden = [left for left in Path(path, "results").rglob(".*") if left.is_file()]
    wrong += [f"{left.name} is left in results" for left in hidden]
    child.give(wrong)


def differences(when: str, actual: State, wanted: State) -> list[str]:
    """What is not as it must be, in words."""
    return [
        f"{when}: {name} is {_short(actual.get(name))}, must be {_short(wanted.get(name))}"
        for name in {**wanted, **actual}
        if actual.get(name) != wanted.get(name)
    ]


def neither(case: Case, when: str, actual: State, *, acknowledged: bool) -> list[str]:
    """What is neither as before the operation nor as after it, which it must be if it was acknowledged; in words."""
    sides = [case.after()] if acknowledged else [case.before(), case.after()]
    if actual in sides:
        return []
    if not case.at_once and all(any(actual[name] == side[name] for side in sides) for name in actual):
        return []
    return min((differences(when, actual, side) for side in sides), key=len)


def missing_files(when: str, wh: windrow.Warehouse) -> list[str]:
    """Files that a record names and that are not there; what was replaced goes before its record does."""

    def replaced(tables: Tables) -> set[str]:
        return {file for _, record in tables.items("reclaim") for file in record.files}

    needed = wh._store.catalog.read(lambda tables: named_files(tables) - replaced(tables))
    missing = [file for file in sorted(needed) if not (wh.path / file).exists()]
    return [f"{when}: {normalised(file)} is named by a record and missing" for file in missing]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}… ({len(text)} characters)"


# -- streams and tables ------------------------------------------------------------------------------------------------


def batch(shape: Shape, number: int, now: int, *, rejected: bool = False) -> Operation:
    """An append of rows in time, late and early; with some that are dead on arrival or have no time, if asked."""
    choice = random.Random(number)
    rows = []
    for position in range(12):
        ts = now + choice.randint(-2 * DELTA if number else 1, DELTA)
        rows.append(shape.row(100 * number + position, ts, choice.randint(3, 5) * DELTA - choice.randint(0, 1), choice))
    if rejected:
        rows += [
            shape.row(100 * number + 50, None, DELTA, choice),
            shape.row(100 * number + 51, now - 9 * DELTA, DELTA, choice),
        ]
    return ("append", rows, f"batch {number}")


def history(shape: Shape) -> list[Operation]:
    """What has happened before: rows have come and gone, a table is there, so are rejected rows."""
    made: list[Operation] = []
    for turn in range(4):
        made += [batch(shape, turn, BASE + turn * DELTA, rejected=turn == 1), ("slide", BASE + (turn + 1) * DELTA)]
        if turn == 1:
            made.append(("table", 1))
    return made


REBUILT = Index("round-robin", 2, 2, maintenance="rebuild")
NOW = BASE + 4 * DELTA
"""The stream's clock after `history`."""


def see_rows(shape: Shape, wh: windrow.Warehouse) -> State:
    """The stream by every way to read it, its counters, its rejected rows, and the table."""
    names = ("now", "inserted", "expired", "late", "spooled", "rejected", "hosts", "scan")
    state: State = dict(zip(names, recorded_history.state(wh), strict=True))
    asked = wh.sql(f"SELECT n, {', '.join(shape.key)} FROM {STREAM} ORDER BY n").fetchall()
    state["sql"] = repr(asked)
    state["probe"] = repr(plain(wh.probe(STREAM, keys=[(value,) for value in shape.values[shape.key[0]]])))
    state["hosts in sql"] = [row[0] for row in wh.sql("SELECT version FROM hosts").fetchall()]
    return state


def true_rows(shape: Shape, truth: Oracle) -> State:
    """What `see_rows` must give."""
    names = ("now", "inserted", "expired", "late", "spooled", "rejected", "hosts", "scan")
    state: State = dict(zip(names, recorded_history.expected(truth, shape), strict=True))
    asked = sorted((row.values["n"], *(row.values[name] for name in shape.key)) for row in truth.live())
    return state | {"sql": repr(asked), "probe": state["scan"], "hosts in sql": state["hosts"]}


def prepare_rows(shape: Shape, index: Index | str, operations: Sequence[Operation], tidy: bool, path: Path) -> None:
    """A warehouse where these operations have been done.

    What they replaced is gone, or was kept for a reader and can go now. That makes a difference: who removes something
    commits, and then sees what a process committed that died before it could tell.
    """
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, STREAM, index)
        for number, operation in enumerate(operations):
            recorded_history.perform(wh, shape, operation)
            if number == 2:
                held = wh.snapshot()
        held.close()
        if tidy:
            wh.gc()


def rows_case(
    killed: Operation,
    then: Sequence[Operation],
    *,
    shape: str = "per-row",
    index: Index | str = REBUILT,
    spooled: bool = False,
    tidy: bool = True,
    then_prepare: Callable[[Path], None] = lambda _: None,
    **more: Any,
) -> Case:
    """An operation on a stream or a table."""
    made = SHAPES[shape]
    past = [*history(made), *([batch(made, 4, NOW)] if spooled else [])]

    def start(path: Path) -> None:
        prepare_rows(made, index, past, tidy, path)
        then_prepare(path)

    @cache
    def truths() -> list[State]:
        states = recorded_history.expected_states(made, [*past, killed, *then])
        return [true_rows(made, copy.deepcopy(states[position])) for position in (len(past), len(past) + 1, -1)]

    def go_on(wh: windrow.Warehouse) -> None:
        for operation in then:
            recorded_history.perform(wh, made, operation)

    return Case(
        prepare=start,
        do=lambda wh: recorded_history.perform(wh, made, killed),
        go_on=go_on,
        see=partial(see_rows, made),
        before=lambda: truths()[0],
        after=lambda: truths()[1],
        last=lambda: truths()[2],
        clock=recorded_history.CLOCK,
        pinned=lambda snapshot: repr(plain(snapshot.scan(STREAM).read_all())),
        pinned_is=lambda: truths()[0]["scan"],
        **more,
    )


def leave_orphans(chance: str, path: Path) -> None:
    """What a process leaves that dies before its commit: a file in place, and one in staging."""
    name = f"1_1_1_{chance}"
    some = next((path / "streams" / STREAM / "segments").glob("*.parquet"))
    shutil.copy(some, some.with_name(f"{name}-000001.parquet"))
    (path / "staging" / name).mkdir()
    shutil.copy(some, path / "staging" / name / f"{name}-000002.parquet")


def _appended(number: int, *, shape: str = "per-row", rejected: bool = False) -> Operation:
    return batch(SHAPES[shape], number, NOW, rejected=rejected)


_ON: Operation = ("slide", NOW + DELTA)
_LATER: list[Operation] = [batch(SHAPES["per-row"], 6, NOW + DELTA), ("slide", NOW + 2 * DELTA)]


# -- periodic queries --------------------------------------------------------------------------------------------------

FIRST = BASE // DELTA
"""The slide at BASE."""
RUN = 6
"""The slot whose runs are delivered when the process dies."""


def prepare_standing(names: Sequence[str], path: Path) -> None:
    """Queries that were run for some slots; one more slot has come in and waits for its runs."""
    child_processes.create_periodic(str(path))
    with recorded_history.open_warehouse(path) as wh:
        for query in wh.queries():
            if query.name not in names:
                wh.drop_query(query.name)
        for slot in range(1, RUN):
            child_processes.slide_and_run(wh, slot)
        child_processes.slide_numbered(wh, RUN)
        wh.gc()


def see_runs(names: Sequence[str], wh: windrow.Warehouse) -> State:
    """The runs of each query with their rows, the rows that they were made of, and files that say something else."""
    state: State = {"scan": sorted(wh.scan("s", columns=["slot"]).read_all().column("slot").to_pylist())}
    runs = wh.sql("SELECT query, slide, outcome FROM windrow.runs ORDER BY ALL").fetchall()
    for name in names:
        rows = [(row[0] - FIRST, *row[-2:]) for row in wh.results(name).fetchall()]
        asked = wh.sql(f"SELECT _slide, slot, n FROM {name} ORDER BY ALL").fetchall()
        of_query = [(slide - FIRST, outcome) for query, slide, outcome in runs if query == name]
        state[name] = (of_query, rows, [(slide - FIRST, slot, n) for slide, slot, n in asked])
        state[f"files of {name}"] = [slot for slot, rows in reports(wh, name).items() if rows != said(name, slot)]
    return state


def true_runs(names: Sequence[str], last: int, slots: int) -> State:
    """What `see_runs` must give when each query was run up to slot `last` and `slots` are in."""
    live = range(max(1, slots - child_processes.SLOTS + 1), slots + 1)
    state: State = {"scan": sorted(slot for slot in live for _ in range(child_processes.PER_SLOT))}
    for name in names:
        rows = [(slot, *row) for slot in kept(name, last) for row in said(name, slot)]
        state[name] = ([(slot, "delivered") for slot in kept(name, last)], rows, sorted(rows))
        state[f"files of {name}"] = []
    return state


def kept(name: str, last: int) -> list[int]:
    """The slots up to `last` of which a query has runs."""
    if name != "each":
        return list(range(1, last + 1))
    return [slot for slot in range(1, last + 1) if slot == 1 or (FIRST + slot) % 2 == 0][-3:]


def said(name: str, slot: int) -> list[tuple[int, int]]:
    """What a run says: the window holds its slot and the one before."""
    count = child_processes.PER_SLOT
    if name == "come":
        return [(slot, count)]
    if name == "gone":
        return [(slot - 2, count)] if slot > 2 else []
    return [(n, count) for n in (slot - 1, slot) if n >= 1]


def reports(wh: windrow.Warehouse, name: str) -> dict[int, list[tuple[int, int]]]:
    """What the files of a query say, by slot."""
    actual = {}
    for path in (wh.path / "results" / name).glob("[!.]*.*"):
        text = path.read_text()
        rows = csv.DictReader(io.StringIO(text)) if path.suffix == ".csv" else map(json.loads, text.splitlines())
        actual[int(path.stem.rsplit("-", 1)[1]) - FIRST] = [(int(row["slot"]), int(row["n"])) for row in rows]
    return actual


def delivery_case(names: Sequence[str], *, files: bool) -> Case:
    """A round. Each of its commits is whole; a file comes after the commit of its run, if need be in the next round."""

    def go_on(wh: windrow.Warehouse) -> None:
        child_processes.slide_and_run(wh, RUN + 1)
        wh.gc()
        for name in names:
            slots = sorted(reports(wh, name))
            assert slots == (kept(name, RUN + 1) if files else []), f"{name} has files of the slots {slots}"

    return Case(
        prepare=partial(prepare_standing, names),
        do=lambda wh: wh.run_due(),
        go_on=go_on,
        see=partial(see_runs, names),
        before=lambda: true_runs(names, RUN - 1, RUN),
        after=lambda: true_runs(names, RUN, RUN),
        last=lambda: true_runs(names, RUN + 1, RUN + 1),
        clock=recorded_history.CLOCK,
        at_once=False,
        in_child=child_processes.shrink_inline_results,
    )


# -- views -------------------------------------------------------------------------------------------------------------

VIEW_OPERATIONS = view_histories.operations(seed=20261116, count=60)


@cache
def _view_truths() -> tuple[int, int, list[State]]:
    """The truth after so many operations, the first slide late enough that moves all views, and the next that does."""
    truth = view_histories.ExpectedViews()
    states = [truth.state()]
    for operation in VIEW_OPERATIONS:
        truth.do(operation)
        states.append(truth.state())
    moving = [
        position
        for position, (old, new) in enumerate(pairwise(states))
        if position > 12 and all(old[name] != new[name] for name in view_histories.VIEWS)
    ]
    return moving[0], moving[1], states


def view_case() -> Case:
    """A slide that moves every view."""

    def do(first: int, last: int, wh: windrow.Warehouse) -> None:
        for operation in VIEW_OPERATIONS[first:last]:
            view_histories.perform(wh, operation)

    def start(path: Path) -> None:
        view_histories.create(path)
        with view_histories.open_warehouse(path) as wh:
            do(0, _view_truths()[0], wh)
            wh.gc()

    return Case(
        prepare=start,
        do=lambda wh: do(_view_truths()[0], _view_truths()[0] + 1, wh),
        go_on=lambda wh: do(_view_truths()[0] + 1, _view_truths()[1] + 1, wh),
        see=view_histories.state,
        before=lambda: _view_truths()[2][_view_truths()[0]],
        after=lambda: _view_truths()[2][_view_truths()[0] + 1],
        last=lambda: _view_truths()[2][_view_truths()[1] + 1],
        clock=view_histories.START + 600 * view_histories.MINUTE,
    )


CASES: dict[str, Case] = {
    "append": rows_case(_appended(5), [_ON]),
    "append-nested": rows_case(
        _appended(5, shape="per-row-rich"), [_ON], shape="per-row-rich", index=LAYOUTS["adaptive-eager"]
    ),
    "append-rejected": rows_case(_appended(5, rejected=True), [_ON]),
    "slide-rebuild": rows_case(_ON, _LATER, spooled=True),
    "slide-reclaiming": rows_case(_ON, _LATER, spooled=True, tidy=False),
    "slide-adaptive": rows_case(_ON, _LATER, spooled=True, index=LAYOUTS["adaptive-eager"]),
    "table": rows_case(("table", 3), [_ON]),
    "relayout": rows_case(
        ("relayout", ("chronological", 3, 2), SHAPES["per-row"].key, "now", 2000), _LATER, spooled=True
    ),
    "gc": rows_case(
        ("gc",),
        _LATER,
        tidy=False,
        then_prepare=partial(leave_orphans, "00000000dead"),
        meanwhile=partial(leave_orphans, "00000000beef"),
        later=2 * HOUR,
    ),
    "delivery-tables": delivery_case(("newest", "gone"), files=False),
    "delivery-files": delivery_case(("each", "come"), files=True),
    "view-slide": view_case(),
}
"""By name."""

"""One writer, any number of readers, no waiting; and all that other processes do to the folder harms nobody.

Every slide j puts in rows that carry the number j and live for 4 slots, so an answer must be one of these:

    slide 1: [1]   slide 2: [1 2]   slide 3: [1 2 3]   slide 4: [1 2 3 4]   slide 5: [2 3 4 5]  …
"""

import os
import random
import shutil
import signal
import threading
from pathlib import Path

import lmdb
import pytest

import child_processes
import recorded_history
import windrow
from child_processes import KEYS, PER_SLOT
from faulty_disks import PROCESSES, CallAtStep, join_child, kill_child, start_child
from sample_streams import BASE, DELTA, SHAPES, when
from windrow.files import CRASH_POINTS

REBUILD = windrow.Index("round-robin", 2, 2, maintenance="rebuild")
LAYOUTS = {
    "rebuild": REBUILD,
    "norebuild": windrow.Index("round-robin", 2, 2, maintenance="norebuild"),
    "adaptive": windrow.Index("round-robin", 2, 2, max_segments=2, dead_fraction=0.1, merge_budget=10.0),
    "auto": "auto",
}


def slide_while_reading(path: Path, states: int, readers: int, gc: bool) -> None:
    stop = path.parent / "stop"
    writer = start_child(child_processes.write_numbered, str(path), str(stop), gc)
    crowd = [start_child(child_processes.read_numbered, str(path), states) for _ in range(readers)]
    ends = [join_child(reader) for reader in crowd]
    stop.touch()
    assert join_child(writer) == 0
    assert ends == [0] * readers
    with recorded_history.open_warehouse(path) as wh:
        recorded_history.assert_sound(wh)
        assert wh.gc().waiting == 0
        on_disk = {str(file.relative_to(path)) for file in (path / "streams").rglob("*.parquet")}
        named = {segment.file for segment in wh.snapshot().view("s").segments}
        spooled = wh.stream("s").spooled_files
        assert len(on_disk) == len(named) + spooled, "what was replaced is gone when the last reader is gone"
        assert named <= on_disk


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_answer_during_slides_is_exactly_one_slides_state(layout: str, tmp_path: Path) -> None:
    child_processes.create_numbered(str(tmp_path / "wh"), LAYOUTS[layout])
    slide_while_reading(tmp_path / "wh", 20, 2, gc=layout == "adaptive")


def test_every_answer_while_a_stream_changes_its_layout_and_key_is_exactly_one_slides_state(tmp_path: Path) -> None:
    path, stop = tmp_path / "wh", tmp_path / "stop"
    child_processes.create_numbered(str(path), REBUILD)
    writer = start_child(child_processes.write_numbered_changing, str(path), str(stop), 5)
    crowd = [start_child(child_processes.read_numbered, str(path), 25) for _ in range(2)]
    ends = [join_child(reader) for reader in crowd]
    stop.touch()
    assert join_child(writer) == 0
    assert ends == [0, 0]
    with recorded_history.open_warehouse(path) as wh:
        recorded_history.assert_sound(wh)
        assert wh.gc().waiting == 0


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_answer_during_many_slides_is_exactly_one_slides_state(layout: str, tmp_path: Path) -> None:
    child_processes.create_numbered(str(tmp_path / "wh"), LAYOUTS[layout])
    for _ in range(10):
        slide_while_reading(tmp_path / "wh", 100, 4, gc=True)
        (tmp_path / "stop").unlink()
        with recorded_history.open_warehouse(tmp_path / "wh") as wh:
            wh.drop_stream("s")
        child_processes.create_numbered(str(tmp_path / "wh"), LAYOUTS[layout])


def test_a_reader_does_not_wait_for_a_commit_that_is_under_way(tmp_path: Path) -> None:
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path) as same_process:
        child_processes.slide_numbered(wh, 1)
        child_processes.slide_numbered(wh, 2)
        slide = wh.stream("s").slide
        with recorded_history.open_warehouse(path) as open_before, wh._store.catalog.write():
            assert open_before.scan("s").read_all().num_rows == 2 * PER_SLOT
            assert same_process.probe("s", 0).num_rows == 2 * PER_SLOT // KEYS
    # Nor from another process: a writer that is stopped in the middle of its slide holds every lock that a slide takes.
    for step in ("append.committing", "slide.planned", "slide.staged", "slide.committing"):
        copy = shutil.copytree(path, tmp_path / step)
        stopped, answers = PROCESSES.SimpleQueue(), PROCESSES.SimpleQueue()
        writer = start_child(child_processes.stage_and_wait, str(copy), stopped, step)
        reached = stopped.get()
        assert reached == step
        reader_process = start_child(child_processes.scan_once, str(copy), answers)
        assert join_child(reader_process) == 0
        slot, probed, actual = answers.get()
        assert (slot, probed, actual) == (2, 2 * PER_SLOT // KEYS, slide)
        kill_child(writer)


def test_the_writer_does_not_wait_for_a_stopped_reader_and_takes_no_file_from_it(tmp_path: Path) -> None:
    """Stopped (SIGSTOP) in the middle of a scan; 20 slides and clean-ups replace all it reads; then it goes on."""
    path, answers, go = tmp_path / "wh", PROCESSES.SimpleQueue(), PROCESSES.SimpleQueue()
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh:
        for slot in range(1, 5):
            child_processes.slide_numbered(wh, slot)
        reader = start_child(child_processes.scan_slowly, str(path), answers, go)
        assert answers.get() == "holding"
        os.kill(reader.pid, signal.SIGSTOP)
        for slot in range(5, 25):
            child_processes.slide_numbered(wh, slot)
            wh.gc()
        assert wh.status().readers == 1
        assert wh.gc().waiting > 0, "the stopped reader holds files: it must be able to go on"
        os.kill(reader.pid, signal.SIGCONT)
        go.put("go")
        assert answers.get() == (4, 4 * PER_SLOT // KEYS)
        assert join_child(reader) == 0
        assert wh.gc().waiting == 0


def test_what_the_very_next_commit_replaces_is_kept_for_a_reader(tmp_path: Path) -> None:
    """Rows are spooled first, so that the slide is the first commit after the pin."""
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), windrow.Index("round-robin", 1, 1, maintenance="rebuild"))
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path) as other:
        child_processes.slide_numbered(wh, 1)
        wh.append("s", child_processes.numbered_rows(2))
        with other.snapshot() as snapshot:
            assert wh.slide("s", to=when(BASE + 2 * DELTA)).rebuilt == 1
            assert wh.gc().waiting > 0
            actual = snapshot.scan("s").read_all().column("slot").to_pylist()
            assert child_processes.slot_of_answer(actual, PER_SLOT) == 1
            assert snapshot.probe("s", 0).num_rows == PER_SLOT // KEYS
        assert wh.gc().waiting == 0


def test_a_reader_that_was_killed_does_not_hold_space_for_ever(tmp_path: Path) -> None:
    path, answers = tmp_path / "wh", PROCESSES.SimpleQueue()
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh:
        child_processes.slide_numbered(wh, 1)
        reader = start_child(child_processes.hold_and_wait, str(path), answers)
        assert answers.get() == 2
        for slot in range(2, 8):
            child_processes.slide_numbered(wh, slot)
        assert wh.status().readers == 2
        assert wh.gc().waiting > 0
        kill_child(reader)
        report = wh.gc()
        assert report.waiting == 0
        assert report.files > 0
        assert report.bytes > 0
        assert wh.status().readers == 0
        assert not any((path / "catalog" / "pins").iterdir())
        recorded_history.assert_sound(wh)


def test_slides_alone_clear_up_after_a_killed_reader(tmp_path: Path) -> None:
    path, answers = tmp_path / "wh", PROCESSES.SimpleQueue()
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh:
        child_processes.slide_numbered(wh, 1)
        reader = start_child(child_processes.hold_and_wait, str(path), answers)
        answers.get()
        child_processes.slide_numbered(wh, 2)
        kill_child(reader)
        for slot in range(3, 30):
            child_processes.slide_numbered(wh, slot)
        files = len(list((path / "streams").rglob("*.parquet")))
        assert files <= 12, f"{files} files for 4 live slots in 4 cells: what dead readers held was not given back"


def test_a_forked_child_gets_an_error_from_old_handles_and_harms_its_parent_in_nothing(tmp_path: Path) -> None:
    path, answers = tmp_path / "wh", PROCESSES.SimpleQueue()
    child_processes.create_numbered(str(path), REBUILD)
    process = start_child(child_processes.fork_and_use, str(path), answers)
    code, same_pins, old, new, slid, problems = answers.get()
    assert join_child(process) == 0
    assert code == 0, "every use of an inherited handle raises ClosedError, and the child can open its own"
    assert same_pins, "the parent's pin survives its child"
    assert (old, new, slid, problems) == (1, 2, True, [])


@pytest.mark.parametrize("how", ["hash", "copy"])
def test_reading_all_bytes_of_the_folder_in_a_process_that_uses_it_harms_nobody(how: str, tmp_path: Path) -> None:
    """Closing a descriptor of lock.mdb drops LMDB's own locks: the next opener believes that it is alone."""
    path, answers = tmp_path / "wh", PROCESSES.SimpleQueue()
    shape = SHAPES["fixed"]
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, "s", REBUILD)
        choice = random.Random(5)

        def batches(first: int) -> list:
            return [
                ([shape.row(first + 10 * i + j, BASE + 1 + j, None, choice) for j in range(10)], f"{first}.{i}")
                for i in range(12)
            ]

        everything = [batches(first) for first in (0, 1000, 2000)]
        others = [
            start_child(child_processes.append_and_hash, str(path), "fixed", part, answers) for part in everything[1:]
        ]
        for turn, (rows, batch) in enumerate(everything[0]):
            if how == "copy":
                shutil.copytree(
                    path, tmp_path / f"copy{turn}", ignore=shutil.ignore_patterns("*.parquet", "staging", "pins")
                )
            else:
                for file in sorted((path / "catalog").glob("*.mdb")):
                    file.read_bytes()
            wh.append("s", shape.table(rows), batch_id=batch)
            with recorded_history.open_warehouse(path) as again:
                assert again.streams() == ["s"]
        assert [join_child(other) for other in others] == [0, 0]
        truth = shape.oracle()
        for part in everything:
            for rows, batch in part:
                truth.append(rows, recorded_history.CLOCK, None, batch)
        truth.slide(recorded_history.CLOCK, BASE + DELTA)
        wh.slide("s", to=when(BASE + DELTA))
        assert recorded_history.state(wh) == recorded_history.expected(truth, shape)
        recorded_history.assert_sound(wh)


OTHER_SHAPE = "per-row-rich"
OPERATIONS = recorded_history.operations(SHAPES[OTHER_SHAPE], seed=99, rounds=3)
OPERATIONS[5:5] = [("relayout", ("chronological", 2, 2), ("k",), "now", 1), ("column", "note")]


@pytest.mark.parametrize("step", CRASH_POINTS)
def test_a_process_that_opens_the_warehouse_in_the_middle_of_anothers_work_removes_nothing(
    step: str, tmp_path: Path
) -> None:
    """rename            commit
    ────────────●───────×──────────●─────    × another process opens, collects garbage, checks and leaves
                        the file is there and no record names it yet
    """
    path, shape = tmp_path / "wh", SHAPES[OTHER_SHAPE]
    recorded_history.create(path, OTHER_SHAPE, REBUILD)
    truths = recorded_history.expected_states(shape, OPERATIONS)
    done = 0
    visits = []

    def visit() -> None:
        answers = PROCESSES.SimpleQueue()
        assert join_child(start_child(child_processes.check_and_leave, str(path), answers)) == 0
        problems, state = answers.get()
        assert problems == []
        assert state in [recorded_history.expected(truths[k], shape) for k in (done, done + 1)]
        with recorded_history.open_warehouse(path) as visitor:
            visitor.gc()
            recorded_history.assert_sound(visitor)
        visits.append(step)

    hook = CallAtStep(step, visit)
    with recorded_history.open_warehouse(path, files=hook) as wh:
        for operation in OPERATIONS:
            recorded_history.perform(wh, shape, operation)
            done += 1
            if hook.called and len(visits) < 4:
                hook.call = visit
        assert visits
        assert recorded_history.state(wh) == recorded_history.expected(truths[-1], shape)
        recorded_history.assert_sound(wh)


def test_a_read_only_visitor_removes_nothing_not_even_what_the_dead_left(tmp_path: Path) -> None:
    path, answers = tmp_path / "wh", PROCESSES.SimpleQueue()
    child_processes.create_numbered(str(path), REBUILD)
    writer = start_child(child_processes.stage_and_wait, str(path), answers, "append.committing")
    answers.get()
    kill_child(writer)
    files = sorted(str(p) for p in path.rglob("*.parquet"))
    staging = sorted(str(p) for p in (path / "staging").rglob("*"))
    assert files
    with recorded_history.open_warehouse(path, read_only=True) as wh:
        assert wh.scan("s").read_all().num_rows == 0
        assert [p for p in wh.check().problems if "named by no record" in p]
        for change in (
            wh.gc,
            lambda: wh.slide("s"),
            lambda: wh.append("s", child_processes.numbered_rows(1)),
            lambda: wh.drop_stream("s"),
        ):
            with pytest.raises(windrow.StorageError, match="reading only"):
                change()
    assert sorted(str(p) for p in path.rglob("*.parquet")) == files
    assert sorted(str(p) for p in (path / "staging").rglob("*")) == staging
    with recorded_history.open_warehouse(path) as wh:
        recorded_history.assert_sound(wh)
    assert not list((path / "staging").iterdir())
    assert sorted(str(p) for p in path.rglob("*.parquet")) == files, "marked, and not removed yet"
    with windrow.open(path, clock=lambda: recorded_history.CLOCK + 3600 * 1_000_000) as wh:
        recorded_history.assert_sound(wh)
    assert not list(path.rglob("*.parquet"))


def test_appenders_work_side_by_side_and_a_batch_given_to_both_is_in_once(tmp_path: Path) -> None:
    path, answers, shape = tmp_path / "wh", PROCESSES.SimpleQueue(), SHAPES["fixed"]
    choice = random.Random(3)
    recorded_history.create(path, "fixed", REBUILD)
    batches = [
        ([shape.row(100 * b + i, BASE + 1 + i, None, choice) for i in range(20)], f"batch {b}") for b in range(30)
    ]
    parts = [batches[:20], list(reversed(batches[10:])), batches[5:25]]
    crowd = [start_child(child_processes.append_many, str(path), "fixed", part, answers) for part in parts]
    assert [join_child(child) for child in crowd] == [0, 0, 0]
    assert sum(answers.get() for _ in crowd) == len(batches)
    truth = shape.oracle()
    for rows, batch in batches:
        truth.append(rows, recorded_history.CLOCK, None, batch)
    truth.slide(recorded_history.CLOCK, BASE + DELTA)
    with recorded_history.open_warehouse(path) as wh:
        wh.slide("s", to=when(BASE + DELTA))
        assert recorded_history.state(wh) == recorded_history.expected(truth, shape)
        recorded_history.assert_sound(wh)


def test_a_batch_that_another_process_appends_at_the_same_moment_is_seen_at_the_commit(tmp_path: Path) -> None:
    path, shape = tmp_path / "wh", SHAPES["fixed"]
    recorded_history.create(path, "fixed", REBUILD)
    rows = shape.table([shape.row(i, BASE + 1, None, random.Random(1)) for i in range(5)])
    with recorded_history.open_warehouse(path) as other:
        hook = CallAtStep("append.committing", lambda: other.append("s", rows, batch_id="b"))
        with recorded_history.open_warehouse(path, files=hook) as wh:
            assert wh.append("s", rows, batch_id="b").duplicate
            assert wh.stream("s").spooled_rows == 5
            other.append("s", rows, batch_id="c")
            hook.call = lambda: other.append("s", rows.slice(1), batch_id="d")
            with pytest.raises(windrow.BatchConflictError, match="'d'"):
                wh.append("s", rows, batch_id="d")
            assert wh.stream("s").spooled_rows == 14
            recorded_history.assert_sound(wh)
        recorded_history.assert_sound(other)


def test_rows_appended_while_a_slide_is_under_way_wait_for_the_next_slide(tmp_path: Path) -> None:
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as other:
        hook = CallAtStep("slide.planned", lambda: other.append("s", child_processes.numbered_rows(2)))
        with recorded_history.open_warehouse(path, files=hook) as wh:
            assert child_processes.slide_numbered(wh, 1).inserted == PER_SLOT
            assert wh.stream("s").spooled_rows == PER_SLOT
            assert wh.slide("s", to=when(BASE + 2 * DELTA)).inserted == PER_SLOT
            assert child_processes.slot_of_answer(wh.scan("s").read_all().column("slot").to_pylist(), PER_SLOT) == 2


def test_two_slides_of_one_stream_queue_up_and_the_second_finds_the_work_done(tmp_path: Path) -> None:
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), REBUILD)
    waiting, inside = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert waiting.wait(60)

    reports = {}
    with recorded_history.open_warehouse(path, files=CallAtStep("slide.planned", hold)) as first:
        worker = threading.Thread(target=lambda: reports.update(first=child_processes.slide_numbered(first, 1)))
        worker.start()
        assert inside.wait(60)

        def sleep(_: float) -> None:
            waiting.set()
            worker.join(60)

        with recorded_history.open_warehouse(path, sleep=sleep) as second:
            reports["second"] = second.slide("s", to=when(BASE + DELTA))
    assert reports["first"].moved
    assert reports["first"].inserted == PER_SLOT
    assert not reports["second"].moved
    assert reports["second"].slide == reports["first"].slide


def test_a_slide_that_cannot_have_its_turn_in_time_names_the_holder(tmp_path: Path) -> None:
    path, answers = tmp_path / "wh", PROCESSES.SimpleQueue()
    child_processes.create_numbered(str(path), REBUILD)
    holder = start_child(child_processes.stage_and_wait, str(path), answers, "slide.committing")
    answers.get()
    slept: list[float] = []
    with recorded_history.open_warehouse(path, sleep=slept.append) as wh:
        with pytest.raises(windrow.BusyError, match=rf"'s'.*process {holder.pid} on .*2 s") as error:
            wh.slide("s", to=when(BASE + DELTA), timeout=2)
        assert isinstance(error.value, TimeoutError)
        assert 2 <= sum(slept) < 3
        # Neither another stream nor an append is held up by it.
        SHAPES["fixed"].create(wh, "other", REBUILD)
        wh.append("s", child_processes.numbered_rows(1))
        assert wh.slide("other", to=when(BASE)).moved
        kill_child(holder)
        assert wh.slide("s", to=when(BASE + DELTA)).moved
        recorded_history.assert_sound(wh)


def test_all_reader_slots_taken_is_a_clear_error_that_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.catalog.environment.MAX_READERS", 3)
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh:
        child_processes.slide_numbered(wh, 1)
        env = wh._store.catalog._shared.env
        taken = []
        with pytest.raises(lmdb.ReadersFullError):
            for _ in range(10):
                taken.append(env.begin())
        with pytest.raises(windrow.BusyError, match="3 reader slots"):
            wh.scan("s")
        for transaction in taken:
            transaction.abort()
        del transaction, taken
        assert wh.scan("s").read_all().num_rows == PER_SLOT
        child_processes.slide_numbered(wh, 2)


def test_many_snapshots_in_one_process_need_no_reader_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.catalog.environment.MAX_READERS", 3)
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh:
        held = []
        for slot in range(1, 12):
            child_processes.slide_numbered(wh, slot)
            held.append((wh.snapshot(), wh.scan("s", columns=["slot"])))
        assert wh.status().readers == 22
        for slot, (snapshot, reader) in enumerate(held, 1):
            assert child_processes.slot_of_answer(reader.read_all().column("slot").to_pylist(), PER_SLOT) == slot
            assert snapshot.now("s") == BASE + slot * DELTA
            snapshot.close()
        del held, reader, snapshot
        assert wh.status().readers == 0
        assert wh.gc().waiting == 0


def test_threads_share_one_handle(tmp_path: Path) -> None:
    path = tmp_path / "wh"
    child_processes.create_numbered(str(path), REBUILD)
    wrong: list[BaseException] = []

    def read() -> None:
        try:
            last = 0
            while last < 15:
                slot = child_processes.slot_of_answer(
                    wh.scan("s", columns=["slot"]).read_all().column("slot").to_pylist(), PER_SLOT
                )
                assert slot >= last
                last = slot
                child_processes.slot_of_answer(wh.probe("s", 1).column("slot").to_pylist(), PER_SLOT // KEYS)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    with recorded_history.open_warehouse(path) as wh:
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for slot in range(1, 16):
            child_processes.slide_numbered(wh, slot)
        for thread in threads:
            thread.join(60)
        assert not wrong
        recorded_history.assert_sound(wh)

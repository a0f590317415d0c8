"""A disk that says no: a clear error, nothing changed, what was committed stays readable, and the next try works."""

import errno
import random
import shutil
from pathlib import Path

import pytest

import child_processes
import recorded_history
import windrow
from faulty_disks import PROCESSES, CountingDisk, FailAtCall, join_child, small_disk, start_child
from oracle import SECOND
from sample_streams import BASE, DELTA, SHAPES, when

SHAPE = "per-row-rich"
PLAIN = "per-row"
"""Its files are synced together with their folder."""
INDEX = windrow.Index("round-robin", 2, 2, maintenance="rebuild")
OPERATIONS = {name: recorded_history.operations(SHAPES[name], seed=4, rounds=3) for name in (SHAPE, PLAIN)}
TRUTHS = {name: recorded_history.expected_states(SHAPES[name], operations) for name, operations in OPERATIONS.items()}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    paths = {name: tmp_path_factory.mktemp("fresh") / "wh" for name in OPERATIONS}
    for name, path in paths.items():
        recorded_history.create(path, name, INDEX)
    return paths


@pytest.fixture(scope="module")
def calls(fresh: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, CountingDisk]:
    """How often each scenario asks something of the disk."""
    actual: dict[str, CountingDisk] = {}
    for name, path in fresh.items():
        actual[name] = files = FailAtCall("write", -1)
        with recorded_history.open_warehouse(
            shutil.copytree(path, tmp_path_factory.mktemp("c") / "wh"), files=files
        ) as wh:
            for operation in OPERATIONS[name]:
                recorded_history.perform(wh, SHAPES[name], operation)
    return actual


def unnamed(wh: windrow.Warehouse) -> list[str]:
    """Data files and staged files that no record names."""
    from windrow.orphans import data_files, named_files

    named = wh._store.catalog.read(named_files)
    staged = [str(path) for path in (wh.path / "staging").glob("*/*") if path.name != "owner.lock"]
    return staged + [file for file in data_files(wh.path) if file not in named]


def assert_tells_that_the_disk_is_full(error: windrow.StorageError) -> None:
    assert "nothing was changed" in str(error)
    assert "the disk is full; free some space" in str(error), error


CALLS = [*((SHAPE, call) for call in ("sink", "write", "sync", "rename")), (PLAIN, "sync"), (PLAIN, "rename")]


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_an_operation_that_finds_the_disk_full_changes_nothing_and_works_when_there_is_space(
    name: str, call: str, fresh: dict[str, Path], calls: dict[str, CountingDisk], tmp_path: Path
) -> None:
    """Some calls of each kind are failed, one in each otherwise undisturbed run; the sweep over all is a soak."""
    count = calls[name].calls[call]
    assert count > 5
    for nth in range(1, count + 1, max(1, count // 6)):
        reached = fail_once(shutil.copytree(fresh[name], tmp_path / f"wh{nth}"), name, call, nth)
        # How a file falls into writes depends a little on timing, so the last ones may not come.
        assert reached or (call == "write" and nth > 0.8 * count)


@pytest.mark.soak
def test_a_disk_that_is_full_at_any_single_call_changes_nothing(
    fresh: dict[str, Path], calls: dict[str, CountingDisk], tmp_path: Path
) -> None:
    for name, path in fresh.items():
        for call in ("sink", "write", "sync", "rename"):
            for nth in range(1, calls[name].calls[call] + 1):
                fail_once(shutil.copytree(path, tmp_path / f"{name}{nth}"), name, call, nth)


def fail_once(path: Path, name: str, call: str, nth: int) -> bool:
    """Fail the nth call of a kind; gives whether there was one."""
    shape, truths, files = SHAPES[name], TRUTHS[name], FailAtCall(call, nth)
    with recorded_history.open_warehouse(path, files=files) as wh, recorded_history.open_warehouse(path) as other:
        for k, operation in enumerate(OPERATIONS[name]):
            if files.failed:
                recorded_history.perform(wh, shape, operation)
                continue
            try:
                recorded_history.perform(wh, shape, operation)
            except windrow.StorageError as error:
                assert_tells_that_the_disk_is_full(error)
                assert files.failed
                for handle in (wh, other):
                    assert recorded_history.state(handle) == recorded_history.expected(truths[k], shape), (
                        nth,
                        operation,
                    )
                assert unnamed(wh) == [], f"{operation[0]} left files behind on a full disk"
                recorded_history.perform(wh, shape, operation)
        assert recorded_history.state(other) == recorded_history.expected(truths[-1], shape)
        recorded_history.assert_sound(other)
    shutil.rmtree(path)
    return files.failed


def test_other_errors_of_the_disk_are_told_in_words(fresh: dict[str, Path], tmp_path: Path) -> None:
    for number, words in (
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.EIO, "Input/output"),
    ):
        path = shutil.copytree(fresh[SHAPE], tmp_path / f"wh{number}")
        with recorded_history.open_warehouse(path, files=FailAtCall("sync", 1, number)) as wh:
            with pytest.raises(windrow.StorageError, match=words) as error:
                recorded_history.perform(wh, SHAPES[SHAPE], OPERATIONS[SHAPE][0])
            assert "nothing was changed" in str(error.value)
            assert error.value.errno == number


def test_a_warehouse_on_a_disk_that_is_really_full_keeps_what_it_has_and_goes_on_when_there_is_space(
    tmp_path: Path,
) -> None:
    """A tmpfs of 3 MB: appends and slides until ENOSPC (in a data file or in LMDB), then space is freed by hand."""
    shape = SHAPES["fixed"]
    with small_disk(tmp_path / "disk", "3m") as disk:
        if disk is None:
            pytest.skip("mounting a tmpfs is not permitted here; RLIMIT_FSIZE is tested beside")
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * (1 << 20))
        truth, number, failed, noise = shape.oracle(), 0, 0, random.Random(11)
        with recorded_history.open_warehouse(disk / "wh") as wh:
            shape.create(wh, recorded_history.STREAM, INDEX)
            for turn in range(60):
                rows = [
                    {"ts": BASE + turn * DELTA + 1 + i, "k": i, "text": noise.randbytes(400).hex(), "n": number + i}
                    for i in range(800)
                ]
                number += len(rows)
                now = BASE + (turn + 1) * DELTA
                for _ in range(3):
                    try:
                        wh.append(recorded_history.STREAM, shape.table(rows), batch_id=str(turn))
                        wh.slide(recorded_history.STREAM, to=when(now))
                        break
                    except windrow.StorageError as error:
                        failed += 1
                        assert_tells_that_the_disk_is_full(error)
                        actual = recorded_history.state(wh)[-1]
                        assert actual == recorded_history.expected(truth, shape)[-1], (
                            "committed rows must stay readable"
                        )
                        ballast.unlink(missing_ok=True)
                else:
                    break
                truth.append(rows, recorded_history.CLOCK, None, str(turn))
                truth.slide(recorded_history.CLOCK, now)
                assert recorded_history.state(wh) == recorded_history.expected(truth, shape)
            assert failed, "the disk never filled up: the test proves nothing"
            recorded_history.assert_sound(wh)


def test_a_limit_on_the_size_of_files_is_told_and_changes_nothing(fresh: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(fresh[SHAPE], tmp_path / "wh")
    limits = [4096, (path / "catalog" / "data.mdb").stat().st_size + 8192]
    for limit in limits:
        copy = shutil.copytree(path, tmp_path / f"limit{limit}")
        queue = PROCESSES.SimpleQueue()
        child = start_child(child_processes.run_with_small_files, str(copy), SHAPE, OPERATIONS[SHAPE], limit, queue)
        answers, same = queue.get()
        assert join_child(child) == 0
        assert answers.startswith("StorageError"), answers
        assert "nothing was changed" in answers
        assert same
        with recorded_history.open_warehouse(copy) as wh:
            assert recorded_history.state(wh) == recorded_history.expected(TRUTHS[SHAPE][-1], SHAPES[SHAPE])
            recorded_history.assert_sound(wh)


def test_a_process_that_may_not_reserve_address_space_is_told_so(tmp_path: Path) -> None:
    queue = PROCESSES.SimpleQueue()
    child = start_child(child_processes.open_with_little_address_space, str(tmp_path / "wh"), queue)
    kind, message = queue.get()
    join_child(child)
    assert kind == "StorageError"
    assert "1 TiB" in message
    assert "ulimit -v" in message


def test_an_append_that_fails_half_way_through_its_input_leaves_nothing(fresh: dict[str, Path], tmp_path: Path) -> None:
    shape = SHAPES[SHAPE]
    path = shutil.copytree(fresh[SHAPE], tmp_path / "wh")
    table = shape.table(OPERATIONS[SHAPE][0][1])

    def batches():
        yield from table.to_batches()
        raise RuntimeError("the source broke off")

    with recorded_history.open_warehouse(path) as wh:
        with pytest.raises(RuntimeError, match="broke off"):
            wh.append(recorded_history.STREAM, batches(), batch_id="b")
        assert recorded_history.state(wh) == recorded_history.expected(shape.oracle(), shape)
        assert unnamed(wh) == []
        assert not wh.append(recorded_history.STREAM, table, batch_id="b").duplicate


def test_a_stream_dropped_while_rows_are_appended_refuses_them_and_leaves_no_files(tmp_path: Path) -> None:
    from faulty_disks import CallAtStep

    shape = SHAPES["fixed"]
    with recorded_history.open_warehouse(tmp_path / "wh") as other:
        shape.create(other, recorded_history.STREAM, INDEX)
        drop = CallAtStep("append.committing", lambda: other.drop_stream(recorded_history.STREAM))
        with recorded_history.open_warehouse(tmp_path / "wh", files=drop) as wh:
            rows = shape.table([{"ts": BASE + SECOND, "k": 1, "text": "", "n": 1}])
            with pytest.raises(windrow.UnknownStreamError, match=recorded_history.STREAM):
                wh.append(recorded_history.STREAM, rows)
            assert drop.called
            assert unnamed(wh) == []
            recorded_history.assert_sound(wh)

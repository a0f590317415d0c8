"""Warehouses of other releases, damaged files, places that cannot be written: each works or says what is wrong."""

import contextlib
import gc
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

import child_processes
import recorded_history
import windrow
from child_processes import KEYS, PER_SLOT, SLOTS
from faulty_disks import PROCESSES, join_child, start_child
from sample_streams import BASE, DELTA, SHAPES, when
from windrow.files import FileSystem

NOREBUILD = windrow.Index("round-robin", 2, 2, maintenance="norebuild")
REBUILD = windrow.Index("round-robin", 2, 2, maintenance="rebuild")


@pytest.fixture
def filled(path: Path) -> Path:
    """A warehouse with a stream `s` of several segments, and a stream `other`."""
    child_processes.create_numbered(str(path), NOREBUILD)
    with recorded_history.open_warehouse(path) as wh:
        for slot in range(1, 4):
            child_processes.slide_numbered(wh, slot)
        SHAPES["fixed"].create(wh, "other", NOREBUILD)
        wh.append("other", SHAPES["fixed"].table([{"ts": BASE + 1, "k": 1, "text": "t", "n": 1}]))
        wh.slide("other", to=when(BASE + DELTA))
    return path


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "streams" / "s" / "segments").glob("*.parquet"))


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "age"), [(3, "newer"), (999, "newer"), (0, "older")])
def test_a_warehouse_of_another_format_is_refused_with_its_number(filled: Path, version: int, age: str) -> None:
    (filled / "windrow.json").write_text(json.dumps({"format": version, "catalog": None}))
    with pytest.raises(
        windrow.FormatError, match=rf"format {version}, {age} than this release's 2; open it with the release"
    ):
        windrow.open(filled)


@pytest.mark.parametrize("version", [3, 7])
def test_a_catalog_of_another_format_is_refused_and_left_alone(filled: Path, version: int) -> None:
    env = lmdb.open(str(filled / "catalog"), max_dbs=64, map_size=1 << 30)
    with env.begin(write=True) as txn:
        txn.put(b"format", version.to_bytes(8, "big"), db=env.open_db(b"meta", txn))
    env.close()
    before = (filled / "catalog" / "data.mdb").read_bytes()
    with pytest.raises(windrow.FormatError, match=rf"catalog format {version}.*newer"):
        windrow.open(filled)
    assert (filled / "catalog" / "data.mdb").read_bytes() == before
    assert len(segment_files(filled)) == 3, "nobody cleans up what they do not understand"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"catalog": null}', '{"format": "x"}', "\x00\x01"])
def test_a_marker_that_cannot_be_read_says_how_to_repair_it(filled: Path, content: str) -> None:
    (filled / "windrow.json").write_text(content)
    with pytest.raises(windrow.FormatError, match=r"windrow.json is damaged.*restore"):
        windrow.open(filled)


def test_a_folder_that_is_no_warehouse_is_not_turned_into_one(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("Dear Ann")
    with pytest.raises(windrow.FormatError, match="not empty and holds no warehouse"):
        windrow.open(tmp_path / "full")
    (tmp_path / "file").write_text("x")
    with pytest.raises(windrow.StorageError, match="file"):
        windrow.open(tmp_path / "file")
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(windrow.FormatError, match="holds no warehouse"):
            windrow.open(tmp_path / "nothing", **options)
    assert not (tmp_path / "nothing").exists()
    assert sorted(p.name for p in (tmp_path / "full").iterdir()) == ["letter.txt"]


@pytest.mark.parametrize("damage", ["garbage", "empty-page", "missing"])
def test_a_catalog_that_is_no_catalog_is_told(filled: Path, damage: str) -> None:
    data = filled / "catalog" / "data.mdb"
    if damage == "missing":
        shutil.rmtree(filled / "catalog")
    else:
        data.write_bytes(b"not a database " * 1000 if damage == "garbage" else b"\x00" * 8192)
    with pytest.raises(windrow.FormatError, match="catalog"):
        windrow.open(filled)
    assert len(segment_files(filled)) == 3, "rows whose catalog is gone must not be taken for orphans"


# -- damage ------------------------------------------------------------------------------------------------------------

DAMAGES = {
    "missing": (lambda file: file.unlink(), "is missing"),
    "empty": (lambda file: file.write_bytes(b""), "has 0 bytes, .* were written"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-100]), "bytes, .* were written"),
    "cut in half": (
        lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "bytes, .* were written",
    ),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + b"x"), "bytes, .* were written"),
    "other content": (lambda file: file.write_bytes(b"x" * file.stat().st_size), "checksum"),
    "broken footer": (lambda file: file.write_bytes(file.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1"), "checksum"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment_is_told_and_everything_else_stays_readable(filled: Path, damage: str) -> None:
    harm, words = DAMAGES[damage]
    file = segment_files(filled)[1]
    harm(file)
    with recorded_history.open_warehouse(filled) as wh:
        if damage != "longer":
            with pytest.raises(windrow.DamageError, match=rf"{file.name}.*'windrow check'"):
                wh.scan("s").read_all()
            with pytest.raises(windrow.DamageError, match=file.name):
                wh.probe("s", 0)
        newest = wh.scan("s", window=f"{DELTA} us").read_all()
        assert set(newest.column("slot").to_pylist()) == {3}, "a window that does not need the segment is answered"
        assert wh.scan("other").read_all().num_rows == 1
        report = wh.check()
        assert not report.ok
        assert all(file.name in problem for problem in report.problems), report.problems
        assert any(re.search(words, problem) for problem in report.problems), report.problems
        assert child_processes.slide_numbered(wh, 4).inserted == PER_SLOT, "rows still come in"
        for slot in range(5, 4 + SLOTS):
            child_processes.slide_numbered(wh, slot)
        assert child_processes.slot_of_answer(wh.scan("s").read_all().column("slot").to_pylist(), PER_SLOT) == 3 + SLOTS
        wh.gc()
        recorded_history.assert_sound(wh)


def test_a_merge_that_meets_damage_fails_in_words_and_changes_nothing(path: Path) -> None:
    child_processes.create_numbered(str(path), REBUILD)
    with recorded_history.open_warehouse(path) as wh:
        for slot in (1, 2):
            child_processes.slide_numbered(wh, slot)
        version, now = wh.status().version, wh.now("s")
        for file in segment_files(path):
            file.write_bytes(file.read_bytes()[:-50])
        with pytest.raises(windrow.DamageError, match="windrow check"):
            child_processes.slide_numbered(wh, 3)
        assert wh.now("s") == now
        assert wh.stream("s").spooled_rows == PER_SLOT
        assert wh.status().version == version + 1, "only the append was committed"


def test_every_flipped_byte_is_found_by_check_and_none_brings_a_reader_down(filled: Path) -> None:
    answers = PROCESSES.SimpleQueue()
    file = str(segment_files(filled)[0].relative_to(filled))
    child = start_child(child_processes.read_damaged, str(filled), file, 1, 120, answers)
    assert join_child(child) == 0, "a damaged file must not crash the process, nor raise anything but DamageError"
    outcomes = answers.get()
    print(f"seed 1: {outcomes}")
    assert outcomes["checked"] == 120
    assert outcomes["DamageError"] > 0


def test_damaged_rejected_rows_are_told(path: Path) -> None:
    shape = SHAPES["fixed"]
    with recorded_history.open_warehouse(path) as wh:
        shape.create(wh, "s", NOREBUILD)
        wh.append("s", shape.table([{"ts": None, "k": 1, "text": "t", "n": 1}]))
        next((path / "streams" / "s" / "rejected").iterdir()).unlink()
        for call in (wh.rejected, wh.replay):
            with pytest.raises(windrow.DamageError, match=r"rejected rows .* is missing"):
                call("s")
        assert any("missing" in problem for problem in wh.check().problems)
        assert wh.discard_rejected("s") == 1
        recorded_history.assert_sound(wh)


def test_check_tells_in_words_what_lies_around_and_gc_removes_it_an_hour_later(filled: Path) -> None:
    now = recorded_history.CLOCK
    with windrow.open(filled, clock=lambda: now) as wh:
        stray = segment_files(filled)[0].with_name("1_2_3_4-000001.parquet")
        shutil.copy(segment_files(filled)[0], stray)
        problems = wh.check().problems
        assert len(problems) == 1
        assert stray.name in problems[0]
        assert "gc" in problems[0]
        assert stray.exists(), "check changes nothing"
        assert wh.gc().marked == 1
        recorded_history.assert_sound(wh)
        now += 3600 * 1_000_000
        assert wh.gc().orphans == 1
        assert not stray.exists()
        recorded_history.assert_sound(wh)


def test_check_finds_a_directory_that_does_not_match_its_segment(filled: Path) -> None:
    from windrow.catalog.environment import catalog_key

    with recorded_history.open_warehouse(filled) as wh:
        first, second = wh.snapshot().view("s").segments[:2]
        with wh._store.catalog.write() as tables:
            tables.delete("directories", catalog_key(first.id))
        assert [p for p in wh.check().problems if f"segment {first.id} " in p and "directory is missing" in p]
        with wh._store.catalog.write() as tables:
            tables.put_raw("directories", catalog_key(first.id), b"garbage")
        assert [p for p in wh.check().problems if f"segment {first.id} " in p and "directory" in p]
        with wh._store.catalog.write() as tables:
            tables.put_raw(
                "directories", catalog_key(999_999), bytes(tables.raw("directories", catalog_key(second.id)))
            )
        assert [p for p in wh.check().problems if "directory 999999 belongs to no segment" in p]


def test_check_reports_progress_and_counts_what_it_has_seen(filled: Path) -> None:
    said: list[str] = []
    with recorded_history.open_warehouse(filled) as wh:
        report = wh.check(said.append)
    assert (report.streams, report.rows, report.files) == (2, 3 * PER_SLOT + 1, 4)
    assert {file.name for file in segment_files(filled)} <= {line.rsplit("/", 1)[-1] for line in said}


# -- places ------------------------------------------------------------------------------------------------------------


class On(FileSystem):
    """A disk of a given kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def file_system(self, path: Path) -> str:
        return self.kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "lustre"])
def test_a_network_file_system_under_the_catalog_is_refused_before_anything_is_written(path: Path, kind: str) -> None:
    with pytest.raises(windrow.StorageError, match=rf"network file system \({kind}\).*catalog='/local/folder'"):
        windrow.open(path, files=On(kind))
    assert not (path / "catalog" / "data.mdb").exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", ""])
def test_a_local_file_system_is_fine(path: Path, kind: str) -> None:
    with windrow.open(path, files=On(kind)) as wh:
        assert wh.streams() == []


def test_the_kernel_is_asked_what_holds_a_path(path: Path) -> None:
    kinds = subprocess.run(
        ["stat", "-f", "-c", "%T", str(path.parent)], check=True, capture_output=True, text=True
    ).stdout.strip()
    actual = FileSystem().file_system(path.parent)
    assert actual
    if kinds == "tmpfs":
        assert actual == "tmpfs"
    assert FileSystem().file_system(Path("/proc")) == "proc"


def test_the_catalog_may_lie_elsewhere_and_is_found_again(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "local" / "catalog"
    with windrow.open(path, catalog=elsewhere, clock=lambda: recorded_history.CLOCK) as wh:
        SHAPES["fixed"].create(wh, "s", NOREBUILD)
        wh.append("s", SHAPES["fixed"].table([{"ts": BASE + 1, "k": 1, "text": "t", "n": 1}]))
        wh.slide("s", to=when(BASE + DELTA))
    assert not (path / "catalog").exists()
    assert (elsewhere / "data.mdb").exists()
    for options in ({}, {"catalog": elsewhere}, {"catalog": str(elsewhere)}):
        with recorded_history.open_warehouse(path, **options) as wh:
            assert wh.scan("s").read_all().num_rows == 1
            recorded_history.assert_sound(wh)
    with pytest.raises(windrow.FormatError, match=rf"catalog of .* is in {elsewhere}, not in .*leave catalog"):
        windrow.open(path, catalog=tmp_path / "other")
    elsewhere.rename(tmp_path / "moved")
    with pytest.raises(windrow.FormatError, match=f"missing from {elsewhere}"):
        windrow.open(path)
    (path / "windrow.json").unlink()
    for options in ({}, {"catalog": tmp_path / "new"}):
        with pytest.raises(windrow.FormatError, match="missing from"):
            windrow.open(path, **options)
    assert list(path.rglob("*.parquet")), "rows whose catalog is gone must not be taken for orphans"


def test_a_warehouse_can_be_moved_as_a_whole(filled: Path, tmp_path: Path) -> None:
    moved = filled.rename(tmp_path / "moved")
    with recorded_history.open_warehouse(moved) as wh:
        assert wh.scan("s").read_all().num_rows == 3 * PER_SLOT
        child_processes.slide_numbered(wh, 4)
        recorded_history.assert_sound(wh)


@contextlib.contextmanager
def read_only_copy(source: Path, target: Path) -> Iterator[Path | None]:
    """The folder under a read-only mount, where mounting is permitted."""
    target.mkdir()
    done = (
        subprocess.run(["mount", "--bind", str(source), str(target)], check=False, capture_output=True).returncode == 0
    )
    done = (
        done
        and subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=False, capture_output=True).returncode
        == 0
    )
    try:
        yield target if done else None
    finally:
        if done:
            subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_read_only_folder_can_be_read_and_says_no_to_changes(filled: Path, tmp_path: Path) -> None:
    with read_only_copy(filled, tmp_path / "ro") as frozen:
        if frozen is None:
            pytest.skip("mounting is not permitted here")
        for options in ({}, {"read_only": True}):
            with recorded_history.open_warehouse(frozen, **options) as wh:
                assert wh.scan("s").read_all().num_rows == 3 * PER_SLOT
                assert wh.probe("s", 1).num_rows == 3 * PER_SLOT // KEYS
                assert wh.stream("s").live_rows == 3 * PER_SLOT
                assert wh.status().readers == 0
                assert wh.check().ok
                for change in (
                    lambda wh=wh: child_processes.slide_numbered(wh, 4),
                    lambda wh=wh: wh.slide("s"),
                    wh.gc,
                    lambda wh=wh: wh.drop_stream("s"),
                    lambda wh=wh: SHAPES["fixed"].create(wh, "new", NOREBUILD),
                    lambda wh=wh: wh.replay("s"),
                    lambda wh=wh: wh.discard_rejected("s"),
                    lambda wh=wh: wh.heartbeat("s", up_to=when(BASE)),
                ):
                    with pytest.raises(windrow.StorageError, match="read"):
                        change()
        with pytest.raises(windrow.StorageError):
            windrow.open(frozen / "new")
    with recorded_history.open_warehouse(filled) as wh:
        child_processes.slide_numbered(wh, 4)


def test_a_read_only_handle_creates_nothing_in_the_folder_but_its_pins(filled: Path) -> None:
    before = sorted(str(p) for p in filled.rglob("*") if "pins" not in p.parts)
    with recorded_history.open_warehouse(filled, read_only=True) as wh:
        assert wh.scan("s").read_all().num_rows == 3 * PER_SLOT
        for change in (
            wh.gc,
            lambda: wh.slide("s"),
            lambda: wh.replay("s"),
            lambda: wh.discard_rejected("s"),
            lambda: wh.fail_source("s", "default"),
        ):
            with pytest.raises(windrow.StorageError, match="reading only"):
                change()
    assert sorted(str(p) for p in filled.rglob("*") if "pins" not in p.parts) == before


def test_warehouses_that_nobody_closes_do_not_use_up_the_addresses(tmp_path: Path) -> None:
    """Each reserves a tebibyte of them, and a process has 128."""
    for number in range(150):
        recorded_history.open_warehouse(tmp_path / str(number))
        if number % 20 == 0:
            gc.collect()
    held = [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{tmp_path}/" in line]
    assert len([line for line in held if line.endswith("data.mdb")]) < 60
    left = recorded_history.open_warehouse(tmp_path / "0")
    with recorded_history.open_warehouse(tmp_path / "0") as kept:
        SHAPES["fixed"].create(left, "s", NOREBUILD)
        del left
        gc.collect()
        with recorded_history.open_warehouse(tmp_path / "1"):
            assert list(kept.streams()) == ["s"], "another handle of the same catalog lives on"

"""Processes that die while they use an object store, and machines that do not know that they were replaced."""

import datetime as dt
import random
import shutil
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest

import child_processes
import windrow
from faulty_disks import join_child, start_child
from object_stores import FaultyS3, Request
from packet_warehouse import NOON, append_and_slide
from stored_packets import MINUTES, forget_files, make_stored_packets, sorted_rows, truth
from windrow.catalog.object_log import list_objects
from windrow.files import OBJECT_STORE_CRASH_POINTS
from windrow.object_store.location import open_objects, parse_location

LAST = MINUTES + 3
STEPS = (*(step for step in OBJECT_STORE_CRASH_POINTS if step != "objects.attached"), "append.published",
         "append.committed", "slide.committing", "slide.committed")  # fmt: skip
PEOPLE = pa.schema([("ts", pa.timestamp("us", "UTC")), ("who", pa.string())])
SECRET = "Zebedee-Quimby-4711"


def find_bytes(folder: Path) -> list[Path]:
    """The objects of a folder that hold the secret, copies of the catalog as they are when they are unpacked."""
    held = []
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".zst":
                content = pa.input_stream(pa.BufferReader(content), compression="zstd").read()
            if SECRET.encode() in content:
                held.append(path)
    return held


def packets(wh: windrow.Warehouse) -> list[dict[str, object]]:
    return sorted_rows(wh.sql("SELECT * FROM packets").arrow())


def see_that_all_is_there(wh: windrow.Warehouse) -> None:
    """Every object that the catalog names is in the store, as it was written."""
    objects = open_objects(parse_location(wh._store.remote.entry.uri))
    for name, entry in wh._store.catalog.read(list_objects).items():
        assert objects.size(name) == entry.bytes


@pytest.mark.parametrize("step", STEPS)
def test_after_a_kill_nothing_is_lost_here_or_for_a_successor(step: str, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/objects"
    make_stored_packets(tmp_path / "w", uri).close()
    child = start_child(child_processes.work_in_store_until_step, str(tmp_path / "w"), MINUTES + 1, LAST, step, 2)
    assert join_child(child) == -signal.SIGKILL, step
    shutil.copytree(tmp_path / "objects", tmp_path / "then")
    # This machine goes on.
    with windrow.open(tmp_path / "w") as wh:
        done = sum(row["len"] == 0 for row in packets(wh))
        assert packets(wh) == truth(done)
        for minute in range(MINUTES + 1, LAST + 1):
            append_and_slide(wh, minute)
        wh.gc()
        forget_files(tmp_path / "w")
        assert packets(wh) == truth(LAST)
        see_that_all_is_there(wh)
        assert not [problem for problem in wh.check().problems if "named by no record" not in problem]
    # Or it is lost, and another one has the last copy: some whole number of minutes, at most one commit back.
    shutil.rmtree(tmp_path / "objects")
    (tmp_path / "then").rename(tmp_path / "objects")
    windrow.restore(uri, tmp_path / "new")
    with windrow.open(tmp_path / "new") as wh:
        seen = sum(row["len"] == 0 for row in packets(wh))
        assert seen in (done - 1, done)
        assert packets(wh) == truth(seen)
        see_that_all_is_there(wh)
        for minute in range(MINUTES + 1, LAST + 1):
            append_and_slide(wh, minute)
        assert packets(wh) == truth(LAST)


def test_what_a_machine_confirmed_before_it_was_replaced_is_in_its_successor(tmp_path: Path) -> None:
    """Two processes, one of which takes the other's warehouse over while that appends."""
    uri, said = f"file://{tmp_path}/objects", tmp_path / "said"
    make_stored_packets(tmp_path / "old", uri).close()
    child = start_child(child_processes.append_until_refused, str(tmp_path / "old"), MINUTES + 1, 400, str(said))
    while not (said.exists() and len(said.read_text().splitlines()) > 5):
        time.sleep(0.01)
    windrow.restore(uri, tmp_path / "new")
    assert join_child(child) == 0
    *confirmed, refusal = said.read_text().splitlines()
    assert "can be read only" in refusal
    with windrow.open(tmp_path / "new") as wh:
        spooled = {batch for (batch,) in wh.sql("SELECT batch_id FROM windrow.batches").fetchall()}
        assert {f"minute {minute}" for minute in confirmed} <= spooled
        see_that_all_is_there(wh)
        wh.slide("packets", to=NOON + dt.timedelta(minutes=100))
    with windrow.open(tmp_path / "old") as old:
        assert old.sql("SELECT count(*) FROM packets").fetchall() == [(MINUTES * 600,)]
        with pytest.raises(windrow.StorageError, match="can be read only"):
            old.slide("packets", to=NOON + dt.timedelta(minutes=100))


def run_faults(s3: FaultyS3, path: Path, seed: int, minutes: int) -> None:
    """Work through a store that fails now and then, against plain Python; then lose the machine."""
    chance = random.Random(seed)

    def fault(_: Request) -> str | None:
        return chance.choice(["503", "lost", "unanswered", "cut"]) if chance.random() < 0.15 else None

    make_stored_packets(path / "w", s3.uri(f"random-{seed}"), segment_cache="6KB").close()
    with windrow.open(path / "w") as wh:
        for minute in range(MINUTES + 1, MINUTES + minutes + 1):
            while True:
                with s3.faulty(fault):
                    try:
                        append_and_slide(wh, minute)
                        if chance.random() < 0.3:
                            wh.gc()
                        key = chance.randrange(60)
                        rows = wh.probe("packets", key=key)
                        assert sorted_rows(rows) == [row for row in truth(minute) if row["src"] == key]
                        break
                    except windrow.WindrowError as error:
                        assert "\n" not in str(error)  # noqa: PT017 - which request fails is chance
        assert packets(wh) == truth(MINUTES + minutes)
    windrow.restore(s3.uri(f"random-{seed}"), path / "new")
    with windrow.open(path / "new") as wh:
        assert packets(wh) == truth(MINUTES + minutes)
        assert wh.check().problems == ()


def test_a_store_that_fails_now_and_then(s3: FaultyS3, tmp_path: Path) -> None:
    run_faults(s3, tmp_path, 24, 4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_store_that_fails_now_and_then_for_long(s3: FaultyS3, tmp_path: Path, seed: int) -> None:
    run_faults(s3, tmp_path, seed, 9)


@pytest.mark.parametrize("reachable", [True, False])
def test_no_byte_of_an_erased_key_is_left_in_the_store(reachable: bool, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/objects"
    with windrow.open(tmp_path / "w", segments=uri) as wh:
        wh.create_stream("s", PEOPLE, time="ts", key="who", slide="1 minute", lifetime="1 hour")
        rows = [{"ts": NOON, "who": who} for who in ("ada", SECRET, "bob")]
        wh.append("s", rows * 5)
        wh.slide("s", to=NOON)
        wh.append("s", rows * 4, durable="store")
        assert find_bytes(tmp_path / "objects")
        if not reachable:
            (tmp_path / "objects" / "catalog").rename(tmp_path / "away")
            (tmp_path / "objects" / "catalog").write_text("not a folder")
        report = wh.erase("s", keys=[SECRET])
        assert report.total == 9
        assert report.gone == reachable
        if reachable:
            assert not find_bytes(tmp_path / "objects")
            assert len(list((tmp_path / "objects" / "catalog").iterdir())) == 1
        else:
            assert any("the last copy of the catalog" in each for each in report.held_by)
            (tmp_path / "objects" / "catalog").unlink()
            (tmp_path / "away").rename(tmp_path / "objects" / "catalog")
            wh.gc()
            assert not find_bytes(tmp_path / "objects")

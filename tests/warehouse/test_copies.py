"""Copied and moved folders: one whose catalog lies elsewhere must not change the catalog of its original.

original ──▶ catalog ◀──×── copy          refused, until it is adopted
original ──▶ catalog        copy ──▶ a catalog of its own
"""

import contextlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import lmdb
import pytest

import child_processes
import recorded_history
import windrow
from child_processes import PER_SLOT
from command_line import CommandLine
from faulty_disks import PROCESSES, FailAtCall, RecordingDisk, join_child, start_child
from windrow import adoption, identity
from windrow.catalog.environment import Catalog
from windrow.files import FileSystem

INDEX = windrow.Index("round-robin", 2, 2, maintenance="rebuild")


def make(path: Path, **options: Any) -> Path:
    """A warehouse with two slots of rows."""
    child_processes.create_numbered(str(path), INDEX, **options)
    with recorded_history.open_warehouse(path) as wh:
        for slot in (1, 2):
            child_processes.slide_numbered(wh, slot)
    return path


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return make(tmp_path / "original", catalog=tmp_path / "catalog")


def slots(path: Path, **options: Any) -> list[int]:
    """The truth of a warehouse as far as this page goes: the slots of its rows."""
    with recorded_history.open_warehouse(path, **options) as wh:
        recorded_history.assert_sound(wh)
        actual = sorted(wh.scan("s").read_all().column("slot").to_pylist())
    assert actual == sorted([*set(actual)] * PER_SLOT), "a slot is there as a whole, once"
    return sorted(set(actual))


def slide(path: Path, slot: int) -> None:
    with recorded_history.open_warehouse(path) as wh:
        child_processes.slide_numbered(wh, slot)


def marker(path: Path) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads((path / "windrow.json").read_text())
    return reply


def owner(catalog: Path) -> identity.Owner:
    actual = Catalog(catalog, create=False)
    try:
        return actual.read(identity.read_owner)
    finally:
        actual.close()


def forget_ids(path: Path, catalog: Path) -> None:
    """Make a warehouse as it was before there were ids."""
    report = marker(path)
    (path / "windrow.json").write_text(json.dumps({"format": report["format"], "catalog": report["catalog"]}))
    env = lmdb.open(str(catalog), max_dbs=64, map_size=1 << 30)
    with env.begin(write=True) as txn:
        for name in (b"uuid", b"root"):
            txn.delete(name, db=env.open_db(b"meta", txn))
    env.close()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_copy_with_its_catalog_elsewhere_is_refused_and_the_original_lives_on(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    for options in ({}, {"read_only": True}, {"catalog": tmp_path / "catalog"}):
        with pytest.raises(windrow.FormatError, match=rf"{copy} is a copy of .*{original} .*'windrow adopt {copy}'"):
            recorded_history.open_warehouse(copy, **options)
    assert slots(original) == [1, 2]
    slide(original, 3)
    assert slots(original) == [1, 2, 3]


def test_a_new_warehouse_does_not_take_the_catalog_of_another(original: Path, tmp_path: Path) -> None:
    with pytest.raises(windrow.FormatError, match=rf"would change its catalog in {tmp_path / 'catalog'}"):
        windrow.open(tmp_path / "new", catalog=tmp_path / "catalog")
    assert slots(original) == [1, 2]


def test_a_catalog_of_another_warehouse_is_refused(original: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other")
    mine, theirs = make(tmp_path / "mine"), other / "catalog"
    shutil.rmtree(mine / "catalog")
    shutil.copytree(theirs, mine / "catalog")
    for path in (mine, mine):
        with pytest.raises(windrow.FormatError, match=r"is not the one of .* the rows are untouched"):
            windrow.open(path)
    assert len(list(mine.rglob("*.parquet"))) == len(list(other.rglob("*.parquet")))
    assert slots(original) == slots(other) == [1, 2]


def test_the_same_folder_by_another_name_is_no_copy(original: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(original)
    slide(tmp_path / "link", 3)
    assert slots(original) == slots(tmp_path / "link", read_only=True) == [1, 2, 3]


@pytest.mark.parametrize("how", ["copied", "moved"])
def test_a_folder_with_its_catalog_inside_goes_where_it_likes(how: str, tmp_path: Path) -> None:
    path, there = make(tmp_path / "here"), tmp_path / "there"
    shutil.copytree(path, there) if how == "copied" else path.rename(there)
    slide(there, 3)
    assert slots(there) == [1, 2, 3]
    assert windrow.adopt(there).outcome == "own"
    if how == "copied":
        assert slots(path) == [1, 2]


def test_a_catalog_behind_a_link_lies_elsewhere(original: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    (tmp_path / "local").mkdir()
    linked.mkdir()
    (linked / "catalog").symlink_to(tmp_path / "local")
    make(linked)
    copy = shutil.copytree(linked, tmp_path / "copy", symlinks=True)
    with pytest.raises(windrow.FormatError, match="is a copy of"):
        windrow.open(copy)
    assert slots(linked) == slots(original)


# -- adoption ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [None, "own"])
def test_an_adopted_copy_and_its_original_go_their_own_ways(original: Path, tmp_path: Path, place: str | None) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    target = None if place is None else tmp_path / place
    done = windrow.adopt(copy, catalog=target)
    assert (done.path, done.catalog, done.outcome) == (copy, target or copy / "catalog", "copied")
    assert marker(copy)["uuid"] != marker(original)["uuid"]
    assert windrow.adopt(copy).outcome == "own"
    for slot in (3, 4):
        slide(copy, slot)
    slide(original, 3)
    assert slots(copy) == [1, 2, 3, 4]
    assert slots(original) == [1, 2, 3]
    for path in (copy, original):
        with windrow.open(path, clock=lambda: recorded_history.CLOCK + 7200 * 1_000_000) as wh:
            wh.gc()
    shutil.rmtree(original)
    assert slots(copy) == [1, 2, 3, 4]


def test_a_moved_warehouse_is_refused_until_it_is_adopted(original: Path, tmp_path: Path) -> None:
    moved = original.rename(tmp_path / "moved")
    for options in ({}, {"read_only": True}):
        with pytest.raises(windrow.FormatError, match=rf"warehouse in {original}, which is not there.*adopt {moved}'"):
            windrow.open(moved, **options)
    with pytest.raises(windrow.FormatError, match=r"stays there; leave catalog=… out"):
        windrow.adopt(moved, catalog=tmp_path / "other")
    assert windrow.adopt(moved).outcome == "moved"
    slide(moved, 3)
    assert slots(moved) == [1, 2, 3]
    back = shutil.copytree(moved, original)
    with pytest.raises(windrow.FormatError, match=f"is a copy of .*{moved}"):
        windrow.open(back)


def test_a_copy_that_lacks_files_is_not_adopted(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    slide(original, 3)
    with pytest.raises(
        windrow.FormatError, match=r"lacks \d of the \d files that the catalog names, such as .*parquet"
    ):
        windrow.adopt(copy)
    assert not (copy / "catalog").exists()
    assert not list(copy.glob(".catalog*"))
    assert slots(original) == [1, 2, 3]


def test_a_catalog_is_not_copied_over_another_nor_onto_a_network(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    make(tmp_path / "other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(windrow.FormatError, match="holds the catalog of another warehouse"):
        windrow.adopt(copy, catalog=tmp_path / "other" / "catalog")
    with pytest.raises(windrow.FormatError, match="is not empty"):
        windrow.adopt(copy, catalog=tmp_path / "full")
    with pytest.raises(windrow.FormatError, match="holds no warehouse"):
        windrow.adopt(tmp_path / "full")

    class Network(FileSystem):
        def file_system(self, path: Path) -> str:
            return "nfs4"

    with pytest.raises(windrow.StorageError, match="network file system"):
        adoption.adopt(copy, files=Network())
    assert slots(original) == slots(tmp_path / "other") == [1, 2]


def test_an_adoption_killed_at_any_step_leaves_a_copy_or_a_warehouse_of_its_own(original: Path, tmp_path: Path) -> None:
    refused, nth = [], 1
    while True:
        copy = shutil.copytree(original, tmp_path / f"copy{nth}")
        code = join_child(start_child(child_processes.adopt_and_die, str(copy), nth))
        refused.append(marker(copy)["uuid"] == marker(original)["uuid"])
        with pytest.raises(windrow.FormatError, match="is a copy of") if refused[-1] else contextlib.nullcontext():
            windrow.open(copy, read_only=True).close()
        assert windrow.adopt(copy).outcome == ("copied" if refused[-1] else "own")
        assert slots(copy) == slots(original) == [1, 2]
        assert not list(copy.glob(".catalog*"))
        if code == 0:
            break
        assert code == -signal.SIGKILL
        nth += 1
    assert len(refused) > 6
    assert refused == sorted(refused, reverse=True)


@pytest.mark.parametrize("call", ["sync", "rename"])
def test_an_adoption_on_a_full_disk_changes_nothing(original: Path, tmp_path: Path, call: str) -> None:
    for nth in (1, 2):
        copy = shutil.copytree(original, tmp_path / f"copy{nth}")
        with pytest.raises(windrow.StorageError, match=r"adopting .*the disk is full"):
            adoption.adopt(copy, files=FailAtCall(call, nth))
        with pytest.raises(windrow.FormatError, match="is a copy of"):
            windrow.open(copy)
        assert windrow.adopt(copy).outcome == "copied"
        assert slots(copy) == slots(original) == [1, 2]


def test_the_command_says_what_it_did(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    run = CommandLine(copy)
    assert f"make it a warehouse of its own with 'windrow adopt {copy}'" in run.error("status")
    assert run("adopt").stdout == f"{copy} is a warehouse of its own now, with its catalog in {copy / 'catalog'}\n"
    assert run("adopt", str(copy)).stdout == f"{copy} is a warehouse of its own already; nothing was changed\n"
    assert run.json("adopt")["outcome"] == "own"


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [True, False])
def test_a_warehouse_made_before_there_were_ids_gets_one_at_the_first_open_for_writing(
    tmp_path: Path, outside: bool
) -> None:
    path = tmp_path / "wh"
    catalog = tmp_path / "elsewhere" if outside else path / "catalog"
    make(path, **({"catalog": catalog} if outside else {}))
    forget_ids(path, catalog)
    before = (path / "windrow.json").read_text()
    assert slots(path, read_only=True) == [1, 2]
    assert (path / "windrow.json").read_text() == before, "readers change nothing"
    answers = PROCESSES.SimpleQueue()
    for child in [start_child(child_processes.open_and_tell_id, str(path), answers) for _ in range(2)]:
        assert join_child(child) == 0
    assert {answers.get() for _ in range(2)} == {owner(catalog).uuid}, "who comes at the same time gets the same"
    assert owner(catalog).root == marker(path)["root"] == str(path)
    assert slots(path) == [1, 2]


def test_a_copy_is_known_though_the_original_was_killed_before_its_marker_had_the_id(
    original: Path, tmp_path: Path
) -> None:
    report = marker(original)
    (original / "windrow.json").write_text(json.dumps({"format": 1, "catalog": report["catalog"]}))
    copy = shutil.copytree(original, tmp_path / "copy")
    with pytest.raises(windrow.FormatError, match="is a copy of"):
        windrow.open(copy)
    assert slots(original) == [1, 2]
    assert marker(original) == report


def test_a_disk_that_is_full_keeps_nobody_from_an_old_warehouse(tmp_path: Path) -> None:
    path = make(tmp_path / "wh")
    forget_ids(path, path / "catalog")
    assert slots(path, files=FailAtCall("sync", 1)) == [1, 2]
    assert "uuid" not in marker(path)
    assert not list(path.glob(".windrow*"))
    assert slots(path) == [1, 2]
    assert marker(path)["uuid"] == owner(path / "catalog").uuid


def test_the_marker_is_durable(tmp_path: Path) -> None:
    files = RecordingDisk()
    windrow.open(tmp_path / "wh", files=files).close()
    events = [event for event in files.events if event[0] != "reach"]
    (position,) = (n for n, event in enumerate(events) if event[0] == "rename" and event[2].endswith("windrow.json"))
    assert events[position - 1] == ("sync", events[position][1])
    assert events[position + 1] == ("sync", str(tmp_path / "wh"))

"""Backups: one commit in a folder of its own, made while others write, and warehouses that are restored from them.

original ──●── commit ──●── commit ──▶        goes its own way
           └─ backup ─▶ restored ──●──▶       is what the original was at that commit, and goes on
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import child_processes
import kills
import recorded_history
import windrow
from command_line import CommandLine
from faulty_disks import FailAtCall
from windrow.backup import list_backups, read_manifest, restore, verify_backup

INDEX = windrow.Index("round-robin", 2, 2, maintenance="rebuild")


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original"
    child_processes.create_numbered(str(path), INDEX)
    for slot in (1, 2):
        slide(path, slot)
    return path


def slide(path: Path, slot: int) -> None:
    with recorded_history.open_warehouse(path) as wh:
        child_processes.slide_numbered(wh, slot)


def slots(path: Path) -> list[int]:
    with recorded_history.open_warehouse(path) as wh:
        recorded_history.assert_sound(wh)
        return sorted(set(wh.scan("s").read_all().column("slot").to_pylist()))


def back_up(path: Path, to: Path, **options: Any) -> windrow.backup.BackupReport:
    with recorded_history.open_warehouse(path) as wh:
        return wh.backup(to, **options)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file, in a copy of its own."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.unlink()
    path.write_bytes(raw)


# -- what is restored --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["append-rejected", "slide-reclaiming", "relayout", "delivery-files", "view-slide"])
def test_a_restored_warehouse_is_what_the_original_was_and_goes_on(name: str, tmp_path: Path) -> None:
    """Streams, spool, rejected rows, tables, results, reports and views, by the truths of the kill harness."""
    case, path = kills.CASES[name], tmp_path / "original"
    case.prepare(path)
    with case.open(path) as wh:
        report = wh.backup(tmp_path / "backup")
        assert case.see(wh) == case.before()
        case.do(wh)
        wh.gc()
    assert report.files == len(read_manifest(tmp_path / "backup").files) > 1
    assert verify_backup(tmp_path / "backup").ok
    shutil.rmtree(path)
    restored = windrow.restore(tmp_path / "backup", tmp_path / "restored")
    assert restored.commit == report.commit
    with case.open(tmp_path / "restored") as wh:
        assert case.see(wh) == case.before()
        recorded_history.assert_sound(wh)
        case.do(wh)
        assert case.see(wh) == case.after()
        case.go_on(wh)
        assert case.see(wh) == case.last()
        recorded_history.assert_sound(wh)


def test_slides_appends_and_removals_go_on_meanwhile(original: Path, tmp_path: Path) -> None:
    """After each file that is copied the warehouse slides, until nothing of the backed up commit is live any more."""
    slot = 2

    def go_on(_: int) -> None:
        nonlocal slot
        slot += 1
        slide(original, slot)
        with recorded_history.open_warehouse(original) as wh:
            wh.gc()

    back_up(original, tmp_path / "backup", progress=go_on)
    assert slot > 3
    assert verify_backup(tmp_path / "backup").ok
    windrow.restore(tmp_path / "backup", tmp_path / "restored")
    assert slots(tmp_path / "restored") == [1, 2]
    assert 1 not in slots(original) or slot < 5


def test_the_catalog_may_lie_elsewhere_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "original"
    child_processes.create_numbered(str(path), INDEX, catalog=tmp_path / "local")
    slide(path, 1)
    back_up(path, tmp_path / "backup")
    done = restore(tmp_path / "backup", tmp_path / "restored", tmp_path / "other")
    assert done.catalog == tmp_path / "other"
    slide(tmp_path / "restored", 2)
    assert slots(tmp_path / "restored") == [1, 2]
    assert slots(path) == [1]
    with pytest.raises(windrow.FormatError, match="holds the catalog of another warehouse"):
        restore(tmp_path / "backup", tmp_path / "again", tmp_path / "other")


def test_batch_ids_are_restored_so_that_sources_may_send_again(original: Path, tmp_path: Path) -> None:
    rows = child_processes.numbered_rows(3)
    with recorded_history.open_warehouse(original) as wh:
        wh.append("s", rows, batch_id="three")
        wh.backup(tmp_path / "backup")
    windrow.restore(tmp_path / "backup", tmp_path / "restored")
    with recorded_history.open_warehouse(tmp_path / "restored") as wh:
        assert wh.append("s", rows, batch_id="three").duplicate


# -- incremental -------------------------------------------------------------------------------------------------------


def test_a_backup_shares_files_with_its_base_and_outlives_it(original: Path, tmp_path: Path) -> None:
    first = back_up(original, tmp_path / "first")
    slide(original, 3)
    second = back_up(original, tmp_path / "second", base=tmp_path / "first")
    old, new = (read_manifest(tmp_path / name).files for name in ("first", "second"))
    shared = [name for name in old.keys() & new.keys() if name.endswith(".parquet")]
    assert shared and all((tmp_path / "first" / name).samefile(tmp_path / "second" / name) for name in shared)
    assert second.copied == second.bytes - sum(new[name].bytes for name in shared)
    assert first.copied == first.bytes
    again = back_up(original, tmp_path / "third", base=tmp_path / "second")
    assert again.copied == read_manifest(tmp_path / "third").files["catalog/data.mdb"].bytes
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(original)
    assert verify_backup(tmp_path / "third").ok
    windrow.restore(tmp_path / "second", tmp_path / "restored")
    assert slots(tmp_path / "restored") == [1, 2, 3]


def test_a_base_on_another_disk_or_with_a_lost_file_is_copied_from_the_warehouse(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(original, tmp_path / "first")
    lost = next(name for name in read_manifest(tmp_path / "first").files if name.endswith(".parquet"))
    (tmp_path / "first" / lost).unlink()
    back_up(original, tmp_path / "second", base=tmp_path / "first")
    assert verify_backup(tmp_path / "second").ok

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    report = back_up(original, tmp_path / "third", base=tmp_path / "second")
    assert report.copied == report.bytes and verify_backup(tmp_path / "third").ok


# -- interruptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [2, 3, 7], ids=["same commit", "later commit", "all rows replaced"])
def test_an_interrupted_backup_is_none_and_is_gone_on_with(original: Path, tmp_path: Path, later: int) -> None:
    def stop(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(original, tmp_path / "backup", progress=stop)
    (each_backup,) = list_backups(tmp_path)
    assert each_backup.manifest is None and "never finished" in each_backup.problem
    for refused in (verify_backup, lambda path: windrow.restore(path, tmp_path / "restored"), windrow.open):
        with pytest.raises(windrow.FormatError, match=r"never finished|a part of a backup"):
            refused(tmp_path / "backup")
    for slot in range(3, later + 1):
        slide(original, slot)
    report = back_up(original, tmp_path / "backup")
    assert report.copied < report.bytes or later > 2
    left = {str(path.relative_to(tmp_path / "backup")) for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    assert left == {*read_manifest(tmp_path / "backup").files, "backup.json"}
    windrow.restore(tmp_path / "backup", tmp_path / "restored")
    assert slots(tmp_path / "restored") == slots(original)


@pytest.mark.parametrize(("call", "nth"), [("sync", 1), ("sync", 3), ("rename", 1), ("rename", 3)])
def test_a_full_disk_leaves_no_backup_and_no_warehouse(original: Path, tmp_path: Path, call: str, nth: int) -> None:
    back_up(original, tmp_path / "good")
    with (
        recorded_history.open_warehouse(original, files=FailAtCall(call, nth)) as wh,
        pytest.raises(windrow.StorageError, match="disk is full"),
    ):
        wh.backup(tmp_path / "backup")
    with pytest.raises(windrow.FormatError, match="no backup"):
        verify_backup(tmp_path / "backup")
    with pytest.raises(windrow.StorageError, match="disk is full"):
        restore(tmp_path / "good", tmp_path / "restored", files=FailAtCall(call, nth))
    with pytest.raises(windrow.FormatError):
        windrow.open(tmp_path / "restored")
    restore(tmp_path / "good", tmp_path / "restored")
    assert slots(tmp_path / "restored") == [1, 2]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_damaged_warehouse_gives_no_backup(original: Path, tmp_path: Path) -> None:
    flip(next(original.rglob("*.parquet")))
    with pytest.raises(windrow.DamageError, match=r"does not have the checksum.*'windrow check'; no backup was made"):
        back_up(original, tmp_path / "backup")
    next(original.rglob("*.parquet")).unlink()
    with pytest.raises(windrow.DamageError, match=r"missing|checksum"):
        back_up(original, tmp_path / "backup")
    assert [each_backup.manifest for each_backup in list_backups(tmp_path)] == [None]


@pytest.mark.parametrize("kind", ["*.parquet", "data.mdb", "backup.json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "removed"])
def test_a_damaged_backup_is_told_and_not_restored(original: Path, tmp_path: Path, kind: str, how: str) -> None:
    back_up(original, tmp_path / "backup")
    victim = next((tmp_path / "backup").rglob(kind))
    if how == "flipped":
        flip(victim)
    elif how == "cut":
        os.truncate(victim, victim.stat().st_size // 2)
    else:
        victim.unlink()
    if kind == "backup.json":
        with pytest.raises(windrow.FormatError, match=r"damaged|no backup"):
            verify_backup(tmp_path / "backup")
    else:
        (problem,) = verify_backup(tmp_path / "backup").problems
        assert victim.name in problem
    with pytest.raises((windrow.FormatError, windrow.DamageError)):
        windrow.restore(tmp_path / "backup", tmp_path / "restored")
    with pytest.raises(windrow.FormatError):
        windrow.open(tmp_path / "restored", create=False)


def test_folders_that_hold_something_else_are_refused(original: Path, tmp_path: Path) -> None:
    back_up(original, tmp_path / "backup")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    for target, why in [
        (tmp_path / "backup", "holds a backup already"),
        (tmp_path / "full", "is not empty"),
        (tmp_path / "full" / "letter", "is a file"),
        (original / "backup", "outside of the warehouse"),
        (tmp_path, "outside of the warehouse"),
    ]:
        with pytest.raises(windrow.FormatError, match=why):
            back_up(original, target)
    with pytest.raises(windrow.FormatError, match=r"is no backup: it has no backup.json"):
        back_up(original, tmp_path / "second", base=tmp_path / "full")
    with pytest.raises(windrow.FormatError, match="holds a warehouse already"):
        windrow.restore(tmp_path / "backup", original)
    with pytest.raises(windrow.FormatError, match="is not empty"):
        windrow.restore(tmp_path / "backup", tmp_path / "full")
    with pytest.raises(windrow.FormatError, match=r"holds a backup; restore it with 'windrow backup restore"):
        windrow.open(tmp_path / "backup")
    assert slots(original) == [1, 2]


def test_a_name_that_leads_out_of_the_folder_is_refused(original: Path, tmp_path: Path) -> None:
    import msgspec

    from windrow import backup

    back_up(original, tmp_path / "backup")
    manifest = read_manifest(tmp_path / "backup")
    (tmp_path / "outside").write_text("x")
    files = manifest.files | {"../outside": backup.SavedFile(1, "0")}
    backup._write_manifest(
        tmp_path / "backup", msgspec.structs.replace(manifest, files=files), windrow.files.FileSystem()
    )
    with pytest.raises(windrow.DamageError, match="leads out of"):
        windrow.restore(tmp_path / "backup", tmp_path / "restored")


# -- the command line --------------------------------------------------------------------------------------------------


def test_the_command_line_backs_up_lists_verifies_and_restores(original: Path, tmp_path: Path) -> None:
    run = CommandLine(original)
    (tmp_path / "backups").mkdir()
    assert "commit" in run("backup", "create", tmp_path / "backups" / "one").output
    slide(original, 3)
    run("backup", "create", tmp_path / "backups" / "two", "--base", tmp_path / "backups" / "one")
    listed = run("backup", "list", tmp_path / "backups").output
    assert listed.index("one") < listed.index("two")
    assert "no problems" in run("backup", "verify", tmp_path / "backups" / "two").output
    run("backup", "restore", tmp_path / "backups" / "two", tmp_path / "restored")
    assert slots(tmp_path / "restored") == [1, 2, 3]
    flip(next((tmp_path / "backups" / "one").rglob("*.parquet")))
    assert "1 problem in" in run("backup", "verify", tmp_path / "backups" / "one", code=1).output

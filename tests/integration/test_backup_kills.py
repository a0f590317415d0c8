"""kill -9 after any call that changes the disk while a warehouse is backed up, or restored.

warehouse ──▶ backup ×        no backup, or a whole one; the warehouse is as it was; the next run makes a whole one
backup    ──▶ restored ×      no warehouse, or a whole one; the next run makes a whole one
"""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kills
import scratch_folders
import system_calls
import windrow
from system_calls import Server
from windrow.backup import list_backups, verify_backup

SEED = int(os.environ.get("SEED", "20261118"))
CASE = kills.CASES["slide-reclaiming"]
NAME = "slide-reclaiming"

pytestmark = pytest.mark.skipif(
    system_calls.compiler() is None, reason="there is no C compiler to build the preloaded library with"
)


@pytest.fixture(scope="module")
def prepared() -> Iterator[tuple[Server, Path]]:
    """A server whose children are killed, and a folder with a warehouse, a base of an earlier commit and a backup."""
    with scratch_folders.scratch_folder() as folder, Server(system_calls.build(folder)) as server:
        kept = folder / "kept"
        CASE.prepare(kept / "warehouse")
        with CASE.open(kept / "warehouse") as wh:
            wh.backup(kept / "base")
            with wh._store.catalog.write():
                pass
            wh.backup(kept / "backup")
        yield server, folder


def fresh(folder: Path, *, without: str) -> Path:
    """The folder as it was prepared, always at the same path."""
    shutil.rmtree(folder / "here", ignore_errors=True)
    shutil.copytree(
        folder / "kept", folder / "here", ignore=lambda inside, _: [without] if inside == str(folder / "kept") else []
    )
    return folder / "here"


def places(calls: int, every: bool) -> list[int]:
    print(f"SEED={SEED}, {calls} calls")
    last = range(max(1, calls - 5), calls + 1)
    return list(range(1, calls + 1)) if every else sorted({*last, *random.Random(SEED).sample(range(1, calls), 4)})


def backups_survive(server: Server, folder: Path, *, base: bool, every: bool) -> None:
    log = folder / "log"

    def attempt(nth: int) -> tuple[Path, system_calls.Outcome, int]:
        here = fresh(folder, without="backup")
        if not base:
            shutil.rmtree(here / "base")
        outcome = server.call("back_up", NAME, str(here), str(log), nth)
        return here, outcome, len(system_calls.read_log(log))

    _, outcome, calls = attempt(0)
    assert outcome.acknowledged, outcome.value
    for nth in places(calls, every):
        here, outcome, made = attempt(nth)
        assert outcome.killed or made < nth, outcome.value
        label = f"killed after call {nth} of {calls}"
        with CASE.open(here / "warehouse") as wh:
            assert CASE.see(wh) == CASE.before(), label
            wh.gc()
            whole = [each_backup.path.name for each_backup in list_backups(here) if each_backup.manifest is not None]
            if outcome.acknowledged or "backup" in whole:
                assert verify_backup(here / "backup").ok, label
            else:
                with pytest.raises(windrow.FormatError, match=r"no backup|never finished"):
                    verify_backup(here / "backup")
                wh.backup(here / "backup")
        windrow.restore(here / "backup", here / "restored")
        with CASE.open(here / "restored") as wh:
            assert CASE.see(wh) == CASE.before(), label
            assert wh.check().ok, label


def restorations_survive(server: Server, folder: Path, *, every: bool) -> None:
    log = folder / "log"

    def attempt(nth: int) -> tuple[Path, system_calls.Outcome, int]:
        here = fresh(folder, without="warehouse")
        outcome = server.call("restore", NAME, str(here), str(log), nth)
        return here, outcome, len(system_calls.read_log(log))

    _, outcome, calls = attempt(0)
    assert outcome.acknowledged, outcome.value
    for nth in places(calls, every):
        here, outcome, made = attempt(nth)
        assert outcome.killed or made < nth, outcome.value
        label = f"killed after call {nth} of {calls}"
        if not (here / "restored" / "windrow.json").exists():
            assert not outcome.acknowledged
            with pytest.raises(windrow.FormatError):
                windrow.open(here / "restored", create=(here / "restored" / ".unfinished").exists())
            windrow.restore(here / "backup", here / "restored")
        with CASE.open(here / "restored") as wh:
            assert CASE.see(wh) == CASE.before(), label
            assert wh.check().ok, label
            CASE.do(wh)
            assert CASE.see(wh) == CASE.after(), label


@pytest.mark.parametrize("base", [False, True], ids=["full", "incremental"])
def test_a_killed_backup_is_none_or_whole(prepared: tuple[Server, Path], base: bool) -> None:
    backups_survive(*prepared, base=base, every=False)


def test_a_killed_restoration_is_no_warehouse_or_a_whole_one(prepared: tuple[Server, Path]) -> None:
    restorations_survive(*prepared, every=False)


@pytest.mark.soak
@pytest.mark.parametrize("what", ["full", "incremental", "restore"])
def test_a_kill_after_any_call_is_survived(prepared: tuple[Server, Path], what: str) -> None:
    if what == "restore":
        restorations_survive(*prepared, every=True)
    else:
        backups_survive(*prepared, base=what == "incremental", every=True)

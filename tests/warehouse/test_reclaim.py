"""Large files that nothing needs any more: nobody waits for their removal, and no record goes before they do."""

import gc
import os
import random
import shutil
import threading
from pathlib import Path

import pytest

import recorded_history
import windrow
from sample_streams import BASE, DELTA, SHAPES, when
from windrow import reclaim
from windrow.locks import LockedFile

S = "s"


def live_on(wh: windrow.Warehouse, first: int, slides: int) -> None:
    """Some slides with a row each."""
    shape = SHAPES["fixed"]
    for turn in range(first, first + slides):
        wh.append(S, shape.table([shape.row(turn, BASE + turn * DELTA + 1, None, random.Random(turn))]))
        wh.slide(S, to=when(BASE + (turn + 1) * DELTA))


def waiting(wh: windrow.Warehouse) -> list[Path]:
    """Files that wait for their removal."""
    named = wh._store.catalog.read(lambda t: [file for _, record in t.items("reclaim") for file in record.files])
    return [wh.path / file for file in named]


def test_a_slide_does_not_wait_for_the_removal_of_large_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "_LARGE_BYTES", 0)
    go_on, removed = threading.Event(), threading.Event()
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2, maintenance="norebuild"))
        turns = 0
        while not waiting(wh):
            live_on(wh, turns, 1)
            turns += 1
        doomed = waiting(wh)
        plain = reclaim.remove_files

        def slowly(store: object, ready: object) -> None:
            go_on.wait(60)
            plain(store, ready)  # type: ignore[arg-type]
            removed.set()

        monkeypatch.setattr(reclaim, "remove_files", slowly)
        live_on(wh, turns, 6)  # none of these slides waits, and the later ones do not begin the same removal again
        assert set(doomed) <= set(waiting(wh)), "what is not gone yet is still on record"
        assert all(file.exists() for file in doomed)
        go_on.set()
        assert removed.wait(60)
        monkeypatch.setattr(reclaim, "remove_files", plain)
        while wh._store.removals:
            threading.Event().wait(0.01)
        assert not any(file.exists() for file in doomed)
        live_on(wh, turns + 6, 1)
        assert not set(doomed) & set(waiting(wh)), "found gone, and so settled"
        wh.gc()
        recorded_history.assert_sound(wh)


def test_a_process_that_ends_meanwhile_leaves_the_rest_to_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "_LARGE_BYTES", 0)
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2, maintenance="norebuild"))
        monkeypatch.setattr(reclaim, "remove_files", lambda *_: None)  # as if it had died before the disk did anything
        live_on(wh, 0, 12)
        doomed = waiting(wh)
    assert doomed
    assert all(file.exists() for file in doomed)
    monkeypatch.undo()
    with recorded_history.open_warehouse(path) as wh:
        live_on(wh, 12, 2)
        assert not any(file.exists() for file in doomed)
        recorded_history.assert_sound(wh)


def staging(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "staging").iterdir())


def test_what_writers_left_that_died_at_any_moment_goes(path: Path) -> None:
    """Killed before the folder was locked, while it was, and while it was being removed; Spark's folders have no lock."""
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2))
        live_on(wh, 0, 1)
        (alive,) = staging(path)
        for number, files in enumerate(([], ["owner.lock"], ["some.parquet"], ["owner.lock", "some.parquet"])):
            folder = path / "staging" / f"1f_{number}_3_0123456789ab"
            folder.mkdir()
            for file in files:
                (folder / file).touch()
        (path / "staging" / "source-5").mkdir()
        with recorded_history.open_warehouse(path):
            assert staging(path) == sorted([alive, "source-5"])
        live_on(wh, 1, 1)
    assert staging(path) == ["source-5"]


def test_a_writer_whose_folder_is_cleaned_away_before_it_is_locked_makes_it_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, taken = LockedFile.claim, []

    def robbed(file: Path) -> LockedFile | None:
        if not taken:
            taken.append(file)
            shutil.rmtree(file.parent)
        return claim(file)

    monkeypatch.setattr(LockedFile, "claim", robbed)
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2))
        live_on(wh, 0, 2)
        assert taken
        assert len(staging(path)) == 1


def test_a_warehouse_that_is_dropped_unclosed_holds_nothing(path: Path) -> None:
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2))
        live_on(wh, 0, 1)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(1, 6):
        dropped = recorded_history.open_warehouse(path)
        live_on(dropped, turn, 1)
        dropped.snapshot()
        del dropped
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before + 5
    with recorded_history.open_warehouse(path):
        assert staging(path) == []

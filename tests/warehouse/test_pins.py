"""Pins that rest between two readers: they protect nothing then, and all they should as soon as they are woken."""

import gc
import itertools
import os
import random
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

import recorded_history
import windrow
from sample_streams import BASE, DELTA, SHAPES, when
from windrow.locks import LockedFile, is_held, locked, remove_unheld
from windrow.pins import PinPool

S = "s"


def pins_of(path: Path) -> list[str]:
    return sorted(os.listdir(path / "catalog" / "pins"))


def live_on(wh: windrow.Warehouse, first: int, slides: int) -> None:
    shape = SHAPES["fixed"]
    for turn in range(first, first + slides):
        wh.append(S, shape.table([shape.row(turn, BASE + turn * DELTA + 1, None, random.Random(turn))]))
        wh.slide(S, to=when(BASE + (turn + 1) * DELTA))


@pytest.fixture
def pins(tmp_path: Path) -> PinPool:
    return PinPool(tmp_path / "pins")


@pytest.fixture
def unique() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"x-{next(numbers)}"


def asked(version: int) -> Callable[[], int]:
    return lambda: version


def unasked() -> int:
    raise AssertionError("a pin that rests needs no look into the catalog")


def test_a_pin_that_was_given_back_is_used_again(pins: PinPool, unique: Callable[[], str]) -> None:
    first = pins.acquire(asked(3), unique)
    assert os.listdir(pins.folder) == ["3-x-0"]
    assert is_held(Path(first.path))
    pins.release(first)
    assert os.listdir(pins.folder) == ["3-x-0"]
    assert not is_held(Path(first.path))
    assert pins.idle() == {"3-x-0"}
    again = pins.acquire(unasked, unique)
    assert again is first
    assert os.listdir(pins.folder) == ["3-x-0"]
    assert is_held(Path(again.path))
    assert not pins.idle()
    other = pins.acquire(asked(12), unique)
    assert sorted(os.listdir(pins.folder)) == ["12-x-1", "3-x-0"]
    for pin in (again, other):
        pins.release(pin)
    pins.clear()
    assert not os.listdir(pins.folder)


def test_a_pin_stays_behind_its_readers_by_a_few_commits_only(pins: PinPool, unique: Callable[[], str]) -> None:
    for seen in range(3, 40):
        pin = pins.acquire(asked(seen), unique)
        [name] = os.listdir(pins.folder)
        named = int(name.split("-")[0])
        assert pin.version == named
        assert seen - 10 < named <= seen
        pins.last_read = seen
        pins.release(pin)


def test_an_exact_pin_is_of_the_commit_that_was_asked_for(pins: PinPool, unique: Callable[[], str]) -> None:
    pins.release(pins.acquire(asked(7), unique))
    earlier = pins.acquire_at(5, unique)
    later = pins.acquire_at(8, unique)
    assert sorted(os.listdir(pins.folder)) == ["5-x-0", "8-x-1"]
    assert is_held(Path(earlier.path))
    assert is_held(Path(later.path))


def test_a_resting_pin_that_somebody_removed_is_not_taken_for_one(pins: PinPool, unique: Callable[[], str]) -> None:
    first = pins.acquire(asked(1), unique)
    assert not remove_unheld(first.path), "it is held"
    pins.release(first)
    assert remove_unheld(first.path)
    again = pins.acquire(asked(1), unique)
    assert again is not first
    assert os.listdir(pins.folder) == ["1-x-1"]
    assert is_held(Path(again.path))


def test_a_resting_pin_that_somebody_looks_at_is_left_to_them(pins: PinPool, unique: Callable[[], str]) -> None:
    """Whoever clears up holds the lock from the look to the removal; a reader who comes between makes a new pin."""
    first = pins.acquire(asked(1), unique)
    pins.release(first)
    with locked(Path(first.path), "a pin", signed=False):
        again = pins.acquire(asked(1), unique)
        assert again is not first
    assert is_held(Path(again.path))


def test_few_pins_rest_and_none_after_the_end(pins: PinPool, unique: Callable[[], str]) -> None:
    taken = [pins.acquire(asked(1), unique) for _ in range(20)]
    for pin in taken[:-1]:
        pins.release(pin)
    assert len(pins.idle()) == len(os.listdir(pins.folder)) - 1 == 4
    pins.close()
    assert len(os.listdir(pins.folder)) == 1, "the one that is held"
    pins.release(taken[-1])
    assert not os.listdir(pins.folder)
    pins.release(taken[-1])


def test_a_closed_pin_neither_rests_nor_wakes(tmp_path: Path) -> None:
    held = LockedFile(tmp_path / "1-a")
    held.close()
    assert not held.unlock()
    assert not held.relock()
    assert not os.listdir(tmp_path)


def test_resting_pins_hold_no_space_and_woken_ones_hold_what_they_should(path: Path) -> None:
    with recorded_history.open_warehouse(path) as wh, recorded_history.open_warehouse(path) as other:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2, maintenance="rebuild"))
        live_on(wh, 0, 3)
        for handle in (wh, other):
            handle.scan(S).read_all()
        assert len(pins_of(path)) == 2
        assert (wh.status().readers, other.status().readers) == (0, 0)
        live_on(wh, 3, 6)
        assert wh.gc().waiting == 0, "pins that rest hold nothing"
        with other.snapshot() as snapshot:
            before = snapshot.scan(S).read_all()
            assert wh.status().readers == 1
            live_on(wh, 9, 6)
            assert wh.gc().waiting > 0
            assert snapshot.scan(S).read_all().equals(before)
        live_on(wh, 15, 1)
        assert wh.gc().waiting == 0
        with other.snapshot():
            assert wh.status().readers == 1, "a new one was made, since gc removed the one that rested"
    assert not pins_of(path)


def test_a_snapshot_that_outlives_its_handle_leaves_no_pin(path: Path) -> None:
    with recorded_history.open_warehouse(path) as wh:
        SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2))
        snapshot = wh.snapshot()
    assert len(pins_of(path)) == 1
    snapshot.close()
    assert not pins_of(path)


def test_a_snapshot_that_nobody_closed_does_not_keep_its_handle_alive(path: Path) -> None:
    wh = recorded_history.open_warehouse(path)
    SHAPES["fixed"].create(wh, S, windrow.Index("round-robin", 2, 2))
    snapshot, store = wh.snapshot(), weakref.ref(wh._store)
    assert len(pins_of(path)) == 1
    del wh, snapshot
    gc.collect()
    assert store() is None
    assert not pins_of(path)

"""Copies of live rows that scans keep: what goes, what stays, and that the budget for columns is kept to."""

import pyarrow as pa
import pytest

from windrow.indexes.column_cache import ColumnCache
from windrow.indexes.scan import ScanCache

MB = 1 << 20
A, B, C = (((number, 0, 10, b"", 3), (number + 10, 5, 9, b"", 0)) for number in range(3))


def batches(size: int) -> list[pa.RecordBatch]:
    numbers = pa.Array.from_buffers(pa.int8(), size, [None, pa.py_buffer(bytes(size))])
    return [pa.record_batch([numbers], names=["x"])]


@pytest.fixture
def cache() -> ColumnCache:
    return ColumnCache(None, 16 * MB)  # type: ignore[arg-type]


def test_a_scan_is_kept_from_its_second_time_on(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    assert copies.begin("scan", {A}) is None
    assert copies.begin("scan", {A}) == {}
    made = batches(MB)
    copies.keep("scan", A, made, MB)
    copies.keep("scan", A, batches(MB), MB)
    actual = copies.begin("scan", {A, B})
    assert actual is not None
    assert list(actual) == [A]
    assert actual[A] is made
    assert copies.bytes == cache.reserved == MB


def test_what_a_scan_no_longer_wants_goes_before_anything_new_is_made(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    for _ in range(2):
        copies.begin("scan", {A, B})
    copies.keep("scan", A, batches(MB), MB)
    copies.keep("scan", B, batches(MB), MB)
    actual = copies.begin("scan", {B, C})
    assert actual is not None
    assert list(actual) == [B]
    assert copies.bytes == cache.reserved == MB


def test_copies_take_a_quarter_of_the_budget_at_most_and_the_oldest_scan_gives_way(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    for scan in ("old", "new"):
        for _ in range(2):
            copies.begin(scan, {A, B})
    for part in (A, B):
        copies.keep("old", part, batches(2 * MB), 2 * MB)
    assert copies.bytes == 4 * MB
    copies.keep("new", A, batches(2 * MB), 2 * MB)
    assert copies.bytes == 2 * MB, "all of the old scan went: some of it alone would be of little use"
    copies.keep("new", B, batches(2 * MB), 2 * MB)
    copies.keep("new", C, batches(1), 1)
    assert copies.bytes == cache.reserved == 4 * MB, "what does not fit is not kept"


def test_a_scan_that_wants_no_copies_any_more_drops_what_it_kept(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    assert copies.has_room_for(4 * MB)
    assert not copies.has_room_for(4 * MB + 1)
    for _ in range(2):
        copies.begin("scan", {A})
    copies.keep("scan", A, batches(MB), MB)
    assert copies.begin("scan", ()) == {}
    assert copies.bytes == cache.reserved == 0


def test_what_is_counted_of_a_copy_is_what_its_keeper_said(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    for _ in range(2):
        copies.begin("scan", {A, B})
    copies.keep("scan", A, batches(8 * MB), 1000)
    copies.keep("scan", B, batches(8 * MB), 500)
    assert copies.bytes == cache.reserved == 1500
    copies.begin("scan", {B})
    assert copies.bytes == cache.reserved == 500


def test_scans_that_were_not_made_for_long_are_forgotten(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    for _ in range(2):
        copies.begin("first", {A})
    copies.keep("first", A, batches(MB), MB)
    for other in range(100):
        copies.begin(other, ())
    assert copies.bytes == cache.reserved == 0
    copies.keep("first", A, batches(MB), MB)
    assert copies.bytes == 0


def test_copies_of_segments_that_are_gone_go_with_them(cache: ColumnCache) -> None:
    copies = ScanCache(cache)
    for scan in ("one", "two"):
        for _ in range(2):
            copies.begin(scan, {A, B})
        copies.keep(scan, A, batches(MB), MB)
        copies.keep(scan, B, batches(MB), MB)
    copies.forget([10, 99])
    assert copies.bytes == cache.reserved == 2 * MB
    assert [list(copies.begin(scan, {A, B}) or {}) for scan in ("one", "two")] == [[B], [B]]

"""A directory must find every row of a key range, say truly when it found nothing else, and survive any damage.

The oracle is a scan over all keys. Each blob is looked up at every alignment, for LMDB gives none.
"""

import bisect
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.native import directory, key_encoding

SEGMENTS: dict[str, Callable[[random.Random], list[bytes]]] = {
    "empty": lambda _: [],
    "one row": lambda _: [b"abc"],
    "one empty key": lambda _: [b""],
    "one key": lambda _: [b"abc"] * 1000,
    "one very long key": lambda _: [b"k" * 5000] * 1000,
    "repeated integers": lambda r: [b"\x01" + r.randrange(20).to_bytes(8) for _ in range(2000)],
    "near-unique integers": lambda r: [b"\x01" + r.randrange(10**9).to_bytes(8) for _ in range(2000)],
    "near-unique with a hot key": lambda r: [
        b"\x01" + r.choice([r.randrange(10**6), 555]).to_bytes(8) for _ in range(2000)
    ],
    "repeated names": lambda r: [f"host{r.randrange(12)}".encode() for _ in range(800)],
    "near-unique names": lambda r: [b"host%d" % r.randrange(10**6) for _ in range(800)],
    "few long names, cut": lambda r: [
        bytes([r.choice(b"ab")]) + b"x" * 70 + bytes([r.choice(b"pq")]) for _ in range(900)
    ],
    "few names, some cut": lambda r: [r.choice([b"a", b"a" * 64, b"a" * 65, b"a" * 66, b"b"]) for _ in range(900)],
    "many long names, cut": lambda r: [bytes(r.choices(b"ab", k=3)) + b"x" * 70 + r.randbytes(3) for _ in range(900)],
    "long shared prefix": lambda r: [b"https://example.org/" * 9 + b"%d" % r.randrange(10**6) for _ in range(900)],
    "prefixes of each other": lambda r: [b"a" * r.randrange(300) for _ in range(900)],
    "short binary": lambda r: [bytes(r.choices(b"\x00\xff", k=r.randrange(9))) for _ in range(600)],
}


def segment(name: str) -> list[bytes]:
    """The sorted keys of a named segment."""
    return sorted(SEGMENTS[name](random.Random(name)))


def array(listed: list[bytes]) -> pa.Array:
    """Keys as the array that the encoder would give."""
    return pa.array(listed, pa.large_binary())


def near(r: random.Random, listed: list[bytes]) -> bytes:
    """A bound that is a key, or lies close to one."""
    key = r.choice(listed) if listed else b"x"
    change = r.randrange(5)
    if change == 1:
        return key[: r.randrange(len(key) + 1)]
    if change == 2:
        return key + r.choice([b"\x00", b"\xff", b"m"])
    if change == 3 and key:
        position = r.randrange(len(key))
        return key[:position] + bytes([key[position] ^ (1 << r.randrange(8))]) + key[position + 1 :]
    return r.randbytes(3) if change == 4 else key


def rows_of(ranges: directory.Ranges, blob: int = 0) -> set[int]:
    """All candidate rows of one blob."""
    actual = zip(ranges.blob, ranges.start, ranges.stop, strict=True)
    return {row for owner, start, stop in actual if owner == blob for row in range(start, stop)}


def matching(listed: list[bytes], low: bytes, high: bytes | None) -> set[int]:
    """What a scan finds."""
    stop = len(listed) if high is None else bisect.bisect_right(listed, high)
    return set(range(bisect.bisect_left(listed, low), stop))


@pytest.mark.parametrize("max_key", [64, 4, 1])
@pytest.mark.parametrize("block_rows", [128, 7, 1])
@pytest.mark.parametrize("name", SEGMENTS)
def test_no_row_is_missed_and_exact_ranges_hold_nothing_else(name: str, block_rows: int, max_key: int) -> None:
    listed, r = segment(name), random.Random(f"{name}{block_rows}{max_key}")
    blob = directory.build(array(listed), block_rows=block_rows, max_key=max_key)
    assert directory.verify(blob, array(listed)) is None
    for _ in range(120):
        low, high = near(r, listed), near(r, listed)
        bounds = r.choice(
            [(low, high), (min(low, high), max(low, high)), (low, low), (low, None), (b"", high), (b"", None)]
        )
        actual = directory.lookup([blob], [bounds[0]], [bounds[1]])
        expected = matching(listed, *bounds)
        assert expected <= rows_of(actual)
        assert len(actual.start) <= 1
        if actual.exact.all():
            assert expected == rows_of(actual)


@pytest.mark.parametrize("name", ["repeated integers", "repeated names", "one key", "one row", "empty"])
def test_a_dense_directory_is_exact(name: str) -> None:
    listed, r = segment(name), random.Random(name)
    blob = directory.build(array(listed))
    assert directory.describe(blob)["exact"]
    for _ in range(200):
        low, high = sorted((near(r, listed), near(r, listed)))
        actual = directory.lookup([blob], [low], [high])
        assert actual.exact.all()
        assert rows_of(actual) == matching(listed, low, high)


@pytest.mark.parametrize(
    "name", ["near-unique integers", "near-unique names", "near-unique with a hot key", "long shared prefix"]
)
def test_a_sparse_directory_reads_little_more_than_what_matches(name: str) -> None:
    listed = segment(name)
    blob = directory.build(array(listed))
    assert not directory.describe(blob)["dense"]
    for key in listed[::17]:
        actual = rows_of(directory.lookup([blob], [key], [key]))
        assert len(actual) <= len(matching(listed, key, key)) + 128


@pytest.mark.parametrize("name", [name for name in SEGMENTS if segment(name)[:1] not in ([], [b""])])
def test_what_lies_outside_all_keys_is_not_looked_for(name: str) -> None:
    listed = segment(name)
    blob = directory.build(array(listed))
    assert len(directory.lookup([blob], [b""], [b""]).start) == 0
    assert len(directory.lookup([blob], [b"\xff" * 80], [None]).start) == 0


def test_a_directory_of_near_unique_keys_is_under_half_a_percent() -> None:
    listed = sorted(np.random.default_rng(1).integers(0, 2**62, 100_000).tolist())
    blob = directory.build(key_encoding.encode([pa.array(listed)]))
    assert len(blob) < 0.005 * 90 * len(listed)


@given(
    listed=st.lists(st.lists(st.sampled_from([0, 1, 255]), max_size=6).map(bytes), max_size=80),
    bounds=st.lists(st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=3))), max_size=5),
    block_rows=st.integers(1, 9),
    max_key=st.integers(1, 5),
    shift=st.integers(0, 7),
)
def test_many_ranges_in_many_blobs_are_merged_and_in_order(
    listed: list[bytes], bounds: list[Any], block_rows: int, max_key: int, shift: int
) -> None:
    segments = [sorted(listed), sorted(key + b"!" for key in listed), []]
    blobs = [directory.build(array(part), block_rows=block_rows, max_key=max_key) for part in segments]
    unaligned = [memoryview(b"-" * shift + blob)[shift:] for blob in blobs]
    actual = directory.lookup(unaligned, [low for low, _ in bounds], [high for _, high in bounds])
    spans = list(zip(actual.blob.tolist(), actual.start.tolist(), actual.stop.tolist(), strict=True))
    assert spans == sorted(spans)
    for (owner, _, stop), (next_owner, start, _) in itertools.pairwise(spans):
        assert owner < next_owner or stop < start
    for index, part in enumerate(segments):
        expected = set().union(*(matching(part, low, high) for low, high in bounds))
        assert expected <= rows_of(actual, index)
        if actual.exact[actual.blob == index].all():
            assert expected == rows_of(actual, index)


@pytest.mark.parametrize("name", SEGMENTS)
def test_damage_is_refused_or_harmless_and_never_a_crash(name: str) -> None:
    listed, r = segment(name), random.Random(name)
    whole = directory.build(array(listed), block_rows=16)
    for _ in range(400):
        blob = bytearray(whole)
        for _ in range(r.randrange(3)):
            blob[r.randrange(len(blob))] ^= 1 << r.randrange(8)
        if r.random() < 0.3:
            del blob[r.randrange(len(blob)) :]
        try:
            actual = directory.lookup([blob], [near(r, listed), b""], [near(r, listed), None])
            assert (actual.start >= 0).all()
            assert (actual.start < actual.stop).all()
            directory.describe(blob)
        except ValueError:
            assert blob != whole
        if blob != whole:
            directory.verify(blob, array(listed))


@pytest.mark.parametrize(
    "name", ["repeated integers", "near-unique integers", "near-unique names", "few names, some cut"]
)
def test_verify_sees_every_changed_row_and_key(name: str) -> None:
    listed = segment(name)
    blob = directory.build(array(listed))
    assert directory.verify(blob, array(listed)) is None
    assert directory.verify(blob, array(listed[:-1])) is not None
    assert directory.verify(blob, array([b"", *listed[1:]])) is not None
    assert directory.verify(blob, array([*listed[:-1], b"\xff\xff"])) is not None
    assert directory.verify(blob, array(listed[::-1])) is not None
    entries = int(directory.describe(blob)["entries"])
    if entries > 1:
        shifted = bytearray(blob)
        prefix = int.from_bytes(blob[16:18], "little")
        shifted[24 + prefix + 4] ^= 1
        assert directory.verify(shifted, array(listed)) is not None
    assert directory.verify(b"", array(listed)) is not None


def test_describe_says_what_was_built() -> None:
    blob = directory.build(array([b"a"] * 64 + [b"b"] * 64))
    assert directory.describe(blob) == {"rows": 128, "entries": 2, "dense": True, "exact": True, "bytes": len(blob)}


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda: directory.build(array([b"b", b"a"])), ValueError, "row 1"),
        (lambda: directory.build(array([]), block_rows=0), ValueError, "block_rows"),
        (lambda: directory.build(array([]), max_key=0), ValueError, "max_key"),
        (lambda: directory.build(pa.array([1])), TypeError, "int64"),
        (lambda: directory.build(pa.array([None], pa.binary())), ValueError, "null"),
        (lambda: directory.lookup([b"nonsense" * 9], [], []), ValueError, "not a directory"),
        (lambda: directory.lookup([], [b""], []), ValueError, "1 lower"),
        (lambda: directory.lookup([], [None], [None]), TypeError, "bytes"),  # type: ignore[list-item]
        (lambda: directory.lookup([1], [], []), TypeError, "int"),  # type: ignore[list-item]
        (lambda: directory.describe(b""), ValueError, "not a directory"),
    ],
    ids=[
        "unsorted",
        "no block",
        "no key bytes",
        "no keys",
        "null key",
        "no blob",
        "bounds",
        "no low",
        "no buffer",
        "nothing",
    ],
)
def test_misuse_is_an_error(call: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call()

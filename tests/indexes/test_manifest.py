"""A manifest's columns say what its segments say, however many commits it was carried through."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.indexes.test_maintenance import segment
from windrow.indexes.manifest import Manifest, SegmentArrays
from windrow.indexes.segments import Segment

SLOTS = st.lists(st.integers(-3, 40), min_size=1, max_size=20)
MADE = st.lists(st.tuples(st.integers(0, 5), SLOTS), max_size=8)
COMMITS = st.lists(st.tuples(MADE, st.sets(st.integers(0, 30)), st.integers(-5, 45)), max_size=6)


def made_of(given: list[tuple[int, list[int]]], first: int) -> list[Segment]:
    return [
        segment(first + n, f"{first}.{file}", 100 + n, slots, n % 4, n % 3) for n, (file, slots) in enumerate(given)
    ]


@given(commits=COMMITS)
def test_carried_columns_are_those_of_the_segments(
    commits: list[tuple[list[tuple[int, list[int]]], set[int], int]],
) -> None:
    manifest, plain, number = Manifest(), list[Segment](), 0
    for come, gone, slide in commits:
        fresh = made_of(come, number)
        number += len(fresh)
        gone -= {one.id for one in fresh}
        manifest = manifest.replace(gone, fresh)
        plain = [*(one for one in plain if one.id not in gone), *fresh]
        assert list(manifest) == plain
        carried, asked = manifest.arrays, SegmentArrays.of(plain)
        assert np.array_equal(carried.matrix[:-1], asked.matrix[:-1])
        assert len({*zip(carried.file.tolist(), (one.file for one in plain), strict=True)}) == len(set(carried.file))
        assert len(set(carried.file)) == len({one.file for one in plain})
        assert manifest.dead_rows(slide).tolist() == [one.dead(slide) for one in plain]
        assert manifest.files() == {one.file for one in plain}


@given(given=MADE, previous=st.integers(-5, 45), further=st.integers(0, 20))
def test_rows_that_a_slide_lets_go_are_added_to_the_dead_ones(
    given: list[tuple[int, list[int]]], previous: int, further: int
) -> None:
    slide = previous + further
    manifest = Manifest(made_of(given, 0))
    lost = [one.dead(slide) - one.dead(previous) for one in manifest]
    losing = np.flatnonzero(lost)
    expired, dead = manifest.expire(previous, slide, losing)
    assert expired.tolist() == [lost[position] for position in losing]
    assert dead.slide == slide
    assert dead.counts.tolist() == [one.dead(slide) for one in manifest]
    assert manifest.dead_rows(previous).tolist() == [one.dead(previous) for one in manifest], "the manifest is the same"
    after = manifest.replace(set(), made_of(given, 100), dead)
    assert after.dead_rows(slide).tolist() == [one.dead(slide) for one in after]


@given(given=MADE, chance=st.randoms(use_true_random=False), cut=st.integers(0, 8))
def test_some_of_the_segments_bring_their_columns_along(
    given: list[tuple[int, list[int]]], chance: random.Random, cut: int
) -> None:
    manifest = Manifest(made_of(given, 0))
    places = chance.sample(range(len(manifest)), chance.randint(0, len(manifest)))
    picked = manifest.take(np.array(places, np.int64))
    assert list(picked) == [manifest[index] for index in places]
    cut = min(cut, len(places))
    for part, wanted in ((picked, places), *zip(picked.split(cut), (places[:cut], places[cut:]), strict=True)):
        assert [one.id for one in part] == [manifest[index].id for index in wanted] == part.arrays.id.tolist()
        assert np.array_equal(part.arrays.matrix, manifest.arrays.matrix[:, wanted])

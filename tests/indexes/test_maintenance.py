"""What adaptive maintenance merges: only what is mostly dead or too many, and never more than the batch pays for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.indexes.maintenance import FileArrays, plan_adaptive_merges, refill_budget
from windrow.indexes.manifest import Manifest
from windrow.indexes.partitioners import Index
from windrow.indexes.segments import Segment, pack_histogram
from windrow.native import rows as native_rows

MEGABYTE = 1 << 20


def segment(number: int, file: str, size: int, slots: list[int], row: int = 0, column: int = 0) -> Segment:
    """A segment whose rows expire in the given slots."""
    return Segment(
        id=number,
        file=file,
        start=0,
        rows=len(slots),
        file_rows=len(slots),
        bytes=size,
        layout=0,
        row=row,
        column=column,
        first_slide=1,
        last_slide=1,
        seq_base=0,
        min_ts=0,
        max_ts=0,
        min_exp=min(slots),
        max_exp=max(slots),
        expiries=pack_histogram(*native_rows.histogram(np.array(slots, np.int64))),
    )


def files_of(segments: list[Segment], slide: int = 50) -> FileArrays:
    manifest = Manifest(segments)
    return FileArrays.of(segments, manifest.arrays, manifest.dead_rows(slide))


@given(
    slots=st.lists(st.integers(-3, 40), min_size=1, max_size=60),
    previous=st.integers(-5, 45),
    further=st.integers(0, 20),
)
def test_dead_rows_are_counted_as_one_would_count_them(slots: list[int], previous: int, further: int) -> None:
    one = segment(1, "a", 100, slots)
    slide = previous + further
    assert one.dead(slide) == sum(slot <= slide for slot in slots)
    assert one.dead(slide) - one.dead(previous) == sum(previous < slot <= slide for slot in slots)


def test_dead_rows_among_many_live_ones_are_left_to_leave_by_themselves() -> None:
    """Two files of ten are nearly dead: rewriting them would free a fifth of the row and cost an update its evenness."""
    live = [segment(n, f"live{n}", 8 * MEGABYTE, [90] * 100) for n in range(8)]
    rotten = [segment(10 + n, f"rotten{n}", 8 * MEGABYTE, [1] * 90 + [90] * 10) for n in range(2)]
    assert plan_adaptive_merges(files_of(live + rotten), Index(), 8 * MEGABYTE, 8 * MEGABYTE, 50) == []


def test_a_row_whose_bytes_are_mostly_dead_is_cleaned() -> None:
    live = [segment(1, "live", 8 * MEGABYTE, [90] * 100)]
    rotten = [segment(10 + n, f"rotten{n}", 8 * MEGABYTE, [1] * 90 + [90] * 10) for n in range(4)]
    merges = plan_adaptive_merges(files_of(live + rotten), Index(), 8 * MEGABYTE, 8 * MEGABYTE, 50)
    assert {s.file for merge in merges for s in merge.segments} == {s.file for s in rotten}


@given(
    files=st.lists(
        st.tuples(st.integers(1, 40 * MEGABYTE), st.lists(st.integers(1, 100), min_size=1, max_size=20)),
        min_size=1,
        max_size=60,
    ),
    batch=st.integers(1, 16 * MEGABYTE),
    bucket=st.integers(0, 64 * MEGABYTE),
)
def test_one_slide_never_rewrites_more_than_it_could_have_taken_in(
    files: list[tuple[int, list[int]]], batch: int, bucket: int
) -> None:
    index = Index(max_segments=2, dead_fraction=0.2)
    row = files_of([segment(n, f"f{n}", size, slots) for n, (size, slots) in enumerate(files)])
    saved = refill_budget(row, index, bucket, batch)
    merges = plan_adaptive_merges(row, index, saved, batch, 50)
    assert sum(merge.cost for merge in merges) <= max(batch, MEGABYTE)

"""What adaptive maintenance merges: only what is mostly dead or too many, and never more than the batch pays for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from windrow.indexes.maintenance import FileArrays, plan_adaptive_merges, plan_dead_merges, refill_budget
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


@given(
    files=st.lists(
        st.tuples(st.integers(1, 40 * MEGABYTE), st.lists(st.integers(1, 100), min_size=1, max_size=20)),
        min_size=1,
        max_size=60,
    ),
    batch=st.integers(1, 16 * MEGABYTE),
    spent=st.integers(0, 4 * MEGABYTE),
    fraction=st.sampled_from([0.1, 0.3, 0.5, 0.9]),
)
def test_dead_bytes_of_a_stream_are_rewritten_away_within_the_budget(
    files: list[tuple[int, list[int]]], batch: int, spent: int, fraction: float
) -> None:
    """Either few bytes are dead, or the deadest files are rewritten, as far as the slide pays, or none is dead enough."""
    stored = [segment(n, f"f{n}", size, slots, row=n) for n, (size, slots) in enumerate(files)]
    merges = plan_dead_merges(files_of(stored), Index(dead_fraction=fraction), batch, spent, 50)
    merged = {s.id for merge in merges for s in merge.segments}
    assert sum(merge.cost for merge in merges) <= max(0, max(batch, MEGABYTE) - spent)
    live = {
        s.id: s.bytes * sum(slot > 50 for slot in slots) / len(slots)
        for s, (_, slots) in zip(stored, files, strict=True)
    }
    share = {s.id: live[s.id] / s.bytes for s in stored}
    assert all(share[number] <= 0.751 for number in merged)
    dead = sum(s.bytes - live[s.id] for s in stored if s.id not in merged)
    allowed = max(256 << 10, min(1.0, fraction / (1 - fraction)) * (sum(live.values()) + batch))
    if sum(s.bytes - live[s.id] for s in stored) <= allowed - len(stored):
        assert not merged, "few bytes are dead"
    if dead > allowed + len(stored):
        rest = sorted((share[s.id], live[s.id], s.bytes) for s in stored if s.id not in merged and share[s.id] < 0.749)
        if rest and merged:
            dearest = max(live for _, live, _ in rest)
            costs = sum(live[number] for number in merged) + dearest
            assert costs > max(batch, MEGABYTE) - spent - len(stored), "it could have paid for more"


def test_what_is_in_no_segment_any_more_counts_as_dead() -> None:
    """A file of four cells, of which one is left: it is small to rewrite, and its whole file goes."""
    left = replace(segment(1, "old", MEGABYTE, [90] * 100), file_rows=400)
    live = [segment(2, "live", 8 * MEGABYTE, [90] * 100)]
    (merge,) = plan_dead_merges(files_of([left, *live]), Index(dead_fraction=0.1), MEGABYTE, 0, 50)
    assert merge.segments == (left,)

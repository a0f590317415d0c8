"""A batch update of the index, as a plan: where new segments go, which old ones leave, which are merged.

Nothing is read or written here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from windrow.indexes import maintenance
from windrow.indexes.maintenance import CellKey, Merge
from windrow.indexes.partitioners import Partitioner
from windrow.indexes.segments import Segment, seq_base


@dataclass
class Update:
    """What one slide changes in the index."""

    slide: int
    placed: list[Segment] = field(default_factory=list)
    """New segments, with their insertion row and sequence; some may at once be merged or dropped."""
    dropped: list[Segment] = field(default_factory=list)
    """Segments (old or new) whose last row is dead."""
    merges: list[Merge] = field(default_factory=list)
    touched: set[CellKey] = field(default_factory=set)
    inserted: int = 0
    expired: int = 0
    bucket: int = 0
    needed: int | None = None
    """Rows that expire after this time stay although they are dead; None: no dead row need stay."""

    def kept(self) -> list[Segment]:
        """New segments that stay as they are."""
        gone = {s.id for s in self.dropped} | {s.id for merge in self.merges for s in merge.segments}
        return [segment for segment in self.placed if segment.id not in gone]

    def replaced(self) -> list[Segment]:
        """Segments (old or new) that go, because they are dead or merged."""
        return [*self.dropped, *(s for merge in self.merges for s in merge.segments)]


def plan_update(
    slide: int,
    previous: int | None,
    now: int,
    ordinal: int,
    partitioners: Mapping[int, Partitioner],
    arrivals: Iterable[Sequence[Segment]],
    segments: Iterable[Segment],
    bucket: int,
    needed: tuple[int, int] | None = None,
) -> Update:
    """Plan the slide from `previous` to `slide`.

    Args:
        slide: The slot that the clock moves to.
        previous: The slot where it stands, None before the first slide.
        now: The end of `slide` in microseconds.
        ordinal: The number of this slide among the stream's committed ones.
        partitioners: Of each layout of the stream.
        arrivals: The segments of each spooled file, in arrival order.
        segments: What is in the cells now.
        bucket: Bytes saved up for merging.
        needed: A slot before `slide` and its end, where somebody who reads the stream has come to: what expires later
            is dead to every query, and stays all the same.
    """
    update = Update(slide, bucket=bucket, needed=None if needed is None else needed[1])
    gone_at = now if needed is None else needed[1]
    cells: dict[CellKey, list[Segment]] = defaultdict(list)
    before = slide - 1 if previous is None else previous
    expiring = {number: partitioner.expiring(slide, before) for number, partitioner in partitioners.items()}
    rows = {number: partitioner.row(slide) for number, partitioner in partitioners.items()}
    for segment in segments:
        if segment.column in expiring[segment.layout] and segment.min_exp <= now:
            _expire(update, cells, segment, before, gone_at)
        elif segment.max_exp <= gone_at:
            update.dropped.append(segment)  # it was needed when it died
        elif segment.row == rows[segment.layout] or segment.column in expiring[segment.layout]:
            cells[segment.cell].append(segment)
    fresh: dict[CellKey, list[Segment]] = defaultdict(list)
    for file in arrivals:
        base = seq_base(ordinal, update.inserted)
        for segment in file:
            placed = replace(segment, row=rows[segment.layout], first_slide=slide, last_slide=slide, seq_base=base)
            update.placed.append(placed)
            update.touched.add(placed.cell)
            update.inserted += placed.rows
            update.expired += placed.dead(slide)
            if placed.max_exp <= gone_at:
                update.dropped.append(placed)
            else:
                fresh[placed.cell].append(placed)
                cells[placed.cell].append(placed)
    for number, partitioner in partitioners.items():
        _maintain(
            update,
            partitioner,
            _of_layout(cells, number, update.touched),
            _of_layout(fresh, number, update.touched),
            slide if needed is None else needed[0],
        )
    return update


def _of_layout(
    cells: Mapping[CellKey, list[Segment]], layout: int, touched: set[CellKey]
) -> dict[CellKey, list[Segment]]:
    return {cell: segments for cell, segments in cells.items() if cell[0] == layout and cell in touched}


def _expire(update: Update, cells: dict[CellKey, list[Segment]], segment: Segment, before: int, gone_at: int) -> None:
    gone = segment.expired_between(before, update.slide)
    if gone:
        update.expired += gone
        update.touched.add(segment.cell)
    if segment.max_exp <= gone_at:
        update.dropped.append(segment)
    else:
        cells[segment.cell].append(segment)


def _maintain(
    update: Update,
    partitioner: Partitioner,
    cells: dict[CellKey, list[Segment]],
    fresh: dict[CellKey, list[Segment]],
    dead_at: int,
) -> None:
    index = partitioner.index
    if index.maintenance == "rebuild":
        update.merges += maintenance.rebuild(cells, dead_at)
        return
    merges = maintenance.small_arrivals(fresh, dead_at)
    if index.maintenance == "adaptive":
        busy = {s.id for merge in merges for s in merge.segments}
        rest = {cell: [s for s in segments if s.id not in busy] for cell, segments in cells.items()}
        batch = sum(s.bytes for segments in fresh.values() for s in segments)
        row = partitioner.row(update.slide)
        saved = maintenance.bucket_after(index, update.bucket, batch, cells, row)
        chosen = maintenance.adaptive(rest, row, dead_at, index, saved, batch)
        update.bucket = max(0, saved - sum(merge.cost for merge in chosen))
        merges += chosen
    update.merges += merges

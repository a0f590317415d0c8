"""A batch update of the index, as a plan: where new segments go, which old ones leave, which are merged.

Nothing is read or written here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from windrow.indexes import maintenance
from windrow.indexes.maintenance import CellKey, FileArrays, Merge
from windrow.indexes.manifest import Manifest, SegmentArrays
from windrow.indexes.partitioners import MAX_CELLS, Index, Partitioner
from windrow.indexes.row_model import Bools, Int64s
from windrow.indexes.segments import Segment, compute_seq_base


@dataclass
class UpdatePlan:
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
) -> UpdatePlan:
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
    update = UpdatePlan(slide, bucket=bucket, needed=None if needed is None else needed[1])
    gone_at = now if needed is None else needed[1]
    before = slide - 1 if previous is None else previous
    known = Manifest.of(segments)
    figures = known.figures
    rows = {number: partitioner.row(slide) for number, partitioner in partitioners.items()}
    losing = _losing(figures, partitioners, slide, before)
    dying = np.flatnonzero(losing & (figures.min_exp <= now))
    gone = known.expire(before, slide, dying)
    update.expired += int(gone.sum())
    update.touched |= _cells(figures, dying[gone > 0])
    stays = figures.max_exp > gone_at
    update.dropped += known.where(~stays)
    fresh: list[Segment] = []
    for file in arrivals:
        base = compute_seq_base(ordinal, update.inserted)
        for segment in file:
            placed = replace(segment, row=rows[segment.layout], first_slide=slide, last_slide=slide, seq_base=base)
            update.placed.append(placed)
            update.touched.add(placed.cell)
            update.inserted += placed.rows
            update.expired += placed.dead(slide)
            (update.dropped if placed.max_exp <= gone_at else fresh).append(placed)
    dead_at = slide if needed is None else needed[0]
    for number, partitioner in partitioners.items():
        own = stays & (figures.layout == number)
        new = [segment for segment in fresh if segment.layout == number]
        if partitioner.index.maintenance == "rebuild":
            own &= losing | (figures.row == rows[number])
            touched = (segment for segment in (*known.where(own), *new) if segment.cell in update.touched)
            update.merges += maintenance.plan_rebuild(maintenance.group_by_cell(touched), dead_at)
            continue
        merges = maintenance.plan_small_merges(new, dead_at)
        if partitioner.index.maintenance == "adaptive":
            columns = [cell[2] for cell in update.touched if cell[:2] == (number, rows[number])]
            own &= (figures.row == rows[number]) & np.isin(figures.column, columns, kind="sort")
            merges += _adapt(update, partitioner.index, known, own, new, merges, dead_at)
        update.merges += merges
    return update


def _losing(figures: SegmentArrays, partitioners: Mapping[int, Partitioner], slide: int, before: int) -> Bools:
    """Which segments lie in columns whose rows expire."""
    found = np.zeros(len(figures.id), bool)
    for number, partitioner in partitioners.items():
        columns = list(partitioner.expiring(slide, before))
        found |= (figures.layout == number) & np.isin(figures.column, columns, kind="sort")
    return found


def _cells(figures: SegmentArrays, places: Int64s) -> set[CellKey]:
    packed = (figures.layout[places] * MAX_CELLS + figures.row[places]) * MAX_CELLS + figures.column[places]
    cells = (divmod(cell, MAX_CELLS) for cell in np.unique(packed).tolist())
    return {(*divmod(above, MAX_CELLS), column) for above, column in cells}


def _adapt(
    update: UpdatePlan,
    index: Index,
    known: Manifest,
    own: Bools,
    new: Sequence[Segment],
    merges: list[Merge],
    dead_at: int,
) -> list[Merge]:
    """What adaptive maintenance merges in the insertion row, besides `merges` of what came in; pays for it."""

    def files(arrived: Manifest) -> FileArrays:
        figures = known.figures.where(own).then(arrived.figures)
        dead = np.concatenate((known.dead(dead_at)[own], arrived.dead(dead_at)))
        return FileArrays.of([*known.where(own), *arrived], figures, dead)

    every = files(Manifest(new))
    batch = sum(segment.bytes for segment in new)
    saved = maintenance.refill_budget(every, index, update.bucket, batch)
    busy = {segment.id for merge in merges for segment in merge.segments}
    rest = files(Manifest(segment for segment in new if segment.id not in busy)) if busy else every
    chosen = maintenance.plan_adaptive_merges(rest, index, saved, batch, dead_at)
    update.bucket = max(0, saved - sum(merge.cost for merge in chosen))
    return chosen

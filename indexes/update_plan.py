"""A batch update of the index, as a plan: where new segments go, which old ones leave, which are merged.

Nothing is read or written here, so that the advisor can run the same code over segments that do not exist.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from msgspec.structs import replace

from windrow.indexes import maintenance
from windrow.indexes.end_overrides import can_merge, must_rewrite
from windrow.indexes.maintenance import CellKey, FileArrays, Merge
from windrow.indexes.manifest import DeadRows, Manifest, SegmentArrays
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
    """Bytes saved up for merging, after this slide."""
    needed: int | None = None
    """Rows that expire after this time stay although they are dead; None: no dead row need stay."""
    dead: DeadRows | None = None
    """Of the segments that were there before the slide: for the manifest after it."""
    ended: list[Segment] = field(default_factory=list)
    """Segments that stay but have new overrides."""

    def kept(self) -> list[Segment]:
        """New segments that stay as they are."""
        gone = {s.id for s in self.dropped} | {s.id for merge in self.merges for s in merge.segments}
        return [segment for segment in self.placed if segment.id not in gone]

    def replaced(self) -> list[Segment]:
        """Segments (old or new) that leave, because they are dead or merged."""
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
    spans: Sequence[int] = (),
    ended: Collection[int] = (),
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
        needed: A slot before `slide` and its end, up to which a reader of the stream has come: rows that expire later
            are dead to every query, but must stay for it.
        spans: Of each spooled file how many rows it once had, if some were erased since; else 0.
        ended: Numbers of segments of which this slide ends rows sooner than is stored with them.
    """
    plan = UpdatePlan(slide, bucket=bucket, needed=None if needed is None else needed[1])
    gone_at = now if needed is None else needed[1]
    before = slide - 1 if previous is None else previous
    manifest = Manifest.of(segments)
    arrays = manifest.arrays
    rows = {number: partitioner.row(slide) for number, partitioner in partitioners.items()}
    losing = _in_expiring_columns(arrays, partitioners, slide, before)
    if ended:
        losing |= np.isin(arrays.id, np.fromiter(ended, np.int64, len(ended)), kind="sort")
    dying = np.flatnonzero(losing & (arrays.min_exp <= now))
    expired, plan.dead = manifest.expire(before, slide, dying)
    plan.expired += int(expired.sum())
    plan.touched |= _cells(arrays, dying[expired > 0])
    dead_at = slide if needed is None else needed[0]
    stays = arrays.max_exp > gone_at
    if manifest.ended:
        wholly_dead = [segment.id for segment in manifest.ended if segment.dead(dead_at) == segment.rows]
        stays &= ~np.isin(arrays.id, wholly_dead)
    plan.dropped += manifest.filter(~stays)
    fresh = _place_arrivals(plan, arrivals, spans, rows, ordinal, gone_at)
    dead_rows = plan.dead.counts if plan.dead is not None and plan.dead.slide == dead_at else None
    stored, crowded = stays, list[Segment]()
    if manifest.ended:
        fixed = [segment.id for segment in manifest.ended if not can_merge(segment, gone_at)]
        stored = stays & ~np.isin(arrays.id, fixed)
        crowded = [s for s in compress(manifest, stored.tolist()) if must_rewrite(s, gone_at)]
    for number, partitioner in partitioners.items():
        chosen = stored & (arrays.layout == number)
        new = [segment for segment in fresh if segment.layout == number]
        if partitioner.index.maintenance == "rebuild":
            chosen &= losing | (arrays.row == rows[number])
            touched = (segment for segment in (*manifest.filter(chosen), *new) if segment.cell in plan.touched)
            plan.merges += maintenance.plan_rebuild(maintenance.group_by_cell(touched), dead_at)
            continue
        merges = maintenance.plan_small_merges(new, dead_at)
        if partitioner.index.maintenance == "adaptive":
            if dead_rows is None:
                dead_rows = manifest.dead_rows(dead_at)
            all_stored = chosen
            columns = [cell[2] for cell in plan.touched if cell[:2] == (number, rows[number])]
            chosen = chosen & (arrays.row == rows[number]) & np.isin(arrays.column, columns, kind="sort")
            merges += _plan_adaptive(plan, partitioner.index, manifest, chosen, new, merges, dead_at, dead_rows)
            merges += _plan_removal(partitioner.index, manifest, all_stored, new, merges, dead_at, dead_rows)
        plan.merges += merges
    busy = {segment.id for merge in plan.merges for segment in merge.segments}
    plan.merges += maintenance.merge_each_cell((segment for segment in crowded if segment.id not in busy), dead_at)
    replaced = {segment.id for segment in plan.replaced()}
    plan.ended = [segment for segment in manifest.ended if segment.id in ended and segment.id not in replaced]
    return plan


def _place_arrivals(
    plan: UpdatePlan,
    arrivals: Iterable[Sequence[Segment]],
    spans: Sequence[int],
    rows: Mapping[int, int],
    ordinal: int,
    gone_at: int,
) -> list[Segment]:
    """Give new segments their insertion row and sequence; gives those that are not dead already."""
    fresh: list[Segment] = []
    slide, before = plan.slide, 0
    for number, file in enumerate(arrivals):
        base = compute_seq_base(ordinal, before)
        before += max(spans[number] if spans else 0, sum(segment.rows for segment in file))
        for segment in file:
            placed = replace(segment, row=rows[segment.layout], first_slide=slide, last_slide=slide, seq_base=base)
            plan.placed.append(placed)
            plan.touched.add(placed.cell)
            plan.inserted += placed.rows
            plan.expired += placed.dead(slide)
            (plan.dropped if placed.max_exp <= gone_at else fresh).append(placed)
    return fresh


def _in_expiring_columns(
    arrays: SegmentArrays, partitioners: Mapping[int, Partitioner], slide: int, before: int
) -> Bools:
    """Which segments lie in columns whose rows expire."""
    mask = np.zeros(len(arrays.id), bool)
    for number, partitioner in partitioners.items():
        columns = list(partitioner.expiring(slide, before))
        mask |= (arrays.layout == number) & np.isin(arrays.column, columns, kind="sort")
    return mask


def _cells(arrays: SegmentArrays, positions: Int64s) -> set[CellKey]:
    packed = (arrays.layout[positions] * MAX_CELLS + arrays.row[positions]) * MAX_CELLS + arrays.column[positions]
    cells = (divmod(cell, MAX_CELLS) for cell in np.unique(packed).tolist())
    return {(*divmod(above, MAX_CELLS), column) for above, column in cells}


def _plan_adaptive(
    plan: UpdatePlan,
    index: Index,
    manifest: Manifest,
    chosen: Bools,
    new: Sequence[Segment],
    merges: list[Merge],
    dead_at: int,
    dead_rows: Int64s,
) -> list[Merge]:
    """What adaptive maintenance merges in the insertion row, besides `merges` of new segments; pays for it."""

    def files(arrived: Manifest) -> FileArrays:
        arrays = manifest.arrays.filter(chosen).concat(arrived.arrays)
        dead = np.concatenate((dead_rows[chosen], arrived.dead_rows(dead_at)))
        return FileArrays.of([*manifest.filter(chosen), *arrived], arrays, dead)

    all_files = files(Manifest(new))
    batch_bytes = sum(segment.bytes for segment in new)
    budget = maintenance.refill_budget(all_files, index, plan.bucket, batch_bytes)
    busy = {segment.id for merge in merges for segment in merge.segments}
    rest = files(Manifest(segment for segment in new if segment.id not in busy)) if busy else all_files
    adaptive = maintenance.plan_adaptive_merges(rest, index, budget, batch_bytes, dead_at)
    plan.bucket = max(0, budget - sum(merge.cost for merge in adaptive))
    return adaptive


def _plan_removal(
    index: Index,
    manifest: Manifest,
    stored: Bools,
    new: Sequence[Segment],
    merges: Sequence[Merge],
    dead_at: int,
    dead_rows: Int64s,
) -> list[Merge]:
    """What adaptive maintenance merges of the whole layout to be rid of dead rows, besides other `merges`."""
    arrays = manifest.arrays
    busy = {segment.file for merge in merges for segment in merge.segments}
    if busy:
        stored = stored & np.array([segment.file not in busy for segment in manifest], bool)
    if not stored.any():
        return []
    files = FileArrays.of(manifest.filter(stored), arrays.filter(stored), dead_rows[stored])
    spent = sum(merge.cost for merge in merges)
    return maintenance.plan_dead_merges(files, index, sum(segment.bytes for segment in new), spent, dead_at)

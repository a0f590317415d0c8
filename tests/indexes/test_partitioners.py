"""Which cell a row belongs to: every layout against the words of the thesis, by brute force and by closed forms.

expiry column      0       1       2       3            slide j takes rows into row  j mod G
row 0          ┌───────┬───────┬───────┬───────┐        and lets rows go from column j mod E
row 1          │       │       │   ×   │       │
row 2          │   ×   │   ×   │   ×   │   ×   │        G + E − 1 of G·E sub-indices are touched
row 3          └───────┴───────┴───×───┴───────┘
"""

import collections
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.indexes.partitioners import NEVER, Index, Partitioner

NAMES = ("round-robin", "random", "chronological", "wave-insertion", "wave-expiry")
GRIDS = [(1, 1), (2, 3), (4, 4), (5, 2), (3, 7)]


def layouts(lifetime_slots: int | None = 24) -> list[Partitioner]:
    made = []
    for name, (rows, columns) in itertools.product(NAMES, GRIDS):
        index = Index(name, rows) if name.startswith("wave") else Index(name, rows, columns, seed=7)
        made.append(Partitioner(index, lifetime_slots))
    return made


def ids(partitioner: Partitioner) -> str:
    return str(partitioner.index)


@pytest.mark.parametrize("partitioner", layouts(), ids=ids)
def test_every_cell_is_inside_the_grid_and_depends_on_nothing_but_its_own_slot(partitioner: Partitioner) -> None:
    """Separable: the insertion slot gives the row, the expiry slot the column; a file cut at append relies on it."""
    again = Partitioner(partitioner.index, 24)
    for slot in range(-50, 300):
        assert 0 <= partitioner.row(slot) < partitioner.rows
        assert 0 <= partitioner.column(slot) < partitioner.columns
        assert (again.row(slot), again.column(slot)) == (partitioner.row(slot), partitioner.column(slot))


@pytest.mark.parametrize("partitioner", layouts() + layouts(None), ids=ids)
def test_columns_of_an_array_are_the_columns_of_its_slots(partitioner: Partitioner) -> None:
    slots = np.array([*range(-70, 400), 29_453_810, 2**40, -(2**40), NEVER, NEVER - 1], np.int64)
    assert partitioner.columns_of(slots).tolist() == [partitioner.column(int(slot)) for slot in slots]
    assert partitioner.columns_of(slots[:0]).tolist() == []


@pytest.mark.parametrize("grid", GRIDS)
def test_round_robin_takes_slot_numbers_modulo_the_grid(grid: tuple[int, int]) -> None:
    rows, columns = grid
    partitioner = Partitioner(Index("round-robin", rows, columns), 24)
    for slot in range(-40, 100):
        assert (partitioner.row(slot), partitioner.column(slot)) == (slot % rows, slot % columns)


@pytest.mark.parametrize("name", ["round-robin", "random"])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_slide_of_the_doubly_partitioned_index_touches_one_row_and_one_column(
    name: str, grid: tuple[int, int]
) -> None:
    rows, columns = grid
    partitioner = Partitioner(Index(name, rows, columns), 24)
    for slide in range(1, 200):
        assert len(partitioner.touched(slide)) == rows + columns - 1


@pytest.mark.parametrize("partitioner", layouts(), ids=ids)
@given(data=st.data())
def test_touched_cells_are_those_that_rows_come_into_or_may_leave(
    partitioner: Partitioner, data: st.DataObject
) -> None:
    """Against brute force: one row of every (insertion slot, expiry slot), slides of one slot and of many."""
    previous = data.draw(st.integers(-60, 200))
    slide = previous + data.draw(st.integers(1, 130))
    comes = {(partitioner.row(slide), partitioner.column(exp)) for exp in range(slide + 1, slide + 200)}
    rows = {partitioner.row(inserted) for inserted in range(slide - 400, slide)}
    goes = set(itertools.product(rows, {partitioner.column(exp) for exp in range(previous + 1, slide + 1)}))
    touched = partitioner.touched(slide, previous)
    assert goes <= touched, "a cell that rows leave must be known as touched"
    row_of_slide = {(partitioner.row(slide), e) for e in range(partitioner.columns)}
    assert touched == goes | comes | row_of_slide
    assert partitioner.expiring(slide, previous) == {e for _, e in goes}


def test_the_chronological_layout_is_the_thesiss_figure_with_its_erratum_corrected() -> None:
    """Figure 4.1: S = 16, Δ = 2, a 2 × 2 grid, so p = S/Δ = 8 slots, four to a range; drawn at time 16, slot 8.

        insertion time      1 … 8        9 … 16        expiry time     17 … 24       25 … 32
        insertion slot      1 … 4        5 … 8         expiry slot     9 … 12        13 … 16
                              row 0        row 1                        column 0      column 1

    Algorithm 1 line 8 prints expiry ranges that begin at τ + S + … (erratum E3): they begin at τ and stride by E; the
    next ones are 33 … 40 (slots 17 … 20, where the first range was) and 41 … 48.
    """
    partitioner = Partitioner(Index("chronological", 2, 2), 8)
    assert [partitioner.row(slot) for slot in range(1, 17)] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    assert [partitioner.column(slot) for slot in range(9, 25)] == [0] * 4 + [1] * 4 + [0] * 4 + [1] * 4
    for slide in range(8, 80):
        assert partitioner.expiring(slide + 1, slide) == {partitioner.column(slide + 1)}, "one range shrinks at a time"
        assert len({partitioner.column(x) for x in range(slide + 1, slide + 9)}) == 2


@pytest.mark.parametrize(("sub_indices", "slots"), [(3, 12), (4, 16), (5, 20)])
def test_waves_put_consecutive_slots_together_in_one_dimension(sub_indices: int, slots: int) -> None:
    insertion = Partitioner(Index("wave-insertion", sub_indices), slots)
    expiry = Partitioner(Index("wave-expiry", sub_indices), slots)
    assert insertion.index.grid == (sub_indices, 1)
    assert expiry.index.grid == (1, sub_indices)
    for partitioner, part in ((insertion, insertion.row), (expiry, expiry.column)):
        del partitioner
        runs = [len(list(group)) for _, group in itertools.groupby(part(slot) for slot in range(1, slots * 3 + 1))]
        assert set(runs) == {slots // sub_indices}
    assert {insertion.column(slot) for slot in range(100)} == {0}
    assert {expiry.row(slot) for slot in range(100)} == {0}


def sizes(partitioner: Partitioner, lifetime: int, slide: int) -> collections.Counter:
    """Rows per cell after a slide, one of each (insertion slot, expiry slot) that is alive: p(p+1)/2 of them."""
    return collections.Counter(
        (partitioner.row(inserted), partitioner.column(exp))
        for inserted in range(slide - lifetime + 1, slide + 1)
        for exp in range(slide + 1, inserted + lifetime + 1)
    )


def spread(partitioner: Partitioner, lifetime: int) -> float:
    """The thesis's "variance": squared deviations summed over all sub-indices, averaged over slides."""
    cells = [(g, e) for g in range(partitioner.rows) for e in range(partitioner.columns)]
    mean = lifetime * (lifetime + 1) / 2 / len(cells)
    slides = range(10 * lifetime, 12 * lifetime)
    sums = []
    for slide in slides:
        count = sizes(partitioner, lifetime, slide)
        assert count.total() == lifetime * (lifetime + 1) // 2
        sums.append(sum((count[cell] - mean) ** 2 for cell in cells))
    return sum(sums) / len(sums)


THEOREM = [(2, 4), (2, 8), (3, 9), (4, 16), (5, 30)]
"""(q, p): a q × q grid, a lifetime of p slots."""


@pytest.mark.parametrize(
    ("q", "p", "value"), [(q, p, v) for (q, p), v in zip(THEOREM, (3, 12, 18, 60, 216), strict=True)]
)
def test_round_robin_sub_indices_are_as_even_as_theorem_4_1_corrected_says(q: int, p: int, value: int) -> None:
    closed = p * p / 4 * (1 - 1 / (q * q))
    assert closed == value
    assert spread(Partitioner(Index("round-robin", q, q), p), p) == pytest.approx(closed, rel=1e-12)


@pytest.mark.parametrize(
    ("q", "p", "value"), [(q, p, v) for (q, p), v in zip(THEOREM, (5, 52, 78, 540, 4836), strict=True)]
)
def test_chronological_sub_indices_are_as_uneven_as_theorem_4_1_corrected_says(q: int, p: int, value: int) -> None:
    m = p // q
    closed = m * m * (q - 1) * (3 * m * m * q - 4 * m * m + 7) / 12
    assert closed == value
    assert spread(Partitioner(Index("chronological", q, q), p), p) == pytest.approx(closed, rel=1e-12)


def test_the_random_layout_gives_every_cell_its_turn_and_follows_its_seed() -> None:
    """Each run of G slots is a permutation of the rows: balanced like round-robin, without its fixed rhythm."""
    partitioner = Partitioner(Index("random", 4, 5, seed=1), 20)
    for cycle in range(-5, 50):
        assert sorted(partitioner.row(cycle * 4 + i) for i in range(4)) == [0, 1, 2, 3]
        assert sorted(partitioner.column(cycle * 5 + i) for i in range(5)) == [0, 1, 2, 3, 4]
    orders = {tuple(partitioner.row(cycle * 4 + i) for i in range(4)) for cycle in range(200)}
    assert len(orders) == 24, "all orders occur"
    other = Partitioner(Index("random", 4, 5, seed=2), 20)
    assert [partitioner.row(i) for i in range(40)] != [other.row(i) for i in range(40)]
    assert [partitioner.row(i) for i in range(40)] == [Partitioner(partitioner.index, None).row(i) for i in range(40)]


def test_rows_that_never_expire_have_one_column() -> None:
    for partitioner in layouts(None):
        assert partitioner.column(NEVER) == 0
        assert 0 not in partitioner.expiring(5, 4) or partitioner.column(5) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Index("spiral"), "'spiral' is unknown; choose one of round-robin"),
        (lambda: Index("round-robin", 4, 4, maintenance="never"), "maintenance 'never' is unknown"),
        (lambda: Index("round-robin", 0, 4), "out of bounds"),
        (lambda: Index("round-robin", -1, 4), "out of bounds"),
        (lambda: Index("round-robin", 100, 100), "4096 cells"),
        (lambda: Index("wave-insertion", 4, 4), "one dimension"),
        (lambda: Index("wave-expiry", 4, 4), "one dimension"),
        (lambda: Index(max_segments=1), "max_segments >= 2"),
        (lambda: Index(dead_fraction=0.0), "dead_fraction"),
        (lambda: Index(dead_fraction=1.5), "dead_fraction"),
        (lambda: Index(merge_budget=-1.0), "merge_budget"),
        (lambda: Index(row_group_bytes=1), "row_group_bytes"),
        (lambda: Index("round-robin", 2.5, 2), "whole number"),
        (lambda: Index("round-robin", "4", 4), "whole number"),
    ],
)  # fmt: skip
def test_an_index_that_cannot_work_is_refused_in_words(make, words: str) -> None:
    with pytest.raises(windrow.DefinitionError, match=words) as error:
        make()
    assert isinstance(error.value, ValueError)


def test_an_index_tells_what_it_is() -> None:
    assert str(Index("round-robin", 4, 2)) == "round-robin 4x2 adaptive"
    assert Index().grid == (4, 4)
    assert Index("round-robin", 3).grid == (3, 3)
    assert Index("wave-expiry", 1, 5).grid == (1, 5)

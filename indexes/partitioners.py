"""Which cell a row belongs to: the layouts of the index, as declared (`Index`) and as computed (`Partitioner`).

Every layout is separable: the insertion slot alone gives the cell's row, the expiry slot alone its column. So a file
can be split by expiry column at append, and given its row at the slide without being written again.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from windrow.errors import DefinitionError

Cell = tuple[int, int]
Slots = npt.NDArray[np.int64]

LAYOUT_NAMES = ("round-robin", "random", "chronological", "wave-insertion", "wave-expiry", "append-only")
MAINTENANCE_NAMES = ("rebuild", "norebuild", "adaptive")
NEVER = (1 << 63) - 1
MAX_CELLS = 4096
"""Of a grid; `update_plan` packs cell numbers by it."""


@dataclass(frozen=True)
class Index:
    """A layout and how it is maintained.

    Args:
        name: One of `LAYOUT_NAMES`. For the waves, the first number is how many sub-indices there are.
        rows: Partitions of insertion time, G.
        columns: Partitions of expiry time, E.
        maintenance: ``rebuild``, ``norebuild`` or ``adaptive``.
        max_segments: Adaptive: an insertion row with more files than this is merged, some at a time; a file of
            more than 256 KB counts less, down to a sixteenth.
        dead_fraction: Adaptive: files with a larger share of dead rows are merged, where half of all bytes are dead;
            and the share of its files' bytes that dead rows of a stream may take, if it is below a half.
        merge_budget: Adaptive: bytes that may be rewritten per byte taken in.
        row_group_bytes: Aimed size of a Parquet row group.
        seed: Of the random layout.
    """

    name: str = "round-robin"
    rows: int | None = None
    columns: int | None = None
    maintenance: str = "adaptive"
    max_segments: int = 64
    dead_fraction: float = 0.75
    merge_budget: float = 0.25
    row_group_bytes: int = 1 << 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.name not in LAYOUT_NAMES:
            raise DefinitionError(f"index {self.name!r} is unknown; choose one of {', '.join(LAYOUT_NAMES[:-1])}")
        if self.maintenance not in MAINTENANCE_NAMES:
            raise DefinitionError(
                f"maintenance {self.maintenance!r} is unknown; choose one of {', '.join(MAINTENANCE_NAMES)}"
            )
        for count in (self.rows, self.columns):
            if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
                raise DefinitionError(f"an index has a whole number of rows and columns, not {count!r}")
        rows, columns = self._grid()
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "columns", columns)
        if min(rows, columns) < 1 or rows * columns > MAX_CELLS:
            raise DefinitionError(f"index of {rows} x {columns} cells is out of bounds; use 1 to {MAX_CELLS} cells")
        if (
            self.max_segments < 2
            or not 0 < self.dead_fraction <= 1
            or self.merge_budget < 0
            or self.row_group_bytes < 4096
        ):
            raise DefinitionError(
                "index limits are out of bounds: max_segments >= 2, 0 < dead_fraction <= 1, merge_budget >= 0, "
                f"row_group_bytes >= 4096; got {self.max_segments}, {self.dead_fraction}, {self.merge_budget}, "
                f"{self.row_group_bytes}"
            )

    def _grid(self) -> Cell:
        if self.name == "append-only":
            return 1, 1
        if self.name == "wave-insertion":
            self._check_flat(self.columns)
            return _value_or(self.rows, 4), 1
        if self.name == "wave-expiry":
            if self.columns is None:
                return 1, _value_or(self.rows, 4)
            self._check_flat(self.rows)
            return 1, self.columns
        return _value_or(self.rows, 4), _value_or(self.columns, _value_or(self.rows, 4))

    def _check_flat(self, other: int | None) -> None:
        if other not in (None, 1):
            raise DefinitionError(
                f"a {self.name} index has one dimension; write Index({self.name!r}, n), "
                f"not {self.rows} x {self.columns}"
            )

    @property
    def grid(self) -> Cell:
        """Numbers of rows and columns, (G, E)."""
        assert self.rows is not None and self.columns is not None
        return self.rows, self.columns

    def __str__(self) -> str:
        rows, columns = self.grid
        return f"{self.name} {rows}x{columns} {self.maintenance}"


def _value_or(value: int | None, default: int) -> int:
    return default if value is None else value


class Partitioner:
    """The cell of each (insertion slot, expiry slot) for one `Index` and one stream.

    Args:
        index: The declared layout.
        lifetime_slots: Slots that the longest-lived row spans (S/Δ), None if rows never expire.
    """

    def __init__(self, index: Index, lifetime_slots: int | None) -> None:
        self.index = index
        self.rows, self.columns = index.grid
        span = lifetime_slots or 16 * max(self.rows, self.columns)
        chronological = index.name in ("chronological", "wave-insertion", "wave-expiry")
        # Slots count from 1, so a range of n slots is 1 … n, n+1 … 2n (see docs/references.md, [1], figure 4.1).
        self._first = 1 if chronological else 0
        self._row_span = max(1, -(-span // self.rows)) if chronological else 1
        self._column_span = max(1, -(-span // self.columns)) if chronological else 1

    @property
    def column_span(self) -> int:
        """How many expiry slots in a row share a column."""
        return self._column_span

    def row(self, insertion_slot: int) -> int:
        """The cell row g of everything that the slide to `insertion_slot` takes in."""
        cycle, position = divmod((insertion_slot - self._first) // self._row_span, self.rows)
        return self._permutation(cycle, self.rows, "g")[position] if self.index.name == "random" else position

    def column(self, expiry_slot: int) -> int:
        """The cell column e of a row that expires in `expiry_slot`."""
        if expiry_slot >= NEVER:
            return 0
        cycle, position = divmod((expiry_slot - self._first) // self._column_span, self.columns)
        return self._permutation(cycle, self.columns, "e")[position] if self.index.name == "random" else position

    def columns_of(self, expiry_slots: Slots) -> npt.NDArray[np.uint16]:
        """`column` for an array of slots."""
        if self.columns == 1:
            return np.zeros(len(expiry_slots), np.uint16)
        shifted = expiry_slots - self._first if self._first else expiry_slots
        spans = shifted // self._column_span if self._column_span > 1 else shifted
        columns = spans % self.columns
        if self.index.name == "random":
            cycles = spans // self.columns
            distinct, inverse = np.unique(cycles, return_inverse=True)
            table = np.array([self._permutation(int(c), self.columns, "e") for c in distinct], np.int64).reshape(
                -1, self.columns
            )
            columns = table[inverse, columns]
        columns[expiry_slots == NEVER] = 0
        return columns.astype(np.uint16)

    def touched(self, slide: int, previous: int | None = None) -> frozenset[Cell]:
        """The cells that a slide from `previous` (by default one slot back) to `slide` may change."""
        first = slide - 1 if previous is None else previous
        inserted = {(self.row(slide), e) for e in range(self.columns)}
        return frozenset(inserted | {(g, e) for e in self.expiring(slide, first) for g in range(self.rows)})

    def expiring(self, slide: int, previous: int) -> frozenset[int]:
        """The columns whose rows expire between two slides."""
        if slide - previous >= self._column_span * self.columns * 2:
            return frozenset(range(self.columns))
        step = self._column_span
        slots = {*range(previous + 1, slide + 1, step), slide}
        return frozenset(self.column(slot) for slot in slots)

    def _permutation(self, cycle: int, size: int, axis: str) -> tuple[int, ...]:
        return _shuffled(self.index.seed, cycle, size, axis)


@lru_cache(maxsize=4096)
def _shuffled(seed: int, cycle: int, size: int, axis: str) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"{seed}/{axis}/{cycle}").shuffle(order)
    return tuple(order)

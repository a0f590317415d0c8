"""The workload: Arrow rows made from a seed alone, so that every system in every run gets the same rows."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

ORIGIN = 1_704_067_200_000_000
"""2024-01-01 UTC in microseconds: in the past for every wall clock, so that no row is ahead of it."""
_FIXED_BYTES = 24


@dataclass(frozen=True)
class Batch:
    """The rows that arrive in one slot, the clock after them, and the question that is asked then."""

    slot: int
    now: int
    rows: pa.Table
    key: int


@dataclass(frozen=True)
class SlidingRows:
    """The workload of section 4.4 of [1] (docs/references.md), in its steady state.

    Rows of one size arrive evenly; each lives for a time drawn uniformly up to S, half of S on average. So a window of
    `window_rows` needs ``2 * window_rows / slots`` rows in each slot of S/`slots`.

    Args:
        window_rows: Live rows at any time.
        slots: S in slots; one slot is one update.
        keys: Distinct search keys.
        seed: Of all random choices.
        delta: Length of a slot in microseconds.
        row_bytes: Size of a row: key, two times, and the payload that fills it up.
        fluctuation: The rate of a slot is drawn between 1 and this many times the least; the mean stays.
    """

    window_rows: int
    slots: int = 36
    keys: int = 100
    seed: int = 20260
    delta: int = 60_000_000
    row_bytes: int = 1000
    fluctuation: float = 1.0

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        time_type = pa.timestamp("us")
        return pa.schema([("key", pa.int64()), ("ts", time_type), ("exp", time_type), ("payload", pa.string())])

    @property
    def max_lifetime(self) -> int:
        """S in microseconds."""
        return self.slots * self.delta

    @property
    def batch_rows(self) -> int:
        """Rows of one update, on average."""
        return round(2 * self.window_rows / self.slots)

    @property
    def batch_bytes(self) -> int:
        """Bytes of one update."""
        return self.batch_rows * self.row_bytes

    def batch_end(self, slot: int) -> int:
        """The clock at the end of a slot."""
        return ORIGIN + slot * self.delta

    def batch(self, slot: int) -> Batch:
        """What arrives in slot `slot`, counted from 1."""
        chance = np.random.default_rng([self.seed, slot])
        count = self.batch_rows
        if self.fluctuation != 1.0:
            count = round(count * chance.uniform(1, self.fluctuation) * 2 / (1 + self.fluctuation))
        start = ORIGIN + (slot - 1) * self.delta
        ts = np.sort(start + chance.integers(1, self.delta, count, endpoint=True))
        exp = ts + chance.integers(1, self.max_lifetime, count, endpoint=True)
        key = chance.integers(0, self.keys, count)
        columns = [pa.array(key), _times(ts), _times(exp), payload(chance, count, self.row_bytes - _FIXED_BYTES)]
        rows = pa.table(columns, schema=self.schema)
        return Batch(slot, self.batch_end(slot), rows, int(key[chance.integers(count)]))


def payload(chance: np.random.Generator, count: int, width: int) -> pa.Array:
    """Strings of random printable characters, which no fast codec makes smaller."""
    text = chance.integers(32, 127, count * width, dtype=np.uint8)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def _times(values: np.ndarray) -> pa.Array:
    return pa.array(values).view(pa.timestamp("us"))

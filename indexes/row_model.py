"""What the index needs to know of a stream's rows: their event time, their expiry and their search key.

`RowModel` turns Arrow columns into the int64 microsecond arrays and encoded keys that the kernels work on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.errors import SearchKeyError
from windrow.indexes.arrow_arrays import compute as pc
from windrow.indexes.arrow_arrays import to_arrow, to_numpy
from windrow.native import key_encoding as native_keys
from windrow.native import rows as native_rows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

SEQ = "_seq"
"""The hidden column that keeps arrival order."""
NEVER = (1 << 63) - 1
"""The expiry of rows that never expire."""
_LAST_TIME = NEVER - 1
_HALF = 1 << 63
_INTEGERS = {
    pa.int8().id: (-(1 << 7), (1 << 7) - 1), pa.int16().id: (-(1 << 15), (1 << 15) - 1),
    pa.int32().id: (-(1 << 31), (1 << 31) - 1), pa.int64().id: (-_HALF, _HALF - 1),
    pa.uint8().id: (0, (1 << 8) - 1), pa.uint16().id: (0, (1 << 16) - 1),
    pa.uint32().id: (0, (1 << 32) - 1), pa.uint64().id: (0, (1 << 64) - 1),
}  # fmt: skip
"""Integer types by Arrow's number for them, with the least and the greatest value."""
_TEXTS = frozenset((pa.string().id, pa.large_string().id))
_SCALE = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class RowModel:
    """How to read time, expiry and key from a stream's rows.

    Args:
        time: Event-time column.
        key: Search key columns.
        expires: Expiry column, None when `lifetime` is fixed or rows never expire.
        lifetime: Fixed lifetime in microseconds.
        origin: τ₀.
        delta: Δ, the slide.
        floor: Rows at or before this event time are gone for good: they had expired when a lifetime was lengthened.
    """

    time: str
    key: tuple[str, ...]
    expires: str | None
    lifetime: int | None
    origin: int
    delta: int
    floor: int | None = None

    def times(self, rows: pa.RecordBatch | pa.Table) -> tuple[Int64s, Bools | None]:
        """Event times in microseconds, and which are valid (None: all)."""
        return to_microseconds(rows.column(self.time))

    def expiries(self, rows: pa.RecordBatch | pa.Table, ts: Int64s) -> tuple[Int64s, Bools | None]:
        """Expiry times in microseconds, and which are valid (None: all)."""
        if self.expires is not None:
            return to_microseconds(rows.column(self.expires))
        if self.lifetime is not None:
            exp = np.where(ts >= _LAST_TIME - self.lifetime, _LAST_TIME, ts + self.lifetime)
        else:
            exp = np.full(len(ts), NEVER, np.int64)
        return exp if self.floor is None else np.where(ts <= self.floor, ts + 1, exp), None

    def find_expiry_cutoff(self, now: int) -> int | None:
        """The event time at or before which rows are dead at `now`; None if none are, or if that differs by row."""
        bounds = [] if self.lifetime is None else [now - self.lifetime]
        bounds += [] if self.floor is None else [self.floor]
        return max(bounds, default=None) if self.expires is None else None

    def with_key(self, key: tuple[str, ...]) -> "RowModel":
        """The same rows under another search key."""
        return self if key == self.key else replace(self, key=key)

    def encoded_keys(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """Order-preserving bytes of the search key of each row."""
        return native_keys.encode([_flat(rows.column(name)) for name in self.key])

    def slots(self, times: Int64s) -> Int64s:
        """The slot of each time."""
        return native_rows.slots(times, self.origin, self.delta)

    def slot_end(self, slot: int) -> int:
        """The end of a slot, in microseconds."""
        return self.origin + slot * self.delta

    def slot_of(self, time: int) -> int:
        """The slot that holds `time`."""
        return -(-(time - self.origin) // self.delta)

    def last_slot(self, time: int) -> int:
        """The last slot that ends at or before `time`."""
        return (time - self.origin) // self.delta


def to_microseconds(column: pa.Array | pa.ChunkedArray) -> tuple[Int64s, Bools | None]:
    """Microseconds (rounded up) of a timestamp column, and which values are valid (None: all)."""
    array = _flat(column)
    valid = None
    if array.null_count:
        valid = to_numpy(array.is_valid())
    raw = to_numpy(array.view(pa.int64())) if valid is None else _filled(array)
    unit = array.type.unit
    if unit == "ns":
        return -(raw // -1000), valid
    scale = _SCALE[unit]
    if scale == 1:
        return raw, valid
    limit = _LAST_TIME // scale
    return np.where((raw >= limit) | (raw <= -limit), _LAST_TIME, raw * scale), valid


def _filled(array: pa.Array) -> Int64s:
    values = array.view(pa.int64())
    filled: Int64s = to_numpy(pc.coalesce(values, to_arrow(np.zeros(1, np.int64))[0]))
    return filled


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def encode_value(value: Any, kind: pa.DataType) -> bytes | None:
    """One integer or text as the kernel encodes it, without an array (point lookups of `bench sql`), or None."""
    if type(value) is int:
        limits = _INTEGERS.get(kind.id)
        if limits is None or not limits[0] <= value <= limits[1]:
            return None
        return b"\x01" + (value + _HALF if limits[0] else value).to_bytes(8, "big")
    if type(value) is str and kind.id in _TEXTS:
        try:
            return b"\x01" + value.encode().replace(b"\0", b"\0\xff") + b"\0\0"
        except UnicodeEncodeError:
            return None
    return None


def encode_key(values: Sequence[Any], types: Sequence[pa.DataType], names: Sequence[str]) -> bytes:
    """The encoded prefix of a search key given by the values of its first columns."""
    if len(values) > len(types):
        raise SearchKeyError(
            f"the search key has {len(types)} column(s) {', '.join(names)}, but {len(values)} values were given"
        )
    if len(types) == len(values) == 1 and (plain_one := encode_value(values[0], types[0])) is not None:
        return plain_one
    arrays = []
    for value, kind, name in zip(values, types, names, strict=False):
        try:
            plain = kind.value_type if pa.types.is_dictionary(kind) else kind
            array = pa.array([value], plain)
            if isinstance(value, float) and pa.types.is_integer(plain) and array[0].as_py() != value:
                raise ValueError(f"{value} would become {array[0]}")
            arrays.append(array)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError):
            raise SearchKeyError(f"search key column {name!r} is of type {kind}, which {value!r} is not") from None
    encoded: bytes = native_keys.encode(arrays)[0].as_py()
    return encoded

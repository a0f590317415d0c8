"""The rows of a synopsis node as bytes: whole numbers in as few bits as they need, everything else as an Arrow stream.

The groups that are whole numbers are one number together, and the rows are in its order, so that only differences are
kept. A column that equals an earlier one, as counts do where nothing is null, is kept once.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.native import bit_packing
from windrow.queries.engine import arrow_ipc

_PACKED = b"packed:"
"""Before the bytes of a node; nodes of earlier releases are Arrow streams, which begin with 255."""
_ARROW_COLUMNS = b"columns"
"""Where the schema of such a stream says which written column each column of the node is."""
_MAX_KEYS = 1 << 62
_COMPRESSED_BYTES = 1024
"""From so many bytes on, what is no whole number is compressed. Not measured."""
_ZSTD = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)

Int64s = npt.NDArray[np.int64]


class _Column(msgspec.Struct, array_like=True, frozen=True, omit_defaults=True):
    """How a column is kept: by the numbers of groups, by numbers of its own, or by an earlier column that equals it."""

    key: tuple[int, int] | None = None
    """Its least value and how many values there can be: its part of the numbers of groups."""
    packed: bytes = b""
    nulls: bytes = b""
    """1 where there is no value; nothing if all are there."""
    same: int | None = None


class _PackedRows(msgspec.Struct, array_like=True, frozen=True):
    """The rows of a node."""

    count: int
    names: tuple[str, ...]
    groups: bytes
    """A number for each row, as differences."""
    columns: tuple[_Column | None, ...]
    """Of each name; none: it lies in the rest."""
    rest: bytes


_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_PackedRows)


class _Numbers:
    """A column of whole numbers; where there is none, the least one stands."""

    def __init__(self, column: pa.Array) -> None:
        self.nulls: Int64s | None = None
        if column.null_count:
            self.nulls = column.is_null().to_numpy(zero_copy_only=False).astype(np.int64)
            least = pc.min(column)
            column = column.fill_null(least if least.is_valid else 0)
        self.values: Int64s = np.ascontiguousarray(column.to_numpy(), np.int64)
        self.least = int(self.values.min())
        self.span = int(self.values.max()) - self.least + 1

    def equals(self, other: "_Numbers") -> bool:
        """Whether two columns have the same values."""
        return self.nulls is None and other.nulls is None and np.array_equal(self.values, other.values)

    def pack_nulls(self) -> bytes:
        """Where there is no value."""
        return b"" if self.nulls is None else bit_packing.pack(self.nulls, differences=False)


def encode_rows(rows: pa.Table, before: bytes = b"") -> bytes:
    """The rows of a node as bytes behind the bytes `before`; they come back in the order of their groups."""
    numbers = _read_numbers(rows) if rows.num_rows else {}
    keys, combined = _combine_groups(rows.column_names, numbers)
    if len(combined) and (combined[1:] < combined[:-1]).any():
        rows = rows.take(pa.array(np.argsort(combined, kind="stable")))
        numbers = _read_numbers(rows)
        keys, combined = _combine_groups(rows.column_names, numbers)
    columns: list[_Column | None] = []
    for position in range(rows.num_columns):
        column = numbers.get(position)
        columns.append(None if column is None else _pack_column(column, position, numbers, keys))
    rest = [position for position, column in enumerate(columns) if column is None]
    packed = _PackedRows(
        count=rows.num_rows,
        names=tuple(rows.column_names),
        groups=bit_packing.pack(combined, differences=True),
        columns=tuple(columns),
        rest=_encode_rest(rows.select(rest)) if rest else b"",
    )
    return b"".join((before, _PACKED, _ENCODER.encode(packed)))


def _read_numbers(rows: pa.Table) -> dict[int, _Numbers]:
    """The columns that are whole numbers, by position."""
    numbers = {}
    for position, name in enumerate(rows.column_names):
        column = _find_whole_numbers(rows.column(position), summed=not _is_group(name))
        if column is not None:
            numbers[position] = _Numbers(column.combine_chunks())
    return numbers


def _find_whole_numbers(column: pa.ChunkedArray, *, summed: bool) -> pa.ChunkedArray | None:
    """A column of whole numbers that fit into 64 bits, None if it is another; DuckDB gives sums as decimals."""
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        return column
    if not (summed and pa.types.is_decimal128(column.type) and column.type.scale == 0):
        return None
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _is_group(name: str) -> bool:
    return name[0] in "gx"


def _combine_groups(names: Sequence[str], numbers: dict[int, _Numbers]) -> tuple[list[int], Int64s]:
    """The group columns that make one number together, and this number of each row; the last column counts most."""
    keys: list[int] = []
    combined, factor = np.empty(0, np.int64), 1
    for position, column in numbers.items():
        if _is_group(names[position]) and factor * column.span <= _MAX_KEYS:
            part = (column.values - column.least) * factor
            combined = part if not keys else combined + part
            keys.append(position)
            factor *= column.span
    return keys, combined


def _pack_column(column: _Numbers, position: int, numbers: dict[int, _Numbers], keys: Sequence[int]) -> _Column:
    if position in keys:
        return _Column(key=(column.least, column.span), nulls=column.pack_nulls())
    for earlier in range(position):
        if earlier in numbers and earlier not in keys and column.equals(numbers[earlier]):
            return _Column(same=earlier)
    return _Column(packed=bit_packing.pack(column.values, differences=False), nulls=column.pack_nulls())


def _encode_rest(rows: pa.Table) -> bytes:
    return bytes(arrow_ipc.encode_table(rows, _ZSTD if rows.nbytes >= _COMPRESSED_BYTES else None))


def decode_rows(packed: bytes) -> pa.Table:
    """The rows that `encode_rows` was given; whole numbers have 64 bits."""
    if packed[: len(_PACKED)] != _PACKED:
        return _decode_arrow(packed)
    node = _DECODER.decode(memoryview(packed)[len(_PACKED) :])
    rest = iter(pa.ipc.open_stream(pa.py_buffer(node.rest)).read_all().columns if node.rest else ())
    combined = bit_packing.unpack(node.groups, node.count, differences=True) if node.groups else None
    arrays: list[pa.Array | pa.ChunkedArray] = []
    for column in node.columns:
        if column is None:
            arrays.append(next(rest))
        elif column.same is not None:
            arrays.append(arrays[column.same])
        elif column.key is not None:
            least, span = column.key
            assert combined is not None
            above = combined // span
            arrays.append(_with_nulls(combined - above * span + least, column.nulls))
            combined = above
        else:
            arrays.append(_with_nulls(bit_packing.unpack(column.packed, node.count, differences=False), column.nulls))
    return pa.table(arrays, names=list(node.names))


def _with_nulls(values: Int64s, nulls: bytes) -> pa.Array:
    if not nulls:
        return pa.array(values)
    return pa.array(values, mask=bit_packing.unpack(nulls, len(values), differences=False).astype(bool))


def _decode_arrow(packed: bytes) -> pa.Table:
    """A node as earlier releases wrote it."""
    rows = pa.ipc.open_stream(pa.py_buffer(packed)).read_all()
    column_text = (rows.schema.metadata or {}).get(_ARROW_COLUMNS)
    if column_text is None:
        return rows
    names, positions = zip(*(item.split(":") for item in column_text.decode().split(",")), strict=True)
    return pa.table([rows.column(int(position)) for position in positions], names=list(names))

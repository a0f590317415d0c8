"""Arrow arrays over NumPy's memory and back, without pyarrow's own converters, and its modules when they are needed.

The converters import pandas when they are first used (a third of a second), which a command with one statement never
needs; nor does it always need pyarrow's functions, which take a tenth of its time to import.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


class _LazyModule:
    """A module that is imported when it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


compute: Any = _LazyModule("pyarrow.compute")
parquet: Any = _LazyModule("pyarrow.parquet")


def to_arrow(values: "np.ndarray[Any, Any]") -> pa.Array:
    """The numbers or truth values of a NumPy array."""
    if values.dtype == bool:
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def to_numpy(column: pa.Array | pa.ChunkedArray) -> "np.ndarray[Any, Any]":
    """The numbers or truth values of a column without nulls."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_boolean(array.type):
        bits = array.buffers()[1]
        start, stop = array.offset, array.offset + len(array)
        unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), count=stop, bitorder="little") if bits else np.empty(0)
        return unpacked[start:stop].astype(bool)
    return np.from_dlpack(array)


def encode_dictionary(chunk: pa.Array, kind: pa.DictionaryType) -> pa.Array:
    """The values of an array as a type with a dictionary, which has those that occur and no others."""
    plain = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
    return plain.cast(kind.value_type).dictionary_encode().cast(kind)


def leave_out_unused_values(rows: pa.Table) -> pa.Table:
    """Rows whose dictionaries have no value that none of them has: a filter leaves these as they are."""
    for position, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [
                chunk
                if len(compute.unique(chunk.indices.drop_null())) == len(chunk.dictionary)
                else encode_dictionary(chunk, field.type)
                for chunk in rows.column(position).chunks
            ]
            rows = rows.set_column(position, field, pa.chunked_array(chunks, field.type))
    return rows


def from_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as a column: texts, bytes, numbers, truth values, times (by their counts) and lists of them."""
    present = np.fromiter((value is not None for value in values), bool, len(values))
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    if pa.types.is_list(kind):
        starts = _offsets([len(value or ()) for value in values], np.int32)
        items = from_values([item for value in values for item in value or ()], kind.value_type)
        return pa.Array.from_buffers(kind, len(values), [validity, starts], children=[items])
    if kind in _SHORT or kind in _LONG:
        parts = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
        starts = _offsets([len(part) for part in parts], np.int32 if kind in _SHORT else np.int64)
        return pa.Array.from_buffers(kind, len(values), [validity, starts, pa.py_buffer(b"".join(parts))])
    plain = np.array([0 if value is None else value for value in values], _DTYPES.get(kind, np.int64))
    return pa.Array.from_buffers(kind, len(values), [validity, to_arrow(plain).buffers()[1]])


def _offsets(lengths: Sequence[int], kind: type) -> pa.Buffer:
    offsets: np.ndarray[Any, Any] = np.zeros(len(lengths) + 1, kind)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)


_SHORT, _LONG = (pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())
_DTYPES = {pa.bool_(): bool, pa.float64(): np.float64}

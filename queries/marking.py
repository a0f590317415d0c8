"""Columns of types that Arrow has not, marked as what they are: wide integers are decimals, bit strings are bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.texts import BITS, HUGE

UNSIGNED = pa.decimal256(39, 0)
"""What holds an unsigned integer of 128 bits. DuckDB gives them as if they were signed, large ones as negative."""
_MARKS = {"HUGEINT": HUGE, "UHUGEINT": HUGE, "BIT": BITS}


def marked(schema: pa.Schema, types: Sequence[Any]) -> pa.Schema:
    """The schema of an answer, with marks.

    Args:
        schema: As DuckDB gives it in Arrow.
        types: DuckDB's own, one for each column.
    """
    names = [str(kind) for kind in types]
    if _MARKS.keys().isdisjoint(names):
        return schema.remove_metadata()
    fields = []
    for field, kind in zip(schema, names, strict=True):
        own = field.with_type(UNSIGNED) if kind == "UHUGEINT" else field
        fields.append(own.with_metadata(_MARKS[kind]) if kind in _MARKS else own)
    return pa.schema(fields)


def as_marked(columns: Sequence[Any], schema: pa.Schema) -> list[Any]:
    """Columns as DuckDB gives them, with the types of a marked schema."""
    return [
        _unsigned(column) if field.type == UNSIGNED and column.type != UNSIGNED else column
        for column, field in zip(columns, schema, strict=True)
    ]


def _unsigned(column: Any) -> Any:
    """Decimals of 128 bits as what their bits are without a sign."""
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_unsigned(chunk) for chunk in column.chunks], UNSIGNED)
    compact = pa.concat_arrays([column, column.slice(0, 0)]) if column.offset else column
    valid, data = compact.buffers()
    words = np.zeros((len(compact), 4), np.uint64)
    if len(compact):
        words[:, :2] = np.frombuffer(data, np.uint64, 2 * len(compact)).reshape(-1, 2)
    return pa.Array.from_buffers(UNSIGNED, len(compact), [valid, pa.py_buffer(words)], compact.null_count)

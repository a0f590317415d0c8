"""Columns of types that Arrow has not, marked as what they are: wide integers are decimals, bit strings are bytes.

What cannot be told even so is refused: an answer that has lost a part of its values is a wrong one.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.errors import QueryError
from windrow.formats.text import BITS, HUGE

UNSIGNED = pa.decimal256(39, 0)
"""What holds an unsigned integer of 128 bits. DuckDB gives them as if they were signed, large ones as negative."""
_MARKS = {"HUGEINT": HUGE, "UHUGEINT": HUGE, "BIT": BITS}
_LOST = {"TIME WITH TIME ZONE", "UHUGEINT", "BIT"}
"""Types of which Arrow gets only a part: the offset is left out, others are taken for signed numbers or bytes."""
_NESTED = {"list", "array", "struct", "map", "union"}
_MAY_BE_LOST = re.compile("|".join(_LOST))


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


def arriving(column: str, kind: Any) -> str:
    """The name of a column's type in DuckDB.

    Raises:
        QueryError: the column has values that would not arrive as they are.
    """
    name = str(kind)
    if may_be_lost(name) and _is_lost(kind):
        raise QueryError(
            f"column {column!r} is of type {name}, of which Arrow keeps only a part; "
            "cast it in the statement, for example to VARCHAR"
        )
    return name


def comes_back(name: str) -> bool:
    """Whether values of a type surely come back from Arrow as they went; marks stay with answers."""
    return _MAY_BE_LOST.search(name) is None


def may_be_lost(name: str) -> bool:
    """Whether a type by this name can have parts that do not arrive: what it says may also be the name of a field."""
    return name not in _MARKS and _MAY_BE_LOST.search(name) is not None


def _is_lost(kind: Any) -> bool:
    """Whether a type of DuckDB, or one nested in it, is one of those that get lost."""
    if str(kind) in _LOST:
        return True
    inner = [part for _, part in kind.children] if kind.id in _NESTED else []
    return any(_is_lost(part) for part in inner if not isinstance(part, int))  # the size of an array is one of them


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

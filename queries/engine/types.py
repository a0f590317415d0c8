"""Arrow types as DuckDB types, so that a window has the same columns whether it is empty, probed or read from files.

DuckDB reads some types of Arrow and of Parquet differently, or not at all; `to_duckdb_schema` gives types that it reads
equally from both.

Columns of types that Arrow lacks carry a mark in their metadata: wide integers are decimals, bit strings are bytes.
A column that would lose a part of its values even so is refused.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.errors import QueryError
from windrow.formats.text import BITS, HUGE, contains_type

_SIMPLE_TYPES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "halffloat": "FLOAT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
    "date64[ms]": "DATE",
    "time64[ns]": "TIME_NS",
    "null": "INTEGER",
    "extension<arrow.uuid>": "UUID",
    "extension<arrow.json>": "JSON",
}
_MAX_DECIMAL_DIGITS = 38
_TOO_FINE = "a duration is finer than a microsecond, which is what SQL counts intervals in; read it with scan or probe"
_DURATION_SQL = {
    "s": "to_seconds({})",
    "ms": "to_milliseconds({})",
    "us": "to_microseconds({})",
    "ns": "CASE WHEN {0} % 1000 <> 0 THEN error('" + _TOO_FINE + "') ELSE to_microseconds({0} // 1000) END",
}


def quote_name(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(value: str) -> str:
    """A string as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def duckdb_type(kind: pa.DataType) -> str:  # noqa: PLR0911 - one per family of types
    """The DuckDB type of a column of the Arrow type `kind`."""
    if (plain := _SIMPLE_TYPES.get(str(kind))) is not None:
        return plain
    if isinstance(kind, pa.BaseExtensionType):
        return duckdb_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return duckdb_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        if kind.unit == "ns":
            return "TIMESTAMP_NS" if kind.tz is None else "TIMESTAMPTZ_NS"
        return "TIMESTAMP" if kind.tz is None else "TIMESTAMPTZ"
    if pa.types.is_time(kind):
        return "TIME"
    if pa.types.is_duration(kind):
        return "INTERVAL"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})" if kind.precision <= _MAX_DECIMAL_DIGITS else "DOUBLE"
    if pa.types.is_nested(kind):
        return _nested_type(kind)
    return "BLOB" if "binary" in str(kind) else "VARCHAR"


def _nested_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return "STRUCT(" + ", ".join(f"{quote_name(f.name)} {duckdb_type(f.type)}" for f in fields) + ")"
    if pa.types.is_map(kind):
        return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.item_type)})"
    size = str(kind.list_size) if pa.types.is_fixed_size_list(kind) else ""
    return f"{duckdb_type(kind.value_type)}[{size}]"


@lru_cache(maxsize=4096)
def stored_column_sql(field: pa.Field) -> str:
    """The expression that reads a column from a segment file with its DuckDB type."""
    name, kind = quote_name(field.name), field.type
    if contains_type(kind, pa.types.is_duration):
        return f"{_with_intervals(name, kind)} AS {name}"
    if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        # A slice of the whole: from Parquet, a null list has a null item, which functions on vectors refuse.
        return f"CAST({name}[:] AS {duckdb_type(kind)}) AS {name}"
    as_read = not (pa.types.is_nested(kind) or pa.types.is_null(kind) or isinstance(kind, pa.BaseExtensionType))
    return name if as_read else f"CAST({name} AS {duckdb_type(kind)}) AS {name}"


def _with_intervals(value: str, kind: pa.DataType, depth: int = 0) -> str:
    """SQL that gives a value with intervals for the numbers that Parquet keeps of durations, at any depth."""
    item = f"_item{depth}"
    if pa.types.is_duration(kind):
        return _DURATION_SQL[kind.unit].format(value)
    if not contains_type(kind, pa.types.is_duration):
        return f"CAST({value} AS {duckdb_type(kind)})"
    if pa.types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        parts = (
            f"{quote_name(f.name)} := {_with_intervals(f'{value}.{quote_name(f.name)}', f.type, depth)}" for f in fields
        )
        changed = f"struct_pack({', '.join(parts)})"
    elif pa.types.is_map(kind):
        pair = (
            _with_intervals(f"{item}.{part}", inner, depth + 1)
            for part, inner in (("key", kind.key_type), ("value", kind.item_type))
        )
        changed = f"map_from_entries(list_transform(map_entries({value}), lambda {item}: row({', '.join(pair)})))"
    else:
        changed = f"list_transform({value}, lambda {item}: {_with_intervals(item, kind.value_type, depth + 1)})"
    return f"CASE WHEN {value} IS NOT NULL THEN CAST({changed} AS {duckdb_type(kind)}) END"


def to_duckdb_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in which DuckDB reads the same columns from Arrow as it does from segment files."""
    return pa.schema([pa.field(field.name, _duckdb_arrow_type(field.type)) for field in schema])


def cast_to_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with the types of a bridged schema."""
    if rows.schema.equals(schema):
        return rows
    columns = [
        column if column.type.equals(field.type) else _cast(column, field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), kind)])
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        if contains_type(column.type, pa.types.is_duration):
            raise QueryError(_TOO_FINE) from None
        raise


def _duckdb_arrow_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_null(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) and kind.unit in ("s", "ms"):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _MAX_DECIMAL_DIGITS else pa.float64()
    if pa.types.is_dictionary(kind):
        plain = _duckdb_arrow_type(kind.value_type)
        return kind if plain == kind.value_type else plain
    if isinstance(kind, pa.BaseExtensionType) and str(kind) not in _SIMPLE_TYPES:
        return _duckdb_arrow_type(kind.storage_type)
    return _duckdb_nested_type(kind) if pa.types.is_nested(kind) else kind


def _duckdb_nested_type(kind: pa.DataType) -> pa.DataType:
    def within(field: pa.Field) -> pa.Field:
        return field.with_type(_duckdb_arrow_type(field.type))

    if pa.types.is_struct(kind):
        return pa.struct([within(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(within(kind.key_field), within(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(within(kind.value_field), kind.list_size)
    return pa.list_(within(kind.value_field))


UNSIGNED = pa.decimal256(39, 0)
"""What holds an unsigned integer of 128 bits. DuckDB gives them as if they were signed, large ones as negative."""
_MARKS = {"HUGEINT": HUGE, "UHUGEINT": HUGE, "BIT": BITS}
_LOSSY_TYPES = {"TIME WITH TIME ZONE", "UHUGEINT", "BIT", "VARIANT"}
"""Types of which Arrow gets only a part: the offset is left out, others are taken for signed numbers or bytes."""
_NESTED = {"list", "array", "struct", "tuple", "map", "union"}
_LONGEST_HOURS = 2_562_046
"""Hours that 63 bits can count in nanoseconds."""
_LOSSY_NAME = re.compile("|".join(_LOSSY_TYPES))


def mark_schema(schema: pa.Schema, types: Sequence[Any]) -> pa.Schema:
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
        marked = field.with_type(UNSIGNED) if kind == "UHUGEINT" else field
        fields.append(marked.with_metadata(_MARKS[kind]) if kind in _MARKS else marked)
    return pa.schema(fields)


def check_arrow_type(column: str, kind: Any) -> str:
    """The name of a column's type in DuckDB.

    Raises:
        QueryError: the column has values that would not arrive as they are.
    """
    name = str(kind)
    if may_lose_values(name) and _loses_values(kind):
        raise QueryError(
            f"column {column!r} is of type {name}, of which Arrow keeps only a part; "
            "cast it in the statement, for example to VARCHAR"
        )
    return name


def output_columns(columns: Sequence[str], types: Sequence[Any]) -> list[str] | None:
    """SQL that gives columns in a form that Arrow can carry; None if it carries them all as they are.

    Arrow counts an interval in nanoseconds, which wrap after 292 years: longer ones get days of 24 hours.
    """
    if not any("INTERVAL" in str(kind) for kind in types):
        return None
    return [
        _with_days(column, kind) if _has_interval(kind) else column for column, kind in zip(columns, types, strict=True)
    ]


def _has_interval(kind: Any) -> bool:
    inner = [part for _, part in kind.children if not isinstance(part, int)] if kind.id in _NESTED else []
    return kind.id == "interval" or any(map(_has_interval, inner))


def _with_days(value: str, kind: Any, depth: int = 0) -> str:
    item = f"_item{depth}"
    if not _has_interval(kind) or kind.id == "union":
        return value
    if kind.id == "interval":
        hours, days = f"date_part('hour', {value})", f"CAST(date_part('hour', {value}) // 24 AS INTEGER)"
        moved = f"{value} - to_hours(24::BIGINT * {days}) + to_days({days})"
        return f"CASE WHEN abs({hours}) > {_LONGEST_HOURS} THEN {moved} ELSE {value} END"
    if kind.id in ("struct", "tuple"):
        parts = (
            _with_days(f"struct_extract_at({value}, {n})", part, depth) for n, (_, part) in enumerate(kind.children, 1)
        )
        changed = f"row({', '.join(parts)})"
    elif kind.id == "map":
        pair = (
            _with_days(f"{item}.{name}", part, depth + 1)
            for name, (_, part) in zip(("key", "value"), kind.children, strict=True)
        )
        changed = f"map_from_entries(list_transform(map_entries({value}), lambda {item}: row({', '.join(pair)})))"
    else:
        changed = f"list_transform({value}, lambda {item}: {_with_days(item, kind.children[0][1], depth + 1)})"
    cast = changed if "TUPLE(" in str(kind) else f"CAST({changed} AS {kind})"
    return f"CASE WHEN {value} IS NOT NULL THEN {cast} END"


def survives_arrow(name: str) -> bool:
    """Whether values of a type surely come back from Arrow as they went; marks stay with answers."""
    return _LOSSY_NAME.search(name) is None


def may_lose_values(name: str) -> bool:
    """Whether a type by this name can have parts that do not arrive: what it says may also be the name of a field."""
    return name not in _MARKS and _LOSSY_NAME.search(name) is not None


def _loses_values(kind: Any) -> bool:
    """Whether a type of DuckDB, or one nested in it, is one of those that get lost."""
    if str(kind) in _LOSSY_TYPES:
        return True
    inner = [part for _, part in kind.children] if kind.id in _NESTED else []
    return any(
        _loses_values(part) for part in inner if not isinstance(part, int)
    )  # the size of an array is one of them


def cast_to_marked(columns: Sequence[Any], schema: pa.Schema) -> list[Any]:
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

"""Spark's types and Arrow's: what may become which column of a stream without loss, and as what Spark reads it again.

Whatever does not fit is told in one sentence before any work is done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.column import Column

from windrow import arrow_input
from windrow.definitions import StreamDefinition
from windrow.errors import SchemaError
from windrow.ingest.sort_key import quote_name

_WRITE_TYPES: dict[Any, T.DataType] = {
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.large_string(): T.StringType(),
    pa.string_view(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.large_binary(): T.BinaryType(),
    pa.binary_view(): T.BinaryType(),
    pa.date32(): T.DateType(),
    pa.date64(): T.DateType(),
    pa.timestamp("us"): T.TimestampNTZType(),
}
# Types that Spark reads from Parquet as something wider, and cannot write.
_UNSIGNED_READ_TYPES: dict[Any, T.DataType] = {
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
}
_UNSIGNED_ARROW_TYPES = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_WIDENING_CASTS: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    T.ByteType: (T.ShortType, T.IntegerType, T.LongType),
    T.ShortType: (T.IntegerType, T.LongType),
    T.IntegerType: (T.LongType,),
    T.FloatType: (T.DoubleType,),
}
NULL_ERROR_PREFIX = "windrow: not nullable: "


@dataclass(frozen=True)
class ColumnPlan:
    """How a DataFrame's columns become the stream's."""

    changed: tuple[Column, ...] | None
    """One per column of the stream, in its order and of the type that is written; None: all are right as they are."""
    native: bool
    """Whether Spark can write the stream's types itself; if not, rows go through Python workers."""


def find_write_type(kind: pa.DataType) -> T.DataType | None:
    """The Spark type that Spark writes to Parquet exactly as an Arrow type is written; None if there is none."""
    if pa.types.is_dictionary(kind):
        return find_write_type(kind.value_type)
    if kind in _WRITE_TYPES:
        return _WRITE_TYPES[kind]
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return T.TimestampType()
    if pa.types.is_decimal128(kind) and kind.scale >= 0:
        return T.DecimalType(kind.precision, kind.scale)
    return _find_nested_type(kind, find_write_type)


def find_read_type(kind: pa.DataType) -> T.DataType | None:
    """The Spark type as which Spark reads a column of a stream; None if it cannot."""
    if pa.types.is_dictionary(kind):
        return find_read_type(kind.value_type)
    if kind in _UNSIGNED_READ_TYPES:
        return _UNSIGNED_READ_TYPES[kind]
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return T.TimestampNTZType() if kind.tz is None else T.TimestampType()
    if pa.types.is_fixed_size_binary(kind):
        return T.BinaryType()
    if pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return T.DecimalType(kind.precision, kind.scale)
    return find_write_type(kind) or _find_nested_type(kind, find_read_type)


def _find_nested_type(kind: pa.DataType, inner: Any) -> T.DataType | None:
    if pa.types.is_struct(kind):
        fields = [(field, inner(field.type)) for field in (kind.field(i) for i in range(kind.num_fields))]
        if any(found is None for _, found in fields) or not fields:
            return None
        return T.StructType([T.StructField(field.name, found, field.nullable) for field, found in fields])
    if pa.types.is_map(kind):
        key, item = inner(kind.key_type), inner(kind.item_type)
        return None if key is None or item is None else T.MapType(key, item, kind.item_field.nullable)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = inner(kind.value_type)
        return None if item is None else T.ArrayType(item, kind.value_field.nullable)
    return None


def build_read_schema(definition: StreamDefinition, names: Sequence[str]) -> T.StructType:
    """The Spark schema of some columns of a stream, or an error that names those that Spark has no type for."""
    schema = definition.schema
    found = {name: find_read_type(schema.field(name).type) for name in names}
    lost = [f"{name!r} ({schema.field(name).type})" for name, kind in found.items() if kind is None]
    if lost:
        raise SchemaError(
            f"stream {definition.name!r}: Spark has no type for column {', '.join(lost)}; "
            "leave it out with columns=[…], or read it with wh.scan"
        )
    return T.StructType([T.StructField(name, kind, True) for name, kind in found.items() if kind is not None])


def to_arrow_schema(schema: T.StructType, stream: str) -> pa.Schema:
    """The Arrow schema of a DataFrame."""
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema:
        try:
            kind = (
                pa.null() if isinstance(field.dataType, T.NullType) else to_arrow_type(field.dataType, timezone="UTC")
            )
        except Exception as error:  # noqa: BLE001 - PySpark has one class for each way to say no
            raise SchemaError(
                f"stream {stream!r}: column {field.name!r} is {field.dataType.simpleString()}, "
                f"which cannot be stored ({error}); nothing was appended"
            ) from None
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def check_columns(schema: T.StructType, definition: StreamDefinition) -> None:
    """Refuse columns that cannot become those of the stream, with one error that names every difference."""
    wanted = definition.schema
    given = to_arrow_schema(schema, definition.name)
    eased = pa.schema(
        [
            field.with_type(find_intermediate_type(given.field(field.name).type, field.type))
            if field.name in given.names
            else field
            for field in wanted
        ]
    )
    arrow_input.match_columns(given, eased, definition.name, definition.added)
    wrong = [
        f"column {field.name!r} is {schema[field.name].dataType.simpleString()}, the stream has {field.type}"
        for field in wanted
        if field.name in schema.names
        and (target := find_write_type(field.type)) is not None
        and not _is_lossless(schema[field.name].dataType, target)
    ]
    if wrong:
        raise SchemaError(f"stream {definition.name!r}: {'; '.join(wrong)}; nothing was appended")


def plan_columns(schema: T.StructType, definition: StreamDefinition) -> ColumnPlan:
    """How the columns of a DataFrame become those of the stream, if they can."""
    check_columns(schema, definition)
    targets = [find_write_type(field.type) for field in definition.schema]
    # Hadoop replaces ${…} by the setting of that name wherever it is told the columns of a file.
    native = all(target is not None for target in targets) and not any("${" in name for name in definition.schema.names)
    if all(
        _fits_unchanged(field, target, schema, native=native)
        for field, target in zip(definition.schema, targets, strict=True)
    ):
        return ColumnPlan(None, native)
    select = []
    for field, target in zip(definition.schema, targets, strict=True):
        if field.name not in schema.names:
            select.append(F.lit(None).cast(target or T.NullType()).alias(field.name))
            continue
        source = schema[field.name]
        column = F.col(quote_name(field.name))
        if native and target is not None and source.dataType != target:
            column = column.cast(target)
        if not field.nullable and source.nullable:
            column = F.coalesce(
                column, F.raise_error(F.lit(NULL_ERROR_PREFIX + field.name)).cast(target or source.dataType)
            )
        select.append(column.alias(field.name))
    return ColumnPlan(tuple(select), native)


def _fits_unchanged(field: pa.Field, target: T.DataType | None, schema: T.StructType, *, native: bool) -> bool:
    """Whether a column of a DataFrame can be taken without a cast, an error for nulls or another spelling."""
    if field.name not in schema.names:
        return False
    source = schema[field.name]
    return bool((not native or source.dataType == target) and (field.nullable or not source.nullable))


def find_intermediate_type(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """`wanted`, or what Spark has for such values where it has no type for them; each value is checked later."""
    if wanted in _UNSIGNED_ARROW_TYPES:
        signed = pa.types.is_signed_integer(given) and wanted == pa.uint64()
        return pa.int64() if signed else _UNSIGNED_ARROW_TYPES[wanted]
    return pa.binary() if pa.types.is_fixed_size_binary(wanted) else wanted


def _is_lossless(given: T.DataType, wanted: T.DataType) -> bool:
    """Whether Spark's cast keeps every value. Arrow's rules let it pass, but Spark rounds where Arrow checks."""
    if isinstance(given, T.NullType) or (isinstance(wanted, type(given)) and not isinstance(given, _PARAMETRIC_TYPES)):
        return True
    if isinstance(given, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale
    if isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return _is_lossless(given.elementType, wanted.elementType) and given.containsNull <= wanted.containsNull
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        kept = _is_lossless(given.keyType, wanted.keyType) and _is_lossless(given.valueType, wanted.valueType)
        return kept and given.valueContainsNull <= wanted.valueContainsNull
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        pairs = list(zip(given, wanted, strict=False))
        return len(given) == len(wanted) and all(
            a.name == b.name and a.nullable <= b.nullable and _is_lossless(a.dataType, b.dataType) for a, b in pairs
        )
    if isinstance(given, T.StringType) and isinstance(wanted, T.StringType):
        return True
    return isinstance(wanted, _WIDENING_CASTS.get(type(given), ()))


_PARAMETRIC_TYPES = (T.DecimalType, T.ArrayType, T.MapType, T.StructType)

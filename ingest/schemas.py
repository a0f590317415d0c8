"""The mapping between Spark's types and Arrow's: which column may become which without loss, and as what it is read.

What does not fit is refused, with one error that names every difference, before any work is done.
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
from windrow.warehouse import Warehouse

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
# Types that Spark cannot write, and reads from Parquet as a wider type.
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
    """How the columns of a DataFrame become those of a stream."""

    expressions: tuple[Column, ...] | None
    """One expression per column of the stream, in its order; None if no column has to change."""
    written_by_spark: bool
    """Whether Spark's own Parquet writer knows all types; if not, Python workers write the rows."""


def find_write_type(kind: pa.DataType) -> T.DataType | None:
    """Find the Spark type that is written to Parquet exactly as an Arrow type is; None if there is none."""
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
    """Find the Spark type as which Spark reads a column of a stream; None if it cannot."""
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


def _find_nested_type(kind: pa.DataType, find_type: Any) -> T.DataType | None:
    if pa.types.is_struct(kind):
        fields = [(field, find_type(field.type)) for field in (kind.field(i) for i in range(kind.num_fields))]
        if any(spark_type is None for _, spark_type in fields) or not fields:
            return None
        return T.StructType([T.StructField(field.name, spark_type, field.nullable) for field, spark_type in fields])
    if pa.types.is_map(kind):
        key, item = find_type(kind.key_type), find_type(kind.item_type)
        return None if key is None or item is None else T.MapType(key, item, kind.item_field.nullable)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = find_type(kind.value_type)
        return None if item is None else T.ArrayType(item, kind.value_field.nullable)
    return None


def build_read_schema(definition: StreamDefinition, names: Sequence[str]) -> T.StructType:
    """Build the Spark schema of some columns of a stream; an error names those that Spark has no type for."""
    schema = definition.schema
    types = {name: find_read_type(schema.field(name).type) for name in names}
    unreadable = [f"{name!r} ({schema.field(name).type})" for name, kind in types.items() if kind is None]
    if unreadable:
        raise SchemaError(
            f"stream {definition.name!r}: Spark has no type for column {', '.join(unreadable)}; "
            "leave it out with columns=[…], or read it with wh.scan"
        )
    return T.StructType([T.StructField(name, kind, True) for name, kind in types.items() if kind is not None])


def to_arrow_schema(schema: T.StructType, stream: str) -> pa.Schema:
    """Convert the schema of a DataFrame to Arrow."""
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise SchemaError(
            f"stream {stream!r}: the DataFrame has {schema.names.count(twice[0])} columns of the name {twice[0]!r}; "
            "drop or rename all but one, nothing was appended"
        )
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for field in schema:
        try:
            kind = (
                pa.null() if isinstance(field.dataType, T.NullType) else to_arrow_type(field.dataType, timezone="UTC")
            )
        except Exception as error:  # noqa: BLE001 - PySpark has many classes of errors for this
            raise SchemaError(
                f"stream {stream!r}: column {field.name!r} is {field.dataType.simpleString()}, "
                f"which cannot be stored ({error}); nothing was appended"
            ) from None
        fields.append(pa.field(field.name, kind, field.nullable))
    return pa.schema(fields)


def check_columns(schema: T.StructType, definition: StreamDefinition) -> None:
    """Refuse columns that cannot become those of the stream; one error names every difference."""
    stream_schema = definition.schema
    given_schema = to_arrow_schema(schema, definition.name)
    intermediate = pa.schema(
        [
            field.with_type(find_intermediate_type(given_schema.field(field.name).type, field.type))
            if field.name in given_schema.names
            else field
            for field in stream_schema
        ]
    )
    arrow_input.match_columns(given_schema, intermediate, definition.name, definition.added)
    differences = [
        f"column {field.name!r} is {schema[field.name].dataType.simpleString()}, the stream has {field.type}"
        for field in stream_schema
        if field.name in schema.names
        and (target := find_write_type(field.type)) is not None
        and not _is_lossless(schema[field.name].dataType, target)
    ]
    if differences:
        raise SchemaError(f"stream {definition.name!r}: {'; '.join(differences)}; nothing was appended")


def evolve_stream(warehouse: Warehouse, stream: str, schema: T.StructType, evolve: str | None) -> None:
    """Take new columns of a DataFrame into a stream, and wider types, if that is asked for."""
    if evolve is not None:
        warehouse._evolve(stream, to_arrow_schema(schema, stream), evolve)


def plan_columns(schema: T.StructType, definition: StreamDefinition) -> ColumnPlan:
    """Plan how the columns of a DataFrame become those of the stream, after checking that they can."""
    check_columns(schema, definition)
    targets = [find_write_type(field.type) for field in definition.schema]
    # Hadoop replaces ${…} in the names of columns by the setting of that name.
    by_spark = all(target is not None for target in targets) and not any(
        "${" in name for name in definition.schema.names
    )
    if all(
        _fits_unchanged(field, target, schema, by_spark=by_spark)
        for field, target in zip(definition.schema, targets, strict=True)
    ):
        return ColumnPlan(None, by_spark)
    expressions = []
    for field, target in zip(definition.schema, targets, strict=True):
        if field.name not in schema.names:
            expressions.append(F.lit(None).cast(target or T.NullType()).alias(field.name))
            continue
        source = schema[field.name]
        column = F.col(quote_name(field.name))
        if by_spark and target is not None and source.dataType != target:
            column = column.cast(target)
        if not field.nullable and source.nullable:
            column = F.coalesce(
                column, F.raise_error(F.lit(NULL_ERROR_PREFIX + field.name)).cast(target or source.dataType)
            )
        expressions.append(column.alias(field.name))
    return ColumnPlan(tuple(expressions), by_spark)


def _fits_unchanged(field: pa.Field, target: T.DataType | None, schema: T.StructType, *, by_spark: bool) -> bool:
    """Whether a column of a DataFrame needs neither a cast nor a check for nulls nor another spelling."""
    if field.name not in schema.names:
        return False
    source = schema[field.name]
    return bool((not by_spark or source.dataType == target) and (field.nullable or not source.nullable))


def find_intermediate_type(source_type: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Find the type in which Spark has values of type `wanted`; if it is another one, each value is checked later."""
    if wanted in _UNSIGNED_ARROW_TYPES:
        signed = pa.types.is_signed_integer(source_type) and wanted == pa.uint64()
        return pa.int64() if signed else _UNSIGNED_ARROW_TYPES[wanted]
    return pa.binary() if pa.types.is_fixed_size_binary(wanted) else wanted


def _is_lossless(source: T.DataType, wanted: T.DataType) -> bool:
    """Whether Spark's cast keeps every value. Arrow's rules are not enough: Spark rounds where Arrow checks."""
    if isinstance(source, T.NullType) or (isinstance(wanted, type(source)) and not isinstance(source, _PARAMETRIC)):
        return True
    if isinstance(source, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return source.scale <= wanted.scale and source.precision - source.scale <= wanted.precision - wanted.scale
    if isinstance(source, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return _is_lossless(source.elementType, wanted.elementType) and source.containsNull <= wanted.containsNull
    if isinstance(source, T.MapType) and isinstance(wanted, T.MapType):
        lossless = _is_lossless(source.keyType, wanted.keyType) and _is_lossless(source.valueType, wanted.valueType)
        return lossless and source.valueContainsNull <= wanted.valueContainsNull
    if isinstance(source, T.StructType) and isinstance(wanted, T.StructType):
        pairs = list(zip(source, wanted, strict=False))
        return len(source) == len(wanted) and all(
            a.name == b.name and a.nullable <= b.nullable and _is_lossless(a.dataType, b.dataType) for a, b in pairs
        )
    if isinstance(source, T.StringType) and isinstance(wanted, T.StringType):
        return True
    return isinstance(wanted, _WIDENING_CASTS.get(type(source), ()))


_PARAMETRIC = (T.DecimalType, T.ArrayType, T.MapType, T.StructType)

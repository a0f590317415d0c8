"""Turns whatever users hold rows in into Arrow batches with exactly the stream's schema, or refuses before a write."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import SchemaError
from windrow.formats.durations import to_durations

_WIDER_TYPES: dict[str, tuple[str, ...]] = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("uint16", "uint32", "uint64", "int16", "int32", "int64"),
    "uint16": ("uint32", "uint64", "int32", "int64"),
    "uint32": ("uint64", "int64"),
    "halffloat": ("float", "double"),
    "float": ("double",),
}


def conform_batches(
    data: Any, schema: pa.Schema, stream: str, optional: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of `data`, batch by batch, in the stream's schema; the schema is checked before the first batch.

    Columns that are `optional` may be missing: who sent rows before they were added may go on sending them.
    """
    reader = open_reader(data, f"stream {stream!r}")
    plan = match_columns(reader.schema, schema, stream, optional)
    return _conform(reader, schema, plan, stream)


def open_reader(data: Any, what: str) -> pa.RecordBatchReader:
    """A reader over whatever a user holds rows in; `what` names the target in errors."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader()
    if type(data).__module__.split(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False).to_reader()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "to_arrow_reader"):
        return data.to_arrow_reader()
    if hasattr(data, "fetch_record_batch"):
        return data.fetch_record_batch()
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, dict)):
        rest = iter(data)
        first = next(rest, None)
        if isinstance(first, (pa.RecordBatch, pa.Table)):
            return pa.RecordBatchReader.from_batches(first.schema, _chain(first, rest, what))
        if first is None:
            raise SchemaError(f"{what}: an empty list of batches has no schema; give an empty table instead")
    raise SchemaError(
        f"{what}: cannot take rows from {type(data).__module__}.{type(data).__name__}; "
        "give an Arrow table, batches or reader, a pandas or polars frame, or a DuckDB relation"
    )


def _chain(first: pa.RecordBatch | pa.Table, rest: Iterator[Any], what: str) -> Iterator[pa.RecordBatch]:
    for piece in chain([first], rest):
        if not isinstance(piece, (pa.RecordBatch, pa.Table)):
            raise SchemaError(
                f"{what}: among the batches is a {type(piece).__name__}; give only Arrow batches or tables"
            )
        if not piece.schema.equals(first.schema):
            raise SchemaError(f"{what}: the batches of one append have different schemas; give them one by one")
        yield from piece.to_batches() if isinstance(piece, pa.Table) else (piece,)


def match_columns(given: pa.Schema, wanted: pa.Schema, stream: str, optional: Collection[str] = ()) -> list[int]:
    """Where each wanted column is in the given schema (-1: nowhere), or an error that names every difference."""
    problems = [f"column {name!r} is not in the stream" for name in given.names if name not in wanted.names]
    positions, advice = [], ""
    for field in wanted:
        position = given.names.index(field.name) if given.names.count(field.name) == 1 else -1
        if position < 0 and field.name in optional and field.name not in given.names:
            positions.append(position)
            continue
        if position < 0:
            problems.append(
                f"column {field.name!r} ({field.type}) is missing"
                if field.name not in given.names
                else f"column {field.name!r} occurs twice"
            )
        elif not _fits(given.field(position).type, field.type):
            problems.append(f"column {field.name!r} is {given.field(position).type}, the stream has {field.type}")
            advice = "cast it first, since types change by themselves only where no value can be lost; "
        positions.append(position)
    if problems:
        raise SchemaError(f"stream {stream!r}: {'; '.join(problems)}; {advice}nothing was appended")
    return positions


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of `given` can be a value of `wanted` (or the cast notices that one cannot)."""
    if given.equals(wanted) or pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given) or pa.types.is_dictionary(wanted):
        return _fits(_plain(given), _plain(wanted))
    if pa.types.is_interval(given) and pa.types.is_duration(wanted):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        return (given.tz is None) == (wanted.tz is None)
    same_family = (_is_text, _is_binary, pa.types.is_decimal, pa.types.is_date, pa.types.is_time, pa.types.is_duration)
    if any(family(given) and family(wanted) for family in same_family):
        return True
    if pa.types.is_nested(given) and pa.types.is_nested(wanted):
        return _nested_fits(given, wanted)
    return str(wanted) in _WIDER_TYPES.get(str(given), ())


def _nested_fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        names = [given.field(i).name for i in range(given.num_fields)]
        if names != [wanted.field(i).name for i in range(wanted.num_fields)]:
            return False
    elif not (_is_list(given) and _is_list(wanted)) and given.id != wanted.id:
        return False
    return given.num_fields == wanted.num_fields and all(
        _fits(given.field(i).type, wanted.field(i).type) for i in range(given.num_fields)
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _conform(reader: pa.RecordBatchReader, schema: pa.Schema, plan: list[int], stream: str) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        columns = [
            pa.nulls(batch.num_rows, field.type) if position < 0 else _cast(batch.column(position), field, stream)
            for position, field in zip(plan, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field, stream: str) -> pa.Array:
    if column.null_count and not field.nullable:
        raise SchemaError(
            f"stream {stream!r}: column {field.name!r} is not nullable but has {column.null_count} nulls; "
            "nothing was appended"
        )
    if column.type.equals(field.type):
        return column
    try:
        if pa.types.is_dictionary(field.type):
            plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            return pc.dictionary_encode(plain.cast(field.type.value_type)).cast(field.type)
        if pa.types.is_interval(column.type):
            return to_durations(column, field.type)
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        why = str(error).splitlines()[0]
        raise SchemaError(
            f"stream {stream!r}: column {field.name!r} cannot become {field.type} without loss ({why}); "
            "nothing was appended"
        ) from None

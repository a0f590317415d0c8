"""Turns whatever users hold rows in into Arrow batches with exactly the stream's schema, or refuses before a write."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from windrow.arguments import find_first_failing
from windrow.errors import SchemaError
from windrow.formats.durations import to_durations
from windrow.formats.timestamps import parse_iso
from windrow.indexes.arrow_arrays import compute as pc
from windrow.value_checks import check_values, is_checked, is_list_view, to_plain_list, without_list_view


def conform_batches(
    data: Any,
    schema: pa.Schema,
    stream: str,
    optional: Collection[str] = (),
    judged: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """The rows of `data`, batch by batch, in the stream's schema; the schema is checked before the first batch.

    Args:
        data: Whatever a user holds rows in.
        schema: Of the stream.
        stream: Its name.
        optional: Columns that may be missing: who sent rows before they were added may go on sending them.
        judged: Columns whose values are judged later on, row by row; those of all others are checked here.
    """
    reader = open_reader(data, f"stream {stream!r}")
    plan = match_columns(reader.schema, schema, stream, optional)
    return _conform(reader, schema, plan, stream, judged)


def open_reader(data: Any, what: str) -> pa.RecordBatchReader:  # noqa: PLR0911 - one for each kind of data
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
        if isinstance(first, Mapping):
            return _read_dicts(chain([first], rest), what)
        if first is None:
            raise SchemaError(f"{what}: an empty list of batches has no schema; give an empty table instead")
    raise SchemaError(
        f"{what}: cannot take rows from {type(data).__module__}.{type(data).__name__}; "
        "give an Arrow table, batches or reader, a pandas or polars frame, a DuckDB relation, or a list of dicts"
    )


def infer_schema(like: Any, times: Sequence[str], what: str) -> pa.Schema:
    """The schema of a stream for rows like those of a frame, or of the file at a path; text in `times` is instants."""
    if isinstance(like, (str, os.PathLike)):
        from windrow.cli.readers import ReadOptions, infer_file_schema

        return infer_file_schema(os.fspath(like), ReadOptions(), times)
    rows = open_reader(like, what).read_all()
    return pa.schema([_declare(field, rows.column(field.name), field.name in times) for field in rows.schema])


def _declare(field: pa.Field, values: pa.ChunkedArray, is_time: bool) -> pa.Field:
    """A column as a stream is declared with: microseconds and plain text, where a frame may have more, or nothing."""
    kind = field.type
    if is_time and (_is_text(kind) or pa.types.is_date(kind)):
        kind = pa.timestamp("us", "UTC")
    elif pa.types.is_timestamp(kind) and kind.unit == "ns":
        micros = pa.timestamp("us", kind.tz)
        kind = (
            micros
            if pc.all(pc.equal(values.cast(micros, safe=False).cast(kind), values)).as_py() is not False
            else kind
        )
    elif _is_text(kind) or pa.types.is_null(kind):
        kind = pa.string()
    elif _is_binary(kind):
        kind = pa.binary()
    return pa.field(field.name, without_list_view(kind), field.nullable)


def find_new_columns(source: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """The columns of a schema that a stream does not have, as they would be declared."""
    new = (field for field in source if field.name not in wanted.names)
    return [_declare(field, pa.chunked_array([], field.type), is_time=False).with_nullable(True) for field in new]


def _read_dicts(rows: Iterator[Any], what: str) -> pa.RecordBatchReader:
    """A reader over dicts; a column that one of them lacks is null there."""
    dicts = list(rows)
    if not all(isinstance(row, Mapping) for row in dicts):
        raise SchemaError(f"{what}: among the dicts is something else; give only dicts, one for each row")
    names = dict.fromkeys(name for row in dicts for name in row)
    columns = {}
    for name in names:
        try:
            columns[str(name)] = pa.array([row.get(name) for row in dicts])
        except (pa.ArrowException, OverflowError) as error:
            why = str(error).splitlines()[0]
            raise SchemaError(f"{what}: column {name!r} has values that are not of one type ({why})") from None
    return pa.table(columns).to_reader()


def _chain(first: pa.RecordBatch | pa.Table, rest: Iterator[Any], what: str) -> Iterator[pa.RecordBatch]:
    for piece in chain([first], rest):
        if not isinstance(piece, (pa.RecordBatch, pa.Table)):
            raise SchemaError(
                f"{what}: among the batches is a {type(piece).__name__}; give only Arrow batches or tables"
            )
        if not piece.schema.equals(first.schema):
            raise SchemaError(f"{what}: the batches of one append have different schemas; give them one by one")
        yield from piece.to_batches() if isinstance(piece, pa.Table) else (piece,)


def match_columns(source: pa.Schema, wanted: pa.Schema, stream: str, optional: Collection[str] = ()) -> list[int]:
    """Where each wanted column is in the given schema (-1: nowhere), or an error that names every difference."""
    if source.equals(wanted):
        return list(range(len(wanted)))
    problems = [f"column {name!r} is not in the stream" for name in source.names if name not in wanted.names]
    positions, advice = [], ""
    for field in wanted:
        position = source.names.index(field.name) if source.names.count(field.name) == 1 else -1
        if position < 0 and field.name in optional and field.name not in source.names:
            positions.append(position)
            continue
        if position < 0:
            problems.append(
                f"column {field.name!r} ({field.type}) is missing"
                if field.name not in source.names
                else f"column {field.name!r} occurs twice"
            )
        elif not _fits(source.field(position).type, field.type):
            problems.append(f"column {field.name!r} is {source.field(position).type}, the stream has {field.type}")
            advice = "cast it first, since types change by themselves only where no value can be lost; "
        positions.append(position)
    if problems:
        raise SchemaError(f"stream {stream!r}: {'; '.join(problems)}; {advice}nothing was appended")
    return positions


def _fits(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of `source` can be values of `wanted`; the cast notices one that cannot."""
    if source.equals(wanted) or pa.types.is_null(source):
        return True
    if is_list_view(source):
        return _fits(without_list_view(source), wanted)
    if pa.types.is_dictionary(source) or pa.types.is_dictionary(wanted):
        return _fits(_plain(source), _plain(wanted))
    if pa.types.is_interval(source) and pa.types.is_duration(wanted):
        return True
    if _is_text(source) and pa.types.is_timestamp(wanted):
        return True
    is_ = pa.types
    same_family = (
        _is_text, _is_binary, _is_number, _is_exact_number, is_.is_timestamp, is_.is_date, is_.is_time, is_.is_duration
    )  # fmt: skip
    if any(family(source) and family(wanted) for family in same_family):
        return True
    if pa.types.is_nested(source) and pa.types.is_nested(wanted):
        return _nested_fits(source, wanted)
    return False


def _nested_fits(source: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(source) and pa.types.is_struct(wanted):
        names = [source.field(i).name for i in range(source.num_fields)]
        if names != [wanted.field(i).name for i in range(wanted.num_fields)]:
            return False
    elif not (_is_list(source) and _is_list(wanted)) and source.id != wanted.id:
        return False
    inner = [(source.field(i).type, wanted.field(i).type) for i in range(min(source.num_fields, wanted.num_fields))]
    return source.num_fields == wanted.num_fields and all(_fits(a, b) and not _is_noticed_by_us(a, b) for a, b in inner)


def _is_noticed_by_us(source: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether only `_convert` would notice a value that does not fit; it does not look into nested ones."""
    if pa.types.is_floating(source) and pa.types.is_floating(wanted):
        return bool(source.bit_width > wanted.bit_width)
    return _is_text(source) and not _is_text(wanted)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_exact_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _conform(
    reader: pa.RecordBatchReader, schema: pa.Schema, plan: list[int], stream: str, judged: Collection[str]
) -> Iterator[pa.RecordBatch]:
    before = 0
    for batch in reader:
        for position, field in zip(plan, schema, strict=True):
            if position >= 0 and is_checked((column := batch.column(position)).type):
                check_values(column, field.name, f"stream {stream!r}", rejected=field.name in judged)
        columns = [
            pa.nulls(batch.num_rows, field.type)
            if position < 0
            else _cast(batch.column(position), field, stream, before)
            for position, field in zip(plan, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        before += batch.num_rows


_MOST_SHOWN = 80
"""Characters of a text that an error shows."""
_CAST_ERRORS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def _cast(column: pa.Array, field: pa.Field, stream: str, before: int) -> pa.Array:
    if column.null_count and not field.nullable:
        raise SchemaError(
            f"stream {stream!r}: column {field.name!r} is not nullable but has {column.null_count} nulls; "
            "nothing was appended"
        )
    if column.type.equals(field.type):
        return column
    if is_list_view(column.type):
        return _cast(to_plain_list(column), field, stream, before)
    try:
        return _convert(column, field.type)
    except _CAST_ERRORS as error:
        first = find_first_failing(len(column), lambda start, end: _fails(column.slice(start, end - start), field.type))
        place = f"stream {stream!r}: row {before + first + 1:,}, column {field.name!r}"
        if _is_text(column.type):  # Arrow would name what the text was made into before it was read
            text = repr(column[first].as_py())
            text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
            raise SchemaError(f"{place}: {text} cannot be read as {field.type}; nothing was appended") from None
        raise SchemaError(
            f"{place} cannot become {field.type} without loss ({str(error).splitlines()[0]}); nothing was appended"
        ) from None


def _fails(column: pa.Array, kind: pa.DataType) -> bool:
    try:
        _convert(column, kind)
    except _CAST_ERRORS:
        return True
    return False


def _convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as those of another type; raises one of `_CAST_ERRORS` where that would lose something."""
    if pa.types.is_dictionary(kind):
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return pc.dictionary_encode(_convert(plain, kind.value_type)).cast(kind)
    if pa.types.is_dictionary(column.type):
        return _convert(column.dictionary_decode(), kind)
    if pa.types.is_interval(column.type):
        return to_durations(column, kind)
    if _is_text(column.type) and pa.types.is_timestamp(kind):
        return parse_iso(column.cast(pa.string()), kind)
    converted = column.cast(kind)
    if pa.types.is_floating(kind) and pa.types.is_floating(column.type) and kind.bit_width < column.type.bit_width:
        back = converted.cast(column.type)
        same = pc.or_kleene(pc.equal(back, column), pc.and_(pc.is_nan(back), pc.is_nan(column)))
        if pc.all(same).as_py() is False:
            raise pa.ArrowInvalid("a number has more digits than that")
    return converted

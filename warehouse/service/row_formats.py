"""Rows in the bodies of requests and responses: JSON, JSON lines, CSV, Arrow IPC and Parquet, by media type."""

import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windrow.cli.readers import ReadOptions, infer_file_schema, read_files
from windrow.cli.writers import convert_for_arrow, convert_for_parquet
from windrow.errors import SchemaError, WindrowError
from windrow.formats.text import distinct_names, encode_csv, encode_json, encode_json_lines, json_values, type_name

JSON, JSON_LINES, CSV = "application/json", "application/x-ndjson", "text/csv"
ARROW, PARQUET = "application/vnd.apache.arrow.stream", "application/vnd.apache.parquet"
WRITTEN = (JSON, JSON_LINES, CSV, ARROW, PARQUET)
"""What answers can be had as; the first is the default."""
READ = {ARROW: "arrow", PARQUET: "parquet", JSON_LINES: "json", JSON: "json", CSV: "csv"}
"""What rows can be sent as, and the name of the format."""
_RISKY = "=+-@\t\r"
"""A spreadsheet takes a cell that begins so for a formula."""


def choose(accept: str) -> str | None:
    """The format that an Accept header wants, None if none of ours."""
    choices = []
    for position, part in enumerate(accept.split(",")):
        name, *options = (piece.strip() for piece in part.lower().split(";"))
        quality = next((option[2:] for option in options if option.startswith("q=")), "1")
        try:
            choices.append((-float(quality), position, name))
        except ValueError:
            continue
    for negative, _, name in sorted(choices):
        if negative < 0:
            if name in ("*/*", "application/*", ""):
                return JSON
            if name in WRITTEN:
                return name
    return None if accept.strip() else JSON


def encode(
    media: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], about: dict[str, Any], *, escape: bool
) -> Iterator[list[Any]]:
    """The bytes of an answer as lists of buffers, one for each step as its batches come."""
    if media == JSON:
        yield from ([text] for text in _encode_json(schema, batches, about))
    elif media == JSON_LINES:
        yield from ([text] for text, _ in encode_json_lines(batches))
    elif media == CSV:
        yield from ([text] for text, _ in encode_csv(map(_escape_formulas, batches) if escape else batches, schema))
    else:
        yield from _encode_file(media, schema, batches, about)


def _encode_file(
    media: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], about: dict[str, Any]
) -> Iterator[list[Any]]:
    """An Arrow IPC stream or a Parquet file, with what is known of the answer in its metadata."""
    full = schema.with_metadata({**(schema.metadata or {}), b"windrow": encode_json(about)})
    rows = pa.RecordBatchReader.from_batches(full, (batch.replace_schema_metadata(full.metadata) for batch in batches))
    reader = (convert_for_arrow if media == ARROW else convert_for_parquet)(rows)
    pieces: list[Any] = []
    with pa.PythonFile(_Pieces(pieces), mode="w") as file:
        writer: Any = (
            pa.ipc.new_stream(file, reader.schema) if media == ARROW else pq.ParquetWriter(file, reader.schema)
        )
        with writer:
            for batch in reader:
                writer.write_batch(batch)
                yield pieces.copy()
                pieces.clear()
    yield pieces


class _Pieces(io.RawIOBase):
    """A file that collects what is written to it."""

    def __init__(self, pieces: list[Any]) -> None:
        super().__init__()
        self._pieces = pieces

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(data)  # bytes, or a buffer that holds its memory
        return len(data)


def _encode_json(schema: pa.Schema, batches: Iterable[pa.RecordBatch], about: dict[str, Any]) -> Iterator[bytes]:
    """One object: the columns, the rows as arrays, and what is known of the answer."""
    names = distinct_names(schema.names)
    columns = [{"name": name, "type": type_name(field)} for name, field in zip(names, schema, strict=True)]
    yield b'{"columns":' + encode_json(columns) + b',"rows":['
    first = True
    for batch in batches:
        values = [json_values(column, field) for column, field in zip(batch.columns, schema, strict=True)]
        rows = [encode_json(row) for row in zip(*values, strict=True)] if values else []
        if rows:
            yield (b"" if first else b",") + b",".join(rows)
            first = False
    yield b'],"about":' + encode_json(about) + b"}\n"


def dump_json(value: Any) -> bytes:
    """A value as text."""
    return json.dumps(value, default=_plain, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def _escape_formulas(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Text that a spreadsheet would run begins with an apostrophe."""
    columns = []
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            text = column.cast(pa.large_string())
            risky = pc.is_in(pc.utf8_slice_codeunits(text, 0, 1), value_set=pa.array(list(_RISKY), pa.large_string()))
            columns.append(pc.if_else(risky, pc.binary_join_element_wise(_text("'"), text, _text("")), text))
        else:
            columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _text(value: str) -> pa.Scalar:
    return pa.scalar(value, pa.large_string())


@contextmanager
def reading(
    path: str, media: str, schema: pa.Schema, stream: str, optional: tuple[str, ...]
) -> Iterator[pa.RecordBatchReader]:
    """The rows of a body that was received into a file."""
    if media not in READ:
        raise SchemaError(f"rows cannot be sent as {media!r}; send {', '.join(READ)}")
    with _naming_the_body(path):
        yield read_files([path], schema, stream, ReadOptions(READ[media]), lambda _: None, optional)


@contextmanager
def reading_table(path: str, media: str) -> Iterator[Any]:
    """The rows of a body with whatever columns they have."""
    with _naming_the_body(path):
        if media == JSON:
            yield _read_array(path)
        else:
            options = ReadOptions(READ[media])
            yield read_files([path], infer_file_schema(path, options, ()), "the table", options, lambda _: None)


def _read_array(path: str) -> pa.Table:
    with open(path, "rb") as file:
        try:
            return pa.Table.from_pylist(json.load(file))
        except (ValueError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
            raise SchemaError(f"the body is no array of objects with the same columns: {error}") from None


@contextmanager
def _naming_the_body(path: str) -> Iterator[None]:
    """Errors name the body, and not the file that it was received into."""
    try:
        yield
    except WindrowError as error:
        raise type(error)(str(error).replace(path, "the body")) from None


@contextmanager
def received(folder: str | None = None) -> Iterator[Any]:
    """A file for a body, gone when it is closed."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="windrow-body-") as file:
        os.fchmod(file.fileno(), 0o600)
        yield file

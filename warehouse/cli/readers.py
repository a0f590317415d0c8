"""Rows out of files: CSV, JSON, Parquet and Arrow, read in pieces and typed by the stream's schema.

Rows out of JSON, one object a line or one array, read in blocks of lines and typed by the stream's schema.

An object may leave out columns: they are null. A column that the stream has not is refused.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windrow.cli.cells import (
    build_value_error,
    convert_checked,
    find_first_failing,
    find_intermediate_type,
    unquote_numbers,
)
from windrow.errors import SchemaError, StorageError, WindrowError

if TYPE_CHECKING:
    import pyarrow as pa

_JSON_BLOCK = 4 << 20
_ARRAY_ROWS = 8192
_TYPE_CHANGE = re.compile(r"Column\(/([^/]*)[^)]*\) changed from \w+ to \w+ in row (\d+)")
_NO_OBJECT = re.compile(r"Column\(\) changed from object to \w+ in row (\d+)")
_PARSE_ERROR = re.compile(r"JSON parse error: (.*?)\.? in row (\d+)")


def read_first_byte(plain: "pa.NativeFile") -> bytes:
    """The first byte that is not white space."""
    while more := bytes(plain.read(4096)):
        if found := more.strip():
            return found[:1]
    return b""


def read_line_blocks(plain: "pa.NativeFile") -> Iterator[bytes]:
    """Whole lines, some megabytes at a time."""
    rest = b""
    while more := bytes(plain.read(_JSON_BLOCK)):
        cut = more.rfind(b"\n") + 1
        if cut:
            yield rest + more[:cut]
            rest = more[cut:]
        else:
            rest += more
    yield rest


def read_array_blocks(plain: "pa.NativeFile") -> Iterator[bytes]:
    """One array of objects, as some programs write it, as lines: it can only be read whole."""
    rows = iter(json.loads(bytes(plain.read())))
    while piece := list(itertools.islice(rows, _ARRAY_ROWS)):
        yield "\n".join(json.dumps(row, ensure_ascii=False) for row in piece).encode()


def parse_blocks(blocks: Iterator[bytes], schema: "pa.Schema") -> "pa.RecordBatchReader":
    """The rows of blocks of lines; dictionaries come plain."""
    import pyarrow as pa

    made = pa.schema(
        [f.with_type(f.type.value_type).with_nullable(True) if pa.types.is_dictionary(f.type) else f for f in schema]
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        done = 0
        for text in blocks:
            lines = unquote_numbers(text, schema)
            if not lines.strip():
                continue
            block = _JsonBlock(lines, schema, done)
            for batch in block.read():
                columns = [convert_checked(batch.column(f.name), f, done) for f in made]
                yield pa.RecordBatch.from_arrays(columns, names=made.names)
                done += batch.num_rows

    return pa.RecordBatchReader.from_batches(pa.schema([(f.name, f.type) for f in made]), pieces())


@dataclass(frozen=True)
class _JsonBlock:
    """Some lines of a file, after `before` others."""

    lines: bytes
    schema: "pa.Schema"
    before: int

    def read(self) -> "list[pa.RecordBatch]":
        """The lines, with the columns of the schema as their carriers."""
        import pyarrow as pa

        self._check_text()
        wanted = pa.schema([pa.field(f.name, self._carrier(f)) for f in self.schema])
        try:
            found = _parse_lines(self.lines, wanted, "infer")
        except pa.ArrowException as error:
            raise self._told(str(error).splitlines()[0], wanted) from None
        unknown = [name for name in found.schema.names if name not in wanted.names]
        if unknown:
            told = "; ".join(f"column {name!r} is not in the stream" for name in unknown)
            raise SchemaError(f"{told}; nothing was appended")
        batches: list[pa.RecordBatch] = found.to_batches()
        return batches

    def _check_text(self) -> None:
        """Arrow's reader takes any bytes for text."""
        try:
            self.lines.decode()
        except UnicodeDecodeError as error:
            row = self.before + self.lines.count(b"\n", 0, error.start) + 1
            raise SchemaError(f"row {row:,} is not text in UTF-8; nothing was appended") from None

    def _carrier(self, field: "pa.Field") -> "pa.DataType":
        """As for all text, but durations may also be numbers, which count the column's unit."""
        import pyarrow as pa

        if pa.types.is_duration(field.type):
            name = re.escape(json.dumps(field.name, ensure_ascii=False).encode())
            if re.search(rb"(?<!\\)" + name + rb"\s*:\s*-?\d", self.lines):
                return pa.int64()
        return find_intermediate_type(field.type, json=True)

    def _told(self, why: str, wanted: "pa.Schema") -> SchemaError:
        """What is wrong, with the row and, if it is a value, the column and the value."""
        lines = [line for line in self.lines.splitlines() if line.strip()]
        if found := _TYPE_CHANGE.search(why):
            return self._mistake(lines, int(found[2]), found[1])
        if found := _NO_OBJECT.search(why):
            return SchemaError(f"row {self.before + int(found[1]) + 1:,} is not a JSON object; nothing was appended")
        if found := _PARSE_ERROR.search(why):
            return SchemaError(f"row {self.before + int(found[2]) + 1:,}: {found[1]}; nothing was appended")
        for column in wanted:
            alone = wanted.empty_table().select([column.name]).schema
            if _fails_to_parse(lines, alone):

                def fails(start: int, end: int, alone: "pa.Schema" = alone) -> bool:
                    return _fails_to_parse(lines[start:end], alone)

                return self._mistake(lines, find_first_failing(len(lines), fails), column.name)
        return SchemaError(f"{why}; nothing was appended")

    def _mistake(self, lines: list[bytes], at: int, name: str) -> SchemaError:
        row = self.before + at + 1
        try:
            value = json.loads(lines[at]).get(name)
        except ValueError:
            return SchemaError(f"row {row:,} is not a whole JSON object; nothing was appended")
        if name not in self.schema.names:
            return SchemaError(f"column {name!r} is not in the stream; nothing was appended")
        return build_value_error(row, self.schema.field(name), value)


def _fails_to_parse(lines: list[bytes], alone: "pa.Schema") -> bool:
    import pyarrow as pa

    try:
        _parse_lines(b"\n".join(lines), alone, "ignore")
    except pa.ArrowException:
        return True
    return False


def _parse_lines(lines: bytes, wanted: "pa.Schema", unexpected: str) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.json as pj

    return pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(block_size=len(lines) + 64),
        parse_options=pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior=unexpected),
    )


FORMATS = ("csv", "json", "parquet", "arrow")
STDIN = "-"
_SUFFIXES = {
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
    "ipc": "arrow",
    "feather": "arrow",
}
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
_BLOCK = 4 << 20


@dataclass(frozen=True)
class ReadOptions:
    """How text files are to be read."""

    format: str | None = None
    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ()


def find_format(path: str, given: str | None) -> str:
    """The format of a file, as given or by its suffix."""
    if given is not None:
        return given
    if path == STDIN:
        raise SchemaError(f"standard input has no suffix; say what it is with --format {'|'.join(FORMATS)}")
    parts = os.path.basename(path).lower().split(".")
    if len(parts) > 1 and parts[-1] in _COMPRESSIONS:
        parts.pop()
    if len(parts) < 2 or parts[-1] not in _SUFFIXES:
        raise SchemaError(f"{path} has no suffix that tells its format; say it with --format {'|'.join(FORMATS)}")
    return _SUFFIXES[parts[-1]]


def count_bytes(paths: Sequence[str]) -> int | None:
    """How much there is to read, None if that cannot be known."""
    if not all(os.path.isfile(path) for path in paths):
        return None
    return sum(os.path.getsize(path) for path in paths)


def read_files(
    paths: Sequence[str],
    schema: "pa.Schema",
    stream: str,
    reading: ReadOptions,
    moved: Callable[[int], None],
    optional: Sequence[str] = (),
) -> "pa.RecordBatchReader":
    """The rows of all files in the stream's schema, one file after the other, never a whole file at once.

    A file may lack columns that are `optional`.
    """
    import pyarrow as pa

    for path in paths:
        find_format(path, reading.format)
        _check_exists(path)
    return pa.RecordBatchReader.from_batches(schema, _read_rows(paths, schema, stream, reading, moved, optional))


def _check_exists(path: str) -> None:
    if path != STDIN and os.path.isdir(path):
        raise StorageError(f"{path} is a folder; name the files in it; nothing was appended")
    if path != STDIN and not os.path.exists(path):
        raise StorageError(f"there is no file {path}; nothing was appended")


def _read_rows(
    paths: Sequence[str],
    schema: "pa.Schema",
    stream: str,
    reading: ReadOptions,
    moved: Callable[[int], None],
    optional: Sequence[str],
) -> "Iterator[pa.RecordBatch]":
    from windrow.arrow_input import conform_batches

    done = 0
    for path in paths:
        name = "standard input" if path == STDIN else path
        with _name_file_in_errors(name), _open_input(path) as source:
            reader = _READERS[find_format(path, reading.format)](source, schema, reading)
            for batch in conform_batches(reader, schema, stream, optional):
                moved(done + source.position())
                yield batch
            done += source.size
            moved(done)


@contextlib.contextmanager
def _name_file_in_errors(name: str) -> Iterator[None]:
    """Errors that say which file they are about."""
    import pyarrow as pa

    try:
        yield
    except WindrowError as error:
        raise type(error)(f"{name}: {error}") from None
    except (pa.ArrowException, UnicodeDecodeError, json.JSONDecodeError) as error:
        why = (str(error).splitlines() or ["cannot be read"])[0]
        raise SchemaError(f"{name}: {why}; nothing was appended") from None
    except OSError as error:
        raise StorageError(f"{name} cannot be read ({error.strerror or error}); nothing was appended") from None


@dataclass(frozen=True)
class _InputFile:
    """An open file, and how it is packed."""

    path: str
    raw: "pa.NativeFile"
    codec: str | None
    size: int
    unpacked: "list[pa.NativeFile]" = field(default_factory=list)
    """Kept, because one that is forgotten closes the file under the others."""

    def position(self) -> int:
        """Bytes read so far."""
        return min(self.size, int(self.raw.tell()))

    def plain(self) -> "pa.NativeFile":
        """The unpacked text or bytes, from the beginning."""
        import pyarrow as pa

        self.raw.seek(0)
        if self.codec is None:
            return self.raw
        self.unpacked.append(pa.CompressedInputStream(self.raw, self.codec))
        return self.unpacked[-1]

    def seekable(self) -> "pa.NativeFile":
        """The unpacked file for readers that jump about."""
        return self.plain() if self.codec is None else _copy_to_file(self.plain())


@contextlib.contextmanager
def _open_input(path: str) -> Iterator[_InputFile]:
    import pyarrow as pa

    if path == STDIN:
        raw = _copy_to_file(sys.stdin.buffer)
    elif os.path.isfile(path):
        raw = pa.OSFile(path)
    else:
        with open(path, "rb") as pipe:
            raw = _copy_to_file(pipe)
    with raw:
        yield _InputFile(path, raw, _COMPRESSIONS.get(path.lower().rsplit(".", 1)[-1]), raw.size())


def _copy_to_file(pipe: Any) -> "pa.NativeFile":
    """What comes through a pipe, as a temporary file: Arrow's readers cannot be interrupted on a silent pipe."""
    import pyarrow as pa

    with tempfile.NamedTemporaryFile(prefix="windrow-") as copy:
        shutil.copyfileobj(pipe, copy, 1 << 20)
        copy.flush()
        return pa.OSFile(copy.name)


def _read_csv(source: _InputFile, schema: "pa.Schema", reading: ReadOptions) -> "pa.RecordBatchReader":
    import pyarrow as pa

    kinds = {field.name: find_intermediate_type(field.type, json=False) for field in schema}
    try:
        reader = _open_csv(source, schema, reading, kinds)
    except pa.ArrowInvalid as error:
        raise _find_csv_error(source, schema, reading, error) from None

    def batches() -> "Iterator[pa.RecordBatch]":
        try:
            yield from reader
        except pa.ArrowInvalid as error:
            raise _find_csv_error(source, schema, reading, error) from None

    return _convert_columns(pa.RecordBatchReader.from_batches(reader.schema, batches()), schema)


def _open_csv(
    source: _InputFile, schema: "pa.Schema", reading: ReadOptions, kinds: "Mapping[str, pa.DataType]"
) -> "pa.RecordBatchReader":
    import pyarrow.csv as pcsv

    return pcsv.open_csv(
        source.plain(),
        read_options=pcsv.ReadOptions(
            block_size=_BLOCK, column_names=None if reading.header else schema.names, use_threads=True
        ),
        parse_options=_csv_parse_options(source.path, reading),
        convert_options=pcsv.ConvertOptions(
            column_types=kinds,
            null_values=sorted({"", *reading.nulls}),
            strings_can_be_null=True,
            quoted_strings_can_be_null="" in reading.nulls,
        ),
    )


def _find_csv_error(source: _InputFile, schema: "pa.Schema", reading: ReadOptions, error: Exception) -> SchemaError:
    """Which cell it was that Arrow stumbled over: the file is read again, as text, up to there."""
    import pyarrow as pa

    why = str(error).splitlines()[0]
    found = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", why)
    if found is None:
        return SchemaError(f"{why}; nothing was appended")
    at, done = int(found[1]), 0
    reader = _open_csv(source, schema, reading, {field.name: pa.string() for field in schema})
    name = reader.schema.names[at]
    if name in schema.names:
        for batch in reader:
            try:
                convert_checked(batch.column(at), schema.field(name), done)
            except SchemaError as mistake:
                return mistake
            done += batch.num_rows
    return SchemaError(f"column {name!r}: {found[2]}; nothing was appended")


def _csv_parse_options(path: str, reading: ReadOptions) -> Any:
    import pyarrow.csv as pcsv

    tabs = re.search(r"\.tsv(\.\w+)?$", path.lower()) is not None
    delimiter = (reading.delimiter or ("\t" if tabs else ",")).replace("\\t", "\t")
    return pcsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)


def _read_json(source: _InputFile, schema: "pa.Schema", reading: ReadOptions) -> "pa.RecordBatchReader":  # noqa: ARG001
    array = read_first_byte(source.plain()) == b"["
    return parse_blocks((read_array_blocks if array else read_line_blocks)(source.plain()), schema)


def _read_parquet(source: _InputFile, schema: "pa.Schema", reading: ReadOptions) -> "pa.RecordBatchReader":  # noqa: ARG001
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source.seekable())
    reader = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(batch_size=1 << 16))
    return _parse_durations(reader, schema)


def _parse_durations(reader: "pa.RecordBatchReader", schema: "pa.Schema") -> "pa.RecordBatchReader":
    """Words as the durations that they stand for: `windrow sql` writes them, since Parquet has no intervals."""
    import pyarrow as pa

    spans = {f.name for f in schema if pa.types.is_duration(f.type)}
    told = [at for at, f in enumerate(reader.schema) if f.name in spans and pa.types.is_string(f.type)]
    made: pa.Schema = reader.schema
    for at in told:
        made = made.set(at, schema.field(made.names[at]))

    def pieces() -> "Iterator[pa.RecordBatch]":
        done = 0
        for batch in reader:
            columns = [
                convert_checked(c, made.field(at), done) if at in told else c for at, c in enumerate(batch.columns)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=made)
            done += batch.num_rows

    return pa.RecordBatchReader.from_batches(made, pieces()) if told else reader


def _read_arrow(source: _InputFile, schema: "pa.Schema", reading: ReadOptions) -> "pa.RecordBatchReader":  # noqa: ARG001
    import pyarrow as pa

    file = source.seekable()
    head = bytes(file.read(6))
    file.seek(0)
    if head != b"ARROW1":
        return pa.ipc.open_stream(file)
    whole = pa.ipc.open_file(file)
    pieces = (whole.get_batch(at) for at in range(whole.num_record_batches))
    return pa.RecordBatchReader.from_batches(whole.schema, pieces)


def _convert_columns(reader: "pa.RecordBatchReader", schema: "pa.Schema") -> "pa.RecordBatchReader":
    """The columns that were read as carriers, as what the stream has; unknown columns stay for the intake to name."""
    import pyarrow as pa

    given: pa.Schema = reader.schema
    fields = [schema.field(f.name) if f.name in schema.names and given.names.count(f.name) == 1 else f for f in given]
    plain = [pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in fields]
    made = pa.schema(plain)

    def pieces() -> "Iterator[pa.RecordBatch]":
        done = 0
        for batch in reader:
            columns = [convert_checked(batch.column(at), field, done) for at, field in enumerate(made)]
            yield pa.RecordBatch.from_arrays(columns, schema=made)
            done += batch.num_rows

    return pa.RecordBatchReader.from_batches(made, pieces())


_READERS = {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet, "arrow": _read_arrow}


def infer_schema(path: str, reading: ReadOptions, times: Sequence[str]) -> "pa.Schema":
    """The schema that a file has or suggests; the columns in `times` are read as times if they are text."""
    import pyarrow as pa

    kind = find_format(path, reading.format)
    if not os.path.isfile(path):
        folder, there = os.path.isdir(path), os.path.exists(path)
        wrong = f"{path} is a {'folder' if folder else 'pipe'}" if there else f"there is no file {path}"
        raise StorageError(f"{wrong}; name a file that has the columns")
    with _explain_schema_errors(path), _open_input(path) as source:
        if kind in ("parquet", "arrow"):
            found: pa.Schema = _READERS[kind](source, pa.schema([]), reading).schema
            return found.remove_metadata()
        return pa.schema([_widen_field(field, kind, times) for field in _infer_text_schema(source, kind, reading)])


@contextlib.contextmanager
def _explain_schema_errors(path: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise SchemaError(f"the columns of {path} cannot be told: {str(error).splitlines()[0]}") from None


def _infer_text_schema(source: _InputFile, format: str, reading: ReadOptions) -> "pa.Schema":
    import pyarrow.csv as pcsv
    import pyarrow.json as pj

    if format == "csv":
        read = pcsv.ReadOptions(block_size=_BLOCK, autogenerate_column_names=not reading.header)
        return pcsv.open_csv(
            source.plain(), read_options=read, parse_options=_csv_parse_options(source.path, reading)
        ).schema
    return pj.open_json(source.plain(), read_options=pj.ReadOptions(block_size=_BLOCK)).schema


def _widen_field(field: "pa.Field", format: str, times: Sequence[str]) -> "pa.Field":
    """What text suggests, made safe: whole seconds may be followed by fractions, an empty column may hold anything."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC" if format == "json" else kind.tz)
    elif pa.types.is_null(kind):
        kind = pa.string()
    if field.name in times and (pa.types.is_string(kind) or pa.types.is_date(kind)):
        kind = pa.timestamp("us", "UTC")
    return pa.field(field.name, kind)

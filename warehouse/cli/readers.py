"""Readers of CSV, JSON, Parquet and Arrow files for the command line, never a whole file in memory.

Rows come in the stream's types. A JSON object may leave out columns, which are then null; unknown columns are refused,
and an error names file, row, column and value.
"""

import contextlib
import csv
import glob
import itertools
import json
import os
import re
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windrow.arguments import find_first_failing
from windrow.cli.cells import (
    build_value_error,
    convert_checked,
    find_intermediate_type,
    unquote_numbers,
)
from windrow.cli.flawed_lines import FlawedLines, TextFormat, find_json_type, read_good_lines
from windrow.cli.time_formats import ISO_TIMES, TimeFormat
from windrow.errors import SchemaError, StorageError, WindrowError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("csv", "json", "parquet", "arrow")
STDIN = "-"
_SUFFIXES = {
    "csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet",
    "pq": "parquet", "arrow": "arrow", "arrows": "arrow", "ipc": "arrow", "feather": "arrow",
}  # fmt: skip
_COMPRESSIONS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}
_BLOCK_BYTES = 4 << 20
"""How much text is parsed at a time."""
_SIGNAL_SECONDS = 0.2
"""How often a wait for a silent pipe looks for signals."""
_ARRAY_ROWS = 8192
"""How many objects of a JSON array are parsed at a time."""
_TYPE_CHANGE = re.compile(r"Column\(/([^/]*)[^)]*\) changed from \w+ to \w+ in row (\d+)")
_NO_OBJECT = re.compile(r"Column\(\) changed from object to \w+ in row (\d+)")
_WRONG_LENGTH = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+): (.*)")
_PARSE_ERROR = re.compile(r"JSON parse error: (.*?)\.? in row (\d+)")


def read_first_byte(plain: "pa.NativeFile") -> bytes:
    """Read the first byte that is not white space."""
    while chunk := bytes(plain.read(4096)):
        if text := chunk.strip():
            return text[:1]
    return b""


def read_line_blocks(plain: "pa.NativeFile") -> Iterator[bytes]:
    """Read whole lines, some megabytes at a time."""
    incomplete = b""
    while chunk := bytes(plain.read(_BLOCK_BYTES)):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield incomplete + chunk[:end]
            incomplete = chunk[end:]
        else:
            incomplete += chunk
    yield incomplete


def read_array_blocks(plain: "pa.NativeFile") -> Iterator[bytes]:
    """Read one array of objects as lines. It can only be read whole, but some programs write it."""
    rows = iter(json.loads(bytes(plain.read())))
    while some := list(itertools.islice(rows, _ARRAY_ROWS)):
        yield "\n".join(json.dumps(row, ensure_ascii=False) for row in some).encode()


def parse_blocks(blocks: Iterator[bytes], schema: "pa.Schema", times: TimeFormat = ISO_TIMES) -> "pa.RecordBatchReader":
    """Parse blocks of JSON lines; dictionaries come plain."""
    import pyarrow as pa

    plain_schema = pa.schema(
        [f.with_type(f.type.value_type).with_nullable(True) if pa.types.is_dictionary(f.type) else f for f in schema]
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        row_count = 0
        for text in blocks:
            lines = unquote_numbers(text, schema)
            if not lines.strip():
                continue
            block = _JsonBlock(lines, schema, row_count, times)
            for batch in block.read():
                columns = [convert_checked(batch.column(f.name), f, row_count, times.convert) for f in plain_schema]
                yield pa.RecordBatch.from_arrays(columns, names=plain_schema.names)
                row_count += batch.num_rows

    return pa.RecordBatchReader.from_batches(pa.schema([(f.name, f.type) for f in plain_schema]), pieces())


@dataclass(frozen=True)
class _JsonBlock:
    """Some lines of a JSON file, which follow `before` others."""

    lines: bytes
    schema: "pa.Schema"
    before: int
    times: TimeFormat = ISO_TIMES

    def read(self) -> "list[pa.RecordBatch]":
        """Parse the lines into the intermediate types of the schema's columns."""
        import pyarrow as pa

        self._check_text()
        intermediate = pa.schema([pa.field(f.name, self._find_intermediate(f)) for f in self.schema])
        try:
            table = _parse_lines(self.lines, intermediate, "infer")
        except pa.ArrowException as error:
            raise self._explain(str(error).splitlines()[0], intermediate) from None
        unknown = [name for name in table.schema.names if name not in intermediate.names]
        if unknown:
            differences = "; ".join(f"column {name!r} is not in the stream" for name in unknown)
            raise SchemaError(f"{differences}; nothing was appended")
        batches: list[pa.RecordBatch] = table.to_batches()
        return batches

    def _check_text(self) -> None:
        """Refuse what is not UTF-8, which Arrow's reader would accept."""
        try:
            self.lines.decode()
        except UnicodeDecodeError as error:
            row = self.before + self.lines.count(b"\n", 0, error.start) + 1
            raise SchemaError(f"row {row:,} is not text in UTF-8; nothing was appended") from None

    def _find_intermediate(self, field: "pa.Field") -> "pa.DataType":
        """Find the intermediate type; durations may also be numbers, which count the column's unit."""
        import pyarrow as pa

        if pa.types.is_duration(field.type):
            name = re.escape(json.dumps(field.name, ensure_ascii=False).encode())
            if re.search(rb"(?<!\\)" + name + rb"\s*:\s*-?\d", self.lines):
                return pa.int64()
        return find_json_type(field.type, self.times)

    def _explain(self, message: str, intermediate: "pa.Schema") -> SchemaError:
        """Explain Arrow's error with the row and, where it is about a value, the column and the value."""
        lines = [line for line in self.lines.splitlines() if line.strip()]
        if match := _TYPE_CHANGE.search(message):
            return self._build_error(lines, int(match[2]), match[1])
        if match := _NO_OBJECT.search(message):
            return SchemaError(f"row {self.before + int(match[1]) + 1:,} is not a JSON object; nothing was appended")
        if match := _PARSE_ERROR.search(message):
            return SchemaError(f"row {self.before + int(match[2]) + 1:,}: {match[1]}; nothing was appended")
        for column in intermediate:
            one_column = intermediate.empty_table().select([column.name]).schema
            if _fails_to_parse(lines, one_column):

                def fails(start: int, end: int, one_column: "pa.Schema" = one_column) -> bool:
                    return _fails_to_parse(lines[start:end], one_column)

                return self._build_error(lines, find_first_failing(len(lines), fails), column.name)
        return SchemaError(f"{message}; nothing was appended")

    def _build_error(self, lines: list[bytes], position: int, name: str) -> SchemaError:
        row = self.before + position + 1
        try:
            value = json.loads(lines[position]).get(name)
        except ValueError:
            return SchemaError(f"row {row:,} is not a whole JSON object; nothing was appended")
        if name not in self.schema.names:
            return SchemaError(f"column {name!r} is not in the stream; nothing was appended")
        return build_value_error(row, self.schema.field(name), value)


def _fails_to_parse(lines: list[bytes], schema: "pa.Schema") -> bool:
    import pyarrow as pa

    try:
        _parse_lines(b"\n".join(lines), schema, "ignore")
    except pa.ArrowException:
        return True
    return False


def _parse_lines(lines: bytes, schema: "pa.Schema", unexpected: str) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.json as pj

    return pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(block_size=len(lines) + 64),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


@dataclass(frozen=True)
class ReadOptions:
    """What the user said about the files to read."""

    format: str | None = None
    delimiter: str | None = None
    header: bool = True
    nulls: tuple[str, ...] = ()
    skip: int = 0
    """Lines before the first, or before the header."""
    times: TimeFormat = ISO_TIMES
    flaws: FlawedLines | None = None
    """Where bad lines of text files go; None: the first one is an error."""


def find_format(path: str, chosen: str | None) -> str:
    """Find the format of a file, as given or by its suffix."""
    if chosen is not None:
        return chosen
    if path == STDIN:
        raise SchemaError(f"standard input has no suffix; say what it is with --format {'|'.join(FORMATS)}")
    parts = os.path.basename(path).lower().split(".")
    if len(parts) > 1 and parts[-1] in _COMPRESSIONS:
        parts.pop()
    if len(parts) < 2 or parts[-1] not in _SUFFIXES:
        raise SchemaError(f"{path} has no suffix that tells its format; say it with --format {'|'.join(FORMATS)}")
    return _SUFFIXES[parts[-1]]


def count_bytes(paths: Sequence[str]) -> int | None:
    """Count how much there is to read; None if that is unknown, as of a pipe."""
    if not all(os.path.isfile(path) for path in paths):
        return None
    return sum(os.path.getsize(path) for path in paths)


def read_files(
    paths: Sequence[str],
    schema: "pa.Schema",
    stream: str,
    options: ReadOptions,
    report_progress: Callable[[int], None],
    optional: Sequence[str] = (),
) -> "pa.RecordBatchReader":
    """Read the rows of all files in the stream's schema, one file after the other.

    A file may lack columns that are `optional`.
    """
    import pyarrow as pa

    options.times.check()
    paths = [file for path in paths for file in expand_pattern(path)]
    for path in paths:
        find_format(path, options.format)
        _check_exists(path)
    return pa.RecordBatchReader.from_batches(
        schema, _read_rows(paths, schema, stream, options, report_progress, optional)
    )


def expand_pattern(path: str) -> list[str]:
    """The files that a pattern such as logs/*.csv names, in order; a path that is none stands for itself."""
    if path == STDIN or os.path.exists(path) or not glob.has_magic(path):
        return [path]
    files = sorted(glob.glob(path, recursive=True))
    if not files:
        raise StorageError(f"no file is called like {path}; nothing was appended")
    return files


def _check_exists(path: str) -> None:
    if path != STDIN and os.path.isdir(path):
        raise StorageError(f"{path} is a folder; name the files in it; nothing was appended")
    if path != STDIN and not os.path.exists(path):
        raise StorageError(f"there is no file {path}; nothing was appended")


def _read_rows(
    paths: Sequence[str],
    schema: "pa.Schema",
    stream: str,
    options: ReadOptions,
    report_progress: Callable[[int], None],
    optional: Sequence[str],
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    from windrow.arrow_input import conform_batches

    judged = [field.name for field in schema if pa.types.is_timestamp(field.type)]  # by who appends them
    bytes_done = 0
    for path in paths:
        name = "standard input" if path == STDIN else path
        with _name_file_in_errors(name), _open_input(path) as source:
            kind = find_format(path, options.format)
            read = _READERS[kind] if options.flaws is None or kind not in _TEXT_READERS else _TEXT_READERS[kind]
            reader = read(source, schema, options)
            for batch in conform_batches(reader, schema, stream, optional, judged):
                report_progress(bytes_done + source.position())
                yield batch
            bytes_done += source.size
            report_progress(bytes_done)


@contextlib.contextmanager
def _name_file_in_errors(name: str) -> Iterator[None]:
    """Let errors say which file they are about."""
    import pyarrow as pa

    try:
        yield
    except WindrowError as error:
        raise type(error)(f"{name}: {error}") from None
    except (pa.ArrowException, UnicodeDecodeError, json.JSONDecodeError) as error:
        message = (str(error).splitlines() or ["cannot be read"])[0]
        raise SchemaError(f"{name}: {message}; nothing was appended") from None
    except OSError as error:
        raise StorageError(f"{name} cannot be read ({error.strerror or error}); nothing was appended") from None


@dataclass(frozen=True)
class _InputFile:
    """An open input file and its compression."""

    path: str
    raw: "pa.NativeFile"
    codec: str | None
    size: int
    decompressed: "list[pa.NativeFile]" = field(default_factory=list)
    """Kept alive, because one that is collected closes the file that all of them read."""

    def position(self) -> int:
        """Bytes of the file that were read so far."""
        return min(self.size, int(self.raw.tell()))

    def plain(self) -> "pa.NativeFile":
        """Open the decompressed content, from the beginning."""
        import pyarrow as pa

        self.raw.seek(0)
        if self.codec is None:
            return self.raw
        self.decompressed.append(pa.CompressedInputStream(self.raw, self.codec))
        return self.decompressed[-1]

    def seekable(self) -> "pa.NativeFile":
        """Open the decompressed content for readers that seek."""
        return self.plain() if self.codec is None else _copy_to_file(self.plain())


@contextlib.contextmanager
def _open_input(path: str) -> Iterator[_InputFile]:
    import pyarrow as pa

    if path == STDIN:
        raw = _copy_to_file(_InterruptiblePipe(sys.stdin.buffer))
    elif os.path.isfile(path):
        raw = pa.OSFile(path)
    else:
        with open(path, "rb") as pipe:
            raw = _copy_to_file(_InterruptiblePipe(pipe))
    with raw:
        yield _InputFile(path, raw, _find_codec(path, raw), raw.size())


def _find_codec(path: str, raw: "pa.NativeFile") -> str | None:
    """How the content is packed: by the suffix or, of what has none such as standard input, by the first bytes."""
    codec = _COMPRESSIONS.get(path.lower().rsplit(".", 1)[-1])
    if codec is None:
        head = raw.read(max(map(len, _FIRST_BYTES)))
        raw.seek(0)
        codec = next((packed for first, packed in _FIRST_BYTES.items() if head.startswith(first)), None)
    return codec


_FIRST_BYTES = {
    b"\x1f\x8b": "gzip", b"BZh91AY&SY": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"
}  # fmt: skip


def _copy_to_file(pipe: Any) -> "pa.NativeFile":
    """Copy a pipe to a temporary file, because Arrow's readers cannot be interrupted while a pipe is silent."""
    import pyarrow as pa

    with tempfile.NamedTemporaryFile(prefix="windrow-") as copy:
        shutil.copyfileobj(pipe, copy, 1 << 20)
        copy.flush()
        return pa.OSFile(copy.name)


@dataclass(frozen=True)
class _InterruptiblePipe:
    """A pipe that is read only when it has something: Ctrl-C right before a read that waits is noticed after it."""

    pipe: Any

    def read(self, size: int) -> bytes:
        """Read what is there, at least a byte before the end; Python looks for signals between two waits."""
        with contextlib.suppress(OSError, ValueError):  # no file of the system, or one that cannot be waited for
            while not select.select([self.pipe.fileno()], [], [], _SIGNAL_SECONDS)[0]:
                pass
        return bytes(self.pipe.read1(size))


def _read_csv(source: _InputFile, schema: "pa.Schema", options: ReadOptions) -> "pa.RecordBatchReader":
    import pyarrow as pa

    kinds = {field.name: find_intermediate_type(field.type, json=False) for field in schema}
    try:
        reader = _open_csv(source, schema, options, kinds)
    except pa.ArrowInvalid as error:
        raise _find_csv_error(source, schema, options, error) from None

    def batches() -> "Iterator[pa.RecordBatch]":
        try:
            yield from reader
        except pa.ArrowInvalid as error:
            raise _find_csv_error(source, schema, options, error) from None

    return _convert_columns(pa.RecordBatchReader.from_batches(reader.schema, batches()), schema, options.times)


def _open_csv(
    source: _InputFile,
    schema: "pa.Schema",
    options: ReadOptions,
    kinds: "Mapping[str, pa.DataType]",
    use_threads: bool = True,
) -> "pa.RecordBatchReader":
    import pyarrow.csv as pcsv

    return pcsv.open_csv(
        source.plain(),
        read_options=pcsv.ReadOptions(
            block_size=_BLOCK_BYTES,
            column_names=None if options.header else schema.names,
            use_threads=use_threads,
            skip_rows=options.skip,
        ),
        parse_options=_csv_parse_options(source.path, options),
        convert_options=pcsv.ConvertOptions(
            column_types=kinds,
            null_values=sorted({"", *options.nulls}),
            strings_can_be_null=True,
            quoted_strings_can_be_null="" in options.nulls,
        ),
    )


def _find_csv_error(source: _InputFile, schema: "pa.Schema", options: ReadOptions, error: Exception) -> SchemaError:
    """Find the cell that Arrow could not parse, by reading the file again as text."""
    import pyarrow as pa

    message = str(error).splitlines()[0]
    match = re.match(r"In CSV column #(\d+): (?:Row #\d+: )?(.*)", message)
    if match is None:
        return SchemaError(f"{_number_csv_error(source, schema, options, message)}; nothing was appended")
    position, row_count = int(match[1]), 0
    reader = _open_csv(source, schema, options, {field.name: pa.string() for field in schema})
    name = reader.schema.names[position]
    if name in schema.names:
        for batch in reader:
            try:
                convert_checked(batch.column(position), schema.field(name), row_count, options.times.convert)
            except SchemaError as value_error:
                return value_error
            row_count += batch.num_rows
    return SchemaError(f"column {name!r}: {match[2]}; nothing was appended")


def _number_csv_error(source: _InputFile, schema: "pa.Schema", options: ReadOptions, message: str) -> str:
    """Arrow's message about a line of the wrong length, with its number, which Arrow counts only without threads."""
    import pyarrow as pa

    if "Expected" not in message:
        return message
    try:
        for _ in _open_csv(source, schema, options, {field.name: pa.string() for field in schema}, use_threads=False):
            pass
    except pa.ArrowInvalid as error:
        message = str(error).splitlines()[0]
    match = _WRONG_LENGTH.match(message)
    if match is None:
        return message
    row = int(match[1]) - options.skip - int(options.header)
    return f"row {row:,} has {match[3]} cells, not {match[2]}: {match[4]}"


def _csv_parse_options(path: str, options: ReadOptions) -> Any:
    import pyarrow.csv as pcsv

    return pcsv.ParseOptions(delimiter=_find_delimiter(path, options), newlines_in_values=True)


def _find_delimiter(path: str, options: ReadOptions) -> str:
    tabs = re.search(r"\.tsv(\.\w+)?$", path.lower()) is not None
    return (options.delimiter or ("\t" if tabs else ",")).replace("\\t", "\t")


def _read_json(source: _InputFile, schema: "pa.Schema", options: ReadOptions) -> "pa.RecordBatchReader":
    return parse_blocks(_open_json_blocks(source, options), schema, options.times)


def _open_json_blocks(source: _InputFile, options: ReadOptions) -> Iterator[bytes]:
    if read_first_byte(source.plain()) == b"[":
        return read_array_blocks(source.plain())
    return _skip_lines(read_line_blocks(source.plain()), options.skip)


def _skip_lines(blocks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for block in blocks:
        rest = block
        while count and rest:
            rest, count = rest.partition(b"\n")[2], count - 1
        yield rest


def _read_good_json(source: _InputFile, schema: "pa.Schema", options: ReadOptions) -> "pa.RecordBatchReader":
    text = TextFormat("json", times=options.times)
    return _collect_flaws(_open_json_blocks(source, options), text, schema, source, options.skip + 1, options)


def _read_good_csv(source: _InputFile, schema: "pa.Schema", options: ReadOptions) -> "pa.RecordBatchReader":

    delimiter = _find_delimiter(source.path, options)
    blocks = _skip_lines(read_line_blocks(source.plain()), options.skip)
    names = list(schema.names)
    if options.header:
        first = next(blocks).removeprefix(b"\xef\xbb\xbf")
        header, _, rest = first.partition(b"\n")
        names = next(csv.reader([header.decode().strip()], delimiter=delimiter), [])
        blocks = itertools.chain([rest], blocks)
    text = TextFormat("csv", tuple(names), delimiter, options.nulls, options.times)
    return _collect_flaws(blocks, text, schema, source, options.skip + 1 + options.header, options)


def _collect_flaws(
    blocks: Iterator[bytes],
    text: TextFormat,
    schema: "pa.Schema",
    source: _InputFile,
    first_line: int,
    options: ReadOptions,
) -> "pa.RecordBatchReader":
    """A reader of the rows that can be read; the other lines go to the options' flaws."""
    import pyarrow as pa

    assert options.flaws is not None
    file = "standard input" if source.path == STDIN else source.path
    tables = read_good_lines(blocks, text, schema, file, first_line, options.flaws)
    first = next(tables, None)
    if first is None:
        return schema.empty_table().to_reader()
    if text.format == "csv":  # columns that are missing, or are not in the stream
        extra = [name for name in text.columns if name not in schema.names]
        first = first if not extra else first.append_column(extra[0], pa.nulls(first.num_rows))
    schema = first.schema

    def batches() -> "Iterator[pa.RecordBatch]":
        for table in itertools.chain([first], tables):
            yield from table.cast(schema).to_batches() if table.schema != schema else table.to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _read_parquet(source: _InputFile, schema: "pa.Schema", options: ReadOptions) -> "pa.RecordBatchReader":  # noqa: ARG001
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source.seekable())
    reader = pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches(batch_size=1 << 16))
    return _parse_durations(reader, schema)


def _parse_durations(reader: "pa.RecordBatchReader", schema: "pa.Schema") -> "pa.RecordBatchReader":
    """Parse durations in words, which `windrow sql` writes because Parquet has no intervals."""
    import pyarrow as pa

    durations = {f.name for f in schema if pa.types.is_duration(f.type)}
    positions = [
        position for position, f in enumerate(reader.schema) if f.name in durations and pa.types.is_string(f.type)
    ]
    converted_schema: pa.Schema = reader.schema
    for position in positions:
        converted_schema = converted_schema.set(position, schema.field(converted_schema.names[position]))

    def pieces() -> "Iterator[pa.RecordBatch]":
        row_count = 0
        for batch in reader:
            columns = [
                convert_checked(column, converted_schema.field(position), row_count)
                if position in positions
                else column
                for position, column in enumerate(batch.columns)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=converted_schema)
            row_count += batch.num_rows

    return pa.RecordBatchReader.from_batches(converted_schema, pieces()) if positions else reader


def _read_arrow(source: _InputFile, schema: "pa.Schema", options: ReadOptions) -> "pa.RecordBatchReader":  # noqa: ARG001
    import pyarrow as pa

    file = source.seekable()
    head = bytes(file.read(6))
    file.seek(0)
    if head != b"ARROW1":
        return pa.ipc.open_stream(file)
    reader = pa.ipc.open_file(file)
    batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    return pa.RecordBatchReader.from_batches(reader.schema, batches)


def _convert_columns(reader: "pa.RecordBatchReader", schema: "pa.Schema", times: TimeFormat) -> "pa.RecordBatchReader":
    """Convert columns to the stream's types; unknown columns stay, so that a later check can name them."""
    import pyarrow as pa

    file_schema: pa.Schema = reader.schema
    fields = [
        schema.field(f.name) if f.name in schema.names and file_schema.names.count(f.name) == 1 else f
        for f in file_schema
    ]
    plain_fields = [pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in fields]
    converted_schema = pa.schema(plain_fields)

    def pieces() -> "Iterator[pa.RecordBatch]":
        row_count = 0
        for batch in reader:
            columns = [
                convert_checked(batch.column(position), field, row_count, times.convert)
                for position, field in enumerate(converted_schema)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=converted_schema)
            row_count += batch.num_rows

    return pa.RecordBatchReader.from_batches(converted_schema, pieces())


_READERS = {"csv": _read_csv, "json": _read_json, "parquet": _read_parquet, "arrow": _read_arrow}
_TEXT_READERS = {"csv": _read_good_csv, "json": _read_good_json}
"""Readers that go on after bad lines."""


def infer_file_schema(path: str, options: ReadOptions, times: Sequence[str]) -> "pa.Schema":
    """Read or infer the schema of a file; text columns named in `times` are timestamps."""
    import pyarrow as pa

    kind = find_format(path, options.format)
    if not os.path.isfile(path):
        folder, exists = os.path.isdir(path), os.path.exists(path)
        problem = f"{path} is a {'folder' if folder else 'pipe'}" if exists else f"there is no file {path}"
        raise StorageError(f"{problem}; name a file that has the columns")
    with _explain_schema_errors(path), _open_input(path) as source:
        if kind in ("parquet", "arrow"):
            schema: pa.Schema = _READERS[kind](source, pa.schema([]), options).schema
            return schema.remove_metadata()
        return pa.schema([_widen_field(field, kind, times) for field in _infer_text_schema(source, kind, options)])


@contextlib.contextmanager
def _explain_schema_errors(path: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise SchemaError(f"the columns of {path} cannot be told: {str(error).splitlines()[0]}") from None


def _infer_text_schema(source: _InputFile, format: str, options: ReadOptions) -> "pa.Schema":
    import pyarrow.csv as pcsv
    import pyarrow.json as pj

    if format == "csv":
        read_options = pcsv.ReadOptions(block_size=_BLOCK_BYTES, autogenerate_column_names=not options.header)
        return pcsv.open_csv(
            source.plain(), read_options=read_options, parse_options=_csv_parse_options(source.path, options)
        ).schema
    return pj.open_json(source.plain(), read_options=pj.ReadOptions(block_size=_BLOCK_BYTES)).schema


def _widen_field(field: "pa.Field", format: str, times: Sequence[str]) -> "pa.Field":
    """Widen an inferred type: fractions may follow whole seconds, and an empty column may hold any text."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC" if format == "json" else kind.tz)
    elif pa.types.is_null(kind):
        kind = pa.string()
    if field.name in times and (pa.types.is_string(kind) or pa.types.is_date(kind)):
        kind = pa.timestamp("us", "UTC")
    return pa.field(field.name, kind)

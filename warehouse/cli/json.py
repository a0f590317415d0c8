"""Rows out of JSON, one object a line or one array, read in blocks of lines and typed by the stream's schema.

An object may leave out columns: they are null. A column that the stream has not is refused.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windrow.cli.cells import carrier, unquoted
from windrow.cli.mistakes import first_failing, mistake, restored
from windrow.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 4 << 20
_ARRAY_ROWS = 8192
_CHANGED = re.compile(r"Column\(/([^/]*)[^)]*\) changed from \w+ to \w+ in row (\d+)")
_NO_OBJECT = re.compile(r"Column\(\) changed from object to \w+ in row (\d+)")
_PARSING = re.compile(r"JSON parse error: (.*?)\.? in row (\d+)")


def first_byte(plain: "pa.NativeFile") -> bytes:
    """The first byte that is not white space."""
    while more := bytes(plain.read(4096)):
        if found := more.strip():
            return found[:1]
    return b""


def line_blocks(plain: "pa.NativeFile") -> Iterator[bytes]:
    """Whole lines, some megabytes at a time."""
    rest = b""
    while more := bytes(plain.read(_BLOCK)):
        cut = more.rfind(b"\n") + 1
        if cut:
            yield rest + more[:cut]
            rest = more[cut:]
        else:
            rest += more
    yield rest


def array_blocks(plain: "pa.NativeFile") -> Iterator[bytes]:
    """One array of objects, as some programs write it, as lines: it can only be read whole."""
    rows = iter(json.loads(bytes(plain.read())))
    while piece := list(itertools.islice(rows, _ARRAY_ROWS)):
        yield "\n".join(json.dumps(row, ensure_ascii=False) for row in piece).encode()


def read_blocks(blocks: Iterator[bytes], schema: "pa.Schema") -> "pa.RecordBatchReader":
    """The rows of blocks of lines; dictionaries come plain."""
    import pyarrow as pa

    made = pa.schema(
        [f.with_type(f.type.value_type).with_nullable(True) if pa.types.is_dictionary(f.type) else f for f in schema]
    )

    def pieces() -> "Iterator[pa.RecordBatch]":
        done = 0
        for text in blocks:
            lines = unquoted(text, schema)
            if not lines.strip():
                continue
            block = _Block(lines, schema, done)
            for batch in block.read():
                columns = [restored(batch.column(f.name), f, done) for f in made]
                yield pa.RecordBatch.from_arrays(columns, names=made.names)
                done += batch.num_rows

    return pa.RecordBatchReader.from_batches(pa.schema([(f.name, f.type) for f in made]), pieces())


@dataclass(frozen=True)
class _Block:
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
            found = _parsed(self.lines, wanted, "infer")
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
        return carrier(field.type, json=True)

    def _told(self, why: str, wanted: "pa.Schema") -> SchemaError:
        """What is wrong, with the row and, if it is a value, the column and the value."""
        lines = [line for line in self.lines.splitlines() if line.strip()]
        if found := _CHANGED.search(why):
            return self._mistake(lines, int(found[2]), found[1])
        if found := _NO_OBJECT.search(why):
            return SchemaError(f"row {self.before + int(found[1]) + 1:,} is not a JSON object; nothing was appended")
        if found := _PARSING.search(why):
            return SchemaError(f"row {self.before + int(found[2]) + 1:,}: {found[1]}; nothing was appended")
        for field in wanted:
            alone = wanted.empty_table().select([field.name]).schema
            if _fails(lines, alone):

                def fails(start: int, end: int, alone: "pa.Schema" = alone) -> bool:
                    return _fails(lines[start:end], alone)

                return self._mistake(lines, first_failing(len(lines), fails), field.name)
        return SchemaError(f"{why}; nothing was appended")

    def _mistake(self, lines: list[bytes], at: int, name: str) -> SchemaError:
        row = self.before + at + 1
        try:
            value = json.loads(lines[at]).get(name)
        except ValueError:
            return SchemaError(f"row {row:,} is not a whole JSON object; nothing was appended")
        if name not in self.schema.names:
            return SchemaError(f"column {name!r} is not in the stream; nothing was appended")
        return mistake(row, self.schema.field(name), value)


def _fails(lines: list[bytes], alone: "pa.Schema") -> bool:
    import pyarrow as pa

    try:
        _parsed(b"\n".join(lines), alone, "ignore")
    except pa.ArrowException:
        return True
    return False


def _parsed(lines: bytes, wanted: "pa.Schema", unexpected: str) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.json as pj

    return pj.read_json(
        pa.BufferReader(lines),
        read_options=pj.ReadOptions(block_size=len(lines) + 64),
        parse_options=pj.ParseOptions(explicit_schema=wanted, unexpected_field_behavior=unexpected),
    )

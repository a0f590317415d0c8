"""Text files with bad lines: what can be read is read, and every other line is kept with file, line number and reason.

Records of a block are parsed together; by halving are those found that cannot be, so good files cost nothing more.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from windrow.cli.cells import describe_type, find_intermediate_type, unquote_numbers
from windrow.cli.time_formats import ISO_TIMES, TimeFormat

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_RECORD = 64 << 20
"""Bytes after which an open quote is no longer believed to be one."""


@dataclass(frozen=True)
class FlawedLine:
    """A line that is not taken: where it is, why, its text, and how it was read."""

    file: str
    line: int
    reason: str
    text: str
    format: str


@dataclass
class FlawedLines:
    """The bad lines of what is being read, until somebody takes them."""

    kept: list[FlawedLine] = field(default_factory=list)

    def take(self) -> list[FlawedLine]:
        """The lines so far; they are forgotten here."""
        lines, self.kept = self.kept, []
        return lines


@dataclass(frozen=True)
class TextFormat:
    """How lines become rows; kept with bad lines, so that they can be read again."""

    format: str
    columns: tuple[str, ...] = ()
    """Of CSV: what its cells are."""
    delimiter: str = ","
    nulls: tuple[str, ...] = ()
    times: TimeFormat = ISO_TIMES

    def to_json(self) -> str:
        """The format as it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "TextFormat":
        """The format of a line that was kept."""
        plain = json.loads(text)
        times = TimeFormat(**plain.pop("times"))
        return cls(**{**plain, "columns": tuple(plain["columns"]), "nulls": tuple(plain["nulls"])}, times=times)

    def parse(self, records: Sequence[bytes], schema: "pa.Schema") -> "tuple[pa.Table, dict[int, str]]":
        """The rows of the good records in the stream's types, and the reasons of the others by position."""
        reasons = _find_undecodable(records)
        good = [position for position in range(len(records)) if position not in reasons]
        parse = self._parse_csv if self.format == "csv" else self._parse_json
        table, bad = parse([records[position] for position in good], schema)
        reasons |= {good[position]: why for position, why in bad.items()}
        good = [position for position in good if position not in reasons]
        rows, unfit = self._convert(table, schema)
        return rows, reasons | {good[position]: why for position, why in unfit.items()}

    def _parse_csv(self, records: list[bytes], schema: "pa.Schema") -> "tuple[pa.Table, dict[int, str]]":  # noqa: ARG002
        import pyarrow as pa
        import pyarrow.csv as pcsv

        bad: dict[int, str] = {}

        def skip(row: Any) -> str:
            bad[row.number - 1] = f"it has {row.actual_columns} cells, not {row.expected_columns}"
            return "skip"

        kinds = {name: pa.string() for name in self.columns}
        if not records:
            return pa.schema(kinds).empty_table(), bad
        block = b"\n".join(records)
        table = pcsv.read_csv(
            pa.BufferReader(block),
            pcsv.ReadOptions(column_names=self.columns, block_size=len(block) + 64, use_threads=False),
            pcsv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=skip),
            pcsv.ConvertOptions(
                column_types=kinds,
                null_values=sorted({"", *self.nulls}),
                strings_can_be_null=True,
                quoted_strings_can_be_null="" in self.nulls,
            ),
        )
        return table, bad

    def _parse_json(self, records: list[bytes], schema: "pa.Schema") -> "tuple[pa.Table, dict[int, str]]":
        import pyarrow as pa
        import pyarrow.json as pj

        kinds = pa.schema([(f.name, find_json_type(f.type, self.times)) for f in schema])

        def parse(some: list[bytes]) -> "pa.Table":
            text = unquote_numbers(b"\n".join(some), schema)
            options = pj.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="error")
            return pj.read_json(pa.BufferReader(text), pj.ReadOptions(block_size=len(text) + 64), options)

        def fails(low: int, high: int) -> bool:
            try:
                return bool(parse(records[low:high]).num_rows != high - low)
            except pa.ArrowException:
                return True

        bad = {position: _explain_json(records[position], schema) for position in find_failing(len(records), fails)}
        good = [record for position, record in enumerate(records) if position not in bad]
        return parse(good) if good else kinds.empty_table(), bad

    def _convert(self, table: "pa.Table", schema: "pa.Schema") -> "tuple[pa.Table, dict[int, str]]":
        """The rows whose values all have their columns' types, and why the others have not."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        columns: dict[str, Any] = {}
        bad: dict[int, str] = {}
        for each in schema:
            if each.name not in table.schema.names:
                continue
            column = pa.concat_arrays(table.column(each.name).chunks) if table.num_rows else pa.nulls(0, pa.string())
            if pa.types.is_string(column.type) and pa.types.is_primitive(each.type):
                column = pc.utf8_trim_whitespace(column)

            def fails(low: int, high: int, column: Any = column, kind: "pa.DataType" = each.type) -> bool:
                try:
                    self.times.convert(column.slice(low, high - low), kind)
                except (pa.ArrowException, OverflowError, ValueError):
                    return True
                return False

            wrong = np.zeros(len(column), bool)
            wrong[find_failing(len(column), fails)] = True
            unfit = wrong if each.nullable else wrong | column.is_null().to_numpy(zero_copy_only=False)
            for position in np.flatnonzero(unfit).tolist():
                bad.setdefault(position, f"column {each.name!r} is not {describe_type(each.type)}")
            columns[each.name] = self.times.convert(pc.if_else(pa.array(wrong), None, column), each.type)
        rows = pa.table(columns)
        if not bad:
            return rows, bad
        good = np.ones(table.num_rows, bool)
        good[list(bad)] = False
        return rows.filter(pa.array(good)), bad


def find_json_type(kind: "pa.DataType", times: TimeFormat) -> "pa.DataType":
    """The type in which a column of JSON is read; times that are counted are numbers there."""
    import pyarrow as pa

    if times.epoch is not None and pa.types.is_timestamp(kind):
        return pa.int64() if times.epoch == "ns" else pa.decimal128(27, 9)
    return find_intermediate_type(kind, json=True)


def read_good_lines(
    blocks: Iterator[bytes], text: TextFormat, schema: "pa.Schema", file: str, first_line: int, flaws: FlawedLines
) -> "Iterator[pa.Table]":
    """The rows of blocks of whole lines; bad lines go to `flaws`."""
    quoted = text.format == "csv"
    line = first_line
    for block in _join_open_quotes(blocks) if quoted else blocks:
        records, numbers = _split_records(block, line, quoted=quoted)
        rows, reasons = text.parse(records, schema)
        for position, why in sorted(reasons.items()):
            line_text = records[position].decode(errors="replace")
            flaws.kept.append(FlawedLine(file, numbers[position], why, line_text, text.to_json()))
        line += block.count(b"\n")
        yield rows


def _split_records(block: bytes, first_line: int, *, quoted: bool) -> tuple[list[bytes], list[int]]:
    """The records of whole lines and the line on which each begins; a quoted cell may go on over several lines."""
    lines = block.split(b"\n")
    if not quoted or b'"' not in block:
        numbers = [number for number, line in enumerate(lines, first_line) if line.strip()]
        return [lines[number - first_line].removesuffix(b"\r") for number in numbers], numbers
    records: list[bytes] = []
    numbers, is_open = [], False
    for number, line in enumerate(lines, first_line):
        if is_open:
            records[-1] += b"\n" + line
        elif line.strip():
            records.append(line.removesuffix(b"\r"))
            numbers.append(number)
        is_open ^= bool(line.count(b'"') % 2)
    return records, numbers


def _join_open_quotes(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same blocks, joined where a quoted cell goes on in the next."""
    pending = b""
    for block in blocks:
        pending += block
        if pending.count(b'"') % 2 == 0 or len(pending) > _LONGEST_RECORD:
            yield pending
            pending = b""
    if pending:
        yield pending


def find_failing(count: int, fails: Callable[[int, int], bool]) -> list[int]:
    """All of `count` items that fail, by halving those parts that do."""
    failing, parts = [], [(0, count)]
    while parts:
        low, high = parts.pop()
        if low >= high or not fails(low, high):
            continue
        if high - low == 1:
            failing.append(low)
        else:
            middle = (low + high) // 2
            parts += [(middle, high), (low, middle)]
    return failing


def _find_undecodable(records: Sequence[bytes]) -> dict[int, str]:
    def fails(low: int, high: int) -> bool:
        try:
            b"\n".join(records[low:high]).decode()
        except UnicodeDecodeError:
            return True
        return False

    return dict.fromkeys(find_failing(len(records), fails), "it is not text in UTF-8")


def _explain_json(record: bytes, schema: "pa.Schema") -> str:
    try:
        row = json.loads(record)
    except ValueError:
        return "it is not a whole JSON object"
    if not isinstance(row, dict):
        return "it is not a JSON object"
    unknown = [name for name in row if name not in schema.names]
    return f"column {unknown[0]!r} is not in the stream" if unknown else "a value does not have its column's type"

"""Values and types as users write them in text: types in a declaration, search keys, the cells of CSV and JSON files.

Text is read by Arrow's own parsers, column by column; where they are narrower than users are (zones, times, nested CSV
cells), a column is first read as a `carrier` type and then restored.
"""

import re
from typing import TYPE_CHECKING, Any

from windrow.errors import DefinitionError, SearchKeyError

if TYPE_CHECKING:
    import pyarrow as pa

NULL = r"\N"
"""How a null search key is written."""

_SIMPLE = {
    "int8": "int8",
    "tinyint": "int8",
    "int16": "int16",
    "smallint": "int16",
    "int32": "int32",
    "int": "int32",
    "integer": "int32",
    "int64": "int64",
    "bigint": "int64",
    "uint8": "uint8",
    "utinyint": "uint8",
    "uint16": "uint16",
    "usmallint": "uint16",
    "uint32": "uint32",
    "uinteger": "uint32",
    "uint64": "uint64",
    "ubigint": "uint64",
    "float16": "float16",
    "halffloat": "float16",
    "float": "float32",
    "float32": "float32",
    "real": "float32",
    "double": "float64",
    "float64": "float64",
    "bool": "bool_",
    "boolean": "bool_",
    "string": "string",
    "str": "string",
    "varchar": "string",
    "text": "string",
    "utf8": "string",
    "large_string": "large_string",
    "binary": "binary",
    "blob": "binary",
    "bytea": "binary",
    "large_binary": "large_binary",
    "date": "date32",
    "date32": "date32",
    "date64": "date64",
}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|\"[^\"]*\"|[<>()\[\],:=]|[+-]\d\d:?\d\d|/)")
_CLOSING = {"<": ">", "(": ")", "[": "]"}
_ZONED = r"[T ]\d.*(Z|[+-]\d{2}(:?\d{2})?)$"
_DATE_ONLY = r"^\d{4}-\d{2}-\d{2}$"


def parse_column(text: str) -> "pa.Field":
    """A column written as ``name:type``, as in ``src:bigint`` or ``ts:timestamp[us, UTC] not null``."""
    import pyarrow as pa

    name, colon, kind = text.partition(":")
    if not colon or not name.strip() or not kind.strip():
        raise DefinitionError(f"column {text!r} is not a declaration; write it like 'src:bigint' or 'ts:timestamptz'")
    nullable = True
    if stripped := re.fullmatch(r"(?i)(.*\S)\s+not\s+null\s*", kind):
        kind, nullable = stripped[1], False
    return pa.field(name.strip(), parse_type(kind), nullable)


def parse_type(text: str) -> "pa.DataType":
    """A type by its Arrow name or its SQL name."""
    return _TypeParser(text).parse()


class _TypeParser:
    """Recursive descent over the few tokens that a type has."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self.unknown()
            self.tokens.append(token[1])
            at = token.end()

    def unknown(self) -> DefinitionError:
        return DefinitionError(
            f"type {self.text!r} is unknown; write an Arrow or SQL type such as bigint, double, varchar, boolean, "
            "date, timestamptz, timestamp[us, UTC], decimal(10, 2), list<int64> or struct<a: int64, b: string>"
        )

    def parse(self) -> "pa.DataType":
        kind = self.kind()
        if self.tokens:
            raise self.unknown()
        return kind

    def peek(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def take(self, *wanted: str) -> str:
        if not self.tokens or (wanted and self.tokens[0] not in wanted):
            raise self.unknown()
        return self.tokens.pop(0)

    def number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.unknown()
        return int(token)

    def kind(self) -> "pa.DataType":
        import pyarrow as pa

        found = self.base(self.take().lower())
        while self.tokens[:2] == ["[", "]"]:
            self.tokens = self.tokens[2:]
            found = pa.list_(found)
        return found

    def base(self, word: str) -> "pa.DataType":
        import pyarrow as pa

        if word in _SIMPLE:
            return getattr(pa, _SIMPLE[word])()
        if word in ("timestamp", "datetime", "timestamptz"):
            return self.timestamp(word == "timestamptz")
        if word in ("decimal", "numeric", "decimal128", "decimal256"):
            return self.decimal(word)
        if word in ("list", "large_list", "array"):
            closing = _CLOSING[self.take("<", "(")]
            if self.tokens[1:2] == [":"]:
                self.tokens = self.tokens[2:]
            found = self.kind()
            self.take(closing)
            return pa.large_list(found) if word == "large_list" else pa.list_(found)
        if word == "struct":
            return self.struct()
        return self.rarer(word)

    def rarer(self, word: str) -> "pa.DataType":
        import pyarrow as pa

        if word in ("map", "dictionary"):
            closing = _CLOSING[self.take("<", "(")]
            first, second = self.labelled(), self.take(",") and self.labelled()
            while self.peek() == ",":  # "ordered=0", as Arrow prints it
                self.take(","), self.take(), self.take("="), self.take()
            self.take(closing)
            return pa.map_(first, second) if word == "map" else pa.dictionary(second, first)
        units = {"time": ("us",), "time32": ("s", "ms"), "time64": ("us", "ns"), "duration": ("s", "ms", "us", "ns")}
        if word not in units:
            raise self.unknown()
        unit = "us"
        if self.peek() == "[":
            self.take("[")
            unit = self.take(*units[word])
            self.take("]")
        if unit not in units[word]:
            raise self.unknown()
        return pa.duration(unit) if word == "duration" else pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)

    def labelled(self) -> "pa.DataType":
        if self.tokens[1:2] == ["="]:
            self.tokens = self.tokens[2:]
        return self.kind()

    def timestamp(self, zoned: bool) -> "pa.DataType":
        import pyarrow as pa

        unit, zone = "us", "UTC" if zoned else None
        if self.peek() == "[" and self.tokens[1:2] != ["]"]:
            self.take("[")
            unit = self.take("s", "ms", "us", "ns")
            if self.peek() == ",":
                self.take(",")
                if self.tokens[:2] == ["tz", "="]:
                    self.tokens = self.tokens[2:]
                zone = self.take()
                while self.peek() != "]":
                    zone += self.take()
            self.take("]")
        return pa.timestamp(unit, zone)

    def decimal(self, word: str) -> "pa.DataType":
        import pyarrow as pa

        precision, scale = 18, 3
        if self.peek() == "(":
            self.take("(")
            precision, scale = self.number(), 0
            if self.peek() == ",":
                self.take(",")
                scale = self.number()
            self.take(")")
        if not 1 <= precision <= 76 or scale > precision:
            raise self.unknown()
        wide = word == "decimal256" or precision > 38
        return pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale)

    def struct(self) -> "pa.DataType":
        import pyarrow as pa

        closing = _CLOSING[self.take("<", "(")]
        fields = []
        while True:
            name = self.take().strip('"')
            if self.peek() == ":":
                self.take(":")
            fields.append(pa.field(name, self.kind()))
            if self.take(",", closing) == closing:
                return pa.struct(fields)


def carrier(kind: "pa.DataType", *, json: bool) -> "pa.DataType":
    """The type that Arrow's CSV or JSON reader is asked for, when the column is to become `kind`."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_dictionary(kind):
        return carrier(kind.value_type, json=json)
    if is_.is_map(kind) or is_.is_union(kind) or is_.is_run_end_encoded(kind):
        raise DefinitionError(f"a column of type {kind} cannot be read from text; use Parquet or Arrow")
    if is_.is_temporal(kind) and not is_.is_duration(kind):
        return pa.string()
    if is_.is_duration(kind):
        return pa.int64()
    if is_.is_float16(kind):
        return pa.float32()
    if is_.is_string_view(kind) or (is_.is_decimal256(kind) and not json):
        return pa.string()
    if is_.is_binary_view(kind):
        return pa.binary()
    if not is_.is_nested(kind):
        return kind
    return _nested_carrier(kind) if json else pa.string()


def _nested_carrier(kind: "pa.DataType") -> "pa.DataType":
    """Inside nested values Arrow's JSON reader parses timestamps itself; lists of all kinds are read as lists."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(kind.field(i).name, _nested_carrier(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    if pa.types.is_nested(kind) and not pa.types.is_map(kind):
        return pa.list_(_nested_carrier(kind.value_type))
    return carrier(kind, json=True)


def restore(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """The column that was read as a `carrier`, as the type it is to have; dictionaries stay plain."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return restore(column, kind.value_type)
    if column.type.equals(kind):
        return column
    text = pa.types.is_string(column.type)
    if text and pa.types.is_timestamp(kind):
        return _instants(column, kind)
    if text and pa.types.is_time(kind):
        import pyarrow.compute as pc

        return _instants(pc.binary_join_element_wise("1970-01-01T", column, ""), pa.timestamp(kind.unit)).cast(kind)
    if text and pa.types.is_nested(kind):
        return _nested_cells(column, kind)
    return column.cast(kind)


def _instants(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """ISO times, with or without a zone; without one they are UTC, as everywhere in windrow. No text is no time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pc.if_else(pc.equal(column, ""), None, column)
    dated = pc.if_else(
        pc.match_substring_regex(column, _DATE_ONLY), pc.binary_join_element_wise(column, "T00:00:00", ""), column
    )
    zoned = pc.if_else(pc.match_substring_regex(dated, _ZONED), dated, pc.binary_join_element_wise(dated, "Z", ""))
    utc = zoned.cast(pa.timestamp(kind.unit, "UTC"))
    return utc.cast(kind)


def _nested_cells(column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    """CSV cells that hold JSON."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    lines = pc.binary_join_element_wise('{"v":', pc.fill_null(column, "null"), "}", "")
    text = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_py()
    inner = _nested_carrier(kind)
    read = pj.read_json(
        pa.BufferReader(text.encode()),
        read_options=pj.ReadOptions(block_size=len(text.encode()) + 64),
        parse_options=pj.ParseOptions(explicit_schema=pa.schema([("v", inner)]), newlines_in_values=True),
    )
    return read.column("v").combine_chunks().cast(kind)


def parse_value(text: str, kind: "pa.DataType", column: str) -> Any:
    r"""A search key's value, by its column's type; ``\N`` is null."""
    import pyarrow as pa

    if text == NULL:
        return None
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        if pa.types.is_binary(plain) or pa.types.is_large_binary(plain) or pa.types.is_fixed_size_binary(plain):
            return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()
        read = pa.array([text], pa.string())
        middle = carrier(plain, json=False)
        value = restore(read if middle.equals(pa.string()) else read.cast(middle), plain)[0]
        return value if pa.types.is_timestamp(plain) else value.as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError):
        raise SearchKeyError(f"search key column {column!r} is of type {kind}, which {text!r} is not") from None

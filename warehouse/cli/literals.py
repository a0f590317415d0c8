"""Parsers of what users type on the command line: columns and their types, search keys.

A type may have its Arrow name or its SQL name.
"""

import re
from typing import TYPE_CHECKING, Any

from windrow.errors import DefinitionError, SearchKeyError

if TYPE_CHECKING:
    import pyarrow as pa

NULL = r"\N"
"""How a user writes null in a search key."""

_TYPE_NAMES = {
    "int8": "int8", "tinyint": "int8", "int16": "int16", "smallint": "int16", "int32": "int32", "int": "int32",
    "integer": "int32", "int64": "int64", "bigint": "int64", "uint8": "uint8", "utinyint": "uint8", "uint16": "uint16",
    "usmallint": "uint16", "uint32": "uint32", "uinteger": "uint32", "uint64": "uint64", "ubigint": "uint64",
    "float16": "float16", "halffloat": "float16", "float": "float32", "float32": "float32", "real": "float32",
    "double": "float64", "float64": "float64", "bool": "bool_", "boolean": "bool_", "string": "string", "str": "string",
    "varchar": "string", "text": "string", "utf8": "string", "large_string": "large_string", "binary": "binary",
    "blob": "binary", "bytea": "binary", "large_binary": "large_binary", "date": "date32", "date32": "date32",
    "date64": "date64",
}  # fmt: skip
"""Arrow's constructor for each name of a type without parameters."""
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|\d+|\"[^\"]*\"|[<>()\[\],:=]|[+-]\d\d:?\d\d|/)")
_CLOSING = {"<": ">", "(": ")", "[": "]"}


def parse_column(text: str) -> "pa.Field":
    """Parse a column like ``src:bigint`` or ``ts:timestamp[us, UTC] not null``."""
    import pyarrow as pa

    name, colon, kind = text.partition(":")
    if not colon or not name.strip() or not kind.strip():
        raise DefinitionError(f"column {text!r} is not a declaration; write it like 'src:bigint' or 'ts:timestamptz'")
    nullable = True
    if stripped := re.fullmatch(r"(?i)(.*\S)\s+not\s+null\s*", kind):
        kind, nullable = stripped[1], False
    return pa.field(name.strip(), parse_type(kind), nullable)


def parse_type(text: str) -> "pa.DataType":
    """Parse a type by its Arrow name or its SQL name."""
    return _TypeParser(text).parse()


class _TypeParser:
    """Recursive descent over the few tokens that a type has."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        position = 0
        while position < len(text.rstrip()):
            token = _TOKEN.match(text, position)
            if token is None:
                raise self.unknown()
            self.tokens.append(token[1])
            position = token.end()

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

    def take(self, *allowed: str) -> str:
        if not self.tokens or (allowed and self.tokens[0] not in allowed):
            raise self.unknown()
        return self.tokens.pop(0)

    def number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.unknown()
        return int(token)

    def kind(self) -> "pa.DataType":
        import pyarrow as pa

        parsed = self.base(self.take().lower())
        while self.tokens[:2] == ["[", "]"]:
            self.tokens = self.tokens[2:]
            parsed = pa.list_(parsed)
        return parsed

    def base(self, word: str) -> "pa.DataType":
        import pyarrow as pa

        if word in _TYPE_NAMES:
            return getattr(pa, _TYPE_NAMES[word])()
        if word in ("timestamp", "datetime", "timestamptz"):
            return self.timestamp(word == "timestamptz")
        if word in ("decimal", "numeric", "decimal128", "decimal256"):
            return self.decimal(word)
        if word in ("list", "large_list", "array"):
            closing = _CLOSING[self.take("<", "(")]
            if self.tokens[1:2] == [":"]:
                self.tokens = self.tokens[2:]
            parsed = self.kind()
            self.take(closing)
            return pa.large_list(parsed) if word == "large_list" else pa.list_(parsed)
        if word == "struct":
            return self.struct()
        return self.rare(word)

    def rare(self, word: str) -> "pa.DataType":
        import pyarrow as pa

        if word in ("map", "dictionary"):
            closing = _CLOSING[self.take("<", "(")]
            first, second = self.labelled(), self.take(",") and self.labelled()
            while self.peek() == ",":  # "ordered=0", as Arrow prints it
                self.take(","), self.take(), self.take("="), self.take()
            self.take(closing)
            return pa.map_(first, second) if word == "map" else self.dictionary(first, second)
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

    def dictionary(self, first: "pa.DataType", second: "pa.DataType") -> "pa.DataType":
        """Accept values and indices in either order, because Arrow itself uses both."""
        import pyarrow as pa

        if pa.types.is_integer(second):
            return pa.dictionary(second, first)
        if pa.types.is_integer(first):
            return pa.dictionary(first, second)
        raise DefinitionError(
            f"type {self.text!r} has no integer for its indices; write it like dictionary<int32, string>"
        )

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


def parse_value(text: str, kind: "pa.DataType", column: str) -> Any:
    r"""Parse a value of a search key by its column's type; ``\N`` is null."""
    import pyarrow as pa

    from windrow.cli.cells import convert_column, find_intermediate_type
    from windrow.indexes.arrow_arrays import from_values

    if text == NULL:
        return None
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    try:
        cells = from_values([text], pa.string()).cast(find_intermediate_type(plain, json=False))
        value = convert_column(cells, plain)[0]
        return value if pa.types.is_timestamp(plain) else value.as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError):
        raise SearchKeyError(f"search key column {column!r} is of type {kind}, which {text!r} is not") from None

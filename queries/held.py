"""What of a stream is in a table of DuckDB's own, and how it is read from there: plain data, no locks."""

from collections.abc import Collection
from dataclasses import dataclass, field

import pyarrow as pa

from windrow.indexes.segments import Segment
from windrow.queries.types import duckdb_type, quoted
from windrow.snapshot import StreamView

NUMBER = "_segment"
"""The column that says which segment a row is of."""
Place = tuple[str, int, int]
"""A file, the first row of a segment and one past its last."""


@dataclass
class Kept:
    """A table, and what of a stream is in it."""

    name: str
    columns: dict[str, pa.Field] = field(default_factory=dict)
    numbers: dict[Place, int] = field(default_factory=dict)
    """By segment: its number in the table."""
    uses: int = 0
    """Statements that read it since it was last changed."""
    bytes: int = 0
    readers: int = 0
    """Statements that may read it: as long as there are any, it stays as it is."""
    dropped: bool = False


def suits(kind: pa.DataType) -> bool:
    """Whether a column of this type is read more quickly from a table: text is not, and DuckDB alters some others."""
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_timestamp)
    return any(test(kind) for test in tests) or kind in (pa.float32(), pa.float64())


def place_of(segment: Segment) -> Place:
    """Where a segment is; nothing else ever is there."""
    return segment.file, segment.start, segment.stop


def has_columns(kept: Kept, view: StreamView, wanted: Collection[str]) -> bool:
    """Whether the table has columns of a stream, with the types that they have now."""
    return all(name in kept.columns and kept.columns[name].type == view.schema.field(name).type for name in wanted)


def column_sql(field: pa.Field, kept: Kept) -> str:
    """A column of the table; one that is not there is an error for the row that it is read of."""
    name = quoted(field.name)
    if field.name in kept.columns:
        return name
    return f"CAST(CAST(CAST('not held: ' || {NUMBER} AS INTEGER) AS VARCHAR) AS {duckdb_type(field.type)}) AS {name}"


def bytes_of(fields: Collection[pa.Field], rows: int) -> int:
    """What a table may take; rows that were taken out stay for a while, and are counted as half as many."""
    width = 4 + sum(max(1, field.type.bit_width // 8) for field in fields)
    return int(rows * width * 3 // 2)

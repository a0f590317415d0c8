"""Columns of a stream that come later, or whose type becomes wider: files stay as they are, and readers conform them.

A type is wider than another if every value of that one is a value of it, so that stored rows need not be looked at.
"""

from typing import Any, TypeAlias

import pyarrow as pa
from msgspec.structs import replace

from windrow.arrow_input import find_new_columns
from windrow.definitions import StreamDefinition, check_schema
from windrow.errors import DefinitionError, SchemaError
from windrow.indexes.arrow_arrays import compute as pc

Column: TypeAlias = tuple[str, pa.DataType] | pa.Field
"""A name and an Arrow type, as users give them."""

_DOUBLE_BITS = 53
"""Integers of so many bits are all floating numbers of double precision."""
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Decimal digits that integers of so many bits have at most."""


def is_wider(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of the narrow type is one of the wide type, and the types are not the same."""
    types = pa.types
    if types.is_integer(narrow):
        bits = narrow.bit_width - types.is_signed_integer(narrow)
        if types.is_integer(wide):
            takes_sign = bool(types.is_signed_integer(wide) or not types.is_signed_integer(narrow))
            return takes_sign and bool(wide != narrow and wide.bit_width - types.is_signed_integer(wide) >= bits)
        if types.is_float64(wide):
            return bool(bits <= _DOUBLE_BITS)
        return bool(types.is_decimal(wide) and wide.precision - wide.scale >= _INTEGER_DIGITS[narrow.bit_width])
    if types.is_floating(narrow):
        return bool(types.is_floating(wide) and wide.bit_width > narrow.bit_width)
    if types.is_decimal(narrow) and types.is_decimal(wide):
        more_whole = (wide.precision - wide.scale) - (narrow.precision - narrow.scale)
        more_digits = wide.scale - narrow.scale
        return bool(more_whole >= 0 and more_digits >= 0 and more_whole + more_digits > 0)
    return False


def find_wider_columns(source: pa.Schema, schema: pa.Schema) -> list[pa.Field]:
    """The columns of a stream for which rows that are given have a wider type, with that type."""
    return [
        field.with_type(source.field(field.name).type)
        for field in schema
        if source.names.count(field.name) == 1 and is_wider(source.field(field.name).type, field.type)
    ]


def find_changes(evolve: str, source: pa.Schema, schema: pa.Schema) -> tuple[list[pa.Field], list[pa.Field]]:
    """Which columns rows that are given add to a stream, and which they widen, as `evolve` allows it."""
    if evolve not in ("add", "widen"):
        raise DefinitionError(
            f"evolve={evolve!r} is unknown; 'add' takes new columns in, 'widen' wider types too, None refuses both"
        )
    return find_new_columns(source, schema), find_wider_columns(source, schema) if evolve == "widen" else []


def add_column(old: StreamDefinition, column: Column) -> StreamDefinition:
    """The definition with one more column, last."""
    added = _parse_column(column, "add_column")
    if not added.nullable:
        raise DefinitionError(
            f"stream {old.name!r}: column {added.name!r} cannot be added as not null; stored rows have no value for it"
        )
    schema = check_schema(old.name, old.schema.append(added))
    return replace(old, schema_bytes=schema.serialize().to_pybytes(), added=(*old.added, added.name))


def widen_column(old: StreamDefinition, column: Column, sorted_by: set[str]) -> StreamDefinition:
    """The definition with a wider type for a column that it has.

    Args:
        old: The definition.
        column: Its name and the type.
        sorted_by: Columns whose values stand in directories or tell batches apart, in the type that they have.
    """
    wanted = _parse_column(column, "widen_column")
    position = old.schema.get_field_index(wanted.name)
    if position < 0:
        raise SchemaError(
            f"stream {old.name!r} has no column {wanted.name!r} to widen; it has {', '.join(old.schema.names)}"
        )
    field = old.schema.field(position)
    if field.type == wanted.type:
        return old
    if wanted.name in (old.time, old.expires) or wanted.name in sorted_by:
        raise DefinitionError(
            f"stream {old.name!r}: column {wanted.name!r} cannot become {wanted.type}: stored rows are found by it as "
            f"{field.type}; create another stream with the wider type"
        )
    if not is_wider(wanted.type, field.type):
        raise DefinitionError(
            f"stream {old.name!r}: column {wanted.name!r} cannot become {wanted.type}: not every {field.type} is one; "
            f"give a type that holds all of them, or add another column"
        )
    schema = check_schema(old.name, old.schema.set(position, field.with_type(wanted.type)))
    widened = old.widened.append(field)
    return replace(old, schema_bytes=schema.serialize().to_pybytes(), widened_bytes=widened.serialize().to_pybytes())


def restate_types(past: StreamDefinition, current: StreamDefinition) -> StreamDefinition:
    """An earlier definition with the types that its columns have now: rows of later commits may share its files."""
    fields = [field.with_type(current.schema.field(field.name).type) for field in past.schema]
    schema = pa.schema(fields, past.schema.metadata)
    if schema == past.schema:
        return past
    return replace(past, schema_bytes=schema.serialize().to_pybytes(), widened_bytes=current.widened_bytes)


def in_first_types(rows: pa.Table | pa.RecordBatch, definition: StreamDefinition) -> pa.Table | pa.RecordBatch:
    """Rows of which each value of a widened column stands in the first type that it fits: a column for each type.

    So a value has one digest, whether it was given before the column was widened or after.
    """
    if not len(definition.widened):
        return rows
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    fields, columns = list(table.schema), list(table.columns)
    for earlier in definition.widened:
        position = table.schema.get_field_index(earlier.name)
        if position < 0:
            continue
        rest = columns[position]
        narrow = rest.cast(earlier.type, safe=False)
        fits = pc.equal(narrow.cast(rest.type, safe=False), rest)
        if pa.types.is_floating(earlier.type):
            fits = pc.or_(fits, pc.is_nan(rest))
        fields.append(earlier)
        columns.append(pc.if_else(fits, narrow, pa.scalar(None, earlier.type)))
        columns[position] = pc.if_else(fits, pa.scalar(None, rest.type), rest)
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in fields]))


def _parse_column(column: Any, option: str) -> pa.Field:
    if isinstance(column, pa.Field):
        return column
    if isinstance(column, tuple) and len(column) == 2 and isinstance(column[1], pa.DataType):
        return pa.field(column[0], column[1])
    raise DefinitionError(f"{option} takes a pair (name, Arrow type), not {column!r}")

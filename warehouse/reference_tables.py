"""Tables: small relations that users join streams with, replaced atomically and versioned with the snapshot.

A view that is not recomputed joins a row with the version that was valid at the row's own time. So versions that were
put before are kept while rows can come that old, in as many views as there are (see docs/references.md, [1],
definition 3.1); all others see the version that was put last.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from windrow import times
from windrow.arrow_input import open_reader
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.lookups import find_name_clash
from windrow.catalog.records import StreamEntry, StreamState, TableEntry
from windrow.definitions import check_column, check_name
from windrow.errors import DefinitionError, InUseError, SchemaError, UnknownTableError
from windrow.files import disk_errors
from windrow.formats.durations import to_durations
from windrow.history import note_table, retire_versions
from windrow.segment_files import StagedWriter, publish_files
from windrow.store import Store
from windrow.value_checks import check_values, is_list_view, to_plain_list, without_list_view

NEVER, ALWAYS = -(1 << 63), 1 << 63
"""Before and after all times."""


def put_table(store: Store, name: str, data: Any, valid_from: times.Instant | None = None) -> int:
    """Store (or replace) a table; gives its number of rows. Snapshots taken before go on seeing the old one.

    Args:
        store: The warehouse.
        name: Of the table.
        data: Its rows.
        valid_from: Rows of streams after this time meet it; by default those after the greatest clock of a stream.
    """
    since = None if valid_from is None else times.parse_instant(valid_from, "valid_from")
    store.check_writable()
    check_name(name, "table")
    reader = _convert_columns(open_reader(data, f"table {name!r}"), name)
    schema: pa.Schema = reader.schema
    _check_schema(name, schema)
    with disk_errors(f"writing table {name!r}"):
        with StagedWriter(store) as file:
            output = file.write_rows(schema)
            for batch in reader:
                for column, field in zip(batch.columns, schema, strict=True):
                    check_values(column, field.name, f"table {name!r}")
                output.add(pa.Table.from_batches([batch], schema), last=False)
            output.add(schema.empty_table())
            staged = file.seal()
            publish_files(store, [staged], store.root / "tables" / name, "table")
        entry = TableEntry(
            file=staged.name,
            schema_bytes=schema.serialize().to_pybytes(),
            rows=staged.rows,
            bytes=staged.bytes,
            digest=staged.digest,
            at=store.clock(),
        )
        with store.write_with_files([staged.name]) as tables:
            _check_free(tables, name)
            _check_fits(tables, name, schema)
            note_table(tables, name, tables.get("tables", name.encode()))
            tables.put("tables", name.encode(), _supersede(tables, name, entry, since))
        store.files.reach("table.committed")
    return staged.rows


def _supersede(tables: Tables, name: str, entry: TableEntry, since: int | None) -> TableEntry:
    """Keep the versions that rows still to come can meet, let the others go; gives the new one with its time."""
    old: TableEntry | None = tables.get("tables", name.encode())
    if since is None and old is not None:
        since = max((clock for _, clock in _read_clocks(tables) if clock is not None), default=None)
    entry = replace(entry, valid_from=since)
    if old is not None:
        number = tables.allocate("versions")
        tables.put("versions", _version_key(name) + catalog_key(number), old)
    versions = sorted(tables.items("versions", _version_key(name)), key=lambda item: _since(item[1]))
    horizon = _find_horizon(tables, name)
    ends = [*(_since(version) for _, version in versions[1:]), _since(entry)]
    for (key, version), end in zip(versions, ends, strict=False):
        if _since(version) >= _since(entry) or min(end, _since(entry)) <= horizon:
            tables.delete("versions", key)
            retire_versions(tables, [version])
    return entry


def _version_key(name: str) -> bytes:
    return name.encode() + b"\0"


def _since(version: TableEntry) -> int:
    return NEVER if version.valid_from is None else version.valid_from


def read_versions(tables: Tables, name: str) -> list[tuple[int, TableEntry]]:
    """The versions of a table, oldest first, each with the time after which rows meet it.

    Rows from before the oldest version that is kept meet that one.
    """
    older = [version for _, version in tables.items("versions", _version_key(name))]
    versions = sorted([*older, find_table(tables, name)], key=_since)
    return [(NEVER if not number else _since(version), version) for number, version in enumerate(versions)]


def _read_clocks(tables: Tables) -> Iterator[tuple[StreamEntry, int | None]]:
    """All streams that are no views, with where they stand."""
    for _, entry in tables.items("streams"):
        if not entry.definition.inputs:
            state: StreamState = tables.get("states", catalog_key(entry.id))
            yield entry, None if state.slide is None else entry.definition.model.slot_end(state.slide)


def _find_horizon(tables: Tables, name: str) -> int:
    """Up to which event time no row can come any more that a view would join with a version of a table."""
    horizon = ALWAYS
    for _, view in tables.items("plans"):
        if name not in view.tables or view.recompute:
            continue
        state: StreamState = tables.get("states", catalog_key(view.id))
        lives = [tables.get("streams", source.encode()).definition.longest_life for source in view.inputs]
        if state.slide is None or None in lives:
            return NEVER
        now = tables.get("streams", view.name.encode()).definition.model.slot_end(state.slide)
        horizon = min(horizon, now - max(lives))
    return horizon


def _check_schema(name: str, schema: pa.Schema) -> None:
    """Refuse columns that cannot be stored or asked."""
    if not schema.names:
        raise DefinitionError(f"table {name!r} has no columns; nothing was stored")
    if len({column.lower() for column in schema.names}) != len(schema.names):
        raise DefinitionError(f"table {name!r}: two columns have the same name (SQL does not tell capitals apart)")
    for field in schema:
        check_column(field, f"table {name!r}", is_sorted=False)


def _convert_columns(reader: pa.RecordBatchReader, name: str) -> pa.RecordBatchReader:
    """The rows with durations for intervals, which are what SQL makes of a duration, and lists for views of lists."""

    def stored_type(kind: pa.DataType) -> pa.DataType:
        return pa.duration("us") if pa.types.is_interval(kind) else without_list_view(kind)

    schema = pa.schema([field.with_type(stored_type(field.type)) for field in reader.schema])
    if schema.equals(reader.schema):
        return reader

    def convert(column: pa.Array, kind: pa.DataType) -> pa.Array:
        if is_list_view(column.type):
            return to_plain_list(column)
        return to_durations(column, kind) if pa.types.is_interval(column.type) else column

    def pieces() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            try:
                columns = [convert(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
            except pa.ArrowInvalid as error:
                raise SchemaError(f"table {name!r}: {error}; nothing was stored") from None
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, pieces())


def drop_table(store: Store, name: str) -> None:
    """Remove a table."""
    store.check_writable()
    with store.catalog.write() as tables:
        find_table(tables, name)
        views = _views_of(tables, name)
        if views:
            raise InUseError(f"table {name!r} is needed by the views {', '.join(views)}; drop them first")
        versions = [version for _, version in read_versions(tables, name)]
        note_table(tables, name, tables.get("tables", name.encode()))
        tables.delete("tables", name.encode())
        tables.delete_prefix("versions", _version_key(name))
        retire_versions(tables, versions)


def find_table(tables: Tables, name: str) -> TableEntry:
    """A table's record, or an error that names the tables there are."""
    table: TableEntry | None = tables.get("tables", name.encode())
    if table is None:
        names = [key.decode() for key, _ in tables.raw_items("tables")]
        raise UnknownTableError(
            f"there is no table {name!r}; {'the tables are ' + ', '.join(names) if names else 'there is none'}"
        )
    return table


def _check_free(tables: Tables, name: str) -> None:
    other = find_name_clash(tables, name, but="tables")
    if other is not None:
        raise DefinitionError(
            f"{other!r} exists already (SQL does not tell capitals apart); choose another name for the table"
        )


def _check_fits(tables: Tables, name: str, schema: pa.Schema) -> None:
    """A table that views join with may change its rows, not its columns: the next slide could not make sense of it."""
    old: TableEntry | None = tables.get("tables", name.encode())
    views = _views_of(tables, name)
    if old is None or not views:
        return
    old_types = {field.name: field.type for field in pa.ipc.read_schema(pa.py_buffer(old.schema_bytes))}
    new_types = {field.name: field.type for field in schema}
    if old_types != new_types:
        raise InUseError(
            f"table {name!r} is joined by the views {', '.join(views)}, so its columns must stay "
            f"{', '.join(f'{column} {kind}' for column, kind in old_types.items())}; drop the views first"
        )


def _views_of(tables: Tables, name: str) -> list[str]:
    """The views that join with a table."""
    return [record.name for _, record in tables.items("plans") if name in record.tables]

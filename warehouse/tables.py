"""Tables: small relations that users join streams with, replaced atomically and versioned with the snapshot."""

from typing import Any

import pyarrow as pa

from windrow.catalog import Tables, key
from windrow.definitions import check_name
from windrow.errors import DefinitionError, UnknownTableError
from windrow.files import disk_errors
from windrow.indexes.parquet import SegmentFileWriter
from windrow.intake import open_reader
from windrow.records import Reclaim, TableEntry
from windrow.store import Store


def put_table(store: Store, name: str, data: Any) -> int:
    """Store (or replace) a table; gives its number of rows. Snapshots taken before go on seeing the old one."""
    store.check_writable()
    check_name(name, "table")
    reader = open_reader(data, f"table {name!r}")
    schema: pa.Schema = reader.schema
    if len({column.lower() for column in schema.names}) != len(schema.names):
        raise DefinitionError(f"table {name!r}: two columns have the same name (SQL does not tell capitals apart)")
    with disk_errors(f"writing table {name!r}"):
        with store.writer.staging() as path:
            with store.files.sink(path) as sink:
                output = SegmentFileWriter(sink, schema, 1 << 20)
                for batch in reader:
                    output.add(pa.Table.from_batches([batch], schema), last=False)
                output.add(schema.empty_table())
                output.close()
            size, digest = store.writer.seal(path)
            file = store.writer.publish([path], store.root / "tables" / name, "table")[0]
        entry = TableEntry(
            file=file,
            schema_bytes=schema.serialize().to_pybytes(),
            rows=output.rows,
            bytes=size,
            digest=digest,
            at=store.clock(),
        )
        with store.publishing([file]) as tables:
            _check_free(tables, name)
            _retire(tables, name)
            tables.put("tables", name.encode(), entry)
        store.files.reach("table.committed")
    return output.rows


def drop_table(store: Store, name: str) -> None:
    """Remove a table."""
    store.check_writable()
    with store.catalog.write() as tables:
        find_table(tables, name)
        _retire(tables, name)
        tables.delete("tables", name.encode())


def find_table(tables: Tables, name: str) -> TableEntry:
    """A table's record, or an error that names the tables there are."""
    found: TableEntry | None = tables.get("tables", name.encode())
    if found is None:
        names = [at.decode() for at, _ in tables.raw_items("tables")]
        raise UnknownTableError(
            f"there is no table {name!r}; {'the tables are ' + ', '.join(names) if names else 'there is none'}"
        )
    return found


def _check_free(tables: Tables, name: str) -> None:
    others = [at.decode() for at, _ in tables.raw_items("streams")]
    others += [at.decode() for at, _ in tables.raw_items("tables") if at.decode() != name]
    for other in others:
        if other.lower() == name.lower():
            raise DefinitionError(
                f"{other!r} exists already (SQL does not tell capitals apart); choose another name for the table"
            )


def _retire(tables: Tables, name: str) -> None:
    old: TableEntry | None = tables.get("tables", name.encode())
    if old is not None:
        tables.put("reclaim", key(tables.version, tables.allocate("reclaims")), Reclaim(stream=0, files=(old.file,)))

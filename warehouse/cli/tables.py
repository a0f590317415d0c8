"""Commands for reference tables, small relations that streams are joined with: put, list, drop."""

from typing import TYPE_CHECKING

import click

from windrow.cli import terminal
from windrow.cli.readers import FORMATS, ReadOptions, count_bytes, infer_file_schema, read_files
from windrow.cli.session import Group, Session, command
from windrow.cli.streams import show_dropped
from windrow.errors import SchemaError

if TYPE_CHECKING:
    from windrow.warehouse import Warehouse


@click.group(cls=Group)
def table() -> None:
    """Put, list and drop tables to join streams with."""


@table.command("put")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--format", type=click.Choice(FORMATS), help="What the files are; by default their suffix tells.")
@click.option("--delimiter", metavar="CHAR", help="What separates CSV columns; by default a comma.")
@click.option("--valid-from", metavar="TIME", help="In views, rows after TIME meet it; by default those after now.")
@command
def put(
    session: Session,
    name: str,
    files: tuple[str, ...],
    format: str | None,
    delimiter: str | None,
    valid_from: str | None,
) -> None:
    """Store CSV, Parquet, JSON or Arrow files as a table, or replace it.

    The columns are those of the first file. Queries see the old table or the new one, never a part.
    """
    options = ReadOptions(format, delimiter)
    with session.open() as wh:
        schema = infer_file_schema(files[0], options, ())
        try:
            with terminal.progress_bar(f"put {name}", count_bytes(files), in_bytes=True) as report_progress:
                rows_read = read_files(files, schema, name, options, report_progress)
                rows = wh.put_table(name, rows_read, valid_from=valid_from)
        except SchemaError as error:
            message = str(error).replace(f"stream {name!r}", f"table {name!r}").replace("the stream", "the table")
            raise SchemaError(message.replace("nothing was appended", "nothing was stored")) from None
    if session.json:
        terminal.write_json({"table": name, "rows": rows, "columns": {f.name: str(f.type) for f in schema}})
    else:
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        terminal.say(f"{name}: {terminal.count(rows, 'row')} stored; columns {columns}")


@table.command("list")
@command
def list_(session: Session) -> None:
    """List the tables."""
    with session.open(read_only=True) as wh:
        tables = _list_tables(wh)
    if session.json:
        terminal.write_json(
            [{"table": name, "rows": rows, "bytes": size, "columns": columns} for name, rows, size, columns in tables]
        )
        return
    cells = [(name, f"{rows:,}", terminal.size(size), ", ".join(columns)) for name, rows, size, columns in tables]
    terminal.print_table(("table", "rows", "size", "columns"), cells, right=("rows", "size"))


def _list_tables(wh: "Warehouse") -> list[tuple[str, int, int, list[str]]]:
    import pyarrow as pa

    with wh.snapshot([]) as snapshot:
        return [
            (name, entry.rows, entry.bytes, pa.ipc.read_schema(pa.py_buffer(entry.schema_bytes)).names)
            for name, entry in sorted(snapshot.tables.items())
        ]


@table.command("drop")
@click.argument("name")
@command
def drop(session: Session, name: str) -> None:
    """Remove a table; queries that are reading it go on."""
    with session.open() as wh:
        wh.drop_table(name)
    show_dropped(session, "table", name)

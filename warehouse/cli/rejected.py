"""Commands for rejected rows: look at them, throw them away, append them again."""

from collections import Counter
from typing import TYPE_CHECKING

import click

from windrow.cli import terminal
from windrow.cli.rows import output_options
from windrow.cli.session import Session, command

if TYPE_CHECKING:
    import pyarrow as pa


@click.command()
@click.argument("name")
@output_options
@click.option("--discard", is_flag=True, help="Throw the rejected rows away instead of showing them.")
@command
def rejected(
    session: Session,
    name: str,
    columns: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
    discard: bool,
) -> None:
    """Show the rows that were not taken, and the reasons."""
    if discard:
        with session.open() as wh:
            number = wh.discard_rejected(name)
        if session.json:
            terminal.write_json({"stream": name, "discarded": number})
        else:
            terminal.say(f"{name}: {terminal.count(number, 'rejected row')} thrown away")
        return
    with session.open(read_only=True) as wh:
        rows = wh.rejected(name)
    _write_rejected(session, name, rows, columns, limit, as_csv, output)


def _write_rejected(
    session: Session,
    name: str,
    rows: "pa.Table",
    columns: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
) -> None:
    from windrow.cli import writers
    from windrow.errors import WindowError

    wanted = [column.strip() for text in columns for column in text.split(",")] or rows.column_names
    if unknown := [column for column in wanted if column not in rows.column_names]:
        raise WindowError(
            f"rejected rows of {name!r} have no column {unknown[0]!r}; they have {', '.join(rows.column_names)}"
        )
    reasons = Counter(rows.column("_reason").to_pylist())
    few = limit if limit is not None or as_csv or output or session.json else writers.TABLE_ROWS
    reader = writers.limited(rows.select(wanted).to_reader(), few)
    if output is not None:
        done = writers.write_file(reader, output, lambda _: None)
        told = {"file": output, "rows": done, "stream": name}
        if session.json:
            terminal.write_json(told)
        else:
            terminal.say(f"{terminal.count(done, 'row')} written to {output}")
    elif as_csv:
        writers.print_csv(reader)
    elif session.json:
        writers.print_json(reader)
    else:
        if rows.num_rows:
            writers.show_rows(reader)
        why = "; ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
        terminal.say(f"{name}: {terminal.count(rows.num_rows, 'rejected row')}{': ' + why if why else ''}")


@click.command(short_help="Append the rejected rows again.")
@click.argument("name")
@command
def replay(session: Session, name: str) -> None:
    """Append the rejected rows again; those that are still not acceptable stay rejected."""
    with session.open() as wh:
        report = wh.replay(name)
    if session.json:
        terminal.write_json(terminal.plain(report))
        return
    still = sum(report.rejected.values())
    terminal.say(
        f"{name}: {report.accepted:,} of {terminal.count(report.rows, 'rejected row')} appended, "
        f"{still:,} still rejected"
    )

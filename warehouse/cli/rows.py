"""Commands for rows: append, probe, scan, and those for rejected rows, which belong to `windrow stream`.

Rows are written in one way for all of them: as a table, CSV, JSON lines or a file.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.readers import FORMATS, ReadOptions, count_bytes, read_files
from windrow.cli.session import Session, command

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.snapshot import Snapshot, StreamSnapshot

Option = Callable[[Callable[..., None]], Callable[..., None]]


def add_output_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for how rows are written."""
    options: list[Option] = [
        click.option("--columns", metavar="A,B,…", multiple=True, help="Only these columns."),
        click.option(
            "--limit", type=click.IntRange(min=0), metavar="N", help="At most N rows; a table shows 20 by default."
        ),
        click.option("--csv", "as_csv", is_flag=True, help="Write CSV."),
        click.option("--output", metavar="FILE", help="Write to a .parquet, .arrow, .csv or .jsonl file."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@click.argument("stream")
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--format", type=click.Choice(FORMATS), help="What the files are; by default their suffix tells.")
@click.option("--source", metavar="NAME", help="Which of the stream's sources the rows come from.")
@click.option("--batch-id", metavar="ID", help="Appending the same source and ID again changes nothing.")
@click.option(
    "--delimiter", metavar="CHAR", help="What separates CSV columns; by default a comma, in .tsv files a tab."
)
@click.option("--no-header", is_flag=True, help="The CSV files have no header line; their columns are the stream's.")
@click.option(
    "--null",
    "nulls",
    metavar="TEXT",
    multiple=True,
    help="CSV cells that stand for null, besides empty ones; '' also takes quoted empty cells.",
)
@command
def append(
    session: Session,
    stream: str,
    files: tuple[str, ...],
    format: str | None,
    source: str | None,
    batch_id: str | None,
    delimiter: str | None,
    no_header: bool,
    nulls: tuple[str, ...],
) -> None:
    """Append CSV, Parquet, JSON or Arrow files to a stream.

    All files of one command are one batch: all of it is in, or nothing. A FILE of - is standard input. The rows are
    durable when the command ends, and in the window after the next slide.
    """
    if delimiter is not None and len(delimiter.replace("\\t", "\t")) != 1:
        raise click.UsageError(f"--delimiter is one character, not {delimiter!r}")
    options = ReadOptions(format, delimiter, not no_header, nulls)
    with session.open() as wh:
        definition = wh.stream(stream).definition
        with terminal.progress_bar(f"append {stream}", count_bytes(files), in_bytes=True) as report_progress:
            rows = read_files(files, definition.schema, stream, options, report_progress, definition.added)
            report = wh.append(stream, rows, source=source, batch_id=batch_id)
    if session.json:
        terminal.write_json(terminal.to_record(report))
        return
    if report.duplicate:
        terminal.say(
            f"{stream}: batch {batch_id!r} of source {report.source!r} was appended before; nothing was changed"
        )
        return
    late = f", {report.late:,} of them late" if report.late else ""
    took = f"{terminal.size(report.bytes_written)} in {terminal.format_seconds(report.seconds)}"
    terminal.say(f"{stream}: {terminal.count(report.accepted, 'row')} appended{late} ({took})")
    for reason, number in sorted(report.rejected.items()):
        terminal.say(f"{stream}: {terminal.count(number, 'row')} rejected: {reason}")


@click.command()
@click.argument("stream")
@click.option("--key", "given", metavar="KEY", multiple=True, help="A search key; may be given several times.")
@click.option("--keys", "listed", metavar="K1,K2,…", multiple=True, help="Several search keys of one column.")
@click.option("--between", nargs=2, metavar="LOW HIGH", help="A range of search keys, both ends included.")
@click.option("--window", metavar="DURATION", help="Only the last DURATION; by default all live rows.")
@add_output_options
@command
def probe(
    session: Session,
    stream: str,
    given: tuple[str, ...],
    listed: tuple[str, ...],
    between: tuple[str, str] | None,
    window: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
) -> None:
    r"""Read the rows of a key, several keys or a range.

    A key is written as its column's values are; \N is null. The values of a key of several columns are separated by
    commas, as in --key ant,80; fewer values find all keys that begin with them.
    """
    if bool(given or listed) == bool(between):
        raise click.UsageError("give either --key (or --keys) or --between")
    with session.open(read_only=True) as wh, wh.snapshot([stream]) as snapshot:
        view = snapshot.view(stream)
        keys = [_parse_key(text, view) for text in given] + [
            _parse_key(text, view) for text in _split_keys(listed, view)
        ]
        search: dict[str, Any] = (
            {"between": tuple(_parse_key(text, view) for text in between)} if between else {"keys": keys}
        )
        rows = snapshot.probe(stream, **search, window=window, columns=_parse_columns(columns))
        _write_rows(session, view, rows.to_reader, rows.num_rows, window, limit, as_csv, output)


@click.command(short_help="Read a window.")
@click.argument("stream")
@click.option("--window", metavar="DURATION", help="Only the last DURATION; by default all live rows.")
@add_output_options
@command
def scan(
    session: Session,
    stream: str,
    window: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
) -> None:
    """Read a window: all live rows, or the last ten minutes, in no particular order."""
    with session.open(read_only=True) as wh, wh.snapshot([stream]) as snapshot:
        view = snapshot.view(stream)
        names = _parse_columns(columns)
        # An error in the window or the columns is raised here, before rows are counted.
        snapshot.scan(stream, window, names)
        total = _count_rows(snapshot, view, window) if not (session.json or as_csv) else 0
        _write_rows(session, view, lambda: snapshot.scan(stream, window, names), total, window, limit, as_csv, output)


def _count_rows(snapshot: "Snapshot", view: "StreamSnapshot", window: str | None) -> int:
    return sum(batch.num_rows for batch in snapshot.scan(view.name, window, [view.entry.definition.time]))


def _parse_columns(texts: Sequence[str]) -> list[str] | None:
    names = [name.strip() for text in texts for name in text.split(",")]
    return list(dict.fromkeys(names)) or None


def _split_keys(texts: Sequence[str], view: "StreamSnapshot") -> Iterator[str]:
    if texts and len(view.entry.definition.key) > 1:
        raise click.UsageError(
            f"the search key of {view.name} has several columns; give --key several times, as in --key ant,80"
        )
    for text in texts:
        yield from next(csv.reader([text], skipinitialspace=True))


def _parse_key(text: str, view: "StreamSnapshot") -> Any:
    """Parse a search key: one value, or a tuple for several columns."""
    from windrow.cli.literals import parse_value
    from windrow.errors import SearchKeyError

    definition = view.entry.definition
    if not definition.key:
        raise SearchKeyError(
            f"stream {view.name!r} has no search key; use 'windrow scan', or create the stream with --key"
        )
    types = definition.key_types()
    if len(types) == 1:
        return parse_value(text, types[0], definition.key[0])
    parts = next(csv.reader([text], skipinitialspace=True))
    if len(parts) > len(types):
        raise SearchKeyError(
            f"the search key of {view.name!r} is {', '.join(definition.key)}, but {text!r} has {len(parts)} values"
        )
    return tuple(parse_value(part, kind, name) for part, kind, name in zip(parts, types, definition.key, strict=False))


def _write_rows(
    session: Session,
    view: "StreamSnapshot",
    rows: "Callable[[], pa.RecordBatchReader]",
    total: int,
    window: str | None,
    limit: int | None,
    as_csv: bool,
    output: str | None,
) -> None:
    """Write rows as the options say; under a table stands the window it shows."""
    from windrow.cli import writers

    if output is not None:
        if as_csv:
            raise click.UsageError("--output's suffix tells the format; leave --csv out")
        with terminal.progress_bar(f"write {output}", total) as report_progress:
            row_count = writers.write_file(writers.limit_rows(rows(), limit), output, report_progress)
        if session.json:
            terminal.write_json({"file": output, "rows": row_count, **window_to_json(view, window)})
        else:
            terminal.say(f"{terminal.count(row_count, 'row')} written to {output}: {describe_window(view, window)}")
    elif as_csv and session.json:
        raise click.UsageError("choose one of --csv and --json")
    elif as_csv:
        writers.print_csv(writers.limit_rows(rows(), limit))
    elif session.json:
        writers.print_json(writers.limit_rows(rows(), limit))
    else:
        shown = writers.show_rows(writers.limit_rows(rows(), writers.TABLE_ROWS if limit is None else limit))
        hint = f", {shown:,} shown (--limit, --csv, --json or --output give more)" if shown < total else ""
        terminal.say(f"{terminal.count(total, 'row')} of {describe_window(view, window)}{hint}")


def window_to_json(view: "StreamSnapshot", window: str | None) -> dict[str, Any]:
    """Describe the window of an answer for JSON."""
    from windrow.times import format_time

    now = view.now
    return {
        "stream": view.name,
        "slide": view.state.slide,
        "now": None if now is None else format_time(now),
        "window": window,
        "missing": list(view.state.missing),
    }


def describe_window(view: "StreamSnapshot", window: str | None) -> str:
    """Describe the window of an answer in words."""
    facts = window_to_json(view, window)
    if facts["now"] is None:
        return f"{view.name}, which has not slid yet"
    missing = f", without {terminal.names(facts['missing'])}" if facts["missing"] else ""
    return f"{view.name} at {facts['now']} (slide {facts['slide']}){f', the last {window}' if window else ''}{missing}"


@click.command()
@click.argument("name")
@add_output_options
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

    names = [column.strip() for text in columns for column in text.split(",")] or rows.column_names
    if unknown := [column for column in names if column not in rows.column_names]:
        raise WindowError(
            f"rejected rows of {name!r} have no column {unknown[0]!r}; they have {', '.join(rows.column_names)}"
        )
    reasons = Counter(rows.column("_reason").to_pylist())
    shown_limit = limit if limit is not None or as_csv or output or session.json else writers.TABLE_ROWS
    reader = writers.limit_rows(rows.select(names).to_reader(), shown_limit)
    if output is not None:
        row_count = writers.write_file(reader, output, lambda _: None)
        if session.json:
            terminal.write_json({"file": output, "rows": row_count, "stream": name})
        else:
            terminal.say(f"{terminal.count(row_count, 'row')} written to {output}")
    elif as_csv:
        writers.print_csv(reader)
    elif session.json:
        writers.print_json(reader)
    else:
        if rows.num_rows:
            writers.show_rows(reader)
        counts = "; ".join(f"{number:,} {reason}" for reason, number in sorted(reasons.items()))
        terminal.say(f"{name}: {terminal.count(rows.num_rows, 'rejected row')}{': ' + counts if counts else ''}")


@click.command(short_help="Append the rejected rows again.")
@click.argument("name")
@command
def replay(session: Session, name: str) -> None:
    """Append the rejected rows again; those that are still not acceptable stay rejected."""
    with session.open() as wh:
        report = wh.replay(name)
    if session.json:
        terminal.write_json(terminal.to_record(report))
        return
    still = sum(report.rejected.values())
    terminal.say(
        f"{name}: {report.accepted:,} of {terminal.count(report.rows, 'rejected row')} appended, "
        f"{still:,} still rejected"
    )

"""Commands for rows: append, probe, scan, and those for rejected rows, which belong to `windrow stream`.

Rows are written in one way for all of them: as a table, CSV, JSON lines or a file.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from windrow.cli import terminal
from windrow.cli.clock import show_slides, slide_over, slide_to_json
from windrow.cli.flawed_lines import FlawedLine, FlawedLines, TextFormat
from windrow.cli.readers import FORMATS, ReadOptions, count_bytes, read_files
from windrow.cli.session import Session, check_rejected, command, fail_rejected_option
from windrow.cli.time_formats import TimeFormat

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.append import AppendReport
    from windrow.snapshot import Snapshot, StreamSnapshot
    from windrow.warehouse import Warehouse

_TRIAL_ROWS, _TRIAL_LINES = 5, 10
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


def add_time_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options for how times are written in text files."""
    options: list[Option] = [
        click.option("--time-format", metavar="PATTERN", help="How times are written, such as '%d/%b/%Y:%H:%M:%S %z'."),
        click.option("--epoch", type=click.Choice(("s", "ms", "us", "ns")), help="Times are numbers since 1970."),
        click.option("--timezone", metavar="ZONE", help="Of times that name none, such as Europe/Berlin."),
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
    "--replace", "replaces", is_flag=True, help="Put the rows in the place of those that the batch of that ID had."
)
@click.option("--covers", metavar="START/END", help="The source has sent all that it had there, which closes gaps.")
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
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Leave the first N lines out.")
@add_time_options
@click.option(
    "--on-error",
    type=click.Choice(("stop", "reject")),
    default="stop",
    show_default=True,
    help="What becomes of lines that cannot be read: nothing is appended, or they join the rejected rows.",
)
@click.option(
    "--max-rejected", type=click.FloatRange(0, 1), metavar="SHARE", help="Append nothing if more are rejected."
)
@fail_rejected_option
@click.option("--dry-run", is_flag=True, help="Show what would be appended and rejected, and change nothing.")
@click.option("--slide", is_flag=True, help="Then slide the stream over these rows, or as far as its sources allow.")
@click.option(
    "--durable",
    type=click.Choice(("disk", "store")),
    default="disk",
    show_default=True,
    help="Until when to wait: this machine's disk has the rows, or a copy of the catalog in the object store does too.",
)
@command
def append(
    session: Session,
    stream: str,
    files: tuple[str, ...],
    source: str | None,
    batch_id: str | None,
    replaces: bool,
    covers: str | None,
    on_error: str,
    max_rejected: float | None,
    fail_rejected: int | None,
    dry_run: bool,
    slide: bool,
    durable: Literal["disk", "store"],
    **reading: Any,
) -> None:
    """Append CSV, Parquet, JSON or Arrow files to a stream.

    All files of one command are one batch: all of it is in, or nothing. A FILE of - is standard input. The rows are
    durable when the command ends, and in the window after the next slide.
    """
    options = _make_read_options(**reading)
    flaws = FlawedLines() if on_error == "reject" or dry_run else None
    options = replace(options, flaws=flaws)
    with session.open(read_only=dry_run) as wh:
        definition = wh.stream(stream).definition
        with terminal.progress_bar(f"append {stream}", count_bytes(files), in_bytes=True) as report_progress:
            rows = read_files(files, definition.schema, stream, options, report_progress, definition.added)
            if dry_run:
                _show_trial(session, wh, stream, rows, options)
                return
            report = wh.append(
                stream, rows, source=source, batch_id=batch_id, max_rejected=max_rejected, flaws=flaws, covers=covers,
                replace=replaces, durable=durable,
            )  # fmt: skip
        slid = slide_over(wh, stream) if slide else None
    if session.json:
        terminal.write_json(terminal.to_record(report) | ({} if slid is None else {"slide": slide_to_json(slid)}))
    elif report.duplicate:
        terminal.say(
            f"{stream}: batch {batch_id!r} of source {report.source!r} was appended before; nothing was changed"
        )
    else:
        show_appended(report)
    if slid is not None and not session.json:
        show_slides([slid])
    check_rejected(stream, report.rejected, fail_rejected)


def _make_read_options(
    format: str | None,
    delimiter: str | None,
    no_header: bool,
    nulls: tuple[str, ...],
    skip: int,
    time_format: str | None,
    epoch: str | None,
    timezone: str | None,
) -> ReadOptions:
    if delimiter is not None and len(delimiter.replace("\\t", "\t")) != 1:
        raise click.UsageError(f"--delimiter is one character, not {delimiter!r}")
    return ReadOptions(format, delimiter, not no_header, nulls, skip, TimeFormat(time_format, epoch, timezone))


def _show_trial(
    session: Session, wh: "Warehouse", stream: str, rows: "pa.RecordBatchReader", options: ReadOptions
) -> None:
    """Show the first rows and what an append would reject; nothing is written."""
    import pyarrow as pa

    from windrow.catalog.lookups import find_stream, refuse_hidden
    from windrow.cli import writers
    from windrow.rejection import classify_rows
    from windrow.row_checks import apply_checks, describe_reasons

    store, flaws = wh._store, options.flaws or FlawedLines()
    stream = refuse_hidden(store.catalog, stream)
    entry, state = store.catalog.read(lambda tables: find_stream(tables, stream))
    definition = entry.definition
    now = None if state.slide is None else definition.model.slot_end(state.slide)
    first = definition.schema.empty_table()
    names = describe_reasons(definition.checks)
    reasons: Counter[str] = Counter()
    lines: list[FlawedLine] = []
    total = 0

    def take_flaws() -> None:
        flawed = flaws.take()
        reasons.update(line.reason for line in flawed)
        lines.extend(flawed[: max(0, _TRIAL_LINES - len(lines))])

    for batch in rows:
        table = pa.Table.from_batches([batch])
        codes = classify_rows(table, definition, now, store.clock() + definition.max_ahead)[2]
        codes = apply_checks(table, definition, codes, total)
        reasons.update(names[code] for code in codes[codes != 0].tolist())
        total += table.num_rows - int((codes != 0).sum())
        first = pa.concat_tables([first, table.slice(0, max(0, _TRIAL_ROWS - first.num_rows))])
        take_flaws()
    take_flaws()
    if session.json:
        types = {field.name: str(field.type) for field in definition.schema}
        window_fields = {
            "columns": types,
            "accepted": total,
            "rejected": dict(reasons),
            "lines": [asdict(each) for each in lines],
        }
        terminal.write_json({"stream": stream, **window_fields})
        return
    terminal.say(f"columns: {', '.join(f'{field.name} {field.type}' for field in definition.schema)}")
    writers.show_rows(first.to_reader())
    terminal.say(f"{stream}: {terminal.count(total, 'row')} would be appended")
    for reason, number in sorted(reasons.items()):
        terminal.say(f"{stream}: {terminal.count(number, 'row')} would be rejected: {reason}")
    for line in lines:
        terminal.say(terminal.escape_controls(f"{line.file}, line {line.line:,}: {line.reason}: {line.text[:200]}"))


def show_appended(report: "AppendReport") -> None:
    """Print what an append took in and what it rejected."""
    late = f", {report.late:,} of them late" if report.late else ""
    instead = f" in the place of {report.replaced:,}" if report.replaced else ""
    took = f"{terminal.size(report.bytes_written)} in {terminal.format_seconds(report.seconds)}"
    terminal.say(f"{report.stream}: {terminal.count(report.accepted, 'row')} appended{late}{instead} ({took})")
    for reason, number in sorted(report.rejected.items()):
        terminal.say(f"{report.stream}: {terminal.count(number, 'row')} rejected: {reason}")


about_option = click.option("--about", is_flag=True, help="Also say, as JSON on standard error, what is known of it.")


@click.command()
@click.argument("stream")
@click.option("--key", "key_texts", metavar="KEY", multiple=True, help="A search key; may be given several times.")
@click.option("--keys", "listed", metavar="K1,K2,…", multiple=True, help="Several search keys of one column.")
@click.option("--between", nargs=2, metavar="LOW HIGH", help="A range of search keys, both ends included.")
@click.option("--window", metavar="DURATION", help="Only the last DURATION; by default all live rows.")
@add_output_options
@about_option
@command
def probe(
    session: Session,
    stream: str,
    key_texts: tuple[str, ...],
    listed: tuple[str, ...],
    between: tuple[str, str] | None,
    window: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
    about: bool,
) -> None:
    r"""Read the rows of a key, several keys or a range.

    A key is written as its column's values are; \N is null. The values of a key of several columns are separated by
    commas, as in --key ant,80; fewer values find all keys that begin with them.
    """
    if bool(key_texts or listed) == bool(between):
        raise click.UsageError("give either --key (or --keys) or --between")
    with session.open(read_only=True) as wh, wh.snapshot([stream]) as snapshot:
        view = snapshot.view(stream)
        keys = [_parse_key(text, view) for text in key_texts] + [
            _parse_key(text, view) for text in _split_keys(listed, view)
        ]
        search: dict[str, Any] = (
            {"between": tuple(_parse_key(text, view) for text in between)} if between else {"keys": keys}
        )
        rows = snapshot.probe(stream, **search, window=window, columns=_parse_columns(columns))
        _write_rows(session, view, rows.to_reader, rows.num_rows, window, limit, as_csv, output)
        if about:
            terminal.write_about(read_about(rows.schema))


@click.command(short_help="Erase rows for good.")
@click.argument("stream")
@click.option("--key", "key_texts", metavar="KEY", multiple=True, help="A search key; may be given several times.")
@click.option("--keys", "listed", metavar="K1,K2,…", multiple=True, help="Several search keys of one column.")
@click.option("--where", metavar="CONDITION", help="A predicate over one row, such as \"host = 'a'\".")
@click.option("--receipt", metavar="FILE", help="Write the receipt to a file, as JSON.")
@click.option("--timeout", metavar="SECONDS", type=float, default=60.0, show_default=True, help="Wait for a slide.")
@command
def erase(
    session: Session,
    stream: str,
    key_texts: tuple[str, ...],
    listed: tuple[str, ...],
    where: str | None,
    receipt: str | None,
    timeout: float,
) -> None:
    """Erase the rows of some keys, or those that meet a condition, wherever the stream keeps any.

    They go from the window, the history, the spool, rejected rows and views, and answers about the past change. The
    receipt counts them and names what cannot be changed from here.
    """
    if bool(key_texts or listed) == (where is not None):
        raise click.UsageError("give either --key (or --keys) or --where")
    with session.open() as wh:
        keys = None
        if where is None:
            with wh.snapshot([stream]) as snapshot:
                view = snapshot.view(stream)
                keys = [_parse_key(text, view) for text in (*key_texts, *_split_keys(listed, view))]
        report = wh.erase(stream, keys=keys, where=where, timeout=timeout)
    record = terminal.to_record(report, instants=("at",)) | {"total": report.total}
    if receipt is not None:
        Path(receipt).write_text(json.dumps(record, indent=2) + "\n")
    if session.json:
        terminal.write_json(record)
        return
    counts = {"rejected rows" if place == "rejected" else place: number for place, number in report.rows.items()}
    places = ", ".join(f"{number:,} from the {place}" for place, number in counts.items())
    terminal.say(f"{stream}: {terminal.count(report.total, 'row')} erased{': ' if places else ''}{places}")
    if report.total or report.held_by:
        terminal.say("their bytes are gone" if report.gone else f"files are still kept by {', '.join(report.held_by)}")
        for relation in report.untouched:
            terminal.say(f"not changed: {relation}")


@click.command(short_help="Read a window.")
@click.argument("stream")
@click.option("--window", metavar="DURATION", help="Only the last DURATION; by default all live rows.")
@add_output_options
@about_option
@command
def scan(
    session: Session,
    stream: str,
    window: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    as_csv: bool,
    output: str | None,
    about: bool,
) -> None:
    """Read a window: all live rows, or the last ten minutes, in no particular order."""
    with session.open(read_only=True) as wh, wh.snapshot([stream]) as snapshot:
        view = snapshot.view(stream)
        names = _parse_columns(columns)
        # An error in the window or the columns is raised here, before rows are counted.
        described = snapshot.scan(stream, window, names).schema
        total = _count_rows(snapshot, view, window) if not (session.json or as_csv) else 0
        _write_rows(session, view, lambda: snapshot.scan(stream, window, names), total, window, limit, as_csv, output)
        if about:
            terminal.write_about(read_about(described))


def read_about(schema: "pa.Schema") -> Any:
    """What is known of rows, by the metadata of their schema."""
    import msgspec

    from windrow.windows import METADATA_KEY

    return msgspec.json.decode(schema.metadata[METADATA_KEY])


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
    from windrow.times import format_time, parse_duration
    from windrow.windows import gap_to_json

    now = view.now
    of_window = view.coverage(view.bounds() if window is None else view.last(parse_duration(window, "window")))
    return {
        "stream": view.name,
        "slide": view.state.slide,
        "now": None if now is None else format_time(now),
        "window": window,
        "missing": list(view.state.missing),
        "complete": now is not None and not of_window.gaps,
        "coverage": of_window.share,
        "gaps": [gap_to_json(gap) for gap in of_window.gaps],
    }


def describe_window(view: "StreamSnapshot", window: str | None) -> str:
    """Describe the window of an answer in words."""
    facts = window_to_json(view, window)
    if facts["now"] is None:
        return f"{view.name}, which has not slid yet"
    missing = f", without {terminal.names(facts['missing'])}" if facts["missing"] else ""
    if facts["coverage"] < 1 and any(gap["kind"] != "before first data" for gap in facts["gaps"]):
        missing += f", {facts['coverage']:.1%} covered"
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
@add_time_options
@click.option("--null", "nulls", metavar="TEXT", multiple=True, help="More cells of CSV lines that stand for null.")
@command
def replay(
    session: Session,
    name: str,
    time_format: str | None,
    epoch: str | None,
    timezone: str | None,
    nulls: tuple[str, ...],
) -> None:
    """Append the rejected rows again; those that are still not acceptable stay rejected.

    Lines of text files are read again as they were, or as the options say.
    """
    from windrow.catalog.lookups import refuse_hidden
    from windrow.rejected_rows import replay_rejected

    times = TimeFormat(time_format, epoch, timezone)
    times.check()

    def read_otherwise(text: TextFormat) -> TextFormat:
        changed = {key: value for key, value in asdict(times).items() if value is not None}
        return replace(text, nulls=(*text.nulls, *nulls), times=replace(text.times, **changed))

    with session.open() as wh:
        report = replay_rejected(wh._store, refuse_hidden(wh._store.catalog, name), read_otherwise)
    if session.json:
        terminal.write_json(terminal.to_record(report))
        return
    still = sum(report.rejected.values())
    terminal.say(
        f"{name}: {report.accepted:,} of {terminal.count(report.rows, 'rejected row')} appended, "
        f"{still:,} still rejected"
    )

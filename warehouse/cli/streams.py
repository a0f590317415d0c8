"""Commands for streams: create, list, show, drop, alter, relayout, publish.

What they print for people and as JSON is also used by `windrow status`, the views and the demo.
"""

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from windrow.cli import terminal
from windrow.cli.literals import parse_column
from windrow.cli.readers import FORMATS, ReadOptions, infer_file_schema
from windrow.cli.session import Failure, LazyGroup, Session, command, if_not_exists_option
from windrow.errors import DefinitionError
from windrow.times import format_duration
from windrow.times import format_time as show_time

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.indexes.partitioners import Index
    from windrow.relayout import RelayoutReport
    from windrow.status import StreamStatus
    from windrow.warehouse import Warehouse

stream = LazyGroup(
    name="stream",
    help="Declare streams, look at them, change them, drop them.",
    locations={
        "create": "windrow.cli.streams:create",
        "list": "windrow.cli.streams:list_streams",
        "show": "windrow.cli.streams:show",
        "drop": "windrow.cli.streams:drop",
        "alter": "windrow.cli.streams:alter",
        "relayout": "windrow.cli.streams:relayout",
        "publish": "windrow.cli.streams:publish",
        "rejected": "windrow.cli.rows:rejected",
        "replay": "windrow.cli.rows:replay",
        "gaps": "windrow.cli.gaps:gaps",
    },
)


def check_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which rows a stream does not take, and how long it keeps them."""
    for option in (
        click.option("--rejected-retention", metavar="DURATION", help="How long rejected rows are kept; or forever."),
        click.option("--refuse", metavar="PREDICATE", multiple=True, help="A row that fails it refuses its append."),
        click.option(
            "--check", "reject", metavar="PREDICATE", multiple=True,
            help="SQL such as 'amount >= 0'; a row that fails it is rejected. Several times.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _collect_checks(reject: Sequence[str], refuse: Sequence[str]) -> dict[str, Literal["reject", "refuse"]] | None:
    checks: dict[str, Literal["reject", "refuse"]] = dict.fromkeys(reject, "reject")
    return checks | dict.fromkeys(refuse, "refuse") or None


@click.command()
@click.argument("name")
@click.option(
    "--column", "columns", metavar="NAME:TYPE", multiple=True, help="A column, such as src:bigint or ts:timestamptz."
)
@click.option(
    "--like", metavar="FILE", help="Take the columns from a file; --column changes their types or adds to them."
)
@click.option("--format", type=click.Choice(FORMATS), help="What the --like file is; by default its suffix tells.")
@click.option("--time", metavar="COLUMN", required=True, help="The event-time column.")
@click.option("--key", metavar="COLUMN", multiple=True, help="The search key; several times for several columns.")
@click.option("--slide", metavar="DURATION", required=True, help="The update interval, such as '1 minute'.")
@click.option("--lifetime", metavar="DURATION", help="How long every row lives; without it and --expires, for ever.")
@click.option("--expires", metavar="COLUMN", help="The column with each row's own expiry.")
@click.option("--history", metavar="DURATION", help="Keep expired rows so long, and answer as of earlier slides.")
@click.option("--erase-within", metavar="DURATION", help="How long files may hold a row after it expired.")
@click.option("--max-lifetime", metavar="DURATION", help="The longest that a row with its own expiry may live.")
@click.option(
    "--index", metavar="LAYOUT", default="auto", show_default=True, help="A layout such as 'round-robin 4 4'."
)
@click.option("--maintenance", metavar="KIND", help="rebuild, norebuild or adaptive; goes with --index.")
@click.option(
    "--source", "sources", metavar="NAME", multiple=True, help="A source that the stream waits for; several times."
)
@click.option("--slack", metavar="DURATION", default="0 seconds", help="How far out of order a source's rows may be.")
@click.option("--max-skew", metavar="DURATION", help="How far a silent source may fall behind before it is spoken for.")
@click.option(
    "--max-ahead", metavar="DURATION", default="1 hour", show_default=True, help="How far ahead of the wall clock."
)
@click.option("--origin", metavar="TIME", help="Where slots are aligned; by default the Unix epoch.")
@click.option("--on-source-failure", metavar="POLICY", default="block", show_default=True, help="block or exclude.")
@if_not_exists_option
@click.option("--liveness", metavar="DURATION", help="A source that is silent for so long has failed.")
@check_options
@command
def create(
    session: Session,
    name: str,
    columns: tuple[str, ...],
    like: str | None,
    format: str | None,
    time: str,
    key: tuple[str, ...],
    index: str,
    maintenance: str | None,
    sources: tuple[str, ...],
    expires: str | None,
    reject: tuple[str, ...],
    refuse: tuple[str, ...],
    **options: Any,
) -> None:
    """Declare a stream."""
    if not columns and like is None:
        raise click.UsageError("say which columns the stream has: --column NAME:TYPE for each, or --like FILE")
    schema = _build_schema(columns, like, format, [column for column in (time, expires) if column])
    layout = parse_index(index, maintenance)
    with session.open() as wh:
        existed = options["if_not_exists"] and name in wh.streams()
        wh.create_stream(
            name, schema, time=time, key=key or None, index=layout, sources=sources or None, expires=expires,
            checks=_collect_checks(reject, refuse), **options,
        )  # fmt: skip
        status = wh.stream(name)
    if session.json:
        terminal.write_json(stream_to_json(status))
    else:
        outcome = "there is already" if existed else "created"
        terminal.say(f"{outcome} stream {name}: index {status.index}, because {_explain_index(status)}")


def _explain_index(status: "StreamStatus") -> str:
    return "you chose it" if status.index_why == "chosen by the user" else status.index_why


def _build_schema(columns: Sequence[str], like: str | None, format: str | None, times: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    fields = (
        {} if like is None else {field.name: field for field in infer_file_schema(like, ReadOptions(format), times)}
    )
    for text in columns:
        field = parse_column(text)
        if like is None and field.name in fields:
            raise DefinitionError(f"column {field.name!r} is declared twice")
        fields[field.name] = field
    return pa.schema(list(fields.values()))


def parse_index(text: str, maintenance: str | None) -> "Index | str":
    """Parse a layout: ``auto``, or a name and its one or two numbers."""
    from windrow.indexes.partitioners import Index

    name, *numbers = re.sub(r"(\d)\s*x\s*(\d)", r"\1 \2", text).split() or [""]
    if name == "auto" and not numbers:
        if maintenance is not None:
            raise click.UsageError("--maintenance goes with --index; with --index auto it is adaptive")
        return "auto"
    if len(numbers) > 2 or not all(number.isdigit() for number in numbers):
        raise DefinitionError(f"index {text!r} is not a layout; write it like 'round-robin 4 4' or 'wave-insertion 8'")
    rows, columns = [*map(int, numbers), None, None][:2]
    return Index(name, rows, columns, maintenance=maintenance or "adaptive")


@click.command("list")
@command
def list_streams(session: Session) -> None:
    """List the streams."""
    with session.open(read_only=True) as wh:
        statuses = wh.status().streams
    if session.json:
        terminal.write_json([stream_to_json(status) for status in statuses])
        return
    columns = ("stream", "slide", "rows live", "key", "index", "live rows", "now")
    rows = [
        (
            s.name,
            format_duration(s.definition.slide),
            _describe_lifetime(s),
            terminal.names(s.definition.key),
            s.index,
            f"{s.live_rows:,}",
            show_time(s.now),
        )
        for s in statuses
    ]
    if rows:
        terminal.print_table(columns, rows, right=("live rows",))
    else:
        terminal.say("there are no streams; create one with 'windrow stream create'")


def _describe_lifetime(status: "StreamStatus") -> str:
    definition = status.definition
    if definition.expires is not None:
        return f"until {definition.expires}, at most {format_duration(definition.max_lifetime or 0)}"
    return "for ever" if definition.lifetime is None else format_duration(definition.lifetime)


@click.command(short_help="Show one stream and why it has its index.")
@click.argument("name")
@command
def show(session: Session, name: str) -> None:
    """Show one stream: definition, index and why it was chosen, clock, sources, sizes."""
    with session.open(read_only=True) as wh:
        status = wh.stream(name)
    if session.json:
        terminal.write_json(stream_to_json(status))
        return
    definition = status.definition
    facts: list[tuple[str, Any]] = [
        ("stream", status.name),
        ("columns", ", ".join(_describe_column(field) for field in definition.schema)),
        ("time", definition.time),
        ("key", terminal.names(definition.key)),
        ("slide", format_duration(definition.slide)),
        ("rows live", _describe_lifetime(status)),
        ("update pattern", _describe_pattern(status)),
        ("index", status.index),
        ("why", _explain_index(status)),
        ("now", _describe_clock(status)),
        ("live rows", f"{status.live_rows:,} ({status.stored_rows:,} stored)"),
        (
            "stored in",
            (
                f"{terminal.count(status.segments, 'segment')} of {terminal.count(status.files, 'file')}, "
                f"{terminal.size(status.bytes)}"
            ),
        ),
        ("directories", terminal.size(status.directory_bytes)),
        ("spooled", f"{terminal.count(status.spooled_rows, 'row')} in {terminal.count(status.spooled_files, 'file')}"),
        (
            "so far",
            (
                f"{status.inserted:,} inserted, {status.expired:,} expired, {status.late:,} late, "
                f"{status.rejected:,} rejected"
            ),
        ),
        ("limits", _describe_limits(status)),
        *(("check", f"{predicate}, else {outcome}") for predicate, outcome in definition.checks),
    ]
    if definition.history is not None:
        history = f"{terminal.count(status.history_rows, 'expired row')}, {terminal.size(status.history_bytes)}"
        facts.insert(6, ("history", f"{format_duration(definition.history)}: {history}"))
    if definition.erase_within is not None or definition.history is not None:
        limit = definition.erase_within
        within = "" if limit is None else f"; erased within {format_duration(limit)} of its end"
        oldest = status.oldest_expired_on_disk
        facts.insert(
            7, ("expired rows", f"{'none' if oldest is None else f'since {show_time(oldest)}'} in files{within}")
        )
    if status.relayout is not None:
        facts.insert(9, ("relayout", describe_remaining(status.relayout)))
    terminal.print_pairs(facts)
    show_sources(status)
    show_partitions(status)


def _describe_pattern(status: "StreamStatus") -> str:
    inputs = status.definition.inputs
    return status.definition.update_pattern + (f", derived from {terminal.names(inputs)}" if inputs else "")


def _describe_column(field: "pa.Field") -> str:
    return f"{field.name} {field.type}{'' if field.nullable else ' not null'}"


def _describe_clock(status: "StreamStatus") -> str:
    clock = "not slid yet" if status.now is None else f"{show_time(status.now)}, slide {status.slide}"
    waits = f"; waits for {status.waits_for}" if status.waits_for else ""
    missing = f"; without {terminal.names(status.missing)}" if status.missing else ""
    return clock + waits + missing


def _describe_limits(status: "StreamStatus") -> str:
    definition = status.definition
    limits = [f"max_ahead {format_duration(definition.max_ahead)}"]
    if definition.slack:
        limits.append(f"slack {format_duration(definition.slack)}")
    if definition.max_skew is not None:
        limits.append(f"max_skew {format_duration(definition.max_skew)}")
    if definition.liveness is not None:
        limits.append(f"liveness {format_duration(definition.liveness)}")
    if definition.rejected_retention is not None:
        limits.append(f"rejected_retention {format_duration(definition.rejected_retention)}")
    if definition.origin:
        limits.append(f"origin {show_time(definition.origin)}")
    if definition.sources:
        limits.append(f"on_source_failure {definition.on_source_failure}")
    return ", ".join(limits)


def show_sources(status: "StreamStatus") -> None:
    """Print the sources of a stream as a table."""
    if not status.sources:
        return
    columns = ("source", "progress", "rows", "rejected", "state")
    rows = []
    for source in status.sources:
        state = []
        if source.failed is not None:
            state.append(f"failed ({source.failed})" + (", excluded" if source.excluded else ""))
        if source.name in status.waiting_for and len(status.sources) > 1:
            state.append("waited for")
        if source.spoken_for:
            state.append(f"spoken for up to {show_time(source.effective)}")
        rows.append(
            (source.name, show_time(source.progress), f"{source.rows:,}", f"{source.rejected:,}", terminal.names(state))
        )
    terminal.print_table(columns, rows, right=("rows", "rejected"))


def show_partitions(status: "StreamStatus") -> None:
    """Print where the queries of a stream are in Kafka, as a table."""
    if status.partitions:
        terminal.say("")
        columns = ("partition", "next offset", "lag", "seen")
        rows = [(each.name, f"{each.offset:,}", f"{each.lag:,}", show_time(each.seen)) for each in status.partitions]
        terminal.print_table(columns, rows, right=("next offset", "lag"))


def stream_to_json(status: "StreamStatus") -> dict[str, Any]:
    """Convert the definition and state of a stream for JSON."""
    definition = status.definition
    declared = {
        "columns": [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in definition.schema],
        "time": definition.time,
        "key": list(definition.key),
        "expires": definition.expires,
        "update_pattern": definition.update_pattern,
        "inputs": list(definition.inputs),
        "sources": list(definition.sources),
        "origin": show_time(definition.origin),
        "on_source_failure": definition.on_source_failure,
        "checks": dict(definition.checks),
    }
    durations = (
        "slide",
        "lifetime",
        "max_lifetime",
        "slack",
        "max_skew",
        "max_ahead",
        "liveness",
        "rejected_retention",
        "history",
        "erase_within",
    )
    declared |= terminal.to_record({name: getattr(definition, name) for name in durations}, durations=durations)
    index_name, grid, maintenance = status.index.split()
    rows, columns = grid.split("x")
    index = {
        "name": index_name,
        "rows": int(rows),
        "columns": int(columns),
        "maintenance": maintenance,
        "auto": definition.index_auto,
        "why": status.index_why,
        "layouts": status.layouts,
        "relayout": None if status.relayout is None else terminal.to_record(status.relayout),
    }
    return {"name": status.name, "definition": declared, "index": index, **stream_state_to_json(status)}


def stream_state_to_json(status: "StreamStatus") -> dict[str, Any]:
    """Convert the state of a stream for JSON."""
    counters = (
        "live_rows", "stored_rows", "segments", "files", "bytes", "directory_bytes", "spooled_rows", "spooled_bytes",
        "spooled_files", "inserted", "expired", "late", "rejected", "history_rows", "history_bytes",
    )  # fmt: skip
    sources = [
        terminal.to_record(s, instants=("progress", "effective", "heard")) | {"spoken_for": s.spoken_for}
        for s in status.sources
    ]
    return {
        "slide": status.slide,
        "now": None if status.now is None else show_time(status.now),
        "waiting_for": list(status.waiting_for),
        "waits_for": status.waits_for,
        "oldest_expired_on_disk": show_time(status.oldest_expired_on_disk),
        "missing": list(status.missing),
        "spoken_for": list(status.spoken_for),
        "sources": sources,
        "partitions": [terminal.to_record(each, instants=("seen",)) for each in status.partitions],
        **{name: getattr(status, name) for name in counters},
    }


@click.command(short_help="Drop a stream and its rows.")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@command
def drop(session: Session, name: str, yes: bool) -> None:
    """Drop a stream and its rows; readers that have pinned it go on reading."""
    with session.open() as wh:
        confirm_drop("stream", name, wh.stream(name).live_rows, yes=yes)
        wh.drop_stream(name)
    show_dropped(session, "stream", name)


def confirm_drop(kind: str, name: str, rows: int, *, yes: bool) -> None:
    """Ask before rows are dropped, unless `yes`; without a terminal, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"dropping {kind} {name!r} takes {terminal.count(rows, 'live row')} with it; say --yes")
    if not click.confirm(f"Drop {kind} {name!r} with {terminal.count(rows, 'live row')}?", err=True):
        raise Failure("nothing was dropped")


def show_dropped(session: Session, kind: str, name: str) -> None:
    """Print that a stream, view, table or query was dropped."""
    if session.json:
        terminal.write_json({kind: name, "dropped": True})
    else:
        terminal.say(f"dropped {kind} {name}")


@click.command(short_help="Publish a stream's window as a Delta table.")
@click.argument("name")
@click.option("--every", metavar="DURATION", help="At most one version in it; at first 1 minute.")
@click.option("--hold", metavar="DURATION", help="Keep replaced versions so long; at first 10 minutes.")
@click.option("--stop", is_flag=True, help="End the publication; the table's log is removed.")
@command
def publish(session: Session, name: str, every: str | None, hold: str | None, stop: bool) -> None:
    """Publish the live rows of a stream or view as a Delta table beside its segments, for other engines.

    Slides write the next version; no row is copied.
    """
    with session.open() as wh:
        if stop:
            wh.unpublish(name)
            published = None
        else:
            published = wh.publish(name, every=every, hold=hold)
    if session.json:
        terminal.write_json(
            {"stream": name, "published": False} if published is None else terminal.to_record(published)
        )
    elif published is None:
        terminal.say(f"{name} is not published any more")
    else:
        terminal.say(f"{name} is published as version {published.version} of the Delta table {published.path}")


MEGABYTE = 1 << 20


@click.command(short_help="Turn a stream to another layout or search key.")
@click.argument("name")
@click.option("--index", metavar="LAYOUT", help="A layout such as 'round-robin 4 4', or auto.")
@click.option("--maintenance", metavar="KIND", help="rebuild, norebuild or adaptive; goes with --index.")
@click.option("--key", metavar="COLUMN", multiple=True, help="Another search key; several times for several columns.")
@click.option("--no-key", is_flag=True, help="Take the search key away.")
@click.option("--move", is_flag=True, help="Move stored rows too, now, step by step.")
@click.option("--move-with-slides", is_flag=True, help="Let each slide move stored rows, one step at a time.")
@click.option("--step", is_flag=True, help="Move one step of what older layouts hold.")
@click.option("--cancel", is_flag=True, help="Go back to the layout and key before the change that is under way.")
@click.option("--budget", metavar="MB", type=float, default=64.0, show_default=True, help="Megabytes of one step.")
@click.option("--timeout", metavar="SECONDS", type=float, default=60.0, show_default=True, help="Wait for a slide.")
@command
def relayout(
    session: Session,
    name: str,
    index: str | None,
    maintenance: str | None,
    key: tuple[str, ...],
    no_key: bool,
    move: bool,
    move_with_slides: bool,
    step: bool,
    cancel: bool,
    budget: float,
    timeout: float,
) -> None:
    """Turn a stream to another layout or search key while it is read and written, or say how far that has come."""
    if key and no_key:
        raise click.UsageError("give either --key or --no-key")
    if sum((move, move_with_slides, step, cancel)) > 1:
        raise click.UsageError("give one of --move, --move-with-slides, --step and --cancel")
    if maintenance is not None and index is None:
        raise click.UsageError("--maintenance goes with --index")
    changing = index is not None or bool(key) or no_key
    if changing and (step or cancel):
        raise click.UsageError("--step and --cancel go without --index and --key")
    options: dict[str, Any] = {"budget": max(1, int(budget * MEGABYTE)), "timeout": timeout}
    with session.open() as wh:
        if cancel:
            report = wh.cancel_relayout(name, timeout=timeout)
        elif step:
            report = wh.relayout_step(name, **options)
        elif changing or move or move_with_slides:
            layout = None if index is None else parse_index(index, maintenance)
            keys = [] if no_key else list(key) or None
            mode = "now" if move else "steps" if move_with_slides else False
            report = _change_layout(wh, name, layout, keys, mode, options)
        else:
            from windrow.catalog.lookups import refuse_hidden
            from windrow.relayout import read_relayout_report

            report = read_relayout_report(wh._store, refuse_hidden(wh._store.catalog, name))
    if session.json:
        terminal.write_json(relayout_to_json(report))
    else:
        terminal.say(describe_relayout(report))


def _change_layout(
    wh: "Warehouse", name: str, layout: Any, keys: Any, move: Any, options: dict[str, Any]
) -> "RelayoutReport":
    if move != "now":
        return wh.relayout(name, layout, key=keys, move=move, **options)
    with terminal.progress_bar("move", wh.stream(name).bytes, in_bytes=True) as report_progress:
        return wh.relayout(
            name, layout, key=keys, move=move, progress=lambda report: report_progress(report.moved_bytes), **options
        )


def relayout_to_json(report: "RelayoutReport") -> dict[str, Any]:
    """Convert the report of a relayout for JSON."""
    return {**terminal.to_record(report), "done": report.done}


def describe_relayout(report: "RelayoutReport") -> str:
    """Describe how far a relayout has come."""
    key = f"key {terminal.names(report.key)}" if report.key else "no key"
    into = f"{report.stream}: rows go to {report.index}, {key}"
    progress = f"; {terminal.size(report.moved_bytes)} moved" if report.moved_bytes else ""
    return f"{into}{progress}; {describe_remaining(report)}"


def describe_remaining(report: "RelayoutReport") -> str:
    """Describe what older layouts still hold, and how it leaves them."""
    if report.done:
        return "nothing lies in older layouts"
    amount = f"{terminal.size(report.left_bytes)} of {terminal.size(report.total_bytes)} in older layouts"
    pace = (
        f"each slide moves up to {terminal.size(report.budget)}"
        if report.budget
        else "they empty out as their rows expire"
    )
    return f"{amount}, {pace}"


@click.command(short_help="Add or widen a column, change lifetime, history, checks, slack or skew.")
@click.argument("name")
@click.option("--add-column", metavar="NAME:TYPE", help="A nullable column; stored rows have null there.")
@click.option("--widen-column", metavar="NAME:TYPE", help="A wider type for a column, such as bigint for int.")
@click.option("--lifetime", metavar="DURATION", help="How long every row lives, stored ones too; or forever.")
@click.option("--max-lifetime", metavar="DURATION", help="The longest that rows to come may live, with --expires.")
@click.option("--slack", metavar="DURATION", help="How far out of order a source's rows may be.")
@click.option("--max-skew", metavar="DURATION", help="How far a silent source may fall behind; or never.")
@click.option("--max-ahead", metavar="DURATION", help="How far ahead of the wall clock a row may be.")
@click.option("--history", metavar="DURATION", help="How long expired rows are kept aside; or none.")
@click.option("--erase-within", metavar="DURATION", help="How long files may hold a row after it expired; or none.")
@click.option("--timeout", metavar="SECONDS", type=float, default=60.0, show_default=True, help="Wait for a slide.")
@click.option("--no-checks", is_flag=True, help="Take its checks away.")
@check_options
@command
def alter(
    session: Session,
    name: str,
    add_column: str | None,
    widen_column: str | None,
    timeout: float,
    no_checks: bool,
    reject: tuple[str, ...],
    refuse: tuple[str, ...],
    **options: str | None,
) -> None:
    """Change a stream while it is in use; what is not named stays as it is. Checks are replaced by those given."""
    checks = {} if no_checks else _collect_checks(reject, refuse)
    if checks is None and all(value is None for value in (add_column, widen_column, *options.values())):
        raise click.UsageError("say what to change: --add-column, --lifetime, --max-lifetime, --slack, --max-skew …")
    column = None if add_column is None else parse_column(add_column)
    wider = None if widen_column is None else parse_column(widen_column)
    if column is not None and not column.nullable:
        raise DefinitionError(
            f"stream {name!r}: column {column.name!r} cannot be added as not null; stored rows have no value for it"
        )
    with session.open() as wh:
        wh.alter_stream(name, add_column=column, widen_column=wider, checks=checks, timeout=timeout, **options)
        status = wh.stream(name)
    if session.json:
        terminal.write_json(stream_to_json(status))
    else:
        changes = [f"column {each.name} {each.type}" for each in (column, wider) if each is not None]
        changes += [] if checks is None else [terminal.count(len(checks), "check")]
        changes += [f"{option.replace('_', ' ')} {value}" for option, value in options.items() if value is not None]
        terminal.say(f"altered stream {name}: {', '.join(changes)}; {terminal.count(status.live_rows, 'live row')}")

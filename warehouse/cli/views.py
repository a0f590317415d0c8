"""Commands for views, streams that are derived from others and slide with them: create, list, show, drop."""

from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import LazyGroup, Session, command, if_not_exists_option
from windrow.cli.streams import confirm_drop, parse_index, show_dropped
from windrow.errors import ViewError
from windrow.times import format_time as show_time

if TYPE_CHECKING:
    from windrow.queries.views.ddl import View

view = LazyGroup(
    name="view",
    help="Declare views, which are streams derived from others; look at them, drop them.",
    locations={
        "create": "windrow.cli.views:create",
        "list": "windrow.cli.views:list_views",
        "show": "windrow.cli.views:show",
        "drop": "windrow.cli.views:drop",
    },
)


@click.command()
@click.argument("name")
@click.argument("statement")
@click.option("--key", metavar="COLUMN", multiple=True, help="The search key; several times for several columns.")
@click.option("--restore", is_flag=True, help="Also show results that lived and died between two slides, once.")
@click.option("--keep", metavar="DURATION", help="How long results stay, whatever becomes of their parts.")
@click.option("--time", metavar="NAME", default="_ts", show_default=True, help="Name the column of results' times.")
@click.option("--expires", metavar="NAME", default="_exp", show_default=True, help="Name the column of their expiries.")
@click.option("--slide", metavar="DURATION", help="How often it moves; by default whenever its inputs' clocks let it.")
@click.option("--recompute", is_flag=True, help="Compute it from scratch at each slide, also where new rows would do.")
@click.option("--retroactive", metavar="TABLE", multiple=True, help="A table whose changes reach back; several times.")
@click.option(
    "--index", metavar="LAYOUT", default="auto", show_default=True, help="A layout such as 'round-robin 4 4'."
)
@click.option("--maintenance", metavar="KIND", help="rebuild, norebuild or adaptive; goes with --index.")
@if_not_exists_option
@command
def create(
    session: Session,
    name: str,
    statement: str,
    key: tuple[str, ...],
    index: str,
    maintenance: str | None,
    retroactive: tuple[str, ...],
    **options: Any,
) -> None:
    """Declare a view; STATEMENT is its query, with a window clause behind each stream.

    It is filled at once from what its inputs hold, and moves in their slides from then on.
    """
    layout = parse_index(index, maintenance)
    with session.open() as wh:
        existed = options["if_not_exists"] and name in wh.streams()
        created = wh.create_view(name, statement, key=key or None, index=layout, retroactive=retroactive, **options)
        rows = wh.stream(name).live_rows
    if session.json:
        terminal.write_json(view_to_json(created) | {"live_rows": rows})
        return
    outcome = "there is already" if existed else "created"
    terminal.say(f"{outcome} view {name}: {created.pattern} ({created.why}), index {created.index}")
    terminal.say(f"{terminal.count(rows, 'row')} at {show_time(created.now)}" + _describe_waiting(created))


def _describe_waiting(view: "View") -> str:
    return f"; waits for {terminal.names(view.waiting_for)}" if view.waiting_for else ""


def view_to_json(view: "View") -> dict[str, Any]:
    """Convert a view for JSON."""
    return terminal.to_record(view, instants=("now",))


@click.command("list")
@command
def list_views(session: Session) -> None:
    """List the views."""
    with session.open(read_only=True) as wh:
        views = [(view, wh.stream(view.name).live_rows) for view in wh.views()]
    if session.json:
        terminal.write_json([view_to_json(view) | {"live_rows": rows} for view, rows in views])
        return
    if not views:
        terminal.say("there are no views; create one with 'windrow view create'")
        return
    columns = ("view", "of", "pattern", "index", "live rows", "now")
    rows = [
        (
            v.name,
            terminal.names((*v.inputs, *v.tables)),
            v.pattern,
            v.index,
            f"{live:,}",
            show_time(v.now) + _describe_waiting(v),
        )
        for v, live in views
    ]
    terminal.print_table(columns, rows, right=("live rows",))


@click.command(short_help="Show one view, its update pattern and why.")
@click.argument("name")
@command
def show(session: Session, name: str) -> None:
    """Show one view: statement, inputs, update pattern and what it means, clock and whom it waits for."""
    with session.open(read_only=True) as wh:
        view = next((candidate for candidate in wh.views() if candidate.name == name), None)
        if view is None:
            names = [candidate.name for candidate in wh.views()]
            raise ViewError(
                f"there is no view {name!r}; "
                + (f"the views are {', '.join(names)}" if names else "none was created yet")
            )
        status = wh.stream(name)
    if session.json:
        terminal.write_json(view_to_json(view) | {"live_rows": status.live_rows})
        return
    terminal.print_pairs(
        [
            ("view", view.name),
            ("statement", view.sql),
            ("inputs", terminal.names(view.inputs)),
            ("tables", _describe_tables(view)),
            ("columns", ", ".join(f"{field.name} {field.type}" for field in status.definition.schema)),
            ("update pattern", f"{view.pattern}: {view.why}"),
            ("kept", _describe_upkeep(view)),
            *(("join order", str(order)) for order in view.joins),
            ("restore", "yes" if view.restore else "no"),
            *([] if view.keep is None else [("keep", view.keep)]),
            ("index", f"{view.index}: {status.index_why}"),
            ("now", show_time(view.now) + _describe_waiting(view)),
            ("live rows", f"{status.live_rows:,} ({status.stored_rows:,} stored)"),
        ]
    )


def _describe_upkeep(view: "View") -> str:
    if view.recomputed:
        return "recomputed at each slide"
    grouped = "" if view.partials is None else f", as changes of the partial aggregates in {view.partials}"
    return f"from the new rows of each slide{grouped}"


def _describe_tables(view: "View") -> str:
    names = [f"{table} (retroactive)" if table in view.retroactive else table for table in view.tables]
    return terminal.names(tuple(names))


@click.command(short_help="Drop a view and its rows.")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@command
def drop(session: Session, name: str, yes: bool) -> None:
    """Drop a view and its rows; its inputs stay, and readers that have pinned it go on reading."""
    with session.open() as wh:
        confirm_drop("view", name, wh.stream(name).live_rows, yes=yes)
        wh.drop_view(name)
    show_dropped(session, "view", name)

"""Commands that make, watch and look after a warehouse: init, adopt, status, check, gc, demo."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windrow import cli_terminal as terminal
from windrow.cli_support import MARKER, Failure, Session, command
from windrow.times import show

if TYPE_CHECKING:
    from windrow.status import WarehouseStatus

PROBLEMS_FOUND = 1


@click.command(short_help="Make an empty warehouse.")
@click.argument("path", required=False)
@click.option(
    "--catalog", metavar="PATH", help="Where the catalog is to lie, if not inside; it must be on a local disk."
)
@command
def init(session: Session, path: str | None, catalog: str | None) -> None:
    """Make an empty warehouse in a new or empty folder, by default the current one."""
    folder = Path(path or session.place or ".").absolute()
    there = (folder / MARKER).exists()
    from windrow.warehouse import Warehouse

    with Warehouse(folder, catalog=catalog):
        pass
    if session.json:
        terminal.write_json({"path": str(folder), "created": not there})
    else:
        terminal.say(
            f"{folder} holds a warehouse already; nothing was changed"
            if there
            else f"made an empty warehouse in {folder}"
        )


@click.command(short_help="Make a copied or moved folder a warehouse of its own.")
@click.argument("path", required=False)
@click.option("--catalog", metavar="FOLDER", help="Where a copy is to have its catalog, if not inside; a local disk.")
@command
def adopt(session: Session, path: str | None, catalog: str | None) -> None:
    """Make a copied or moved folder a warehouse of its own, by default the current one.

    Only a folder whose catalog lies elsewhere needs this. A copy gets a copy of the catalog; a moved one keeps it.
    """
    from windrow.adoption import adopt

    done = adopt(path or session.place or ".", catalog)
    if session.json:
        terminal.write_json({"path": str(done.path), "catalog": str(done.catalog), "outcome": done.outcome})
    elif done.outcome == "copied":
        terminal.say(f"{done.path} is a warehouse of its own now, with its catalog in {done.catalog}")
    elif done.outcome == "moved":
        terminal.say(f"{done.path} has taken over the catalog in {done.catalog}")
    else:
        terminal.say(f"{done.path} is a warehouse of its own already; nothing was changed")


@click.command()
@command
def status(session: Session) -> None:
    """Say where each stream stands and whom it waits for."""
    with session.open(read_only=True) as wh:
        found = wh.status()
    if session.json:
        from windrow.cli_streams import state_json

        told = {key: value for key, value in vars(found).items() if key != "streams"}
        terminal.write_json({**told, "streams": [{"name": s.name, **state_json(s)} for s in found.streams]})
    else:
        show_status(found)


def show_status(found: "WarehouseStatus") -> None:
    """The warehouse for people."""
    columns = ("stream", "now", "live rows", "spooled", "late", "rejected", "segments", "size", "waits for")
    rows = [
        (
            s.name,
            show(s.now),
            f"{s.live_rows:,}",
            f"{s.spooled_rows:,}",
            f"{s.late:,}",
            f"{s.rejected:,}",
            f"{s.segments:,}",
            terminal.size(s.bytes),
            terminal.waited(s.waiting_for),
        )
        for s in found.streams
    ]
    if rows:
        terminal.table(columns, rows, right=columns[2:8])
    for s in found.streams:
        for source in s.sources:
            if source.name in s.waiting_for and s.definition.sources:
                reached = "was never heard" if source.effective is None else f"has reached {show(source.effective)}"
                terminal.say(
                    f"{s.name} waits for source {source.name!r}, which {'failed' if source.failed else reached}"
                )
        if s.relayout is not None:
            from windrow.cli_layout import left_in_words

            terminal.say(f"{s.name} changes its layout: {left_in_words(s.relayout)}")
        if s.missing:
            terminal.say(f"{s.name} went on without {terminal.names(s.missing)}")
    streams, readers = terminal.count(len(found.streams), "stream"), terminal.count(found.readers, "reader")
    terminal.say(
        f"{found.path}: {streams}, {readers}, catalog {terminal.size(found.catalog_bytes)}, "
        f"{terminal.count(found.reclaimable_files, 'replaced file')} to reclaim"
    )


@click.command(short_help="Verify the whole warehouse.")
@command
def check(session: Session) -> None:
    """Verify every file, checksum, sort order, directory entry and cell; exit code 1 if something is wrong."""
    with session.open(read_only=True) as wh:
        status_before = wh.status()
        steps = sum(s.segments + s.files + s.spooled_files * 2 for s in status_before.streams)
        with terminal.progress("check", steps) as moved:
            done = 0

            def step(_: str) -> None:
                nonlocal done
                done += 1
                moved(done)

            report = wh.check(step)
    looked = (
        f"{terminal.count(report.streams, 'stream')}, {terminal.count(report.segments, 'segment')}, "
        f"{terminal.count(report.files, 'file')}, {terminal.count(report.rows, 'row')}"
    )
    if session.json:
        terminal.write_json({"ok": report.ok, **asdict(report)})
    elif report.ok:
        terminal.say(f"no problems in {looked}")
    else:
        for problem in report.problems:
            terminal.say(problem)
        terminal.say(f"{terminal.count(len(report.problems), 'problem')} in {looked}")
    if not report.ok:
        raise click.exceptions.Exit(PROBLEMS_FOUND)


@click.command()
@command
def gc(session: Session) -> None:
    """Reclaim the space of what no reader needs any more."""
    with session.open() as wh:
        report = wh.gc()
    if session.json:
        terminal.write_json(asdict(report))
        return
    removed = terminal.count(report.files, "replaced file")
    orphans = terminal.count(report.orphans, "orphan")
    terminal.say(
        f"removed {removed} ({terminal.size(report.bytes)}) and {orphans}, "
        f"forgot {terminal.count(report.batches, 'batch id')}"
    )
    if report.waiting:
        readers = terminal.count(report.pins, "living reader")
        terminal.say(f"{terminal.count(report.waiting, 'replaced file')} must wait for {readers}")
    if report.marked:
        terminal.say(f"{terminal.count(report.marked, 'orphan')} marked, to be removed an hour after it was first seen")
    if report.refused:
        terminal.say(report.refused)


@click.command()
@click.option("--skip", metavar="SCENE", multiple=True, help="Leave a scene out, such as spark, which starts a JVM.")
@click.option("--folder", metavar="PATH", help="Build the demo's warehouse in this new or empty folder, and keep it.")
@click.option(
    "--updates", type=click.IntRange(4, 1000), default=36, show_default=True, help="How many times the streams slide."
)
@click.option("--rows", type=click.IntRange(100, 10_000_000), default=8000, show_default=True, help="Rows per update.")
@click.option("--seed", type=int, default=1, show_default=True, help="Other data.")
@command
def demo(session: Session, folder: str | None, updates: int, rows: int, seed: int, skip: tuple[str, ...]) -> None:
    """Show what windrow does, on generated data."""
    from windrow.demo import run

    if folder is not None and (Path(folder) / MARKER).exists():
        raise Failure(f"{folder} holds a warehouse already; the demo wants a new or empty folder")
    run(folder, updates=updates, rows=rows, seed=seed, as_json=session.json, skip=skip)

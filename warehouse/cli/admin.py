"""Commands that create, watch and look after a warehouse: init, adopt, status, check, gc, advise, demo and bench.

The benchmarks are not part of the installed package; they are found beside it in a checkout and run from there.
"""

import importlib
import importlib.util
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from windrow.cli import terminal
from windrow.cli.session import MARKER_FILE, Failure, Session, command
from windrow.times import format_time

if TYPE_CHECKING:
    from windrow.advisor import Advice
    from windrow.indexes.cost_model import Estimate
    from windrow.object_store.segment_store import StoreStatus
    from windrow.status import WarehouseStatus

EXIT_PROBLEMS_FOUND = 1
_SHOWN_LAYOUTS = 8
"""How many layouts `windrow advise` shows without --all."""


@click.command(short_help="Make an empty warehouse.")
@click.argument("path", required=False)
@click.option(
    "--catalog", metavar="PATH", help="Where the catalog is to lie, if not inside; it must be on a local disk."
)
@click.option("--segments", metavar="URI", help="Where its files are to lie: s3://bucket/prefix, or of gs, hdfs, file.")
@click.option("--segment-cache", metavar="SIZE", help="How much of them the folder may hold, such as 50GB.")
@command
def init(
    session: Session, path: str | None, catalog: str | None, segments: str | None, segment_cache: str | None
) -> None:
    """Make an empty warehouse in a new or empty folder, by default the current one.

    With --segments, one that is there already moves its files into an object store.
    """
    root = Path(path or session.folder or ".")
    folder, existed = root.absolute(), (root / MARKER_FILE).exists()
    from windrow.warehouse import Warehouse

    with Warehouse(root, catalog=catalog, segments=segments, segment_cache=segment_cache):
        pass
    if session.json:
        terminal.write_json({"path": str(folder), "created": not existed})
    else:
        terminal.say(
            f"{folder} holds a warehouse already; nothing was changed"
            if existed
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

    adoption = adopt(path or session.folder or ".", catalog)
    if session.json:
        terminal.write_json({"path": str(adoption.path), "catalog": str(adoption.catalog), "outcome": adoption.outcome})
    elif adoption.outcome == "copied":
        terminal.say(f"{adoption.path} is a warehouse of its own now, with its catalog in {adoption.catalog}")
    elif adoption.outcome == "moved":
        terminal.say(f"{adoption.path} has taken over the catalog in {adoption.catalog}")
    else:
        terminal.say(f"{adoption.path} is a warehouse of its own already; nothing was changed")


@click.command()
@command
def status(session: Session) -> None:
    """Say where each stream stands and whom it waits for."""
    with session.open(read_only=True) as wh:
        warehouse_status = wh.status()
    if session.json:
        from windrow.cli.streams import stream_state_to_json

        facts = {key: value for key, value in vars(warehouse_status).items() if key not in ("streams", "store")}
        if warehouse_status.store is not None:
            facts["store"] = vars(warehouse_status.store)
        terminal.write_json(
            {**facts, "streams": [{"name": s.name, **stream_state_to_json(s)} for s in warehouse_status.streams]}
        )
    else:
        show_status(warehouse_status)


def show_status(warehouse: "WarehouseStatus") -> None:
    """Print the state of a warehouse."""
    columns = ("stream", "now", "live rows", "spooled", "late", "rejected", "segments", "size", "waits for")
    rows = [
        (
            stream.name,
            format_time(stream.now),
            f"{stream.live_rows:,}",
            f"{stream.spooled_rows:,}",
            f"{stream.late:,}",
            f"{stream.rejected:,}",
            f"{stream.segments:,}",
            terminal.size(stream.bytes),
            stream.waits_for,
        )
        for stream in warehouse.streams
    ]
    if rows:
        terminal.print_table(columns, rows, right=columns[2:8])
    for stream in warehouse.streams:
        for source in stream.sources:
            if source.name in stream.waiting_for and stream.definition.sources:
                reached = (
                    "was never heard" if source.effective is None else f"has reached {format_time(source.effective)}"
                )
                terminal.say(
                    f"{stream.name} waits for source {source.name!r}, which {'failed' if source.failed else reached}"
                )
        if stream.partitions:
            behind, oldest = sum(each.lag for each in stream.partitions), min(each.seen for each in stream.partitions)
            terminal.say(
                f"{stream.name} reads {terminal.count(len(stream.partitions), 'partition')} of Kafka and was "
                f"{terminal.count(behind, 'offset')} behind, as last seen at {format_time(oldest)}"
            )
        if stream.relayout is not None:
            from windrow.cli.streams import describe_remaining

            terminal.say(f"{stream.name} changes its layout: {describe_remaining(stream.relayout)}")
        if stream.missing:
            terminal.say(f"{stream.name} went on without {terminal.names(stream.missing)}")
    if warehouse.store is not None:
        _show_store(warehouse.store)
    if warehouse.background:
        terminal.say(f"waiting in the background: {terminal.names(warehouse.background)}")
    streams, readers = terminal.count(len(warehouse.streams), "stream"), terminal.count(warehouse.readers, "reader")
    terminal.say(
        f"{warehouse.path}: {streams}, {readers}, catalog {terminal.size(warehouse.catalog_bytes)}, "
        f"{terminal.count(warehouse.reclaimable_files, 'replaced file')} to reclaim"
    )


def _show_store(store: "StoreStatus") -> None:
    copied = (
        "the catalog was never copied"
        if store.copied_at is None
        else f"catalog copied at {format_time(store.copied_at)}, commit {store.copied_commit}"
        + (f", {terminal.count(store.uncopied_commits, 'commit')} since" if store.uncopied_commits else "")
    )
    terminal.say(
        f"files in {store.uri}, epoch {store.epoch}: {terminal.count(store.objects, 'object')}, "
        f"{terminal.size(store.object_bytes)}, {terminal.size(store.cached_bytes)} of them cached; {copied}"
    )
    if store.waiting_deletions:
        terminal.say(f"{terminal.count(store.waiting_deletions, 'object')} to be deleted after the next copy")
    if store.taken_over_by:
        terminal.say(f"it was restored by {store.taken_over_by}, and can only be read here")
    if store.problem:
        terminal.say(f"the last copy failed: {store.problem}")


@click.command(short_help="Verify the whole warehouse.")
@command
def check(session: Session) -> None:
    """Verify every file, checksum, sort order, directory entry and cell; exit code 1 if something is wrong."""
    with session.open(read_only=True) as wh:
        status_before = wh.status()
        steps = sum(s.segments + s.files + s.spooled_files * 2 for s in status_before.streams)
        with terminal.progress_bar("check", steps) as report_progress:
            step_count = 0

            def step(_: str) -> None:
                nonlocal step_count
                step_count += 1
                report_progress(step_count)

            report = wh.check(step)
    checked = (
        f"{terminal.count(report.streams, 'stream')}, {terminal.count(report.segments, 'segment')}, "
        f"{terminal.count(report.files, 'file')}, {terminal.count(report.rows, 'row')}"
    )
    if session.json:
        terminal.write_json({"ok": report.ok, **asdict(report)})
    elif report.ok:
        terminal.say(f"no problems in {checked}")
    else:
        for problem in report.problems:
            terminal.say(problem)
        terminal.say(f"{terminal.count(len(report.problems), 'problem')} in {checked}")
    if not report.ok:
        raise click.exceptions.Exit(EXIT_PROBLEMS_FOUND)


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
        + (f" and {terminal.count(report.rejected, 'rejected row')}" if report.rejected else "")
    )
    if report.waiting:
        waiting = terminal.count(report.waiting, "replaced file")
        terminal.say(f"{waiting} still kept: {' and '.join(report.held_by)}")
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

    if folder is not None and (Path(folder) / MARKER_FILE).exists():
        raise Failure(f"{folder} holds a warehouse already; the demo wants a new or empty folder")
    run(folder, updates=updates, rows=rows, seed=seed, as_json=session.json, skip=skip)


@click.command(short_help="Say which layout and search key would serve a stream best.")
@click.argument("stream")
@click.option("--all", "every", is_flag=True, help="Show every layout that was compared.")
@click.option("--follow", is_flag=True, help="Turn the stream to the advised layout and search key.")
@click.option("--move", is_flag=True, help="With --follow: move stored rows too.")
@command
def advise(session: Session, stream: str, every: bool, follow: bool, move: bool) -> None:
    """Say which layout and search key would serve a stream best, by what was measured of its rows and queries."""
    if move and not follow:
        raise click.UsageError("--move goes with --follow")
    with session.open(read_only=not follow) as wh:
        advice = wh.advise(stream)
        if follow:
            wh.relayout(stream, advice.best.index, key=list(advice.key), move="now" if move else False)
    if session.json:
        terminal.write_json(advice_to_json(advice))
        return
    shown = advice.alternatives if every else advice.alternatives[:_SHOWN_LAYOUTS]
    if advice.current not in shown:
        shown = (*shown, advice.current)
    columns = ("layout", "budget", "update", "probe", "scan", "a slide", "space", "segments")
    terminal.print_table(columns, [_format_estimate(estimate, advice) for estimate in shown], right=columns[2:])
    terminal.say(f"{advice.stream}: {advice.why}")
    terminal.say(f"search key {terminal.names(advice.key) or 'none'}: {advice.key_why}")
    terminal.say(
        f"row groups of {terminal.size(advice.row_group_bytes)}; {advice.measured_slides} slides were looked at"
    )


def _format_estimate(estimate: "Estimate", advice: "Advice") -> tuple[str, ...]:
    mark = " (now)" if estimate.index == advice.current.index else ""
    index = estimate.index
    budget = f"{index.merge_budget:g}, {index.max_segments}" if index.maintenance == "adaptive" else "-"
    times = (estimate.update, estimate.probe, estimate.scan, estimate.total)
    return (
        f"{index}{mark}",
        budget,
        *(terminal.format_seconds(time / 1e3) for time in times),
        terminal.size(int(estimate.space)),
        f"{estimate.segments:,.0f}",
    )


def advice_to_json(advice: "Advice") -> dict[str, Any]:
    """Convert advice for JSON."""

    def estimate_to_json(estimate: "Estimate") -> dict[str, Any]:
        index = {name: getattr(estimate.index, name) for name in estimate.index.__dataclass_fields__}
        return {**terminal.to_record(estimate), "index": index}

    return {
        "stream": advice.stream,
        "workload": terminal.to_record(advice.workload),
        "current": estimate_to_json(advice.current),
        "best": estimate_to_json(advice.best),
        "clearly_better": advice.clearly_better,
        "alternatives": [estimate_to_json(estimate) for estimate in advice.alternatives],
        "key": list(advice.key),
        "key_why": advice.key_why,
        "row_group_bytes": advice.row_group_bytes,
        "why": advice.why,
        "measured_slides": advice.measured_slides,
    }


_NO_CHECKOUT = (
    "the benchmarks are not part of the installed package; run 'windrow bench' inside a checkout of windrow's source"
)


def find_checkout() -> Path | None:
    """Find the root of windrow's source tree: the one that this package runs from, or the current one."""
    current = Path.cwd()
    for folder in (Path(__file__).resolve().parent.parent.parent, current, *current.parents):
        settings = folder / "pyproject.toml"
        if (folder / "bench" / "cli.py").is_file() and settings.is_file():
            with settings.open("rb") as file:
                if tomllib.load(file).get("project", {}).get("name") == "windrow":
                    return folder
    return None


def import_bench(root: Path) -> ModuleType:
    """Import `bench` without putting the root on the path, where `indexes` and others would be found a second time."""
    if "bench.cli" not in sys.modules:
        folder = root / "bench"
        spec = importlib.util.spec_from_file_location(
            "bench", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["bench"] = package = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return importlib.import_module("bench.cli")


@click.command("bench", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def _bench_without_checkout() -> None:
    """Compare Windrow with what you would use instead (only in a checkout of its source)."""
    raise click.UsageError(_NO_CHECKOUT)


_ROOT = find_checkout()
bench: click.Command = import_bench(_ROOT).bench if _ROOT is not None else _bench_without_checkout

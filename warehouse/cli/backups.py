"""Commands for backups: create, list, verify and restore."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from windrow.cli import terminal
from windrow.cli.session import Group, Session, command
from windrow.times import format_time

EXIT_PROBLEMS_FOUND = 1


@click.group(cls=Group)
def backup() -> None:
    """Back up a warehouse, look at backups, and restore them."""


def _to_json(report: Any) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(report).items()}


@backup.command("create")
@click.argument("folder")
@click.option("--base", metavar="BACKUP", help="An earlier backup, whose files are shared by hard links.")
@command
def create(session: Session, folder: str, base: str | None) -> None:
    """Back up the warehouse's last commit into a new or empty folder, while others append and slide.

    A run that was interrupted is gone on with by the same command.
    """
    with session.open(read_only=True) as wh:
        size = sum(stream.bytes + stream.spooled_bytes for stream in wh.status().streams)
        with terminal.progress_bar("backup", size, in_bytes=True) as report_progress:
            report = wh.backup(folder, base, lambda done: report_progress(min(done, size)))
    if session.json:
        terminal.write_json(_to_json(report))
    else:
        terminal.say(
            f"commit {report.commit}: {terminal.count(report.files, 'file')}, {terminal.size(report.bytes)} "
            f"({terminal.size(report.copied)} copied) in {report.path}"
        )


@backup.command("list")
@click.argument("folder")
@command
def list_(session: Session, folder: str) -> None:
    """List the backups in a folder, the oldest first, and what was never finished."""
    from windrow.backup import list_backups

    backups = list_backups(folder)
    if session.json:
        terminal.write_json(
            [
                {"path": str(each.path), "problem": each.problem}
                | (
                    {}
                    if (facts := each.manifest) is None
                    else {
                        "commit": facts.commit,
                        "at": format_time(facts.at),
                        "warehouse": facts.warehouse,
                        "root": facts.root,
                        "files": len(facts.files),
                        "bytes": facts.bytes,
                    }
                )
                for each in backups
            ]
        )
        return
    rows = [
        (each.path.name, str(facts.commit), format_time(facts.at), f"{len(facts.files):,}", terminal.size(facts.bytes))
        for each in backups
        if (facts := each.manifest) is not None
    ]
    columns = ("backup", "commit", "begun", "files", "size")
    if rows:
        terminal.print_table(columns, rows, right=("commit", "files", "size"))
    for each in backups:
        if each.problem:
            terminal.say(each.problem)
    if not backups:
        terminal.say(f"there is no backup in {folder}")


@backup.command("verify")
@click.argument("folder", metavar="BACKUP")
@command
def verify(session: Session, folder: str) -> None:
    """Read every file of a backup and compare it with its checksum; exit code 1 if something is wrong."""
    from windrow.backup import read_manifest, verify_backup

    size = read_manifest(Path(folder).absolute()).bytes
    with terminal.progress_bar("verify", size, in_bytes=True) as report_progress:
        report = verify_backup(folder, report_progress)
    if session.json:
        terminal.write_json({"ok": report.ok, **_to_json(report)})
    else:
        for problem in report.problems:
            terminal.say(problem)
        problem_count = terminal.count(len(report.problems), "problem") if report.problems else "no problems"
        terminal.say(f"{problem_count} in {terminal.count(report.files, 'file')}, {terminal.size(report.bytes)}")
    if not report.ok:
        raise click.exceptions.Exit(EXIT_PROBLEMS_FOUND)


@backup.command("restore")
@click.argument("folder", metavar="BACKUP")
@click.argument("path")
@click.option("--catalog", metavar="FOLDER", help="Where the catalog is to lie, if not inside; a local disk.")
@click.option("--check/--no-check", default=True, show_default=True, help="Verify the warehouse afterwards.")
@command
def restore(session: Session, folder: str, path: str, catalog: str | None, check: bool) -> None:
    """Make a warehouse out of a backup, in a new or empty folder PATH, and verify it; exit code 1 if it is not sound.

    The backup stays as it is. A run that was interrupted is gone on with by the same command.
    """
    from windrow.backup import read_manifest, restore
    from windrow.warehouse import Warehouse

    size = read_manifest(Path(folder).absolute()).bytes
    with terminal.progress_bar("restore", size, in_bytes=True) as report_progress:
        report = restore(folder, path, catalog, progress=report_progress)
    problems: tuple[str, ...] = ()
    if check:
        with Warehouse(path, create=False, read_only=True) as wh:
            problems = wh.check().problems
    if session.json:
        terminal.write_json(_to_json(report) | {"problems": list(problems)})
    else:
        for problem in problems:
            terminal.say(problem)
        checked = "" if not check else ", no problems" if not problems else f", {len(problems)} problems"
        terminal.say(
            f"restored commit {report.commit} to {report.path}: {terminal.count(report.files, 'file')}, "
            f"{terminal.size(report.bytes)}{checked}"
        )
    if problems:
        raise click.exceptions.Exit(EXIT_PROBLEMS_FOUND)


@click.command("restore", short_help="Restore a warehouse from its object store.")
@click.option(
    "--from", "uri", metavar="URI", required=True, help="Where its files are: s3://bucket/prefix, or of file."
)
@click.argument("path")
@click.option("--catalog", metavar="FOLDER", help="Where the catalog is to lie, if not inside; a local disk.")
@command
def restore_from_store(session: Session, uri: str, path: str, catalog: str | None) -> None:
    """Make a warehouse out of its object store, in a new or empty folder PATH of this machine, and take it over.

    It is as the last copy of its catalog there. A machine that had it before can only read it from now on.
    """
    from windrow.object_store.restoration import restore_from_store

    report = restore_from_store(uri, path, catalog)
    if session.json:
        terminal.write_json(_to_json(report))
    else:
        terminal.say(
            f"restored commit {report.commit} to {report.path}: {terminal.count(report.files, 'file')}, "
            f"{terminal.size(report.bytes)}, which come when they are read"
        )

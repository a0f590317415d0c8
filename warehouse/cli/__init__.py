"""The command line, with the names of the Python interface. Each command is listed here and imported on use."""

import click

from windrow import __version__
from windrow.cli.session import ENVIRONMENT_VARIABLE, TopGroup

COMMANDS = {
    "init": "windrow.cli.admin:init",
    "adopt": "windrow.cli.admin:adopt",
    "stream": "windrow.cli.streams:stream",
    "append": "windrow.cli.rows:append",
    "ingest": "windrow.cli.ingest:ingest",
    "heartbeat": "windrow.cli.clock:heartbeat",
    "slide": "windrow.cli.clock:slide",
    "wait": "windrow.cli.clock:wait",
    "probe": "windrow.cli.rows:probe",
    "scan": "windrow.cli.rows:scan",
    "erase": "windrow.cli.rows:erase",
    "sql": "windrow.cli.sql:sql",
    "explain": "windrow.cli.sql:explain",
    "table": "windrow.cli.tables:table",
    "query": "windrow.cli.queries:query",
    "serve": "windrow.cli.service:serve",
    "role": "windrow.cli.service:role",
    "token": "windrow.cli.service:token",
    "view": "windrow.cli.views:view",
    "summary": "windrow.cli.summaries:summary",
    "advise": "windrow.cli.admin:advise",
    "status": "windrow.cli.admin:status",
    "check": "windrow.cli.admin:check",
    "repair": "windrow.cli.gaps:repair",
    "gc": "windrow.cli.admin:gc",
    "backup": "windrow.cli.backups:backup",
    "restore": "windrow.cli.backups:restore_from_store",
    "demo": "windrow.cli.admin:demo",
    "bench": "windrow.cli.admin:bench",
}


@click.group(cls=TopGroup, locations=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-w",
    "--warehouse",
    metavar="PATH",
    envvar=ENVIRONMENT_VARIABLE,
    help=f"The warehouse's folder; by default ${ENVIRONMENT_VARIABLE}, or the current folder if it holds one.",
)
@click.version_option(__version__, prog_name="windrow")
def windrow(warehouse: str | None) -> None:
    """A disk-archived sliding-window warehouse.

    Rows are appended to streams, stay exactly as long as they live, and leave when the stream slides.
    """

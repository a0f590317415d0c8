"""The command line, in the same words as the Python interface. A command is a line in `COMMANDS`, imported on use."""

import click

from windrow import __version__
from windrow.cli_support import ENVIRONMENT, TopGroup

COMMANDS = {
    "init": "windrow.cli_upkeep:init",
    "adopt": "windrow.cli_upkeep:adopt",
    "stream": "windrow.cli_streams:stream",
    "append": "windrow.cli_rows:append",
    "ingest": "windrow.cli_ingest:ingest",
    "heartbeat": "windrow.cli_clock:heartbeat",
    "slide": "windrow.cli_clock:slide",
    "probe": "windrow.cli_rows:probe",
    "scan": "windrow.cli_rows:scan",
    "sql": "windrow.cli_sql:sql",
    "explain": "windrow.cli_sql:explain",
    "table": "windrow.cli_tables:table",
    "query": "windrow.cli_queries:query",
    "serve": "windrow.cli_queries:serve",
    "view": "windrow.cli_views:view",
    "advise": "windrow.cli_advise:advise",
    "status": "windrow.cli_upkeep:status",
    "check": "windrow.cli_upkeep:check",
    "gc": "windrow.cli_upkeep:gc",
    "demo": "windrow.cli_upkeep:demo",
    "bench": "windrow.cli_bench:bench",
}


@click.group(cls=TopGroup, homes=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-w",
    "--warehouse",
    metavar="PATH",
    envvar=ENVIRONMENT,
    help=f"The warehouse's folder; by default ${ENVIRONMENT}, or the current folder if it holds one.",
)
@click.version_option(__version__, prog_name="windrow")
def windrow(warehouse: str | None) -> None:
    """A disk-archived sliding-window warehouse.

    Rows are appended to streams, stay exactly as long as they live, and leave when the stream slides.
    """


def main() -> None:
    """The `windrow` program."""
    windrow(prog_name="windrow")

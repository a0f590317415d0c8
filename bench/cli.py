"""The command `windrow bench`, and `python -m bench`: progress bar, tables, exit code.

What a command measures is imported when it runs: `windrow --help` lists the commands and need not load it all.
"""

import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_FOLDER = click.Path(path_type=Path, file_okay=False)
RESULTS = Path(__file__).resolve().parent / "results"


@click.group()
def bench() -> None:
    """Compare Windrow with what you would use instead, on this machine."""


@bench.command("core")
@click.option("--full", is_flag=True, help="All sizes, three repetitions: about an hour.")
@click.option("--quick", is_flag=True, help="A few minutes; this is the default.")
@click.option("--resume", is_flag=True, help="Keep the finished parts of the last run.")
@click.option("--write", is_flag=True, help="Put the tables into docs/benchmarks.md.")
@click.option("--results", type=_FOLDER, default=None, help="Folder for samples and figures.")
@click.option("--scratch", type=_FOLDER, default=None, help="Folder for the systems' files, on the disk to measure.")
def core_command(
    *, full: bool, quick: bool, resume: bool, write: bool, results: Path | None, scratch: Path | None
) -> None:
    """Updates, probes and scans of the thesis's section 4.4 beside DuckDB, SQLite and the disk's own speed."""
    from bench import core, report
    from bench.results import Results
    from bench.runner import WrongAnswerError

    if full and quick:
        raise click.UsageError("choose one of --quick and --full")
    kept = Results(results or RESULTS / ("core-full" if full else "core-quick"), resume=resume)
    console = Console()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("starting", total=core.work(quick=not full))
        try:
            text, wanted = core.bench(
                quick=not full,
                results=kept,
                scratch=scratch or Path(tempfile.gettempdir()),
                advance=lambda doing: bar.update(task, advance=1, description=doing),
            )
        except WrongAnswerError as error:
            raise click.ClickException(f"wrong answer: {error}") from None
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text)
    if write:
        report.insert("core", text)
    click.echo(f"\nsamples and figures are in {kept.folder}")
    missed = [w for w in wanted if not w.reached]
    if missed:
        raise click.ClickException(f"{len(missed)} of {len(wanted)} aims were not reached")


@bench.command("isolation")
@click.option(
    "--full", is_flag=True, help="All numbers of sub-windows, for the length of the window each: about an hour."
)
@click.option("--write", is_flag=True, help="Put the tables into docs/benchmarks.md.")
@click.option("--scratch", type=_FOLDER, default=None, help="Folder for the streams' files.")
def isolation_command(*, full: bool, write: bool, scratch: Path | None) -> None:
    """The schedulers of the thesis's chapter 7 and ours: aborts, staleness, response time and throughput."""
    from bench import isolation, report
    from bench.runner import WrongAnswerError

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("starting", total=isolation.work(quick=not full))
        try:
            text, wanted = isolation.bench(
                quick=not full,
                scratch=scratch,
                advance=lambda doing: bar.update(task, advance=1, description=doing),
            )
        except WrongAnswerError as error:
            raise click.ClickException(f"wrong answer: {error}") from None
    click.echo(text)
    if write:
        report.insert("isolation", text)
    if missed := [w for w in wanted if not w.reached]:
        raise click.ClickException(f"{len(missed)} of {len(wanted)} aims were not reached")

"""The command `windrow bench`, and `python -m bench`: progress bar, tables, exit code.

Every bench is a module with two functions: ``work(quick)``, how often it reports progress, and ``bench(quick, results,
scratch, advance)``, which measures, saves, and gives its report and what was wanted; one that draws its work from
seeds takes ``seeds`` too. It is imported when it runs: `windrow --help` lists the commands and need not load it all.
"""

import importlib
import inspect
import tempfile
from pathlib import Path

import click

_FOLDER = click.Path(path_type=Path, file_okay=False)
RESULTS = Path(__file__).resolve().parent / "results"
BENCHES = {
    "realistic": "Packets, page views, logs, JSON, sensors, quotes, UUIDs: updates, probes, scans, SQL, bytes, memory.",
    "statements": "Statements of the shapes of TPC-H and ClickBench over streams, beside DuckDB and Parquet.",
    "standing": "Hundreds of standing queries that share little, and some that share all, beside DuckDB from scratch.",
    "trickle": "Appends of single rows, eight writers, slides of one second: percentiles beside SQLite and DuckDB.",
    "cold": "One-shot commands, first statements of a process, the first Spark action, a thousand streams.",
    "core": "Updates, probes and scans of the thesis's section 4.4 beside DuckDB, SQLite and the disk's own speed.",
    "index": "Chapter 4 of the thesis: every layout, maintenance and size of the index, and each of its statements.",
    "peers": "The same workload in DuckDB, SQLite, PostgreSQL, ClickHouse, Delta and folders of Parquet.",
    "growth": "What happens as the window, the batch, the number of keys and the number of readers grow.",
    "advisor": "Every layout on a dozen workloads, and how near the advisor's choice is to the best of them.",
    "sql": "Questions in SQL over a window, beside a native DuckDB table, an ART index and unsorted Parquet.",
    "isolation": "The schedulers of the thesis's chapter 7 and ours: aborts, staleness, response time and throughput.",
    "views": "A join of windows kept up from new rows, beside running it again at each slide.",
    "periodic": "Standing queries from synopses beside the same SQL from scratch, and the policies of chapter 8.",
    "safety": "What checksums cost a cold scan, what backups take, and slides beside a full backup.",
    "gaps": "What the ledger of gaps costs a slide, and what revisions cost a round of 240 periodic queries.",
    "serve": "Statements, rows, slides and events over HTTP and Flight SQL beside the same in one process.",
    "scale": "Window SQL on Spark beside plain Parquet, and how far one catalog reaches.",
    "ingest": "Appends through Spark and without it, beside Spark's and DuckDB's own Parquet writers.",
}
"""A bench a line: the module `bench/<name>.py`, if not in MODULES, and what its command says of it."""
MODULES = {"standing": "standing_queries"}


@click.group()
def bench() -> None:
    """Compare Windrow with what you would use instead, on this machine."""


def _command(name: str, names: tuple[str, ...], about: str) -> click.Command:
    @click.option("--seeds", help="Such as 17,4,8; without it one is fixed and two are drawn anew in each run.")
    @click.option("--full", is_flag=True, help="All sizes and repetitions; it may take an hour.")
    @click.option("--quick", is_flag=True, help="A few minutes; this is the default.")
    @click.option("--resume", is_flag=True, help="Keep the finished parts of the last run.")
    @click.option("--write", is_flag=True, help="Put the tables into docs/benchmarks.md.")
    @click.option("--results", type=_FOLDER, default=None, help="Folder for samples and figures.")
    @click.option("--scratch", type=_FOLDER, default=None, help="Folder for the systems' files, on the disk to measure")
    def command(
        *,
        seeds: str | None,
        full: bool,
        quick: bool,
        resume: bool,
        write: bool,
        results: Path | None,
        scratch: Path | None,
    ) -> None:
        if full and quick:
            raise click.UsageError("choose one of --quick and --full")
        try:
            drawn = [int(seed) for seed in seeds.split(",")] if seeds else None
        except ValueError:
            raise click.UsageError(f"--seeds is {seeds!r}; write whole numbers with commas, such as 17,4,8") from None
        missed = 0
        for bench_name in names:
            folder = None if results is None else results / bench_name if len(names) > 1 else results
            missed += _run(
                bench_name, drawn, quick=not full, resume=resume, write=write, results=folder, scratch=scratch
            )
        if missed:
            raise click.ClickException(f"{missed} aims were not reached")

    return click.command(name, help=about)(command)


for _name, _about in BENCHES.items():
    bench.add_command(_command(_name, (_name,), _about))
bench.add_command(_command("all", tuple(BENCHES), "All of them, one after the other."))


def _run(
    name: str,
    seeds: list[int] | None,
    *,
    quick: bool,
    resume: bool,
    write: bool,
    results: Path | None,
    scratch: Path | None,
) -> int:
    """Run one bench and show its report; gives how many of its aims were missed."""
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from bench import plots, report
    from bench.results import Results
    from bench.runner import WrongAnswerError

    measured = importlib.import_module(f"bench.{MODULES.get(name, name)}")
    saved = Results(results or RESULTS / f"{name}-{'quick' if quick else 'full'}", resume=resume)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar, plots.into(plots.FOLDER if write else saved.folder):
        task = bar.add_task("starting", total=measured.work(quick=quick))
        try:
            text, aims = measured.bench(
                quick=quick,
                results=saved,
                scratch=scratch or Path(tempfile.gettempdir()),
                advance=lambda doing: bar.update(task, advance=1, description=doing),
                **({"seeds": seeds} if "seeds" in inspect.signature(measured.bench).parameters else {}),
            )
        except WrongAnswerError as error:
            raise click.ClickException(f"wrong answer: {error}") from None
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        click.echo(text)
    (saved.folder / "report.md").write_text(text + "\n")
    if write:
        report.insert(name, text)
    click.echo(f"\nsamples and figures are in {saved.folder}")
    missed = sum(not aim.reached for aim in aims)
    if missed:
        click.echo(f"{name}: {missed} of {len(aims)} aims were not reached", err=True)
    return missed

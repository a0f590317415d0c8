"""A week of web logs: from text files with bad lines to answers and a chart.

Run it with a folder, ``python web_logs.py FOLDER``; it makes its own data.
"""

import csv
import datetime as dt
import gzip
import random
import sys
import tempfile
from pathlib import Path

import windrow

START = dt.datetime(2025, 3, 3, tzinfo=dt.UTC)
HOURS = 7 * 24
STATUSES = (200, 200, 200, 200, 304, 404, 500)


def make_logs(seed: int = 1) -> list[list[str]]:
    """One line of each request; some have a dash where a number should be, as old servers write it."""
    choice, lines = random.Random(seed), []
    for hour in range(HOURS):
        busy = 4 + 3 * (hour % 24 in range(8, 20))
        for second in sorted(choice.uniform(0, 3600) for _ in range(busy)):
            ts = START + dt.timedelta(hours=hour, seconds=second)
            size = "-" if choice.random() < 0.02 else str(choice.randint(200, 90_000))
            page = f"/page/{min(int(choice.expovariate(0.4)), 9)}"
            lines.append([ts.isoformat(), f"10.0.0.{choice.randint(1, 20)}", page, str(choice.choice(STATUSES)), size])
    return lines


def write_files(folder: Path, lines: list[list[str]]) -> list[Path]:
    """One packed file a day."""
    days: dict[str, list[list[str]]] = {}
    for line in lines:
        days.setdefault(line[0][:10], []).append(line)
    paths = []
    for day, of_day in days.items():
        paths.append(folder / f"access-{day}.csv.gz")
        with gzip.open(paths[-1], "wt", newline="") as file:
            csv.writer(file).writerows([["ts", "client", "page", "status", "bytes"], *of_day])
    return paths


def main(folder: Path) -> dict[str, object]:
    """Load, mend, ask, draw."""
    write_files(folder, make_logs())
    facts: dict[str, object] = {}
    with windrow.open(folder / "warehouse") as wh:
        run = _command(folder / "warehouse")
        run(
            "stream", "create", "requests", "--if-not-exists",
            "--column", "ts:timestamptz", "--column", "client:text", "--column", "page:text",
            "--column", "status:int32", "--column", "bytes:int64",
            "--time", "ts", "--key", "client", "--slide", "1 hour", "--lifetime", "14 days",
        )  # fmt: skip
        # All files are one batch: sent again, it changes nothing. Lines that cannot be read wait with their reason.
        files = str(folder / "access-*.csv.gz")
        run("append", "requests", files, "--on-error", "reject", "--max-rejected", "0.1", "--batch-id", "week 10")
        facts["rejected"] = wh.rejected("requests").num_rows
        for line in wh.rejected("requests").slice(0, 1).to_pylist():
            print(f"{facts['rejected']} lines could not be read; the first is {line['_file']}:{line['_line']}")

        # Now we know what a dash means, and read those lines again.
        run("stream", "replay", "requests", "--null", "-")
        run("slide", "requests", "--to", str(START + dt.timedelta(hours=HOURS)))
        facts["left"] = wh.rejected("requests").num_rows

        top = "SELECT page, count(*) AS requests FROM requests [WINDOW 7 DAYS] GROUP BY page ORDER BY ALL"
        facts["pages"] = wh.sql(top).fetchall()
        errors = """
            SELECT time_bucket(INTERVAL 6 HOURS, ts) AS time, count(*) AS requests,
                   count(*) FILTER (status >= 500) AS errors
            FROM requests [WINDOW 7 DAYS] GROUP BY time ORDER BY time
        """
        facts["errors"] = wh.sql(errors).fetchall()
        chart = wh.sql(errors).plot()
        chart.save(folder / "errors.svg")
        print(f"{len(facts['pages'])} pages; {folder / 'errors.svg'} shows the errors over the week")  # type: ignore[arg-type]
    return facts


def _command(warehouse: Path):  # noqa: ANN202
    """The command line, as a shell script would call it."""
    import subprocess

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "windrow", *arguments, "-w", str(warehouse)], check=True)

    return run


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

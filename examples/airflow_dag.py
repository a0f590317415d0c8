"""Airflow: load a day's files into a stream, slide it, wait for another team's stream, run the reports.

Each task is a command, so workers need nothing but `windrow` and the warehouse's folder. A task is tried again only
when its exit code says that this may help (75): what trying again cannot mend fails at once.
"""

import datetime as dt
import subprocess

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

WAREHOUSE = "/srv/traffic"
TEMPORARY = 75


def windrow(*arguments: str) -> None:
    """Run a command; the error that Airflow shows is the command's own sentence."""
    done = subprocess.run(["windrow", *arguments, "-w", WAREHOUSE], capture_output=True, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        raise (AirflowException if done.returncode == TEMPORARY else AirflowFailException)(done.stderr.strip())


@dag(
    schedule="@daily",
    start_date=dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
    default_args={"retries": 5, "retry_delay": dt.timedelta(minutes=2)},
)
def traffic() -> None:
    """A day of traffic."""

    @task
    def load(ds: str) -> None:
        """The batch id makes a task that is run twice one append; a day that is mostly bad is refused."""
        files = f"/srv/in/{ds}/*.csv.gz"
        windrow("append", "packets", files, "--batch-id", ds, "--on-error", "reject", "--max-rejected", "0.01")

    @task
    def slide(data_interval_end: dt.datetime) -> None:
        """The day is over: its rows come in, expired rows go."""
        windrow("slide", "packets", "--to", data_interval_end.isoformat())

    @task
    def wait(data_interval_end: dt.datetime) -> None:
        """Until those who slide the logins have come as far; after ten minutes Airflow's own retries go on."""
        windrow("wait", "logins", "--up-to", data_interval_end.isoformat(), "--timeout", "600")

    @task
    def report() -> None:
        """Every periodic query that is due."""
        windrow("query", "run")

    load() >> slide() >> wait() >> report()  # type: ignore[call-arg]


traffic()

"""What all tests share: Hypothesis profiles, one Spark session, and a few paths."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent

# `make test` repeats itself exactly: same examples each time, and nothing remembered between runs. A failure prints a
# @reproduce_failure line. `make soak` searches: many examples, a new seed each time, which it prints.
_SLOW_IS_FINE = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
hypothesis.settings.register_profile(
    "soak",
    max_examples=2000,
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
# Tests are about what synopses answer, on few rows, where rows would be cheaper; those of the choice itself unset this.
os.environ["WINDROW_SYNOPSES"] = "always"
# A JVM that lives for a minute is not worth optimising compilations: without them Spark takes half the processor time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
_PROFILE = os.environ.get("WINDROW_PROFILE", "ci")
hypothesis.settings.load_profile(_PROFILE)


def pytest_sessionstart() -> None:
    # Processes that run tests side by side are started deaf to Ctrl-C, and so would be all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"windrow: hypothesis profile {_PROFILE}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays for good: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or DuckDB's binding reports what it finds at the end as leaked


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run side by side, all that starts a JVM is one worker's: there is one session, and memory for it."""
    from xdist.scheduler import LoadScopeScheduling

    class OneSpark(LoadScopeScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(("tests/ingest/", "tests/test_docs.py")) or "spark" in nodeid:
                return "spark"
            return str(super()._split_scope(nodeid))

    return OneSpark(config, log)


@pytest.fixture(autouse=True)
def _merged_files_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that a slide's merges wrote is read by another reader than ours before its commit."""
    import pyarrow.parquet as pq

    from windrow import slide

    def write_and_read(*given: Any) -> Any:
        merged = write(*given)
        if merged is not None:
            assert pq.read_table(merged.path, page_checksum_verification=True).num_rows == merged.rows
        return merged

    write = slide.write_merges
    monkeypatch.setattr(slide, "write_merges", write_and_read)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the source tree."""
    return ROOT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's warehouse may be; nothing is there yet."""
    return tmp_path / "warehouse"


@pytest.fixture(scope="session")
def windrow_command() -> Path:
    """The installed command, for tests that need a process of its own."""
    return Path(sys.executable).with_name("windrow")


@pytest.fixture(autouse=True)
def children_end_with_their_test() -> Iterator[None]:
    yield
    if "faulty_disks" in sys.modules:
        sys.modules["faulty_disks"].end_children()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of the run: its start costs 10 to 15 seconds."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    # Spark's workers find the interpreter by this; our own code sets it too, but not every test starts with our code.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("windrow tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    yield session
    session.stop()

"""dbt and Airflow over a warehouse, where they are installed; and that the commands of the DAG are ours in any case."""

import ast
import datetime as dt
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

import windrow

ROOT = Path(__file__).resolve().parent.parent
NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
ROWS = [{"ts": NOON + dt.timedelta(seconds=s), "src": s % 3, "len": 40 + s} for s in range(1, 181)]


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of examples/dbt beside its warehouse."""
    shutil.copytree(ROOT / "examples" / "dbt", tmp_path, dirs_exist_ok=True)
    with windrow.open(tmp_path / "traffic") as wh:
        wh.create_stream("packets", like=ROWS, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
        wh.append("packets", ROWS)
        wh.slide("packets", to=NOON + dt.timedelta(minutes=3))
    return tmp_path


def dbt(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dbt.cli.main", "--no-use-colors", *arguments, "--profiles-dir", "."]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(not has("dbt.adapters.duckdb"), reason="dbt-duckdb is not installed: pip install 'windrow[dbt]'")
def test_windows_are_sources_of_dbt(project: Path) -> None:
    import duckdb

    output = dbt(project, "build", "--threads", "4")
    assert "Done. PASS=4 WARN=0 ERROR=0" in output, output
    newest = [row for row in ROWS if row["ts"] > NOON + dt.timedelta(minutes=1)]
    with duckdb.connect(str(project / "reports.duckdb")) as made:
        expected = [
            (src, sum(row["src"] == src for row in newest), sum(row["len"] for row in newest if row["src"] == src))
            for src in range(3)
        ]
        assert made.execute("FROM by_source ORDER BY src").fetchall() == expected
        assert made.execute("FROM long_packets_seen").fetchall() == [(sum(row["len"] > 200 for row in ROWS),)]
    sources = project / "models" / "sources.yml"
    sources.write_text(sources.read_text().replace('window: "2 minutes"', "stream: nope"))
    assert "has no stream 'nope'; it has packets" in dbt(project, "build")


@pytest.mark.skipif(has("dbt.adapters.duckdb"), reason="dbt-duckdb is installed")
def test_without_dbt_the_plugin_says_what_is_missing() -> None:
    with pytest.raises(windrow.DefinitionError, match=r"needs dbt, which is not installed; .*'windrow\[dbt\]'"):
        importlib.import_module("windrow.dbt")


def test_the_page_shows_the_project_as_it_is() -> None:
    page = (ROOT / "docs" / "orchestration.md").read_text()
    shown = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    profiles, sources = [
        (ROOT / "examples" / "dbt" / name).read_text() for name in ("profiles.yml", "models/sources.yml")
    ]
    assert shown[0] == profiles
    assert sources.startswith(shown[1])


def test_the_commands_of_the_dag_are_ones_of_windrow() -> None:
    from windrow.cli import windrow as group

    tree = ast.parse((ROOT / "examples" / "airflow_dag.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "windrow"]
    assert len(calls) == 4
    for call in calls:
        words = [str(each.value) if isinstance(each, ast.Constant) else "2025-01-01T00:00:00Z" for each in call.args]
        command: click.Command | None = group
        with click.Context(group) as context:
            while isinstance(command, click.Group):
                command = command.get_command(context, words.pop(0))
            assert command is not None
            command.make_context("windrow", words, parent=context).close()


@pytest.mark.skipif(not has("airflow"), reason="Airflow is not installed")
def test_airflow_takes_the_dag() -> None:
    code = "import runpy; names = runpy.run_path('airflow_dag.py'); print(sorted(names['traffic']().task_ids))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "examples", capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "['load', 'report', 'slide', 'wait']", done.stderr

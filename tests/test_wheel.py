"""The wheel installs without a compiler and works."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import datetime, sys
import pyarrow as pa
import windrow
noon = datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC)
schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64())])
with windrow.open(sys.argv[1]) as wh:
    wh.create_stream("packets", schema, time="ts", key="src", slide="1 minute", lifetime="1 hour")
    wh.append("packets", pa.table({"ts": [noon, noon], "src": [1, 2]}, schema=schema))
    wh.slide("packets", to=noon)
    print(windrow.__file__, wh.sql("SELECT sum(src) FROM packets").fetchall(), wh.check().ok)
"""


def find_built(pattern: str) -> list[Path]:
    built = list((ROOT / "dist").glob(pattern))
    if not built:
        pytest.skip("no wheel was built in this checkout (`make wheel` builds one, and CI tests it)")
    return built


def test_the_source_distribution_and_the_wheel_that_is_made_of_it_are_whole() -> None:
    folders = ("warehouse", "indexes", "ingest", "native", "queries")
    files = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = set(files.split())
    if max((ROOT / file).stat().st_mtime for file in expected) > find_built("windrow-*.whl")[0].stat().st_mtime:
        pytest.skip("the wheel was built of earlier sources")
    with tarfile.open(find_built("windrow-*.tar.gz")[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert expected - names == set()
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    with zipfile.ZipFile(find_built("windrow-*.whl")[0]) as wheel:
        packed = set(wheel.namelist())
    assert {f"windrow/{file.removeprefix('warehouse/')}" for file in expected if not file.endswith(".pxi")} <= packed


def test_the_wheel_installs_without_a_compiler_and_works(tmp_path: Path) -> None:
    wheels = find_built("windrow-*.whl")
    environment = {"PATH": "/nowhere", "HOME": str(tmp_path)}
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "site")]
    subprocess.run([*install, str(wheels[0])], env=environment, check=True, timeout=120)
    assert (tmp_path / "site/windrow/service/console/index.html").exists(), "the console is left out"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "warehouse")],
        env=environment | {"PYTHONPATH": str(tmp_path / "site")},
        cwd=os.path.sep,
        capture_output=True,
        text=True,
        check=True,
    )
    place, answer = done.stdout.split(maxsplit=1)
    assert Path(place).is_relative_to(tmp_path)
    assert answer.strip() == "[(3,)] True"

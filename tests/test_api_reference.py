"""The reference of the Python interface, made of the docstrings: it is whole, can be searched, and its links lead somewhere."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import windrow
from windrow.warehouse import Warehouse

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "docs" / "api_reference.py"


@pytest.mark.skipif(
    importlib.util.find_spec("pdoc") is None, reason="pdoc is not installed: pip install 'windrow[dev]'"
)
def test_the_reference_is_whole_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warn" not in done.stderr, done.stderr
    page = (tmp_path / "windrow.html").read_text()
    anchors = set(re.findall(r'id="([^"]+)"', page))
    assert [name for name in windrow.__all__ if name not in anchors and name != "__version__"] == []
    methods = [name for name in dir(Warehouse) if not name.startswith("_") and callable(getattr(Warehouse, name))]
    assert [name for name in methods if f"Warehouse.{name}" not in anchors] == []
    assert "durable when this returns" in page
    search = (tmp_path / "search.js").read_text()
    for name in ("windrow.Warehouse.append", "windrow.spark.write_stream", "windrow.backup.list_backups"):
        assert json.dumps(name) in search, name


def test_broken_links_are_found(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("api_reference", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "a.html").write_text('<a href="b.html#x">1</a><a href="#y">2</a><a href="https://c">3</a><p id="z">')
    (tmp_path / "b.html").write_text('<p id="x"><a href="a.html#z">4</a><a href="c.html">5</a>')
    assert module.find_broken_links(tmp_path) == ["a.html: #y", "b.html: c.html"]

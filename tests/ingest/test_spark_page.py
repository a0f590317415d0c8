"""docs/spark.md is true: its Python runs, in the session that all tests share."""

from typing import Any

import pytest

import markdown_snippets


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_the_python_of_the_page_runs(spark, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = 0
    for block in markdown_snippets.read_blocks(root / "docs" / "spark.md"):
        if block.language == "python" and (block.skipped is None or "test_spark_page.py" in block.skipped):
            exec(compile(block.text, block.place, "exec"), names)
            ran += 1
    assert ran == 10
    names["wh"].close()

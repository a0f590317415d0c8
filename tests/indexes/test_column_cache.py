"""The column cache: what it says of a segment it may have learned from another one, but never of columns that are gone."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from windrow.indexes import column_cache
from windrow.indexes.column_cache import ColumnCache

FULL = pa.schema([("n", pa.int64()), ("who", pa.string()), ("text", pa.string())])


def segment(file: str, rows: int = 10_000) -> Any:
    return SimpleNamespace(file=file, start=0, stop=rows, rows=rows, id=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were looked into: `who` repeats in all of them, `text` in none."""
    seen: list[str] = []

    def read(ranges: dict[str, Any], schema: pa.Schema, *_: object) -> pa.Table:
        seen.extend(ranges)
        values = {"who": ["a"] * 100, "text": [str(n) for n in range(100)]}
        return pa.table({name: values[name] for name in schema.names})

    monkeypatch.setattr(column_cache, "read_ranges", read)
    return seen


def test_one_large_segment_is_looked_into_for_many(looks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_cache, "_REUSED_FOR", 3)
    cache = ColumnCache(None, 0)  # type: ignore[arg-type]
    assert [cache.find_repeating([segment(f"s/{n}")], FULL) for n in range(6)] == [frozenset({"who"})] * 6
    assert looks == ["s/0", "s/4"]
    cache.find_repeating([segment("other/0")], FULL)
    assert looks[2:] == ["other/0"]


def test_a_small_segment_tells_nothing_of_others(looks: list[str]) -> None:
    cache = ColumnCache(None, 0)  # type: ignore[arg-type]
    for n in range(2):
        cache.find_repeating([segment(f"s/{n}", rows=10)], FULL)
    assert looks == ["s/0", "s/1"]


def test_a_column_that_is_no_longer_text_is_not_named(looks: list[str]) -> None:
    cache = ColumnCache(None, 0)  # type: ignore[arg-type]
    cache.find_repeating([segment("s/0")], FULL)
    changed = pa.schema([("who", pa.int64()), ("text", pa.string())])
    assert cache.find_repeating([segment("s/1")], changed) == frozenset()
    assert looks == ["s/0"]

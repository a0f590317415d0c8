"""What the ingest tests share: a clock that stands still, rows of every kind, and the comparison of two warehouses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
MICROS = int(NOW.timestamp() * 1_000_000)


@pytest.fixture(autouse=True)
def sorted_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who sorts small frames: in tests that do not say so Spark, as it does with large ones."""
    who: str = getattr(request, "param", "spark")
    if "spark" in request.fixturenames and who == "spark":
        monkeypatch.setattr("windrow.ingest.append.DRIVER_SORT_BYTES", -1)
    return who


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., windrow.Warehouse]]:
    """Opens warehouses whose wall clock stands at NOW, and closes them."""
    opened: list[windrow.Warehouse] = []

    def open_one(name: str = "warehouse", **options: Any) -> windrow.Warehouse:
        options.setdefault("clock", lambda: MICROS)
        opened.append(windrow.open(tmp_path / name, **options))
        return opened[-1]

    yield open_one
    for warehouse in opened:
        warehouse.close()


@pytest.fixture
def frame(spark: Any) -> Callable[..., Any]:
    """A DataFrame of an Arrow table, with Spark's own types."""

    def of(table: pa.Table, partitions: int = 2) -> Any:
        from pyspark.sql.types import StructField, StructType

        from windrow.ingest.schemas import find_read_type

        kinds = [
            find_read_type(pa.timestamp("us", f.type.tz) if pa.types.is_timestamp(f.type) else f.type)
            for f in table.schema
        ]
        schema = StructType(
            [StructField(f.name, kind, f.nullable) for f, kind in zip(table.schema, kinds, strict=True)]
        )
        return spark.createDataFrame(
            table.cast(pa.schema([f.with_type(plain(f.type)) for f in table.schema])), schema
        ).repartition(partitions)

    return of


def plain(kind: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark has a type for."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    if kind in wider:
        return wider[kind]
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _rows(table: pa.Table) -> list[tuple[str, ...]]:
    return sorted(tuple(map(repr, row)) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture
def rows_of() -> Callable[[pa.Table], list[tuple[str, ...]]]:
    """A table's rows in an order that does not depend on how they were stored; a NaN equals a NaN."""
    return _rows


@pytest.fixture
def same() -> Callable[..., None]:
    """Asserts that two warehouses answer alike (windows, rejected rows, counts) and that both are sound."""

    def compare(
        one: windrow.Warehouse, other: windrow.Warehouse, stream: str, windows: tuple[Any, ...] = (None,)
    ) -> None:
        for window in windows:
            scans = [_rows(wh.scan(stream, window).read_all()) for wh in (one, other)]
            assert scans[0] == scans[1]
        bad = [_rows(wh.rejected(stream).drop_columns(["_rejected_at"])) for wh in (one, other)]
        assert bad[0] == bad[1]
        states = [wh.stream(stream) for wh in (one, other)]
        for name in ("slide", "now", "inserted", "expired", "late", "rejected", "live_rows", "spooled_rows"):
            assert getattr(states[0], name) == getattr(states[1], name), name
        assert [s.progress for s in states[0].sources] == [s.progress for s in states[1].sources]
        for wh in (one, other):
            assert wh.check().problems == ()

    return compare

"""Streams for tests: schemas, keys and lifetimes as data, their layouts, and how rows become Arrow and come back."""

import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

import oracle
import windrow
from oracle import Oracle, micros
from windrow import Index

BASE = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z, a slot's end for every Δ used here."""
DELTA = 10 * oracle.SECOND
PARTITIONERS = ("round-robin", "random", "chronological", "wave-insertion", "wave-expiry")
MAINTENANCE = ("rebuild", "norebuild", "adaptive")

LAYOUTS: dict[str, Index | str] = {
    f"{name}-{how}": Index(name, 3, maintenance=how) if "wave" in name else Index(name, 3, 2, maintenance=how)
    for name in PARTITIONERS
    for how in MAINTENANCE
}
# Merges at every excuse, and the layout that a stream chooses for itself.
LAYOUTS["adaptive-eager"] = Index(
    "round-robin", 2, 2, max_segments=2, dead_fraction=0.05, merge_budget=100.0, row_group_bytes=4096
)
LAYOUTS["auto"] = "auto"
"""The one list of layouts that storage tests run over."""


@dataclass(frozen=True)
class Shape:
    """A kind of stream. Rows are dicts of plain values; timestamps are raw integers in their column's unit."""

    name: str
    fields: dict[str, pa.DataType]
    key: tuple[str, ...] = ()
    lifetime: int | None = None
    max_lifetime: int | None = None
    sources: tuple[str, ...] = ()
    slack: int = 0
    max_skew: int | None = None
    max_ahead: int = 60 * oracle.SECOND
    origin: int = 0
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """What the columns may hold (besides ts, exp and n)."""

    @property
    def schema(self) -> pa.Schema:
        """Every stream has ts, n (unique per row) and perhaps exp."""
        return pa.schema([*self.fields.items(), ("n", pa.int64())])

    def unit(self, column: str) -> str:
        """Of a timestamp column."""
        return str(self.fields[column].unit)

    def raw(self, column: str, time: int) -> int:
        """Microseconds as a raw value of a timestamp column."""
        times, over = oracle.PER_MICROSECOND[self.unit(column)]
        return time * over // times

    def create(self, wh: windrow.Warehouse, name: str, index: Index | str) -> None:
        """Declare the stream."""
        span = _duration
        wh.create_stream(
            name, self.schema, time="ts", key=list(self.key) or None, slide=span(DELTA),
            lifetime=None if self.lifetime is None else span(self.lifetime),
            expires="exp" if self.max_lifetime is not None else None,
            max_lifetime=None if self.max_lifetime is None else span(self.max_lifetime),
            index=index, sources=list(self.sources) or None, slack=span(self.slack),
            max_skew=None if self.max_skew is None else span(self.max_skew), max_ahead=span(self.max_ahead),
            origin=when(self.origin) if self.origin else None,
        )  # fmt: skip

    def oracle(self) -> Oracle:
        """The truth about such a stream."""
        expiry = (lambda row: micros(row["exp"], self.unit("exp"))) if self.max_lifetime is not None else None
        return Oracle(
            delta=DELTA, time=lambda row: micros(row["ts"], self.unit("ts")), expiry=expiry, key=self.key,
            lifetime=self.lifetime, max_lifetime=self.max_lifetime, sources=self.sources, slack=self.slack,
            max_skew=self.max_skew, max_ahead=self.max_ahead, origin=self.origin,
        )  # fmt: skip

    def row(self, n: int, ts: int | None, life: int | None, choice: random.Random) -> dict[str, Any]:
        """A row at `ts` (microseconds) that lives for `life`; the other columns by `choice`."""
        row: dict[str, Any] = {"ts": None if ts is None else self.raw("ts", ts)}
        if self.max_lifetime is not None:
            row["exp"] = None if life is None else self.raw("exp", (BASE if ts is None else ts) + life)
        for column in self.fields:
            if column not in row:
                row[column] = choice.choice(self.values[column])
        return row | {"n": n}

    def table(self, rows: list[dict[str, Any]]) -> pa.Table:
        """Rows as Arrow."""
        return pa.table([pa.array([row[f.name] for row in rows], f.type) for f in self.schema], schema=self.schema)


def _duration(length: int) -> str:
    return f"{length} microseconds" if length else "0 seconds"


def when(time: int) -> str:
    """An instant as a user writes it."""
    return windrow.times.to_datetime(time).isoformat()  # type: ignore[attr-defined]


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """A table's rows as plain values, by n; timestamps as raw integers."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    rows = pa.table(columns, table.column_names).to_pylist()
    return sorted(rows, key=lambda row: row["n"])


def assert_rows(actual: pa.Table, expected: list[oracle.Row], what: str = "") -> None:
    """Exactly these rows, each once, every value as it was given."""
    got = plain(actual)
    want = sorted((row.values for row in expected), key=lambda row: row["n"])
    lost = {row["n"] for row in want} - {row["n"] for row in got}
    extra = {row["n"] for row in got} - {row["n"] for row in want}
    assert not lost and not extra and len(got) == len(want), (
        f"{what}: lost {lost}, not expected {extra}, {len(got)} rows"
    )
    # repr tells NaN from nothing and -0.0 from 0.0, which == does not.
    assert repr(got) == repr([{name: row[name] for name in actual.column_names} for row in want]), what


US, NS, MS, S = (pa.timestamp(unit, "UTC") for unit in ("us", "ns", "ms", "s"))
LONG = "λ" * 400

SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape(
            "fixed",
            {"ts": US, "k": pa.int64(), "text": pa.string()},
            ("k",),
            lifetime=4 * DELTA,
            values={"k": (0, 1, 2, -5, 2**62), "text": ("", "a", LONG, None)},
        ),
        Shape(
            "fixed-odd",
            {"ts": NS, "k": pa.float64(), "flag": pa.bool_()},
            ("k",),
            lifetime=3 * DELTA + DELTA // 3,
            values={"k": (0.0, -0.0, 1.5, float("nan"), float("-inf"), None), "flag": (True, False, None)},
            origin=BASE + 3 * oracle.SECOND,
        ),
        Shape(
            "per-row",
            {"ts": US, "exp": US, "host": pa.string(), "port": pa.int32()},
            ("host", "port"),
            max_lifetime=6 * DELTA,
            values={"host": ("a", "ab", "", "b", None), "port": (1, 2, -1, None)},
        ),
        Shape(
            "per-row-rich",
            {
                "ts": pa.timestamp("ms"),
                "exp": NS,
                "k": pa.decimal128(12, 3),
                "kind": pa.dictionary(pa.int32(), pa.string()),
                "tags": pa.list_(pa.int16()),
                "where": pa.struct([("x", pa.float32()), ("y", pa.string())]),
                "raw": pa.binary(),
            },
            ("kind", "k"),
            max_lifetime=5 * DELTA,
            values={
                "k": (Decimal("-1.500"), Decimal("0.001"), Decimal("99.000"), None),
                "kind": ("x", "yy", None),
                "tags": ([], [1, 2], None, [None]),
                "where": ({"x": 0.5, "y": None}, None),
                "raw": (b"", b"\x00", b"\xff\x00"),
            },
        ),
        Shape(
            "never",
            {"ts": S, "k": pa.large_binary(), "d": pa.date32()},
            ("k",),
            values={"k": (b"", b"\x00", b"\x00\x00", b"a" * 600, b"a" * 600 + b"b"), "d": (None,)},
        ),
        Shape("keyless", {"ts": US, "v": pa.float32()}, lifetime=2 * DELTA, values={"v": (0.25, None)}),
        Shape(
            "sources",
            {"ts": US, "exp": US, "k": pa.uint16()},
            ("k",),
            max_lifetime=4 * DELTA,
            sources=("a", "b", "c"),
            slack=3 * oracle.SECOND,
            values={"k": (0, 65535, 7)},
        ),
        Shape(
            "skewed",
            {"ts": US, "k": pa.bool_()},
            ("k",),
            lifetime=4 * DELTA,
            sources=("a", "b", "c"),
            max_skew=2 * DELTA,
            values={"k": (True, False, None)},
        ),
    )
}
"""The kinds of streams that storage tests run over."""

"""Streams with synopses for tests: random periodic queries, and what plain DuckDB says over the oracle's rows."""

import math
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

import plain_duckdb
import windrow
from oracle import Oracle
from sample_streams import BASE, DELTA, when
from windrow.catalog.records import Pace, QueryEntry
from windrow.queries.synopses import merged_answers, synopsis_choice
from windrow.queries.synopses.node_cache import CatalogSynopses, node_cache_of, open_node_cursor
from windrow.snapshot import Snapshot
from windrow.store import Store

STREAM = "s"
_SECONDS = DELTA // 1_000_000
GROUPS = ("", "k", "tag", "k % 2", "tag, k", "epoch_ns(ts) // 20000000000", "b")
WHERES = (
    "", "", "v > 40", "tag = 'a'", "tag = 'b'", "tag = 'a' OR tag = 'b'", "k IN (1, 2)", "k = 1", "k = 2",
    "f > 0.5 AND v IS NOT NULL", "k < 2 OR k >= 3", "tag IS NULL OR b", "k < 2",
)  # fmt: skip
SUMS = ("count(*)", "count(v)", "sum(v)", "avg(v)", "sum(d)", "avg(d)", "count(*) FILTER (WHERE k > 1)", "sum(n)",
        "sum(v) FILTER (tag = 'a')", "count_if(v > 50)", "avg(k)", "sum(b::INT)")  # fmt: skip
OTHERS = (
    "min(v)", "max(tag)", "sum(f)", "avg(f)", "stddev(v)", "var_pop(f)", "bool_or(b)", "bit_xor(n)", "min(ts)", "max(f)",
    "arg_max(tag, n)", "corr(v, n)", "median(f)", "quantile_cont(d, 0.3)", "mad(v)", "kurtosis(v)", "regr_slope(v, n)",
    "approx_count_distinct(n)", "product(v % 3 + 1)", "skewness(v)", "arg_min(v, n)", "quantile_disc(tag, 0.4)",
)  # fmt: skip
COUNTED = (
    "count(DISTINCT v)", "count(DISTINCT tag)", "sum(DISTINCT v)", "median(v)", "quantile_cont(v, 0.25)",
    "quantile_disc(v, 0.9)", "quantile_disc(k, 0)", "histogram(tag)", "entropy(k)", "max(v, 3)", "min(v, 2)",
    "percentile_cont(0.7) WITHIN GROUP (ORDER BY v)", "count(DISTINCT v) FILTER (WHERE k > 1)", "quantile_cont(v, 1)",
    "avg(DISTINCT k)", "histogram(v % 4) FILTER (b)",
)  # fmt: skip


@dataclass
class QueriedStream:
    """A stream, its oracle, and the periodic queries over it."""

    wh: windrow.Warehouse
    truth: Oracle
    chance: random.Random
    schema: pa.Schema
    now: int = BASE
    number: int = 0
    queries: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Statement with a place for the clause, and window in slots."""


def schema(unit: str = "us", *, expiring: bool) -> pa.Schema:
    """Columns of every kind that is kept in another way."""
    stamp = pa.timestamp(unit, "UTC")
    columns = {
        "ts": stamp, "k": pa.int64(), "v": pa.int32(), "tag": pa.string(), "f": pa.float64(), "d": pa.decimal128(10, 2),
        "b": pa.bool_(), "n": pa.int64(),
    }  # fmt: skip
    return pa.schema([*columns.items(), *([("exp", stamp)] if expiring else [])])


def make_stream(
    wh: windrow.Warehouse, seed: int, *, lifetime: int | None, expiring: bool, unit: str = "us"
) -> QueriedStream:
    """An empty stream."""
    columns, scale = schema(unit, expiring=expiring), 1000 if unit == "ns" else 1
    limits = {"lifetime": None if expiring or lifetime is None else f"{lifetime * DELTA // 1_000_000} seconds"}
    longest = (lifetime or 8) * DELTA
    if expiring:
        limits |= {"expires": "exp", "max_lifetime": f"{longest // 1_000_000} seconds"}
    wh.create_stream(STREAM, columns, time="ts", key="k", slide=f"{DELTA // 1_000_000} seconds", **limits)
    truth = Oracle(
        DELTA,
        lambda row: -(-row["ts"] // scale),
        (lambda row: -(-row["exp"] // scale)) if expiring else None,
        lifetime=None if expiring or lifetime is None else longest,
        max_lifetime=longest if expiring else None,
    )
    return QueriedStream(wh, truth, random.Random(seed), columns)


def rows(world: QueriedStream, count: int, spread: tuple[int, int], longest: int) -> list[dict[str, Any]]:
    """Rows around the clock: late ones, and ones ahead of it."""
    chance, made = world.chance, []
    scale = 1000 if world.schema.field("ts").type.unit == "ns" else 1
    for _ in range(count):
        ts = world.now + chance.choice((chance.randint(*spread), DELTA * chance.randint(-2, 2)))
        world.number += 1
        row = {
            "ts": ts * scale - (chance.randint(0, 999) if scale > 1 else 0),
            "k": chance.choice((0, 1, 2, 3, None)),
            "v": chance.choice((None, *range(0, 90, 7))),
            "tag": chance.choice(("a", "b", "ü", None)),
            "f": chance.choice((chance.random() * 3, 0.5, None)),
            "d": chance.choice((Decimal(chance.randint(-500, 500)) / 100, None)),
            "b": chance.choice((True, False, None)),
            "n": world.number,
        }
        if "exp" in world.schema.names:
            row["exp"] = (ts + chance.randint(1, longest)) * scale
        made.append(row)
    return made


def append(world: QueriedStream, made: list[dict[str, Any]], clock: int) -> None:
    """The same rows to the stream and to its truth."""
    columns = [pa.array([row[f.name] for row in made], pa.int64()).view(f.type) if pa.types.is_timestamp(f.type)
               else pa.array([row[f.name] for row in made], f.type) for f in world.schema]  # fmt: skip
    world.wh.append(STREAM, pa.table(columns, schema=world.schema))
    world.truth.append(made, clock)


def slide(world: QueriedStream, slots: int, clock: int) -> None:
    """Move both clocks."""
    world.now += slots * DELTA
    world.wh.slide(STREAM, to=when(world.now))
    world.truth.slide(clock, world.now)


def statement(chance: random.Random, aggregates: tuple[str, ...]) -> str:
    """A random statement; ``{}`` is where its window stands."""
    groups, where = chance.choice(GROUPS), chance.choice(WHERES)
    chosen = chance.sample(aggregates, chance.randint(1, min(3, len(aggregates))))
    columns = ", ".join([*([groups] if groups else []), *chosen])
    text = f"SELECT {columns} FROM {STREAM}{{}}"
    if where:
        text += f" WHERE {where}"
    if groups:
        text += f" GROUP BY {groups}"
        if chance.random() < 0.3:
            text += " HAVING count(*) > 2"
        text += f" ORDER BY {groups}"
        if chance.random() < 0.2:
            text += " LIMIT 3"
    return text


def expected(world: QueriedStream, text: str, slots: int | None) -> pa.Table:
    """What plain DuckDB gives over the true rows."""
    live = [row.values for row in world.truth.live(None if slots is None else slots * DELTA)]
    columns = [pa.array([row[f.name] for row in live], pa.int64()).view(f.type) if pa.types.is_timestamp(f.type)
               else pa.array([row[f.name] for row in live], f.type) for f in world.schema]  # fmt: skip
    with plain_duckdb.connect() as plain:
        plain.register(STREAM, pa.table(columns, schema=world.schema))
        return plain.sql(text.format("")).to_arrow_table()


def same(one: Any, other: Any) -> bool:
    """Equal, floats nearly."""
    if isinstance(one, float) and isinstance(other, float):
        return (
            one == other
            or (math.isnan(one) and math.isnan(other))
            or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def clause(slots: int | None, period: int = 1) -> str:
    """The window of a standing query."""
    return "" if slots is None else f" [WINDOW {slots * _SECONDS} SECONDS SLIDE {period * _SECONDS} SECONDS]"


def register_query(world: QueriedStream, name: str, text: str, slots: int, kind: str | None, period: int = 1) -> None:
    """Register a query as the registry does, and let its synopses be kept."""
    store = world.wh._store
    with store.catalog.write() as tables:
        stream = tables.get("streams", STREAM.encode())
        pace = Pace(stream=STREAM, stream_id=stream.id, window=slots * DELTA, period=period)
        entry = QueryEntry(
            id=len(world.queries), name=name, sql=text.format(clause(slots, period)), paces=(pace,), reads=(STREAM,),
            schema_bytes=b"", created=0, created_slides={},
        )  # fmt: skip
        tables.put("queries", name.encode(), entry)
    world.queries[name] = text, slots
    synopsis_choice.reconcile_stream(store, STREAM, kind=kind)


def drop_query(world: QueriedStream, name: str, kind: str | None) -> None:
    """Drop a query and let its synopses be dropped."""
    with world.wh._store.catalog.write() as tables:
        tables.delete("queries", name.encode())
    del world.queries[name]
    synopsis_choice.reconcile_stream(world.wh._store, STREAM, kind=kind)


def from_synopses(store: Store, snapshot: Snapshot, text: str) -> pa.Table:
    """A statement's answer without any row being read: DuckDB merges the nodes of its synopses."""
    synopses: dict[str, CatalogSynopses] = {}
    planned, node_cache = merged_answers.plan_answer(store, snapshot, text, synopses), node_cache_of(store)
    with node_cache.lock:
        merged_answers.load_nodes(store, node_cache, [planned], synopses)
        with open_node_cursor(node_cache) as cursor:
            return merged_answers.answer_plan(node_cache, cursor, planned)

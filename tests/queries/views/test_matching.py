"""A plain join that is matched without DuckDB holds what the same join holds that DuckDB has computed."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.queries.views import following, matching

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
OPEN: list[windrow.Warehouse] = []
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("ts", STAMP), ("exp", STAMP), ("k", pa.int32()), ("wide", pa.int64()), ("n", pa.float64()), ("who", pa.string()),
     ("text", pa.string())]
)  # fmt: skip
PLAIN = {
    "on": "SELECT a.k, a.who, b.text, a.ts AS at, b.n FROM a JOIN b ON a.k = b.k",
    "windows": "SELECT b.who, a.n AS an, B.N AS bn FROM a [WINDOW 2 MINUTES] JOIN b [WINDOW 4 MINUTES] ON b.k = a.k",
    "using": "SELECT a.k, b.who FROM a JOIN b USING (k)",
    "other column": "SELECT a.wide AS one, b.wide AS two, b.k FROM a JOIN b ON a.wide = b.wide",
    "itself": "SELECT p.n AS pn, q.n AS qn FROM a p JOIN a [WINDOW 2 MINUTES] q ON p.k = q.k",
}
NOT_PLAIN = {
    "another condition": "SELECT a.k FROM a JOIN b ON a.k = b.k AND a.n < b.n",
    "two columns": "SELECT a.k FROM a JOIN b ON a.k = b.k AND a.wide = b.wide",
    "a filter": "SELECT a.k FROM a JOIN b ON a.k = b.k WHERE a.n > 1",
    "an expression": "SELECT a.k + 1 AS k FROM a JOIN b ON a.k = b.k",
    "different kinds": "SELECT a.k FROM a JOIN b ON a.k = b.wide",
    "text": "SELECT a.k FROM a JOIN b ON a.who = b.who",
    "other names": "SELECT p.u FROM a AS p(t, e, u) JOIN b ON p.u = b.k",
    "a table": "SELECT a.k FROM a JOIN t ON a.k = t.k",
    "distinct": "SELECT DISTINCT a.k FROM a JOIN b ON a.k = b.k",
    "three": "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN a c ON b.k = c.k",
    "a star": "SELECT a.* EXCLUDE (ts, exp) FROM a JOIN b ON a.k = b.k",
    "one stream": "SELECT k FROM a",
    "a union": "SELECT a.k FROM a JOIN b ON a.k = b.k UNION ALL SELECT k FROM a",
}


def batch(slot: int, seed: int, count: int, *, keys: int = 40) -> pa.Table:
    """Rows around a slot: late ones, and some ahead of the clock; a few have no key."""
    chance = np.random.default_rng((slot, seed))
    seconds = (slot - 1) * 60 + chance.integers(-150, 100, count)
    ts = [NOON + dt.timedelta(seconds=int(each)) for each in seconds]
    ends = [t + dt.timedelta(seconds=int(life)) for t, life in zip(ts, chance.integers(1, 300, count), strict=True)]
    found = [None if chance.random() < 0.1 else int(key) for key in chance.integers(-keys // 2, keys // 2, count)]
    wide = [None if key is None else key << 40 for key in found]
    who = [None if chance.random() < 0.1 else f"host-{each}" for each in chance.integers(0, 3, count)]
    text = [f"{slot}-{seed}-{at}" for at in range(count)]
    return pa.table([ts, ends, found, wide, chance.random(count), who, text], schema=SCHEMA)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def opened(folder: Any) -> windrow.Warehouse:
    OPEN.append(windrow.open(folder, clock=lambda: int(NOON.timestamp() * 1e6) + 10**10))
    return OPEN[-1]


def world(folder: Any, sql: str, options: dict[str, Any], **view: Any) -> Any:
    wh = opened(folder)
    for name in "ab":
        wh.create_stream(name, SCHEMA, time="ts", slide="1 minute", **options)
    wh.put_table("t", pa.table({"k": [1, 2]}))
    for slot in range(1, 4):
        step(wh, slot)
    wh.create_view("v", sql, **view)
    return wh


def step(wh: Any, slot: int, count: int = 60) -> None:
    for seed, name in enumerate("ab"):
        wh.append(name, batch(slot, seed, count))
        wh.slide(name, to=NOON + dt.timedelta(minutes=slot))


def told(wh: Any) -> list[Any]:
    return sorted(map(repr, wh.sql("SELECT * FROM v").fetchall()))


FIXED = {"lifetime": "5 minutes", "key": "k"}
VARIABLE = {"expires": "exp", "max_lifetime": "5 minutes"}


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("options", [FIXED, VARIABLE, {}], ids=["fixed", "variable", "for ever"])
@pytest.mark.parametrize("name", PLAIN)
def test_matched_rows_are_those_that_duckdb_joins(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any], restore: bool
) -> None:
    if restore and not options:
        pytest.skip("what never ends needs no restoring")
    used: list[bool] = []

    def noted(*given: Any) -> bool:
        used.append(matching.is_plain(*given))
        return used[-1]

    monkeypatch.setattr(following, "is_plain", noted)
    ours = world(tmp_path / "ours", PLAIN[name], options, restore=restore)
    monkeypatch.setattr(following, "is_plain", lambda *_: False)
    theirs = world(tmp_path / "theirs", PLAIN[name], options, restore=restore)
    assert told(ours) == told(theirs)
    seen = 0
    for slot in range(4, 12):
        monkeypatch.setattr(following, "is_plain", noted)
        step(ours, slot)
        monkeypatch.setattr(following, "is_plain", lambda *_: False)
        step(theirs, slot)
        assert told(ours) == told(theirs)
        seen += len(told(ours))
    assert seen
    assert used
    assert all(used)
    assert not ours.check().problems


@pytest.mark.parametrize("key", ["k", ["k", "who"], "who"])
def test_few_new_rows_find_their_partners_by_directory(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """A window of many rows, a batch of three: where the key begins with the column, only rows with its values are read."""
    read: list[int] = []
    plain = matching.Matching._read

    def counted(self: Any, part: Any, schema: Any, segments: Any, picks: Any = None) -> Any:
        for rows in plain(self, part, schema, segments, picks):
            read.append(rows.num_rows)
            yield rows

    wh = opened(tmp_path)
    for name in "ab":
        wh.create_stream(name, SCHEMA, time="ts", key=key, slide="1 minute", lifetime="1 hour")
    wh.create_view("v", PLAIN["on"])
    for name in "ab":
        wh.append(name, batch(5, 1, 20_000, keys=4000))
        wh.slide(name, to=NOON + dt.timedelta(minutes=7))
    monkeypatch.setattr(matching.Matching, "_read", counted)
    wh.append("a", batch(8, 2, 3, keys=4000))
    for name in "ab":
        wh.slide(name, to=NOON + dt.timedelta(minutes=10))
    assert sum(read) < 2000 if key != "who" else sum(read) > 20_000
    expected = wh.sql("SELECT count(*) FROM a JOIN b ON a.k = b.k").fetchall()
    assert wh.sql("SELECT count(*) FROM v").fetchall() == expected


@pytest.mark.parametrize("sql", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_duckdb(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    found: list[bool] = []
    monkeypatch.setattr(
        following, "is_plain", lambda *given: found.append(matching.is_plain(*given)) or matching.is_plain(*given)
    )
    wh = world(tmp_path, sql, FIXED)
    step(wh, 4)
    assert found
    assert not any(found)

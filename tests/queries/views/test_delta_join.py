"""A plain join that is matched without DuckDB holds what the same join holds that DuckDB has computed."""

import datetime as dt
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.indexes import column_cache
from windrow.native import hash_match as native_matches
from windrow.queries.views import delta_join, part_rows, slide_hook
from windrow.queries.views.part_rows import PartRows, take_values

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
OPEN: list[windrow.Warehouse] = []
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [("ts", STAMP), ("exp", STAMP), ("k", pa.int32()), ("wide", pa.int64()), ("n", pa.float64()), ("who", pa.string()),
     ("text", pa.string()), ("m", pa.int16())]
)  # fmt: skip
PLAIN = {
    "on": "SELECT a.k, a.who, b.text, a.ts AS at, b.n FROM a JOIN b ON a.k = b.k",
    "windows": "SELECT b.who, a.n AS an, B.N AS bn FROM a [WINDOW 2 MINUTES] JOIN b [WINDOW 4 MINUTES] ON b.k = a.k",
    "using": "SELECT a.k, b.who FROM a JOIN b USING (k)",
    "other column": "SELECT a.wide AS one, b.wide AS two, b.k FROM a JOIN b ON a.wide = b.wide",
    "itself": "SELECT p.n AS pn, q.n AS qn FROM a p JOIN a [WINDOW 2 MINUTES] q ON p.k = q.k",
    "two columns": "SELECT a.k, b.m, a.text, b.who FROM a JOIN b ON a.k = b.k AND a.m = b.m",
    "USING two": "SELECT k, m, b.n FROM a JOIN b USING (k, m)",
    "a comma": "SELECT a.k, b.who FROM a, b WHERE a.k = b.k",
}
MANY = {
    "three": "SELECT a.k, a.n AS an, b.who, c.text FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k",
    "three windows": "SELECT c.k, a.n AS an, b.n AS bn FROM a [WINDOW 1 MINUTES] JOIN b [WINDOW 4 MINUTES] ON a.k = b.k "
    "JOIN c [WINDOW 2 MINUTES] ON a.k = c.k",
    "by different columns": "SELECT a.m, c.wide, b.text FROM c JOIN b ON c.wide = b.wide JOIN a ON b.m = a.m AND a.k = c.k",
    "in a circle": "SELECT a.text AS x, b.text AS y, c.text AS z FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m AND c.k = a.k",
    "only by the last": "SELECT a.n AS an, b.n AS bn, c.k, c.m FROM a, b, c WHERE a.k = c.k AND b.m = c.m",
    "met too late": "SELECT a.text AS x, b.text AS y FROM a JOIN b ON a.m = b.m JOIN c ON a.k = c.k AND b.k = c.k",
    "three by USING": "SELECT k, a.who, c.n FROM a JOIN b USING (k) JOIN c USING (k)",
    "four": "SELECT p.text AS x, q.n, r.who, s.k FROM a p JOIN b q ON p.k = q.k JOIN c r ON r.k = q.k "
    "JOIN a [WINDOW 1 MINUTES] s ON s.m = r.m AND s.k = p.k",
    "thrice itself": "SELECT p.n AS pn, q.n AS qn, r.n AS rn FROM a p JOIN a q ON p.k = q.k JOIN a r ON q.k = r.k AND r.m = p.m",
}
NOT_PLAIN = {
    "another condition": "SELECT a.k FROM a JOIN b ON a.k = b.k AND a.n < b.n",
    "a row with itself": "SELECT a.n FROM a JOIN b ON a.k = b.wide AND a.wide = b.wide",
    "not all are joined": "SELECT a.n FROM a JOIN b ON a.k = b.k, c",
    "two apart": "SELECT p.n FROM a p JOIN b q ON p.k = q.k, a r JOIN b s ON r.k = s.k",
    "text beside a number": "SELECT a.k FROM a JOIN b ON a.k = b.k AND a.who = b.who",
    "a filter": "SELECT a.k FROM a JOIN b ON a.k = b.k WHERE a.n > 1",
    "an expression": "SELECT a.k + 1 AS k FROM a JOIN b ON a.k = b.k",
    "different kinds": "SELECT a.k FROM a JOIN b ON a.k = b.wide",
    "text": "SELECT a.k FROM a JOIN b ON a.who = b.who",
    "other names": "SELECT p.u FROM a AS p(t, e, u) JOIN b ON p.u = b.k",
    "a table": "SELECT a.k FROM a JOIN t ON a.k = t.k",
    "distinct": "SELECT DISTINCT a.k FROM a JOIN b ON a.k = b.k",
    "three, one a table": "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN t ON b.k = t.k",
    "three, one apart": "SELECT a.k FROM a JOIN b ON a.k = b.k LEFT JOIN t ON b.k = t.k",
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
    actual = [None if chance.random() < 0.1 else int(key) for key in chance.integers(-keys // 2, keys // 2, count)]
    wide = [None if key is None else key << 40 for key in actual]
    who = [None if chance.random() < 0.1 else f"host-{each}" for each in chance.integers(0, 3, count)]
    text = [f"{slot}-{seed}-{index}" for index in range(count)]
    few = [None if chance.random() < 0.1 else int(each) for each in chance.integers(0, 3, count)]
    return pa.table([ts, ends, actual, wide, chance.random(count), who, text, few], schema=SCHEMA)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def opened(folder: Any) -> windrow.Warehouse:
    OPEN.append(windrow.open(folder, clock=lambda: int(NOON.timestamp() * 1e6) + 10**10))
    return OPEN[-1]


def world(folder: Any, sql: str | None, options: dict[str, Any], count: int = 60, **view: Any) -> Any:
    wh = opened(folder)
    for name in "abc":
        wh.create_stream(name, SCHEMA, time="ts", slide="1 minute", **options)
    wh.put_table("t", pa.table({"k": [1, 2]}))
    for slot in range(1, 4):
        step(wh, slot, count)
    if sql is not None:
        wh.create_view("v", sql, **view)
    return wh


def step(wh: Any, slot: int, count: int = 60) -> None:
    for seed, name in enumerate("abc"):
        wh.append(name, batch(slot, seed, count, keys=40 if count > 20 else 8))
        wh.slide(name, to=NOON + dt.timedelta(minutes=slot))


def told(wh: Any, view: str = "v") -> list[Any]:
    return sorted(map(repr, wh.sql(f"SELECT * FROM {view}").fetchall()))


FIXED = {"lifetime": "5 minutes", "key": "k"}
VARIABLE = {"expires": "exp", "max_lifetime": "5 minutes"}


LIVES = {
    "fixed": (FIXED, False),
    "fixed, restored": (FIXED, True),
    "variable": (VARIABLE, False),
    "variable, restored": (VARIABLE, True),
    "for ever": ({}, False),
}
SHORT = ("fixed", "variable, restored", "for ever")
# Three windows have many results: their rows are fewer, and so are their keys.
CASES = [(PLAIN, 60, life) for life in LIVES] + [(MANY, 9, life) for life in ("fixed", "variable, restored")]


@pytest.mark.parametrize(
    ("statements", "count", "life"),
    [
        pytest.param(*case, id=f"{len(case[0])} views, {case[2]}", marks=() if case[2] in SHORT else pytest.mark.soak)
        for case in CASES
    ],
)
def test_matched_rows_are_those_that_duckdb_joins(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, statements: dict[str, str], count: int, life: str
) -> None:
    """All statements are views of one warehouse, and of another one in which DuckDB computes them."""
    used: list[bool] = []
    options, restore = LIVES[life]

    def noted(*given: Any) -> bool:
        used.append(delta_join.can_join_natively(*given))
        return used[-1]

    def both(do: Any) -> tuple[Any, Any]:
        monkeypatch.setattr(slide_hook, "can_join_natively", noted)
        ours = do("ours")
        monkeypatch.setattr(slide_hook, "can_join_natively", lambda *_: False)
        return ours, do("theirs")

    def create(name: str) -> Any:
        wh = world(tmp_path / name, None, options, count)
        for number, sql in enumerate(statements.values()):
            wh.create_view(f"v{number}", sql, restore=restore)
        return wh

    ours, theirs = both(create)
    seen = dict.fromkeys(statements, 0)
    for slot in range(3, 8):
        if slot > 3:
            both(lambda name, slot=slot: step(ours if name == "ours" else theirs, slot, count))
        for number, name in enumerate(statements):
            actual = told(ours, f"v{number}")
            assert actual == told(theirs, f"v{number}"), f"{name}, slot {slot}"
            seen[name] += len(actual)
    assert all(seen.values()), seen
    assert used
    assert all(used)
    assert not ours.check().problems


def test_combinations_that_do_not_fit_go_on_in_parts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs at a time, few rows of a stream together: a result is neither lost nor doubled where it is cut."""
    monkeypatch.setattr(delta_join, "BATCH_ROWS", 7)
    monkeypatch.setattr(part_rows, "MAX_HELD_ROWS", 25)
    monkeypatch.setattr(delta_join, "MAX_HELD_ROWS", 25)
    wh, seen = world(tmp_path, MANY["four"], FIXED, 12), 0
    for slot in range(4, 8):
        step(wh, slot, 12)
        held = wh.sql("SELECT x, n, who, k FROM v").fetchall()
        assert sorted(map(repr, held)) == sorted(map(repr, wh.sql(MANY["four"]).fetchall()))
        seen += len(held)
    assert seen > 100


def test_texts_that_fit_into_no_array_are_gathered_in_pieces(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of texts holds 2 GB; here it holds those of seven rows."""
    gather, refused = native_matches.gather, []

    def small(chunks: Any, places: Any) -> Any:
        if pa.types.is_string(chunks[0].type) and len(places) > 7:
            refused.append(len(places))
            raise pa.ArrowCapacityError("too many")
        return gather(chunks, places)

    sql = next(iter(PLAIN.values()))
    theirs = world(tmp_path / "theirs", sql, FIXED)
    monkeypatch.setattr(
        part_rows, "native_matches", SimpleNamespace(gather=small, can_gather=native_matches.can_gather)
    )
    monkeypatch.setattr(column_cache, "_SAMPLES", 0)  # no text is taken for one that repeats
    ours = world(tmp_path / "ours", sql, FIXED)
    for slot in range(4, 8):
        step(ours, slot)
        step(theirs, slot)
        assert told(ours) == told(theirs)
    assert refused


def test_a_text_that_has_no_place_in_a_chunk_is_found_all_the_same() -> None:
    """Types that the kernel does not gather, and columns of a segment that is too large for one array."""
    lists = [["a", None, "b"], [], ["c", "d"]]
    places = np.array([2 << 32, 1, 2, (2 << 32) + 1, 0])
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        chunks: list[Any] = [pa.array(texts, pa.string()).cast(kind) for texts in lists]
        if kind == pa.string():
            chunks[0] = pa.chunked_array([chunks[0][:1], chunks[0][1:]])
        assert take_values(chunks, places).to_pylist() == ["c", None, "b", "d", "a"]
    assert take_values([pa.array([True, False])], np.array([1, 0])).to_pylist() == [False, True]


@pytest.mark.parametrize("key", ["k", ["k", "who"], "who"])
def test_few_new_rows_find_their_partners_by_directory(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, key: Any
) -> None:
    """A window of many rows, a batch of three: where the key begins with the column, only rows with its values are read."""
    read: list[int] = []

    class Counted(PartRows):
        def __init__(self, lengths: Any, given: Any) -> None:
            super().__init__(lengths, given)
            read.append(sum(lengths))

    wh = opened(tmp_path)
    for name in "ab":
        wh.create_stream(name, SCHEMA, time="ts", key=key, slide="1 minute", lifetime="1 hour")
    wh.create_view("v", PLAIN["on"])
    for name in "ab":
        wh.append(name, batch(5, 1, 20_000, keys=4000))
        wh.slide(name, to=NOON + dt.timedelta(minutes=7))
    for module in (delta_join, part_rows):
        monkeypatch.setattr(module, "PartRows", Counted)
    wh.append("a", batch(8, 2, 3, keys=4000))
    for name in "ab":
        wh.slide(name, to=NOON + dt.timedelta(minutes=10))
    assert sum(read) < 2000 if key != "who" else sum(read) > 20_000
    expected = wh.sql("SELECT count(*) FROM a JOIN b ON a.k = b.k").fetchall()
    assert wh.sql("SELECT count(*) FROM v").fetchall() == expected


@pytest.mark.parametrize("sql", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_duckdb(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    actual: list[bool] = []
    monkeypatch.setattr(
        slide_hook,
        "can_join_natively",
        lambda *given: actual.append(delta_join.can_join_natively(*given)) or delta_join.can_join_natively(*given),
    )
    wh = world(tmp_path, sql, FIXED)
    step(wh, 4)
    assert actual
    assert not any(actual)

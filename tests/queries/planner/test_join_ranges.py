"""Join pruning leaves out segments, never a row of the answer; the oracle is plain DuckDB over all live rows.

segments of left    k = 0…9   10…19   20…29   …   70…79      and one of nulls
segments of right                     20…29, 30…39           and nulls beside them
"""

import datetime as dt
import decimal
import math
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import windrow

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SLIDES = 8
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "i": (pa.int32(), lambda n: n),
    "text": (pa.string(), lambda n: f"key\x00{n:03}" + "x" * (n % 90)),
    "money": (pa.decimal128(12, 2), lambda n: decimal.Decimal(n) / 4 - 9),
    "real": (pa.float64(), lambda n: math.nan if n % 10 == 9 else -0.0 if n == 20 else 0.0 if n == 30 else n - 20.5),
    "at": (pa.timestamp("us", "UTC"), lambda n: EPOCH + dt.timedelta(hours=n)),
}
JOINS = {
    "inner": "SELECT l.n, r.n FROM l JOIN r ON l.k = r.k",
    "using": "SELECT l.n, r.n FROM l JOIN r USING (k) WHERE r.n % 2 = 0",
    "where": "SELECT l.n, r.n FROM l, r WHERE r.k = l.k AND l.n > 3",
    "semi": "SELECT n FROM l WHERE k IN (SELECT k FROM r)",
    "not key": "SELECT l.n, r.n FROM l JOIN r ON l.v = r.v",
    "anti": "SELECT n FROM l WHERE k NOT IN (SELECT k FROM r WHERE k IS NOT NULL)",
    "left": "SELECT l.n, r.n FROM l LEFT JOIN r ON l.k = r.k",
    "right": "SELECT l.n, r.n FROM l RIGHT JOIN r ON l.k = r.k",
    "full": "SELECT l.n, r.n FROM l FULL JOIN r ON l.k = r.k",
    "or": "SELECT l.n, r.n FROM l JOIN r ON l.k = r.k OR l.n = r.n",
    "null safe": "SELECT l.n, r.n FROM l JOIN r ON l.k IS NOT DISTINCT FROM r.k",
    "itself": "SELECT a.n, b.n FROM l a JOIN l b ON a.k = b.k WHERE b.n < 20",
    "not in select": "SELECT count(*) FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k)",
    "three": "SELECT count(*) FROM l JOIN r USING (k) JOIN l AS again ON again.k = r.k",
}
PRUNED = {"inner", "using", "where", "semi", "not key"}


def make_rows(kind: str, slide: int, side: str) -> pa.Table:
    values = VALUES[kind][1]
    if side == "right":
        numbers = [20 + n if slide < 4 else 30 + n for n in range(10)] + [None]
    else:
        numbers = [10 * slide + n for n in range(10)] + ([None] * 2 if slide == 7 else [])
    keys = [None if n is None else values(n) for n in numbers]
    return pa.table(
        {
            "ts": pa.array([EPOCH + dt.timedelta(seconds=slide + 0.5)] * len(keys), pa.timestamp("us", "UTC")),
            "k": pa.array(keys, VALUES[kind][0]),
            "second": pa.array([None if n is None else n % 3 for n in numbers], pa.int64()),
            "v": pa.array([None if n is None else n * 7 for n in numbers], pa.int64()),
            "n": pa.array([100 * slide + index for index in range(len(keys))]),
        }
    )


@pytest.fixture(scope="module", params=[(kind, key) for kind in VALUES for key in (("k",), ("k", "second"))])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, str]]:
    kind, key = request.param
    oracle = duckdb.connect()
    with windrow.open(tmp_path_factory.mktemp("joins") / "wh", clock=lambda: 10**9) as wh:
        for name, side in (("l", "left"), ("r", "right")):
            parts = [make_rows(kind, slide, side) for slide in range(SLIDES)]
            index = windrow.Index("wave-insertion", SLIDES, 1)
            wh.create_stream(
                name, parts[0].schema, time="ts", key=key, slide="1 second", lifetime="8 seconds", index=index
            )
            for slide, rows in enumerate(parts):
                wh.append(name, rows)
                wh.slide(name, to=EPOCH + dt.timedelta(seconds=slide + 1))
            everything = pa.concat_tables(parts)  # DuckDB sees it by its name
            oracle.execute(f"CREATE TABLE {name} AS SELECT * FROM everything")
            assert everything.num_rows
        yield wh, oracle, kind


@pytest.mark.parametrize("how", JOINS)
def test_a_join_gives_what_it_gives_over_all_rows(both, how):
    wh, oracle, kind = both
    actual = sorted(map(repr, wh.sql(JOINS[how]).fetchall()))
    assert actual == sorted(map(repr, oracle.execute(JOINS[how]).fetchall()))
    left = next(r for r in wh.explain(JOINS[how]).relations if r.reference.name == "l")
    if how in PRUNED and not (kind == "real" and how != "not key"):  # NaN, the greatest, is in every segment
        # Two segments have such values; that of text only their greatest is known, where there are nulls.
        assert left.segments == (5 if kind == "text" and how != "not key" else 2, SLIDES), left.keys
        assert "r." in left.keys
    elif how not in PRUNED:
        assert left.segments == (SLIDES, SLIDES), left.keys

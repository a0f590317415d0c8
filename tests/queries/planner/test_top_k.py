"""The few greatest or smallest rows: the same as plain DuckDB gives over all live rows, but out of few of them."""

import random

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, when
from windrow.queries.planner.top_k import TopKPicker, find_extremes

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us")), ("k", pa.int64()), ("v", pa.int32()), ("d", pa.date32()), ("f", pa.float64()),
     ("s", pa.string()), ("n", pa.int64())]
)  # fmt: skip
FEW = (
    "SELECT * FROM {p} ORDER BY v DESC, n LIMIT 5",
    "SELECT n, s FROM {p} ORDER BY v, n LIMIT 7",
    "SELECT n, v FROM {p} ORDER BY v DESC NULLS LAST, n DESC LIMIT 40",
    "SELECT n, d FROM {p} ORDER BY d, n LIMIT 3 OFFSET 4",
    "FROM {p} ORDER BY ts DESC, n LIMIT 1",
    "SELECT k, n AS number FROM {p} AS p ORDER BY p.ts, p.n LIMIT 9",
    "SELECT n FROM {p} ORDER BY k DESC, n LIMIT 1000",
)
"""Statements for which only rows that can be among the first are read."""
ALL = (
    "SELECT n, v FROM {p} ORDER BY v DESC NULLS FIRST, n LIMIT 5",
    "SELECT n, -v AS v FROM {p} ORDER BY v DESC, n LIMIT 5",
    "SELECT * REPLACE (-v AS v) FROM {p} ORDER BY v, n LIMIT 5",
    "SELECT COLUMNS('(k|n)') AS 'v\\1' FROM {p} ORDER BY vn LIMIT 5",
    "SELECT n AS number, COLUMNS('k(.*)') AS 'v\\1' FROM {p} ORDER BY v DESC, number LIMIT 5",
    "SELECT n FROM {p} WHERE k = 1 ORDER BY v, n LIMIT 5",
    "SELECT DISTINCT v FROM {p} ORDER BY v LIMIT 5",
    "SELECT v, count(*) FROM {p} GROUP BY v ORDER BY v LIMIT 5",
    "SELECT n, unnest([v, n]) FROM {p} ORDER BY v, n, 2 LIMIT 5",
    "SELECT n, row_number() OVER (ORDER BY n) FROM {p} ORDER BY v, n LIMIT 5",
    "SELECT n FROM {p} ORDER BY f DESC, n LIMIT 5",
    "SELECT n FROM {p} ORDER BY s, n LIMIT 5",
    "SELECT n FROM {p} ORDER BY 1 LIMIT 5",
    "SELECT n FROM {p} ORDER BY v + 1, n LIMIT 5",
    "SELECT n FROM {p} ORDER BY v, n LIMIT 50%",
    "SELECT n FROM {p} ORDER BY v, n",
    "SELECT a.n FROM {p} AS a, (SELECT 1) ORDER BY a.v, a.n LIMIT 5",
    "SELECT n FROM {p} QUALIFY row_number() OVER (PARTITION BY k ORDER BY n) = 1 ORDER BY v, n LIMIT 5",
)
"""Statements of which more must be read."""
WINDOWS = {
    "": None,
    f"[WINDOW {3 * DELTA} MICROSECONDS]": 3 * DELTA,
    f"[WINDOW {2 * DELTA + 7} MICROSECONDS]": 2 * DELTA + 7,
}


def rows(slot: int, chance: random.Random) -> pa.Table:
    """Few different values, so that many are equal, and nulls."""
    made = []
    for number in range(60):
        ts = BASE + (slot - 1) * DELTA + chance.randint(1, DELTA)
        v = chance.choice((None, *range(-4, 5)))
        d = chance.choice((None, *range(20_000, 20_005)))
        f = chance.choice((None, float("nan"), -1.5, 2.0))
        made.append((ts, chance.randint(0, 3), v, d, f, chance.choice(("x", "y", None)), slot * 100 + number))
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(zip(*made, strict=True), SCHEMA, strict=True)],
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    chance, given = random.Random(4), []
    with windrow.open(tmp_path_factory.mktemp("top") / "w", clock=lambda: BASE + 100 * DELTA) as wh:
        lifetime = f"{6 * DELTA} microseconds"
        wh.create_stream("p", SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime=lifetime)
        for slot in range(1, 9):
            given.append(rows(slot, chance))
            wh.append("p", given[-1])
            wh.slide("p", to=when(BASE + slot * DELTA))
        yield wh, pa.concat_tables(given)


@pytest.fixture
def picked(monkeypatch):
    """How many rows were picked, by statement."""
    counts: list[int] = []
    real = TopKPicker.picks

    def picks(self, segments):
        found = real(self, segments)
        counts.append(sum(int((stops - starts).sum()) for starts, stops in found.values()))
        return found

    monkeypatch.setattr(TopKPicker, "picks", picks)
    return counts


def expected(given: pa.Table, text: str, length: int | None) -> list[tuple]:
    now = BASE + 8 * DELTA
    with duckdb.connect() as plain:
        plain.register("given", given)
        after = now - (6 * DELTA if length is None else length)
        plain.execute(f"CREATE TABLE p AS FROM given WHERE epoch_us(ts) > {after} AND epoch_us(ts) <= {now}")
        return plain.execute(text.format(p="p")).fetchall()


@pytest.mark.parametrize("clause", WINDOWS)
@pytest.mark.parametrize("text", FEW)
def test_the_first_rows_are_found_without_reading_the_others(stream, picked, text, clause):
    wh, given = stream
    found = wh.sql(text.format(p=f"p {clause}")).fetchall()
    wanted = expected(given, text, WINDOWS[clause])
    assert str(found) == str(wanted)
    total = len(expected(given, "SELECT n FROM {p}", WINDOWS[clause]))
    assert picked
    assert sum(picked) < total or len(wanted) >= total // 3


@pytest.mark.parametrize("clause", WINDOWS)
@pytest.mark.parametrize("text", ALL)
def test_other_shapes_are_left_alone(stream, picked, text, clause):
    wh, given = stream
    assert str(wh.sql(text.format(p=f"p {clause}")).fetchall()) == str(expected(given, text, WINDOWS[clause]))
    assert not picked


def test_nothing_is_left_out_where_a_window_holds_fewer_rows_than_are_wanted(stream, picked):
    wh, given = stream
    text = "SELECT n FROM {p} ORDER BY v, n LIMIT 9999"
    assert wh.sql(text.format(p="p")).fetchall() == expected(given, text, None)
    assert picked


@pytest.mark.parametrize("different", [3, 500, 1 << 40])
@pytest.mark.parametrize("some", [True, False])
@pytest.mark.parametrize("wanted", [1, 64, 128, 5000])
def test_extremes_are_all_rows_from_their_floor_on(different, some, wanted):
    """Drawn with few and with many different values, sorted and not, with and without nulls."""
    chance = np.random.default_rng([different, wanted])
    for values in (chance.integers(-different, different, 3000), np.sort(chance.integers(0, different, 3000))):
        valid = chance.random(3000) < 0.7 if some else None
        count = 3000 if valid is None else int(valid.sum())
        found = find_extremes(values, valid, 100, wanted)
        own = values[found.rows - 100]
        assert list(found.values) == list(own)
        assert valid is None or valid[found.rows - 100].all()
        assert (found.floor is None) == (count <= wanted)
        least = min(values.tolist()) if found.floor is None else found.floor
        mask = values >= least if valid is None else (values >= least) & valid
        assert list(found.rows) == list(np.flatnonzero(mask) + 100)
        assert len(found.rows) >= min(wanted, count)


def test_a_slide_has_only_the_new_segment_looked_through(tmp_path, monkeypatch):
    chance = random.Random(5)
    looked: list[int] = []
    real = TopKPicker._values
    monkeypatch.setattr(
        TopKPicker, "_values", lambda self, segment: (looked.append(segment.id), real(self, segment))[1]
    )
    with windrow.open(tmp_path / "w", clock=lambda: BASE + 100 * DELTA) as wh:
        lifetime = f"{6 * DELTA} microseconds"
        wh.create_stream("p", SCHEMA, time="ts", key="k", slide=f"{DELTA} microseconds", lifetime=lifetime)
        for slot in range(1, 12):
            wh.append("p", rows(slot, chance))
            wh.slide("p", to=when(BASE + slot * DELTA))
            wh.sql("SELECT n FROM p ORDER BY n DESC LIMIT 3").fetchall()
            looked.clear()
            assert wh.sql("SELECT n FROM p ORDER BY n DESC LIMIT 40").fetchall()[0] == (slot * 100 + 59,)
            assert not looked

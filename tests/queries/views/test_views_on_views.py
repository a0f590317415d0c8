"""Views over recomputed views, and views that are made while their inputs stand apart, against all rows ever sent."""

import datetime as dt
import random

import pyarrow as pa
import pytest

import plain_duckdb
import windrow

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
LIFE = dt.timedelta(minutes=8)


def at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


class World:
    """Streams that slide apart from each other, and every row that was ever sent to them."""

    def __init__(self, path, **slides: int) -> None:
        self.wh = windrow.open(path)
        self.rows: dict[str, list[dict]] = {name: [] for name in slides}
        for name, minutes in slides.items():
            self.wh.create_stream(name, SCHEMA, time="ts", key="k", slide=f"{minutes} minutes", lifetime=LIFE)

    def put(self, stream: str, *rows: tuple[float, int]) -> None:
        sent = [{"ts": at(minute), "k": k} for minute, k in rows]
        self.rows[stream] += sent
        self.wh.append(stream, pa.Table.from_pylist(sent, SCHEMA))

    def truth(self, sql: str, clock: dt.datetime) -> list:
        """The statement over the rows that live at `clock`, by plain DuckDB."""
        with plain_duckdb.connect() as connection:
            for name, rows in self.rows.items():
                live = [row for row in rows if row["ts"] <= clock < row["ts"] + LIFE]
                connection.register(name, pa.Table.from_pylist(live, SCHEMA))
            return sorted(connection.sql(sql).fetchall())

    def answer(self, view: str) -> list:
        columns = [f'"{column}"' for column in self.wh.sql(f"FROM {view}").columns if not column.startswith("_")]
        return sorted(self.wh.sql(f"SELECT {', '.join(columns)} FROM {view}").fetchall())


VIEWS = {
    "difference": ("SELECT k FROM a EXCEPT SELECT k FROM b", "SELECT u.k FROM u JOIN c USING (k)"),
    "with": (
        "SELECT k, count(*) AS n FROM a GROUP BY k;",
        "WITH b AS (FROM c) SELECT b.k, u.n FROM b JOIN u USING (k)",
    ),
    "total": ("SELECT k, count(*) AS n FROM a GROUP BY k", "SELECT sum(n)::BIGINT AS s FROM u -- of all"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_over_a_recomputed_view_is_what_its_statement_says(tmp_path, name):
    """
    a, 2 minutes  |---|---|---|        u is computed at the slides of a and b,
    b, 3 minutes  |-----|-----|        w at those of c too
    c, 1 minute   |-|-|-|-|-|-|
    """
    inner, outer = VIEWS[name]
    print("seed", seed := random.randrange(1 << 30))
    chance, world = random.Random(seed), World(tmp_path / "w", a=2, b=3, c=1)
    wh = world.wh
    with wh:
        wh.create_view("u", inner)
        wh.create_view("w", outer)
        text = f"WITH u AS ({inner.rstrip(';')}) SELECT * FROM ({outer}\n)"
        for minute in range(1, 11):
            for stream in "abc":
                world.put(
                    stream, *((minute - chance.random(), chance.randrange(6)) for _ in range(chance.randrange(4)))
                )
            for stream, slide in (("a", 2), ("b", 3), ("c", 1)):
                reached = (minute if stream != "c" else minute - chance.randrange(3)) // slide * slide
                if reached > 0 and (wh.now(stream) is None or at(reached) > wh.now(stream)) and chance.random() < 0.8:
                    wh.slide(stream, to=at(reached))
            if (clock := wh.now("w")) is not None:
                assert world.answer("w") == world.truth(text, clock), (minute, clock)


def test_a_view_over_a_recomputed_view_shows_what_was_written_and_outlives_it(tmp_path):
    world = World(tmp_path / "w", a=1)
    with world.wh as wh:
        wh.create_view("u", "SELECT k, count(*) AS n FROM a GROUP BY k")
        view = wh.create_view("w", "SELECT k FROM u WHERE n > 1")
        assert (view.sql, view.inputs, view.recomputed) == ("SELECT k FROM u WHERE n > 1", ("a",), True)
        assert "strict" in str(wh.explain("SELECT k FROM u WHERE n > 1"))
        with pytest.raises(windrow.ViewError, match="has no windows"):
            wh.create_view("x", "SELECT k FROM u [WINDOW 1 MINUTE]")
        wh.create_view("slow", "SELECT k FROM u", slide="5 minutes")


@pytest.mark.parametrize("silent", [False, True])
def test_a_view_made_while_its_inputs_stand_apart_never_lacks_rows(tmp_path, silent):
    """
    c  ------------------|14     its row of minute 3 is gone
    a  --------|7                the view begins when a has come to 14
    """
    world = World(tmp_path / "w", a=1, c=1)
    sql = "SELECT a.k FROM a JOIN c USING (k)"
    with world.wh as wh:
        world.put("a", (3, 1), (12.5, 2))
        world.put("c", (3, 1))
        if not silent:
            wh.slide("a", to=at(7))
        wh.slide("c", to=at(7))
        world.put("c", (13, 2))
        wh.slide("c", to=at(14))
        view = wh.create_view("v", sql)
        assert view.now is None
        for minute in range(8, 21):
            wh.slide("a", to=at(minute))
            clock = wh.now("v")
            assert (clock is None) == (minute < 14)
            if clock is not None:
                assert world.answer("v") == world.truth(sql, clock)
            if minute == 17:
                wh.slide("c", to=at(22))


def test_a_pivot_without_values_is_no_view(tmp_path):
    world = World(tmp_path / "w", a=1)
    with world.wh as wh:
        with pytest.raises(windrow.ViewError, match="name the pivot's values"):
            wh.create_view("p", "PIVOT a ON k USING count(*)")
        world.put("a", (0.5, 1), (0.6, 2), (0.7, 1))
        wh.slide("a", to=at(1))
        wh.create_view("p", "PIVOT (SELECT k FROM a) ON k IN (1, 2) USING count(*)")
        assert world.answer("p") == [(2, 1)]

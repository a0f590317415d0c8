"""The ordered queries of docs/sql.md, as they stand there, against plain Python over the same ticks, with many ties."""

import datetime as dt
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import scratch_folders
import windrow
from conftest import ROOT

SCHEMA = pa.schema([
    ("ts", pa.timestamp("us", "UTC")), ("sid", pa.string()), ("mmid", pa.string()), ("type", pa.string()),
    ("price", pa.float64()), ("volume", pa.int64()),
])  # fmt: skip
NOW = dt.datetime(2026, 1, 4, 15, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def example(name: str) -> str:
    """A statement of the page, by the name it has there."""
    page = Path(ROOT / "docs" / "sql.md").read_text()
    actual = re.search(rf'^{name} = """\n(.*?)"""', page, re.MULTILINE | re.DOTALL)
    assert actual is not None
    return actual[1]


def make_ticks(choice: random.Random) -> list[dict]:
    """Four days of ticks in order of arrival: whole seconds, so that many are equal, and some out of order."""
    ticks = []
    for days in range(3, -1, -1):
        for _ in range(800):
            back = choice.randint(0, 2 * 3600) if days else choice.randint(0, 3600)
            ticks.append({
                "ts": NOW - days * DAY - dt.timedelta(seconds=back), "sid": choice.choice(("ACME", "BOLT")),
                "mmid": choice.choice("ABCD"), "type": choice.choice(("bid", "bid", "trade")),
                "price": choice.randint(80, 90) / 4, "volume": choice.randint(1, 99),
            })  # fmt: skip
    return ticks


@pytest.fixture(scope="module", params=range(3))
def market(request: pytest.FixtureRequest) -> Iterator[tuple[windrow.Warehouse, list[dict]]]:
    """A warehouse with ticks, and the live ones in order: by time, then by arrival."""
    choice = random.Random(request.param)
    ticks = make_ticks(choice)
    with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as wh:
        index = windrow.Index("round-robin", 2, 2, maintenance=choice.choice(("rebuild", "norebuild", "adaptive")))
        wh.create_stream("ticks", SCHEMA, time="ts", key="sid", slide="10 minutes", lifetime="4 days", index=index)
        for position in range(0, len(ticks), 700):
            batch = ticks[position : position + 700]
            wh.append("ticks", pa.Table.from_pylist(batch, SCHEMA))
            wh.slide("ticks", to=min(NOW, max(tick["ts"] for tick in batch)))
        wh.slide("ticks", to=NOW)
        yield wh, sorted(ticks, key=lambda tick: tick["ts"])


def last(ticks: list[dict], length: dt.timedelta, **wanted: str) -> list[dict]:
    return [t for t in ticks if t["ts"] > NOW - length and all(t[name] == value for name, value in wanted.items())]


def test_moving_average(market):
    wh, ticks = market
    trades = last(ticks, HOUR / 2, sid="ACME", type="trade")
    expected = []
    for index in range(len(trades) - 1, len(trades) - 4, -1):
        window = [trade["price"] for trade in trades[max(0, index - 4) : index + 1]]
        change = trades[index]["price"] - trades[index - 1]["price"]
        expected.append((trades[index]["ts"], trades[index]["price"], change, sum(window) / len(window)))
    assert wh.sql(example("moving")).fetchall() == expected


def test_hammer(market):
    """The inside bid of a tick is the best price among it and those before it, in order, that are at most 90 s older."""
    wh, ticks = market
    bids = last(ticks, HOUR / 2, sid="ACME", type="bid")
    times = Counter()
    for index, bid in enumerate(bids):
        recent = [b["price"] for b in bids[: index + 1] if bid["ts"] - b["ts"] <= dt.timedelta(seconds=90)]
        times[bid["mmid"]] += bid["price"] == max(recent)
    assert wh.sql(example("hammer")).fetchall() == sorted((who, n) for who, n in times.items() if n)


def test_last_hour_against_the_same_hour_of_earlier_days(market):
    wh, ticks = market
    expected = []
    for sid in ("ACME", "BOLT"):
        today = sum(t["volume"] for t in last(ticks, HOUR, sid=sid))
        days = [
            [t["volume"] for t in ticks if t["sid"] == sid and NOW - n * DAY - HOUR < t["ts"] <= NOW - n * DAY]
            for n in (1, 2, 3)
        ]
        usual = sum(map(sum, days)) / len(days)
        expected.append((sid, today, pytest.approx(usual), pytest.approx(round(today / usual, 2), abs=0.011)))
    assert wh.sql(example("same_hour")).fetchall() == expected


class Test_the_hidden_sequence:
    def test_orders_by_time_and_then_by_arrival(self, market):
        wh, ticks = market
        rows = wh.sql("SELECT ts, sid, mmid, price, volume FROM ticks ORDER BY _seq").fetchall()
        assert rows == [(t["ts"], t["sid"], t["mmid"], t["price"], t["volume"]) for t in ticks]

    def test_is_never_in_a_star(self, market):
        wh, _ = market
        names = SCHEMA.names
        assert wh.sql("SELECT * FROM ticks").columns == names
        assert wh.sql("SELECT *, prev(price, _seq) AS p FROM ticks").columns == [*names, "p"]
        assert wh.sql("WITH x AS (SELECT * FROM ticks ORDER BY _seq) SELECT * FROM x ORDER BY _seq").columns == names
        assert wh.sql("SELECT _seq, price FROM ticks [ROWS 1]").columns == ["_seq", "price"]
        assert wh.sql("SELECT t._SEQ FROM ticks t UNION ALL SELECT 1").columns == ["_seq"]

    def test_agrees_with_the_newest_rows(self, market):
        wh, ticks = market
        newest = wh.sql("SELECT ts, mmid, price, volume FROM ticks [ROWS 40] ORDER BY _seq").fetchall()
        assert newest == [(t["ts"], t["mmid"], t["price"], t["volume"]) for t in ticks[-40:]]

    def test_groups(self, market):
        wh, ticks = market
        sql = "SELECT volume, prev(volume, _seq, sid), next(volume, _seq, sid) FROM ticks [WINDOW 1 HOUR] WHERE sid = 'BOLT' ORDER BY _seq"
        volumes = [t["volume"] for t in last(ticks, HOUR, sid="BOLT")]
        assert wh.sql(sql).fetchall() == list(zip(volumes, [None, *volumes], [*volumes[1:], None], strict=False))
        grouped = "SELECT sid, volume, maxw(3, volume, _seq, sid) FROM ticks [WINDOW 1 HOUR] ORDER BY sid, _seq"
        expected = []
        for sid in ("ACME", "BOLT"):
            own = [t["volume"] for t in last(ticks, HOUR, sid=sid)]
            expected += [(sid, v, max(own[max(0, index - 3) : index + 1])) for index, v in enumerate(own)]
        assert wh.sql(grouped).fetchall() == expected

"""Repair: a stream goes on without a damaged file, keeps what can be read of it, and says what it lacks."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

import windrow
from windrow.errors import DamageError, ViewError
from windrow.times import to_datetime

BASE = 1_767_225_600_000_000
SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("note", pa.string())])


def at(seconds: float):
    return to_datetime(BASE + round(seconds * SECOND))


def rows(first: int, last: int, wide: int = 0) -> pa.Table:
    """A row a second, with so many bytes that do not compress."""
    noise = random.Random(first)
    numbers = range(first, last + 1)
    values = [[BASE + n * SECOND for n in numbers], list(numbers), [noise.randbytes(wide).hex() for _ in numbers]]
    return pa.table([pa.array(v, f.type) for v, f in zip(values, SCHEMA, strict=True)], schema=SCHEMA)


def fill(path: Path, slots: int = 6, wide: int = 0, **options) -> windrow.Warehouse:
    """A slot of ten rows in each file."""
    wh = windrow.open(path, clock=lambda: BASE + 3600 * SECOND)
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide="10 seconds", lifetime="5 minutes", **options)
    wh.slide("s", to=at(0))
    for slot in range(slots):
        wh.append("s", rows(10 * slot + 1, 10 * slot + 10, wide))
        wh.slide("s", to=at(10 * slot + 10))
    return wh


def files(wh: windrow.Warehouse) -> list[tuple[str, int]]:
    """Files with the least time in them, oldest first."""
    actual = wh.sql(
        "SELECT file, min(min_time) FROM windrow.segments WHERE stream = 's' GROUP BY 1 ORDER BY 2"
    ).fetchall()
    return [(file, (time - at(0)).total_seconds()) for file, time in actual]


def keys(wh: windrow.Warehouse) -> list[int]:
    return sorted(wh.scan("s").read_all()["k"].to_pylist())


def lose(path: Path, file: str) -> None:
    (path / file).unlink()


def test_one_lost_segment_stops_its_window_until_it_is_given_up(path):
    """The reproduction: minute 5's file is gone; windows that hold it fail, others do not, and repair goes on."""
    with fill(path) as wh:
        wh.add_query("p", "SELECT count(*) AS n FROM s [WINDOW 5 MINUTES SLIDE 10 SECONDS]", missed="every")
        wh.add_query("sums", "SELECT sum(k) AS total FROM s [WINDOW 1 MINUTE SLIDE 10 SECONDS]")
        file, first = files(wh)[4]
    lose(path, file)
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as wh:
        with pytest.raises(DamageError):
            wh.scan("s").read_all()
        looked = wh.repair("s")
        assert (looked.repaired, looked.files, looked.rows_lost, wh.gaps("s")) == (False, (file,), 10, [])
        report = wh.repair("s", give_up=True)
        assert (report.repaired, report.rows_lost, report.rows_saved) == (True, 10, 0)
        expected = [n for n in range(1, 61) if not first <= n < first + 10]
        assert keys(wh) == expected and wh.check().ok, wh.check().problems
        gap = wh.gaps("s")[0]
        assert (gap.kind, gap.rows, gap.files, gap.id) == ("damaged", 10, (file,), report.gaps[0])
        assert (gap.start, gap.end) == (to_datetime(BASE + int(first) * SECOND - 1), at(first + 9))
        with wh.sql("SELECT count(*) FROM s [WINDOW 1 MINUTE]") as answer:
            assert not answer.windows[0].complete and answer.windows[0].coverage == pytest.approx(1 - 9.000001 / 60)
        assert wh.sql("SELECT count(*) FROM s [WINDOW 10 SECONDS]", on_gap="error").fetchall() == [(10,)]
        wh.append("s", rows(61, 70))
        wh.slide("s", to=at(70))
        assert {run.outcome for run in wh.run_due()} == {"delivered"}
        total = wh.sql("SELECT total, _complete FROM sums").fetchall()[-1]
        assert total == (sum(n for n in [*expected, *range(61, 71)] if n > 10), False)
        assert wh.gc() and wh.check().ok and not wh.repair("s", give_up=True).repaired


def test_rows_of_a_damaged_file_that_can_be_read_are_saved(path):
    options = {"index": windrow.Index("round-robin", 2, 2, row_group_bytes=4096)}
    with fill(path, slots=1, wide=2000, **options) as wh:
        wh.append("s", rows(11, 400, 2000))
        wh.slide("s", to=at(50))
        before = {row["k"]: row for row in wh.scan("s").read_all().to_pylist()}
        file = max((path / name for name, _ in files(wh)), key=lambda each: each.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as wh:
        report = wh.repair("s", give_up=True)
        assert report.rows_saved and report.rows_lost and report.rows_saved + report.rows_lost == 390
        actual = {row["k"]: row for row in wh.scan("s").read_all().to_pylist()}
        assert actual.items() <= before.items() and wh.check().ok, wh.check().problems
        wh.slide("s", to=at(400))
        assert set(keys(wh)) <= set(range(101, 401)) and len(keys(wh)) >= 300 - report.rows_lost


def test_a_lost_file_of_the_spool_is_given_up_too(path):
    with fill(path) as wh:
        present = set(path.glob("streams/s/segments/*.parquet"))
        wh._store.small_rows = 0
        wh.append("s", rows(61, 65))
        new = set(path.glob("streams/s/segments/*.parquet")) - present
        wh.append("s", rows(66, 70))
        new.pop().unlink()
        report = wh.repair("s", give_up=True)
        assert (report.rows_lost, report.rows_saved) == (5, 0)
        wh.slide("s", to=at(70))
        assert keys(wh) == [*range(1, 61), *range(66, 71)] and wh.check().ok
        assert [gap.kind for gap in wh.gaps("s")] == ["damaged"]


def test_views_forget_what_they_made_of_lost_rows(path):
    """One of each kind, a view of a view, and one that is behind: as created anew afterwards, and so they go on."""
    views = {
        "plain": "SELECT k, note FROM s WHERE k % 3 > 0",
        "joined": "SELECT a.k, b.k AS other FROM s [WINDOW 1 MINUTE] a JOIN s b ON a.k % 10 = b.k % 10",
        "grouped": "SELECT k % 7 AS g, count(*) AS n FROM s GROUP BY g",
        "different": "SELECT DISTINCT k // 4 AS q FROM s",
        "above": "SELECT k FROM plain WHERE k % 2 = 0",
    }

    def contents(wh: windrow.Warehouse, name: str) -> list[tuple]:
        hidden = wh.stream(name).definition.time, wh.stream(name).definition.expires
        columns = [column for column in wh.scan(name).schema.names if column not in hidden]
        return sorted(wh.sql(f"SELECT {', '.join(columns)} FROM {name}").fetchall())

    with fill(path) as wh:
        for name, sql in views.items():
            wh.create_view(name, sql)
        wh.create_view("slow", "SELECT k FROM s", slide="40 seconds")
        wh.add_query("counts", "SELECT count(*) AS n FROM plain [WINDOW 5 MINUTES SLIDE 10 SECONDS]")
        wh.append("s", rows(61, 70))
        wh.slide("s", to=at(70))
        wh.run_due()
        file, first = files(wh)[4]
    lose(path, file)
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as wh:
        wh.repair("s", give_up=True)
        assert wh.check().ok, wh.check().problems
        left = [n for n in range(1, 71) if not first <= n < first + 10]
        assert [k for (k,) in contents(wh, "slow")] == [n for n in left if n <= 40]
        for slot in (7, 8):
            for name, sql in views.items():
                wh.create_view(f"{name}{slot}", sql)
                assert contents(wh, name) == contents(wh, f"{name}{slot}"), (name, slot)
            wh.append("s", rows(10 * slot + 1, 10 * slot + 10))
            wh.slide("s", to=at(10 * slot + 10))
            left += range(10 * slot + 1, 10 * slot + 11)
        assert [k for (k,) in contents(wh, "above")] == [n for n in left if n % 3 and not n % 2]
        assert [k for (k,) in contents(wh, "slow")] == [n for n in left if n <= 80]
        wh.run_due()
        assert wh.sql("SELECT n FROM counts").fetchall()[-1] == (len([n for n in left if n % 3]),)
        assert wh.gc() and wh.check().ok, wh.check().problems


def test_a_view_of_two_damaged_streams_is_filled_by_the_second_repair(path):
    with fill(path) as wh:
        wh.create_stream("t", SCHEMA, time="ts", key="k", slide="10 seconds", lifetime="5 minutes")
        wh.append("t", rows(1, 30))
        wh.slide("t", to=at(30))
        wh.append("t", rows(31, 60))
        wh.slide("t", to=at(60))
        wh.create_view("pairs", "SELECT s.k FROM s JOIN t ON s.k = t.k")
        file, _ = files(wh)[1]
        others = wh.sql("SELECT file FROM windrow.segments WHERE stream = 't' ORDER BY min_time").fetchall()
    lose(path, file)
    lose(path, others[-1][0])
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as wh:
        assert wh.repair("s", give_up=True).repaired and wh.repair("t", give_up=True).repaired
        other = set(wh.scan("t").read_all()["k"].to_pylist())
        assert len(other) < 60
        expected = sorted(other & set(keys(wh)))
        assert sorted(wh.scan("pairs").read_all()["k"].to_pylist()) == expected
        assert wh.gc() and wh.check().ok, wh.check().problems


def test_only_a_stream_can_be_repaired(path):
    with fill(path) as wh:
        wh.create_view("v", "SELECT k FROM s")
        with pytest.raises(ViewError, match="'v' is a view"):
            wh.repair("v", give_up=True)
        assert not wh.repair("s", give_up=True).repaired, "nothing is damaged"

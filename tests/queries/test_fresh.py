"""`fresh`: exactly what a forced slide to the end of the newest spooled slot shows, without making it.

      committed          spooled
──────────────────┤ ·  · ·   ·  ·│      the answer is of the slot that holds the newest row
                 now            end
"""

import datetime as dt
import random
from pathlib import Path

import pyarrow as pa
import pytest

import windrow
from row_caches import find_cache, path_of, settle
from windrow import Index

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])
STATEMENTS = (
    "SELECT ts, k, v FROM s ORDER BY v",
    "SELECT k, count(*), sum(v) FROM s [WINDOW 2 MINUTES] GROUP BY k ORDER BY k",
    "SELECT v FROM s [ROWS 5] ORDER BY v",
    "SELECT v FROM s WHERE k = 3 ORDER BY v",
    "SELECT s.v, h.name FROM s JOIN hosts h USING (k) ORDER BY s.v",
)


@pytest.mark.parametrize("sources", [None, ["a", "b"]], ids=["one source", "two sources"])
@pytest.mark.parametrize("index", ["auto", Index("round-robin", 2, 2, maintenance="rebuild")], ids=str)
def test_it_is_what_a_forced_slide_then_shows(path: Path, sources: list[str] | None, index: Index | str) -> None:
    chance = random.Random(f"{sources} {index}")
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="3 minutes", index=index,
                         sources=sources, slack="10 seconds")  # fmt: skip
        wh.put_table("hosts", pa.table({"k": [1, 2, 3], "name": ["x", "y", "z"]}))
        assert wh.sql(STATEMENTS[0], isolation="fresh").fetchall() == []
        number, now = 0, START
        for _ in range(12):
            for _ in range(chance.randrange(3)):
                rows = []
                for _ in range(chance.randrange(1, 30)):
                    number += 1
                    ts = now + dt.timedelta(seconds=chance.randrange(-100, 100))
                    rows.append({"ts": ts, "k": chance.randrange(6), "v": number})
                wh.append("s", rows, source=chance.choice(sources) if sources else None)
            answers = [wh.sql(statement, isolation="fresh") for statement in STATEMENTS]
            fresh = [answer.fetchall() for answer in answers]
            assert {answer.isolation for answer in answers} == {"fresh"}
            if answers[0].windows[0].end is not None:
                wh.slide("s", to=answers[0].windows[0].end, force=True)
            now = wh.now("s") or now
            after = [wh.sql(statement) for statement in STATEMENTS]
            assert fresh == [answer.fetchall() for answer in after]
            for report, then in zip(answers, after, strict=True):
                mine, theirs = report.windows[0], then.windows[0]
                assert (mine.slide, mine.start, mine.end) == (theirs.slide, theirs.start, theirs.end)
                assert (mine.missing, mine.spoken_for) == (theirs.missing, theirs.spoken_for)
                assert mine.complete or not theirs.complete or mine.missing
        assert wh.check().ok


@pytest.mark.parametrize("maintenance", ["adaptive", "norebuild"])
def test_rows_that_it_brings_into_memory_serve_snapshots_too(path: Path, maintenance: str) -> None:
    chance, rows, now = random.Random(maintenance), list[tuple[dt.datetime, dt.datetime, int]](), START
    slid = 0  # so many rows have been taken in
    schema = pa.schema([*list(SCHEMA)[::2], ("exp", pa.timestamp("us", "UTC"))])
    statement = "SELECT v FROM s ORDER BY v"

    def live(clock: dt.datetime, count: int | None = None) -> list[tuple[int]]:
        return sorted((v,) for ts, exp, v in rows[:count] if ts <= clock < exp)

    with windrow.open(path) as wh:
        wh.create_stream("s", schema, time="ts", key="v", slide="1 minute", expires="exp", max_lifetime="1 hour",
                         index=Index("round-robin", 2, 2, maintenance=maintenance))  # fmt: skip
        for turn in range(9):
            for _ in range(chance.randrange(1, 3)):
                batch = []
                for _ in range(chance.randrange(1, 200)):
                    ts = now + dt.timedelta(seconds=chance.randrange(-120, 59))
                    batch.append((ts, ts + dt.timedelta(seconds=chance.randrange(1, 400)), len(rows) + len(batch)))
                rows += batch
                wh.append("s", [{"ts": ts, "exp": exp, "v": v} for ts, exp, v in batch])
            for _ in range(2):  # out of files, and out of memory
                fresh = wh.sql(statement, isolation="fresh")
                end = fresh.windows[0].end
                assert end is not None
                assert fresh.fetchall() == live(end)
                settle(wh)
                assert turn == 0 or path_of(wh, statement) == "memory"
                assert wh.sql(statement).fetchall() == live(now, slid)
            assert find_cache(wh).rows >= len(live(end))
            if chance.random() < 0.7 or turn == 0:
                wh.slide("s", to=end)
                now, slid = end, len(rows)
                assert wh.sql(statement).fetchall() == live(now)
        assert wh.check().ok


def test_nothing_is_committed_and_readers_go_on_seeing_slides(path: Path) -> None:
    with windrow.open(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="3 minutes")
        wh.append("s", [{"ts": START + MINUTE, "k": 1, "v": 1}])
        assert wh.sql("SELECT v FROM s", isolation="fresh").fetchall() == [(1,)]  # writes the waiting row to a file
        version = wh.status().version
        assert wh.sql("SELECT v FROM s", isolation="fresh").fetchall() == [(1,)]
        assert wh.sql("SELECT v FROM s").fetchall() == []
        assert wh.status().version == version
        assert wh.now("s") is None
        wh.create_view("copies", "SELECT k, v FROM s")
        with pytest.raises(windrow.WindrowError, match="is a view"):
            wh.sql("SELECT v FROM copies", isolation="fresh")
        with pytest.raises(windrow.WindrowError, match="no past"):
            wh.sql("SELECT v FROM s [AS OF SLIDE 3]", isolation="fresh")
        wh.append("s", [{"ts": START + MINUTE, "k": 2, "v": 2}])
        with windrow.open(path, read_only=True) as reader:
            with pytest.raises(windrow.WindrowError, match="wait in the catalog"):
                reader.sql("SELECT v FROM s", isolation="fresh")
            assert wh.sql("SELECT v FROM s ORDER BY v", isolation="fresh").fetchall() == [(1,), (2,)]
            assert reader.sql("SELECT v FROM s ORDER BY v", isolation="fresh").fetchall() == [(1,), (2,)]

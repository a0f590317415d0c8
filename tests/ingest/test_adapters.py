"""Source adapters: rows from anywhere, each source for itself. No Spark is needed for rows that are in Arrow."""

import datetime as dt
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.ingest.adapters import Batch, FolderAdapter, ingest

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64())])
HOUR = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "1 hour"}


def rows(minute: float, count: int = 3) -> pa.Table:
    stamps = [NOW + dt.timedelta(minutes=minute, seconds=i) for i in range(count)]
    return pa.table({"ts": pa.array(stamps, UTC), "k": range(count)}, schema=SCHEMA)


class Listed:
    """Batches that are known beforehand; remembers what was done."""

    def __init__(self, *batches: Batch, fails: int | None = None) -> None:
        self.batches = list(batches)
        self.fails = fails
        self.finished: list[str] = []

    def start(self) -> None:
        pass

    def next_batch(self) -> Batch | None:
        if self.fails == len(self.finished):
            raise ConnectionError("the line went dead")
        return self.batches.pop(0) if self.batches else None

    def done(self, batch: Batch) -> None:
        self.finished.append(batch.id)


def test_a_bad_source_fails_alone(make):
    wh = make()
    wh.create_stream("s", SCHEMA, sources=["good", "bad"], on_source_failure="exclude", **HOUR)
    good = Listed(Batch("1", rows(-9)), Batch("2", rows(-5)))
    bad = Listed(Batch("1", rows(-9)), Batch("2", rows(-5)), fails=1)
    totals = ingest(wh, "s", {"good": good, "bad": bad})
    assert totals["bad"].failure == "ConnectionError: the line went dead"
    assert (totals["good"].failure, totals["good"].rows, totals["bad"].rows) == (None, 6, 3)
    assert good.finished == ["1", "2"]
    wh.slide("s")
    assert wh.now("s") == NOW - dt.timedelta(minutes=5)
    assert wh.stream("s").missing == ("bad",)


def test_a_source_that_starts_anew_skips_what_is_in_without_reading_it(make):
    wh = make()
    wh.create_stream("s", SCHEMA, **HOUR)
    totals = ingest(wh, "s", {"a": Listed(Batch("1", rows(-9)))})
    assert totals["a"].batches == 1
    again = Listed(Batch("1", lambda: pytest.fail("this batch is in")), Batch("2", rows(-8)))
    totals = ingest(wh, "s", {"a": again})
    assert (totals["a"].batches, totals["a"].duplicates) == (1, 1)
    assert again.finished == ["1", "2"]


def test_rejected_rows_are_counted_by_reason(make):
    wh = make()
    wh.create_stream("s", SCHEMA, **HOUR)
    odd = pa.table({"ts": pa.array([None, NOW, NOW + dt.timedelta(hours=2)], UTC), "k": [1, 2, 3]}, schema=SCHEMA)
    totals = ingest(wh, "s", {"a": Listed(Batch("1", odd))})
    assert totals["a"].rejected == {
        "the event time is null": 1,
        "the event time is too far ahead of the clock": 1,
    }


def test_files_of_a_folder_in_order(make, tmp_path):
    wh = make()
    wh.create_stream("s", SCHEMA, **HOUR)
    folder = tmp_path / "in"
    folder.mkdir()
    for minute in (-3, -2, -1):
        pq.write_table(rows(minute), folder / f"{10 + minute:02d}.parquet")
    totals = ingest(wh, "s", {"files": FolderAdapter(folder, remove=True)})
    assert (totals["files"].batches, totals["files"].slides) == (3, 3)
    assert list(folder.iterdir()) == []
    assert ingest(wh, "s", {"files": FolderAdapter(tmp_path / "none")})["files"].failure.endswith("is not a folder")


def test_an_unknown_stream_or_source_is_an_error_of_the_call(make):
    wh = make()
    wh.create_stream("s", SCHEMA, sources=["a"], **HOUR)
    with pytest.raises(windrow.UnknownSourceError):
        ingest(wh, "s", {"b": Listed()})
    with pytest.raises(windrow.UnknownStreamError):
        ingest(wh, "t", {"a": Listed()})


class Test_three_sources:
    """Two fast sources and a control line that is ten times slower and silent for a while (the heartbeat paper's merge).

    fast 1, 2  |=====|=====|=====|=====|=====|=====|   a batch a minute
    control    |-    |     |  (silence)|     |    -|
    """

    MINUTES = 60

    def run(self, wh, every: int | None) -> tuple[int, list[int]]:
        """Feed an hour; gives the most rows that were spooled at once, and how far behind the clock was, in minutes."""
        most, behind = 0, []
        for minute in range(self.MINUTES):
            instant = minute - self.MINUTES
            for source in ("fast 1", "fast 2"):
                wh.append("s", rows(instant, 30), source=source)
            if minute < 10 or minute > 50:
                wh.append("s", rows(instant, 3), source="control")
            if every is not None and minute % every == 0:
                wh.heartbeat("s", source="control", up_to=NOW + dt.timedelta(minutes=instant))
            wh.slide("s")
            state = wh.stream("s")
            most = max(most, state.spooled_rows)
            clock = wh.now("s")
            reached = NOW + dt.timedelta(minutes=instant)
            behind.append(self.MINUTES if clock is None else (reached - clock) // dt.timedelta(minutes=1))
        return most, behind

    @pytest.fixture
    def wh(self, make):
        def create(name, **options):
            wh = make(name)
            wh.create_stream("s", SCHEMA, sources=["fast 1", "fast 2", "control"], **HOUR, **options)
            return wh

        return create

    def test_without_heartbeats_the_clock_waits_for_the_silent_one(self, wh):
        most, behind = self.run(wh("off"), None)
        assert max(behind) == 40 + 1
        assert most >= 40 * 60
        assert behind[-1] == 0

    def test_with_heartbeats_the_spool_is_bounded_by_their_interval(self, wh):
        """The spool grows in proportion to the interval, as buffers do in the paper."""
        peaks = {every: self.run(wh(f"every {every}"), every) for every in (1, 5, 10)}
        assert max(peaks[1][1]) == 0
        assert [max(behind) for _, behind in peaks.values()] == [0, 4, 9]
        most = [rows for rows, _ in peaks.values()]
        assert most[0] == 0
        assert most[2] / most[1] == pytest.approx(9 / 4, rel=0.2)

    def test_max_skew_speaks_for_the_silent_one(self, wh):
        _, behind = self.run(wh("skew", max_skew="3 minutes"), None)
        assert max(behind) == 3


def test_sources_wait_while_the_spool_is_full_but_not_the_one_that_is_waited_for(make):
    wh = make()
    wh.create_stream("s", SCHEMA, sources=["fast", "slow"], **HOUR)
    fast = Listed(*(Batch(str(i), rows(-30 + i, 50)) for i in range(20)))
    release = threading.Event()

    class Slow(Listed):
        def next_batch(self) -> Batch | None:
            release.wait(30)
            return super().next_batch()

    slow = Slow(*(Batch(str(i), rows(-30 + i, 50)) for i in range(20)))
    totals = {}
    running = threading.Thread(
        target=lambda: totals.update(ingest(wh, "s", {"fast": fast, "slow": slow}, max_spool_bytes=1))
    )
    running.start()
    try:
        while not fast.finished:
            time.sleep(0.01)
        assert fast.finished == ["0"]
    finally:
        release.set()
        running.join(60)
    assert (totals["fast"].rows, totals["slow"].rows) == (1000, 1000)
    assert wh.check().ok

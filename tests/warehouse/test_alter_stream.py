"""A stream is altered while it is in use: columns, lifetimes, limits.

lifetime 4 → 8 at now:   ├─ gone ─┤floor├── live ──┤now      what had expired stays gone; windows that reach
                         below the floor are refused until it is as old as they are long
lifetime 8 → 4 at now:   rows of the older half are gone with the commit
"""

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, US, when
from windrow import Index
from windrow.append import Append

SCHEMA = pa.schema([("ts", US), ("k", pa.int64())])


def rows(*slots):
    """One row in the middle of each slot."""
    return pa.table([pa.array([BASE + slot * DELTA - DELTA // 2 for slot in slots], US), list(slots)], schema=SCHEMA)


@pytest.fixture(params=["round-robin 3 2", "wave-insertion 3", "auto", "chronological 2 2"])
def wh(path, request):
    name, *grid = request.param.split()
    with windrow.open(path, clock=lambda: BASE + 100 * DELTA) as opened:
        opened.create_stream(
            "s",
            SCHEMA,
            time="ts",
            key="k",
            slide=f"{DELTA} us",
            lifetime=f"{4 * DELTA} us",
            index="auto" if name == "auto" else Index(name, *map(int, grid)),
        )
        yield opened


def slide(wh, *slots):
    for slot in slots:
        wh.append("s", rows(slot))
        wh.slide("s", to=when(BASE + slot * DELTA))


def keys(wh, window=None):
    actual = sorted(wh.scan("s", window=window).read_all().column("k").to_pylist())
    if window is None:
        assert actual == sorted(k for (k,) in wh.sql("SELECT k FROM s").fetchall())
        assert actual == sorted(k for k in range(100) if wh.probe("s", k).num_rows)
        assert len(actual) == wh.stream("s").live_rows
    assert wh.check().ok, wh.check().problems
    return actual


def test_a_longer_lifetime_keeps_what_is_live_and_brings_nothing_back(wh):
    slide(wh, *range(1, 8))
    assert keys(wh) == [4, 5, 6, 7]
    wh.alter_stream("s", lifetime=f"{8 * DELTA} us")
    assert keys(wh) == [4, 5, 6, 7]
    slide(wh, 8, 9, 10)
    assert keys(wh) == [4, 5, 6, 7, 8, 9, 10]
    slide(wh, 11, 12)
    assert keys(wh) == [5, 6, 7, 8, 9, 10, 11, 12]


def test_a_window_that_reaches_below_what_was_kept_is_refused_until_it_no_longer_does(wh):
    slide(wh, *range(1, 8))
    wh.alter_stream("s", lifetime=f"{8 * DELTA} us")
    long = f"{5 * DELTA} us"
    for ask in (lambda: wh.scan("s", window=long), lambda: wh.sql(f"SELECT * FROM s [WINDOW {5 * DELTA} us]")):
        with pytest.raises(windrow.WindowError, match="keeps rows only from"):
            ask()
    slide(wh, 8)
    assert keys(wh, long) == [4, 5, 6, 7, 8]


def test_a_shorter_lifetime_lets_rows_go_with_the_commit_and_counts_them(wh):
    slide(wh, *range(1, 8))
    wh.append("s", rows(8))
    before = wh.stream("s").expired
    wh.alter_stream("s", lifetime=f"{2 * DELTA} us")
    assert keys(wh) == [6, 7]
    assert wh.stream("s").expired == before + 2
    assert wh.slide("s", to=when(BASE + 8 * DELTA)).expired == 1
    assert keys(wh) == [7, 8]


def test_a_late_row_from_below_the_floor_is_dead_on_arrival(wh):
    slide(wh, *range(1, 8))
    wh.alter_stream("s", lifetime=f"{8 * DELTA} us")
    report = wh.append("s", rows(2, 5))
    assert (report.accepted, report.rejected) == (1, {"the row had already expired on arrival": 1})


def test_a_stream_learns_to_forget_and_to_keep_for_ever(wh):
    wh.alter_stream("s", lifetime="forever")
    slide(wh, *range(1, 8))
    wh.append("s", rows(9, 8))
    assert keys(wh) == [1, 2, 3, 4, 5, 6, 7]
    wh.alter_stream("s", lifetime=f"{3 * DELTA} us")
    assert keys(wh) == [5, 6, 7]
    wh.slide("s", to=when(BASE + 8 * DELTA))
    assert keys(wh) == [6, 7, 8]
    assert wh.relayout("s", move="now").done
    assert keys(wh) == [6, 7, 8]
    wh.alter_stream("s", lifetime="forever")
    slide(wh, 20)
    assert keys(wh) == [6, 7, 8, 9, 20]


def test_a_snapshot_sees_the_stream_as_it_was(wh):
    slide(wh, *range(1, 5))
    with wh.snapshot() as snapshot:
        wh.alter_stream("s", lifetime=f"{DELTA} us", add_column=("extra", pa.string()))
        assert keys(wh) == [4]
        actual = snapshot.scan("s").read_all()
        assert sorted(actual.column("k").to_pylist()) == [1, 2, 3, 4]
        assert actual.column_names == ["ts", "k"]
        assert snapshot.probe("s", 1).num_rows == 1


def test_an_append_that_began_before_the_alteration_lives_by_the_new_lifetime(wh):
    slide(wh, 1, 2)
    late = Append(wh._store, "s", None, "late")
    wh.alter_stream("s", lifetime=f"{8 * DELTA} us")
    late.run(rows(3))
    assert wh.append("s", rows(3), batch_id="late").duplicate
    wh.slide("s", to=when(BASE + 9 * DELTA))
    assert keys(wh) == [2, 3]


def test_an_added_column_is_null_in_what_is_stored_spooled_and_rejected(wh):
    slide(wh, 1)
    wh.append("s", rows(2))
    wh.append("s", pa.table([pa.array([None], US), [77]], schema=SCHEMA))
    wh.alter_stream("s", add_column=("note", pa.string()))
    report = pa.table([*rows(3).columns, ["hello"]], names=["ts", "k", "note"])
    wh.append("s", report)
    wh.append("s", rows(4))
    wh.slide("s", to=when(BASE + 4 * DELTA))
    expected = {1: None, 2: None, 3: "hello", 4: None}
    actual = wh.scan("s").read_all()
    assert dict(zip(actual.column("k").to_pylist(), actual.column("note").to_pylist(), strict=True)) == expected
    for question in ("SELECT k, note FROM s", "SELECT k, note FROM s [ROWS 10]", "SELECT k, note FROM s ORDER BY k"):
        assert dict(wh.sql(question).fetchall()) == expected
    assert wh.sql("SELECT k FROM s WHERE note = 'hello'").fetchall() == [(3,)]
    assert wh.probe("s", 2).column("note").to_pylist() == [None]
    assert wh.rejected("s").column("note").to_pylist() == [None]
    assert wh.replay("s").rows == 1
    assert wh.check().ok
    wh.relayout("s", key="note", move="now")
    assert wh.probe("s", "hello").column("k").to_pylist() == [3]
    assert sorted(wh.probe("s", keys=[None]).column("k").to_pylist()) == [1, 2, 4]


def test_limits_of_the_clock_change_at_once(wh):
    slide(wh, 1)
    wh.append("s", rows(3))
    wh.alter_stream("s", slack=f"{2 * DELTA} us")
    assert not wh.slide("s").moved
    wh.alter_stream("s", slack="0 seconds", max_ahead="1 second")
    assert wh.slide("s").slide == wh.slide("s").slide
    assert wh.append("s", rows(101)).rejected == {"the event time is too far ahead of the clock": 1}
    with pytest.raises(windrow.ClockError, match="max_ahead"):
        wh.slide("s", to=when(BASE + 102 * DELTA))


def test_what_makes_no_sense_is_refused_and_changes_nothing(wh):
    before = wh.stream("s").definition
    for options, message in (
        ({"lifetime": "1 second"}, "shorter than the slide"),
        ({"lifetime": "soon"}, "is not a duration"),
        ({"max_lifetime": "1 hour"}, "alter lifetime, not max_lifetime"),
        ({"add_column": ("K", pa.int64())}, "occurs twice"),
        ({"add_column": ("_seq", pa.int64())}, "reserved"),
        ({"add_column": pa.field("x", pa.int64(), nullable=False)}, "cannot be added as not null"),
        ({"add_column": "x"}, "takes a pair"),
    ):
        with pytest.raises(windrow.DefinitionError, match=message):
            wh.alter_stream("s", **options)
    assert wh.stream("s").definition == before


def test_rows_with_their_own_expiry_keep_it_and_rows_to_come_obey_the_new_limit(path):
    schema = pa.schema([("ts", US), ("exp", US), ("k", pa.int64())])

    def row(k, life):
        ts = BASE + DELTA // 2
        return pa.table([pa.array([ts], US), pa.array([ts + life * DELTA], US), [k]], schema=schema)

    with windrow.open(path, clock=lambda: BASE + 100 * DELTA) as wh:
        wh.create_stream(
            "s", schema, time="ts", expires="exp", max_lifetime=f"{8 * DELTA} us", slide=f"{DELTA} us", key="k"
        )
        wh.append("s", row(1, 8))
        wh.alter_stream("s", max_lifetime=f"{4 * DELTA} us")
        assert wh.append("s", row(2, 8)).accepted == 0
        assert wh.append("s", row(3, 4)).accepted == 1
        wh.slide("s", to=when(BASE + 6 * DELTA))
        assert wh.scan("s").read_all().column("k").to_pylist() == [1]
        assert wh.check().ok
        with pytest.raises(windrow.DefinitionError, match="alter max_lifetime"):
            wh.alter_stream("s", lifetime="1 hour")

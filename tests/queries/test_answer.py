"""Answers: every way to read one, what it is of, and that nothing is held when it is over, however it ends."""

import datetime as dt
import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

import packet_warehouse
import plain_duckdb
import windrow
from packet_warehouse import LIVE_MINUTES, NOON, ROWS_PER_MINUTE
from windrow import ClosedError, QueryError
from windrow.queries.engine import interrupt, python_values

HEAVY = "SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(1000000) b(i)"
"""Hours of work that DuckDB cannot avoid: a test that does not cancel it does not end."""


@pytest.fixture(scope="module")
def wh() -> Iterator[windrow.Warehouse]:
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left_pinned(wh: windrow.Warehouse) -> Iterator[None]:
    yield
    gc.collect()
    assert wh.status().readers == 0


class Test_reading:
    SQL = "SELECT src, count(*) AS n FROM packets [WINDOW 2 MINUTES] WHERE src < 3 GROUP BY src ORDER BY src"
    ROWS = ((0, 20), (1, 20), (2, 20))

    def test_all_at_once(self, wh):
        assert wh.sql(self.SQL).fetchall() == list(self.ROWS)

    def test_row_by_row(self, wh):
        answer = wh.sql(self.SQL)
        assert [answer.fetchone(), answer.fetchone()] == list(self.ROWS[:2])
        assert answer.fetchall() == list(self.ROWS[2:])
        assert answer.fetchone() is None

    def test_by_iteration(self, wh):
        assert tuple(wh.sql(self.SQL)) == self.ROWS

    def test_as_arrow(self, wh):
        table = wh.sql(self.SQL).arrow()
        assert table.to_pydict() == {"src": [0, 1, 2], "n": [20, 20, 20]}
        assert table.schema.names == wh.sql(self.SQL).columns

    def test_as_frames(self, wh):
        assert wh.sql(self.SQL).df().to_dict("list") == {"src": [0, 1, 2], "n": [20, 20, 20]}
        assert wh.sql(self.SQL).pl().rows() == list(self.ROWS)

    def test_through_the_capsule(self, wh):
        """What pyarrow, polars, pandas and DuckDB take from each other without a copy."""
        assert pa.table(wh.sql(self.SQL)).column("n").to_pylist() == [20, 20, 20]

    def test_an_empty_answer_has_its_columns(self, wh):
        table = wh.sql("SELECT src, note FROM packets WHERE src = -1").arrow()
        assert (table.num_rows, table.schema.names) == (0, ["src", "note"])
        assert wh.sql("SELECT src FROM quiet").fetchall() == []

    def test_only_once(self, wh):
        answer = wh.sql(self.SQL)
        answer.fetchall()
        with pytest.raises(ClosedError, match="ask again"):
            answer.arrow()


class Test_values:
    def test_times_need_no_other_package(self, wh):
        (row,) = wh.sql("SELECT max(ts), max(ts)::TIMESTAMP, max(ts)::TIMESTAMP_NS FROM packets").fetchall()
        latest = NOON + dt.timedelta(minutes=19, seconds=59, milliseconds=100)
        assert row == (latest, latest.replace(tzinfo=None), latest.replace(tzinfo=None))

    def test_sums_are_integers(self, wh):
        """DuckDB sums with 128 bits, for which Arrow has no integer."""
        assert wh.sql("SELECT sum(len) FROM packets [WINDOW 1 MINUTE]").fetchall() == [(sum(range(ROWS_PER_MINUTE)),)]
        assert wh.sql("SELECT sum(len) AS s FROM packets [WINDOW 1 MINUTE]").df()["s"].dtype == "int64"
        huge = wh.sql("SELECT sum(9223372036854775807) AS s FROM packets [WINDOW 1 MINUTE]")
        assert huge.fetchall() == [(ROWS_PER_MINUTE * (2**63 - 1),)]

    def test_nanoseconds_are_cut_to_what_python_has(self, wh):
        row = wh.sql("SELECT TIMESTAMP_NS '2025-01-01 00:00:00.123456789', TIME_NS '10:00:00.123456789'").fetchone()
        assert row == (dt.datetime(2025, 1, 1, 0, 0, 0, 123456), dt.time(10, 0, 0, 123456))

    def test_intervals_decimals_and_nested_values(self, wh):
        row = wh.sql("SELECT INTERVAL '1 day 2 seconds', 1.50::DECIMAL(9, 2), [1, NULL], {'a': 'x'}, NULL").fetchone()
        assert row == (dt.timedelta(days=1, seconds=2), Decimal("1.50"), [1, None], {"a": "x"}, None)

    def test_times_that_python_has_not(self, wh):
        """As DuckDB gives them: the last or first date for what is endless, text for others."""
        first, last = dt.date.min, dt.date.max
        start, end = dt.datetime.min, dt.datetime.max
        cases = {
            "DATE 'infinity', DATE '-infinity', DATE '2025-01-01', NULL::DATE": (
                last,
                first,
                dt.date(2025, 1, 1),
                None,
            ),
            "TIMESTAMP 'infinity', TIMESTAMP '-infinity'": (end, start),
            "TIMESTAMPTZ 'infinity'": (end.replace(tzinfo=dt.UTC),),
            "DATE '0044-03-15 (BC)', DATE '12345-01-01'": ("-0043-03-15", "+12345-01-01"),
            "TIMESTAMP '12345-01-01 10:00:00'": ("+12345-01-01T10:00:00",),
            "[DATE 'infinity', NULL], {'a': TIMESTAMP 'infinity', 'b': 1}": ([last, None], {"a": end, "b": 1}),
            "MAP {'a': DATE '-infinity'}, array_value(DATE 'infinity')": ({"a": first}, [last]),
        }
        for listed, values in cases.items():
            assert wh.sql(f"SELECT {listed}").fetchall() == [values], listed
            rows = wh.sql(f"SELECT UNNEST([1, 2]) AS n, {listed}").fetchall()
            assert rows == [(1, *values), (2, *values)]

    @pytest.mark.parametrize(
        "listed",
        [
            "TIME '24:00:00', TIME '23:59:59.999999', NULL::TIME",
            "[TIME '24:00:00', TIME '10:00:00.5', NULL], {'t': TIME '24:00:00'}, MAP {'t': TIME '10:00:00'}",
            "TIME_NS '24:00:00', [TIME_NS '10:00:00.123456789']",
            "INTERVAL '-1 month 3 days 90 seconds', INTERVAL 999999999 DAYS, INTERVAL '-1 microsecond', NULL::INTERVAL",
            "[INTERVAL 1 MONTH, NULL], {'i': INTERVAL 36 HOURS}, MAP {'i': INTERVAL 2 DAYS}",
            "MAP {'a': 1, 'b': NULL}, MAP(), MAP {1: MAP {2: [MAP {3: 4}]}}, NULL::MAP(VARCHAR, INTEGER)",
            "MAP {[1, 2]: 3}, MAP {{'k': 1}: [INTERVAL 1 DAY]}, map_from_entries([]::STRUCT(k INTEGER[], v INTEGER)[])",
            "MAP {DATE 'infinity': TIMESTAMP 'infinity', DATE '2025-01-01': NULL}, [MAP {1.50: 'x'}]",
            "histogram(i) FROM range(5) t(i)",
            "[TIMESTAMP_NS '2025-01-01 00:00:00.123456789'], {'t': TIMESTAMP_NS '2025-01-01 00:00:00.123456789'}",
            "TIMESTAMP_NS 'infinity', [TIMESTAMP_NS '-infinity', NULL], TIMESTAMP_NS '2262-01-01 00:00:00.9999999'",
            "-123456789012345678901234567890123456789012345678901234567890::BIGNUM, [5::BIGNUM, NULL]",
            "union_value(t := TIME '24:00:00'), union_value(m := MAP {1: 2})",
        ],
    )
    def test_forms_of_their_own_are_those_of_duckdb(self, wh, listed):
        with plain_duckdb.connect() as plain:
            expected = plain.execute(f"SELECT {listed}").fetchall()
        given = wh.sql(f"SELECT {listed}").fetchall()
        assert given == expected
        assert [type(value) for value in given[0]] == [type(value) for value in expected[0]]

    @pytest.mark.parametrize(
        "value",
        [
            "INTERVAL (i) SECONDS - INTERVAL (i // 7) MONTHS",
            "TIME '00:00:00' + INTERVAL (i) SECONDS",
            "make_timestamp_ns(i * 1_000_000_007)",
            "(TIMESTAMP '2000-01-01' + INTERVAL (i) DAYS)::TIMESTAMP_S",
            "repeat('\\x00a', (i % 5)::INTEGER)::BLOB",
            "range(i % 4)",
            "[{'n': i, 's': [i::VARCHAR, NULL]}]",
            "MAP {i: CASE WHEN i % 2 = 0 THEN i END, -i: 0}",
            "(i / 8)::DECIMAL(12, 3)",
            "NULL",
        ],
    )
    def test_many_values_with_nulls_are_those_of_duckdb(self, wh, value):
        """Columns are converted at once, also those that are cut out of longer ones, and nested ones."""
        statement = f"SELECT i, CASE WHEN i % 3 > 0 THEN {value} END AS v FROM range(6000) r(i) WHERE i > 17 ORDER BY i"
        with plain_duckdb.connect() as plain:
            assert wh.sql(statement).fetchall() == plain.execute(statement).fetchall()

    def test_intervals_in_a_frame_can_be_computed_with(self, wh):
        frame = wh.sql("SELECT max(ts) - min(ts) AS span, INTERVAL 1 MONTH AS m, NULL::INTERVAL AS n FROM packets").df()
        assert [str(kind) for kind in frame.dtypes] == ["timedelta64[us]"] * 3
        assert frame["span"][0] == dt.timedelta(minutes=LIVE_MINUTES, seconds=-1)
        assert frame["m"][0] == dt.timedelta(days=30)
        assert frame["n"].isna().all()

    def test_an_interval_longer_than_pythons_is_in_words(self, wh):
        """DuckDB's own client fails with an OverflowError."""
        row = wh.sql("SELECT INTERVAL 2000000000 DAYS, INTERVAL '-20000000 years', [INTERVAL 3000000 YEARS]").fetchone()
        assert row == ("2000000000 days", "-240000000 months", ["36000000 months"])
        rows = wh.sql("SELECT INTERVAL 2000000000 DAYS AS i UNION ALL SELECT INTERVAL 1 DAY ORDER BY i").fetchall()
        assert rows == [(dt.timedelta(days=1),), ("2000000000 days",)]

    def test_a_map_with_a_key_twice_keeps_the_last(self):
        kind = pa.map_(pa.string(), pa.int64())
        twice = pa.MapArray.from_arrays([0, 2, 3], ["a", "a", "b"], pa.array([1, 2, 3], pa.int64()))
        assert python_values.to_python_values(twice, pa.field("m", kind)) == [{"a": 2}, {"b": 3}]

    @pytest.mark.parametrize("isolation", ["snapshot", "latest"])
    @pytest.mark.parametrize(
        ("value", "kind"),
        [
            ("TIMETZ '12:00:00+05:30'", "TIME WITH TIME ZONE"),
            ("[TIMETZ '12:00:00+05:30']", r"TIME WITH TIME ZONE\[\]"),
            ("{'h': md5_number('b')}", r"STRUCT\(h UHUGEINT\)"),
            ("[array_value('101'::BIT)]", r"BIT\[1\]\[\]"),
        ],
    )
    def test_what_would_arrive_in_part_is_refused(self, wh, value, kind, isolation):
        """Arrow has no offsets of times, and DuckDB gives it nested numbers of 128 bits as if they were signed."""
        with pytest.raises(QueryError, match=f"column 'x' is of type {kind}, .*cast it"):
            wh.sql(f"SELECT max({value}) AS x FROM packets", isolation=isolation)
        (row,) = wh.sql(f"SELECT max({value})::VARCHAR AS x FROM packets", isolation=isolation).fetchall()
        with plain_duckdb.connect() as plain:
            assert plain.execute(f"SELECT ({value})::VARCHAR").fetchall() == [row]

    def test_a_pivot_is_looked_at_too(self, wh):
        text = "PIVOT (SELECT src % 2 AS p, [md5_number(note)] AS x FROM packets) ON p USING max(x)"
        with pytest.raises(QueryError, match=r"column '.*' is of type UHUGEINT\[\]"):
            wh.sql(text)

    def test_a_field_called_like_such_a_type_is_none(self, wh):
        row = wh.sql("SELECT {'UHUGEINT': 1, 'BIT': [2]}, 'BIT'::ENUM('BIT', 'UHUGEINT')").fetchone()
        assert row == ({"UHUGEINT": 1, "BIT": [2]}, "BIT")

    def test_a_frame_says_that_it_cannot_hold_them(self, wh):
        with pytest.raises(QueryError, match=r"pandas cannot hold this answer.*arrow\(\)"):
            wh.sql("SELECT DATE 'infinity' AS d").df()

    @pytest.mark.parametrize("isolation", ["snapshot", "latest"])
    def test_unsigned_integers_of_128_bits(self, wh, isolation):
        """DuckDB gives them to Arrow as if they were signed."""
        text = "SELECT md5_number(note) AS m, (max(src) + 5)::UHUGEINT AS n FROM packets GROUP BY note ORDER BY note"
        notes = sorted(
            {
                f"m{minute}"
                for minute in range(packet_warehouse.MINUTES - LIVE_MINUTES + 1, packet_warehouse.MINUTES + 1)
            }
        )
        hashed = [int.from_bytes(hashlib.md5(note.encode()).digest(), "little") for note in notes]
        assert any(number >= 1 << 127 for number in hashed)
        assert wh.sql(text, isolation=isolation).fetchall() == [(number, 64) for number in hashed]
        table = wh.sql(text, isolation=isolation).arrow()
        table.validate(full=True)
        assert [int(value) for value in table["m"].to_pylist()] == hashed
        assert wh.sql(text, isolation=isolation).df()["n"].tolist() == [64] * LIVE_MINUTES
        with pytest.raises(QueryError, match=r"polars cannot hold column 'm' .*cast it, or read it with arrow\(\)"):
            wh.sql(text, isolation=isolation).pl()
        assert wh.sql("SELECT 12::UHUGEINT AS n").pl()["n"].to_list() == [12]
        missing = wh.sql("SELECT UNNEST([NULL, md5_number('b'), 0::UHUGEINT])", isolation=isolation).fetchall()
        assert missing == [(None,), (int.from_bytes(hashlib.md5(b"b").digest(), "little"),), (0,)]

    def test_results_and_views_refuse_them(self, wh):
        with pytest.raises(windrow.DefinitionError, match=r"column 'm' has the type.*cast it"):
            wh.add_query("q", "SELECT md5_number(note) AS m FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        with pytest.raises(windrow.ViewError, match="column 'm' is of type UHUGEINT; cast it"):
            wh.create_view("v", "SELECT md5_number(note) AS m FROM packets")

    def test_bit_strings_are_text(self, wh):
        assert wh.sql("SELECT '101'::BIT, NULL::BIT").fetchall() == [("101", None)]


class Test_what_it_is_of:
    def test_each_window_with_its_slide_and_bounds(self, wh):
        answer = wh.sql("SELECT count(*) FROM packets [WINDOW 2 MINUTES] a, packets [ROWS 3] b, quiet c, hosts")
        first, second, third = answer.windows
        now = NOON + dt.timedelta(minutes=20)
        assert (first.stream, first.clause, first.start, first.end) == (
            "packets", "[WINDOW 2 MINUTES]", now - dt.timedelta(minutes=2), now,
        )  # fmt: skip
        assert (first.complete, first.missing, first.sources) == (True, (), ("default",))
        assert (second.clause, second.start, second.end, second.slide) == ("[ROWS 3]", None, now, first.slide)
        assert (third.stream, third.slide, third.end) == ("quiet", None, None)
        answer.close()

    def test_a_stream_named_twice_is_one_window(self, wh):
        answer = wh.sql("SELECT count(*) FROM packets a JOIN packets b ON a.src = b.src AND a.ts = b.ts")
        assert [window.stream for window in answer.windows] == ["packets"]
        assert answer.fetchall()[0][0] > LIVE_MINUTES * ROWS_PER_MINUTE

    def test_staleness_grows_until_the_answer_is_finished(self):
        with packet_warehouse.open_packet_warehouse() as wh:
            answer = wh.sql("SELECT * FROM packets")
            assert answer.staleness == dt.timedelta()
            packet_warehouse.append_and_slide(wh, 21)
            assert answer.staleness == dt.timedelta(minutes=1)
            assert answer.arrow().num_rows == LIVE_MINUTES * ROWS_PER_MINUTE
            packet_warehouse.append_and_slide(wh, 22)
            assert answer.staleness == dt.timedelta(minutes=1)

    def test_a_dropped_stream_can_still_be_read(self):
        with packet_warehouse.open_packet_warehouse() as wh:
            answer = wh.sql("SELECT * FROM packets")
            wh.drop_stream("packets")
            wh.gc()
            assert answer.arrow().num_rows == LIVE_MINUTES * ROWS_PER_MINUTE
            assert answer.staleness == dt.timedelta()


class Test_letting_go:
    SQL = "SELECT a.ts, b.note FROM packets a, range(100) r, packets b WHERE a.src = b.src"
    """More rows than fit in a batch."""

    def pinned(self, wh):
        return wh.status().readers

    def test_when_used_up(self, wh):
        answer = wh.sql("SELECT src FROM packets")
        assert self.pinned(wh) == 1
        answer.fetchall()
        assert self.pinned(wh) == 0

    def test_when_closed_in_the_middle(self, wh):
        answer = wh.sql(self.SQL)
        answer.fetchone()
        assert self.pinned(wh) == 1
        answer.close()
        assert self.pinned(wh) == 0
        with pytest.raises(ClosedError):
            answer.fetchone()
        answer.close()

    def test_a_batch_behind_a_closed_answer_is_refused(self, wh):
        answer = wh.sql(self.SQL)
        batches = answer.batches()
        next(batches)
        answer.close()
        with pytest.raises(ClosedError):
            next(batches)

    def test_when_forgotten(self, wh):
        answer = wh.sql(self.SQL)
        answer.fetchone()
        del answer
        gc.collect()
        assert self.pinned(wh) == 0

    def test_at_the_end_of_a_block(self, wh):
        with wh.sql(self.SQL) as answer:
            answer.fetchone()
        assert self.pinned(wh) == 0

    def test_when_a_reader_is_thrown_away(self, wh):
        reader = pa.RecordBatchReader.from_stream(wh.sql(self.SQL))
        reader.read_next_batch()
        assert self.pinned(wh) == 1
        del reader
        gc.collect()
        assert self.pinned(wh) == 0

    def test_when_the_statement_is_wrong(self, wh):
        for sql in ("SELECT nope FROM packets", "SELECT * FROM nope", "SELECT FROM", "SELECT error(note) FROM packets"):
            with pytest.raises(QueryError):
                wh.sql(sql).fetchall()
            assert self.pinned(wh) == 0

    def test_when_parameters_are_wrong(self, wh):
        with pytest.raises(QueryError):
            wh.sql("SELECT * FROM packets WHERE src = ?", [1, 2]).fetchall()
        with pytest.raises(QueryError):
            wh.sql("SELECT * FROM packets WHERE src = ?").fetchall()


class Test_streaming:
    def test_a_large_answer_is_never_whole_in_memory(self, wh):
        answer = wh.sql("SELECT i, 'some text that takes its space ' || i AS t FROM range(200000000) r(i)")
        first = next(answer.batches())
        assert first.num_rows < 1_000_000
        answer.close()


def test_a_program_may_end_with_unread_answers(tmp_path):
    """DuckDB prints a page about leaks if anything of it is still held when the interpreter ends."""
    program = """
import sys, windrow
wh = windrow.open(sys.argv[1])
unread = wh.sql("SELECT 1")
half_read = wh.sql("SELECT range FROM range(10000000)").batches()
next(half_read)
row_by_row = iter(wh.sql("SELECT range FROM range(10000000)"))
next(row_by_row)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "w"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Test_cancelling:
    def test_a_timeout_ends_it(self, wh):
        with pytest.raises(QueryError, match=r"took longer than 0\.2 s"):
            wh.sql(HEAVY, timeout=0.2).fetchall()

    def test_a_timeout_counts_while_rows_are_read(self, wh):
        answer = wh.sql("SELECT * FROM range(1000000000)", timeout=0.3)
        with pytest.raises(QueryError, match="took longer"):
            for _ in answer.batches():
                pass

    def test_a_timer_does_not_outlive_its_answer(self, wh):
        wh.sql("SELECT 1", timeout=600).fetchall()
        wh.sql("SELECT * FROM packets", timeout=600).close()
        timers = [thread for thread in threading.enumerate() if isinstance(thread, interrupt._Timer)]
        assert all(timer.finished.is_set() for timer in timers)

    @pytest.mark.parametrize("turn", range(2))
    def test_control_c_ends_it(self, wh, turn):
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wh.sql(HEAVY).fetchall()
        gc.collect()
        assert wh.status().readers == 0

    def test_control_c_reaches_a_programs_own_handler_at_once(self, wh):
        """PySpark and notebooks put handlers of their own in place; one that raises ends the query."""

        class Stopped(Exception):
            pass

        def stop(*_):
            raise Stopped

        before = signal.signal(signal.SIGINT, stop)
        try:
            threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
            with pytest.raises(Stopped):
                wh.sql(HEAVY).fetchall()
        finally:
            signal.signal(signal.SIGINT, before)
        gc.collect()
        assert wh.status().readers == 0

    def test_a_handler_that_does_not_raise_is_heard_and_the_query_goes_on(self, wh):
        events = []
        before = signal.signal(signal.SIGINT, lambda *_: events.append(time.monotonic()))
        try:
            threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()
            rows = wh.sql("SELECT count(*) FROM range(300000) a(i), range(800) b(j) WHERE (i + j) % 7 = 0").fetchall()
            finished = time.monotonic()
        finally:
            signal.signal(signal.SIGINT, before)
        assert len(rows) == 1
        assert len(events) == 1
        assert events[0] < finished

    def test_a_query_can_run_on_any_thread(self, wh):
        actual = []
        thread = threading.Thread(target=lambda: actual.extend(wh.sql("SELECT count(*) FROM packets").fetchall()))
        thread.start()
        thread.join()
        assert actual == [(LIVE_MINUTES * ROWS_PER_MINUTE,)]


class Test_memory_limit:
    SQL = "SELECT list(i || 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') FROM range(5000000) r(i)"

    @pytest.mark.parametrize("kind", ["once", "periodically"])
    def test_what_needs_more_is_refused_in_one_sentence_that_names_spark(self, wh, kind):
        with pytest.raises(QueryError, match=r"needs more memory than it may use .*or let Spark run it") as caught:
            if kind == "once":
                wh.sql(self.SQL, memory_limit="60MB").fetchall()
            else:
                wh.add_query("q", f"{self.SQL}, packets", slide="1 minute", memory_limit="60MB")
        assert "SET" not in str(caught.value)  # settings are locked
        assert "\n" not in str(caught.value)

    def test_without_room_to_spill_the_sentence_is_the_same(self, tmp_path):
        with (
            windrow.open(tmp_path / "w", spill="0MB") as wh,
            pytest.raises(QueryError, match="engine='spark'") as raised,
        ):
            wh.sql("SELECT i, hash(i) h FROM range(3000000) r(i) ORDER BY h", memory_limit="60MB").fetchall()
        assert "\n" not in str(raised.value)

    def test_other_queries_are_not_limited(self, wh):
        limited = wh.sql("SELECT count(*) FROM packets", memory_limit="60MB")
        assert limited.fetchall() == wh.sql("SELECT count(*) FROM packets").fetchall()

    def test_a_limit_must_be_one(self, wh):
        with pytest.raises(QueryError, match="not a memory limit"):
            wh.sql("SELECT 1", memory_limit="much")


class Test_explaining_in_sql:
    def test_explain_gives_lines_and_runs_nothing(self, wh):
        lines = [row[0] for row in wh.sql(f"EXPLAIN {HEAVY} , packets").fetchall()]
        assert lines[0].startswith("packets all live rows at slide ")
        assert len(lines) > 3

    def test_explain_analyze_runs(self, wh):
        text = "\n".join(row[0] for row in wh.sql("EXPLAIN ANALYZE SELECT count(*) FROM packets").fetchall())
        assert "Total Time" in text

    def test_an_error_is_shown_at_its_place(self, wh):
        for ask in (wh.explain, lambda sql: wh.sql(f"explain {sql}"), wh.sql):
            with pytest.raises(QueryError) as caught:
                ask("select 1, nowhere from packets")
            shown, caret = str(caught.value).splitlines()[-2:]
            assert shown[caret.index("^") :].startswith("nowhere")


def test_a_timer_that_is_cancelled_lets_go_of_its_cursor_at_once():
    class Cursor:
        pass

    cursor = Cursor()
    held, timer = weakref.ref(cursor), interrupt.interrupt_after(600, cursor)
    timer.cancel()
    del cursor
    assert held() is None

"""The planner reads only what can matter, says what it reads, and never leaves out a row that counts.

minute      5    6    7   …   19   20
segments   ─┤────┤────┤── … ──┤────┤      four of a minute, by expiry column; 16 minutes live
                                   now
"""

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest

import packet_warehouse
import row_caches
import windrow
from packet_warehouse import LIVE_MINUTES, MINUTES, NOON, ROWS_PER_MINUTE
from windrow.queries.answer import Explanation
from windrow.queries.planner import planner
from windrow.queries.planner.planner import RelationPlan

LAST = NOON + dt.timedelta(minutes=MINUTES)


@pytest.fixture(scope="module", params=["from files", "from memory"])
def wh(request: pytest.FixtureRequest) -> Iterator[windrow.Warehouse]:
    """Once with all rows in memory, once with none; rows by key are read by the directory all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "MEMORY_ROWS", -1)
        patch.setattr(planner, "MEMORY_SHARE", 2)
        yield from open_packets(request.param)


def open_packets(source: str) -> Iterator[windrow.Warehouse]:
    with packet_warehouse.open_packet_warehouse(cache_bytes=0 if source == "from files" else None) as made:
        made.sql("SELECT * FROM packets").arrow()
        row_caches.settle(made)
        assert row_caches.path_of(made, "SELECT * FROM packets") == ("scan" if "files" in source else "memory")
        yield made


def read(wh: windrow.Warehouse, sql: str, params: object = None) -> RelationPlan:
    """What the only window of a statement reads."""
    (pruned,) = wh.explain(sql, params).relations
    return pruned


def rows(wh: windrow.Warehouse, sql: str, params: object = None) -> int:
    """How many rows a query gives."""
    return wh.sql(sql, params).arrow().num_rows


class Test_windows:
    def test_a_sixteenth_of_the_window_is_a_sixteenth_of_the_bytes(self, wh):
        pruned = read(wh, "SELECT sum(len) FROM packets [WINDOW 1 MINUTE]")
        assert pruned.rows == (ROWS_PER_MINUTE, LIVE_MINUTES * ROWS_PER_MINUTE)
        assert pruned.bytes[0] / pruned.bytes[1] == pytest.approx(1 / LIVE_MINUTES, rel=0.1)
        assert pruned.segments[0] < pruned.segments[1]

    def test_without_a_clause_all_live_rows_are_read(self, wh):
        assert read(wh, "SELECT * FROM packets").rows == (
            LIVE_MINUTES * ROWS_PER_MINUTE,
            LIVE_MINUTES * ROWS_PER_MINUTE,
        )

    def test_the_newest_rows_are_found_without_reading_all(self, wh):
        assert rows(wh, "SELECT * FROM packets [ROWS 5]") == 5

    def test_a_stream_without_a_clock_is_empty(self, wh):
        assert read(wh, "SELECT * FROM quiet").path == "empty"
        assert rows(wh, "SELECT * FROM quiet WHERE src = 1") == 0

    def test_a_window_longer_than_the_stream_keeps_is_refused(self, wh):
        with pytest.raises(windrow.WindowError, match="keeps rows for 16 minutes"):
            wh.sql("SELECT * FROM packets [WINDOW 17 MINUTES]")


class Test_predicates_on_the_time:
    @pytest.mark.parametrize(
        ("where", "minutes"),
        [
            ("ts > TIMESTAMPTZ '2025-01-01 12:18:00+00'", 2),
            ("ts >= '2025-01-01 12:19:00'", 1),
            ("ts > TIMESTAMP '2025-01-01 12:10:00' AND ts <= TIMESTAMP '2025-01-01 12:12:00'", 2),
            ("ts BETWEEN TIMESTAMPTZ '2025-01-01 12:10:00.05+00' AND TIMESTAMPTZ '2025-01-01 12:11:00+00'", 1),
            ("ts < TIMESTAMPTZ '2025-01-01 12:05:00+00'", 1),
            ("ts > TIMESTAMPTZ '2025-01-01 12:19:00+00' OR ts > TIMESTAMPTZ '2025-01-01 12:18:00+00'", 2),
            ("ts > TIMESTAMPTZ '2025-01-01 12:18:00+00' AND (len = 3 OR note = 'm20')", 2),
            ("ts > TIMESTAMPTZ '2025-01-01 13:00:00+00'", 0),
        ],
    )
    def test_leave_out_whole_minutes(self, wh, where, minutes):
        assert read(wh, f"SELECT sum(len) FROM packets WHERE {where}").rows[0] == minutes * ROWS_PER_MINUTE

    def test_by_parameter(self, wh):
        pruned = read(wh, "SELECT * FROM packets WHERE ts > $since", {"since": LAST - dt.timedelta(minutes=3)})
        assert pruned.rows[0] == 3 * ROWS_PER_MINUTE

    def test_an_unusable_predicate_changes_nothing(self, wh):
        for where in ("hour(ts) = 12", "ts IS NOT NULL", "ts > TIMESTAMPTZ '2025-01-01 12:19+00' OR len = 1"):
            assert read(wh, f"SELECT * FROM packets WHERE {where}").rows[0] == LIVE_MINUTES * ROWS_PER_MINUTE

    def test_now_is_one_instant_from_planning_to_the_end(self, wh):
        assert rows(wh, "SELECT * FROM packets WHERE ts < now()") == LIVE_MINUTES * ROWS_PER_MINUTE
        assert rows(wh, "SELECT * FROM packets WHERE ts > now()") == 0
        assert (
            rows(wh, "SELECT * FROM packets WHERE ts < current_date AND src = 3")
            == LIVE_MINUTES * ROWS_PER_MINUTE // 60
        )


class Test_predicates_on_the_search_key:
    @pytest.mark.parametrize(
        ("where", "keys", "matches"),
        [
            ("src = 7", "1 key", 1),
            ("src IN (7, 8, 100)", "3 keys", 2),
            ("src IN (7, 8) AND src <> 8", "2 keys", 1),
            ("src > 57", "1 range", 2),
            ("src BETWEEN 3 AND 4", "1 range", 2),
            ("src = 1 OR src = 59 OR src > 1000", "2 keys and 1 range", 2),
            ("src IS NULL", "1 key", 0),
            ("(src = 1 OR src = 2) AND len >= 0", "2 keys", 2),
            ("SRC = 7 AND ts > TIMESTAMPTZ '2025-01-01 12:10:00+00'", "1 key", 0.625),
        ],
    )
    def test_go_through_the_directory(self, wh, where, keys, matches):
        sql = f"SELECT * FROM packets WHERE {where}"
        pruned = read(wh, sql)
        assert pruned.keys == keys
        assert rows(wh, sql) == matches * LIVE_MINUTES * ROWS_PER_MINUTE / 60

    def test_of_one_window_are_read_by_row(self, wh):
        pruned = read(wh, "SELECT * FROM packets [WINDOW 1 MINUTE] WHERE src = 7")
        assert pruned.path == "probe"
        assert ROWS_PER_MINUTE // 60 <= pruned.rows[0] < ROWS_PER_MINUTE / 2

    @pytest.mark.parametrize(("limits", "path"), [((10**6, 2), "memory"), ((0, 0.001), "memory"), ((0, 2), "probe")])
    def test_are_read_from_memory_where_that_is_as_quick(self, monkeypatch, limits, path):
        monkeypatch.setattr(planner, "MEMORY_ROWS", limits[0])
        monkeypatch.setattr(planner, "MEMORY_SHARE", limits[1])
        sql = "SELECT count(*), sum(len) FROM packets [WINDOW 1 MINUTE] WHERE src = 7"
        for source, expected in (("from files", "probe"), ("from memory", path)):
            for made in open_packets(source):
                assert read(made, sql).path == expected
                counted = made.sql(sql.replace("src = 7", "src + len = 7 + len"))
                assert made.sql(sql).fetchall() == counted.fetchall()

    @pytest.mark.parametrize("where", ["src = 1 OR len = 3", "src % 7 = 3", "NOT (src = 1)", "src <> 1", "len = 3"])
    def test_that_say_nothing_of_the_key_change_nothing(self, wh, where):
        assert read(wh, f"SELECT * FROM packets WHERE {where}").keys == "any"

    def test_by_parameters(self, wh):
        assert read(wh, "SELECT * FROM packets WHERE src = ?", [7]).keys == "1 key"
        assert (
            rows(wh, "SELECT * FROM packets WHERE src BETWEEN $low AND $high", {"low": 3, "high": 5})
            == 3 * LIVE_MINUTES * ROWS_PER_MINUTE / 60
        )

    def test_do_not_reach_into_a_count_window(self, wh):
        """The newest rows come first, the condition after."""
        assert read(wh, "SELECT * FROM packets [ROWS 3] WHERE src = 1").keys == "any"
        newest = wh.sql("SELECT src FROM packets [ROWS 3]").fetchall()
        assert {src for (src,) in newest} == {59}
        assert rows(wh, "SELECT * FROM packets [ROWS 3] WHERE src = 1") == 0


class Test_where_a_predicate_holds_for_one_use_only:
    """A relation that is read twice must not be cut by a condition on one of the two."""

    @pytest.mark.parametrize(
        ("sql", "count"),
        [
            ("SELECT * FROM packets WHERE src = 1 UNION ALL SELECT * FROM packets WHERE src = 2", 2),
            ("SELECT (SELECT count(*) FROM packets WHERE src = 1) + (SELECT count(*) FROM packets WHERE src < 3)", None),
            ("WITH x AS NOT MATERIALIZED (SELECT * FROM packets) SELECT a.* FROM x a WHERE src = 1 UNION ALL FROM x WHERE src = 2", 2),
            ("SELECT a.* FROM packets a WHERE src = 1 AND EXISTS (SELECT 1 FROM packets b WHERE b.src = 2)", 1),
            ("SELECT * FROM packets a WHERE src = 1 UNION ALL SELECT * FROM quiet WHERE false", 1),
        ],
    )  # fmt: skip
    def test_nothing_is_lost(self, wh, sql, count):
        if count is not None:
            assert rows(wh, sql) == count * LIVE_MINUTES * ROWS_PER_MINUTE / 60
        else:
            assert wh.sql(sql).fetchall() == [(4 * LIVE_MINUTES * ROWS_PER_MINUTE // 60,)]

    def test_each_window_has_its_own(self, wh):
        plan = wh.explain(
            "SELECT * FROM packets [WINDOW 1 MINUTE] a JOIN packets [WINDOW 2 MINUTES] b ON a.ts = b.ts "
            "WHERE a.src = 1 AND b.src IN (1, 2)"
        )
        assert [pruned.keys for pruned in plan.relations] == ["1 key", "2 keys"]


class Test_keys_from_a_table:
    """hosts has the sources 1 (ant), 2 (bee) and 3 (cat)."""

    @pytest.mark.parametrize(
        ("sql", "keys"),
        [
            ("SELECT * FROM packets JOIN hosts USING (src)", 3),
            ("SELECT p.* FROM packets p JOIN hosts h ON p.src = h.src", 3),
            ("SELECT p.* FROM packets p, hosts h WHERE h.src = p.src AND h.name = 'ant'", 1),
            ("SELECT p.* FROM hosts h JOIN packets p ON p.src = h.src AND name IN ('ant', 'bee')", 2),
            ("SELECT * FROM packets WHERE src IN (SELECT src FROM hosts)", 3),
            ("SELECT * FROM packets WHERE src IN (SELECT h.src FROM hosts h WHERE h.name = 'cat')", 1),
            ("SELECT * FROM packets WHERE len >= 0 AND src IN (SELECT src FROM hosts WHERE name > 'a' AND NOT name = 'bee')", 2),
            ("WITH x AS (SELECT * FROM packets JOIN hosts USING (src)) SELECT * FROM x", 3),
        ],
    )  # fmt: skip
    def test_are_found_first(self, wh, sql, keys):
        assert read(wh, sql).keys == f"{keys} key{'' if keys == 1 else 's'} from hosts.src"
        assert rows(wh, sql) == keys * LIVE_MINUTES * ROWS_PER_MINUTE / 60

    def test_with_parameters(self, wh):
        sql = "SELECT p.* FROM packets p JOIN hosts h USING (src) WHERE len >= ? AND h.name = ?"
        assert read(wh, sql, [0, "bee"]).keys == "1 key from hosts.src"
        assert rows(wh, sql, [0, "bee"]) == LIVE_MINUTES * ROWS_PER_MINUTE / 60
        named = "SELECT * FROM packets WHERE src IN (SELECT src FROM hosts WHERE name = $name)"
        assert read(wh, named, {"name": "bee"}).keys == "1 key from hosts.src"

    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT * FROM packets LEFT JOIN hosts USING (src)",
            "SELECT * FROM packets p FULL JOIN hosts h ON p.src = h.src",
            "SELECT * FROM packets WHERE src NOT IN (SELECT src FROM hosts)",
            "SELECT * FROM packets WHERE src IN (SELECT src FROM hosts) OR len = 3",
            "SELECT * FROM packets p ASOF JOIN hosts h ON p.len >= h.src WHERE p.src IN (SELECT src FROM hosts)",
            "WITH hosts AS (SELECT 5 AS src) SELECT * FROM packets JOIN hosts USING (src)",
            "SELECT * FROM packets p ANTI JOIN hosts h ON p.src = h.src",
            "SELECT * FROM packets a JOIN packets b ON a.ts = b.ts JOIN hosts h ON a.src = h.src",
            "SELECT * FROM packets p JOIN hosts h ON p.src = h.src + 1",
            "SELECT * FROM packets WHERE src IN (SELECT src FROM hosts LIMIT 1)",
            "SELECT * FROM packets p(ts, a, src, b) JOIN hosts h USING (src)",
        ],
    )
    def test_only_where_that_is_certain(self, wh, sql):
        assert {pruned.keys for pruned in wh.explain(sql).relations} == {"any"}

    def test_a_condition_that_is_too_hard_is_left_to_duckdb(self, wh):
        sql = "SELECT p.* FROM packets p JOIN hosts h USING (src) WHERE length(h.name) = 3 AND h.name <> 'bee'"
        assert read(wh, sql).keys == "2 keys from hosts.src"
        assert (
            rows(wh, "SELECT p.* FROM packets p JOIN hosts h USING (src) WHERE reverse(h.name) = 'tna'")
            == LIVE_MINUTES * ROWS_PER_MINUTE / 60
        )

    def test_other_types_are_compared_by_duckdb(self, wh):
        wh.put_table("texts", pa.table({"src": ["1", "2"]}))
        wh.put_table("small", pa.table({"src": pa.array([1, 2], pa.int8())}))
        assert read(wh, "SELECT * FROM packets p JOIN texts t ON p.src = t.src::BIGINT").keys == "any"
        assert (
            rows(wh, "SELECT p.* FROM packets p JOIN texts t ON p.src = t.src")
            == 2 * LIVE_MINUTES * ROWS_PER_MINUTE / 60
        )
        assert read(wh, "SELECT * FROM packets JOIN small USING (src)").keys == "2 keys from small.src"
        assert rows(wh, "SELECT * FROM packets JOIN small USING (src)") == 2 * LIVE_MINUTES * ROWS_PER_MINUTE / 60


class Test_what_is_remembered_of_a_statement:
    """The same text again, while everything that it depends on changes."""

    JOIN = "SELECT count(*) FROM packets JOIN hosts USING (src)"
    LIKED = "SELECT count(*) FROM packets JOIN hosts USING (src) WHERE name = ?"

    @pytest.fixture
    def changing(self) -> Iterator[windrow.Warehouse]:
        with packet_warehouse.open_packet_warehouse() as made:
            yield made

    def count(self, wh: windrow.Warehouse, sql: str, params: object = None) -> int:
        return int(wh.sql(sql, params).fetchall()[0][0])

    def test_a_table_that_is_replaced(self, changing):
        each = LIVE_MINUTES * ROWS_PER_MINUTE // 60
        assert [self.count(changing, self.JOIN) for _ in range(2)] == [3 * each] * 2
        changing.put_table("hosts", pa.table({"src": [7], "name": ["dog"]}))
        assert [self.count(changing, self.JOIN) for _ in range(2)] == [each] * 2
        changing.put_table("hosts", pa.table({"src": pa.array([], pa.int64()), "name": pa.array([], pa.string())}))
        assert self.count(changing, self.JOIN) == 0

    def test_other_parameters(self, changing):
        each = LIVE_MINUTES * ROWS_PER_MINUTE // 60
        given = [self.count(changing, self.LIKED, [name]) for name in ("ant", "eel", "bee", "ant")]
        assert given == [each, 0, each, each]
        sources = [
            self.count(changing, "SELECT count(*) FROM packets WHERE src = ?", [value]) for value in (1, 99, 1.0)
        ]
        assert sources == [each, 0, each]

    def test_slides_between(self, changing):
        sql = "SELECT count(*), max(note) FROM packets [WINDOW 1 MINUTE] WHERE src = 7"
        for number in range(MINUTES + 1, MINUTES + 4):
            packet_warehouse.append_and_slide(changing, number)
            for _ in range(2):
                assert changing.sql(sql).fetchall() == [(ROWS_PER_MINUTE // 60, f"m{number}")]

    def test_a_stream_of_the_same_name_in_another_warehouse(self, changing):
        sql = "SELECT count(*) FROM packets WHERE src = 7"
        assert self.count(changing, sql) == LIVE_MINUTES * ROWS_PER_MINUTE // 60
        with packet_warehouse.open_packet_warehouse() as other:
            packet_warehouse.append_and_slide(other, MINUTES + 1)
            other.slide("packets", to=LAST + dt.timedelta(minutes=10))
            assert self.count(other, sql) == (LIVE_MINUTES - 9) * ROWS_PER_MINUTE // 60
        assert self.count(changing, sql) == LIVE_MINUTES * ROWS_PER_MINUTE // 60

    def test_a_stream_that_is_made_anew_with_another_key(self, changing):
        sql = "SELECT count(*) FROM packets WHERE src = 7"
        assert self.count(changing, sql) == LIVE_MINUTES * ROWS_PER_MINUTE // 60
        changing.drop_stream("packets")
        changing.create_stream(
            "packets", packet_warehouse.SCHEMA, time="ts", key="len", slide="1 minute", lifetime="16 minutes"
        )
        changing.append("packets", packet_warehouse.make_minute(1))
        changing.slide("packets", to=NOON + dt.timedelta(minutes=1))
        assert self.count(changing, sql) == ROWS_PER_MINUTE // 60
        assert self.count(changing, "SELECT count(*) FROM packets WHERE len = 7") == 1


class Test_explaining:
    def test_in_words(self, wh):
        explained = wh.explain("SELECT sum(len) FROM packets [WINDOW 1 MINUTE] WHERE src = 7")
        assert isinstance(explained, Explanation)
        first, *plan = str(explained).splitlines()
        assert first.startswith(f"packets [WINDOW 1 MINUTE] at slide {explained.windows[0].slide}: probe; cells ")
        assert first.endswith("; key: 1 key")
        assert plan

    def test_nothing_stays_pinned(self, wh):
        wh.explain("SELECT * FROM packets")
        with pytest.raises(windrow.QueryError):
            wh.explain("SELECT nope FROM packets")
        assert wh.status().readers == 0

    def test_a_statement_without_streams(self, wh):
        assert wh.explain("SELECT 1").relations == ()

"""What a view is to its users: a stream that follows its inputs, can be asked like any other, and cannot be disturbed."""

import shutil
from collections import Counter
from decimal import Decimal

import pyarrow as pa
import pytest

import view_histories
import windrow
from keyed_streams import SCHEMA, append_rows, fetch_sorted, slide
from view_histories import MINUTE, START, time

# -- a view is a stream ------------------------------------------------------------------------------------------------


def test_a_result_begins_with_its_last_part_and_ends_with_its_first(wh):
    """a [0.5, 10.5), b in a window of 3 minutes [1.5, 4.5): together [1.5, 4.5)."""
    append_rows(wh, "a", (0.5, 1, 10))
    append_rows(wh, "b", (1.5, 1, 20))
    wh.create_view("v", "SELECT a.x AS ax, b.x AS bx FROM a JOIN b [WINDOW 3 MINUTES] USING (k)")
    for minute in range(1, 7):
        slide(wh, "ab", minute)
        lives = minute in (2, 3, 4)
        actual = wh.sql("SELECT ax, bx, _ts, _exp FROM v").fetchall()
        assert actual == ([(10, 20, time(START + 1.5 * MINUTE), time(START + 4.5 * MINUTE))] if lives else [])


def test_a_new_view_is_filled_from_what_its_inputs_hold(wh):
    for minute in range(1, 6):
        append_rows(wh, "a", (minute - 0.5, minute % 2, minute))
        append_rows(wh, "b", (minute - 0.2, minute % 2, minute))
        slide(wh, "ab", minute)
    view = wh.create_view("v", "SELECT a.x AS ax, b.x AS bx FROM a JOIN b USING (k)", key="ax")
    assert view.now == time(START + 5 * MINUTE)
    assert fetch_sorted(wh, "SELECT ax, bx FROM v") == sorted(
        (i, j) for i in range(1, 6) for j in range(1, 6) if i % 2 == j % 2
    )
    assert wh.stream("v").inserted == 13


def test_a_view_can_be_asked_like_any_stream(wh):
    wh.create_view("v", "SELECT k, x * 2 AS y FROM a WHERE x > 1", key="k")
    for minute in range(1, 6):
        append_rows(wh, "a", (minute - 0.5, 7, minute))
        slide(wh, "a", minute)
    assert wh.probe("v", 7).column("y").to_pylist() == [4, 6, 8, 10]
    assert wh.probe("v", 7, window="2 minutes").num_rows == 2
    assert wh.scan("v", columns=["y"]).read_all().num_rows == 4
    assert fetch_sorted(wh, "SELECT y FROM v [WINDOW 3 MINUTES]") == [(6,), (8,), (10,)]
    assert fetch_sorted(wh, "SELECT y FROM v [ROWS 1]") == [(10,)]
    assert fetch_sorted(wh, "SELECT count(*) FROM v JOIN a USING (k)") == [(20,)]
    assert "v" in wh.streams()
    for level in ("latest", "serial"):
        assert wh.sql("SELECT sum(y) FROM v", isolation=level).fetchall() == [(28,)]


def test_a_periodic_query_is_paced_by_a_view(wh):
    wh.create_view("v", "SELECT a.k, a.x AS ax, b.x AS bx FROM a JOIN b USING (k)")
    wh.add_query("counted", "SELECT count(*) AS n FROM v [WINDOW 5 MINUTES SLIDE 1 MINUTE]", missed="every")
    for minute in range(1, 4):
        append_rows(wh, "a", (minute - 0.5, 1, minute))
        append_rows(wh, "b", (minute - 0.4, 1, minute))
        slide(wh, "ab", minute)
    list(wh.run_due())
    assert fetch_sorted(wh, "SELECT n FROM counted") == [(1,), (4,), (9,)]


def test_every_run_of_queries_over_several_views_that_move_together_is_made(wh):
    """All views move in one transaction, which keeps its slide for the queries of each of them."""
    statements = {
        "plain": "SELECT k, x FROM a",
        "double": "SELECT a.k, b.x FROM a JOIN b USING (k)",
        "once": "SELECT DISTINCT k FROM a",
    }
    for name, sql in statements.items():
        wh.create_view(name, sql)
        window = f"{name} [WINDOW 3 MINUTES SLIDE 1 MINUTE]"
        wh.add_query(f"of_{name}", f"SELECT count(*) AS n FROM {window}", missed="every")
    expected = {name: [] for name in statements}
    for minute in range(1, 7):
        append_rows(wh, "a", (minute - 0.5, minute % 2, minute), (minute - 0.4, 5, minute))
        append_rows(wh, "b", (minute - 0.3, minute % 2, minute))
        slide(wh, "ba", minute)
        for name in statements:
            expected[name] += wh.sql(f"SELECT count(*) FROM {name} [WINDOW 3 MINUTES]").fetchall()
    list(wh.run_due())
    for name in statements:
        assert wh.sql(f"SELECT n FROM of_{name} ORDER BY _slide").fetchall() == expected[name]


def test_nobody_appends_to_a_view_or_slides_it(wh):
    wh.create_view("v", "SELECT k FROM a")
    schema = wh.stream("v").definition.schema
    for act in (
        lambda: wh.append("v", schema.empty_table()),
        lambda: wh.slide("v"),
        lambda: wh.slide("v", to=time(START)),
        lambda: wh.heartbeat("v", up_to=time(START)),
        lambda: wh.fail_source("v", "default"),
    ):
        with pytest.raises(windrow.ViewError, match=r"is a view and cannot be .*; it follows a by itself"):
            act()


def test_what_a_view_needs_cannot_be_dropped(wh):
    wh.put_table("t", pa.table({"k": pa.array([1], pa.int64())}))
    wh.create_view("v", "SELECT a.k FROM a JOIN t USING (k)")
    wh.create_view("w", "SELECT k FROM v")
    wh.create_view("u", "SELECT k FROM a")
    with pytest.raises(windrow.InUseError, match="needed by the views v, u"):
        wh.drop_stream("a")
    with pytest.raises(windrow.InUseError, match="needed by the view w"):
        wh.drop_view("v")
    with pytest.raises(windrow.InUseError, match="v"):
        wh.drop_table("t")
    with pytest.raises(windrow.ViewError, match="drop_view"):
        wh.drop_stream("w")
    with pytest.raises(windrow.ViewError, match="drop_stream"):
        wh.drop_view("a")
    for name in ("w", "v", "u"):
        wh.drop_view(name)
    wh.drop_stream("a")
    wh.drop_table("t")
    assert wh.views() == []
    wh.gc()
    assert wh.check().ok


def test_names_are_shared_with_streams_and_tables(wh):
    with pytest.raises(windrow.StreamExistsError, match="'a' exists already"):
        wh.create_view("A", "SELECT k FROM b")
    wh.create_view("v", "SELECT k FROM b")
    with pytest.raises(windrow.StreamExistsError):
        wh.create_stream("V", SCHEMA, time="ts", slide="1 minute")
    with pytest.raises(windrow.InvalidNameError):
        wh.create_view("no/name", "SELECT k FROM b")


# -- restore -----------------------------------------------------------------------------------------------------------


def test_a_result_between_two_slides_is_lost_without_restore_and_shown_once_with_it(wh):
    """a in a window of 1 minute [0.2, 1.2), b [0.9, …): together [0.9, 1.2), between the slides at 0 and at 2."""
    sql = "SELECT a.x AS ax, b.x AS bx FROM a [WINDOW 1 MINUTE] JOIN b USING (k)"
    slide(wh, "ab", 0)
    wh.create_view("plain", sql)
    wh.create_view("every", sql, restore=True)
    append_rows(wh, "a", (0.2, 1, 10))
    append_rows(wh, "b", (0.9, 1, 20))
    slide(wh, "ab", 2)
    assert fetch_sorted(wh, "SELECT ax, bx FROM plain") == []
    assert fetch_sorted(wh, "SELECT ax, bx, _ts, _died FROM every") == [
        (10, 20, time(START + 0.9 * MINUTE), time(START + 1.2 * MINUTE))
    ]
    slide(wh, "ab", 3)
    assert fetch_sorted(wh, "SELECT ax, bx FROM every") == []


# -- tables ------------------------------------------------------------------------------------------------------------


def names(*pairs):
    return pa.table({"k": pa.array([k for k, _ in pairs], pa.int64()), "name": [name for _, name in pairs]})


def test_a_change_of_a_table_affects_later_rows_only(wh):
    wh.put_table("t", names((1, "old")))
    wh.create_view("v", "SELECT a.x, t.name FROM a JOIN t USING (k)")
    append_rows(wh, "a", (0.5, 1, 1), (0.6, 2, 2))
    slide(wh, "a", 1)
    wh.put_table("t", names((1, "new"), (2, "two")))
    append_rows(wh, "a", (1.5, 1, 3))
    slide(wh, "a", 2)
    assert fetch_sorted(wh, "SELECT x, name FROM v") == [(1, "old"), (3, "new")]


def test_a_change_of_a_retroactive_table_affects_all_rows(wh):
    wh.put_table("t", names((1, "old")))
    wh.create_view("v", "SELECT a.x, t.name FROM a JOIN t USING (k)", retroactive=["t"])
    append_rows(wh, "a", (0.5, 1, 1), (0.6, 2, 2))
    slide(wh, "a", 1)
    assert fetch_sorted(wh, "SELECT x, name FROM v") == [(1, "old")]
    wh.put_table("t", names((1, "new"), (2, "two")))
    slide(wh, "a", 2)
    assert fetch_sorted(wh, "SELECT x, name FROM v") == [(1, "new"), (2, "two")]


def test_a_table_keeps_its_columns_while_a_view_joins_with_it(wh):
    wh.put_table("t", names((1, "one")))
    wh.create_view("v", "SELECT a.x, t.name FROM a LEFT JOIN t USING (k)")
    with pytest.raises(windrow.InUseError, match="its columns must stay k int64, name string"):
        wh.put_table("t", pa.table({"k": pa.array([1], pa.int64())}))
    append_rows(wh, "a", (0.5, 1, 1), (0.6, 2, 2))
    slide(wh, "a", 1)
    assert Counter(wh.sql("SELECT x, name FROM v").fetchall()) == Counter([(1, "one"), (2, None)])


# -- strict plans ------------------------------------------------------------------------------------------------------

STRICT = [
    "SELECT k, count(*) AS n, count(DISTINCT x) AS s FROM a [WINDOW 3 MINUTES] GROUP BY k",
    "SELECT k, x FROM a [ROWS 3]",
    "SELECT k, x FROM a EXCEPT SELECT k, x FROM b [WINDOW 2 MINUTES]",
    "SELECT a.k, a.x, b.x AS bx FROM a LEFT JOIN b [WINDOW 2 MINUTES] USING (k)",
    "SELECT k, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY ts, x) AS n FROM a",
    "WITH big AS (SELECT k, max(x) AS m FROM a GROUP BY k) SELECT k, m FROM big ORDER BY m, k LIMIT 2",
]


@pytest.mark.parametrize("sql", STRICT)
def test_a_recomputed_plan_is_what_its_query_gives_at_each_slide(wh, sql):
    assert wh.create_view("v", sql, recompute=True).recomputed
    for minute in range(1, 9):
        append_rows(
            wh, "a", (minute - 0.5, minute % 3, minute), (minute - 0.3, 1, 2), (max(0.1, minute - 2.5), 2, minute)
        )
        append_rows(wh, "b", (minute - 0.4, minute % 3, 2))
        slide(wh, "ab", minute)
        query_columns = [column for column in wh.stream("v").definition.schema.names if column != "_ts"]
        columns = ", ".join(query_columns)
        actual = Counter(wh.sql(f"SELECT {columns} FROM v").fetchall())
        assert actual == Counter(wh.sql(sql).fetchall())
        assert {time_ for (time_,) in wh.sql("SELECT _ts FROM v").fetchall()} <= {wh.now("v")}


def test_views_of_a_strict_view_follow_it(wh):
    wh.create_view("counts", "SELECT k, count(*) AS n FROM a GROUP BY k", key="k")
    wh.create_view("often", "SELECT k, n FROM counts WHERE n > 1")
    for minute in range(1, 5):
        append_rows(wh, "a", (minute - 0.5, 1, minute), (minute - 0.4, minute, minute))
        slide(wh, "a", minute)
        assert fetch_sorted(wh, "SELECT k, n FROM often") == fetch_sorted(
            wh, "SELECT k, count(*) FROM a GROUP BY k HAVING count(*) > 1"
        )


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_row_that_a_view_cannot_take_stops_the_slide_and_names_the_view(wh):
    wh.create_view("fine", "SELECT k FROM a")
    wh.create_view("broken", "SELECT k, CAST(concat('n', x::VARCHAR) AS INTEGER) AS n FROM a WHERE x = 0")
    append_rows(wh, "a", (0.5, 1, 1))
    slide(wh, "a", 1)
    append_rows(wh, "a", (1.5, 1, 0))
    with pytest.raises(windrow.ViewError, match=r"view 'broken' cannot be computed .*; make its statement accept"):
        slide(wh, "a", 2)
    assert wh.now("a") == wh.now("fine") == time(START + MINUTE)
    assert wh.check().ok
    wh.drop_view("broken")
    slide(wh, "a", 2)
    assert fetch_sorted(wh, "SELECT count(*) FROM fine") == [(2,)]


def test_everything_is_there_after_a_restart(path):
    view_histories.create(path)
    truth = view_histories.ExpectedViews()
    for operation in view_histories.operations(seed=5, count=24):
        with view_histories.open_warehouse(path) as wh:
            view_histories.perform(wh, operation)
            truth.do(operation)
            assert view_histories.state(wh) == truth.state()
    with view_histories.open_warehouse(path) as wh:
        assert {view.name: view.sql for view in wh.views() if view.name in view_histories.VIEWS} == view_histories.VIEWS
        assert wh.check().ok


# -- joins of many -----------------------------------------------------------------------------------------------------


def test_statistics_of_the_inputs_are_kept_for_the_order_of_joins(wh):
    wh.create_view("v", "SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k")
    for minute in range(1, 8):
        append_rows(wh, "a", *((minute - 0.5, n % 4, n) for n in range(40)))
        append_rows(wh, "b", *((minute - 0.5, n, n) for n in range(3)))
        append_rows(wh, "c", (minute - 0.5, 1, 1))
        slide(wh, "abc", minute)
    records = wh._store.catalog.read(lambda tables: [record for _, record in tables.items("views")])
    rates = [record.rows / record.span * MINUTE for record in records]
    assert rates == pytest.approx([40, 3, 1], rel=0.3)
    assert [round(record.distinct["k"]) for record in records] == [4, 3, 1]
    orders = {order.input: order for order in wh.views()[0].joins}
    partners = {name: order.partners for name, order in orders.items()}
    assert partners == {"a": ("c", "b"), "b": ("c", "a"), "c": ("a", "b")}
    assert [orders[name].values for name in "abc"] == [4, 3, 1]
    assert all(order.rate > 0 and order.cost > 0 for order in orders.values())
    assert str(orders["b"]).startswith("b meets c, then a (")
    expected = wh.sql("SELECT count(*) FROM a, b, c WHERE a.k = b.k AND b.k = c.k").fetchall()
    assert wh.sql("SELECT count(*) FROM v").fetchall() == expected


def test_few_keys_out_of_many_rows_are_found_by_the_directories(path):
    """The new rows have three keys; of the other input's rows only those are read, and the answer is the same."""
    with view_histories.open_warehouse(path) as wh:
        wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        wh.create_stream("b", SCHEMA, time="ts", key=["k", "x"], slide="1 minute", lifetime="10 minutes")
        sql = "SELECT a.k, a.x AS ax, b.x AS bx FROM a JOIN b USING (k)"
        wh.create_view("v", sql)
        append_rows(wh, "b", *((0.1 + n / 60_000, n % 5000, n) for n in range(30_000)))
        slide(wh, "ab", 1)
        append_rows(wh, "a", (1.5, 7, 1), (1.6, 8, 2), (1.7, None, 3))
        slide(wh, "ab", 2)
        assert fetch_sorted(wh, "SELECT ax, bx FROM v") == fetch_sorted(wh, f"SELECT ax, bx FROM ({sql})")
        assert wh.sql("SELECT count(*) FROM v").fetchall() == [(12,)]


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_times_of_any_unit_and_columns_of_any_type(path, unit, zone):
    stamp = pa.timestamp(unit, zone)
    names, kinds = (
        ("k", "d", "l", "b"),
        (pa.dictionary(pa.int32(), pa.string()), pa.decimal128(10, 2), pa.list_(pa.int64()), pa.binary()),
    )
    schema = pa.schema([("ts", stamp), ("exp", stamp), *zip(names, kinds, strict=True)])

    def rows(*given):
        times = [
            [pa.scalar(START + (instant + life) * 1_000_000, pa.timestamp("us", zone)) for instant, _ in given]
            for life in (0, 300)
        ]
        columns = [pa.array(each, pa.timestamp("us", zone)).cast(stamp) for each in times]
        values = [k for _, k in given], [Decimal("1.50")] * len(given), [[1, 2]] * len(given), [b"x"] * len(given)
        return pa.table(
            [*columns, *(pa.array(each, kind) for each, kind in zip(values, kinds, strict=True))], schema=schema
        )

    with view_histories.open_warehouse(path) as wh:
        for name in "ab":
            wh.create_stream(
                name, schema, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="10 minutes"
            )
        on = "a.k = b.k AND a.d = b.d"
        wh.create_view("v", f"SELECT a.k, a.d, a.l, b.b FROM a JOIN b [WINDOW 3 MINUTES] ON {on}", key=["k", "d"])
        wh.create_view("u", "SELECT DISTINCT k, l FROM a")
        wh.append("a", rows((10, "p"), (20, None), (25, None)))
        wh.append("b", rows((30, "p"), (31, "q")))
        slide(wh, "ab", 2)
        actual = wh.sql("SELECT k, d, l, b, epoch_us(_ts), epoch_us(_exp) FROM v").fetchall()
        assert actual == [("p", Decimal("1.50"), [1, 2], b"x", START + 30_000_000, START + 210_000_000)]
        assert wh.probe("v", ("p", Decimal("1.50"))).num_rows == 1
        assert Counter(k for (k,) in wh.sql("SELECT k FROM u").fetchall()) == Counter(["p", None])
        assert wh.check().ok


# -- what a plan is made of --------------------------------------------------------------------------------------------


def test_rows_are_grouped_by_all_columns_if_a_view_says_so(wh):
    for minute in range(1, 4):
        append_rows(wh, "a", *((minute - 0.5, k % 2, k % 3) for k in range(12)))
        slide(wh, "a", minute)
    view = wh.create_view("v", "SELECT k, x FROM a GROUP BY ALL")
    assert (view.pattern, view.recomputed) == ("strict", False)
    for minute in range(4, 16):
        assert fetch_sorted(wh, "SELECT k, x FROM v") == fetch_sorted(wh, "SELECT k, x FROM a GROUP BY ALL")
        slide(wh, "a", minute)


@pytest.mark.parametrize("plain", [True, False])
def test_another_warehouse_in_the_same_place_has_plans_of_its_own(tmp_path, plain):
    sql = f"SELECT a.k, b.x FROM a JOIN b ON a.k = b.k {'' if plain else 'AND a.x <= b.x + 9'}"
    for lifetime in ("8 minutes", "2 minutes"):
        with view_histories.open_warehouse(tmp_path / "wh") as wh:
            for name in "ab":
                wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime=lifetime)
            wh.create_view("v", sql)
            for minute in range(1, 6):
                for name in "ab":
                    append_rows(wh, name, *((minute - 0.5, k, minute) for k in range(3)))
                slide(wh, "ab", minute)
                assert fetch_sorted(wh, "SELECT k, x FROM v") == fetch_sorted(wh, sql)
        shutil.rmtree(tmp_path / "wh")

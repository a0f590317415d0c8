"""Summaries of frequent items against plain Python over all rows: bounds always hold, and answers are exact or as ever.

slots    …  7    8    9   10 | now        a list for each (event slot, slide):
slide 9     ·    ·    a                   a  what slide 9 brought into slot 9
slide 10    b    ·    ·    c              b  what came late into slot 7, c what came in time
"""

import datetime as dt
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import child_processes
import recorded_history
import windrow
from faulty_disks import join_child, start_child
from sample_streams import SHAPES
from windrow import SummaryError

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
LIFE = 6
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("src", pa.int64()),
        ("host", pa.string()),
        ("n", pa.int32()),
        ("exp", pa.timestamp("us", "UTC")),
    ]
)
Row = dict[str, Any]


def create(path: Path, *, variable: bool, **options: Any) -> windrow.Warehouse:
    wh = windrow.open(path)
    lives = {"expires": "exp", "max_lifetime": "6 minutes"} if variable else {"lifetime": "6 minutes"}
    wh.create_stream("s", SCHEMA, time="ts", key="src", slide="1 minute", **lives, **options)
    return wh


class Skewed:
    """Rows whose groups are skewed, or uniform; some late, and with lifetimes of their own where the stream has such."""

    def __init__(self, seed: int, *, uniform: bool = False) -> None:
        self.draw, self.uniform = random.Random(seed), uniform

    def row(self, minute: int) -> Row:
        late = self.draw.randrange(LIFE - 1) if self.draw.random() < 0.2 else 0
        ts = START + (minute - late) * MINUTE + dt.timedelta(seconds=self.draw.randint(1, 60))
        rank = self.draw.randrange(40) if self.uniform else int(40 * self.draw.random() ** 4)
        left = self.draw.uniform(late * 60 + 61, LIFE * 60 - 1) if late < LIFE - 2 else LIFE * 60 - 1
        return {
            "ts": ts,
            "src": None if rank == 3 else rank,
            "host": None if rank % 5 == 4 else f"h'{rank % 5}",
            "n": self.draw.randrange(20),
            "exp": ts + dt.timedelta(seconds=int(left)),
        }

    def rows(self, minute: int, count: int = 60) -> list[Row]:
        return [self.row(minute) for _ in range(count)]


def live(rows: list[Row], minute: int, window: int, *, variable: bool) -> list[Row]:
    """The rows of a window at the end of a minute, by the meaning of the words alone."""
    now = START + minute * MINUTE
    ends = [row["exp"] if variable else row["ts"] + LIFE * MINUTE for row in rows]
    return [row for row, end in zip(rows, ends, strict=True) if now - window * MINUTE < row["ts"] <= now < end]


Weigh = Callable[[list[Row]], Counter[Any]]


def by_rows(*names: str) -> Weigh:
    return lambda rows: Counter(tuple(row[name] for name in names) for row in rows)


def by_sum(rows: list[Row]) -> Counter[Any]:
    sums: Counter[Any] = Counter()
    for row in rows:
        sums[row["src"],] += row["n"]
    return sums


def above_five(rows: list[Row]) -> Counter[Any]:
    return by_rows("src")([row for row in rows if row["n"] > 5])


SUMMARIES: dict[str, tuple[str, Weigh]] = {
    "talkers": ("SELECT src, count(*) AS c FROM s GROUP BY src", by_rows("src")),
    "pairs": ("SELECT host, src, count(*) AS c FROM s AS t GROUP BY t.src, host", by_rows("host", "src")),
    "weights": ("SELECT src, sum(n) AS c FROM s GROUP BY ALL", by_sum),
    "large": ("SELECT src, count(*) AS c FROM s WHERE n > 5 GROUP BY src", above_five),
}
TOP = {
    "talkers": "SELECT src, count(*) AS c FROM s [WINDOW {} MINUTES] GROUP BY src ORDER BY c DESC, src NULLS FIRST LIMIT {}",
    "pairs": "SELECT host, t.src, count(*) AS c, max(n) FROM s [WINDOW {} MINUTES] AS t GROUP BY 1, 2 "
    "ORDER BY count(*) DESC, host, src LIMIT {}",
    "weights": "SELECT src, sum(n) AS c FROM s [WINDOW {} MINUTES] GROUP BY src ORDER BY 2 DESC, src LIMIT {}",
    "large": "SELECT src, count(*) AS c FROM s [WINDOW {} MINUTES] /* one */ WHERE n > 5 -- of them\n"
    "GROUP BY src ORDER BY c DESC, src LIMIT {}",
}


def check_bounds(
    wh: windrow.Warehouse, name: str, frequent: int, rows: list[Row], minute: int, *, variable: bool
) -> None:
    """Every bound of every window, and what is said to be certain."""
    weigh = SUMMARIES[name][1]
    for window in range(1, LIFE + 1):
        true = weigh(live(rows, minute, window, variable=variable))
        shown = wh.sql(f"SELECT * FROM {name} [WINDOW {window} MINUTES]").fetchall()
        assert len({row[:-3] for row in shown}) == len(shown)
        for *group, lower, upper, certain in shown:
            weight = true[tuple(group)]
            assert 0 < lower <= weight <= upper
            assert not certain or sum(other > weight for other in true.values()) < frequent
        assert sum(lower for *_, lower, _, _ in shown) <= sum(true.values())


def check_top(wh: windrow.Warehouse, name: str, rows: list[Row], minute: int, *, variable: bool) -> Counter[str]:
    """The heaviest groups of every window are those of a plain computation, whoever gives them; counts who does."""
    how: Counter[str] = Counter()
    for window, most in ((1, 1), (2, 3), (4, 5), (LIFE, 2)):
        sql = TOP[name].format(window, most)
        explained = str(wh.explain(sql))
        how["known" if "the lists have" in explained else "rows" if "are read" in explained else "none"] += 1
        true = SUMMARIES[name][1](live(rows, minute, window, variable=variable))
        columns, nulls_first = (2 if name == "pairs" else 1), name == "talkers"
        expected = sorted(true.items(), key=lambda item: (-item[1], [null_key(v, first=nulls_first) for v in item[0]]))
        shown = [(row[:columns], row[columns]) for row in wh.sql(sql).fetchall()]
        assert shown == expected[:most], (name, window, explained)
    return how


def null_key(value: Any, *, first: bool) -> Any:
    return (value is None) != first, value if value is not None else 0


SEEDS = [(1, False, False), (2, True, False), (3, True, True)]
MORE = [pytest.param(seed, seed % 2 == 0, seed % 5 == 0, marks=pytest.mark.soak) for seed in range(4, 24)]


@pytest.mark.parametrize(("seed", "variable", "uniform"), [*SEEDS, *MORE])
def test_bounds_hold_and_answers_are_exact_at_every_slide(
    seed: int, variable: bool, uniform: bool, tmp_path: Path
) -> None:
    draw, shape, how = random.Random(seed), Skewed(seed, uniform=uniform), Counter[str]()
    names, frequent, replaced = sorted(SUMMARIES), draw.choice((2, 6, 12)), list[Row]()
    batches: dict[int, list[Row]] = {}
    with create(tmp_path / "wh", variable=variable) as wh:
        wh.create_summary(names[0], SUMMARIES[names[0]][0], frequent=frequent)  # before there is any row
        for minute in range(1, 15):
            batches[minute] = shape.rows(minute - 1)
            wh.append("s", pa.Table.from_pylist(batches[minute], SCHEMA), batch_id=str(minute))
            wh.slide("s", to=START + minute * MINUTE)
            batches[10] = replaced or batches.get(10, [])
            if minute == 4:
                for name in names[1:]:
                    wh.create_summary(name, SUMMARIES[name][0], frequent=frequent)
            elif minute == 7:
                wh.relayout("s", windrow.Index("round-robin", 3, 2))
            elif minute == 9:
                assert wh.erase("s", where="src = 1 OR n = 19").total
                for batch, rows in batches.items():
                    batches[batch] = [row for row in rows if row["src"] != 1 and row["n"] != 19]
            elif minute == 11:
                replaced, batches[10] = shape.rows(10, 20), []  # what takes the place of a batch comes with a slide
                assert wh.append("s", pa.Table.from_pylist(replaced, SCHEMA), batch_id="10", replace=True).replaced
            rows = [row for batch in batches.values() for row in batch]
            for name in names if minute >= 4 else names[:1]:
                if minute in (4, 9, 11) or draw.random() < 0.3:
                    check_bounds(wh, name, frequent, rows, minute, variable=variable)
                    how += check_top(wh, name, rows, minute, variable=variable)
        assert wh.check().problems == ()
    assert how["known"] + how["rows"] > 0 or uniform


# -- who answers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def wh(tmp_path: Path) -> Iterator[windrow.Warehouse]:
    """Six minutes of rows; source k has 2^(9-k) of them in each, the first of each at the begin of the minute."""
    with create(tmp_path / "wh", variable=False) as made:
        for minute in range(1, 7):
            fill(made, minute)
        yield made


def fill(wh: windrow.Warehouse, minute: int, weights: Callable[[int], int] = lambda k: 2 ** (9 - k)) -> None:
    ts = START + (minute - 1) * MINUTE + dt.timedelta(seconds=1)
    rows = [{"ts": ts, "src": k, "host": f"h{k}", "n": k, "exp": None} for k in range(10) for _ in range(weights(k))]
    wh.append("s", pa.Table.from_pylist(rows, SCHEMA))
    wh.slide("s", to=START + minute * MINUTE)


TALKERS, TOP_TWO = SUMMARIES["talkers"][0], "SELECT src, count(*) AS c FROM s GROUP BY src ORDER BY c DESC LIMIT 2"


def test_the_relation_of_a_summary(wh: windrow.Warehouse) -> None:
    made = wh.create_summary("talkers", "SELECT count(*) AS c, src AS who FROM s GROUP BY src", frequent=3)
    assert (made.counts, made.columns, made.window, made.lists, made.slide) == (
        "rows",
        ("who",),
        "6 minutes",
        6,
        wh.stream("s").slide,
    )
    answer = wh.sql("SELECT * FROM talkers [WINDOW 2 MINUTES] AS t WHERE certain")
    assert answer.columns == ["who", "lower", "upper", "certain"]
    assert [(w.stream, w.clause) for w in answer.windows] == [("s", "[WINDOW 2 MINUTES]")]
    assert answer.fetchall() == [(0, 1024, 1024, True), (1, 512, 512, True), (2, 256, 256, True)]
    assert wh.sql(
        "SELECT who FROM talkers JOIN s [WINDOW 1 MINUTE] ON src = who GROUP BY ALL ORDER BY 1"
    ).fetchall() == [(0,), (1,), (2,)]
    assert ("talkers", "summary") in wh.sql("SELECT name, kind FROM windrow.relations").fetchall()
    assert wh.sql("SELECT summary, stream, frequent FROM windrow.summaries").fetchall() == [("talkers", "s", 3)]


def test_the_lists_answer_where_they_have_the_weights(wh: windrow.Warehouse) -> None:
    wh.create_summary("talkers", TALKERS, frequent=3)
    assert str(wh.explain(TOP_TWO)) == (
        f"s all live rows at slide {wh.stream('s').slide}: summary talkers (6 lists of 3) leaves 2 groups for the answer, "
        "whose weights the lists have"
    )
    assert wh.sql(TOP_TWO).fetchall() == [(0, 3072), (1, 1536)]
    assert "whose weights" in wh.sql("EXPLAIN " + TOP_TWO).fetchall()[0][0]


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))])
def test_groups_of_every_type_are_ordered_as_duckdb_does(seed: int, tmp_path: Path) -> None:
    draw, shape = random.Random(seed), Skewed(seed)
    groups = {
        "a": "CASE WHEN n < 18 THEN make_timestamp(1_000_000 * (n % 3 - 1)) END",
        "b": "CASE WHEN src % 3 > 0 THEN DATE '1970-01-02' - CAST(src % 3 AS INTEGER) END",
        "c": "CASE WHEN n % 4 > 0 THEN n % 4 > 1 END",
        "d": "CASE WHEN host <> 'h''1' THEN 'ä' || host || '\n' ELSE host END",
        "e": "CAST(n % 2 AS UTINYINT)",
    }
    with create(tmp_path / "wh", variable=False) as wh:
        for minute in range(1, 4):
            wh.append("s", pa.Table.from_pylist(shape.rows(minute - 1, 200), SCHEMA))
            wh.slide("s", to=START + minute * MINUTE)
        for number, aggregate in enumerate(("count(*)", "sum(n)") * 3):
            names = draw.sample(sorted(groups), draw.randint(1, 3))
            select = ", ".join(f"{groups[name]} AS {name}" for name in names)
            orders = ", ".join(
                f"{name} {draw.choice(('', 'DESC'))} NULLS {draw.choice(('FIRST', 'LAST'))}" for name in names
            )
            # Sums name no more groups than add up to something, so these must be enough.
            most = 1 if aggregate == "sum(n)" else draw.randint(1, 4)
            summed = f"SELECT {select}, {aggregate} AS w FROM s GROUP BY ALL"
            top = f"{summed} ORDER BY w DESC, {orders} LIMIT {most} OFFSET {draw.randint(0, 1)}"
            more = top.replace(" AS w", " AS w, max(n) AS m", 1)
            before = wh.sql(top).arrow(), wh.sql(more).arrow()
            wh.create_summary(f"summary{number}", summed, frequent=200)
            assert "whose weights" in wh.explain(top).summary, top
            assert "whose rows" in wh.explain(more).summary, more
            for old, sql in zip(before, (top, more), strict=True):
                new = wh.sql(sql).arrow()
                assert new.schema.remove_metadata().equals(old.schema.remove_metadata(), check_metadata=True), sql
                assert new.to_pylist() == old.to_pylist(), sql
            wh.drop_summary(f"summary{number}")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (TOP_TWO.replace("count(*) AS c", "count(*) AS c, max(n) AS m"), [(0, 3072, 0), (1, 1536, 1)]),
        (
            "SELECT t.src, avg(n), sum(n) FROM s AS t GROUP BY t.src ORDER BY count(*) DESC LIMIT 1 OFFSET 1",
            [(1, 1.0, 1536)],
        ),
    ],
)
def test_rows_of_few_groups_answer_what_lists_have_not(wh: windrow.Warehouse, sql: str, expected: list[Any]) -> None:
    wh.create_summary("talkers", TALKERS, frequent=3)
    explained = wh.explain(sql)
    assert "leaves 2 groups for the answer, whose rows alone are read" in explained.summary
    assert explained.relations[0].keys == "2 keys"
    assert wh.sql(sql).fetchall() == expected


@pytest.mark.parametrize(
    "sql",
    [
        TOP_TWO.replace("LIMIT 2", "LIMIT 4"),  # the lists name three
        TOP_TWO.replace("DESC", ""),
        TOP_TWO.replace("LIMIT 2", ""),
        TOP_TWO.replace("ORDER BY c", "ORDER BY src"),
        TOP_TWO.replace("FROM s", "FROM s WHERE n < 5"),
        TOP_TWO.replace("FROM s", "FROM s [WINDOW 90 SECONDS]"),
        TOP_TWO.replace("GROUP BY src", "GROUP BY src HAVING count(*) < 2000"),
        TOP_TWO.replace("SELECT src", "SELECT n").replace("BY src", "BY n"),
        TOP_TWO.replace("count(*)", "sum(n)"),
        TOP_TWO.replace("LIMIT 2", "LIMIT 50%"),
        "SELECT * FROM (" + TOP_TWO + ")",
    ],
)  # fmt: skip
def test_other_statements_are_answered_as_ever(wh: windrow.Warehouse, sql: str) -> None:
    before = wh.sql(sql).fetchall()
    wh.create_summary("talkers", TALKERS, frequent=3)
    assert "summary" not in str(wh.explain(sql))
    assert sorted(wh.sql(sql).fetchall()) == sorted(before)


def test_uniform_keys_are_answered_as_ever(tmp_path: Path) -> None:
    with create(tmp_path / "wh", variable=False) as wh:
        wh.create_summary("talkers", TALKERS, frequent=3)
        fill(wh, 1, lambda _: 7)
        assert "summary" not in str(wh.explain(TOP_TWO))
        assert [row[3] for row in wh.sql("SELECT * FROM talkers").fetchall()] == [True] * 3  # no other has more
        assert min(wh.sql(TOP_TWO).fetchall())[1] == 7


def test_ties_at_the_end_are_among_the_candidates(tmp_path: Path) -> None:
    with create(tmp_path / "wh", variable=False) as wh:
        wh.create_summary("talkers", TALKERS, frequent=5)
        fill(wh, 1, lambda k: 10 - k // 2 * 2)  # 0 and 1 have ten, 2 and 3 eight
        sql = "SELECT src FROM s GROUP BY src ORDER BY count(*) DESC, src {} LIMIT 3"
        for order, third in (("", 2), ("DESC", 3)):
            assert "leaves 4 groups" in wh.explain(sql.format(order)).summary
            assert wh.sql(sql.format(order)).fetchall()[-1] == (third,)


def test_a_standing_query_is_answered_by_a_summary_while_that_is_certain(wh: windrow.Warehouse) -> None:
    wh.create_summary("talkers", TALKERS, frequent=3)
    wh.add_query("top", TOP_TWO.replace("FROM s", "FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE]"))
    wh.add_query(
        "most",
        TOP_TWO.replace("count(*) AS c", "count(*) AS c, max(n)").replace(
            "FROM s", "FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE]"
        ),
    )
    assert {(group.queries, group.by) for group in wh.query_plan()} == {
        (("top",), "summary talkers"),
        (("most",), "summary talkers"),
    }
    fill(wh, 7)
    assert {run.how for run in wh.run_due()} == {"summary"}
    assert [row[6:] for row in wh.results("top").fetchall()] == [(0, 1024), (1, 512)]
    assert [row[6:] for row in wh.results("most").fetchall()] == [(0, 1024, 0), (1, 512, 1)]
    for minute in (8, 9):
        fill(wh, minute, lambda _: 7)
    assert "summary" not in {run.how for run in wh.run_due()}
    assert [row[7] for row in wh.results("top", slide=wh.stream("s").slide).fetchall()] == [14, 14]


def test_a_snapshot_that_slides_have_overtaken_is_answered_from_its_rows(wh: windrow.Warehouse) -> None:
    wh.create_summary("talkers", TALKERS, frequent=3)
    with wh.snapshot() as snapshot:
        fill(wh, 7, lambda k: k)
        wh.erase("s", keys=[0])
        assert snapshot.sql("SELECT src, lower, upper FROM talkers [WINDOW 1 MINUTE] LIMIT 2").fetchall() == [
            (0, 512, 512),
            (1, 256, 256),
        ]
        assert snapshot.sql(TOP_TWO).fetchall() == [(0, 3072), (1, 1536)]
    assert wh.sql("SELECT src, lower FROM talkers [WINDOW 1 MINUTE] LIMIT 2").fetchall() == [(9, 9), (8, 8)]


def test_a_column_that_was_added_later_can_be_a_group(wh: windrow.Warehouse) -> None:
    wh.alter_stream("s", add_column=pa.field("color", pa.string()))
    wh.create_summary("colors", "SELECT color, count(*) AS c FROM s GROUP BY color")
    row = {
        "ts": START + 6 * MINUTE + dt.timedelta(seconds=2),
        "src": 1,
        "host": "h",
        "n": 4,
        "exp": None,
        "color": "red",
    }
    wh.append("s", [row])
    wh.heartbeat("s", up_to=START + 7 * MINUTE)
    bounds = "SELECT color, lower FROM colors [WINDOW 5 MINUTES]"
    assert wh.sql(bounds, isolation="fresh").fetchall() == [(None, 4 * 1023), ("red", 1)]
    wh.slide("s")
    for isolation in ("snapshot", "latest", "serial"):
        assert wh.sql(bounds, isolation=isolation).fetchall() == [(None, 4 * 1023), ("red", 1)]


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT src, avg(n) FROM s GROUP BY src", "has no bounds"),
        ("SELECT src, count(n) FROM s GROUP BY src", "has no bounds"),
        ("SELECT src, count(*) FILTER (n > 1) FROM s GROUP BY src", "put the condition into WHERE"),
        ("SELECT count(*) FROM s", "one count"),
        ("SELECT count(*) AS c FROM s GROUP BY src", "each once and under a name of its own"),
        ("SELECT src, count(*), sum(n) FROM s GROUP BY src", "one count"),
        ("SELECT src, count(*) FROM s GROUP BY src LIMIT 3", "without ORDER BY and LIMIT"),
        ("SELECT ts, count(*) FROM s GROUP BY ts", "whole numbers, text, booleans, dates or timestamps"),
        ("SELECT src, count(*) FROM s [WINDOW 90 SECONDS] GROUP BY src", "no multiple of the stream's slide"),
        ("SELECT src, sum(-n) FROM s GROUP BY src", "a value is -9, and sums of negative values have no bounds"),
        ("SELECT src, count(*) FROM s JOIN s AS t USING (src) GROUP BY src", "exactly one stream"),
    ],
)
def test_what_has_no_bounds_is_refused(sql: str, why: str, wh: windrow.Warehouse) -> None:
    with pytest.raises(SummaryError, match=why):
        wh.create_summary("bad", sql)
    assert wh.summaries() == []
    assert wh._store.catalog.read(lambda tables: [*tables.raw_items("summaries")]) == []


def test_a_negative_value_that_comes_later_stops_no_slide(wh: windrow.Warehouse) -> None:
    wh.create_summary("weights", SUMMARIES["weights"][0], frequent=3)
    row = {"ts": START + 6 * MINUTE + dt.timedelta(seconds=2), "src": 1, "host": "h", "n": -4, "exp": None}
    wh.append("s", pa.Table.from_pylist([row], SCHEMA))
    fill(wh, 7)
    with pytest.raises(windrow.QueryError, match="'weights' has no bounds for this window: a value is -4"):
        wh.sql("SELECT * FROM weights [WINDOW 2 MINUTES]")
    top = "SELECT src, sum(n) AS c FROM s [WINDOW {} MINUTES] GROUP BY src ORDER BY c DESC, src LIMIT 1"
    assert "summary" not in str(wh.explain(top.format(2)))
    assert wh.sql(top.format(2)).fetchall() == [(2, 512)]
    fill(wh, 8)
    assert "summary weights" in str(wh.explain(top.format(1)))  # the value is older than this window


def test_windows_of_parts_of_slots_and_names_that_are_taken(wh: windrow.Warehouse) -> None:
    wh.create_summary("talkers", "SELECT src, count(*) AS c FROM s [WINDOW 3 MINUTES] GROUP BY src")
    for clause, why in (
        ("[WINDOW 90 SECONDS]", "no multiple"),
        ("[WINDOW 4 MINUTES]", "up to 3 minutes"),
        ("[ROWS 3]", "count of rows"),
    ):
        with pytest.raises(windrow.QueryError, match=f"whole slots.*{why}|{why}"):
            wh.sql(f"SELECT * FROM talkers {clause}")
    with pytest.raises(windrow.StreamExistsError, match="'talkers' exists already"):
        wh.create_summary("Talkers", TALKERS)
    assert wh.create_summary("talkers", TALKERS, if_not_exists=True).window == "3 minutes"
    for take in (
        lambda: wh.create_stream("talkers", SCHEMA, time="ts", slide="1 minute"),
        lambda: wh.put_table("talkers", pa.table({"x": [1]})),
        lambda: wh.add_query("talkers", TOP_TWO.replace("FROM s", "FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE]")),
        lambda: wh.create_view("talkers", "SELECT src FROM s [WINDOW 1 MINUTE]"),
    ):
        with pytest.raises(windrow.WindrowError, match="talkers' exists already"):
            take()
    with pytest.raises(windrow.DefinitionError, match="summaries keep synopses"):
        wh.alter_stream("s", lifetime="9 minutes")
    with pytest.raises(SummaryError, match="there is no summary 'x'; there are talkers"):
        wh.drop_summary("x")
    wh.drop_summary("talkers")
    assert wh._store.catalog.read(lambda tables: [*tables.raw_items("synopses"), *tables.raw_items("summaries")]) == []
    wh.create_summary("talkers", TALKERS)
    wh.drop_stream("s")
    assert wh.summaries() == []


def test_a_summary_of_a_view_follows_it_and_one_of_retracted_results_is_refused(wh: windrow.Warehouse) -> None:
    wh.create_view("few", "SELECT src, n FROM s [WINDOW 2 MINUTES] WHERE n > 3")
    wh.create_summary("talkers", "SELECT src, count(*) AS c FROM few GROUP BY src", frequent=2)
    fill(wh, 7)
    assert wh.sql("SELECT src, lower, upper FROM talkers").fetchall() == [(4, 64, 64), (5, 32, 32)]
    wh.create_view("sums", "SELECT src, count(*) AS c FROM s [WINDOW 2 MINUTES] GROUP BY src")
    with pytest.raises(SummaryError, match="results of view 'sums' are taken back"):
        wh.create_summary("bad", "SELECT src, count(*) AS n FROM sums GROUP BY src")


# -- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "nth"), [("slide.committing", 3), ("slide.committed", 4)])
def test_bounds_hold_after_a_kill(step: str, nth: int, tmp_path: Path) -> None:
    shape, path, progress = "per-row-rich", tmp_path / "wh", tmp_path / "progress"
    operations = recorded_history.operations(SHAPES[shape], seed=20260202)
    recorded_history.create(path, shape, windrow.Index("round-robin", 2, 2, maintenance="rebuild"))
    with recorded_history.open_warehouse(path) as wh:
        wh.create_summary("few", "SELECT n % 7 AS g, count(*) AS c FROM s GROUP BY 1", frequent=3)
    child = start_child(child_processes.run_until_step, str(path), shape, operations, str(progress), step, nth)
    assert join_child(child) == -signal.SIGKILL
    with recorded_history.open_warehouse(path) as wh:
        lists = 0
        for operation in (None, *operations[len(progress.read_bytes()) :]):
            if operation not in (None, ("replay",)):
                recorded_history.perform(wh, SHAPES[shape], operation)
            true = dict(wh.sql("SELECT n % 7, count(*) FROM s GROUP BY 1").fetchall())
            for group, lower, upper, _ in wh.sql("SELECT * FROM few").fetchall():
                assert lower <= true[group] <= upper
                lists = max(lists, wh.summaries()[0].lists)
        assert lists > 1
        assert wh.check().problems == ()


def test_check_finds_a_list_that_lies(wh: windrow.Warehouse) -> None:
    wh.create_summary("talkers", TALKERS, frequent=3)
    with wh._store.catalog.write() as tables:
        key, _ = next(iter(tables.raw_items("synopses", windrow.queries.synopses.summaries.catalog_key(1, "i"))))
        tables.delete("synopses", key)
    assert wh.check().problems == ("stream s: summary talkers: 4 groups are not within its bounds",)

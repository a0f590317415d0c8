"""A periodic query is taken when it can be answered again and again, and refused, with a reason, when it cannot."""

import datetime as dt

import pyarrow as pa
import pytest

import packet_warehouse
import windrow
from packet_warehouse import NOON
from windrow import DefinitionError, QueryError, WindowError, WindrowError

TOP = "SELECT src, sum(len) AS n FROM packets [WINDOW 10 MINUTES SLIDE 2 MINUTES] GROUP BY src"


@pytest.fixture(scope="module")
def wh():
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


def refused(wh: windrow.Warehouse, sql: str, **how: object) -> str:
    before = wh.queries()
    with pytest.raises(WindrowError) as error:
        wh.add_query("no", sql, **how)
    assert wh.queries() == before
    return str(error.value)


def test_what_was_added_is_listed_with_how_it_is_doing(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        added = wh.add_query("top", TOP, priority=3, missed="skip", keep="2 hours", timeout="5 seconds")
        (listed,) = wh.queries()
        assert listed == added
        assert (listed.name, listed.sql, listed.streams, listed.period) == ("top", TOP, ("packets",), "2 minutes")
        assert (listed.priority, listed.missed, listed.keep, listed.timeout) == (3, "skip", "2 hours", 5.0)
        assert (listed.runs, listed.slide, listed.due, listed.error) == (0, None, False, None)
        wh.drop_query("TOP")
        assert wh.queries() == []


def test_a_window_longer_than_the_stream_keeps(wh):
    with pytest.raises(WindowError, match="keeps rows for 16 minutes"):
        wh.add_query("no", "SELECT 1 FROM packets [WINDOW 17 MINUTES SLIDE 1 MINUTE]")
    assert "keeps rows for 16 minutes" in refused(wh, "SELECT 1 FROM quiet [WINDOW 1 HOUR SLIDE 1 MINUTE]")


@pytest.mark.parametrize(
    ("period", "nearest"),
    [("90 SECONDS", "2 minutes"), ("80 SECONDS", "1 minute"), ("1 SECOND", "1 minute"), ("200 SECONDS", "3 minutes")],
)
def test_a_period_that_is_no_multiple_of_the_slide(wh, period, nearest):
    message = refused(wh, f"SELECT 1 FROM packets [WINDOW 5 MINUTES SLIDE {period}]")
    assert "slides every 1 minute" in message
    assert f"the nearest is {nearest}" in message


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nothing FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "nothing"),
        ("SELECT 1 FROM nowhere [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "no stream, table or view 'nowhere'"),
        ("SELECT 1 FROM packets [WINDOW 5 MINUTES]", "how often it is due"),
        ("SELECT 1 FROM hosts", "reads no stream"),
        ("EXPLAIN SELECT 1 FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "EXPLAIN is asked once"),
        ("SELECT src, src FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "two columns"),
        ("SELECT src AS _Slide FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "two columns"),
        ("DELETE FROM packets", "only queries"),
        (
            "SELECT 1 FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE] a, packets [WINDOW 5 MINUTES SLIDE 2 MINUTES] b",
            "two periods",
        ),
        ("SELECT union_value(a := 1) AS u FROM packets [WINDOW 5 MINUTES SLIDE 1 MINUTE]", "column 'u'"),
    ],
)
def test_what_cannot_be_asked_again_and_again(wh, sql, message):
    assert message in refused(wh, sql)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"missed": "sometimes"}, "latest, every, skip"),
        ({"output": "all"}, "whole, inserts, deletes"),
        ({"sink": "xml"}, "parquet, csv, jsonl, html"),
        ({"sink": "table:/somewhere"}, "not a sink"),
        ({"keep": 0}, "at least one run"),
        ({"keep": "soon"}, "not a duration"),
        ({"timeout": 0}, "more than zero"),
        ({"priority": 1 << 40}, "whole number"),
        ({"params": [object()]}, "cannot be kept"),
        ({"params": [1]}, ""),
    ],
)
def test_wishes_that_cannot_be_met(wh, how, message):
    assert message in refused(wh, TOP, **how)


def test_names_are_shared_with_streams_and_tables(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("top", TOP)
        for name in ("top", "TOP", "packets", "Hosts"):
            with pytest.raises(DefinitionError, match="exists already"):
                wh.add_query(name, TOP)
        with pytest.raises(DefinitionError, match="'top' exists already"):
            wh.put_table("Top", pa.table({"a": [1]}))
        with pytest.raises(windrow.StreamExistsError, match="'top' exists already"):
            wh.create_stream("TOP", packet_warehouse.SCHEMA, time="ts", slide="1 minute")
        with pytest.raises(DefinitionError, match="not allowed"):
            wh.add_query("../top", TOP)


def test_a_stream_that_queries_read_is_not_dropped(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("top", TOP)
        with pytest.raises(DefinitionError, match=r"read by periodic queries \(top\)"):
            wh.drop_stream("packets")
        wh.drop_query("top")
        wh.drop_stream("packets")


def test_an_unknown_query_is_named_with_those_there_are(wh):
    for use in (wh.drop_query, wh.results, lambda name: wh.run_due([name])):
        with pytest.raises(windrow.UnknownQueryError, match="nobody"):
            use("nobody")


def test_parameters_are_bound_in_every_run(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        for name, mark, given in (("a", "$least", {"least": 58}), ("b", "?", [58]), ("c", "$1", [58])):
            sql = f"SELECT src, count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] WHERE src >= {mark} GROUP BY src"
            wh.add_query(name, sql, params=given)
        packet_warehouse.append_and_slide(wh, 21)
        assert {run.outcome for run in wh.run_due()} == {"delivered"}
        for name in "abc":
            assert sorted(row[-2:] for row in wh.results(name).fetchall()) == [(58, 10), (59, 10)]


@pytest.mark.parametrize("given", [1 << 63, -(1 << 63) - 1, (1 << 64) - 1, 1 << 100])
def test_integers_of_more_than_64_bits_are_kept_with_the_query(path, given):
    sql = "SELECT count(*) AS n, max(src) < $1 AS below FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] WHERE src < $1"
    with packet_warehouse.open_packet_warehouse() as wh:
        for name, mark, bound in (("a", "$1", [given]), ("b", "$most", {"most": given})):
            wh.add_query(name, sql.replace("$1", mark), params=bound)
        packet_warehouse.append_and_slide(wh, 21)
        expected = wh.sql(sql.replace(" SLIDE 1 MINUTE", ""), [given]).fetchall()
        assert {run.outcome for run in wh.run_due()} == {"delivered"}
        for name in "ab":
            assert [row[-2:] for row in wh.results(name).fetchall()] == expected


def test_a_one_time_answer_is_promoted(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        answer = wh.sql("SELECT count(*) AS n FROM packets [WINDOW 3 MINUTES] WHERE src < $1", [30])
        expected = answer.fetchall()
        made = wh.promote(answer, "promoted", slide="1 minute", priority=2)
        assert (made.period, made.priority) == ("1 minute", 2)
        packet_warehouse.append_and_slide(wh, 21)
        wh.run_due()
        assert [row[-1:] for row in wh.results("promoted").fetchall()] == expected
        with pytest.raises(QueryError, match="how often"):
            wh.promote(wh.sql("SELECT 1 FROM packets"), "never")
        wh.promote("SELECT count(*) AS n FROM packets", "whole", slide="2 minutes")
        assert wh.queries()[-1].period == "2 minutes"


def test_a_period_beside_the_text_must_not_contradict_it(path):
    text = "SELECT count(*) AS n FROM packets [WINDOW 4 MINUTES SLIDE 2 MINUTES]"
    with packet_warehouse.open_packet_warehouse() as wh:
        for add in (wh.add_query, lambda name, sql, **more: wh.promote(sql, name, **more)):
            with pytest.raises(
                QueryError, match=r"slide='5 minutes' is given.*says SLIDE 2 MINUTES; leave one of them out"
            ):
                add("q", text, slide="5 minutes")
        assert wh.queries() == []
        assert wh.add_query("same", text, slide="120 seconds").period == "2 minutes"
        for index, clause in enumerate(("[WINDOW 3 MINUTES]", "[ROWS 5]", "")):
            joined = f"{text} AS a, quiet {clause} AS b"
            assert wh.add_query(f"q{index}", joined, slide="5 minutes").period == "packets 2 minutes, quiet 5 minutes"


def test_a_query_without_a_stream_has_nothing_to_wait_for(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        for text in ("SELECT 1 AS x", "SELECT * FROM hosts"):
            with pytest.raises(QueryError, match="reads no stream; name one in FROM"):
                wh.add_query("q", text, slide="1 minute")


def test_a_read_only_handle_lists_and_reads_but_changes_nothing(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("top", TOP)
        packet_warehouse.append_and_slide(wh, 22)
        wh.run_due()
        with windrow.open(wh.path, read_only=True) as reader:
            assert [query.name for query in reader.queries()] == ["top"]
            assert reader.results("top").arrow().num_rows == 60
            for change in (lambda: reader.add_query("x", TOP), lambda: reader.drop_query("top"), reader.run_due):
                with pytest.raises(windrow.StorageError, match="reading only"):
                    change()


def test_results_say_which_window_they_are_of(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("top", TOP)
        packet_warehouse.append_and_slide(wh, 21)
        assert wh.run_due() == []  # 12:21 is in the period that began at 12:20
        packet_warehouse.append_and_slide(wh, 22)
        (run,) = wh.run_due()
        rows = wh.results("top").arrow()
        assert rows.schema.names == [
            "_slide",
            "_window_start",
            "_window_end",
            "_complete",
            "_staleness",
            "_coverage",
            "src",
            "n",
        ]
        first = rows.slice(0, 1).to_pylist()[0]
        assert (first["_slide"], first["_complete"], first["_staleness"]) == (run.slide, True, dt.timedelta(0))
        end = NOON + dt.timedelta(minutes=22)
        assert (first["_window_start"], first["_window_end"]) == (end - dt.timedelta(minutes=10), end)

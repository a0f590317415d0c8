"""What is not of the right kind is refused at the door with one sentence, and a text is never taken for its letters."""

import datetime as dt

import pyarrow as pa
import pytest

import windrow

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("host", pa.string()), ("len", pa.int64())])
WATCHED = "SELECT count(*) AS n FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE] WHERE host = ?"


@pytest.fixture
def wh(path):
    with windrow.open(path) as opened:
        opened.create_stream("s", SCHEMA, time="ts", key="host", slide="1 minute", lifetime="10 minutes")
        opened.create_stream("never", SCHEMA, time="ts", slide="1 minute")
        rows = {"ts": [NOON + dt.timedelta(seconds=n) for n in (1, 2, 3)], "host": ["ant", "a", "t"], "len": [1, 2, 3]}
        for name in ("s", "never"):
            opened.append(name, pa.table(rows, SCHEMA))
            opened.slide(name, to=NOON + dt.timedelta(minutes=1))
        yield opened


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda wh: wh.sql(None), "a statement is text, not None"),
        (lambda wh: wh.sql(b"SELECT 1"), "a statement is text, not bytes b'SELECT 1'"),
        (lambda wh: wh.explain(["SELECT 1"]), "a statement is text, not list"),
        (lambda wh: wh.sql("SELECT ?", 5), "params=5 cannot be bound; give a list for ? and $1, or a dict for $name"),
        (lambda wh: wh.sql("SELECT ?", "a"), "params='a' cannot be bound"),
        (lambda wh: wh.add_query("q", WATCHED, params=5), "params=5 cannot be bound; give a list for ? and $1"),
        (lambda wh: wh.add_query("q", WATCHED, params="ab"), "params='ab' cannot be bound"),
        (lambda wh: wh.add_query("q", None), "a statement is text, not None"),
        (lambda wh: wh.create_view("v", 5), "a statement is text, not int 5"),
        (lambda wh: wh.sql("SELECT 1", timeout="x"), "timeout 'x' is not a duration"),
        (lambda wh: wh.sql("SELECT 1", timeout=-1), "timeout=-1 must be seconds, more than zero"),
        (lambda wh: wh.sql("SELECT 1", timeout=[1]), "timeout=[1] must be seconds"),
        (lambda wh: wh.wait_for("s", up_to=NOON, timeout="x"), "timeout 'x' is not a duration"),
        (lambda wh: wh.probe("s", keys="ant"), "keys='ant' must be a list of keys; for one, give ['ant']"),
        (lambda wh: wh.probe("s", keys=5), "keys=5 must be a list of keys"),
        (lambda wh: wh.probe("s", between="ab"), "between takes a pair (low, high), not 'ab'"),
        (lambda wh: wh.scan("s", columns=5), "columns=5 must be a name or a list of names"),
        (lambda wh: wh.run_due(5), "names=5 must be a name or a list of names"),
        (lambda wh: wh.run_due("nope"), "there is no periodic query 'nope'"),
        (
            lambda wh: wh.put_table(
                "t", pa.table({"v": pa.array([None], pa.struct([("a", SCHEMA[2].type), ("A", SCHEMA[2].type)]))})
            ),
            "has a field twice (SQL does not tell capitals apart)",
        ),
        (lambda wh: windrow.open("a\0b"), r"the path 'a\x00b' holds a NUL character"),
        (lambda wh: wh.backup("/a\0b"), "holds a NUL character"),
        (lambda wh: windrow.restore("/a\0b", "/c"), "holds a NUL character"),
        (lambda wh: wh.add_query("q", WATCHED, params=["a"], sink="csv:/a\0b"), "holds a NUL character"),
        (
            lambda wh: (
                wh.add_query("counted", WATCHED, params=["a"]),
                wh.create_view("v", "SELECT n FROM Counted, s"),
            ),
            "view 'v' reads results, which come with runs, and 's', whose rows come with slides",
        ),
        (lambda wh: wh.drop_view("nope"), "there is no view 'nope'; none was created yet"),
        (
            lambda wh: wh.create_stream("z", SCHEMA, time="ts", key=5, slide="1 minute"),
            "stream 'z': key=5 must be a name or a list of names",
        ),
        (
            lambda wh: wh.create_stream(
                "z", SCHEMA.append(pa.field("_windrow_ts", pa.int64())), time="ts", slide="1 minute"
            ),
            "column name '_windrow_ts' is reserved",
        ),
    ],
)
def test_a_mistake_is_one_sentence(wh, call, message):
    with pytest.raises(windrow.WindrowError) as raised:
        call(wh)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert wh.streams() == ["never", "s"]


def test_one_name_stands_for_itself(wh):
    assert wh.scan("s", columns="host").read_all().column_names == ["host"]
    assert wh.probe("s", "ant", columns="len").to_pydict() == {"len": [1]}
    wh.add_query("q", "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
    assert [run.query for run in wh.run_due("q", now=True)] == ["q"]


def test_a_timeout_may_be_a_duration(wh):
    assert wh.sql("SELECT count(*) FROM s", timeout="5 seconds").fetchall() == [(3,)]
    with wh.snapshot() as snap:
        assert snap.sql("SELECT count(*) FROM s", timeout=dt.timedelta(seconds=5)).fetchall() == [(3,)]
    wh.wait_for("s", up_to=NOON, timeout=0)


@pytest.mark.parametrize("clause", ["[WINDOW 110000 WEEKS]", "[SINCE TIMESTAMP '0044-01-01 (BC)']"])
def test_a_window_may_begin_before_all_that_python_can_name(wh, clause):
    answer = wh.sql(f"SELECT count(*) FROM never {clause}")
    assert answer.windows[0].start == dt.datetime(1, 1, 1, tzinfo=dt.UTC)
    assert answer.fetchall() == [(3,)]


@pytest.mark.parametrize("place", ["afile", "afile/below"])
def test_a_sink_must_be_a_folder(wh, tmp_path, place):
    (tmp_path / "afile").write_text("mine")
    with pytest.raises(windrow.DefinitionError, match="afile is a file; name a folder"):
        wh.add_query(
            "q", "SELECT count(*) AS n FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]", sink=f"csv:{tmp_path / place}"
        )
    assert wh.queries() == []
    assert (tmp_path / "afile").read_text() == "mine"

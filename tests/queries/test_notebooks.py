"""Results in notebooks: tables and charts of answers, without using the answer up, and with nothing new left out."""

import datetime as dt
import html.parser
import json
import xml.etree.ElementTree as ET

import pyarrow as pa
import pytest

import windrow
from windrow.queries.charts import MAX_BARS, MAX_POINTS, make_chart

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
EVIL = "<script>alert(1)</script>"


def at(seconds: int) -> dt.datetime:
    return NOON + dt.timedelta(seconds=seconds)


class Cells(html.parser.HTMLParser):
    """The texts of a page's cells, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def wh(tmp_path):
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int64())])
    with windrow.open(tmp_path / "w") as wh:
        wh.create_stream("s", schema, time="ts", key="k", slide="1 minute")
        wh.append("s", [{"ts": at(s), "k": EVIL, "n": s} for s in range(1, 61)])
        wh.slide("s", to=at(60))
        yield wh


def test_an_answer_is_a_table_and_stays_to_be_read(wh):
    answer = wh.sql("SELECT k, n FROM s [WINDOW 1 MINUTE] ORDER BY n")
    page = Cells(answer._repr_html_())
    assert "script" not in page.tags and EVIL in page.texts
    assert page.texts[0].startswith("s [WINDOW 1 MINUTE]") and "the first 20 rows" in page.texts[0]
    assert {"1", "20"} <= set(page.texts) and "21" not in page.texts
    assert answer.peek(2).column("n").to_pylist() == [1, 2]
    assert [row[1] for row in answer.fetchall()] == list(range(1, 61))
    assert "read already" in answer._repr_html_()


def test_everything_that_a_notebook_ends_a_cell_with_is_a_table(wh):
    wh.create_view("v", "SELECT k, n FROM s")
    wh.add_query("q", "SELECT count(*) AS c FROM s [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
    shown = [wh.status(), wh.stream("s"), wh.views(), wh.views()[0], wh.queries(), wh.queries()[0], wh.query_plan()]
    for each in shown:
        assert "table" in Cells(each._repr_html_()).tags
    assert "newer rows" in wh.status()._repr_html_()
    assert "2025-01-01 12:01:00Z" in wh.views()._repr_html_()
    assert "pre" in Cells(wh.explain("SELECT * FROM s")._repr_html_()).tags


def test_printed_it_is_the_same_table_in_plain_text(wh):
    answer = wh.sql("SELECT k, n, NULL AS nothing FROM s [WINDOW 1 MINUTE] ORDER BY n")
    caption, head, *lines = str(answer).splitlines()
    assert caption.startswith("s [WINDOW 1 MINUTE]") and caption.endswith("the first 20 rows")
    assert head.split() == ["k", "n", "nothing"]
    assert [line.rsplit(maxsplit=1) for line in lines] == [[EVIL, str(n)] for n in range(1, 21)]
    assert len({len(line.rstrip()) for line in lines}) == 1, "numbers stand to the right"
    assert len(answer.fetchall()) == 60
    assert "read already" in str(answer)
    assert str(wh.status()).splitlines()[-1].endswith("newer rows")
    assert "live_rows" in str(wh.stream("s"))
    assert str(wh.queries()) == "none"


def test_a_series_over_time_has_all_its_points(wh):
    """25 of 60 points were drawn, the oldest ones."""
    chart = wh.sql("SELECT ts, n, n * 2 AS double FROM s ORDER BY n").plot()
    spec = chart.specification()
    drawn = [row for row in spec["data"]["values"] if row["series"] == "n"]
    assert [row["value"] for row in drawn] == [float(s) for s in range(1, 61)]
    assert drawn[-1]["ts"] == at(60).isoformat()
    assert spec["encoding"]["x"]["type"] == "temporal" and spec["mark"]["type"] == "line"
    root = ET.fromstring(chart.svg())
    assert len(root.findall(".//circle")) == 120 and len(root.findall(".//polyline")) == 2
    assert "12:01:00Z" in "".join(root.itertext())
    assert json.dumps(chart._repr_mimebundle_())


@pytest.mark.parametrize("name", ["series", "value", "__proto__", "a.b[0]"])
def test_an_axis_of_any_name_keeps_its_labels(name):
    spec = make_chart(pa.table({name: ["one", "two"], "n": [1, 2]})).specification()
    field = spec["encoding"]["y"]["field"].replace("\\", "")
    assert field != "__proto__" and spec["encoding"]["y"]["title"] == name
    assert [(row[field], row["series"], row["value"]) for row in spec["data"]["values"]] == [
        ("one", "n", 1.0),
        ("two", "n", 2.0),
    ]


def test_what_is_cut_is_said_and_is_never_the_newest():
    many = pa.table({"ts": [at(s) for s in range(MAX_POINTS + 5)], "n": range(MAX_POINTS + 5)})
    chart = make_chart(many)
    assert chart.labels[-1] == at(MAX_POINTS + 4) and len(chart.labels) == MAX_POINTS
    assert chart.cut == f"the newest {MAX_POINTS:,} of {MAX_POINTS + 5:,} points"
    bars = make_chart(pa.table({"k": [str(n) for n in range(60)], "n": range(60)}))
    assert (bars.kind, len(bars.labels), bars.cut) == ("bar", MAX_BARS, f"the first {MAX_BARS} of 60 rows")
    assert bars.cut in "".join(ET.fromstring(bars.svg()).itertext())


def test_lines_for_texts_gaps_and_odd_numbers():
    rows = pa.table(
        {
            "day": pa.array([dt.date(2025, 1, day) for day in (1, 1, 2, 3)]),
            "host": ["ant", "bee", "ant", "bee"],
            "x": [1.0, float("inf"), None, -3.0],
        }
    )
    chart = make_chart(rows)
    assert chart.series == {"ant": (1.0, None, None), "bee": (None, None, -3.0)}
    ET.fromstring(chart.svg())
    assert make_chart(rows.select(["host"])) is None
    assert make_chart(rows.slice(0, 0)) is None
    only = make_chart(pa.table({"n": [-1, 5]}))
    assert (only.axis, only.labels) == ("row", ("1", "2"))


def test_charts_are_files(wh, tmp_path):
    chart = wh.sql("SELECT k, sum(n) AS total FROM s GROUP BY k").plot(["total"])
    chart.save(str(tmp_path / "c.svg"))
    assert {each.tag.partition("}")[2] for each in ET.parse(tmp_path / "c.svg").iter()} == {
        "svg",
        "text",
        "rect",
        "line",
    }
    chart.save(str(tmp_path / "c.json"))
    assert json.loads((tmp_path / "c.json").read_text()) == chart.specification()
    with pytest.raises(windrow.QueryError, match=r"use \.svg, \.json or \.png"):
        chart.save(str(tmp_path / "c.gif"))
    with pytest.raises(windrow.QueryError, match="no column 'nope'"):
        wh.sql("SELECT n FROM s").plot(["nope"])
    with pytest.raises(windrow.QueryError, match="nothing to draw"):
        wh.sql("SELECT k FROM s").plot()

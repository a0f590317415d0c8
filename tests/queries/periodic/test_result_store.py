"""What was delivered: a table that SQL finds by the query's name, files that appear whole, differences that add up."""

import csv
import datetime as dt
import html.parser
import io
import json
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import packet_warehouse
import windrow
from packet_warehouse import NOON
from windrow import reclaim
from windrow.queries.periodic import result_store
from windrow.queries.periodic.delivery import subtract_rows

COUNT = "SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]"


@pytest.fixture
def wh():
    with packet_warehouse.open_packet_warehouse() as made:
        yield made


def slot(number: int) -> int:
    return int((NOON + dt.timedelta(minutes=number)).timestamp()) // 60


def go(wh: windrow.Warehouse, first: int, last: int) -> None:
    for number in range(first, last + 1):
        packet_warehouse.append_and_slide(wh, number)
        assert {run.outcome for run in wh.run_due()} <= {"delivered"}


# -- the results table -------------------------------------------------------------------------------------------------


def test_results_are_asked_by_the_querys_name_in_any_sql(wh):
    wh.add_query(
        "per_host", "SELECT src, sum(len) AS total FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] GROUP BY src"
    )
    go(wh, 21, 23)
    joined = wh.sql("SELECT h.name, max(r.total) FROM Per_Host r JOIN hosts h USING (src) GROUP BY h.name ORDER BY 1")
    assert joined.fetchall() == [("ant", 2 * sum(range(1, 600, 60))), ("bee", 2 * sum(range(2, 600, 60))),
                                 ("cat", 2 * sum(range(3, 600, 60)))]  # fmt: skip
    both = "SELECT count(*) FROM packets [WINDOW 1 MINUTE] p JOIN per_host r ON p.src = r.src AND r._slide = $1"
    assert wh.sql(both, [slot(23)]).fetchall() == [(600,)]
    assert wh.sql(both, [slot(23)], isolation="latest").fetchall() == [(600,)]
    with wh.snapshot() as snapshot:
        assert snapshot.sql("SELECT count(DISTINCT _slide) FROM per_host").fetchall() == [(3,)]
        go(wh, 24, 24)
        assert snapshot.sql("SELECT count(DISTINCT _slide) FROM per_host").fetchall() == [(3,)], "a snapshot stays"
        with snapshot.duckdb() as plain:
            assert plain.execute("SELECT count(DISTINCT _slide) FROM per_host").fetchall() == [(3,)]
    assert wh.sql("SELECT count(DISTINCT _slide) FROM per_host [WINDOW 2 MINUTES]").fetchall() == [(2,)]
    wh.drop_query("per_host")
    with pytest.raises(windrow.QueryError, match="no stream, table or view 'per_host'"):
        wh.sql("SELECT 1 FROM per_host")


def test_results_are_there_after_a_restart(path):
    with packet_warehouse.open_packet_warehouse() as wh:
        wh.add_query("q", COUNT)
        go(wh, 21, 22)
        expected = wh.results("q").fetchall()
        folder = wh.path
        wh.close()
        with windrow.open(folder) as again:
            assert again.sql("SELECT * FROM q ORDER BY _slide").fetchall() == expected
            assert again.queries()[0].runs == 2
            go(again, 23, 23)
            assert again.results("q").arrow().num_rows == 3


def test_a_query_can_read_what_another_delivered(wh):
    wh.add_query("each", COUNT)
    wh.add_query(
        "trend",
        "SELECT count(*) AS runs, (SELECT count(*) FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]) AS now FROM each",
    )
    go(wh, 21, 23)
    assert [row[-2:] for row in wh.results("trend").fetchall()] == [(1, 600), (2, 600), (3, 600)]


TYPES = """SELECT sum(len) AS huge, 1.5::DECIMAL(9, 2) AS price, max(ts) AS at, [1, NULL, 3] AS list, {'a': 'x'} AS part,
    NULL AS nothing, INTERVAL 36 HOURS AS span, 'nan'::DOUBLE AS nan, '\\x00\\xFF'::BLOB AS raw, DATE '2026-01-02' AS day,
    true AS flag, '<b>&"' AS text, uuid '00000000-0000-0000-0000-000000000001' AS id
    FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]"""


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_every_type_comes_back_as_it_was_asked_for(wh, monkeypatch, inline):
    monkeypatch.setattr(result_store, "INLINE_BYTES", inline)
    wh.add_query("types", TYPES)
    go(wh, 21, 21)
    expected = wh.sql(TYPES)
    columns = ", ".join(f'"{name}"' for name in expected.columns)
    asked = wh.sql(f"SELECT {columns} FROM types")
    assert [repr(row) for row in asked.fetchall()] == [repr(row) for row in expected.fetchall()]
    assert [repr(row[6:]) for row in wh.results("types").fetchall()] == [repr(row) for row in wh.sql(TYPES).fetchall()]
    kinds = dict(wh.sql("SELECT column_name, column_type FROM (DESCRIBE types)").fetchall())
    assert (kinds["huge"], kinds["span"], kinds["_staleness"]) == ("HUGEINT", "INTERVAL", "INTERVAL")


def test_an_empty_answer_is_a_run_without_rows(wh):
    wh.add_query("none", "SELECT src FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] WHERE src < 0")
    go(wh, 21, 22)
    assert wh.results("none").arrow().num_rows == 0
    assert wh.sql("SELECT count(*) FROM none").fetchall() == [(0,)]
    assert wh.sql("SELECT outcome, rows FROM windrow.runs").fetchall() == [("delivered", 0)] * 2


def test_the_order_of_an_answer_is_kept_in_its_run(wh, monkeypatch):
    """Some runs lie in the catalog, some in a part of their own, some were rolled: the order is the same."""
    monkeypatch.setattr(result_store, "TAIL_RUNS", 3)
    wh.add_query(
        "top", "SELECT src, len FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] WHERE src < 5 ORDER BY len DESC LIMIT 7"
    )
    expected = []
    for number in range(21, 35):
        monkeypatch.setattr(result_store, "INLINE_BYTES", 0 if number % 3 == 0 else 1 << 20)
        go(wh, number, number)
        expected += [(slot(number), *row) for row in wh.sql(
            "SELECT src, len FROM packets [WINDOW 1 MINUTE] WHERE src < 5 ORDER BY len DESC LIMIT 7").fetchall()]  # fmt: skip
    assert [(row[0], *row[-2:]) for row in wh.results("top").fetchall()] == expected
    assert [row[-2:] for row in wh.results("top", slide=slot(30)).fetchall()] == [
        row[1:] for row in expected if row[0] == slot(30)
    ]
    parts = list((wh.path / "results" / "top" / "parts").iterdir())
    assert 1 < len(parts) < 14
    assert wh.check().ok


@pytest.mark.parametrize("inline", [0, 1 << 20])
@pytest.mark.parametrize(("keep", "kept"), [(3, 3), ("5 minutes", 5), (1, 1)])
def test_retention_lets_old_runs_go(wh, monkeypatch, keep, kept, inline):
    monkeypatch.setattr(result_store, "INLINE_BYTES", inline)
    monkeypatch.setattr(result_store, "TAIL_RUNS", 2)
    wh.add_query("q", COUNT, keep=keep, sink="csv")
    go(wh, 21, 32)
    assert [row[0] - slot(0) for row in wh.results("q").fetchall()] == list(range(33 - kept, 33))
    assert wh.sql("SELECT count(*) FROM q").fetchall() == [(kept,)]
    assert wh.sql("SELECT count(*) FROM windrow.runs").fetchall() == [(kept,)]
    wh.gc()
    assert len(list((wh.path / "results" / "q").glob("*.csv"))) == kept
    assert len(list((wh.path / "results" / "q" / "parts").glob("*"))) <= kept + 1
    assert wh.check().ok


def test_a_dropped_query_leaves_nothing_behind(wh, monkeypatch, tmp_path):
    monkeypatch.setattr(result_store, "INLINE_BYTES", 0)
    wh.add_query("q", COUNT, sink="html", output="inserts", missed="every")
    wh.add_query("mine", COUNT, sink=f"jsonl:{tmp_path}")
    go(wh, 21, 22)
    packet_warehouse.append_and_slide(wh, 23)
    wh.drop_query("q")
    wh.drop_query("mine")
    wh.gc()
    assert [p for p in (wh.path / "results").rglob("*") if p.is_file()] == []
    assert len(list(tmp_path.glob("*.jsonl"))) == 2, "what is in the user's own folder is the user's"
    store = wh._store.catalog
    for kept in ("queries", "paced", "keepers", "holds", "runs", "results"):
        assert store.read(lambda tables, kept=kept: list(tables.raw_items(kept))) == [], kept
    assert wh.check().ok


@pytest.mark.parametrize(("sink", "placed"), [("csv", 1), ("html", 2)])
def test_files_of_a_query_outlive_those_of_a_dropped_one_of_its_name(wh, sink, placed):
    """Both are called by query, window and slide, and the old ones are removed some time after the new ones came."""
    wh.add_query("q", COUNT, sink=sink)
    go(wh, 21, 22)
    with wh.snapshot():
        wh.drop_query("q")
        wh.add_query("q", "SELECT 'new' AS kind FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] LIMIT 1", sink=sink)
        wh.run_due(["q"], now=True)
    wh.gc()
    left = [p for p in (wh.path / "results" / "q").iterdir() if p.is_file()]
    assert len(left) == placed
    assert all("new" in path.read_text() for path in left)
    wh.drop_query("q")
    wh.gc()
    assert [p for p in (wh.path / "results").rglob("*") if p.is_file()] == []
    assert wh.check().ok


# -- output modes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_inserts_and_deletes_add_up_to_the_whole_answer(wh, monkeypatch, inline):
    monkeypatch.setattr(result_store, "INLINE_BYTES", inline)
    sql = "SELECT note, len % 7 AS k FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] WHERE src < 3"
    for output in ("whole", "inserts", "deletes"):
        wh.add_query(output, sql, output=output)
    go(wh, 21, 25)

    def of(name: str, number: int) -> list:
        return sorted(row[-2:] for row in wh.results(name, slide=slot(number)).fetchall())

    assert of("inserts", 21) == of("whole", 21)
    assert of("deletes", 21) == []
    for number in range(22, 26):
        now, before = of("whole", number), of("whole", number - 1)
        gone, come = list(before), list(now)
        for row in now:
            if row in gone:
                gone.remove(row)
        for row in before:
            if row in come:
                come.remove(row)
        assert of("inserts", number) == come
        assert of("deletes", number) == gone
        assert come and gone


def test_a_difference_counts_copies_and_takes_nulls_for_equal(wh):
    schema = pa.schema([("a", pa.float64()), ("b", pa.list_(pa.string()))])

    def table(*rows: tuple) -> pa.Table:
        return pa.Table.from_pylist([dict(zip("ab", row, strict=True)) for row in rows], schema)

    nan = float("nan")
    left = table((1.0, ["x"]), (None, None), (1.0, ["x"]), (nan, []), (None, None), (2.0, None))
    right = table((1.0, ["x"]), (None, None), (nan, []), (3.0, None))
    assert (
        subtract_rows(wh._store, left, right).to_pylist() == table((1.0, ["x"]), (None, None), (2.0, None)).to_pylist()
    )
    assert subtract_rows(wh._store, left, None).num_rows == 6
    assert subtract_rows(wh._store, right, left).to_pylist() == table((3.0, None)).to_pylist()


# -- files -------------------------------------------------------------------------------------------------------------

FILED = """SELECT note, sum(len) AS total, avg(len) AS mean, 'a "quoted", <b>text</b>' AS words, [1, 2] AS list,
    CASE WHEN note = 'm20' THEN 'nan'::DOUBLE END AS odd FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] GROUP BY note ORDER BY note"""


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("default_folder", [True, False])
def test_each_run_is_one_file(wh, tmp_path, kind, default_folder):
    wh.add_query("q", FILED, sink=kind if default_folder else f"{kind}:{tmp_path}/a/b")
    go(wh, 21, 23)
    folder = wh.path / "results" / "q" if default_folder else tmp_path / "a" / "b"
    files = sorted(path for path in folder.iterdir() if path.is_file())
    assert [path.name for path in files] == [f"q-20250101T12{n}00Z-{slot(n)}.{kind}" for n in (21, 22, 23)]
    rows = _read(files[0], kind)
    assert [row["note"] for row in rows] == ["m20", "m21"]
    assert int(rows[0]["total"]) == sum(range(600))
    assert float(rows[0]["mean"]) == 299.5
    assert rows[0]["words"] == 'a "quoted", <b>text</b>'
    assert int(rows[0]["_slide"]) == slot(21)
    assert float(rows[0]["_staleness"]) == 0.0
    listed = wh.sql("SELECT file FROM windrow.runs ORDER BY slide").fetchall()
    assert [wh.path / row[0] for row in listed] == files


def _read(path, kind: str) -> list[dict]:
    if kind == "parquet":
        return pq.read_table(path).to_pylist()
    if kind == "csv":
        return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))
    lines = path.read_text().splitlines()
    return [json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON")) for line in lines]


def test_wide_integers_are_whole_in_files(wh):
    sql = "SELECT sum(len)::HUGEINT * 100000000000000000000 AS big FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]"
    for kind in ("csv", "jsonl", "parquet"):
        wh.add_query(kind, sql, sink=kind)
    go(wh, 21, 21)
    expected = sum(range(600)) * 10**20
    actual = {
        kind: _read(next((wh.path / "results" / kind).glob(f"*.{kind}")), kind)[0]["big"] for kind in ("csv", "parquet")
    }
    assert actual == {"csv": str(expected), "parquet": Decimal(expected)}
    assert str(expected) in next((wh.path / "results" / "jsonl").glob("*.jsonl")).read_text()


def test_files_have_the_forms_of_the_command_line(wh):
    """Times in ISO form, durations in words, nested values as JSON, and what is no number as text."""
    for kind in ("csv", "jsonl"):
        wh.add_query(kind, TYPES, sink=kind)
    go(wh, 21, 21)
    actual = {k: _read(next((wh.path / "results" / k).glob(f"*.{k}")), k)[0] for k in ("csv", "jsonl")}
    for row in actual.values():
        assert (row["at"], row["_window_end"]) == ("2025-01-01T12:20:59.1Z", "2025-01-01T12:21:00Z")
        assert (row["span"], row["raw"], row["day"], row["price"]) == ("36 hours", r"\x00ff", "2026-01-02", "1.50")
    assert (actual["csv"]["list"], actual["csv"]["part"], actual["csv"]["nan"]) == ("[1,null,3]", '{"a":"x"}', "nan")
    assert (actual["jsonl"]["list"], actual["jsonl"]["part"], actual["jsonl"]["nan"]) == (
        [1, None, 3],
        {"a": "x"},
        "NaN",
    )


class _Page(html.parser.HTMLParser):
    """Counts tags and remembers attributes that would fetch or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text: list[str] = []
        self.suspicious: list[tuple] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.suspicious += [(tag, *pair) for pair in attrs if pair[0] in ("src", "href", "onload", "onclick", "action")]

    def handle_data(self, data):
        self.text.append(data)


EVIL = "</td></svg><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT '{EVIL}' || note AS \"<script>name</script>\", count(*) AS \"n\"\"<b>\" FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] GROUP BY note",
        "SELECT count(*) AS n FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] WHERE note <> '<script>'",
        "SELECT -sum(len) AS n, note FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] GROUP BY note",
        "SELECT note FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] LIMIT 2",
        "SELECT src FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE] WHERE src < 0",
        "SELECT 'inf'::DOUBLE AS x, NULL::INT AS y FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] LIMIT 3",
    ],
)  # fmt: skip
def test_a_report_is_a_page_that_fetches_nothing_and_runs_nothing(wh, sql):
    wh.add_query("report", sql, sink="html")
    go(wh, 21, 23)
    folder = wh.path / "results" / "report"
    assert len(list(folder.glob("*.html"))) == 4
    content = (folder / "report-latest.html").read_text()
    assert content == max(folder.glob("report-2*.html")).read_text()
    page = _Page()
    page.feed(content)
    assert page.suspicious == []
    assert not {"script", "img", "link", "iframe", "object", "b"} & set(page.tags)
    assert "http" not in content.replace("http-equiv", "")
    assert not re.search(r"url\(", content)
    rows = wh.results("report", slide=slot(23)).arrow()
    assert page.tags.count("tr") == rows.num_rows + 1
    if rows.num_rows and any(name == "n" for name in rows.schema.names):
        assert "svg" in page.tags


def test_a_folder_that_cannot_be_written_is_told_and_tried_again(wh, tmp_path):
    blocked = tmp_path / "file"
    wh.add_query("q", COUNT, sink=f"csv:{blocked}/reports")
    blocked.write_text("in the way")
    wh.add_query("other", COUNT, sink="csv")
    packet_warehouse.append_and_slide(wh, 21)
    ran = {run.query: run for run in wh.run_due()}
    assert (ran["q"].outcome, ran["q"].file, ran["q"].rows) == ("unplaced", None, 1)
    assert (ran["other"].outcome, ran["other"].error) == ("delivered", None)
    assert Path(ran["other"].file).exists(), "a file that is reported is there"
    report = {query.name: query.error for query in wh.queries()}
    assert "writing" in (report["q"] or "")
    assert ran["q"].error == report["q"]
    assert report["other"] is None
    assert wh.results("q").arrow().num_rows == 1, "the run is delivered; only its file is missing"
    assert wh.run_due() == [], "nothing is due, and the file cannot be written still"
    blocked.unlink()
    wh.run_due()
    assert len(list((blocked / "reports").iterdir())) == 1
    go(wh, 22, 22)
    assert len(list((blocked / "reports").iterdir())) == 2
    assert {query.error for query in wh.queries()} == {None}


def test_results_of_several_queries_are_rolled_in_one_commit_and_one_that_cannot_be_harms_no_other(wh, monkeypatch):
    monkeypatch.setattr(result_store, "TAIL_RUNS", 2)
    for name in ("a", "b", "c"):
        wh.add_query(name, COUNT)
    stage, tried = result_store.stage_part, []

    def failing(store, entry, rows, first, last):
        tried.append(entry.name)
        if entry.name == "b":
            raise windrow.StorageError("no room for b")
        return stage(store, entry, rows, first, last)

    monkeypatch.setattr(result_store, "stage_part", failing)
    go(wh, 21, 22)
    before = wh._store.catalog.version()
    go(wh, 23, 23)
    assert tried == ["a", "b", "c"]
    # An append, a slide, one commit for three deliveries, one for two parts.
    assert wh._store.catalog.version() == before + 4
    assert not (wh.path / "results" / "b").exists()
    for name in ("a", "b", "c"):
        assert [row[0] for row in wh.results(name).fetchall()] == [slot(number) for number in (21, 22, 23)]
    assert wh.check().ok


# -- a query that is dropped and added anew ----------------------------------------------------------------------------


@pytest.mark.parametrize("sink", ["csv", "html"])
@pytest.mark.parametrize("clean_up", ["gc", "slide"])
def test_a_file_that_is_written_anew_while_the_old_one_is_being_removed_stays(wh, monkeypatch, sink, clean_up):
    """The clean-up has looked up what is to go; before it removes that, the query is there again and has run."""
    wh.add_query("q", COUNT, sink=sink)
    go(wh, 21, 21)
    before = {file.name for file in (wh.path / "results" / "q").iterdir() if file.is_file()}
    wh.drop_query("q")
    plain, written = reclaim.find_reclaimable, []

    def early(store, *more):
        actual = plain(store, *more)
        if not written:
            wh.add_query("q", COUNT, sink=sink)
            written.extend(wh.run_due(["q"], now=True))
        return actual

    monkeypatch.setattr(reclaim, "find_reclaimable", early)
    wh.gc() if clean_up == "gc" else wh.slide("quiet", to=NOON)
    assert [run.outcome for run in written] == ["delivered"]
    assert Path(written[0].file).name in before, "the test is about files of one name"
    assert {file.name for file in (wh.path / "results" / "q").iterdir() if file.is_file()} == before
    wh.drop_query("q")
    wh.gc()
    assert not [file for file in (wh.path / "results" / "q").iterdir() if file.is_file()]


def test_a_stream_that_is_filled_anew_writes_all_its_files_again(wh):
    """The old files are still to be removed, since a reader was there, when runs of the same slides write theirs."""

    def fill() -> list[str]:
        wh.create_stream(
            "again", packet_warehouse.SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes"
        )
        rows = pa.table({"ts": [NOON], "src": [1], "len": [1], "note": ["x"]}).select(packet_warehouse.SCHEMA.names)
        wh.append("again", rows.cast(packet_warehouse.SCHEMA))
        wh.slide("again", to=NOON)
        wh.add_query("q", COUNT.replace("packets", "again"), sink="csv")
        files = []
        for number in (1, 2, 3):
            wh.slide("again", to=NOON + dt.timedelta(minutes=number))
            files += [run.file for run in wh.run_due(["q"])]
        return files

    first = fill()
    with wh.snapshot():
        wh.drop_query("q")
        wh.drop_stream("again")
        assert fill() == first
    wh.gc()
    assert [Path(file).exists() for file in first] == [True] * 3


def test_a_file_that_cannot_be_removed_stops_no_clean_up_and_goes_later(wh, monkeypatch):
    wh.add_query("q", COUNT, sink="csv")
    go(wh, 21, 22)
    wh.drop_query("q")
    files = wh._store.files
    plain = type(files).unlink

    def refuse(self, path):
        if path.suffix == ".csv":
            raise PermissionError(13, "not yours", str(path))
        plain(self, path)

    monkeypatch.setattr(type(files), "unlink", refuse)
    packet_warehouse.append_and_slide(wh, 23)
    assert wh.gc().waiting == 2
    monkeypatch.setattr(type(files), "unlink", plain)
    report = wh.gc()
    assert (report.files, report.waiting) == (2, 0)
    assert not list((wh.path / "results").rglob("*.csv"))

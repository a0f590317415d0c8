"""Statements cut into partial states and a query over finished ones: the same answer as in one piece, or not cut at all."""

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, when
from windrow.queries import incremental, latest

CUT = {
    "plain": "SELECT count(*), sum(len) FROM p",
    "nothing left": "SELECT count(*), sum(len), min(tag) FROM p WHERE len < 0",
    "no groups left": "SELECT src, count(*) FROM p WHERE len < 0 GROUP BY src",
    "groups only": "SELECT src FROM p GROUP BY src ORDER BY src",
    "hidden group": "SELECT sum(len) FROM p GROUP BY src ORDER BY src",
    "alias of a group": "SELECT date_trunc('minute', ts) AS m, count(*) FROM p GROUP BY m ORDER BY m",
    "position of a group": "SELECT src % 2, sum(len) FROM p GROUP BY 1 ORDER BY 1",
    "all groups": "SELECT tag, sum(len) AS total, src FROM p GROUP BY ALL ORDER BY ALL",
    "qualified and not": "SELECT q.src, sum(len) FROM p [WINDOW 40 SECONDS] AS q GROUP BY src ORDER BY p0.src".replace(
        "p0", "q"
    ),
    "in capitals": "select SRC, SUM(LEN) from P group by Src order by sRC",
    "quoted": 'SELECT "src" AS "group", sum("len") AS "select" FROM "p" GROUP BY "src" ORDER BY "group"',
    "expressions over groups": "SELECT (src + 1) * 2, src + 1, sum(len) FROM p GROUP BY src + 1 ORDER BY 1",
    "expressions over aggregates": "SELECT -sum(len)::INT + 1, sum(len) / count(*), coalesce(min(tag), '?') FROM p",
    "having": "SELECT src, count(*) c FROM p GROUP BY src HAVING sum(len) > 100 AND c > 1 ORDER BY src",
    "case": "SELECT CASE WHEN src > 2 THEN 'high' ELSE 'low' END AS h, avg(len) FROM p GROUP BY h ORDER BY h",
    "comments": "SELECT src, -- the source, sum(\n sum(len) /* ) */ FROM p -- GROUP BY 2\nGROUP BY src ORDER BY src -- end",
    "brackets in strings": "SELECT src || ')(', sum(len) FROM p WHERE tag <> '(from' GROUP BY src || ')(' ORDER BY 1",
    "letters of many bytes": "SELECT 'äöü→' AS λ, src, sum(len) AS Σ FROM p WHERE tag <> '→' GROUP BY src ORDER BY src",
    "filter": "SELECT count(*) FILTER (WHERE len > 10), sum(len) FILTER (src = 1) FROM p",
    "within group": "SELECT percentile_cont(0.3) WITHIN GROUP (ORDER BY len), quantile_disc(len, [0.1, 0.9]) FROM p",
    "window functions": "SELECT src, rank() OVER (ORDER BY sum(len) DESC), sum(sum(len)) OVER () FROM p GROUP BY src ORDER BY 1",
    "qualify": "SELECT src, sum(len) FROM p GROUP BY src QUALIFY row_number() OVER (ORDER BY sum(len)) <= 2 ORDER BY src",
    "distinct over groups": "SELECT DISTINCT src % 2, count(*) > 3 FROM p GROUP BY src ORDER BY 1",
    "limit": "SELECT src, sum(len) s FROM p GROUP BY src ORDER BY s DESC, src LIMIT 2 OFFSET 1",
    "from first": "FROM p [WINDOW 30 SECONDS] SELECT max(len), min(ts) WHERE src < 3",
    "semicolon": "SELECT sum(len) FROM p ;",
    "join": "SELECT h.name, sum(len) FROM p JOIN hosts h ON h.id = p.src GROUP BY h.name ORDER BY 1",
    "join using": "SELECT name, count(*) FROM p JOIN sources USING (src) GROUP BY name ORDER BY 1",
    "natural join": "SELECT name, count(*) FROM p NATURAL JOIN sources GROUP BY name ORDER BY 1",
    "left join": "SELECT h.name, sum(len) FROM p LEFT JOIN hosts h ON h.id = p.src GROUP BY h.name ORDER BY 1 NULLS LAST",
    "right join": "SELECT h.name, sum(len) FROM hosts h RIGHT JOIN p ON h.id = p.src GROUP BY h.name ORDER BY 1 NULLS LAST",
    "semi join": "SELECT count(*) FROM p SEMI JOIN hosts h ON h.id = p.src",
    "anti join": "SELECT sum(len) FROM p ANTI JOIN hosts h ON h.id = p.src",
    "asof join": "SELECT name, count(*) FROM p ASOF JOIN hosts h ON p.src >= h.id GROUP BY name ORDER BY 1",
    "two tables": "SELECT count(*) FROM hosts h, p, sources s WHERE h.id = p.src AND s.src = p.src",
    "subquery in where": "SELECT sum(len) FROM p WHERE src IN (SELECT id FROM hosts WHERE name <> 'one')",
    "since": f"SELECT count(*) FROM p [SINCE TIMESTAMP '{when(BASE + 3 * DELTA)}']",
    "alias like a column": "SELECT src, sum(len) AS len FROM p GROUP BY src ORDER BY len",
    "alias like its column": "SELECT src AS src, max(len) AS most FROM p GROUP BY src ORDER BY src",
    "struct": "SELECT {'a': sum(len), 'b': [count(*)]} FROM p",
    "same aggregate twice": "SELECT sum(len), sum(len) * 2, SUM(p.len) FROM p",
}
UNCUT = {
    "rows": "SELECT src, len FROM p ORDER BY ALL",
    "count distinct": "SELECT count(DISTINCT src) FROM p",
    "mode": "SELECT mode(src) FROM p WHERE src = 1",
    "list": "SELECT list(len ORDER BY len, src) FROM p",
    "top n": "SELECT max(len, 3) FROM p",
    "approximate quantile": "SELECT approx_quantile(len, 0.5) > 0 FROM p",
    "now": "SELECT count(*) FROM p WHERE ts < now()",
    "current_date": "SELECT sum(len), current_date > DATE '2020-01-01' FROM p",
    "random": "SELECT count(*) FROM p WHERE random() >= 0",
    "sample": "SELECT count(*) FROM p USING SAMPLE 100%",
    "rollup": "SELECT src, sum(len) FROM p GROUP BY ROLLUP (src) ORDER BY ALL",
    "self join": "SELECT count(*) FROM p a JOIN p b USING (src)",
    "two windows": "SELECT count(*) FROM p [WINDOW 20 SECONDS] a, p [WINDOW 10 SECONDS] b",
    "count window": "SELECT sum(len) FROM p [ROWS 7]",
    "table on the preserved side": "SELECT h.name, count(len) FROM hosts h LEFT JOIN p ON h.id = p.src GROUP BY 1 ORDER BY 1",
    "full join": "SELECT count(*) FROM p FULL JOIN hosts h ON h.id = p.src",
    "stream is nearest": "SELECT count(*) FROM hosts h ASOF JOIN p ON h.id >= p.src",
    "subquery": "SELECT max(c) FROM (SELECT src, count(*) AS c FROM p GROUP BY src)",
    "cte": "WITH x AS (FROM p) SELECT sum(len) FROM x",
    "union": "SELECT sum(len) FROM p UNION ALL SELECT count(*) FROM p ORDER BY 1",
    "scalar subquery": "SELECT sum(len) - (SELECT count(*) FROM hosts) FROM p",
    "renamed columns": "SELECT b, sum(c) FROM p AS q(a, b, c) GROUP BY b ORDER BY b",
    "alias hides a group": "SELECT -src AS src, sum(len) FROM p GROUP BY src ORDER BY src",
    "alias hides in having": "SELECT src, sum(len) AS len FROM p GROUP BY src HAVING len > 100 ORDER BY src",
    "system table": "SELECT sum(p.len), count(s.stream) FROM p, windrow.streams s",
}


@pytest.fixture(scope="module")
def wh(tmp_path_factory):
    opened = windrow.open(tmp_path_factory.mktemp("states") / "warehouse", clock=lambda: BASE + 1000 * DELTA)
    schema = pa.schema([("ts", pa.timestamp("us")), ("src", pa.int64()), ("len", pa.int64()), ("tag", pa.string())])
    opened.create_stream("p", schema, time="ts", key="src", slide="10 seconds", lifetime="60 seconds")
    for slot in range(1, 9):
        ts = [BASE + (slot - 1) * DELTA + 1 + i * 1_000_000 for i in range(9)]
        tags = [None if i % 4 == 0 else "abc"[i % 3] for i in range(9)]
        opened.append("p", pa.table([ts, [i % 5 for i in range(9)], [i * slot for i in range(9)], tags], schema=schema))
        opened.slide("p", to=when(BASE + slot * DELTA))
    opened.put_table("hosts", pa.table({"id": [0, 1, 3], "name": ["zero", "one", "three"]}))
    opened.put_table("sources", pa.table({"src": [1, 1, 2, 9], "name": ["a", "b", "c", "d"]}))
    yield opened
    opened.close()


def ask(wh, monkeypatch, text: str, params=None):
    """The answers at `latest` and `snapshot`, and whether the first was computed slot by slot."""
    monkeypatch.setattr(incremental, "READ_BYTES", 1)
    cut = []
    real = latest._slot_by_slot
    monkeypatch.setattr(latest, "_slot_by_slot", lambda *a: (answer := real(*a), cut.append(answer))[0])
    at_latest = wh.sql(text, params, isolation="latest")
    return at_latest.arrow(), wh.sql(text, params).arrow(), bool(cut)


@pytest.mark.parametrize("name", CUT)
def test_a_statement_that_is_cut_answers_as_in_one_piece(wh, monkeypatch, name):
    latest, whole, cut = ask(wh, monkeypatch, CUT[name])
    assert cut
    # What is known of the answer, which names the isolation, is the schema's own metadata: that differs.
    plain = [answer.schema.remove_metadata() for answer in (latest, whole)]
    assert plain[0].equals(plain[1], check_metadata=True)
    actual, wanted = latest.to_pylist(), whole.to_pylist()
    ordered = "ORDER BY" in CUT[name].upper()
    assert actual == wanted if ordered else sorted(map(repr, actual)) == sorted(map(repr, wanted))


@pytest.mark.parametrize("name", UNCUT)
def test_a_statement_that_cannot_be_cut_is_not(wh, monkeypatch, name):
    latest, whole, cut = ask(wh, monkeypatch, UNCUT[name])
    assert not cut
    assert latest.to_pylist() == whole.to_pylist()


@pytest.mark.parametrize(
    ("text", "params"),
    [
        (
            "SELECT src, sum(len) + ? FROM p WHERE len > ? GROUP BY src HAVING count(*) > ? ORDER BY src LIMIT ?",
            [5, 1, 2, 3],
        ),
        ("SELECT src + ?, count(*) FROM p GROUP BY 1 ORDER BY 1", [7]),
        ("SELECT quantile_cont(len, ?) FROM p WHERE src = ?", [0.5, 2]),
        (
            "SELECT src, sum(len + $b) FROM p WHERE len > $a GROUP BY src HAVING max(len) > $a ORDER BY src",
            {"a": 3, "b": 1},
        ),
        ("SELECT sum(len * $1), $2 || 'x' FROM p WHERE src < $1", [3, "y"]),
    ],
)
def test_parameters_go_to_the_piece_that_names_them(wh, monkeypatch, text, params):
    latest, whole, cut = ask(wh, monkeypatch, text, params)
    assert cut
    assert latest.to_pylist() == whole.to_pylist()

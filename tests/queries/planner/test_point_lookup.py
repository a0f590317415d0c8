"""Statements that plainly point at a key ask what DuckDB's planner would have said that they ask, and are planned once.

The oracle is the planner itself: it plans the statement over a stand-in that listens.
"""

import datetime as dt
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

import packet_warehouse
import scratch_folders
import windrow
from windrow.indexes.probe import KeyRange
from windrow.queries.engine import arrow_source, cursor_pool
from windrow.queries.planner import reads
from windrow.queries.planner.predicates import PredicateCollector
from windrow.queries.sql.statement import parse

KEYED = pa.schema([
    ("ts", packet_warehouse.STAMP), ("host", pa.string()), ("port", pa.int16()), ("word", pa.dictionary(pa.int32(), pa.string())),
    ("n", pa.uint64()), ("f", pa.float64()),
])  # fmt: skip


@pytest.fixture(scope="module")
def wh() -> Iterator[windrow.Warehouse]:
    with packet_warehouse.open_packet_warehouse() as made:
        for name, key in {"pairs": ["host", "port"], "words": ["word"], "numbers": ["n", "f"]}.items():
            made.create_stream(name, KEYED, time="ts", key=key, slide="1 minute", lifetime="16 minutes")
        made.create_stream(
            "many", packet_warehouse.SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes"
        )
        for number in (1, 2):
            made.append("many", minute(number))
            made.slide("many", to=packet_warehouse.NOON + dt.timedelta(minutes=number))
        yield made


def minute(number: int) -> pa.Table:
    """20 000 rows with 5000 keys: a block of a directory holds many keys, and a key is a small part of all rows."""
    start = packet_warehouse.NOON + dt.timedelta(minutes=number - 1)
    instant = [start + dt.timedelta(milliseconds=3 * i + 1) for i in range(20_000)]
    columns = [instant, [i % 5000 for i in range(20_000)], list(range(20_000)), ["x"] * 20_000]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, packet_warehouse.SCHEMA, strict=True)],
        schema=packet_warehouse.SCHEMA,
    )


def collected(wh: windrow.Warehouse, text: str, params: object) -> tuple[object, object]:
    """What the tree says, None if it is not plain, and what DuckDB says."""
    statement = parse(text)
    with wh.snapshot() as snapshot:
        streams = {r.relation: r for r in statement.references}
        pooled = cursor_pool.take_cursor(wh._store)
        collector = PredicateCollector(snapshot, pooled, statement, params, streams)
        by_tree, by_planner = collector._collect_from_tree(), collector._collect_from_planner(volatile=False)
        pooled.release(reusable=True)
    return by_tree and by_tree.by_relation, by_planner and by_planner.by_relation


class Test_the_tree_says_what_duckdb_would_say:
    @pytest.mark.parametrize(
        ("text", "params"),
        [
            ("SELECT * FROM packets WHERE src = 7", None),
            ("SELECT count(*), max(ts) FROM packets [WINDOW 5 MINUTES] AS p WHERE 7 = p.src AND len > 3", None),
            ("SELECT len AS src FROM packets WHERE SRC = -7 ORDER BY ts LIMIT 3", None),
            ("SELECT note FROM packets WHERE \"src\" = 7 AND note = 'x' GROUP BY note HAVING count(*) > 1", None),
            ("SELECT * FROM packets WHERE src = $1", [7]),
            ("SELECT * FROM packets WHERE len = $2 AND src = $1", [7, 8]),
            ("SELECT * FROM packets WHERE src = ?", (7,)),
            ("SELECT * FROM packets WHERE packets.src = $key", {"key": 2**40}),
            ("SELECT * FROM pairs WHERE host = 'a' AND port = 80", None),
            ("SELECT * FROM pairs WHERE port = $1 AND host = $2", [80, "ä'"]),
            ("SELECT * FROM pairs WHERE host = ''", None),
            ("SELECT * FROM packets WHERE src = 7 AND src = 7", None),
            ("SELECT count(*) FROM packets WHERE src IN (9, 7, -1, 7)", None),
            ("SELECT len FROM packets AS p WHERE len > 3 AND p.src IN ($1, 5, $2)", [2**40, 7]),
            ("SELECT count(*) FROM packets WHERE src IN (7, 8, 11) AND src IN (8, 9, 11)", None),
            ("SELECT count(*) FROM pairs WHERE host IN ('a', 'b', 'ä') AND port IN (80, 443)", None),
            ("SELECT count(*) FROM pairs WHERE host IN ('b', '') AND port = 80", None),
            ("SELECT * FROM words WHERE word = 'yes'", None),
            ("SELECT * FROM words WHERE word = E'a\\nb' AND n = 5", None),
            ("SELECT * FROM numbers WHERE n = 18446744073709551615", None),
        ],
    )
    def test_where_a_key_is_plainly_named(self, wh, text, params):
        plain, report = collected(wh, text, params)
        assert plain is not None and plain == report
        assert all(isinstance(each, KeyRange) for asked in plain.values() for each in asked.keys)

    @pytest.mark.parametrize(
        ("text", "params"),
        [
            ("SELECT * FROM packets", None),
            ("SELECT * FROM packets WHERE src > 7", None),
            ("SELECT * FROM packets WHERE src = 7 OR len = 3", None),
            ("SELECT * FROM packets WHERE NOT src = 7", None),
            ("SELECT * FROM packets WHERE src = 7 AND ts > TIMESTAMPTZ '2025-01-01 12:10:00+00'", None),
            ("SELECT * FROM packets WHERE src = 7 AND src + len > 9", None),
            ("SELECT * FROM packets WHERE src = 7 AND COLUMNS('s.*') > 3", None),
            ("SELECT * FROM packets WHERE src = 7.5", None),
            ("SELECT * FROM packets WHERE src NOT IN (7, 8)", None),
            ("SELECT * FROM packets WHERE src IN (7, NULL)", None),
            ("SELECT * FROM packets WHERE src IN (7, 8.5)", None),
            ("SELECT * FROM packets WHERE src IN (7, '8')", None),
            ("SELECT * FROM packets WHERE src IN (7, len)", None),
            ("SELECT * FROM packets WHERE src IN (SELECT 7)", None),
            ("SELECT * FROM packets WHERE len IN (7, src)", None),
            ("SELECT * FROM packets WHERE src IN ($1, $2)", [7, None]),
            ("SELECT * FROM packets WHERE src = '7'", None),
            ("SELECT * FROM packets WHERE src = 7::SMALLINT", None),
            ("SELECT * FROM packets WHERE src = NULL", None),
            ("SELECT * FROM packets WHERE src = true", None),
            ("SELECT * FROM packets WHERE src IS NOT DISTINCT FROM 7", None),
            ("SELECT * FROM packets WHERE src = 100000000000000000000", None),
            ("SELECT * FROM packets WHERE src = $1", ["7"]),
            ("SELECT * FROM packets WHERE src = $1", [True]),
            ("SELECT * FROM packets WHERE src = $1", [7.0]),
            ("SELECT * FROM packets WHERE src = $1", []),
            ("SELECT * FROM packets WHERE src = $1", None),
            ("SELECT * FROM packets p(ts, a, src, b) WHERE src = 7", None),
            ("SELECT * FROM packets TABLESAMPLE 50% WHERE src = 7", None),
            ("SELECT * FROM packets WHERE src = 7 USING SAMPLE 5", None),
            ("SELECT * FROM (SELECT len AS src FROM packets) WHERE src = 7", None),
            ("WITH x AS (SELECT 1) SELECT * FROM packets WHERE src = 7", None),
            ("SELECT * FROM packets WHERE src = 7 AND len = (SELECT 5)", None),
            ("SELECT * FROM packets WHERE src = 7 UNION ALL SELECT * FROM quiet", None),
            ("SELECT * FROM packets p JOIN quiet q USING (src) WHERE src = 7", None),
            ("SELECT * FROM pairs WHERE port = 80", None),
            ("SELECT * FROM pairs WHERE host = 'a' COLLATE NOCASE", None),
            ("SELECT * FROM pairs WHERE host = 5", None),
            ("SELECT * FROM numbers WHERE f = 5", None),
        ],
    )
    def test_else_duckdb_is_listened_to(self, wh, text, params):
        plain, _ = collected(wh, text, params)
        assert plain is None


class Test_a_plain_probe:
    def test_is_planned_once(self, wh, monkeypatch):
        monkeypatch.setattr(arrow_source, "collect_predicates", lambda *_: pytest.fail("planned twice"))
        for key in (11, 12, 13):
            answer = wh.sql(f"SELECT DISTINCT src FROM many WHERE src = {key} AND len >= 0").fetchall()
            assert answer == wh.sql("SELECT DISTINCT src FROM many WHERE src = $1", [key]).fetchall() == [(key,)]

    def test_is_explained_like_any_other(self, wh):
        plain, hidden = (
            wh.explain(f"SELECT * FROM many WHERE {condition}").relations[0]
            for condition in ("src = 7", "src IN (7) AND src + 0 = 7")
        )
        assert (plain.path, plain.rows, plain.segments, plain.bytes) == (
            "probe",
            hidden.rows,
            hidden.segments,
            hidden.bytes,
        )
        assert plain.keys == "1 key"

    def test_leaves_no_cursor_behind_when_it_fails(self, wh):
        pool = wh._store.shared.attached("cursor pool", cursor_pool.CursorPool)
        while pool.take() is not None:
            pass
        with pytest.raises(windrow.QueryError):
            wh.sql("SELECT absent FROM many WHERE src = 7")
        assert pool.take() is None
        assert wh.status().readers == 0

    def test_sees_its_snapshot(self, wh):
        """Two snapshots, the same statement: each has the rows of its own slides."""
        with scratch_folders.scratch_folder() as path, windrow.open(path / "w") as other:
            other.create_stream(
                "packets", packet_warehouse.SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes"
            )
            packet_warehouse.append_and_slide(other, 1)
            with other.snapshot() as old:
                packet_warehouse.append_and_slide(other, 2)
                for key in (7, 8, 7):
                    text = f"SELECT count(*) FROM packets WHERE src = {key}"
                    assert (old.sql(text).fetchone(), other.sql(text).fetchone()) == ((10,), (20,))


FEW = [
    "SELECT * FROM many WHERE src = {key}",
    "SELECT ts, len, 'x' AS y FROM many WHERE src = {key} AND len % 2 = 0 ORDER BY len DESC LIMIT 3",
    "SELECT count(*), sum(len), max(ts), avg(len), sum(len::HUGEINT) AS s FROM many WHERE src = {key}",
    "SELECT note, count(*) FILTER (len > 5000) AS c, median(len) FROM many WHERE src = {key} GROUP BY note",
    "SELECT CASE WHEN len > 9 THEN 1 END AS c, min(len) FROM many WHERE src = {key} GROUP BY 1 HAVING count(*) > 0",
    "SELECT DISTINCT len BETWEEN 1 AND 9000 AS b, note IS NULL, -len FROM many WHERE src = {key}",
    "SELECT len FROM many WHERE src = {key} AND len < 0",
    "SELECT count(*) FROM many WHERE src = {key} AND src = 3",
]


class Test_an_answer_of_few_rows:
    @pytest.mark.parametrize("text", FEW)
    def test_is_what_duckdb_says_of_the_rows(self, wh, text):
        rows = pa.concat_tables([minute(1), minute(2)])
        with duckdb.connect() as plain:
            plain.execute("SET TimeZone = 'UTC'")
            plain.register("many", rows)
            for key in (3, 4999, 5000):
                listed = plain.sql(text.format(key=key))
                given = wh.sql(text.format(key=key))
                wanted = sorted(map(repr, listed.to_arrow_table().to_pylist()))
                assert given.columns == listed.columns
                assert sorted(map(repr, given.arrow().to_pylist())) == wanted

    def test_has_unsigned_integers_of_128_bits_as_they_are(self, wh):
        great = (1 << 128) - 1
        text = f"SELECT max('{great}'::UHUGEINT - len::UHUGEINT) AS n FROM many WHERE src = 7"
        assert wh.sql(text).fetchall() == [(great - 7,)]

    def test_says_what_is_wrong_before_it_is_read(self, wh):
        for text in ("SELECT CAST(note AS INT) FROM many WHERE src = 7", "SELECT absent FROM many WHERE src = 7"):
            messages = []
            for timeout in (None, 600):
                with pytest.raises(windrow.QueryError) as raised:
                    wh.sql(text, timeout=timeout)
                messages.append(str(raised.value))
            assert messages[0] == messages[1]
        assert wh.status().readers == 0

    def test_holds_its_pin_until_it_is_read(self, wh):
        answer = wh.sql("SELECT * FROM many WHERE src = 7")
        assert wh.status().readers == 1
        assert answer.arrow().num_rows == 8
        assert wh.status().readers == 0


def test_rows_beside_the_key_do_not_count(wh, monkeypatch):
    """Directories find blocks of rows; DuckDB takes the wanted ones out of them, also at a window's edge."""
    read: list[int] = []
    real = reads.read_candidates
    monkeypatch.setattr(reads, "read_candidates", lambda *given: (rows := real(*given), read.append(rows.num_rows))[0])
    wanted = wh.sql("SELECT count(*), min(src), max(src) FROM many [WINDOW 90 SECONDS] WHERE src + 0 = 31").fetchall()
    assert (
        wh.sql("SELECT count(*), min(src), max(src) FROM many [WINDOW 90 SECONDS] WHERE src = 31").fetchall() == wanted
    )
    assert read and sum(read) >= wanted[0][0] > 0

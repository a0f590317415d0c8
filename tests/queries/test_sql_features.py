"""Every feature of SQL and every type, over a stream and over a table, against plain DuckDB over the same rows.

In the manner of sqllogictest: statements are data. ``r`` is the relation; an error must be an error on all sides.
"""

import datetime as dt
import random
import re
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

import windrow

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
ROWS = 40

TYPES: dict[str, pa.DataType] = {
    "bool_": pa.bool_(), "i8": pa.int8(), "i16": pa.int16(), "i32": pa.int32(), "i64": pa.int64(), "u8": pa.uint8(),
    "u16": pa.uint16(), "u32": pa.uint32(), "u64": pa.uint64(), "f32": pa.float32(), "f64": pa.float64(),
    "dec": pa.decimal128(18, 3), "wide": pa.decimal128(38, 0), "text_": pa.string(), "large": pa.large_string(), "bytes_": pa.binary(),
    "coded": pa.dictionary(pa.int32(), pa.string()), "date_": pa.date32(), "time_": pa.time64("us"),
    "stamp": pa.timestamp("us"), "zoned": pa.timestamp("us", "UTC"), "nanos": pa.timestamp("ns"), "secs": pa.timestamp("s"),
    "span": pa.duration("us"), "list_": pa.list_(pa.int32()), "texts": pa.list_(pa.string()),
    "fixed": pa.list_(pa.int32(), 2), "struct_": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    "map_": pa.map_(pa.string(), pa.int64()), "deep": pa.list_(pa.struct([("x", pa.list_(pa.duration("s")))])), "floats": pa.list_(pa.float64()),
}  # fmt: skip


def _value(kind: pa.DataType, chance: random.Random):
    is_, small = pa.types, chance.randrange(-3, 4)
    if chance.random() < 0.2:
        return None
    if is_.is_boolean(kind):
        return chance.random() < 0.5
    if is_.is_unsigned_integer(kind):
        return chance.choice([0, 1, 2, (1 << kind.bit_width) - 1])
    if is_.is_integer(kind):
        return chance.choice([small, 7, -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1])
    if is_.is_floating(kind):
        return chance.choice([0.5 * small, 1e10, float("inf"), -0.0, float("nan")])
    if is_.is_decimal(kind):
        return Decimal(small) if kind.scale == 0 else Decimal(small) / 8
    if is_.is_dictionary(kind) or is_.is_string(kind) or is_.is_large_string(kind):
        return chance.choice(["", "a", "b", "Zoë", "日本", "a\x00b", "long " * 9])
    if is_.is_binary(kind):
        return chance.choice([b"", b"\x00\xff", b"abc"])
    if is_.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(days=1000 * small)
    if is_.is_time(kind):
        return dt.time(chance.randrange(24), chance.randrange(60), 0, chance.randrange(10**6))
    if is_.is_timestamp(kind):
        return dt.datetime(2025, 12, 31, 23, 59, chance.randrange(60)) + dt.timedelta(days=small)
    if is_.is_duration(kind):
        return dt.timedelta(seconds=100_000 * small)
    if is_.is_struct(kind):
        return {field.name: _value(field.type, chance) for field in kind}
    if is_.is_map(kind):
        return [(name, _value(kind.item_type, chance)) for name in chance.sample("abc", chance.randrange(3))]
    size = kind.list_size if is_.is_fixed_size_list(kind) else chance.randrange(4)
    return [_value(kind.value_type, chance) for _ in range(size)]


OF_EACH_TYPE = [
    "SELECT id, {c} FROM r ORDER BY id",
    "SELECT id, {c}::VARCHAR, typeof({c}) FROM r ORDER BY id",
    "SELECT count(*), count({c}), count(DISTINCT {c}) FROM r",
    "SELECT min({c}), max({c}), any_value({c}) IS NULL FROM r",
    "SELECT {c}::VARCHAR AS c, count(*), min(id) FROM r GROUP BY {c} ORDER BY 3",
    "SELECT id FROM r WHERE {c} IS NULL ORDER BY id",
    "SELECT id FROM r WHERE {c} = (SELECT {c} FROM r WHERE {c} IS NOT NULL ORDER BY id LIMIT 1) ORDER BY id",
    "SELECT id FROM r WHERE {c} IS NOT DISTINCT FROM (SELECT {c} FROM r ORDER BY id LIMIT 1) ORDER BY id",
    "SELECT a.id, b.id FROM r a JOIN r b ON a.{c} = b.{c} AND a.id < b.id ORDER BY 1, 2",
    "SELECT id, lag({c}) OVER (ORDER BY id), first_value({c}) OVER (PARTITION BY id % 3 ORDER BY id) FROM r ORDER BY id",
    "SELECT list({c} ORDER BY id), {{'v': first({c} ORDER BY id)}} FROM r",
    "SELECT id, coalesce({c}, (SELECT {c} FROM r WHERE {c} IS NOT NULL ORDER BY id LIMIT 1)) FROM r ORDER BY id",
    "SELECT arg_max(id, id) FILTER ({c} IS NOT NULL), hash({c}) = hash({c}) FROM r GROUP BY ALL ORDER BY ALL",
]

FEATURES = """
SELECT DISTINCT i8 FROM r ORDER BY i8 NULLS FIRST
SELECT DISTINCT ON (i8) i8, id FROM r ORDER BY i8, id
SELECT i8, count(*) AS n FROM r GROUP BY i8 HAVING n > 2 ORDER BY ALL
SELECT i8, text_, count(*) FROM r GROUP BY ROLLUP (i8, text_) ORDER BY ALL
SELECT i8, coded, count(*) FROM r GROUP BY CUBE (i8, coded) ORDER BY ALL
SELECT i8, bool_, grouping(i8), count(*) FROM r GROUP BY GROUPING SETS ((i8), (bool_), ()) ORDER BY ALL
SELECT id FROM r QUALIFY row_number() OVER (PARTITION BY bool_ ORDER BY id DESC) = 1 ORDER BY id
SELECT id, sum(id) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) FROM r ORDER BY id
SELECT id, count(*) OVER w, ntile(4) OVER w FROM r WINDOW w AS (ORDER BY id) ORDER BY id
SELECT id, avg(id) OVER (ORDER BY id RANGE BETWEEN 5 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM r ORDER BY id
SELECT a.id, b.id FROM r a LEFT JOIN r b ON a.id = b.id + 1 ORDER BY ALL
SELECT a.id, b.id FROM r a FULL JOIN r b ON a.id = b.id + 30 ORDER BY ALL
SELECT a.id FROM r a SEMI JOIN r b ON a.id = b.id * 2 ORDER BY ALL
SELECT a.id FROM r a ANTI JOIN r b ON a.id = b.id * 2 ORDER BY ALL
SELECT a.id, b.id FROM r a ASOF JOIN r b ON a.id >= b.id * 3 ORDER BY ALL
SELECT a.id, b.n FROM r a, LATERAL (SELECT count(*) AS n FROM r WHERE id < a.id) b ORDER BY ALL
SELECT a.id FROM r a POSITIONAL JOIN (SELECT 1 FROM range(3)) ORDER BY ALL
SELECT count(*) FROM r CROSS JOIN r b
SELECT id FROM r WHERE id IN (SELECT id * 2 FROM r) ORDER BY id
SELECT id FROM r a WHERE EXISTS (SELECT 1 FROM r b WHERE b.id = a.id + 35) ORDER BY id
SELECT id FROM r WHERE id > ALL (SELECT id FROM r WHERE id < 30) ORDER BY id
SELECT id FROM r WHERE i8 NOT IN (1, NULL) ORDER BY id
SELECT id FROM r WHERE id BETWEEN 3 AND 9 OR id = ANY ([20, 21]) ORDER BY id
(SELECT id FROM r UNION SELECT id + 5 FROM r) ORDER BY 1
(SELECT id % 3 AS m FROM r EXCEPT ALL SELECT id % 3 FROM r WHERE id > 3) ORDER BY 1
(SELECT id FROM r INTERSECT SELECT id * 2 FROM r) ORDER BY 1
SELECT id, text_ FROM r UNION ALL BY NAME SELECT id, coded FROM r ORDER BY ALL
WITH x AS (SELECT id FROM r WHERE id < 4), y AS MATERIALIZED (FROM x) SELECT * FROM x, y ORDER BY ALL
WITH RECURSIVE t(n) AS (SELECT min(id) FROM r UNION ALL SELECT n + 1 FROM t WHERE n < 6) SELECT * FROM t ORDER BY n
WITH RECURSIVE t(k, v) USING KEY (k) AS (SELECT 1, 0 UNION ALL SELECT n.k, o.v + 1 FROM t n JOIN recurring.t o USING (k) WHERE n.v < 3) FROM t
FROM r SELECT max(id)
FROM (PIVOT (SELECT id, i8, bool_ FROM r) ON bool_ IN (true, false) USING count(id) GROUP BY i8) ORDER BY ALL
PIVOT (SELECT id % 4 AS m, bool_ FROM r) ON m USING count(*) GROUP BY bool_ ORDER BY ALL
UNPIVOT (SELECT id, i16::BIGINT AS i16, i32::BIGINT AS i32 FROM r) ON i16, i32 INTO NAME n VALUE v ORDER BY ALL
SELECT unnest(list_) AS x, id FROM r ORDER BY id, x
SELECT id, unnest(struct_) FROM r ORDER BY id
SELECT id, list_transform(list_, lambda x: x + 1), list_filter(list_, lambda x: x > 0) FROM r ORDER BY id
SELECT id, [x * 2 FOR x IN list_ IF x IS NOT NULL AND abs(x) < 10] FROM r ORDER BY id
SELECT id, map_['a'], map_keys(map_), cardinality(map_) FROM r ORDER BY id
SELECT id, struct_.a, struct_['b'], struct_pack(z := id) FROM r ORDER BY id
SELECT * EXCLUDE (ts, deep) REPLACE (id + 1 AS id) FROM r ORDER BY id LIMIT 3
SELECT COLUMNS('^i\\d+$') FROM r ORDER BY id LIMIT 5
SELECT id FROM r ORDER BY f64 DESC NULLS LAST, id LIMIT 7 OFFSET 3
SELECT id FROM r ORDER BY id LIMIT 10 PERCENT
SELECT CASE WHEN i8 > 0 THEN 'p' WHEN i8 < 0 THEN 'n' END AS s, count(*) FROM r GROUP BY ALL ORDER BY ALL
SELECT id, text_ LIKE '%a%', text_ SIMILAR TO '.*b', regexp_matches(text_, 'o'), upper(text_), length(text_) FROM r ORDER BY id
SELECT string_agg(text_, ',' ORDER BY id), bit_xor(id), bool_and(bool_), product(id % 3 + 1) FROM r
SELECT quantile_cont(id, [0.25, 0.5]), mode(i8), median(f32), stddev_samp(id), corr(id, id * 2), approx_count_distinct(id) > 0 FROM r
SELECT histogram(i8), arg_min(id, id), max(id, 3), list(DISTINCT bool_ ORDER BY bool_) FROM r
SELECT date_trunc('hour', stamp) AS h, count(*) FROM r GROUP BY h ORDER BY h
SELECT id, zoned AT TIME ZONE 'Europe/Berlin', extract(epoch FROM zoned), strftime(zoned, '%Y-%m') FROM r ORDER BY id
SELECT id, date_ + INTERVAL 1 MONTH, age(stamp, TIMESTAMP '2000-01-01'), stamp - INTERVAL '3 hours' FROM r ORDER BY id
SELECT id, span, span * 2, -span, span > INTERVAL 1 DAY, to_seconds(id * 1000000000) FROM r ORDER BY id
SELECT sum(i64), sum(u64), sum(wide), sum(dec), avg(dec), sum(f64) FROM r WHERE id < 12
SELECT id, i32::DOUBLE / 7, i64 // 3, i8 % 2, i8 << 1, TRY_CAST(text_ AS INTEGER), wide * 2 FROM r WHERE i8 > 0 ORDER BY id
SELECT id, text_ || '-' || id, concat_ws('/', text_, coded), format('{}:{}', id, text_), printf('%05d', id) FROM r ORDER BY id
SELECT id, list_sort(list_), list_sum(list_), list_distinct(list_), list_contains(list_, 1), list_[1], list_[-1] FROM r ORDER BY id
SELECT id, list_distance([1.0, 2.0], [id::DOUBLE, 0]) FROM r ORDER BY id
SELECT id, ROW(id, 1), {'a': id, 'b': [id]}, MAP {id: text_} FROM r ORDER BY id LIMIT 4
SELECT id, hex(bytes_), octet_length(bytes_), bytes_ || 'x'::BLOB, encode(text_) FROM r ORDER BY id
SELECT id, json_extract('{"a": 1}', '$.a'), to_json(struct_), md5(text_) FROM r ORDER BY id
SELECT x FROM generate_series(1, 3) g(x) WHERE x IN (SELECT id FROM r) ORDER BY x
SELECT * FROM (VALUES (1, 'x'), (2, 'y')) v(id, n) JOIN r USING (id) ORDER BY id LIMIT 0
SELECT count(*) FROM r TABLESAMPLE 100%
SELECT (SELECT max(id) FROM r), (SELECT count(*) FROM r WHERE id > 10)
SELECT typeof(id), typeof(sum(id)), typeof([id]), typeof({'a': id}) FROM r GROUP BY id ORDER BY id LIMIT 1
SELECT 1 / 0, 0.0 / 0, NULL + 1, 'a' < 'B', true AND NULL
SELECT nope FROM r
SELECT id FROM r WHERE id = 'x'
SELECT sum(text_) FROM r
SELECT id FROM r GROUP BY bool_
SELECT 128::TINYINT
"""


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Plain DuckDB, and a warehouse with the rows in a stream of three slides and in a table."""
    print("seed", seed := random.randrange(1 << 30))
    chance = random.Random(seed)
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("id", pa.int64()), *TYPES.items()])
    rows = [
        {
            "ts": NOON + dt.timedelta(seconds=4 * n),
            "id": n,
            **{name: _value(kind, chance) for name, kind in TYPES.items()},
        }
        for n in range(1, ROWS + 1)
    ]
    columns = {
        name: pa.array([row[name] for row in rows], kind) for name, kind in zip(schema.names, schema.types, strict=True)
    }
    table = pa.table(columns, schema=schema)
    with duckdb.connect() as plain, windrow.open(tmp_path_factory.mktemp("features") / "w") as wh:
        plain.execute("SET TimeZone = 'UTC'")
        plain.register("given", table)
        plain.execute("CREATE TABLE r AS SELECT * REPLACE (secs::TIMESTAMP AS secs) FROM given")
        wh.create_stream("s", schema, time="ts", key="id", slide="1 minute", lifetime="1 hour")
        for minute in range(3):
            wh.append("s", table.slice(15 * minute, 15))
            wh.slide("s", to=NOON + dt.timedelta(minutes=minute + 1))
        wh.put_table("t", table)
        yield plain, wh


def _plain_value(value):
    """A value in the documented forms: arrays are lists, unnamed structs have names, wide integers inside are decimals."""
    if isinstance(value, (list, tuple)):
        return [_plain_value(inner) for inner in value]
    if isinstance(value, dict):
        names = [f"element{n}" for n in range(1, len(value) + 1)]
        inner = [_plain_value(each) for each in value.values()]
        return inner if list(value) == names else dict(zip(map(str, value), inner, strict=True))
    if isinstance(value, float):
        return repr(round(value, 9)) if value else "0.0"
    return int(value) if isinstance(value, Decimal) and value == int(value) else value


def _ask(ask, sql):
    try:
        return [_plain_value(row) for row in ask(sql)]
    except (duckdb.Error, windrow.QueryError):
        return "an error"


def _compare(sides, statements):
    plain, wh = sides
    for sql in statements:
        wanted = _ask(lambda text: plain.execute(text).fetchall(), sql)
        for relation in ("s", "t"):
            text = re.sub(r"\b(FROM|JOIN) r\b", rf"\1 {relation}", sql)
            assert _ask(lambda text: wh.sql(text).fetchall(), text) == wanted, text


@pytest.mark.parametrize("column", TYPES)
def test_every_type(sides, column):
    _compare(sides, [sql.format(c=column) for sql in OF_EACH_TYPE])


@pytest.mark.parametrize("part", range(4))
def test_every_feature(sides, part):
    _compare(sides, FEATURES.strip().splitlines()[part::4])

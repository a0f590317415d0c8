"""The same rows through `wh.append` and through Spark give the same warehouse."""

import datetime as dt
import math
import random
import threading
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
import windrow.spark

NOW = dt.datetime(2026, 11, 16, 12, 0, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
LAYOUTS = [
    pytest.param(windrow.Index("round-robin", 3, 4), "spark", id="round-robin"),
    pytest.param(windrow.Index("random", 3, 4), "spark", id="random", marks=pytest.mark.soak),
    pytest.param(windrow.Index("chronological", 2, 3), "spark", id="chronological", marks=pytest.mark.soak),
    pytest.param(windrow.Index("wave-insertion", 4), "spark", id="wave-insertion", marks=pytest.mark.soak),
    pytest.param(windrow.Index("wave-expiry", 4), "spark", id="wave-expiry"),
    pytest.param(windrow.Index("append-only"), "spark", id="append-only"),
    pytest.param(windrow.Index("round-robin", 3, 4), "driver", id="round-robin, sorted by the driver"),
    pytest.param(
        windrow.Index("append-only"), "driver", id="append-only, sorted by the driver", marks=pytest.mark.soak
    ),
]


def minutes(value: float) -> dt.timedelta:
    return dt.timedelta(minutes=value)


def leases(seed: int, count: int, around: dt.datetime) -> pa.Table:
    """Rows with lifetimes of their own; about one in ten cannot be taken, for every reason that there is."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        ts = around - dt.timedelta(microseconds=chance.randrange(10 * 60_000_000))
        exp = ts + dt.timedelta(microseconds=chance.randrange(1, 30 * 60_000_000 + 1))
        broken = chance.randrange(60)
        if broken == 0:
            ts = None
        elif broken == 1:
            ts = dt.datetime(1850, 1, 1, tzinfo=dt.UTC)
        elif broken == 2:
            ts = around + minutes(chance.randrange(70, 100))
        elif broken == 3:
            exp = None
        elif broken == 4:
            exp = ts - minutes(chance.randrange(2))
        elif broken == 5:
            exp = ts + minutes(30) + dt.timedelta(microseconds=1)
        rows.append((ts, exp, chance.choice(["", "a", "ab", "b\x00", "ü", "\U0001f600", None]), chance.randrange(5)))
    names = ["ts", "exp", "host", "port"]
    kinds = [UTC, UTC, pa.string(), pa.int32()]
    return pa.table({n: pa.array([r[i] for r in rows], k) for i, (n, k) in enumerate(zip(names, kinds, strict=True))})


@pytest.fixture
def pair(make):
    """Two warehouses with the same stream: one is fed directly, one by Spark."""

    def create(schema, **options):
        both = make("direct"), make("by-spark")
        for wh in both:
            wh.create_stream("s", schema, **options)
        return both

    return create


class Test_the_same_rows_give_the_same_warehouse:
    @pytest.mark.parametrize(("index", "sorted_by"), LAYOUTS, indirect=["sorted_by"])
    def test_in_every_layout(self, pair, frame, same, index):
        """Slide by slide, with rejected rows for every reason, late rows, and a clock that stands before and after."""
        never = index.name == "append-only"
        table = leases(1, 400, NOW - minutes(10))
        options = {} if never else {"expires": "exp", "max_lifetime": "30 minutes"}
        direct, sparked = pair(table.schema, time="ts", key=["host", "port"], slide="2 minutes", index=index, **options)
        for number, upto in enumerate([NOW - minutes(9), NOW - minutes(3), NOW]):
            table = leases(number, 400, upto)
            reports = direct.append("s", table), windrow.spark.append(frame(table), sparked, "s")
            assert reports[0].rejected == reports[1].rejected
            assert reports[0].rejected if not never else True
            assert (reports[0].rows, reports[0].accepted, reports[0].late) == (
                reports[1].rows,
                reports[1].accepted,
                reports[1].late,
            )
            for wh in (direct, sparked):
                wh.slide("s", upto)
            same(direct, sparked, "s", (None,) if never else (None, "5 minutes", "90 seconds"))
        for key in [("a",), ("a", 3), ("b\x00", 0), (None,), ("\U0001f600", 1)]:
            assert rows(direct.probe("s", key)) == rows(sparked.probe("s", key))
        between = ("", 1), ("b\x00", 3)
        assert rows(direct.probe("s", between=between)) == rows(sparked.probe("s", between=between))

    @pytest.mark.parametrize("zone", [None, "UTC"])
    def test_with_a_fixed_lifetime_and_times_with_and_without_a_zone(self, spark, pair, frame, same, zone):
        """A time without a zone is UTC, whatever the session's zone is, also where its clocks are put forward."""
        start = dt.datetime(2026, 3, 8, 6, 59, tzinfo=dt.UTC)
        stamps = [start + dt.timedelta(seconds=30 * i, microseconds=i) for i in range(200)]
        naive = [t.replace(tzinfo=None) if zone is None else t for t in stamps]
        table = pa.table({"ts": pa.array(naive, pa.timestamp("us", zone)), "k": pa.array(range(200), pa.int64())})
        direct, sparked = pair(
            table.schema, time="ts", key="k", slide="1 minute", lifetime="20 minutes",
            index=windrow.Index("round-robin", 2, 3), origin="2026-01-01T00:00:07",
        )  # fmt: skip
        direct.append("s", table)
        before = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        try:
            windrow.spark.append(frame(table), sparked, "s")
        finally:
            spark.conf.set("spark.sql.session.timeZone", before)
        for wh in (direct, sparked):
            wh.slide("s")
        same(direct, sparked, "s", (None, "10 minutes"))

    def test_for_keys_of_every_type_that_spark_writes(self, pair, frame, same):
        """Storage order is the byte order of encoded keys; `check` would find a segment that Spark sorted otherwise."""
        columns = {
            "truth": pa.array([True, False, None] * 8),
            "small": pa.array([-128, 127, None, 0] * 6, pa.int8()),
            "short": pa.array([-300, 300, None, 7] * 6, pa.int16()),
            "single": pa.array([math.nan, -0.0, 0.0, -math.inf, None, 1.5] * 4, pa.float32()),
            "double": pa.array([0.0, -0.0, math.nan, math.inf, None, -1e300] * 4, pa.float64()),
            "decimal": pa.array([Decimal("-1.50"), Decimal("2.25"), None, Decimal(0)] * 6, pa.decimal128(20, 2)),
            "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None, dt.date(1970, 1, 1)] * 6),
            "text": pa.array(["", "a", "a\x00", "é", "z", None, "\uffff", "\U00010000"] * 3),
            "bytes": pa.array([b"", b"\x00", b"\xff", None, b"\x7f\x80", b"a"] * 4),
            "instant": pa.array([NOW, NOW - minutes(1), None, NOW + minutes(1)] * 6, UTC),
            "word": pa.array(["x", "y", None, "x"] * 6).dictionary_encode(),
        }
        table = pa.table({"ts": pa.array([NOW - minutes(1) + minutes(0.001) * i for i in range(24)], UTC), **columns})
        options = {"time": "ts", "slide": "1 minute", "lifetime": "10 minutes"}
        direct, sparked = pair(table.schema, key="truth", **options)
        direct.drop_stream("s")
        sparked.drop_stream("s")
        data = frame(table)
        for name, column in columns.items():
            for wh in (direct, sparked):
                wh.create_stream(name, table.schema, key=[name, "ts"], **options)
            direct.append(name, table)
            windrow.spark.append(data, sparked, name)
            for wh in (direct, sparked):
                wh.slide(name, NOW)
            answer = [rows(wh.probe(name, (column[1].as_py(),))) for wh in (direct, sparked)]
            assert answer[0] == answer[1]
            assert answer[0]
        same(direct, sparked, "word")

    def test_nested_columns_come_back_as_they_were(self, pair, frame, same):
        kinds = {
            "list": pa.list_(pa.int32()),
            "large": pa.large_list(pa.string()),
            "struct": pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.list_(UTC))]),
            "map": pa.map_(pa.string(), pa.float64()),
        }
        table = pa.table(
            {
                "ts": pa.array([NOW - minutes(1)] * 3, UTC),
                "list": pa.array([[1, None], [], None], kinds["list"]),
                "large": pa.array([["a"], None, [None, "b"]], kinds["large"]),
                "struct": pa.array([{"a": 1, "b": [NOW]}, None, {"a": None, "b": None}], kinds["struct"]),
                "map": pa.array([[("k", 1.0)], [], None], kinds["map"]),
            }
        )
        direct, sparked = pair(table.schema, time="ts", slide="1 minute", lifetime="10 minutes")
        plain = table.set_column(2, "large", table.column("large").cast(pa.list_(pa.string())))
        direct.append("s", table)
        windrow.spark.append(frame(plain), sparked, "s")
        for wh in (direct, sparked):
            wh.slide("s", NOW)
        same(direct, sparked, "s")
        assert sparked.scan("s").read_all().schema == direct.scan("s").read_all().schema

    def test_types_that_spark_has_not_go_through_its_python_workers(self, pair, frame, same):
        table = pa.table(
            {
                "ts": pa.array([NOW - minutes(1), None, NOW], pa.timestamp("ms", "UTC")),
                "u8": pa.array([0, 255, None], pa.uint8()),
                "u16": pa.array([0, 65535, None], pa.uint16()),
                "u32": pa.array([0, 4294967295, None], pa.uint32()),
                "u64": pa.array([0, 18446744073709551615, None], pa.uint64()),
                "ns": pa.array([NOW, None, NOW], pa.timestamp("ns")),
                "fixed": pa.array([b"abcd", None, b"\x00\x01\x02\x03"], pa.binary(4)),
            }
        )
        direct, sparked = pair(table.schema, time="ts", key=["u32", "fixed"], slide="1 minute", lifetime="10 minutes")
        plain = table.set_column(6, "fixed", table.column("fixed").cast(pa.binary()))
        reports = direct.append("s", table), windrow.spark.append(frame(plain), sparked, "s")
        assert reports[0].rejected == reports[1].rejected
        for wh in (direct, sparked):
            wh.slide("s", NOW)
        same(direct, sparked, "s")

    def test_a_file_too_large_to_be_written_again_keeps_its_rejected_rows_unseen(self, pair, frame, same, monkeypatch):
        monkeypatch.setattr("windrow.ingest.verification._MAX_REWRITE_BYTES", 0)
        table = leases(5, 300, NOW)
        options = {"time": "ts", "key": "port", "slide": "2 minutes", "expires": "exp", "max_lifetime": "30 minutes"}
        direct, sparked = pair(table.schema, **options)
        direct.append("s", table)
        report = windrow.spark.append(frame(table), sparked, "s")
        assert report.rejected
        for wh in (direct, sparked):
            wh.slide("s", NOW)
        same(direct, sparked, "s", (None, "3 minutes"))

    @pytest.mark.parametrize("sorted_by", ["spark", "driver"], indirect=True)
    def test_ties_follow_arrival(self, spark, pair):
        """Rows of one partition keep their order; `_seq` counts the rows that are taken and no others."""
        import pyarrow.parquet as pq

        schema = pa.schema([("ts", UTC), ("k", pa.int64()), ("n", pa.int64())])
        _, sparked = pair(schema, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        stamps = [None if i % 7 == 3 else NOW for i in range(100)]
        table = pa.table({"ts": pa.array(stamps, UTC), "k": pa.array([i % 3 for i in range(100)]), "n": range(100)})
        windrow.spark.append(spark.createDataFrame(table).coalesce(1), sparked, "s")
        (file,) = (sparked.path / "streams/s/segments").glob("*.parquet")
        stored = pq.read_table(file).sort_by("_seq")
        assert stored.column("_seq").to_pylist() == list(range(len(stored)))
        assert stored.column("n").to_pylist() == [i for i in range(100) if i % 7 != 3]


def test_a_flipped_bit_in_a_page_that_spark_wrote_is_noticed(pair, frame):
    table = pa.table({"ts": pa.array([NOW] * 3, UTC), "k": [1, 2, 3], "word": ["apple", "needle", "pear"]})
    _, sparked = pair(table.schema, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
    windrow.spark.append(frame(table, 1), sparked, "s")
    sparked.slide("s", NOW)
    (file,) = (sparked.path / "streams/s/segments").glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[content.index(b"needle")] ^= 1
    file.write_bytes(content)
    with pytest.raises(windrow.DamageError, match="checksum"):
        sparked.probe("s", 2)


class Test_a_batch_is_in_once:
    SCHEMA = pa.schema([("ts", UTC), ("k", pa.int64())])

    def table(self, count: int) -> pa.Table:
        return pa.table({"ts": pa.array([NOW - minutes(1)] * count, UTC), "k": range(count)}, schema=self.SCHEMA)

    @pytest.mark.parametrize("sorted_by", ["spark", "driver"], indirect=True)
    def test_whichever_way_it_comes_again(self, pair, frame):
        direct, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        windrow.spark.append(frame(self.table(10)), sparked, "s", batch_id="b1")
        assert windrow.spark.append(frame(self.table(10)), sparked, "s", batch_id="b1").duplicate
        assert sparked.append("s", self.table(10), batch_id="b1").duplicate
        direct.append("s", self.table(10), batch_id="b1")
        assert windrow.spark.append(frame(self.table(10)), direct, "s", batch_id="b1").duplicate
        for wh in (direct, sparked):
            assert wh.stream("s").spooled_rows == 10
            with pytest.raises(windrow.BatchConflictError, match="before with other rows"):
                windrow.spark.append(frame(self.table(11)), wh, "s", batch_id="b1")

    def test_an_empty_batch_is_remembered(self, pair, frame):
        _, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        assert windrow.spark.append(frame(self.table(0)), sparked, "s", batch_id="b").rows == 0
        assert windrow.spark.append(frame(self.table(0)), sparked, "s", batch_id="b").duplicate
        assert sparked.check().ok

    def test_appends_from_several_threads_do_not_mix(self, pair, frame):
        _, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        data = frame(self.table(50))
        threads = [
            threading.Thread(target=windrow.spark.append, args=(data, sparked, "s"), kwargs={"batch_id": f"b{i}"})
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sparked.slide("s", NOW)
        assert sparked.scan("s").read_all().num_rows == 200
        assert sparked.check().ok

    def test_the_session_is_left_as_it_was(self, spark, pair, frame):
        _, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        windrow.spark.append(frame(self.table(3)), sparked, "s")
        assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
        assert not [p for p in (sparked.path / "staging").rglob("*") if p.is_file() and p.name != "owner.lock"]


class Test_a_mismatch_is_one_error_before_any_work:
    SCHEMA = pa.schema(
        [("ts", UTC), ("k", pa.int32()), ("price", pa.decimal128(10, 2)), pa.field("name", pa.string(), nullable=False)]
    )

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ("ts, k, price", "'name' (string) is missing"),
            ("ts, k, price, name, 1 as more", "'more' is not in the stream"),
            ("ts, cast(k as bigint) k, price, name", "'k' is bigint, the stream has int32"),
            ("ts, k, cast(price as decimal(12, 4)) price, name", "'price' is decimal(12,4)"),
            ("cast(ts as timestamp_ntz) ts, k, price, name", "'ts' is timestamp_ntz"),
            ("ts, k, price, make_interval(1) name", "'name' is interval"),
        ],
    )
    def test_that_names_the_column(self, spark, pair, columns, words):
        _, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        row = "timestamp'2026-11-16 12:00:00Z' ts, 1 k, cast(1 as decimal(10, 2)) price, 'x' name"
        with pytest.raises(windrow.SchemaError) as caught:
            windrow.spark.append(spark.sql(f"select {columns} from (select {row})"), sparked, "s")
        assert words in str(caught.value)
        assert "nothing was appended" in str(caught.value)

    def test_a_null_where_none_may_be_is_found_on_the_way_and_nothing_is_in(self, spark, pair):
        _, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        row = "timestamp'2026-11-16 12:00:00Z' ts, 1 k, cast(1 as decimal(10, 2)) price, if(id = 3, null, 'x') name"
        with pytest.raises(windrow.SchemaError, match="'name' is not nullable"):
            windrow.spark.append(spark.sql(f"select {row} from range(5)"), sparked, "s")
        assert sparked.stream("s").spooled_rows == 0
        assert sparked.check().ok

    @pytest.mark.parametrize(
        ("batch_id", "text"), [(None, "{bad}"), ("b", "array({bad})"), (None, "named_struct('t', {bad})")]
    )
    def test_text_that_is_not_utf8_is_refused_whoever_writes_it(self, spark, pair, batch_id, text):
        kind = {"{": pa.string(), "a": pa.list_(pa.string()), "n": pa.struct([("t", pa.string())])}[text[0]]
        schema = pa.schema([("ts", UTC), ("name", kind)])
        _, sparked = pair(schema, time="ts", slide="1 minute", lifetime="10 minutes")
        bad = text.format(bad="if(id = 3, cast(X'61ff62' as string), 'ü')")
        rows = spark.sql(f"select timestamp'2026-11-16 12:00:00Z' ts, {bad} name from range(5)")
        with pytest.raises(windrow.SchemaError, match="'name' has text that is not UTF-8"):
            windrow.spark.append(rows, sparked, "s", batch_id=batch_id)
        assert sparked.stream("s").spooled_rows == 0
        assert sparked.check().ok

    def test_narrower_columns_are_widened(self, spark, pair):
        _, sparked = pair(self.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        row = "timestamp'2026-11-16 12:00:00Z' ts, 1Y k, cast(1 as decimal(5, 1)) price, 'x' name"
        windrow.spark.append(spark.sql(f"select {row}"), sparked, "s")
        sparked.slide("s", NOW)
        assert sparked.scan("s").read_all().column("price").to_pylist() == [Decimal("1.00")]

    def test_an_unsigned_value_out_of_range_is_refused(self, spark, pair):
        _, sparked = pair(pa.schema([("ts", UTC), ("n", pa.uint8())]), time="ts", slide="1 minute", lifetime="1 hour")
        with pytest.raises(windrow.SchemaError, match="'n' cannot become uint8"):
            windrow.spark.append(
                spark.sql("select timestamp'2026-11-16 12:00:00Z' ts, cast(256 as smallint) n"), sparked, "s"
            )
        assert sparked.check().ok


def rows(table: pa.Table) -> list[tuple[str, ...]]:
    return sorted(tuple(map(repr, row)) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))


class Test_storage_order_in_one_number:
    """From the second slide on, keys that are numbers are sorted by radix; what the numbers range over was learned."""

    def test_keys_outside_of_what_was_learned_are_placed_all_the_same(self, pair, frame, same, monkeypatch):
        from windrow.ingest import expressions

        packed = []
        build_packed_key = expressions.build_packed_key
        monkeypatch.setattr(
            expressions, "build_packed_key", lambda *args: packed.append(build_packed_key(*args)) or packed[-1]
        )
        schema = pa.schema([("ts", UTC), ("exp", UTC), ("day", pa.date32()), ("n", pa.int64()), ("b", pa.bool_())])
        options = {"slide": "1 minute", "expires": "exp", "max_lifetime": "30 minutes"}
        key = ["day", "n", "b"]
        direct, sparked = pair(schema, time="ts", key=key, index=windrow.Index("round-robin", 2, 3), **options)
        chance = random.Random(7)
        keys = [[0, 5, None], [-3, 9, None], [1 << 62, -(1 << 63), (1 << 63) - 1, 7, None], [-(10**6), 10**6, 3]]
        for number, choice in enumerate(keys):
            until = NOW - minutes(8) + minutes(2) * number
            stamps = [until - dt.timedelta(microseconds=chance.randrange(9 * 60_000_000)) for _ in range(150)]
            table = pa.table(
                [
                    pa.array(stamps, UTC),
                    pa.array([t + dt.timedelta(microseconds=chance.randrange(30 * 60_000_000)) for t in stamps], UTC),
                    pa.array([chance.choice([None, dt.date(2026, 1, 1), dt.date(2025, 1, 1)]) for _ in stamps]),
                    pa.array([chance.choice(choice) for _ in stamps], pa.int64()),
                    pa.array([chance.choice([None, True, False]) for _ in stamps]),
                ],
                schema=schema,
            )
            direct.append("s", table)
            windrow.spark.append(frame(table), sparked, "s")
            for wh in (direct, sparked):
                wh.slide("s", until)
            same(direct, sparked, "s", (None, "4 minutes"))
        # Before the first slide no time is too early, and with keys from end to end of int64 nothing can be packed.
        assert [packing is not None for packing in packed] == [False, True, True, False]

    def test_later_batches_compile_nothing_anew(self, spark, pair, tmp_path):
        """Clock, horizon and keys differ from batch to batch; the code that Spark makes of them must not."""
        compiled = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
        schema = pa.schema([("ts", UTC), ("n", pa.int64())])
        _, sparked = pair(schema, time="ts", key="n", slide="1 minute", lifetime="20 minutes")
        counts = []
        for number in range(5):
            until = NOW - minutes(30) + minutes(2) * number
            stamps = [until - dt.timedelta(milliseconds=100 * n) for n in range(1000)]
            table = pa.table([pa.array(stamps, UTC), pa.array(range(number, 1000 + number))], schema=schema)
            pq.write_table(table, tmp_path / f"{number}.parquet")
            rows = spark.read.parquet(str(tmp_path / f"{number}.parquet"))
            before = compiled.getCount()
            assert windrow.spark.append(rows, sparked, "s").accepted == 1000
            counts.append(compiled.getCount() - before)
            sparked.slide("s", until)
        assert counts[1] > 0
        assert counts[3:] == [0, 0]

    def test_a_large_file_leaves_only_its_odd_rows_to_the_driver(self, pair, frame, same, monkeypatch):
        monkeypatch.setattr("windrow.ingest.verification._MAX_REWRITE_BYTES", 0)
        schema = pa.schema([("ts", UTC), ("n", pa.int64())])
        direct, sparked = pair(schema, time="ts", key="n", slide="1 minute", lifetime="20 minutes")
        for number, far in enumerate([1, 10**9, 2]):
            until = NOW - minutes(6) + minutes(2) * number
            stamps = [until - dt.timedelta(milliseconds=17 * i) for i in range(300)]
            numbers = [far if i % 50 == 0 else i % 10 for i in range(300)]
            table = pa.table({"ts": pa.array(stamps, UTC), "n": numbers}, schema=schema)
            direct.append("s", table)
            windrow.spark.append(frame(table), sparked, "s")
            for wh in (direct, sparked):
                wh.slide("s", until)
            same(direct, sparked, "s")
        assert rows(direct.probe("s", 10**9)) == rows(sparked.probe("s", 10**9)) != []


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8()], ids=["in the JVM", "in workers"])
def test_a_column_may_have_any_name(spark, path, kind):
    """Dots are paths to Spark, ${…} is a setting, a backtick ends a name: here they are letters."""
    start = NOW - dt.timedelta(days=30)
    names = ["a.b", "${spark.app.name}", "x`y", "it's", 'q"q', "back\\slash"]
    schema = pa.schema([("ts", UTC), ("k", kind), *((name, pa.string()) for name in names)])
    rows = [(start + dt.timedelta(seconds=n), n, *(f"{name} {n}" for name in names)) for n in range(1, 6)]
    fields = ", ".join(f"`{name.replace('`', '``')}` string" for name in names)
    frame = spark.createDataFrame(rows, f"ts timestamp, k {'bigint' if kind == pa.int64() else 'smallint'}, {fields}")
    with windrow.open(path) as wh:
        wh.create_stream("s", schema, time="ts", key="k", slide="1 minute", lifetime="1 hour")
        assert windrow.spark.append(frame, wh, "s").accepted == 5
        wh.slide("s", to=start + dt.timedelta(minutes=1))
        answer = wh.scan("s").read_all().sort_by("k")
    assert answer.select(["k", *names]).to_pylist() == [dict(zip(["k", *names], row[1:], strict=True)) for row in rows]


CHECKS = {
    "amount >= 0 AND (k IS NOT NULL OR amount > 1)": "reject",  # both engines understand it
    "lower(name) NOT LIKE 'x%' AND len(name) < 9": "reject",  # only DuckDB does
}


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()], ids=["jvm", "workers"])
def test_checks_hold_for_rows_from_spark_as_for_others(pair_of_checked, spark, kind):
    """By the JVM's own writer and by Python workers, which write the types that Spark has not."""
    chance = random.Random(3)
    count = 400
    rows = pa.table(
        {
            "ts": pa.array([NOW - minutes(chance.random() * 9) for _ in range(count)], UTC),
            "k": pa.array([chance.choice([None, 1, 2]) for _ in range(count)], pa.int64()),
            "amount": pa.array([chance.choice([None, -0.5, 0.5, 1.5, math.nan]) for _ in range(count)]),
            "name": pa.array([chance.choice([None, "a", "Xa", "longer than nine"]) for _ in range(count)]),
        }
    )
    plain, through = pair_of_checked(kind)
    report = plain.append("s", rows)
    frame = spark.createDataFrame(rows.to_pylist(), "ts timestamp, k bigint, amount double, name string")
    got = windrow.spark.append(frame, through, "s")
    assert got.rejected == report.rejected
    assert len(got.rejected) == 2
    for wh in (plain, through):
        wh.slide("s", to=NOW)
    ask = "SELECT ts, k, amount, name FROM s ORDER BY ALL"
    assert str(through.sql(ask).fetchall()) == str(plain.sql(ask).fetchall())
    plain.alter_stream("s", checks={"amount <> 1.5": "refuse"})
    through.alter_stream("s", checks={"amount <> 1.5": "refuse"})
    with pytest.raises(windrow.WindrowError, match=r"fails the check amount <> 1\.5"):
        windrow.spark.append(frame, through, "s")


@pytest.fixture
def pair_of_checked(make):
    """Makes two warehouses with the same checked stream."""

    def create(kind):
        schema = pa.schema([("ts", UTC), ("k", kind), ("amount", pa.float64()), ("name", pa.string())])
        made = [make(name) for name in ("plain", "through")]
        for wh in made:
            wh.create_stream("s", schema, time="ts", key="k", slide="1 minute", lifetime="10 minutes", checks=CHECKS)
        return made

    return create

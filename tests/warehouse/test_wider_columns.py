"""The type of a stored column becomes wider: every reader gives the values that plain Python keeps, in the new type.

         slide 1 │ slide 2 │ slide 3        files written before the column was widened stay as they are, and lie
amount   int8    │ int16   │ int64          beside files that have it in one of two narrower types, or in the new one
"""

import datetime as dt
import decimal
import random

import pyarrow as pa
import pytest

import row_caches
import windrow
from sample_streams import BASE, DELTA, US, when
from windrow import Index
from windrow.schema_changes import is_wider

STEPS = {
    "amount": [pa.int8(), pa.int16(), pa.int64()],
    "level": [pa.uint8(), pa.int16(), pa.int32()],
    "ratio": [pa.float32(), pa.float64(), pa.float64()],
    "share": [pa.int16(), pa.int32(), pa.float64()],
    "price": [pa.decimal128(4, 1), pa.decimal128(9, 1), pa.decimal128(20, 4)],
    "total": [pa.uint32(), pa.decimal128(12, 2), pa.decimal128(20, 2)],
}
NAMES = list(STEPS)


def schema_of(step):
    return pa.schema([("ts", US), ("k", pa.int64()), *((name, kinds[step]) for name, kinds in STEPS.items())])


def pick(rng, kind):
    """A value of a type, at its edges as often as not."""
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return decimal.Decimal(rng.choice([most, -most, rng.randint(-most, most)])).scaleb(-kind.scale)
    if pa.types.is_floating(kind):
        return rng.choice([0.5, -(2.0**100), 1e300 if kind == pa.float64() else 2.0**-100, rng.randint(-999, 999) / 8])
    bits = kind.bit_width - pa.types.is_signed_integer(kind)
    low, high = -(1 << bits) if pa.types.is_signed_integer(kind) else 0, (1 << bits) - 1
    return rng.choice([low, high, rng.randint(low, high)])


def make_rows(rng, step, slot, count=40):
    columns = [
        [BASE + slot * DELTA - rng.randrange(DELTA) for _ in range(count)],
        [rng.randrange(12) for _ in range(count)],
        *([pick(rng, kinds[step]) if rng.random() < 0.9 else None for _ in range(count)] for kinds in STEPS.values()),
    ]
    schema = schema_of(step)
    return pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def as_truth(tables, step):
    """The rows of tables as plain values of the types of a step, in an order of their own."""
    schema = schema_of(step)
    return sorted((tuple(row.values()) for t in tables for row in t.cast(schema).to_pylist()), key=repr)


def read(table, step):
    assert table.schema.types == schema_of(step).types
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def check_readers(wh, tables, step, now):
    truth = as_truth(tables, step)
    assert read(wh.scan("s").read_all(), step) == truth
    assert read(wh.sql("SELECT * FROM s").arrow().cast(schema_of(step)), step) == truth
    assert read(wh.sql("SELECT * FROM s [ROWS 100000]").arrow().cast(schema_of(step)), step) == truth
    for key in range(12):
        expected = [row for row in truth if row[1] == key]
        assert read(wh.probe("s", key), step) == expected
        assert len(wh.sql("SELECT amount FROM s WHERE k = ?", params=[key]).fetchall()) == len(expected)
    recent = [row for row in truth if row[0].timestamp() * 1e6 > now - DELTA]
    assert read(wh.scan("s", window=f"{DELTA} us").read_all(), step) == recent
    sums = wh.sql("SELECT sum(amount), max(level), sum(price), max(total), count(*) FROM s").fetchall()[0]
    columns = [[row[i] for row in truth if row[i] is not None] for i in range(8)]
    assert sums == (sum(columns[2]), max(columns[3]), sum(columns[6]), max(columns[7]), len(truth))
    edge = max(columns[2])
    expected = sum(row[2] == edge for row in truth)
    assert wh.sql("SELECT count(*) FROM s WHERE amount >= ?", params=[edge]).fetchall() == [(expected,)]
    assert wh.check().ok


@pytest.mark.parametrize("index", [Index("round-robin", 2, 2), Index("wave-insertion", 2, maintenance="rebuild")])
def test_every_reader_gives_the_rows_in_the_wider_type(path, index):
    rng, tables = random.Random(21), []
    with windrow.open(path, clock=lambda: BASE + 100 * DELTA) as wh:
        wh.create_stream("s", schema_of(0), time="ts", key="k", slide=f"{DELTA} us", lifetime=f"{50 * DELTA} us",
                         index=index, history=f"{50 * DELTA} us")  # fmt: skip
        for slot in range(1, 7):
            step = (slot - 1) // 2
            held = wh.snapshot()
            before = list(tables)
            tables.append(make_rows(rng, step, slot))
            wh.append("s", tables[-1], evolve="widen")
            if slot % 2:
                assert read(held.scan("s").read_all(), max(0, step - 1)) == as_truth(before, max(0, step - 1))
            held.close()
            wh.slide("s", to=when(BASE + slot * DELTA))
            check_readers(wh, tables, step, BASE + slot * DELTA)
        for slot in range(1, 7):
            past = wh.sql(f"SELECT * FROM s [AS OF SLIDE {wh.stream('s').slide - 6 + slot}]").arrow()
            assert read(past.cast(schema_of(2)), 2) == as_truth(tables[:slot], 2)
    with windrow.open(path, read_only=True) as wh:
        check_readers(wh, tables, 2, BASE + 6 * DELTA)


EDGES = {
    **{
        kind: [-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1]
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{kind: [0, (1 << kind.bit_width) - 1] for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    pa.float32(): [2.0**-149, 3.4028234663852886e38],
    pa.float64(): [5e-324, 1.7976931348623157e308],
    **{
        pa.decimal128(digits, scale): [decimal.Decimal(10**digits - 1).scaleb(-scale)]
        for digits in (1, 5, 10, 19, 20, 38)
        for scale in (0, 1, 10)
        if scale <= digits
    },
    pa.string(): ["a"],
    pa.date32(): [dt.date(9999, 12, 31)],
    US: [dt.datetime(9999, 12, 31, tzinfo=dt.UTC)],
}


def test_a_type_is_wider_only_if_it_has_every_value():
    """Arrow's own safe casts are the oracle, at the ends of each type."""
    wider = [(wide, narrow) for wide in EDGES for narrow in EDGES if is_wider(wide, narrow)]
    for wide, narrow in wider:
        assert pa.array(EDGES[narrow], narrow).cast(wide).to_pylist() == EDGES[narrow], (wide, narrow)
        assert not is_wider(narrow, wide)
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    assert all((b, a) in wider for i, a in enumerate(integers) for b in integers[i + 1 :])
    assert (pa.float64(), pa.float32()) in wider
    assert (pa.float64(), pa.int32()) in wider
    assert (pa.decimal128(20), pa.int64()) in wider


def open_narrow(path, **options):
    wh = windrow.open(path, clock=lambda: BASE + 100 * DELTA)
    wh.create_stream("s", schema_of(0), time="ts", key="k", slide=f"{DELTA} us", lifetime=f"{50 * DELTA} us", **options)
    return wh


def test_what_is_not_sound_is_refused_and_changes_nothing(path):
    with open_narrow(path, checks={"amount < 100": "reject"}) as wh:
        before = wh.stream("s").definition
        for column, message in (
            (("amount", pa.uint8()), "not every int8 is one"),
            (("ratio", pa.int64()), "not every float is one"),
            (("price", pa.decimal128(5, 3)), "not every decimal"),
            (("k", pa.decimal128(30)), "stored rows are found by it as int64"),
            (("ts", pa.int64()), "stored rows are found by it"),
            (("nope", pa.int64()), "has no column 'nope' to widen"),
            ("amount", "widen_column takes a pair"),
        ):
            with pytest.raises(windrow.WindrowError, match=message):
                wh.alter_stream("s", widen_column=column)
        wh.alter_stream("s", widen_column=("amount", pa.int8()))
        assert wh.stream("s").definition == before
        wide = make_rows(random.Random(1), 1, 1, count=1)
        with pytest.raises(windrow.SchemaError):
            wh.append("s", wide, evolve="add")
        wh.create_view("v", "SELECT ts, amount FROM s")
        with pytest.raises(windrow.DefinitionError, match="views are derived from stream 's'"):
            wh.append("s", wide, evolve="widen")
        assert wh.stream("s").definition == before


@pytest.mark.parametrize("synopses", ["always", ""])
def test_results_of_periodic_queries_become_wider_too(path, monkeypatch, synopses):
    """Earlier runs keep their rows; sums and extremes go on from rows of both types."""
    monkeypatch.setenv("WINDROW_SYNOPSES", synopses)
    rng, tables = random.Random(4), []
    with open_narrow(path) as wh:
        window = f"[WINDOW {4 * DELTA} MICROSECONDS SLIDE {DELTA} MICROSECONDS]"
        question = "SELECT k, max(amount) high, sum(price) total, count(*) n FROM s {} GROUP BY k"
        wh.add_query("top", question.format(window))
        wh.add_query("news", question.format(window), output="inserts")
        wh.add_query(
            "of_top", f"SELECT max(high) highest FROM top [WINDOW {DELTA} MICROSECONDS SLIDE {DELTA} MICROSECONDS]"
        )
        for slot in range(1, 6):
            step = min(2, slot // 2)
            tables.append(make_rows(rng, step, slot))
            wh.append("s", tables[-1], evolve="widen")
            wh.slide("s", to=when(BASE + slot * DELTA))
            assert not [run for run in wh.run_due() if run.error]
            live = as_truth(tables[-4:], step)
            expected = []
            for key in sorted({row[1] for row in live}):
                high = max((row[2] for row in live if row[1] == key and row[2] is not None), default=None)
                prices = [row[6] for row in live if row[1] == key and row[6] is not None]
                expected.append((key, high, sum(prices) if prices else None, sum(row[1] == key for row in live)))
            newest = f"SELECT k, high, total, n FROM top WHERE _slide = {wh.stream('s').slide} ORDER BY k"
            assert wh.sql(newest).fetchall() == expected
            highest = wh.results("of_top").arrow().column("highest").to_pylist()
            assert highest[-1] == max(high for _, high, _, _ in expected if high is not None)
        assert wh.results("top").arrow().schema.field("high").type == pa.int64()
        assert len(set(wh.results("top").arrow().column("_slide").to_pylist())) == 5
        wh.alter_stream("s", add_column=("note", pa.int32()))
        wh.add_query("notes", f"SELECT k, max(note) AS note FROM s {window} GROUP BY k")  # older files lack it
        wh.slide("s", to=when(BASE + 6 * DELTA))
        assert not [run for run in wh.run_due() if run.error]
        assert wh.check().ok


def test_rows_in_memory_joins_rejected_and_spooled_rows_are_of_the_wider_type(path):
    rng = random.Random(5)
    with open_narrow(path) as wh:
        first, second = make_rows(rng, 0, 1), make_rows(rng, 2, 2)
        wh.append("s", first)
        wh.append("s", first.slice(0, 1).set_column(0, "ts", pa.array([None], US)))
        wh.slide("s", to=when(BASE + DELTA))
        wh.put_table("t", pa.table({"amount": pa.array([-128, 127, 1 << 40], pa.int64())}))
        question = "SELECT sum(s.amount), count(*) FROM s JOIN t USING (amount)"
        for _ in range(3):
            wh.sql(question).fetchall()
            row_caches.settle(wh)
        assert row_caches.path_of(wh, question) == "memory"
        wh.append("s", first)
        wh.append("s", second, evolve="widen")
        with pytest.raises(windrow.SchemaError, match="cannot become"):
            wh.append("s", first.set_column(3, "level", pa.array([1 << 40] * 40)))
        wh.slide("s", to=when(BASE + 2 * DELTA))
        for _ in range(3):
            amounts = [row[2] for row in as_truth([first, first, second], 2) if row[2] in (-128, 127, 1 << 40)]
            assert wh.sql(question).fetchall() == [(sum(amounts), len(amounts))]
            row_caches.settle(wh)
        assert row_caches.path_of(wh, question) == "memory"
        assert wh.rejected("s").schema.field("amount").type == pa.int64()
        assert wh.replay("s").rows == 1
        wh.relayout("s", key="amount", move="now")
        assert wh.probe("s", 127).num_rows == sum(row[2] == 127 for row in as_truth([first, first, second], 2))


@pytest.mark.parametrize("count", [3, 40])
def test_a_batch_is_known_again_in_the_narrower_types_and_in_the_wider(path, count):
    rng = random.Random(6)
    with open_narrow(path) as wh:
        batches = [make_rows(rng, step, 1, count) for step in range(3)]
        for number, rows in enumerate(batches):
            assert not wh.append("s", rows, batch_id=str(number), evolve="widen").duplicate
            for earlier, given in enumerate(batches[: number + 1]):
                assert wh.append("s", given, batch_id=str(earlier)).duplicate
                assert wh.append("s", given.cast(schema_of(number)), batch_id=str(earlier)).duplicate
        changed = batches[0].cast(schema_of(2)).to_pylist()
        changed[1]["amount"] = 1 << 40
        with pytest.raises(windrow.WindrowError, match="with other rows"):
            wh.append("s", pa.Table.from_pylist(changed, schema_of(2)), batch_id="0")

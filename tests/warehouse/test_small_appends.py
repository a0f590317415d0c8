"""Small appends wait in the catalog: durable, counted, idempotent, gathered once, and never passed by a slide."""

import datetime as dt
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from windrow import row_spool, small_append
from windrow.catalog.environment import catalog_key
from windrow.group_commit import GroupCommit

BASE = 1_767_225_600_000_000
SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("text", pa.string())])


def when(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(BASE / 1e6 + seconds, dt.UTC)


def table(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def row(number: int, second: float) -> dict[str, Any]:
    return {"ts": when(second), "k": number, "text": None if number % 7 == 0 else f"text é {number}"}


def keys(rows: pa.Table) -> list[int]:
    return sorted(rows.column("k").to_pylist())


def files(wh: windrow.Warehouse) -> list[Path]:
    return list(wh.path.rglob("*.parquet"))


@pytest.fixture
def wh(tmp_path: Path) -> Any:
    with windrow.open(tmp_path / "warehouse") as warehouse:
        warehouse.create_stream("s", SCHEMA, time="ts", key="k", slide="10 seconds", lifetime="1 minute")
        yield warehouse
        assert warehouse.check().ok


def test_rows_are_durable_counted_and_in_no_file_until_a_slide_gathers_them(wh: windrow.Warehouse) -> None:
    report = wh.append("s", table([row(1, 1), row(2, 2)]))
    assert (report.rows, report.accepted, report.duplicate, report.rejected) == (2, 2, False, {})
    wh.append("s", [{"ts": when(3), "k": 3, "text": "x"}])
    assert files(wh) == []
    status = wh.stream("s")
    assert (status.spooled_rows, status.spooled_files) == (3, 0)
    assert status.spooled_bytes > 0
    assert [(source.rows) for source in status.sources] in ([3], [])
    assert wh.check().ok
    with windrow.open(wh.path) as other:
        assert other.stream("s").spooled_rows == 3
    slid = wh.slide("s", to=when(10))
    assert (slid.inserted, slid.late) == (3, 0)
    assert len(files(wh)) == 1
    assert keys(wh.scan("s").read_all()) == [1, 2, 3]
    assert wh.stream("s").spooled_rows == 0
    assert wh._store.catalog.read(lambda tables: tables.count("waiting")) == 0


def test_a_batch_id_is_remembered_by_all_values(wh: windrow.Warehouse) -> None:
    rows = table([row(1, 1)])
    assert not wh.append("s", rows, batch_id="b").duplicate
    assert wh.append("s", rows, batch_id="b").duplicate
    with pytest.raises(windrow.BatchConflictError, match="nothing was changed"):
        wh.append("s", table([row(2, 1)]), batch_id="b")
    wh.slide("s", to=when(10))
    assert wh.append("s", rows, batch_id="b").duplicate
    assert keys(wh.scan("s").read_all()) == [1]


def test_what_is_dead_or_fails_a_check_is_rejected_as_in_a_large_append(wh: windrow.Warehouse) -> None:
    wh.append("s", table([row(1, 1)]))
    wh.slide("s", to=when(100))
    report = wh.append("s", table([row(2, 2), row(3, 95), row(4, 101)]))
    assert (report.accepted, report.late, sum(report.rejected.values())) == (2, 1, 1)
    wh.alter_stream("s", checks={"k > 10": "refuse"})
    with pytest.raises(windrow.SchemaError, match="refuses such appends"):
        wh.append("s", table([row(5, 101)]))
    wh.append("s", table([row(11, 102)]))
    assert wh.append("s", table([row(12, 99)])).late == 1
    wh.slide("s", to=when(110))
    assert keys(wh.scan("s").read_all()) == [3, 4, 11, 12]


def test_a_wrong_row_is_named_and_nothing_waits(wh: windrow.Warehouse) -> None:
    for bad, message in (
        (pa.table({"ts": ["soon"], "k": [1], "text": ["x"]}), "cannot be read as"),
        (pa.table({"k": [1]}), "is missing"),
        (pa.table({"ts": pa.array([when(1)], pa.timestamp("us", "UTC")), "k": [1.5], "text": ["x"]}), "k"),
    ):
        with pytest.raises(windrow.SchemaError, match=message):
            wh.append("s", bad)
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xff"))
    with pytest.raises(windrow.SchemaError, match="UTF-8"):
        wh.append("s", pa.table({"ts": pa.array([when(1)], SCHEMA.field("ts").type), "k": [1], "text": broken}))
    with pytest.raises(windrow.UnknownStreamError):
        wh.append("nowhere", table([row(1, 1)]))
    assert wh.stream("s").spooled_rows == 0


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_of_small_and_large_appends_gives_what_plain_python_gives(tmp_path: Path, seed: int) -> None:
    """Several sources, sizes around the bound, gathering by appends, slides, reopened handles, a column that is added."""
    print("seed", seed)
    chance = random.Random(seed)
    schema, truth, spool, number, now = SCHEMA, [], [], 0, 0
    path = tmp_path / "warehouse"
    wh = windrow.open(path)
    wh.create_stream("s", schema, time="ts", key="k", slide="10 seconds", lifetime="1 minute", sources=["a", "b"])
    for turn in range(80):
        what = chance.random()
        if what < 0.7:
            made = []
            for _ in range(chance.choice((1, 1, 1, 2, 8, 9, 40))):
                number += 1
                made.append(row(number, now + chance.uniform(0.001, 25)) | dict.fromkeys(schema.names[3:], number))
            wh.append("s", table(made, schema), source=chance.choice("ab"), batch_id=f"b{number}")
            spool += made
        elif what < 0.9:
            now += 10 * chance.randint(1, 2)
            report = wh.slide("s", to=when(now), force=True)
            assert report.inserted == len(spool)
            truth, spool = truth + spool, []
            live = [r["k"] for r in truth if when(now) - dt.timedelta(seconds=60) < r["ts"] <= when(now)]
            assert keys(wh.scan("s").read_all()) == sorted(live), f"turn {turn}"
        elif what < 0.93 and "more" not in schema.names:
            schema = schema.append(pa.field("more", pa.int64()))
            wh.alter_stream("s", add_column=schema.field("more"))
        elif what < 0.97:
            small_append.gather_rows(
                wh._store,
                "s",
                wh._store.catalog.read(lambda tables: list(row_spool.list_waiting(tables, catalog_key(1)))),
                (),
            )
        else:
            wh.close()
            wh = windrow.open(path)
        assert wh.stream("s").spooled_rows == len(spool)
    assert wh.check().ok
    wh.close()


def test_when_much_waits_an_append_writes_it_to_a_file(wh: windrow.Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_spool, "GATHERED_RECORDS", 5)
    for number in range(12):
        wh.append("s", table([row(number, 1)]))
    status = wh.stream("s")
    assert (status.spooled_rows, status.spooled_files, len(files(wh))) == (12, 2, 2)
    with windrow.locks.locked(wh._store.lock_path(1), "a slide", 0):  # what waits while somebody slides is bounded too
        for number in range(12, 40):
            wh.append("s", table([row(number, 1)]))
        heads = wh._store.catalog.read(lambda tables: [w.head for w in row_spool.list_waiting(tables, catalog_key(1))])
        assert max(head.records for head in heads) <= 20
        assert wh.stream("s").spooled_files > 2
    wh.slide("s", to=when(10))
    assert keys(wh.scan("s").read_all()) == list(range(40))


def test_rows_that_come_while_others_are_gathered_wait_for_the_next_slide(
    wh: windrow.Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slide to 10 s has looked; a row of 5 s that comes then is late, and in the slide to 20 s."""
    wh.append("s", table([row(1, 1)]))
    gather = small_append._Gathering.gather

    def interrupted(self: Any) -> Any:
        if self.waiting.head.records == 1:
            wh.append("s", table([row(2, 5)]), batch_id="b")
        return gather(self)

    monkeypatch.setattr(small_append._Gathering, "gather", interrupted)
    assert wh.slide("s", to=when(10)).inserted == 1
    assert wh.stream("s").spooled_rows == 1
    monkeypatch.setattr(small_append._Gathering, "gather", gather)
    assert wh.check().ok
    wh.append("s", table([row(3, 15)]))
    slid = wh.slide("s", to=when(20))
    assert (slid.inserted, slid.late) == (2, 1)
    assert keys(wh.scan("s").read_all()) == [1, 2, 3]


def test_threads_commit_together_and_nothing_is_lost_or_doubled(wh: windrow.Warehouse) -> None:
    failed: list[BaseException] = []

    def write(first: int) -> None:
        try:
            for number in range(first, first + 40):
                wh.append("s", table([row(number, 1)]), batch_id=f"b{number}")
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=write, args=(1000 * part,)) for part in range(6)]
    for thread in threads:
        thread.start()
    slides = [wh.slide("s", to=when(10 * number)) for number in range(1, 4)]
    for thread in threads:
        thread.join()
    assert not failed
    slides.append(wh.slide("s", to=when(40)))
    assert sum(slide.inserted for slide in slides) == 240
    assert keys(wh.scan("s").read_all()) == sorted(1000 * part + n for part in range(6) for n in range(40))


def test_work_that_raises_is_undone_alone(wh: windrow.Warehouse) -> None:
    """Three threads are in one group; the second's work raises after it has changed something."""
    commit, store, entered, report = GroupCommit(), wh._store, threading.Event(), {}
    go_on = threading.Event()

    def hold(tables: Any) -> str:
        del tables
        entered.set()
        assert go_on.wait(60)
        return "held"

    def put(name: str) -> Any:
        def work(tables: Any) -> str:
            tables.put_raw("meta", f"test {name}".encode(), b"12345678")
            if name == "bad":
                raise ValueError(name)
            return name

        return work

    def run(name: str, work: Any) -> None:
        try:
            report[name] = commit.run(store, work)
        except ValueError as error:
            report[name] = error

    first = threading.Thread(target=run, args=("hold", hold))
    first.start()
    assert entered.wait(60)
    others = [threading.Thread(target=run, args=(name, put(name))) for name in ("one", "bad", "two")]
    for thread in others:
        thread.start()
    while len(commit._waiting) < 3:
        pass
    go_on.set()
    for thread in (first, *others):
        thread.join()
    assert isinstance(report.pop("bad"), ValueError)
    assert report == {"hold": "held", "one": "one", "two": "two"}
    actual = store.catalog.read(
        lambda tables: [tables.raw("meta", f"test {n}".encode()) for n in ("one", "bad", "two")]
    )
    assert [value is not None for value in actual] == [True, False, True]


def test_a_release_that_does_not_know_waiting_rows_says_so(wh: windrow.Warehouse) -> None:
    """Its record of a spooled file is a map; a placeholder is an array."""
    import msgspec

    from windrow.catalog.records import SpoolEntry

    wh.append("s", table([row(1, 1)]))
    raw = wh._store.catalog.read(lambda tables: [bytes(raw) for _, raw in tables.raw_items("spool", catalog_key(1))])
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.Decoder(SpoolEntry).decode(raw[0])


def test_a_dropped_stream_takes_its_waiting_rows_with_it(wh: windrow.Warehouse) -> None:
    wh.append("s", table([row(1, 1)]))
    wh.drop_stream("s")
    assert wh._store.catalog.read(lambda tables: tables.count("waiting") + tables.count("spool")) == 0
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide="10 seconds", lifetime="1 minute")
    wh.append("s", table([row(2, 1)]))
    wh.slide("s", to=when(10))
    assert keys(wh.scan("s").read_all()) == [2]


def test_values_of_every_kind_come_back(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("ts", pa.timestamp("us", "UTC")),
            ("list", pa.list_(pa.int32())),
            ("struct", pa.struct([("a", pa.string()), ("b", pa.float64())])),
            ("dictionary", pa.dictionary(pa.int32(), pa.string())),
            ("decimal", pa.decimal128(20, 3)),
            ("binary", pa.binary()),
        ]
    )
    for columns in (schema, schema.remove(3)):
        with windrow.open(tmp_path / str(len(columns))) as wh:
            wh.create_stream("s", columns, time="ts", slide="10 seconds", lifetime="1 minute")
            rows = pa.Table.from_pylist(
                [
                    {"ts": when(n), "list": [n, None], "struct": {"a": None, "b": n / 3}, "dictionary": f"d{n}",
                     "binary": bytes([n])}
                    for n in range(1, 4)
                ],
                schema,
            ).select(columns.names)  # fmt: skip
            for number in range(3):
                wh.append("s", rows.slice(number, 1))
            wh.slide("s", to=when(10))
            assert wh.scan("s").read_all().select(columns.names).to_pylist() == rows.to_pylist()
            assert wh.check().ok

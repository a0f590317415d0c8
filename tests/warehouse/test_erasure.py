"""Erasure: after it no byte of a key is in any file of the folder, and everything else is as it was."""

import datetime as dt
import json
import mmap
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import child_processes
import windrow
from command_line import CommandLine
from faulty_disks import join_child, start_child
from windrow import Index
from windrow.catalog.environment import catalog_key
from windrow.files import ERASURE_CRASH_POINTS

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("who", pa.string()), ("v", pa.int64())])
SECRET = "Zebedee-Quimby-4711"
NAMES = ["ada", "bob", "cleo", SECRET, "dora", "emil", "Zebedee-Quimby-4712"]


def rows_of(minute: int) -> list[dict[str, Any]]:
    return [
        {"ts": START + minute * MINUTE + dt.timedelta(seconds=2 * n + 1), "who": NAMES[n % 7], "v": minute * 100 + n}
        for n in range(21)
    ]


def fill(wh: windrow.Warehouse, first: int, last: int) -> None:
    for minute in range(first, last):
        wh.append("s", rows_of(minute), batch_id=f"minute {minute}")
        wh.slide("s", to=START + (minute + 1) * MINUTE)


def make(path: Path, **options: Any) -> windrow.Warehouse:
    wh = windrow.open(path)
    options = {"index": Index("round-robin", 2, 2, maintenance="rebuild"), "history": "6 minutes", **options}
    wh.create_stream("s", SCHEMA, time="ts", key="who", slide="1 minute", lifetime="4 minutes", **options)
    fill(wh, 0, 8)
    return wh


def find_bytes(folder: Path, what: str) -> list[str]:
    """The files of a folder that hold a text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if what.encode() in path.read_bytes()]


def left(first: int, last: int, gone: set[str]) -> list[int]:
    return sorted(row["v"] for minute in range(first, last) for row in rows_of(minute) if row["who"] not in gone)


def values(answer: Any) -> list[int]:
    return sorted(v for (v,) in answer.fetchall())


@pytest.mark.parametrize("by", ["key", "where"])
@pytest.mark.parametrize("maintenance", ["rebuild", "adaptive"])
def test_no_byte_of_a_key_is_left_anywhere(path: Path, by: str, maintenance: str) -> None:
    wh = make(path, index=Index("round-robin", 2, 2, maintenance=maintenance))
    wh.create_view("latest", "SELECT who, v FROM s", key="who")
    wh.add_query("sums", "SELECT count(*) AS n, sum(v) AS total FROM s [WINDOW 2 MINUTES SLIDE 1 MINUTE]")
    wh.append("s", rows_of(8))  # spooled
    wh.append("s", [{"ts": START - dt.timedelta(days=1), "who": SECRET, "v": 1}])  # rejected: dead on arrival
    commit = wh.sql("SELECT 1 FROM s").version
    assert find_bytes(path, SECRET)
    condition: dict[str, Any] = {"keys": [SECRET]} if by == "key" else {"where": f"who = '{SECRET}'"}
    report = wh.erase("s", **condition)
    assert report.rows == {"window": 12, "history": 12, "spool": 3, "rejected": 1}, report
    assert report.gone
    assert not report.held_by
    assert any("sums" in each for each in report.untouched)
    assert find_bytes(path, SECRET) == []
    assert wh.check().ok, wh.check().problems
    assert values(wh.sql("SELECT v FROM s")) == left(4, 8, {SECRET})
    assert values(wh.sql("SELECT v FROM latest")) == left(4, 8, {SECRET})
    assert values(wh.sql("SELECT v FROM s [INCLUDING EXPIRED]")) == left(0, 8, {SECRET})
    then = wh.sql(f"SELECT v FROM s [AS OF COMMIT {commit}]")
    assert then.windows[0].revoked == (f"28 rows were erased at commit {report.commit}",)
    assert values(then) == left(4, 8, {SECRET})
    assert wh.probe("s", SECRET).num_rows == 0
    assert wh.probe("s", "Zebedee-Quimby-4712").num_rows == 12
    wh.slide("s", to=START + 9 * MINUTE)
    wh.run_due()
    assert values(wh.sql("SELECT v FROM s")) == left(5, 9, {SECRET})
    assert wh.results("sums").arrow()["n"].to_pylist() == [len(left(7, 9, {SECRET}))]
    assert wh.append("s", rows_of(3), batch_id="minute 3").duplicate
    assert wh.check().ok
    wh.close()
    assert find_bytes(path, SECRET) == []


def test_a_log_of_matches_keeps_rows_until_they_are_erased_there_too(path: Path) -> None:
    """The receipt names it, since what came about does not follow its parts any more; a view does, and is refused."""
    with make(path) as wh:
        wh.create_view("log", "SELECT who, v FROM s", key="who", keep="1 day")
        wh.create_view("of_log", "SELECT who FROM log WHERE v > 0", keep="1 day")
        wh.create_view("plain", "SELECT who FROM log")
        fill(wh, 8, 10)
        logged = len(values(wh.sql("SELECT v FROM log")))
        report = wh.erase("s", keys=[SECRET])
        assert any("kept by log, of_log" in each for each in report.untouched)
        assert len(values(wh.sql("SELECT v FROM log"))) == logged
        erased = wh.erase("log", keys=[SECRET])
        assert erased.rows == {"window": len(values(wh.sql(f"SELECT 1 FROM of_log WHERE who = '{SECRET}'")))}
        assert wh.sql(f"SELECT 1 FROM plain WHERE who = '{SECRET}'").fetchall() == []
        assert wh.erase("of_log", where=f"who = '{SECRET}'").gone
        assert find_bytes(path, SECRET) == []
        fill(wh, 10, 12)
        assert len(values(wh.sql("SELECT v FROM log"))) == logged - erased.total + len(rows_of(10)) + len(rows_of(11))
        assert wh.check().ok
        with pytest.raises(windrow.ViewError, match="'plain' is a view and cannot be changed by hand"):
            wh.erase("plain", keys=[SECRET])


@pytest.mark.parametrize("by", ["key", "where"])
def test_rows_of_a_file_that_no_segment_has_any_more_go_too(path: Path, by: str) -> None:
    """They have expired and are in no answer, but others of their file live on: no directory names the key."""
    schema = SCHEMA.append(pa.field("until", SCHEMA.field("ts").type))
    with windrow.open(path) as wh:
        wh.create_stream("s", schema, time="ts", key="who", slide="1 minute", expires="until", max_lifetime="1 hour",
                         index=Index("round-robin", 2, 4, maintenance="norebuild"))  # fmt: skip
        lives = [(SECRET, 2)] * 20 + [("ada", 31), ("bob", 32), ("eve", 33)] * 20
        rows = [
            {"ts": START, "who": who, "v": v, "until": START + life * MINUTE} for v, (who, life) in enumerate(lives)
        ]
        wh.append("s", pa.Table.from_pylist(rows, schema))
        for minute in range(7):
            wh.slide("s", to=START + minute * MINUTE)
        assert find_bytes(path / "streams", SECRET)
        report = wh.erase("s", keys=[SECRET]) if by == "key" else wh.erase("s", where=f"who = '{SECRET}'")
        assert (report.total, report.files, report.gone) == (0, 1, True)
        assert find_bytes(path, SECRET) == []
        assert values(wh.sql("SELECT v FROM s")) == list(range(20, 80))
        assert wh.check().ok


def test_free_pages_of_the_catalog_are_overwritten_to_their_last_byte(path: Path) -> None:
    with make(path) as wh:
        for _ in range(3):
            with wh._store.catalog.exclusive() as tables:
                for number in range(300):
                    size = mmap.PAGESIZE - 24 - number % 90
                    tables.put_raw("blank", catalog_key(number), (SECRET * 300).encode()[:size])
            with wh._store.catalog.exclusive() as tables:
                tables.delete_prefix("blank", b"")
        assert find_bytes(path / "catalog", SECRET)
        wh.erase("s", keys=[SECRET])
        assert find_bytes(path, SECRET) == []


def test_a_condition_takes_what_it_holds_for_and_nothing_else(path: Path) -> None:
    with make(path, history=None) as wh:
        report = wh.erase("s", where="v % 2 = 0 AND who <> 'ada'")
        kept = [r["v"] for m in range(4, 8) for r in rows_of(m) if not (r["v"] % 2 == 0 and r["who"] != "ada")]
        assert values(wh.sql("SELECT v FROM s")) == sorted(kept)
        assert wh.check().ok
        again = wh.erase("s", where="v % 2 = 0 AND who <> 'ada'")
        assert (again.total, again.files, again.digest) == (0, 0, report.digest)
        assert [each.commit for each in wh.erasures("s")] == [report.commit]


def test_what_is_asked_wrongly_erases_nothing(path: Path) -> None:
    with make(path) as wh:
        for wrong in ({}, {"keys": ["ada"], "where": "true"}, {"where": "v = (SELECT 1)"}, {"where": "nobody = 1"},
                      {"where": "v"}, {"where": "v > 'x'"}, {"where": "1 // (v - 401) = who"}, {"keys": "ada"}, {"keys": [1.5]}):  # fmt: skip
            with pytest.raises(windrow.WindrowError):
                wh.erase("s", **wrong)
        with pytest.raises(windrow.WindrowError):
            wh.erase("nothing", keys=["ada"])
        assert values(wh.sql("SELECT v FROM s")) == left(4, 8, set())
        assert not wh.erasures("s")


def test_an_open_reader_is_named_and_keeps_what_it_reads(path: Path) -> None:
    with make(path) as wh:
        with wh.snapshot() as held:
            report = wh.erase("s", keys=[SECRET])
            assert not report.gone
            assert report.held_by == ("1 open reader",)
            assert values(held.sql("SELECT v FROM s")) == left(4, 8, set())
            assert values(wh.sql("SELECT v FROM s")) == left(4, 8, {SECRET})
        assert wh.erase("s", keys=["bob"]).gone
        assert find_bytes(path, SECRET) == []


def test_lines_that_could_not_be_read_go_with_their_text(path: Path, tmp_path: Path) -> None:
    make(path).close()
    (tmp_path / "bad.csv").write_text(f"ts,who,v\nnever,{SECRET},1\nnever,ada,2\n")
    windrow_command = CommandLine(path)
    windrow_command("append", "s", tmp_path / "bad.csv", "--on-error", "reject")
    windrow_command("erase", "s", code=2)
    windrow_command("erase", "s", "--where", "nobody = 1", code=1)
    refused = windrow_command("erase", "s", "--where", "v > 'x'", code=1).output
    assert "cannot be computed" in refused and "nothing was erased" in refused
    shown = windrow_command("erase", "s", "--key", SECRET, "--receipt", tmp_path / "receipt.json").output
    assert "their bytes are gone" in shown
    assert "1 from the rejected rows" in shown
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert receipt["rows"] == {"window": 12, "history": 12, "rejected": 1}
    assert receipt["total"] == 25
    assert SECRET not in json.dumps(receipt)
    with windrow.open(path) as wh:
        assert wh.rejected("s").num_rows == 1
    assert find_bytes(path, SECRET) == []


@pytest.mark.parametrize("step", ERASURE_CRASH_POINTS)
def test_a_kill_leaves_the_rows_or_none_of_them(path: Path, tmp_path: Path, step: str) -> None:
    make(path).close()
    killed = shutil.copytree(path, tmp_path / "killed")
    child = start_child(child_processes.erase_until_step, str(killed), SECRET, step)
    assert join_child(child) == -signal.SIGKILL
    with windrow.open(killed) as wh:
        assert wh.check().ok or all("orphan" in p or "named by no record" in p for p in wh.check().problems)
        shown = values(wh.sql("SELECT v FROM s"))
        assert shown in (left(4, 8, set()), left(4, 8, {SECRET}))
        assert (shown == left(4, 8, set())) == (step in ("erase.staged", "erase.published", "erase.committing"))
        assert wh.erase("s", keys=[SECRET]).gone
        assert find_bytes(killed, SECRET) == []
        fill(wh, 8, 10)
        assert values(wh.sql("SELECT v FROM s")) == left(6, 8, {SECRET}) + left(8, 10, set())


def test_a_column_with_a_dictionary_keeps_no_value_that_no_row_has(path: Path) -> None:
    schema = SCHEMA.set(1, pa.field("who", pa.dictionary(pa.int32(), pa.string())))
    with windrow.open(path) as wh:
        wh.create_stream("s", schema, time="ts", key="who", slide="1 minute", lifetime="4 minutes", history="6 minutes")
        for minute in range(8):
            dead = [{"ts": START - dt.timedelta(days=1), "who": "Theodora-Rejected", "v": 0}] if minute else []
            wh.append("s", pa.Table.from_pylist([*rows_of(minute), *dead], schema))
            wh.slide("s", to=START + (minute + 1) * MINUTE)
        wh.append("s", pa.Table.from_pylist(rows_of(8), schema))
        assert not any("segments" in file for file in find_bytes(path, "Theodora-Rejected"))
        report = wh.erase("s", keys=[SECRET])
        assert report.rows == {"window": 12, "history": 12, "spool": 3}
        assert find_bytes(path, SECRET) == []
        assert values(wh.sql("SELECT v FROM s [INCLUDING EXPIRED]")) == left(0, 8, {SECRET})


def test_a_published_version_keeps_rows_until_its_hold_is_over_and_no_longer(path: Path) -> None:
    """The erasure publishes at once; who erases again is told the truth about the bytes, not only about the rows."""
    now = START + 20 * MINUTE
    with windrow.open(path, clock=lambda: int(now.timestamp() * 1e6)) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="who", slide="1 minute", lifetime="4 minutes", history="6 minutes")
        wh.publish("s", every="1 day", hold="10 minutes")
        fill(wh, 0, 8)
        wh.publish("s")
        versions = [wh.publications()[0].version]
        foreign = path / f"streams/s/_delta_log/{2:020d}.json"
        foreign.write_text("{}")
        assert "written by somebody else" in wh.erase("s", keys=["emil"]).held_by[-1]
        foreign.unlink()
        for _ in range(2):
            report = wh.erase("s", keys=[SECRET])
            assert not report.gone
            assert report.held_by == ("published versions, until their hold is over",)
            assert find_bytes(path / "streams", SECRET)
            versions.append(wh.publications()[0].version)
        assert versions == [1, 2, 2]
        now += 11 * MINUTE
        assert wh.erase("s", keys=[SECRET]).gone
        assert find_bytes(path, SECRET) == []
        assert wh.check().ok


def test_rows_of_small_appends_that_wait_in_the_catalog_go_too(path: Path) -> None:
    with make(path) as wh:
        for row in rows_of(8)[:14]:
            wh.append("s", [row])
        assert find_bytes(path / "catalog", SECRET)
        report = wh.erase("s", keys=[SECRET])
        assert report.rows["spool"] == 2
        assert report.gone
        assert find_bytes(path, SECRET) == []
        wh.slide("s", to=START + 9 * MINUTE)
        kept = [row["v"] for row in rows_of(8)[:14] if row["who"] != SECRET]
        assert values(wh.sql("SELECT v FROM s [WINDOW 1 MINUTE]")) == kept
        assert wh.check().ok

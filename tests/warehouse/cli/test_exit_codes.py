"""Exit codes say whether to try again: 75 for what may pass by itself, 1 and 2 for what will not, 3 for rejected rows."""

import errno
import fcntl
import json
import threading

import pytest

import windrow
from command_line import PACKETS, at, table
from faulty_disks import FailAtCall
from windrow.catalog.lookups import find_stream
from windrow.cli.session import Session
from windrow.errors import is_temporary
from windrow.orphans import data_files

HEAVY = "SELECT count(*) FROM range(100000) a, range(100000) b, packets"


@pytest.fixture
def sources(empty):
    """A stream of two sources, of which the second has come to half a minute."""
    empty("stream", "create", "packets", *PACKETS, "--source", "north", "--source", "south")
    with windrow.open(empty.path) as wh:
        wh.append("packets", table(*range(1, 121)), source="north")
        wh.append("packets", table(30), source="south")
    return empty


def failure(run, *arguments, code, **options):
    """The error of a command as JSON; the text for people says the same."""
    plain = run(*arguments, code=code, **options)
    assert plain.stderr.startswith("windrow: ")
    result = run(*arguments, "--json", code=code, **options)
    error = json.loads(result.stderr)["error"]
    assert result.stderr.count("\n") == 1
    assert " ".join(plain.stderr.split()) == "windrow: " + " ".join(error["message"].split())
    assert error["exit_code"] == code
    assert error["retry"] is (code == 75)
    return error


class Test_what_may_pass_by_itself:
    def test_a_lock_that_another_process_holds(self, sources):
        with windrow.open(sources.path) as wh:
            entry, _ = wh._store.catalog.read(lambda tables: find_stream(tables, "packets"))
            lock = wh._store.lock_path(entry.id)
        lock.parent.mkdir(exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            error = failure(sources, "slide", "packets", "--force", "--timeout", 0, code=75)
        assert error["type"] == "BusyError"
        assert "try again later" in error["message"]

    def test_a_source_that_is_behind(self, sources):
        error = failure(sources, "slide", "packets", "--to", at(120).isoformat(), code=75)
        assert error["type"] == "SourceBehindError"
        assert "source 'south' has reached" in error["message"]

    def test_a_full_disk(self, packets, monkeypatch, tmp_path):
        plain_open = Session.open
        monkeypatch.setattr(
            Session, "open", lambda self, **options: plain_open(self, **options, files=FailAtCall("sink", 1))
        )
        rows = "2025-01-01T12:04:00Z,1,1\n" * 20  # fewer would wait in the catalog
        (tmp_path / "a.csv").write_text(f"ts,src,len\n{rows}")
        error = failure(packets, "append", "packets", tmp_path / "a.csv", code=75)
        assert error["type"] == "StorageError"
        assert "the disk is full" in error["message"]

    def test_a_statement_that_takes_too_long(self, packets):
        assert failure(packets, "sql", HEAVY, "--timeout", 0.1, code=75)["type"] == "QueryTimeoutError"

    def test_a_clock_that_nobody_moves(self, sources):
        error = failure(sources, "wait", "packets", "--up-to", at(60).isoformat(), "--timeout", 0, code=75)
        assert error["type"] == "BusyError"
        assert "it waits for south" in error["message"]


class Test_what_will_not:
    @pytest.mark.parametrize(
        ("arguments", "kind"),
        [
            (("scan", "pockets"), "UnknownStreamError"),
            (("wait", "pockets", "--up-to", "2025-01-01"), "UnknownStreamError"),
            (("wait", "packets", "--up-to", "noon"), "DefinitionError"),
            (("sql", "SELEC 1"), "QueryError"),
            (("sql", "SELECT * FROM read_csv('x.csv')"), "ConfinementError"),
            (("query", "drop", "none"), "UnknownQueryError"),
            (("table", "drop", "none"), "UnknownTableError"),
            (("append", "packets", "missing.csv"), "StorageError"),
            (("probe", "packets", "--key", "one"), "SearchKeyError"),
            (("scan", "packets", "--window", "1 fortnight"), "DefinitionError"),
            (("stream", "create", "select", *PACKETS), "InvalidNameError"),
            (("slide", "packets", "--to", "2999-01-01"), "ClockError"),
        ],
    )
    def test_mistakes_of_the_user(self, packets, arguments, kind):
        assert failure(packets, *arguments, code=1)["type"] == kind

    def test_a_mistake_in_sql_has_its_place(self, packets):
        error = failure(packets, "sql", "SELECT *\nFROM packets [WINDOW 1 MINUET]", code=1)
        assert (error["line"], error["column"]) == (2, 24)

    def test_a_folder_without_a_warehouse(self, empty, tmp_path):
        assert failure(empty, "status", "-w", tmp_path / "no", code=1)["type"] == "FormatError"

    def test_a_damaged_file(self, packets):
        for file in data_files(packets.path):
            (packets.path / file).write_bytes(b"PAR1" * 8)
        assert failure(packets, "sql", "SELECT sum(len) FROM packets", code=1)["type"] == "DamageError"

    def test_commands_that_are_written_wrongly(self, packets):
        result = packets("scan", "--json", code=2)
        assert json.loads(result.stderr) == {
            "error": {"type": "UsageError", "message": "Missing argument 'STREAM'.", "retry": False, "exit_code": 2}
        }
        assert packets("scan", code=2).stderr.startswith("Usage: ")

    def test_a_refusal_that_stays_decides_over_one_that_passes(self, sources):
        sources("stream", "create", "plain", *PACKETS)
        result = sources("slide", "--all", "--to", "2999-01-01", "--json", code=1)
        assert json.loads(result.stderr)["error"]["type"] == "ClockError"


class Test_rejected_rows:
    TEXT = "ts,src,len\n2025-01-01T12:04:00Z,1,1\n,1,1\n,2,1\n"

    @pytest.mark.parametrize(("limit", "code"), [(0, 3), (1, 3), (2, 0), (3, 0)])
    def test_more_than_are_tolerated(self, packets, limit, code):
        before = packets.json("status")["streams"][0]
        result = packets(
            "append", "packets", "-", "--format", "csv", "--json", "--fail-rejected", limit, input=self.TEXT, code=code
        )
        report = json.loads(result.stdout)
        assert (report["accepted"], sum(report["rejected"].values())) == (1, 2)
        after = packets.json("status")["streams"][0]
        assert after["spooled_rows"] - before["spooled_rows"] == 1
        if code:
            error = json.loads(result.stderr)["error"]
            assert error["type"] == "RejectedRows"
            assert error["rejected"] == report["rejected"]
            assert error["retry"] is False
        else:
            assert result.stderr == ""


class Test_waiting:
    def test_ends_when_another_thread_slides(self, waiting):
        """The clock is behind when `wait` begins, or not: it ends well either way, and never before the slide."""
        moved = threading.Event()

        def slide():
            with windrow.open(waiting.path) as wh:
                wh.append("packets", table(*range(1, 61)))
                moved.set()
                wh.slide("packets", to=at(60))

        other = threading.Thread(target=slide)
        other.start()
        try:
            document = waiting.json("wait", "packets", "--up-to", at(60).isoformat(), "--timeout", 120)
        finally:
            other.join()
        assert moved.is_set()
        assert document == {"stream": "packets", "now": "2025-01-01T12:01:00Z"}
        text = waiting("wait", "packets", "--up-to", at(1).isoformat()).stdout
        assert text == "packets has reached 2025-01-01T12:01:00Z\n"


@pytest.mark.parametrize(
    ("error", "temporary"),
    [
        (windrow.BusyError("held"), True),
        (windrow.SourceBehindError("behind"), True),
        (windrow.StorageError(errno.ENOSPC, "full"), True),
        (windrow.StorageError(errno.EROFS, "read-only"), False),
        (windrow.StorageError("wrong"), False),
        (windrow.DamageError("torn"), False),
        (windrow.SchemaError("other columns"), False),
        (OSError(errno.ENOSPC, "full"), True),
        (PermissionError(errno.EACCES, "no"), False),
        (ValueError("x"), False),
    ],
)
def test_errors_say_themselves_whether_they_pass(error, temporary):
    assert is_temporary(error) is temporary
    if isinstance(error, windrow.WindrowError):
        assert error.temporary is temporary

"""The prompt of `windrow sql`: its commands line by line, and as a person meets it, in a pseudo-terminal."""

import contextlib
import datetime as dt
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq
import pyte
import pytest

import windrow
from served_warehouse import serve_warehouse
from windrow.cli import prompt
from windrow.cli.completion import Names
from windrow.cli.sql import OutputFormat, SqlOptions, run_statement

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("len", pa.int32())])
PATIENCE = 60


def packets(first: int, number: int) -> list[dict]:
    return [{"ts": NOON + dt.timedelta(seconds=n), "src": n % 3, "len": 100 + n} for n in range(first, first + number)]


@pytest.fixture
def path(tmp_path):
    """A stream with one packet a second for three minutes, a view, a table and a result."""
    place = tmp_path / "w"
    with windrow.open(place) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
        wh.append("packets", packets(1, 180))
        wh.create_view("long", "SELECT ts, len FROM packets WHERE len > 200")
        wh.add_query("counts", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
        wh.put_table("hosts", pa.table({"src": [1], "name": ["ant"]}))
        wh.slide("packets", to=NOON + dt.timedelta(minutes=3))
        wh.run_due()
    return place


class Test_commands:
    """The prompt is given its lines by the test; `None` is Ctrl-C, the end of the list is Ctrl-D."""

    @pytest.fixture
    def play(self, path, capsys):
        def play(*typed, form=OutputFormat()):  # noqa: B008 - frozen
            waiting, asked = iter(typed), []

            def read_line(text: str) -> str:
                asked.append(text)
                line = next(waiting, EOFError)
                if line is EOFError or line is None:
                    raise EOFError if line else KeyboardInterrupt
                return line

            with windrow.open(path, read_only=True) as wh:

                def run(text, settings):
                    run_statement(wh, text, SqlOptions(), replace(form, **settings))

                prompt.run_prompt(run, form, "here", read_line)
            out, err = capsys.readouterr()
            return out, err, asked

        return play

    def test_statements_over_several_lines(self, play):
        out, _, asked = play("SELECT 1 AS a", ";", "SELECT 2 AS b; SELECT 3 AS c;", form=OutputFormat(csv=True))
        assert out.split()[-6:] == ['"a"', "1", '"b"', "2", '"c"', "3"]
        assert asked[:3] == [prompt.FIRST_PROMPT, prompt.NEXT_PROMPT, prompt.FIRST_PROMPT]

    def test_mistakes_do_not_end_it(self, play):
        out, err, _ = play("SELECT nope FROM packets;", "SELECT ';", "SELECT 42 AS answer;")
        assert "nope" in err
        assert "42" not in out or "answer" in out

    def test_control_c_drops_what_was_begun(self, play):
        out, err, _ = play("SELECT", None, "SELECT 42 AS answer;")
        assert "42" in out
        assert err == ""

    @pytest.mark.parametrize("word", ["\\q", "exit", "quit;", "EXIT"])
    def test_it_is_left(self, play, word):
        assert "42" not in play(word, "SELECT 42 AS answer;")[0]

    def test_what_there_is(self, play):
        out, err, _ = play("", "\\d", "\\d packets", "\\d counts", "\\d windrow.slides", "\\d nope", "\\nope", "help")
        kinds = {tuple(line.split()) for line in out.splitlines()}
        assert {("packets", "stream"), ("long", "view"), ("hosts", "table"), ("counts", "results")} <= kinds
        assert {("src", "BIGINT"), ("_slide", "BIGINT"), ("bytes_written", "BIGINT")} <= kinds
        assert "'nope'" in err
        assert "\\nope is not a command" in err
        assert "\\watch" in out

    def test_rows_with_a_line_for_each_column_and_a_limit(self, play):
        out, err, _ = play(
            "\\x", "SELECT 7 AS a, 'x' AS b;", "\\x off", "\\limit 2", "\\limit x", "SELECT * FROM packets;"
        )
        assert "─ row 1\na  7\nb  x\n" in out
        assert "2 shown" in out
        assert "'x' is not a number of rows" in err

    def test_the_next_answer_goes_to_a_file(self, play, tmp_path):
        file = tmp_path / "top.parquet"
        out, err, _ = play(f"\\o {file}", "SELECT src FROM packets;", "SELECT 42 AS answer;", "\\o x.xyz", "SELECT 1;")
        assert pq.read_table(file).num_rows == 180
        assert "42" in out
        assert "suffix" in err

    def test_how_long_it_took(self, play):
        assert re.search(r"took [\d.]+ .?s", play("\\timing", "SELECT 1;")[0])
        assert "took" not in play("\\timing", "\\timing off", "SELECT 1;")[0]

    def test_a_statement_is_asked_again_after_each_slide(self, play, path, monkeypatch):
        """Each wait of the prompt is a slide here; the third is Ctrl-C."""
        waits, plain_sleep, here = [], time.sleep, threading.current_thread()

        def slide(seconds: float) -> None:
            if threading.current_thread() is not here:  # a thread of Spark's gateway, say
                plain_sleep(seconds)
                return
            if len(waits) == 2:
                raise KeyboardInterrupt
            waits.append(len(waits))
            with windrow.open(path) as wh:
                wh.slide("packets", to=NOON + dt.timedelta(minutes=4 + len(waits)))

        monkeypatch.setattr(time, "sleep", slide)
        out, err, _ = play("\\watch", "SELECT count(*) AS n FROM packets [WINDOW 4 MINUTES];", "\\watch")
        counts = [line.strip() for line in out.splitlines() if line.strip().isdigit()]
        assert counts == ["180", "180", "120", "60"]
        assert "no statement yet" in err and err.rstrip().endswith("cancelled")


def test_completion(path):
    with windrow.open(path, read_only=True) as wh:
        names = Names(lambda statement: wh.sql(statement).fetchall())
        assert names.complete("pac", "SELECT * FROM pac") == ["packets"]
        assert names.complete("na", "SELECT na") == ["name"]
        assert names.complete("SEL", "SEL") == ["SELECT"]
        assert names.complete("windrow.sl", "FROM windrow.sl") == ["windrow.slides"]
        assert {"counts", "long"} <= set(names.complete("", "FROM "))
        assert "name" not in names.complete("n", "FROM packets WHERE n")


@pytest.mark.parametrize(
    ("text", "finished"),
    [("SELECT 1", False), ("SELECT 1;", True), ("SELECT ';", False), ("\\d", True), ("help", True), ("exit;", True), ("", True)],
)  # fmt: skip
def test_enter_ends_what_can_be_run(text, finished):
    assert prompt.is_finished(text) is finished


class Terminal:
    """`windrow sql` in a pseudo-terminal, and the screen that a person sees."""

    def __init__(self, *command: str, **variables: str) -> None:
        self._screen = pyte.Screen(100, 30)
        self._stream = pyte.ByteStream(self._screen)
        self._file, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
        start = (
            "import fcntl, os, sys, termios\n"
            "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that Ctrl-C is a signal
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        self._child = subprocess.Popen(
            [sys.executable, "-c", start, *command], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, **environment, **variables},
        )  # fmt: skip
        os.close(theirs)

    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def wait(self, condition) -> None:
        """Wait until the lines of the screen are as wanted."""
        end = time.monotonic() + PATIENCE
        while not condition(self.lines()):
            left = end - time.monotonic()
            ready = left > 0 and select.select([self._file], [], [], left)[0]
            assert ready, "\n".join(self.lines())
            try:
                piece = os.read(self._file, 65536)
            except OSError:
                piece = b""
            assert piece, "it ended: " + "\n".join(self.lines())
            self._stream.feed(piece)

    def wait_typing(self, keys: str, condition) -> None:
        """Wait, and type the keys again and again: nothing tells when the statement has begun."""
        end = time.monotonic() + PATIENCE
        while not condition(self.lines()):
            assert time.monotonic() < end, "\n".join(self.lines())
            self.type(keys)
            while select.select([self._file], [], [], 0.5)[0]:
                self._stream.feed(os.read(self._file, 65536))

    def shows(self, text: str) -> None:
        self.wait(lambda lines: any(text in line for line in lines))

    def ask(self, keys: str, answer: str) -> None:
        """Type something at the prompt; wait for words of the answer and for the prompt behind it."""
        self.wait(lambda lines: lines and lines[-1] == "windrow>")
        self.type(keys)
        self.wait(lambda lines: any(answer in line for line in lines) and lines[-1] == "windrow>")

    def type(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def end(self, keys: str) -> int:
        """Type what leaves the prompt; gives the exit code."""
        self.wait(lambda lines: lines[-1] == "windrow>")
        self.type(keys)
        with contextlib.suppress(OSError):
            while os.read(self._file, 65536):
                pass
        return self._child.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        os.close(self._file)


@pytest.fixture
def home(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "PAGER": "less"}


def test_a_person_types_a_statement_over_several_lines_and_finds_it_again(windrow_command, path, home, tmp_path):
    pytest.importorskip("prompt_toolkit")
    with Terminal(str(windrow_command), "-w", str(path), "sql", **home) as terminal:
        terminal.ask("SELECT count(*) AS n,\r6 * 7 AS answer FROM packets;\r", "180       42")
        terminal.shows("     ...> 6 * 7 AS answer FROM packets;")
        terminal.ask("SELECT nope FROM packets;\r", "line 1: SELECT nope FROM packets")
        terminal.ask("\\d\r", "counts    results")
        terminal.type("\x1b[A\x1b[A\x1b[A")  # the whole statement comes back
        terminal.wait(lambda lines: lines[-1] == "     ...> 6 * 7 AS answer FROM packets;")
        terminal.type("\x03")
        terminal.wait(lambda lines: lines[-1] == "windrow>")
        terminal.type("SELECT le")  # names are offered as one types
        terminal.wait(lambda lines: "windrow> SELECT le" in lines[-3:] and lines[-1].strip() == "left")
        terminal.type("\t;\x03")
        terminal.shows("windrow> SELECT len;")
        assert terminal.end("exit\r") == 0
    kept = tmp_path / "state" / "windrow" / "statements"
    assert "+SELECT count(*) AS n,\n+6 * 7 AS answer FROM packets;" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def test_a_statement_that_runs_is_cancelled_and_a_long_answer_is_paged(windrow_command, path, home):
    pytest.importorskip("prompt_toolkit")
    with Terminal(str(windrow_command), "-w", str(path), "sql", **home) as terminal:
        terminal.wait(lambda lines: lines and lines[-1] == "windrow>")
        terminal.type("SELECT sum(a.i * b.i) FROM range(1000000) a(i), range(1000000) b(i);\r")
        terminal.shows("range(1000000) b(i);")
        terminal.wait_typing("\x03", lambda lines: any("cancelled" in line for line in lines))
        terminal.wait(lambda lines: lines[-1] == "windrow>")
        if prompt._find_pager() is None:
            pytest.skip("there is no less on this machine")
        terminal.type("SELECT range AS number FROM range(500);\r")
        terminal.wait(lambda lines: lines[0].strip() == "number" and lines[-1] == ":")
        terminal.type("G")
        terminal.wait(lambda lines: lines[-2].strip() == "499")
        terminal.type("q")
        terminal.shows("500 rows")
        assert terminal.end("\x04") == 0


def test_without_the_editor_plain_lines_are_read(windrow_command, path, home, tmp_path):
    (tmp_path / "hidden" / "prompt_toolkit").mkdir(parents=True)
    (tmp_path / "hidden" / "prompt_toolkit" / "__init__.py").write_text("raise ImportError('not here')\n")
    hidden = {"PYTHONPATH": str(tmp_path / "hidden")}
    with Terminal(str(windrow_command), "-w", str(path), "sql", **hidden, **home) as terminal:
        terminal.shows("pip install 'windrow[prompt]'")
        terminal.ask("SELECT 6 * 7\rAS answer;\r", "    42")
        assert terminal.end("\x04") == 0


def test_a_prompt_and_a_statement_against_a_server(windrow_command, home, tmp_path):
    pytest.importorskip("prompt_toolkit")
    with serve_warehouse(tmp_path / "served") as served:
        command = [str(windrow_command), "sql", "--connect", served.flight]
        for role, statement, code, words in (
            ("analyst", "SELECT max(k) AS top FROM seen", 0, '{"top":540}'),
            ("analyst", "SELECT secret FROM seen", 1, "secret"),
            (None, "SELECT 1", 1, "no longer, valid"),
        ):
            token = {"WINDROW_TOKEN": "windrow_0_x" if role is None else served.tokens[role]}
            asked = subprocess.run(
                [*command, statement, "--json"], env=os.environ | token, capture_output=True, text=True, check=False
            )
            assert (asked.returncode, words in asked.stdout + asked.stderr) == (code, True), asked.stderr
        (tmp_path / "token").write_text(served.tokens["operator"] + "\n")
        with Terminal(*command, "--token-file", str(tmp_path / "token"), **home) as terminal:
            terminal.ask("\\d\r", "hidden    stream")
            terminal.ask("SELECT count(*) AS n FROM seen [WINDOW 1 MINUTE];\r", "1 row of seen [WINDOW 1 MINUTE]")
            assert terminal.end("\\q\r") == 0

"""The command line does what the Python interface does, says it in words or in JSON, and never shows a traceback."""

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pytest
from click.testing import CliRunner

import windrow
from command_line import UTC, CommandLine, at, table
from windrow import cli
from windrow.cli import terminal


class Test_where_the_warehouse_is:
    def test_it_is_made_once(self, path):
        run = CommandLine(path)
        assert run("init").stdout == f"made an empty warehouse in {path}\n"
        assert run.json("init") == {"path": str(path), "created": False}

    def test_a_folder_with_other_things_is_left_alone(self, path):
        path.mkdir()
        (path / "letters.txt").write_text("dear")
        assert "is not empty" in CommandLine(path).error("init")

    def test_it_is_named_by_option_before_or_after_the_command_or_by_environment(self, packets, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        called = [
            (["-w", str(packets.path), "stream", "list", "--json"], {}),
            (["stream", "list", "--json", "-w", str(packets.path)], {}),
            (["stream", "list", "--json"], {"WINDROW_WAREHOUSE": str(packets.path)}),
        ]
        for arguments, env in called:
            result = CliRunner(env=env).invoke(cli.windrow, arguments)
            assert [s["name"] for s in json.loads(result.stdout)] == ["packets"]

    def test_the_current_folder_is_taken_only_if_it_holds_one(self, packets, tmp_path, monkeypatch):
        monkeypatch.chdir(packets.path)
        assert CliRunner().invoke(cli.windrow, ["check"]).exit_code == 0
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(cli.windrow, ["check"])
        assert result.exit_code == 1
        assert "holds no warehouse; give one with -w PATH or WINDROW_WAREHOUSE" in result.stderr

    def test_nothing_is_made_by_mistake(self, path):
        assert "holds no warehouse" in CommandLine(path).error("status")
        assert not path.exists()


class Test_upkeep:
    def test_status_counts_what_there_is(self, packets):
        with windrow.open(packets.path) as wh:
            wh.append("packets", table(181))
            document = packets.json("status")
        (stream,) = document.pop("streams")
        expected = {
            "name": "packets",
            "slide": 28928883,
            "now": "2025-01-01T12:03:00Z",
            "live_rows": 180,
            "spooled_rows": 1,
        }
        assert expected.items() <= stream.items()
        assert set(document) >= {"path", "version", "readers", "oldest_reader", "reclaimable_files", "catalog_bytes"}
        assert packets("status").stdout.splitlines()[2].split()[:4] == ["packets", "2025-01-01T12:03:00Z", "180", "1"]

    def test_check_finds_nothing_wrong(self, packets):
        assert packets("check").stdout == "no problems in 1 stream, 1 segment, 1 file, 180 rows\n"
        document = packets.json("check")
        assert (document["ok"], document["problems"], document["rows"]) == (True, [], 180)

    def test_check_says_what_is_wrong_and_fails(self, packets):
        (file,) = packets.path.glob("streams/packets/segments/*.parquet")
        file.write_bytes(file.read_bytes()[:-100])
        result = packets("check", code=1)
        assert f"file streams/packets/segments/{file.name} has " in result.stdout
        assert result.stderr == ""
        assert packets.json("check", code=1)["ok"] is False

    def test_gc_reclaims(self, packets):
        packets("slide", "packets", "--to", at(60 * 60).isoformat())
        document = packets.json("gc")
        assert (document["files"], document["waiting"]) == (1, 0)
        assert document["bytes"] > 0
        assert packets("gc").stdout == "removed 0 replaced files (0 B) and 0 orphans, forgot 0 batch ids\n"


class Test_looks:
    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234567, "1.23 MB"), (999_900_000, "1 GB"), (5 * 10**12, "5 TB")],
    )
    def test_sizes(self, count, text):
        assert terminal.size(count) == text

    def test_progress_is_silent_where_nobody_looks(self, capsys):
        with terminal.progress_bar("work", 10) as moved:
            moved(5)
        assert capsys.readouterr() == ("", "")

    def test_progress_on_a_terminal_goes_to_stderr(self, monkeypatch, capsys):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        with terminal.progress_bar("work", 10, in_bytes=True) as moved:
            moved(5)
        assert capsys.readouterr().out == ""

    def test_a_narrow_terminal_loses_nothing_in_a_pipe(self, packets):
        assert "…" not in packets("scan", "packets", env={"COLUMNS": ""}).stdout


class Test_as_a_program:
    """In a process of its own, as a shell starts it."""

    def test_help_waits_for_nobody(self):
        heavy = ("pyarrow", "numpy", "duckdb", "lmdb", "rich", "pyspark")
        code = (
            "import sys\nfrom click.testing import CliRunner\nfrom windrow import cli\n"
            "r = CliRunner().invoke(cli.windrow, ['--help']); assert r.exit_code == 0, r\n"
            "r = CliRunner().invoke(cli.windrow, ['stream', 'create', '--help']); assert r.exit_code == 0, r\n"
            f"print(*sorted(set({heavy!r}) & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
        assert (done.stdout.split(), done.stderr) == ([], "")

    def test_version(self, windrow_command):
        done = subprocess.run([windrow_command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"windrow, version {windrow.__version__}\n"

    def test_a_mistake_is_one_line_and_exit_code_1(self, windrow_command, path):
        done = subprocess.run([windrow_command, "-w", path, "status"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"windrow: {path} holds no warehouse; create one with 'windrow init' or check the path\n"

    @pytest.mark.parametrize("buffered", [True, False])
    @pytest.mark.parametrize("how", ["--csv", "--json"])
    def test_a_closed_pipe_is_no_error(self, windrow_command, waiting, how, buffered):
        many = pa.table(
            {
                "ts": pa.array(range(10**15, 10**15 + 200_000), UTC),
                "src": range(200_000),
                "len": pa.array([1] * 200_000, pa.int32()),
            }
        )
        with windrow.open(waiting.path) as wh:
            wh.append("packets", many)
            wh.slide("packets", to="2001-09-09T02:00:00")
        script = f"{windrow_command} -w {waiting.path} scan packets {how} | head -2 | wc -l; echo ${{PIPESTATUS[0]}}"
        env = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
        assert done.stdout.split() == ["2", "141"]
        assert done.stderr == ""

    @pytest.mark.parametrize("format", ["csv", "json"])
    def test_control_c_ends_it_quietly(self, windrow_command, waiting, format):
        """Stdin stays open, so the append waits for rows when the signal comes."""
        with subprocess.Popen(
            [windrow_command, "-w", waiting.path, "append", "packets", "-", "--format", format],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            process.stdin.write(b"ts,src,len\n")
            process.stdin.flush()
            wait_until_it_reads(process.pid)
            process.send_signal(signal.SIGINT)
            assert (process.wait(120), process.stdout.read(), process.stderr.read()) == (130, b"", b"")
        assert waiting("check").stdout.startswith("no problems")
        assert waiting.json("status")["streams"][0]["spooled_rows"] == 0

    @pytest.mark.parametrize("module", ["click", "windrow.cli.rows", "pyarrow", "windrow.warehouse", "_duckdb"])
    def test_control_c_while_a_module_is_imported_ends_it_quietly(self, waiting, module):
        """Native modules turn an interrupt during their import into other errors, abort or swallow it."""
        script = f"""if True:
            import os, signal, sys
            from windrow.program import main

            class Interrupting:
                def find_spec(self, name, *_):
                    if name == {module!r}:
                        os.kill(os.getpid(), signal.SIGINT)

            sys.meta_path.insert(0, Interrupting())
            sys.argv = ["windrow", "-w", {str(waiting.path)!r}, "append", "packets", "-", "--format", "json"]
            main()
        """
        done = subprocess.run(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, capture_output=True, timeout=120, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")

    def test_control_c_in_a_finalizer_ends_it_quietly(self):
        """Python only reports an exception that a finalizer raises; the command would go on."""
        script = """if True:
            import signal, sys
            from windrow import program
            from windrow.cli import session

            class Dying:
                def __del__(self):
                    signal.raise_signal(signal.SIGINT)

            def drop_and_go_on(self, ctx):
                Dying()
                print("it went on")

            session.LazyGroup.invoke = drop_and_go_on
            sys.argv = ["windrow", "check"]
            program.main()
        """
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def wait_until_it_reads(pid: int) -> None:
    """Until the process has opened the warehouse and its copy of standard input."""
    for _ in range(2400):
        names = []
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                names.append(os.readlink(entry.path))
            except FileNotFoundError:
                continue
        if any("/windrow-" in name for name in names):
            return
        time.sleep(0.05)
    raise AssertionError("the append never began to read")

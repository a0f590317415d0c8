"""What the core tells `logging.getLogger("windrow")`, and how `windrow serve` writes it."""

import json
import logging
import subprocess
import sys

import pytest

import windrow
from command_line import SCHEMA, at, rows, table
from windrow.cli.server_log import JsonFormatter, TextFormatter

OPTIONS = {"time": "ts", "key": "src", "slide": "1 minute", "lifetime": "16 minutes"}


def go_on(wh):
    """A stream, a slide, a rejected row, a batch sent twice, a failed source and two runs, one of which fails."""
    wh.create_stream("packets", SCHEMA, **OPTIONS)
    wh.append("packets", table(1, 2), batch_id="a")
    wh.append("packets", table(1, 2), batch_id="a")
    wh.slide("packets", to=at(60))
    wh.append("packets", [*rows(61), {"ts": None, "src": 1, "len": 1}])
    wh.add_query("n", "SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]")
    wh.add_query(
        "bad",
        "SELECT 1 // (count(*) - 1) AS n, error('seen') FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] HAVING count(*) = 1",
    )
    wh.slide("packets", to=at(120))
    wh.run_due()
    wh.fail_source("packets", "default", "unplugged")
    wh.drop_query("n")
    wh.drop_query("bad")
    wh.drop_stream("packets")


def test_the_core_tells_what_happened_with_its_level(path, caplog):
    with caplog.at_level(logging.DEBUG, "windrow"), windrow.open(path) as wh:
        go_on(wh)
    report = [(record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("windrow")]
    for level, words in [
        ("DEBUG", "opened "),
        ("INFO", "created stream packets"),
        ("DEBUG", "stream 'packets': 2 rows appended (source 'default', batch 'a')"),
        ("DEBUG", "stream 'packets': source 'default', batch 'a' was appended before"),
        ("INFO", "slid packets to 2025-01-01 12:01:00+00:00: 2 in, 0 out"),
        ("WARNING", "stream 'packets': 1 of 2 rows rejected (source 'default'): 1 the event time is null"),
        ("INFO", "delivered n slide"),
        ("WARNING", "failed bad slide"),
        ("WARNING", "source 'default' of stream 'packets' has failed: unplugged"),
        ("INFO", "dropped stream packets"),
    ]:
        assert any(level == each and message.startswith(words) for each, message in report), (level, words, report)


def test_a_server_writes_time_level_and_figures(path, caplog):
    with caplog.at_level(logging.INFO, "windrow"), windrow.open(path) as wh:
        go_on(wh)
    records = [record for record in caplog.records if record.name.startswith("windrow")]
    for record in records:
        line = json.loads(JsonFormatter().format(record))
        assert line["level"] == record.levelname
        assert line["time"].endswith("Z") and line["logger"].startswith("windrow.")
        assert {"said", "query", "inserted"} & set(line)
        assert TextFormatter().format(record).startswith(f"{line['time']} {record.levelname} ")
    texts = [TextFormatter().format(record).partition(" ")[2] for record in records]
    assert any(text.startswith("INFO delivered n slide") and "1 row in" in text for text in texts), texts


@pytest.mark.parametrize(("level", "lines"), [(None, 0), ("WARNING", 1)])
def test_a_program_has_no_log_unless_it_asks(tmp_path, level, lines):
    program = f"""
import datetime, logging, windrow
if {level!r}:
    logging.basicConfig(level={level!r})
with windrow.open("w") as wh:
    row = {{"ts": datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)}}
    wh.create_stream("s", like=[row], time="ts", slide="1 minute")
    wh.append("s", [row, {{"ts": None}}])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == lines, done.stderr


def test_python_m_windrow_is_the_command(tmp_path):
    commands = [[sys.executable, "-m", "windrow"], [sys.executable, "-c", "from windrow.program import main; main()"]]
    for arguments, code in ((["--version"], 0), (["--help"], 0), (["status"], 1), (["nope"], 2)):
        seen = [
            subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
            for command in commands
        ]
        assert [done.returncode for done in seen] == [code, code]
        assert seen[0].stdout == seen[1].stdout
        assert seen[0].stderr == seen[1].stderr

"""Changing and judging a stream on the command line."""

import datetime as dt
import json

import pyarrow as pa
import pytest
from click.testing import CliRunner

import windrow
from windrow import cli

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.int64()), ("len", pa.int32())])


class Command:
    """The command line on one warehouse, called in this process."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, fails=False):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(
            cli.windrow, ["-w", str(self.path), *arguments], prog_name="windrow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert (result.exit_code != 0) == fails, result.output
        return result

    def json(self, *arguments):
        return json.loads(self(*arguments, "--json").stdout)


@pytest.fixture
def packets(path):
    """A stream with a packet each second of three minutes, slid to its end."""
    with windrow.open(path) as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="10 minutes")
        for minute in (1, 2, 3):
            seconds = range(60 * minute - 59, 60 * minute + 1)
            times = [NOON + dt.timedelta(seconds=second) for second in seconds]
            wh.append("packets", pa.table([times, [s % 5 for s in seconds], list(seconds)], schema=SCHEMA))
            wh.slide("packets", to=NOON + dt.timedelta(minutes=minute))
    return Command(path)


def test_a_stream_is_turned_moved_and_turned_back(packets):
    document = packets.json("stream", "relayout", "packets", "--index", "round-robin 3 3", "--key", "len")
    assert (document["index"], document["key"], document["done"]) == ("round-robin 3x3 adaptive", ["len"], False)
    assert "empty out as their rows expire" in packets("stream", "show", "packets").stdout
    assert "packets changes its layout" in packets("status").stdout
    document = packets.json("stream", "relayout", "packets", "--step", "--budget", "0.000001")
    assert 0 < document["moved_bytes"] < document["total_bytes"]
    document = packets.json("stream", "relayout", "packets", "--cancel")
    assert document["key"] == ["src"]
    document = packets.json("stream", "relayout", "packets", "--move")
    assert document["done"]
    assert packets.json("stream", "relayout", "packets")["left_bytes"] == 0
    document = packets.json("stream", "relayout", "packets", "--no-key", "--move-with-slides", "--budget", "1")
    assert (document["key"], document["budget"]) == ([], 1 << 20)
    assert packets.json("check")["problems"] == []


def test_a_stream_is_altered(packets):
    document = packets("stream", "alter", "packets", "--add-column", "flag:boolean", "--lifetime", "3 minutes").stdout
    assert document == "altered stream packets: column flag bool, lifetime 3 minutes; 180 live rows\n"
    document = packets.json("stream", "alter", "packets", "--slack", "5 seconds", "--max-ahead", "2 minutes")
    assert (document["definition"]["slack"], document["definition"]["max_ahead"]) == ("5 seconds", "2 minutes")
    assert document["definition"]["columns"][-1] == {"name": "flag", "type": "bool", "nullable": True}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("stream", "relayout", "packets", "--step", "--cancel"), "give one of --move"),
        (("stream", "relayout", "packets", "--key", "src", "--no-key"), "either --key or --no-key"),
        (("stream", "relayout", "packets", "--maintenance", "rebuild"), "--maintenance goes with --index"),
        (("stream", "relayout", "packets", "--cancel"), "there is none to cancel"),
        (("stream", "alter", "packets"), "say what to change"),
        (("stream", "alter", "packets", "--add-column", "x:int not null"), "cannot be added as not null"),
        (("stream", "alter", "packets", "--max-lifetime", "1 hour"), "alter lifetime"),
        (("advise", "packets", "--move"), "--move goes with --follow"),
        (("advise", "nothing"), "there is no stream 'nothing'"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_in_one_line(packets, given, message):
    done = packets(*given, fails=True)
    assert message in " ".join(done.stderr.split())


def test_advice_is_a_table_and_a_sentence_and_can_be_followed(packets):
    document = packets("advise", "packets").stdout
    assert "(now)" in document
    assert "packets: with 60 rows" in document
    rows = packets.json("advise", "packets")
    assert rows["best"]["total"] <= rows["current"]["total"]
    assert rows["key"] == ["src"]
    packets("advise", "packets", "--follow", "--move")
    index = packets.json("stream", "show", "packets")["index"]
    assert (index["name"], index["rows"]) == (rows["best"]["index"]["name"], rows["best"]["index"]["rows"])

"""Slides, heartbeats and rejected rows by command."""

import json

import pyarrow.parquet as pq
import pytest

import windrow
from command_line import PACKETS, at, lines, table


class Test_the_clock:
    @pytest.fixture
    def sources(self, empty):
        empty("stream", "create", "packets", *PACKETS, "--source", "north", "--source", "south")
        with windrow.open(empty.path) as wh:
            wh.append("packets", table(*range(1, 121)), source="north")
            wh.append("packets", table(*range(1, 61)), source="south")
        return empty

    def test_a_slide_reports_what_it_did(self, waiting):
        with windrow.open(waiting.path) as wh:
            wh.append("packets", table(*range(1, 181)))
        report = waiting.json("slide", "packets", "--to", at(180).isoformat())
        assert report.pop("seconds") > 0
        assert report == {
            "stream": "packets",
            "slide": 28928883,
            "now": "2025-01-01T12:03:00Z",
            "previous": None,
            "inserted": 180,
            "expired": 0,
            "late": 0,
            "touched": 1,
            "rebuilt": 0,
            "dropped": 0,
            "bytes_written": 0,
            "moved": True,
            "missing": [],
            "spoken_for": [],
            "waiting_for": [],
            "relayout_bytes": 0,
            "relayout_problem": None,
            "publish_problem": None,
            "erased_late": 0,
            "limit_problem": None,
        }
        later = waiting.json("slide", "packets", "--to", at(17 * 60).isoformat())
        assert (later["expired"], later["previous"]) == (60, 28928883)

    def test_the_stream_waits_and_says_for_whom(self, sources):
        sources("slide", "packets")
        assert sources("slide", "packets").stdout == "packets stays at 2025-01-01T12:01:00Z: it waits for south\n"
        output = sources("status").stdout
        assert "packets waits for source 'south', which has reached 2025-01-01T12:01:00Z" in output
        (document,) = sources.json("status")["streams"]
        assert document["waiting_for"] == ["south"]
        assert {s["name"]: s["progress"] for s in document["sources"]} == {
            "north": "2025-01-01T12:02:00Z",
            "south": "2025-01-01T12:01:00Z",
        }
        refused = sources.error("slide", "packets", "--to", at(120).isoformat(), code=75)
        assert "source 'south' has reached 2025-01-01T12:01:00Z" in refused
        assert refused.endswith("slide with --force\n")

    def test_a_heartbeat_lets_it_go_on(self, sources):
        up_to = at(120).isoformat()
        output = sources("heartbeat", "packets", "--source", "south", "--up-to", up_to).stdout
        assert output == "packets: nothing at or before 2025-01-01T12:02:00Z will follow from source 'south'\n"
        report = sources.json("slide", "packets")
        assert (report["now"], report["inserted"], report["missing"]) == ("2025-01-01T12:02:00Z", 180, [])

    def test_force_goes_on_without_and_answers_say_so(self, sources):
        report = sources.json("slide", "packets", "--to", at(120).isoformat(), "--force")
        assert report["missing"] == ["south"]
        assert sources("scan", "packets").stdout.splitlines()[-1].count("without south") == 1
        assert "went on without south" in sources("status").stdout

    def test_a_source_may_be_declared_failed(self, sources):
        output = sources("heartbeat", "packets", "--source", "south", "--failed", "cable cut").stdout
        assert output == "packets: source 'south' has failed (cable cut); the stream waits for it\n"
        assert "failed (cable cut)" in sources("stream", "show", "packets").stdout

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            (["heartbeat", "packets", "--source", "south"], 2, "give either --up-to TIME or --failed WHY"),
            (["heartbeat", "packets", "--source", "west", "--up-to", "2025-01-01T12:00:00"], 1, "has no source 'west'"),
            (["heartbeat", "packets", "--source", "south", "--up-to", "noon"], 1, "'noon' is not a time"),
            (["heartbeat", "packets", "--source", "south", "--up-to", "2999-01-01"], 1, "ahead of the wall clock"),
            (["slide"], 2, "name a stream, or give --all"),
            (["slide", "packets", "--all"], 2, "name a stream, or give --all"),
            (["slide", "packets", "--to", "2999-01-01"], 1, "ahead of the wall clock"),
        ],
    )
    def test_what_is_wrong_is_said(self, sources, arguments, code, message):
        assert message in sources.error(*arguments, code=code)

    def test_all_streams_slide_and_one_that_refuses_holds_nobody_up(self, sources):
        sources("stream", "create", "other", *PACKETS)
        result = sources("slide", "--all", "--to", at(120).isoformat(), "--json", code=75)
        assert [(r["stream"], r["now"]) for r in json.loads(result.stdout)] == [("other", "2025-01-01T12:02:00Z")]
        assert "stream 'packets' cannot slide" in json.loads(result.stderr)["error"]["message"]
        assert [r["stream"] for r in sources.json("slide", "--all")] == ["other", "packets"]


class Test_rejected_rows:
    @pytest.fixture
    def rejected(self, packets):
        text = "ts,src,len\n,1,10\n2999-01-01T00:00:00Z,2,20\n"
        packets("append", "packets", "-", "--format", "csv", "--batch-id", "x", input=text)
        return packets

    def test_they_are_shown_with_the_reason(self, rejected):
        rows = lines(rejected("stream", "rejected", "packets", "--json").stdout)
        assert {row["len"]: (row["_batch"], row["_source"]) for row in rows} == {
            10: ("x", "default"),
            20: ("x", "default"),
        }
        assert {row["len"]: "null" in row["_reason"] for row in rows} == {10: True, 20: False}
        output = rejected("stream", "rejected", "packets", "--columns", "len,_reason").stdout
        assert output.splitlines()[0].split() == ["len", "_reason"]
        assert "packets: 2 rejected rows: 1 " in output
        assert "have no column 'x'" in rejected.error("stream", "rejected", "packets", "--columns", "x")

    def test_they_can_be_written_replayed_and_thrown_away(self, rejected, tmp_path):
        rejected("stream", "rejected", "packets", "--output", tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 2
        output = rejected("stream", "replay", "packets").stdout
        assert output == "packets: 0 of 2 rejected rows appended, 2 still rejected\n"
        assert rejected.json("stream", "rejected", "packets", "--discard") == {"stream": "packets", "discarded": 2}
        assert rejected("stream", "rejected", "packets").stdout == "packets: 0 rejected rows\n"


class Test_what_is_missing:
    def test_gaps_are_shown_and_closed(self, packets):
        with windrow.open(packets.path) as wh:
            number = wh.declare_gap("packets", start=at(60), end=at(90), cause="cable cut")
        assert "cable cut" in packets("stream", "gaps", "packets").output
        (first, gap) = packets.json("stream", "gaps", "packets")
        assert (first["kind"], gap["id"], gap["start"]) == ("before first data", number, "2025-01-01T12:01:00Z")
        packets("stream", "gaps", "--close", number, "--note", "mended")
        assert "operator: mended" in packets("stream", "gaps", "packets", "--all").output
        assert "there is no gap 99" in packets("stream", "gaps", "--close", 99, code=1).output

    def test_rows_come_with_what_is_known_of_them(self, packets):
        for command in (("scan", "packets"), ("probe", "packets", "--key", 1), ("sql", "SELECT src FROM packets")):
            shown = packets(*command, "--about", "--json", "--limit", 1)
            about = json.loads(shown.stderr.strip().splitlines()[-1])
            assert about["windows"][0]["stream"] == "packets" and about["windows"][0]["gaps"], command
            assert len(lines(shown.stdout)) == 1, command

    def test_a_damaged_stream_is_repaired_when_it_is_asked_for(self, packets):
        assert "no file is damaged" in packets("repair", "packets").output
        next(packets.path.glob("streams/packets/segments/*.parquet")).unlink()
        assert "180 rows cannot be read" in packets("repair", "packets", code=1).output
        assert packets.json("repair", "packets", "--give-up")["rows_lost"] == 180
        assert packets.json("stream", "gaps", "packets")[-1]["kind"] == "damaged"

    def test_an_append_covers_what_was_missing(self, packets, tmp_path):
        with windrow.open(packets.path) as wh:
            wh.declare_gap("packets", start=at(60), end=at(120))
        pq.write_table(table(70), tmp_path / "late.parquet")
        command = ("append", "packets", tmp_path / "late.parquet", "--slide", "--covers")
        assert "is no interval" in packets.error(*command, at(60).isoformat())
        packets(*command, f"{at(60).isoformat()}/{at(120).isoformat()}")
        packets("slide", "packets", "--to", at(240).isoformat())
        (gap,) = packets.json("stream", "gaps", "packets", "--all")[1:]
        assert (gap["kind"], gap["closed"] is None) == ("declared", False)

    def test_an_answer_that_lacks_something_is_refused_on_request(self, packets):
        with windrow.open(packets.path) as wh:
            number = wh.declare_gap("packets", start=at(60), end=at(120), cause="unplugged")
        ask = ("sql", "SELECT count(*) FROM packets [WINDOW 2 MINUTES]", "--on-gap", "error")
        assert "is not complete (declared" in packets.error(*ask)
        packets("stream", "gaps", "packets", "--close", str(number))
        packets(*ask)

    def test_a_heartbeat_covers_what_was_missing(self, packets):
        packets("heartbeat", "packets", "--up-to", at(180).isoformat(), "--covers", at(-6000).isoformat())
        (gap,) = packets.json("stream", "gaps", "packets")
        assert gap["end"] == "2025-01-01T10:20:00Z"
        packets("heartbeat", "packets", "--source", "x", "--failed", "y", "--covers", at(0).isoformat(), code=2)

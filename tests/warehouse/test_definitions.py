"""Declaring streams: what is wrong is said, and what is right is kept."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import windrow
from oracle import SECOND
from sample_streams import BASE, US

SCHEMA = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("v", pa.list_(pa.int8())), ("text", pa.string())])
GOOD: dict[str, Any] = {"time": "ts", "key": "k", "slide": "1 minute", "lifetime": "16 minutes"}


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=lambda: BASE + 3600 * SECOND) as warehouse:
        yield warehouse


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "time is not a column": ({"time": "when"}, "time column 'when' is not in the schema; it has ts, exp"),
    "time is no timestamp": ({"time": "k"}, "time column 'k' is int64; it must be a timestamp"),
    "key is not a column": ({"key": "key"}, "key column 'key' is not in the schema"),
    "one of the keys is not a column": ({"key": ["k", "z"]}, "key column 'z'"),
    "key named twice": ({"key": ["k", "k"]}, "twice"),
    "key has no order": ({"key": "v"}, "key column 'v'.*has no order"),
    "slide is no duration": ({"slide": "soon"}, "slide 'soon' is not a duration; write it like '10 minutes'"),
    "slide has a strange unit": ({"slide": "3 fortnights"}, "not a duration"),
    "slide is zero": ({"slide": "0 seconds"}, "slide '0 seconds' must be longer than zero"),
    "slide is negative": ({"slide": dt.timedelta(seconds=-1)}, "longer than zero"),
    "slide is a number": ({"slide": 60}, "slide must be a string like '10 minutes' or a timedelta, not int"),
    "slide is endless": ({"slide": "99999999999 weeks", "lifetime": None}, "longer than can be counted"),
    "lifetime shorter than the slide": (
        {"lifetime": "59 seconds"},
        "lifetime 59 seconds is shorter than the slide 1 minute",
    ),
    "max_lifetime shorter than the slide": (
        {"lifetime": None, "expires": "exp", "max_lifetime": "1 second"},
        "shorter than the slide",
    ),
    "both kinds of lifetime": ({"expires": "exp", "max_lifetime": "1 hour"}, "either lifetime .* or expires"),
    "expires without max_lifetime": ({"lifetime": None, "expires": "exp"}, "needs max_lifetime"),
    "max_lifetime without expires": ({"lifetime": None, "max_lifetime": "1 hour"}, "goes with expires"),
    "expires is not a column": ({"lifetime": None, "expires": "x", "max_lifetime": "1 hour"}, "expires column 'x'"),
    "expires is no timestamp": ({"lifetime": None, "expires": "k", "max_lifetime": "1 hour"}, "'k' is int64"),
    "expires is the time": ({"lifetime": None, "expires": "ts", "max_lifetime": "1 hour"}, "same column 'ts'"),
    "sources is a string": ({"sources": "abc"}, "sources must be a list of names"),
    "source named twice": ({"sources": ["a", "a"]}, "named twice"),
    "source without a name": ({"sources": [""]}, "source '' is not allowed"),
    "source with a control character": ({"sources": ["a\nb"]}, "control characters"),
    "slack is no duration": ({"slack": "some"}, "slack 'some'"),
    "max_skew is no duration": ({"max_skew": "x"}, "max_skew 'x'"),
    "max_ahead is no duration": ({"max_ahead": 5}, "max_ahead must be"),
    "origin is no time": ({"origin": "yesterday"}, "origin 'yesterday' is not a time"),
    "failure policy": (
        {"on_source_failure": "ignore"},
        "on_source_failure 'ignore' is unknown; choose block or exclude",
    ),
    "index": ({"index": "best"}, "index must be 'auto' or windrow.Index"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_definition_that_cannot_work_says_what_is_wrong_and_creates_nothing(wh: windrow.Warehouse, case: str) -> None:
    change, words = WRONG[case]
    with pytest.raises(windrow.DefinitionError, match=words) as error:
        wh.create_stream("s", SCHEMA, **(GOOD | change))
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ValueError)
    assert wh.streams() == []
    assert not (wh.path / "streams" / "s").exists()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([]), "no columns|is not in the schema"),
        (pa.schema([("ts", US), ("ts", pa.int64())]), "'ts' occurs twice"),
        (pa.schema([("ts", US), ("TS", pa.int64())]), "capitals"),
        (pa.schema([("ts", US), ("_seq", pa.int64())]), "'_seq' is reserved"),
        (pa.schema([("ts", US), ("", pa.int64())]), "reserved or empty"),
        (
            pa.schema([("ts", US), ("x", pa.month_day_nano_interval())]),
            "'x' of type month_day_nano_interval cannot be stored",
        ),
        (pa.schema([("ts", US), ("x", pa.string_view())]), "'x' of type string_view cannot be stored"),
        (pa.schema([("ts", US), ("x", pa.list_(pa.binary_view()))]), "'x' of type list.* cannot be stored"),
        (
            pa.schema([("ts", US), ("x", pa.decimal256(39, 0))]),
            "'x' of type decimal256.39, 0. has more digits than the 38",
        ),
        (pa.schema([("ts", US), ("x", pa.list_(pa.decimal256(60, 3)))]), "'x' of type list.*60, 3.* or text"),
        ([("ts", US)], "must be a pyarrow.Schema, not list"),
    ],
)
def test_a_schema_that_cannot_be_stored_says_which_column(wh: windrow.Warehouse, schema: Any, words: str) -> None:
    with pytest.raises(windrow.DefinitionError, match=words):
        wh.create_stream("s", schema, time="ts", slide="1 minute", lifetime="1 hour")
    assert wh.streams() == []


BAD_NAMES = [
    "..", ".", "", "a/b", "../x", "/etc/passwd", "a\\b", "a\x00b", "a b", "é", "1a", "-a", "a" * 64, "CON", "nul",
    "com1", "~", "a.b", "a\n", "%2e%2e", "windrow", "Window", "a;b", "'a'", None, 5, b"a", "\u202ea", "ａ",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_a_name_can_never_leave_the_folder(wh: windrow.Warehouse, name: Any) -> None:
    before = sorted(str(p) for p in wh.path.parent.rglob("*") if "catalog" not in p.parts)
    with pytest.raises(windrow.InvalidNameError):
        wh.create_stream(name, SCHEMA, **GOOD)
    assert sorted(str(p) for p in wh.path.parent.rglob("*") if "catalog" not in p.parts) == before


def test_good_names_are_taken(wh: windrow.Warehouse) -> None:
    names = ["a", "A1", "_x", "a-b_c", "x" * 63]
    for name in names:
        wh.create_stream(name, SCHEMA, **GOOD)
    assert wh.streams() == sorted(names)
    with pytest.raises(windrow.StreamExistsError, match="'a' exists already"):
        wh.create_stream("a", SCHEMA, **GOOD)
    with pytest.raises(windrow.StreamExistsError, match="capitals"):
        wh.create_stream("a1", SCHEMA, **GOOD)


def test_a_stream_that_is_not_there_is_named_with_those_that_are(wh: windrow.Warehouse) -> None:
    calls = [
        lambda: wh.append("nosuch", pa.table({})),
        lambda: wh.slide("nosuch"),
        lambda: wh.scan("nosuch"),
        lambda: wh.probe("nosuch", 1),
        lambda: wh.drop_stream("nosuch"),
        lambda: wh.rejected("nosuch"),
        lambda: wh.replay("nosuch"),
        lambda: wh.now("nosuch"),
        lambda: wh.heartbeat("nosuch", up_to="2026-01-01"),
        lambda: wh.stream("nosuch"),
        lambda: wh.discard_rejected("nosuch"),
    ]
    for call in calls:
        with pytest.raises(windrow.UnknownStreamError, match="no stream 'nosuch'; none was created yet"):
            call()
    wh.create_stream("known", SCHEMA, **GOOD)
    for call in calls:
        with pytest.raises(windrow.UnknownStreamError, match="known") as error:
            call()
        assert isinstance(error.value, KeyError)


def test_every_parameter_is_kept(wh: windrow.Warehouse) -> None:
    wh.create_stream(
        "leases", SCHEMA, time="ts", key=["k", "text"], slide="2 minutes", expires="exp", max_lifetime="1 hour",
        index=windrow.Index("round-robin", 4, 4, maintenance="adaptive"), sources=["a", "b"], slack="5 seconds",
        max_skew="30 seconds", max_ahead="5 minutes", origin="2026-01-01T00:00:30+01:00", on_source_failure="exclude",
    )  # fmt: skip
    wh.close()
    with windrow.open(wh.path) as again:
        kept = again.stream("leases").definition
    assert kept.schema == SCHEMA
    actual = (kept.time, kept.key, kept.slide, kept.lifetime, kept.expires, kept.max_lifetime, kept.sources, kept.slack)
    assert actual == ("ts", ("k", "text"), 120 * SECOND, None, "exp", 3600 * SECOND, ("a", "b"), 5 * SECOND)
    actual = (kept.max_skew, kept.max_ahead, kept.origin, kept.on_source_failure)
    assert actual == (30 * SECOND, 300 * SECOND, BASE - 3600 * SECOND + 30 * SECOND, "exclude")


@pytest.mark.parametrize(
    ("options", "index", "why"),
    [
        ({}, "append-only", "never expire"),
        ({"lifetime": "16 minutes"}, "wave-insertion", "arrive in order"),
        ({"lifetime": "16 minutes", "slack": "1 second"}, "round-robin", "late rows"),
        ({"expires": "exp", "max_lifetime": "1 hour"}, "round-robin", "own lifetimes"),
    ],
)
def test_the_automatic_index_follows_the_update_pattern_and_says_why(wh, options, index, why) -> None:
    wh.create_stream("s", SCHEMA, time="ts", slide="1 minute", **options)
    status = wh.stream("s")
    assert status.index.startswith(index)
    assert why in status.index_why

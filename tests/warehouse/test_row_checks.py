"""Checks of a stream: what an append does with rows that fail them, and how long rejected rows are kept."""

import random

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, US
from windrow.errors import DefinitionError, SchemaError

SCHEMA = pa.schema([("ts", US), ("k", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])
DAY = 86400 * 1_000_000


class Clock:
    now = BASE + 10 * DELTA

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def wh(path, clock):
    with windrow.open(path, clock=clock) as opened:
        yield opened


def create(wh, checks=None, **options):
    wh.create_stream("s", SCHEMA, time="ts", key="k", slide=f"{DELTA} us", lifetime="1 day", checks=checks, **options)


def table(rows):
    return pa.table([pa.array(values) for values in zip(*rows, strict=True)], schema=SCHEMA)


def stored(wh):
    wh.slide("s", to="now")
    return sorted(wh.sql("SELECT k, amount, name FROM s").fetchall(), key=repr)


def test_rows_that_fail_are_rejected_with_the_check_as_reason_and_null_passes(wh):
    """Against plain Python: amount >= 0 or unknown, name other than 'x' or unknown; the first check that fails tells."""
    seed = 11
    print("seed", seed)
    chance = random.Random(seed)
    create(wh, {"amount >= 0": "reject", "lower(name) <> 'x'": "reject"})
    rows = [
        (BASE + i, i, chance.choice([None, -1.5, 0.0, 2.5, float("nan")]), chance.choice([None, "x", "X", "a"]))
        for i in range(500)
    ]
    report = wh.append("s", table(rows))
    negative = [row for row in rows if row[2] == -1.5]
    named = [row for row in rows if row[2] != -1.5 and row[3] in ("x", "X")]
    assert report.rejected == {
        "it fails the check amount >= 0": len(negative),
        "it fails the check lower(name) <> 'x'": len(named),
    }
    taken = [row[1:] for row in rows if row not in negative and row not in named]
    assert repr(stored(wh)) == repr(sorted(taken, key=repr))  # NaN is not equal to itself
    assert sorted(wh.rejected("s").column("k").to_pylist()) == sorted(row[1] for row in negative + named)


def test_a_check_may_refuse_the_append_and_names_the_row(wh):
    create(wh, {"k IS NOT NULL": "refuse"})
    wh.append("s", table([(BASE, 1, 1.0, "a")]))
    with pytest.raises(SchemaError, match=r"row 2 fails the check k IS NOT NULL.*nothing was appended"):
        wh.append("s", table([(BASE, 2, 1.0, "a"), (BASE, None, 1.0, "b")]))
    # A row that is rejected for its time is not looked at.
    assert wh.append("s", table([(None, None, 1.0, "a")])).accepted == 0
    assert stored(wh) == [(1, 1.0, "a")]


def test_checks_are_altered_and_rows_replayed(wh):
    create(wh, {"amount > 10": "reject"})
    wh.append("s", table([(BASE, 1, 1.0, "a"), (BASE, 2, 11.0, "b")]), batch_id="one")
    assert wh.replay("s").accepted == 0
    wh.alter_stream("s", checks={"amount > 100": "refuse"})
    # A batch that is known is known, whatever the checks say now.
    assert wh.append("s", table([(BASE, 1, 1.0, "a"), (BASE, 2, 11.0, "b")]), batch_id="one").duplicate
    wh.alter_stream("s", checks={})
    assert wh.replay("s").accepted == 1
    assert wh.stream("s").definition.checks == ()
    assert stored(wh) == [(1, 1.0, "a"), (2, 11.0, "b")]


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        ("sum(amount) > 0", "aggregates"),
        ("amount", "of type DOUBLE"),
        ("amount > 0) OR (true", "syntax error"),
        ("amount > 0; SELECT 1", "syntax error"),
        ("true FROM s WHERE true", "syntax error|more than one"),
        ("now() > ts", "may be different"),
        ("random() > 0.5", "may be different"),
        ("nope > 1", "nope"),
        ("k IN (SELECT 1)", "subquery"),
        ("row_number() OVER () > 1", "window function"),
        ("getenv('HOME') = ''", "getenv"),
        ("k = $1", "parameter"),
        ("  ", "no SQL"),
    ],
)
def test_what_is_no_predicate_over_one_row_is_refused_when_it_is_declared(wh, predicate, problem):
    with pytest.raises(DefinitionError, match=problem):
        create(wh, {predicate: "reject"})
    assert wh.streams() == []


def test_an_unknown_outcome_is_refused(wh):
    with pytest.raises(DefinitionError, match=r"'reject' .* or 'refuse'"):
        create(wh, {"k > 0": "ignore"})


def test_a_check_that_cannot_be_computed_refuses_the_append(wh):
    create(wh, {"name::INTEGER > 0": "reject"})
    assert wh.append("s", table([(BASE, 1, 1.0, "7")])).accepted == 1
    with pytest.raises(SchemaError, match=r"cannot be computed.*nothing was appended"):
        wh.append("s", table([(BASE, 1, 1.0, "seven")]))


def test_rejected_rows_are_kept_as_long_as_the_stream_says(wh, clock):
    create(wh, {"amount >= 0": "reject"}, rejected_retention="1 day")
    wh.append("s", table([(BASE, 1, -1.0, "a")]))
    clock.now += DAY // 2
    wh.append("s", table([(clock.now - 1, 2, -1.0, "b"), (clock.now - 1, 3, -1.0, "c")]))
    clock.now += DAY // 2 + 1
    report = wh.gc()
    assert report.rejected == 1
    assert wh.rejected("s").column("k").to_pylist() == [2, 3]
    assert wh.stream("s").rejected == 2
    files = list((wh.path / "streams" / "s" / "rejected").iterdir())
    assert len(files) == 1
    clock.now += DAY
    wh.slide("s", to="now")  # a slide forgets them, too
    assert wh.rejected("s").num_rows == wh.stream("s").rejected == 0
    wh.alter_stream("s", rejected_retention="forever")
    assert wh.stream("s").definition.rejected_retention is None
    assert wh.check().ok


def test_rejected_rows_are_read_in_sql(wh):
    create(wh, {"amount >= 0": "reject"})
    wh.append("s", table([(BASE, 1, -1.5, "a"), (BASE, 2, 1.0, "b"), (None, 3, 1.0, 'c"')]), batch_id="b1")
    actual = wh.sql(
        """SELECT stream, batch_id, reason, CAST(row->>'k' AS BIGINT) AS k, row->>'name', CAST(row->>'amount' AS DOUBLE)
        FROM windrow.rejected_rows ORDER BY k"""
    ).fetchall()
    assert actual == [
        ("s", "b1", "it fails the check amount >= 0", 1, "a", -1.5),
        ("s", "b1", "the event time is null", 3, 'c"', 1.0),
    ]


def test_max_rejected_counts_rows_that_fail_checks(wh):
    create(wh, {"amount >= 0": "reject"})
    with pytest.raises(SchemaError, match="max_rejected"):
        wh.append("s", table([(BASE, 1, -1.0, "a"), (BASE, 2, 1.0, "b")]), max_rejected=0.1)
    assert wh.rejected("s").num_rows == 0

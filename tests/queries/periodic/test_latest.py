"""Periodic queries at ``latest``: slides that commit while a round runs are absorbed, and the run is of the newest one.

round        |--answer--x--answer--x--answer--|
slides       5          6          7            the run is of 7; 5 and 6 have none, one at snapshot has 5
"""

import datetime as dt
import random

import pyarrow as pa
import pytest

import windrow
from windrow.queries.periodic import evaluation
from windrow.queries.periodic.runner import _MAX_RERUNS

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])
START, MINUTE = dt.datetime(2025, 3, 28, tzinfo=dt.UTC), dt.timedelta(minutes=1)
STATEMENT = "SELECT count(*) AS n, sum(k) AS total FROM a [WINDOW 3 MINUTES SLIDE {} MINUTE]"


class World:
    """A stream, its rows with the slide that took each in, and how many slides come during each answer of a round."""

    def __init__(self, wh, seed: int) -> None:
        self.wh, self.choice, self.minute = wh, random.Random(seed), 0
        self.rows: list[tuple[int, dt.datetime, int]] = []
        self.script: list[int] = []
        print("seed", seed)

    def slide(self) -> None:
        self.minute += 1
        new = [
            (
                START + MINUTE * (self.minute - self.choice.choice((0, 0, 0, 1, 2)) - self.choice.random()),
                len(self.rows) + i,
            )
            for i in range(self.choice.randrange(4))
        ]
        self.rows += [(self.minute, ts, k) for ts, k in new]
        self.wh.append("a", pa.Table.from_pylist([{"ts": ts, "k": k} for ts, k in new], SCHEMA))
        self.wh.slide("a", to=START + MINUTE * self.minute)

    def answer(self, minute: int) -> tuple[int, int | None]:
        """What the statement gives at a slide."""
        end = START + MINUTE * minute
        live = [k for slide, ts, k in self.rows if slide <= minute and end - 3 * MINUTE < ts <= end]
        return len(live), sum(live) if live else None


@pytest.fixture
def wh(tmp_path):
    with windrow.open(tmp_path / "w") as warehouse:
        warehouse.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="20 minutes")
        warehouse.slide("a", to=START)
        yield warehouse


@pytest.mark.parametrize("seed", [2201, 2202])
def test_a_run_is_of_the_newest_slide_and_one_at_snapshot_of_that_of_its_round(wh, monkeypatch, seed):
    world, answer_due = World(wh, seed), evaluation.answer_due

    def answer_while_it_slides(*given, **options):
        for _ in range(world.script.pop(0) if world.script else 0):
            world.slide()
        yield from answer_due(*given, **options)

    monkeypatch.setattr(evaluation, "answer_due", answer_while_it_slides)
    first = wh.stream("a").slide
    wh.add_query("plain", STATEMENT.format(1))
    wh.add_query("newest", STATEMENT.format(1), isolation="latest", revise="5 minutes")
    wh.add_query("slow", STATEMENT.format(2), isolation="latest", missed="skip")
    wh.add_query("most", "SELECT max(n) AS most FROM newest [WINDOW 5 MINUTES SLIDE 1 MINUTE]")
    expected: dict[str, dict[int, tuple]] = {"plain": {}, "newest": {}, "most": {}}
    for _ in range(12):
        world.slide()
        begun, end = world.minute, world.minute
        script = [world.choice.choice((0, 0, 1, 2)) for _ in range(_MAX_RERUNS + 1)]
        for run, slides in enumerate(script):
            end += slides if run < _MAX_RERUNS else 0
            if not slides:
                break
        world.script = script[: run + 1]
        made = [
            (each.query, each.slide - first)
            for each in wh.run_due()
            if each.outcome == "delivered" and not each.revision
        ]
        assert ("plain", begun) in made and ("newest", end) in made and not world.script
        expected["plain"][begun], expected["newest"][end] = world.answer(begun), world.answer(end)
        assert [slide for query, slide in made if query == "slow"] in ([], [end])
        # It has to wait where slides have overtaken what it reads for good.
        assert [slide for query, slide in made if query == "most"] == ([end] if end == world.minute else [])
        if end < world.minute:
            continue
        recent = [expected["newest"][slide][0] for slide in expected["newest"] if slide > world.minute - 5]
        actual = wh.sql("SELECT most FROM most ORDER BY _slide DESC LIMIT 1").fetchall()
        assert actual == [(max(recent),)] or wh.queries()[1].revisions
    for query in ("plain", "newest"):
        rows = wh.results(query, revisions=query == "newest").arrow().to_pylist()
        stored = {row["_slide"] - first: (row["n"], row["total"]) for row in rows if not row.get("_revision")}
        assert stored == expected[query], query
    for slide, n, total in wh.sql("SELECT _slide, n, total FROM slow").fetchall():
        assert (n, total) == world.answer(slide - first)


def test_what_cannot_be_at_latest_is_refused_and_the_level_is_shown(wh):
    text = STATEMENT.format(1)
    for options, message in (
        ({"isolation": "serial"}, "isolation='serial' is no level of a periodic query; choose one of snapshot, latest"),
        ({"isolation": "latest", "missed": "every"}, "missed='every' has a run for every slide"),
        ({"isolation": "latest", "on_gap": "wait", "deadline": "1 minute"}, "keeps to the slide that it waits for"),
    ):
        with pytest.raises(windrow.WindrowError, match=message):
            wh.add_query("bad", text, **options)
    assert wh.queries() == []
    assert wh.add_query("good", text, isolation="latest").isolation == "latest"

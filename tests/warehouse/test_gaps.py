"""The ledger of gaps: what is missing is known, and said, until it has come or somebody closes it."""

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import gap_oracle
import windrow
from gap_oracle import GapOracle
from windrow.errors import GapError, SourceBehindError, UnknownSourceError, ViewError
from windrow.files import FileSystem
from windrow.times import to_datetime

BASE = 1_767_225_600_000_000
SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
LIFE = 60


def at(seconds: float):
    return to_datetime(BASE + round(seconds * SECOND))


def rows(*found: int) -> pa.Table:
    """Rows of these cells: a microsecond into the second."""
    ts = [BASE + (cell - 1) * SECOND + 1 for cell in found]
    return pa.table({"ts": pa.array(ts, SCHEMA.field("ts").type), "n": list(found)}, schema=SCHEMA)


class Clock:
    def __init__(self) -> None:
        self.time = BASE + 3600 * SECOND

    def __call__(self) -> int:
        return self.time


def create(wh: windrow.Warehouse, **options) -> None:
    settings = {
        "sources": ["a", "b"], "slack": "1 microsecond", "on_source_failure": "exclude", "lifetime": f"{LIFE} seconds",
        "max_ahead": "10 hours",
    } | options  # fmt: skip
    wh.create_stream("s", SCHEMA, time="ts", slide="10 seconds", **settings)


@pytest.fixture
def wh(path: Path) -> Iterator[windrow.Warehouse]:
    with windrow.open(path, clock=Clock()) as warehouse:
        yield warehouse


def window(wh: windrow.Warehouse, clause: str, isolation: str = "snapshot", stream: str = "s"):
    with wh.sql(f"SELECT count(*) FROM {stream} {clause}", isolation=isolation) as answer:
        return answer.windows[0]


def gaps(wh: windrow.Warehouse, **options) -> list[tuple[str, str | None, float | None, float]]:
    """Kind, source and bounds, in seconds."""

    def seconds(time):
        return None if time is None else (time - at(0)).total_seconds()

    return [(g.kind, g.source, seconds(g.start), seconds(g.end)) for g in wh.gaps("s", **options)]


def begin(wh: windrow.Warehouse, **options) -> None:
    """Both sources have been there for long: nothing is missing at 10."""
    create(wh, **options)
    for source in ("a", "b"):
        wh.heartbeat("s", source=source, up_to=at(-100))
    wh.slide("s", to=at(-100))
    for source in ("a", "b"):
        wh.append("s", rows(5, 11), source=source)
    assert wh.slide("s").moved and window(wh, "[WINDOW 60 SECONDS]").complete


# -- kinds -------------------------------------------------------------------------------------------------------------


def test_a_failed_source_that_comes_back_leaves_its_gap_open(wh):
    """The reproduction: three slots without b, and every later answer over them has to say so."""
    begin(wh)
    wh.fail_source("s", "b", "machine burnt")
    for cell in (21, 31, 41):
        wh.append("s", rows(cell), source="a")
        wh.slide("s")
    assert gaps(wh) == [("failed", "b", 10, 40)]
    for source in ("a", "b"):
        wh.append("s", rows(51), source=source)
    wh.slide("s")
    actual = window(wh, "[WINDOW 60 SECONDS]")
    assert (actual.complete, actual.missing, actual.coverage) == (False, (), 1 - 30 / 120)
    assert window(wh, "[WINDOW 10 SECONDS]").complete, "after it came back"
    assert wh.gaps("s")[0].cause == "machine burnt"


def test_a_forced_slide_leaves_a_gap_until_the_source_has_come(wh):
    begin(wh)
    wh.append("s", rows(31), source="a")
    wh.slide("s", to=at(30), force=True)
    assert gaps(wh) == [("behind", "b", 10, 30)]
    wh.append("s", rows(26), source="b")
    assert gaps(wh) == [("behind", "b", 10, 30)], "its rows are not in the window yet"
    wh.append("s", rows(41), source="a")
    wh.slide("s", to=at(40), force=True)
    assert gaps(wh) == [("behind", "b", 25, 40)]
    wh.heartbeat("s", source="b", up_to=at(38))
    assert gaps(wh) == [("behind", "b", 38, 40)], "a heartbeat with nothing in the spool counts at once"
    wh.append("s", rows(45), source="b")
    wh.slide("s", to=at(40), force=True)
    assert gaps(wh) == [("behind", "b", 38, 40)], "that slide did not move"
    wh.append("s", rows(51), source="a")
    wh.append("s", rows(51), source="b")
    wh.slide("s")
    assert gaps(wh) == [] and gaps(wh, closed=True) == [("behind", "b", 10, 40)]
    assert wh.gaps("s", closed=True)[0].closed_by.startswith("b has reached")


def test_a_source_that_max_skew_speaks_for_makes_the_window_incomplete_until_it_has_come(wh):
    begin(wh, max_skew="20 seconds")
    wh.append("s", rows(51), source="a")
    wh.slide("s")
    assert gaps(wh) == [("behind", "b", 10, 30)]
    assert "max_skew" in wh.gaps("s")[0].cause
    wh.heartbeat("s", source="b", up_to=at(50))
    assert window(wh, "").complete


def test_rows_that_came_too_late_keep_the_gap_open(wh):
    begin(wh)
    wh.append("s", rows(91), source="a")
    wh.slide("s", to=at(90), force=True)
    assert wh.append("s", rows(20), source="b").accepted == 0
    wh.heartbeat("s", source="b", up_to=at(90))
    assert gaps(wh) == [("behind", "b", 10, 90)], "cell 20 is dead: it will never be in an answer"
    wh.append("s", rows(101), source="a")
    wh.append("s", rows(101), source="b")
    wh.slide("s")
    assert gaps(wh) == [("behind", "b", 10, 90)]
    wh.close_gap(wh.gaps("s")[0].id, note="nobody needs it")
    assert window(wh, "").complete and wh.gaps("s", closed=True)[-1].closed_by == "operator: nobody needs it"


def test_before_the_first_data_nothing_is_known(wh):
    create(wh)
    for source, cell in (("a", 6), ("b", 8)):
        wh.append("s", rows(cell, 11), source=source)
    wh.slide("s")
    assert gaps(wh) == [("before first data", "a", None, 5), ("before first data", "b", None, 7)]
    assert window(wh, "[WINDOW 3 SECONDS]").complete
    assert window(wh, "[WINDOW 10 SECONDS]").coverage == 1 - (5 + 7) / 20
    for source in ("a", "b"):
        wh.heartbeat("s", source=source, up_to=at(70), covers=at(0))
    wh.slide("s")
    assert window(wh, "[WINDOW 60 SECONDS]").complete and gaps(wh) == [], "and what is dead is forgotten"


def test_a_stream_without_declared_sources_is_one_source_and_its_slides_are_heartbeats(wh):
    create(wh, sources=None)
    wh.append("s", rows(6))
    wh.append("s", rows(8), source="other")
    wh.slide("s", to=at(40))
    assert gaps(wh) == [("before first data", None, None, 5)]
    assert window(wh, "[WINDOW 40 SECONDS]").coverage == 1 - 5 / 40
    wh.append("s", rows(2), covers=(at(-60), at(10)))
    wh.slide("s", to=at(50))
    assert window(wh, "[WINDOW 60 SECONDS]").complete


def test_a_window_that_reaches_behind_the_retention_is_not_complete(wh):
    begin(wh)
    for source in ("a", "b"):
        wh.heartbeat("s", source=source, up_to=at(70))
    wh.slide("s")
    actual = window(wh, f"[FROM TIMESTAMP '{at(-10).isoformat()}' TO TIMESTAMP '{at(30).isoformat()}']")
    assert (actual.complete, actual.coverage) == (False, 0.5)
    assert [(gap.kind, gap.id, gap.end) for gap in actual.gaps] == [("expired", None, at(10))]
    assert window(wh, "").complete, "all live rows"


def test_rows_that_live_for_ever_are_asked_from_the_first_data_on(wh):
    create(wh, lifetime=None)
    wh.append("s", rows(6, 21), source="a")
    wh.append("s", rows(11, 21), source="b")
    wh.slide("s")
    assert window(wh, "").coverage == 1 - 5 / 30, "b begins five seconds later"


def test_every_isolation_level_tells_the_same(wh):
    begin(wh)
    wh.append("s", rows(31), source="a")
    wh.slide("s", to=at(30), force=True)
    for level in ("snapshot", "latest", "serial"):
        actual = window(wh, "[WINDOW 40 SECONDS]", level)
        assert (actual.complete, actual.coverage, len(actual.gaps)) == (False, 0.75, 1), level


def test_an_answer_can_be_refused_where_something_is_missing(wh):
    begin(wh)
    statement = "SELECT count(*) FROM s [WINDOW 20 SECONDS]"
    assert wh.sql(statement, on_gap="error").fetchall() == [(2,)]
    wh.append("s", rows(31), source="a")
    wh.slide("s", to=at(30), force=True)
    with pytest.raises(GapError, match=r"'s' is not complete .behind, b: after 2026.*on_gap='tell'"):
        wh.sql(statement, on_gap="error")
    with wh.snapshot() as snapshot, pytest.raises(GapError, match="not complete"):
        snapshot.sql(statement, on_gap="error")
    with pytest.raises(GapError, match="on_gap='never' is unknown; choose one of tell, error"):
        wh.sql(statement, on_gap="never")


# -- closing ----------------------------------------------------------------------------------------------------------


def test_rows_that_cover_an_interval_close_it_with_the_slide_that_takes_them_in(wh):
    begin(wh)
    wh.fail_source("s", "b")
    wh.append("s", rows(51), source="a")
    wh.slide("s")
    wh.append("s", rows(23), source="b", covers=(at(20), at(30)))
    assert gaps(wh) == [("failed", "b", 10, 50)]
    for source in ("a", "b"):
        wh.append("s", rows(61), source=source)
    wh.slide("s")
    assert gaps(wh) == [("failed", "b", 10, 20), ("failed", "b", 30, 50)]
    assert ("failed", "b", 20, 30) in gaps(wh, closed=True)
    wh.heartbeat("s", source="b", up_to=at(61), covers=at(0))
    assert window(wh, "").complete


def test_a_claim_that_comes_while_a_slide_is_under_way_waits_for_the_next(path):
    class Late(FileSystem):
        def reach(self, step: str) -> None:
            if step == "slide.committing" and pending:
                pending.pop()()

    pending = []
    with windrow.open(path, files=Late(), clock=Clock()) as wh:
        begin(wh)
        wh.fail_source("s", "b")
        wh.append("s", rows(31), source="a")
        wh.slide("s")
        wh.append("s", rows(41), source="a")
        pending.append(lambda: wh.append("s", rows(15), source="b", covers=(at(10), at(40))))
        wh.slide("s")
        assert gaps(wh) == [("failed", "b", 10, 40)], "its row is in the spool"
        wh.heartbeat("s", source="b", up_to=at(50))
        wh.append("s", rows(51), source="a")
        wh.slide("s")
        assert window(wh, "").complete and wh.sql("SELECT count(*) FROM s WHERE n = 15").fetchall() == [(1,)]


def test_an_operator_can_declare_a_gap_and_close_one(wh):
    begin(wh)
    number = wh.declare_gap("s", source="a", start=at(0), end=at(5), cause="sensor was upside down")
    other = wh.declare_gap("s", start=None, end=at(-80))
    assert gaps(wh) == [("declared", "a", 0, 5), ("declared", None, None, -80)]
    assert window(wh, "[WINDOW 60 SECONDS]").coverage == 1 - 5 / 120
    wh.close_gap(number, note="it was not")
    assert window(wh, "").complete
    with pytest.raises(GapError, match=rf"gap {number} of stream 's' was closed at .*operator: it was not"):
        wh.close_gap(number)
    wh.close_gap(other)
    with pytest.raises(GapError, match="there is no gap 99; see"):
        wh.close_gap(99)


def test_one_source_covers_its_own_part_of_a_gap_of_all(wh):
    begin(wh)
    wh.declare_gap("s", start=at(0), end=at(10), cause="the link was cut")
    wh.heartbeat("s", source="a", up_to=at(30), covers=at(2))
    assert sorted(gaps(wh)) == [("declared", "a", 0, 2), ("declared", "b", 0, 10)]
    assert window(wh, "[WINDOW 60 SECONDS]").coverage == 1 - 12 / 120
    wh.heartbeat("s", source="b", up_to=at(30), covers=at(0))
    assert gaps(wh) == [("declared", "a", 0, 2)]


def test_a_failure_that_goes_on_after_its_gap_was_closed_makes_another(wh):
    begin(wh)
    wh.fail_source("s", "b")
    wh.append("s", rows(31), source="a")
    wh.slide("s")
    wh.close_gap(wh.gaps("s")[0].id)
    wh.append("s", rows(41), source="a")
    wh.slide("s")
    assert gaps(wh) == [("failed", "b", 30, 40)]


def test_bad_input_changes_nothing(wh):
    begin(wh)
    wh.create_view("v", "SELECT n FROM s")
    before = wh.status().version
    with pytest.raises(UnknownSourceError, match="no source 'c'; it declares a, b"):
        wh.append("s", rows(20), source="c", covers=(at(0), at(10)))
    with pytest.raises(UnknownSourceError, match="no source 'c'"):
        wh.heartbeat("s", source="c", up_to=at(20), covers=at(0))
    with pytest.raises(GapError, match="is empty; it has to begin before it ends"):
        wh.append("s", rows(20), source="a", covers=(at(10), at(10)))
    with pytest.raises(GapError, match="is empty"):
        wh.heartbeat("s", source="a", up_to=at(20), covers=at(30))
    with pytest.raises(GapError, match=r"covers=5 is no interval; give .start, end."):
        wh.append("s", rows(20), source="a", covers=5)
    with pytest.raises(GapError, match="is empty; start it earlier"):
        wh.declare_gap("s", start=at(5), end=at(5))
    with pytest.raises(ViewError, match="'v' is a view and cannot be given gaps"):
        wh.declare_gap("v", start=at(5), end=at(6))
    for number in (None, True, "1"):
        with pytest.raises(GapError, match="there is no gap"):
            wh.close_gap(number)
    assert wh.status().version == before and gaps(wh) == []


# -- other causes ------------------------------------------------------------------------------------------------------


def test_a_restored_warehouse_lacks_what_came_after_its_backup(wh, tmp_path):
    begin(wh)
    wh.append("s", rows(21), source="a")
    wh.backup(tmp_path / "backup")
    windrow.restore(tmp_path / "backup", tmp_path / "restored")
    with windrow.open(tmp_path / "restored") as restored:
        actual = restored.gaps("s")
        assert [(gap.kind, gap.source, gap.start) for gap in actual] == [
            ("restored", "a", at(20)), ("restored", "b", at(10))
        ]  # fmt: skip
        assert window(restored, "").complete, "its clock is still where the backup had it"
        for source in ("a", "b"):
            restored.append("s", rows(25, 31), source=source, covers=(at(0), at(30)))
        restored.slide("s")
        assert window(restored, "").complete
        for source in ("a", "b"):
            restored.append("s", rows(41), source=source)
        restored.slide("s")
        assert not window(restored, "").complete, "after 30 nobody said that all was sent again"


def test_a_silent_source_has_failed_until_something_arrives(path):
    clock = Clock()
    with windrow.open(path, clock=clock) as wh:
        begin(wh, liveness="30 seconds")
        for _ in range(2):
            clock.time += 20 * SECOND
            wh.heartbeat("s", source="a", up_to=at(20))
        assert not wh.slide("s", to=at(10)).moved
        assert wh.slide("s").missing == ("b",) and gaps(wh) == [("failed", "b", 10, 20)]
        states = "SELECT source, state, failed FROM windrow.sources ORDER BY source"
        assert wh.sql(states).fetchall() == [("a", "current", None), ("b", "failed", "nothing arrived for 30 seconds")]
        wh.append("s", rows(21), source="b")
        assert wh.sql(states).fetchall()[1] == ("b", "current", None)
        assert gaps(wh) == [("failed", "b", 10, 20)], "what it missed is missing all the same"
        events = wh.sql("SELECT source, event FROM windrow.trace").fetchall()
        assert events[-3:] == [("a", "heartbeat"), ("a", "heartbeat"), ("b", "failed")]
        shown = wh.sql("SELECT stream, source, kind, closed FROM windrow.gaps WHERE kind = 'failed'").fetchall()
        assert shown == [("s", "b", "failed", None)]


def test_the_trace_has_the_last_thousand_heartbeats(wh):
    create(wh)
    for second in range(1005):
        wh.heartbeat("s", source="a", up_to=at(second))
    actual = wh.sql("SELECT count(*), min(up_to) FROM windrow.trace").fetchall()
    assert actual == [(1000, at(5))]


def test_liveness_needs_sources_and_a_stream_that_goes_on_without_them(wh):
    for options in ({"on_source_failure": "block"}, {"sources": None}):
        with pytest.raises(windrow.DefinitionError, match="it needs sources=… and on_source_failure='exclude'"):
            create(wh, liveness="30 seconds", **options)
    assert wh.streams() == []


def test_the_ledger_of_a_dropped_stream_goes_with_it(wh):
    begin(wh)
    wh.declare_gap("s", start=at(0), end=at(1))
    wh.drop_stream("s")
    assert wh.gaps() == []
    create(wh)
    assert wh.gaps() == []


# -- views -------------------------------------------------------------------------------------------------------------


def test_a_view_has_the_gaps_of_its_inputs_and_a_join_looks_further_back(wh):
    begin(wh)
    wh.create_stream("t", SCHEMA, time="ts", slide="10 seconds", lifetime="60 seconds", max_ahead="10 hours")
    wh.slide("t", to=at(-100))
    wh.create_view("plain", "SELECT n FROM s")
    wh.create_view("joined", "SELECT s.n FROM s JOIN t [WINDOW 30 SECONDS] USING (n)")
    wh.create_view("deep", "SELECT n FROM plain WHERE n > 0")
    for cell in (21, 31):
        wh.append("s", rows(cell), source="a")
        wh.slide("s", to=at(cell - 1), force=True)
        wh.slide("t", to=at(cell - 1))
    wh.heartbeat("s", source="a", up_to=at(40))
    wh.heartbeat("s", source="b", up_to=at(30))
    wh.declare_gap("s", source="b", start=at(10), end=at(20))
    for source in ("a", "b"):
        wh.heartbeat("s", source=source, up_to=at(40))
    wh.slide("s")
    wh.slide("t", to=at(40))
    for view, clause, complete in (
        ("plain", "[WINDOW 20 SECONDS]", True), ("plain", "[WINDOW 30 SECONDS]", False), ("deep", "", False),
        ("joined", "[WINDOW 10 SECONDS]", False), ("deep", "[WINDOW 20 SECONDS]", True),
    ):  # fmt: skip
        assert window(wh, clause, stream=view).complete is complete, (view, clause)
    assert [(gap.stream, gap.kind) for gap in window(wh, "", stream="deep").gaps] == [("s", "declared")]


def test_a_view_that_waits_for_another_input_keeps_a_gap_that_its_input_has_closed(wh):
    begin(wh)
    wh.create_stream("t", SCHEMA, time="ts", slide="10 seconds", lifetime="60 seconds", max_ahead="10 hours")
    wh.slide("t", to=at(10))
    wh.create_view("united", "SELECT n FROM s UNION ALL SELECT n FROM t")
    wh.append("s", rows(31), source="a")
    wh.slide("s", to=at(30), force=True)
    wh.slide("t", to=at(30))
    assert not window(wh, "", stream="united").complete
    for source in ("a", "b"):
        wh.append("s", rows(15, 41), source=source)
    wh.slide("s")
    assert window(wh, "").complete and not window(wh, "", stream="united").complete, "it has not seen the late row"
    wh.slide("t", to=at(40))
    assert window(wh, "", stream="united").complete


# -- any history ------------------------------------------------------------------------------------------------------


class History:
    """Sources that fail, are silent, revive, lie and come late, on a stream that is forced on, repaired and opened again."""

    def __init__(self, path: Path, seed: int) -> None:
        self.choice, self.path, self.clock = random.Random(seed), path, Clock()
        self.started = self.clock.time
        self.wh = windrow.open(path, clock=self.clock)
        names = ("a", "b", "c")[: self.choice.choice((1, 2, 2, 3))]
        skew = self.choice.choice((None, None, 30))
        live = self.choice.choice((None, 40))
        given = {"max_skew": skew and f"{skew} seconds", "liveness": live and f"{live} seconds"}
        create(self.wh, sources=list(names), **{name: value for name, value in given.items() if value})
        self.view = self.choice.random() < 0.3
        if self.view:
            self.wh.create_view("v", "SELECT n FROM s WHERE n > -1000000")
        self.truth = GapOracle(names, LIFE, skew, live)
        self.time = 0

    @property
    def wall(self) -> int:
        """Seconds by the wall clock."""
        return (self.clock.time - self.started) // SECOND

    def step(self) -> str:
        choice, wh, truth = self.choice, self.wh, self.truth
        self.time += choice.randrange(6)
        self.clock.time += choice.randrange(6) * SECOND
        name, time = choice.choice(truth.names), self.time
        covers = (time - choice.randrange(1, 80), time) if choice.random() < 0.2 else None
        actions = "append append append heartbeat slide slide force force fail close declare open silence lose"
        action = choice.choice(actions.split())
        if action == "append":  # late ones too, some of them dead, and some that its heartbeats had excluded
            actual = [time - int(choice.expovariate(0.05)) for _ in range(choice.randrange(4))]
            wh.append("s", rows(*actual), source=name, covers=covers and (at(covers[0]), at(covers[1])))
            truth.append(name, actual, covers, self.wall)
        elif action == "heartbeat":
            wh.heartbeat("s", source=name, up_to=at(time), covers=covers and at(covers[0]))
            truth.heartbeat(name, time, covers and covers[0], self.wall)
        elif action in ("slide", "force"):
            truth.notice_silence(self.wall)
            try:
                report = wh.slide("s", to=at(time) if action == "force" else None, force=action == "force")
            except SourceBehindError:
                return action
            if report.moved:
                truth.slide(round((report.now - at(0)).total_seconds()))
        elif action == "fail":
            wh.fail_source("s", name)
            truth.fail(name)
        elif action == "declare":
            start = time - choice.randrange(5, 60)
            declared = set(range(start + 1, start + 6))
            if not declared & truth.sources[name].lost["declared"]:
                wh.declare_gap("s", source=name, start=at(start), end=at(start + 5))
                truth.sources[name].lost["declared"] |= declared
        elif action == "open":
            wh.close()
            self.wh = windrow.open(self.path, clock=self.clock)
        elif action == "silence":
            self.clock.time += 20 * SECOND
        elif action == "lose":
            self.lose_a_file()
        elif actual := [gap for gap in wh.gaps("s") if gap.kind != "behind"]:
            gap = choice.choice(actual)
            wh.close_gap(gap.id, note="test")
            if gap.kind == "damaged":
                del truth.damaged[gap.id]
                return f"{action} {gap}"
            start = None if gap.start is None else round((gap.start - at(0)).total_seconds())
            cells = gap_oracle.cells(start, int((gap.end - at(0)).total_seconds()))
            truth.sources[gap.source].close(gap.kind, cells)
        return f"{action} {name} {time} {covers}"

    def lose_a_file(self) -> None:
        """A file goes, and somebody gives its rows up."""
        files = self.wh.sql(
            "SELECT file, min(min_time), max(max_time), sum(rows) FROM windrow.segments WHERE stream = 's' GROUP BY file"
        ).fetchall()
        if not files:
            return
        file, first, last, rows = self.choice.choice(sorted(files))
        (self.path / file).unlink()
        report = self.wh.repair("s", give_up=True)
        assert (report.rows_lost, len(report.gaps)) == (rows, 1)
        lost = tuple(round((time - at(0)).total_seconds() - 1e-6) + 1 for time in (first, last))
        self.truth.damaged[report.gaps[0]] = lost

    def check(self) -> None:
        now = self.truth.now
        if now is None:
            assert not window(self.wh, "").complete
            return
        length, start = self.choice.randrange(1, LIFE + 1), now - self.choice.randrange(1, 100)
        stop = start + self.choice.randrange(1, 40)
        clauses = {
            f"[WINDOW {length} SECONDS]": (now - length, now),
            "": (now - LIFE, now),
            f"[FROM TIMESTAMP '{at(start).isoformat()}' TO TIMESTAMP '{at(stop).isoformat()}']": (
                start,
                min(stop, now),
            ),
        }
        for clause, (after, upto) in clauses.items():
            complete, coverage = self.truth.measure(after, upto)
            for stream in ("s", "v") if self.view and self.wh.now("v") == self.wh.now("s") else ("s",):
                actual = window(self.wh, clause, stream=stream)
                assert (actual.complete, actual.coverage) == (complete, pytest.approx(coverage)), (
                    stream,
                    clause,
                    actual,
                )


def run_history(path: Path, seed: int, steps: int) -> None:
    history, log = History(path, seed), []
    try:
        for _ in range(steps):
            log.append(history.step())
            history.check()
    except AssertionError:
        print(f"seed {seed}:", *log, sep="\n")
        print(*gaps(history.wh), history.truth.now, sep="\n")
        for name, source in history.truth.sources.items():
            print(
                name,
                source.reached,
                {kind: (min(lost), max(lost), len(lost)) for kind, lost in source.lost.items() if lost},
            )
        raise
    finally:
        history.wh.close()


@pytest.mark.parametrize("seed", [1, 3])
def test_complete_is_claimed_exactly_where_the_definition_allows(path, seed):
    run_history(path, seed, 50)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_complete_is_claimed_exactly_where_the_definition_allows_for_long(path, seed):
    run_history(path, seed, 250)

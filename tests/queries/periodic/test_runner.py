"""Rounds: what is due is run once, missed runs follow the policy, and a query that fails or is slow harms no other."""

import datetime as dt
import threading

import pyarrow as pa
import pytest

import packet_warehouse
import windrow
from packet_warehouse import NOON, make_minute
from windrow.catalog.records import Pace
from windrow.queries.periodic import evaluation, runner
from windrow.queries.periodic.due import count_late_slides, count_missed_periods, is_due
from windrow.queries.periodic.scheduler import POLICIES
from windrow.queries.synopses.node_cache import node_cache_of

COUNT = "SELECT count(*) AS n FROM packets [WINDOW {window} MINUTES SLIDE {period} MINUTES]"


def slot(number: int) -> int:
    """The slide at the end of a minute after noon."""
    return int((NOON + dt.timedelta(minutes=number)).timestamp()) // 60


class Clock:
    """A wall clock that tests move."""

    def __init__(self) -> None:
        self.now = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1e6)

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += int(seconds * 1e6)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def wh(clock):
    with packet_warehouse.open_packet_warehouse(clock=clock) as made:
        yield made


def slides(wh: windrow.Warehouse, name: str) -> list[int]:
    return sorted({row[0] - slot(0) for row in wh.results(name).fetchall()})


def test_a_period_begins_at_multiples_from_the_origin():
    """periods of 3:  … |0 1 2|3 4 5|6 7 8| …   due at the first slide seen in each"""
    pace = [Pace(stream="s", stream_id=1, window=None, period=3)]
    assert [j for j in range(1, 9) if is_due(pace, {"s": j - 1}, {"s": j})] == [3, 6]
    assert is_due(pace, {"s": 2}, {"s": 7})
    assert not is_due(pace, {"s": 3}, {"s": 5})
    assert is_due(pace, {}, {"s": 1}), "the first slide of all is due"
    assert not is_due(pace, {}, {})
    assert is_due(pace, {"s": -1}, {"s": 0})
    assert count_missed_periods(pace, {"s": 2}, {"s": 7}) == 1


def test_several_streams_are_due_when_the_slowest_has_moved_on():
    paces = [Pace(stream="a", stream_id=1, window=None, period=2), Pace(stream="b", stream_id=2, window=None, period=1)]
    assert not is_due(paces, {"a": 2, "b": 5}, {"a": 4, "b": 5})
    assert not is_due(paces, {"a": 2, "b": 5}, {"a": 3, "b": 9})
    assert is_due(paces, {"a": 2, "b": 5}, {"a": 4, "b": 6})
    assert not is_due(paces, {"a": 2}, {"a": 8})


def test_every_policy_makes_the_same_runs_when_nothing_is_missed(wh):
    for policy in ("latest", "every", "skip"):
        wh.add_query(policy, COUNT.format(window=4, period=2), missed=policy)
    for number in range(21, 28):
        packet_warehouse.append_and_slide(wh, number)
        wh.run_due()
    for policy in ("latest", "every", "skip"):
        assert slides(wh, policy) == [22, 24, 26]
        assert {row[-1] for row in wh.results(policy).fetchall()} == {4 * packet_warehouse.ROWS_PER_MINUTE}


def test_missed_runs_follow_the_policy(wh):
    """minutes 21 to 27 pass without a round; periods of two minutes: 22, 24 and 26 were due, the clock is at 27"""
    for policy in ("latest", "every", "skip"):
        wh.add_query(policy, COUNT.format(window=16, period=2), missed=policy)
    for number in range(21, 28):
        packet_warehouse.append_and_slide(wh, number)
    assert {query.name: (query.due, query.waiting) for query in wh.queries()} == {
        "latest": (True, 0), "every": (True, 3), "skip": (False, 0),
    }  # fmt: skip
    wh.run_due()
    assert slides(wh, "every") == [22, 24, 26]
    assert slides(wh, "latest") == [27], "the newest window there is"
    assert slides(wh, "skip") == []
    packet_warehouse.append_and_slide(wh, 28)
    wh.run_due()
    assert slides(wh, "skip") == [28], "the slide is its due one, and nothing came after it"
    assert slides(wh, "every") == [22, 24, 26, 28]
    assert slides(wh, "latest") == [27, 28]
    assert {query.name: query.missed_runs for query in wh.queries()} == {"latest": 2, "every": 0, "skip": 3}


def test_a_missed_run_is_of_its_own_window_though_its_rows_have_expired(wh):
    wh.add_query("every", "SELECT note, count(*) AS n FROM packets [WINDOW 16 MINUTES SLIDE 1 MINUTE] GROUP BY note",
                 missed="every")  # fmt: skip
    for number in range(21, 61):
        packet_warehouse.append_and_slide(wh, number)
        wh.gc()
    assert wh.sql("SELECT min(note) FROM packets").fetchall() == [("m45",)]
    wh.run_due()
    actual = {}
    for row in wh.results("every").fetchall():
        actual.setdefault(row[0] - slot(0), {})[row[-2]] = row[-1]
    assert actual == {
        number: {f"m{live}": packet_warehouse.ROWS_PER_MINUTE for live in range(number - 15, number + 1)}
        for number in range(21, 61)
    }
    wh.gc()
    assert wh.status().readers == 0
    assert wh.check().ok
    stored = sum(path.stat().st_size for path in (wh.path / "streams").rglob("*.parquet"))
    packet_warehouse.append_and_slide(wh, 61)
    wh.run_due()
    wh.gc()
    after = sum(path.stat().st_size for path in (wh.path / "streams").rglob("*.parquet"))
    assert after < stored * 2, "what was held has gone"
    assert wh._store.catalog.read(lambda tables: list(tables.raw_items("holds"))) == []


def test_too_many_waiting_runs_give_the_oldest_up(wh, monkeypatch):
    monkeypatch.setattr("windrow.queries.periodic.retained_slides.MAX_RETAINED", 3)
    wh.add_query("every", COUNT.format(window=1, period=1), missed="every")
    for number in range(21, 28):
        packet_warehouse.append_and_slide(wh, number)
    assert wh.queries()[0].waiting == 3
    assert wh.queries()[0].missed_runs == 4
    wh.run_due()
    assert slides(wh, "every") == [25, 26, 27]
    rows = wh.sql("SELECT slide, outcome, error FROM windrow.runs WHERE outcome = 'missed' ORDER BY slide").fetchall()
    assert [row[0] - slot(0) for row in rows] == [21, 22, 23, 24]
    assert "3 later runs were waiting" in rows[0][2]


def test_a_slide_over_several_slots_is_one_run_of_the_window_it_reached(wh):
    wh.add_query("q", COUNT.format(window=2, period=2), missed="every")
    wh.append("packets", make_minute(23))
    wh.slide("packets", to=NOON + dt.timedelta(minutes=25))
    wh.run_due()
    assert slides(wh, "q") == [25]
    packet_warehouse.append_and_slide(wh, 26)
    wh.run_due()
    assert slides(wh, "q") == [25, 26]


def test_a_second_round_finds_nothing_to_do(wh):
    wh.add_query("q", COUNT.format(window=2, period=1))
    packet_warehouse.append_and_slide(wh, 21)
    assert [run.outcome for run in wh.run_due()] == ["delivered"]
    assert wh.run_due() == []
    assert wh.run_due(now=True) == []


def test_now_runs_what_is_not_due(wh):
    wh.add_query("q", COUNT.format(window=2, period=10))
    wh.add_query("other", COUNT.format(window=2, period=10))
    packet_warehouse.append_and_slide(wh, 21)
    assert wh.run_due() == []
    (run,) = wh.run_due(["Q"], now=True)
    assert (run.query, run.slide) == ("q", slot(21))
    assert slides(wh, "other") == []


def test_a_query_over_two_streams_waits_for_the_slower_one(wh):
    wh.add_query("combined", "WITH p AS (SELECT count(*) AS n FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]), "
                 "q AS (SELECT count(*) AS m FROM quiet [WINDOW 2 MINUTES SLIDE 2 MINUTES]) SELECT n, m FROM p, q")  # fmt: skip
    for number in (21, 22, 23):
        packet_warehouse.append_and_slide(wh, number)
        assert wh.run_due() == []
    wh.append("quiet", make_minute(21))
    wh.slide("quiet", to=NOON + dt.timedelta(minutes=21))
    assert [run.slide for run in wh.run_due()] == [slot(23)]
    packet_warehouse.append_and_slide(wh, 24)
    wh.slide("quiet", to=NOON + dt.timedelta(minutes=22))
    assert [run.slide for run in wh.run_due()] == [slot(24)]
    assert [row[-2:] for row in wh.results("combined").fetchall()] == [(600, 600), (600, 600)]


def test_a_failing_query_is_left_alone_for_longer_and_longer_and_harms_no_other(wh, clock):
    wh.add_query("good", COUNT.format(window=1, period=1))
    wh.add_query("bad", "SELECT CASE WHEN count(*) FILTER (WHERE note = 'm21') > 0 THEN error('too big') END AS x "
                 "FROM packets [WINDOW 2 MINUTES SLIDE 1 MINUTE]")  # fmt: skip
    packet_warehouse.append_and_slide(wh, 21)
    assert {run.query: run.outcome for run in wh.run_due()} == {"good": "delivered", "bad": "failed"}
    bad = {query.name: query for query in wh.queries()}["bad"]
    assert (bad.failures, bad.error, bad.due) == (1, "too big", True)
    waits = []
    for turn in range(1, 6):
        assert wh.run_due() == [], "not before its time"
        (failing,) = [query for query in wh.queries() if query.name == "bad"]
        waits.append((windrow.times.parse_instant(failing.retry_at) - clock.now) / 1e6)
        clock.pass_(waits[-1])
        assert [run.outcome for run in wh.run_due()] == ["failed"]
        assert [query.failures for query in wh.queries() if query.name == "bad"] == [turn + 1]
    assert waits == [1, 2, 4, 8, 16]
    (rows,) = wh.sql("SELECT attempts, error FROM windrow.runs WHERE outcome = 'failed'").fetchall()
    assert rows == (6, "too big")
    packet_warehouse.append_and_slide(wh, 22)
    packet_warehouse.append_and_slide(wh, 23)
    clock.pass_(3600)
    assert {run.query: run.outcome for run in wh.run_due()} == {"good": "delivered", "bad": "delivered"}
    bad = {query.name: query for query in wh.queries()}["bad"]
    assert (bad.failures, bad.error, bad.retry_at) == (0, None, None)


def test_a_query_that_fails_for_one_slide_waits_with_its_later_ones(wh, clock):
    wh.add_query("q", "SELECT CASE WHEN count(*) FILTER (WHERE note = 'm22') > 0 THEN error('not yet') END AS x "
                 "FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE]", missed="every")  # fmt: skip
    for number in (21, 22, 23):
        packet_warehouse.append_and_slide(wh, number)
    assert [(run.slide - slot(0), run.outcome) for run in wh.run_due()] == [(21, "delivered"), (22, "failed")]
    assert wh.queries()[0].waiting == 2


@pytest.mark.parametrize("shared", [False, True], ids=["its own rows", "shared rows"])
def test_a_slow_query_is_cancelled_and_the_others_are_delivered_meanwhile(wh, monkeypatch, shared):
    read = "quiet a, quiet b, quiet d, quiet" if shared else "quiet a, packets b, packets"
    # A sum that there is: of one below all of them DuckDB knows without reading a row that there is none.
    wide = (
        f"SELECT count(*) AS n FROM {read} [WINDOW 16 MINUTES SLIDE 1 MINUTE] c "
        f"WHERE a.len + b.len + c.len{' + d.len' if shared else ''} = 7"
    )
    if shared:
        monkeypatch.setattr(evaluation._RowStatements, "_answer_alone", None)
    wh.add_query("quick", COUNT.format(window=1, period=1), priority=-1)
    entry = wh.add_query("slow", wide, timeout=0.2)
    assert entry.timeout == 0.2
    wh.append("quiet", make_minute(21))
    wh.slide("quiet", to=NOON + dt.timedelta(minutes=21))
    packet_warehouse.append_and_slide(wh, 21)
    done = {run.query: run for run in wh.run_due()}
    assert done["quick"].outcome == "delivered"
    assert done["slow"].outcome == "failed"
    assert "longer than 0.2 s" in (done["slow"].error or "")


def test_answers_that_are_ready_do_not_wait_for_one_that_takes_long():
    """Batches: what is ready together comes together; a late answer comes alone, after the others were delivered."""
    let_go = threading.Event()

    def answers():
        yield evaluation.RunAnswer("a", None)
        yield evaluation.RunAnswer("b", None)
        assert let_go.wait(60)
        yield evaluation.RunAnswer("c", None)

    got = []
    for batch in runner.batch_answers(answers()):
        got += [answered.query for answered in batch]
        if len(got) == 2:
            let_go.set()
    assert got == ["a", "b", "c"]


def test_priorities_decide_who_is_answered_first(wh, monkeypatch):
    for name, priority in (("low", -5), ("high", 7), ("middle", 0), ("highest", 100)):
        wh.add_query(name, COUNT.format(window=1, period=1), priority=priority)
    asked = []

    def answer(store, snapshot, queries, *_):
        asked.extend(query.name for query in queries)
        return evaluation.answer_from_rows(store, snapshot, queries)

    monkeypatch.setattr(evaluation, "answer_due", answer)
    packet_warehouse.append_and_slide(wh, 21)
    assert len(wh.run_due()) == 4
    assert asked == ["highest", "high", "middle", "low"]


def test_a_query_that_was_dropped_while_it_ran_delivers_nothing(wh, monkeypatch):
    wh.add_query("q", COUNT.format(window=1, period=1))
    wh.add_query("other", COUNT.format(window=1, period=1))

    def answer(store, snapshot, queries, *_):
        for done in evaluation.answer_from_rows(store, snapshot, queries):
            if done.query == "q":
                wh.drop_query("q")
                wh.add_query("q", COUNT.format(window=2, period=1))
            yield done

    monkeypatch.setattr(evaluation, "answer_due", answer)
    packet_warehouse.append_and_slide(wh, 21)
    assert [run.query for run in wh.run_due()] == ["other"]
    assert wh.results("q").arrow().num_rows == 0
    assert wh.check().ok


def test_answers_that_are_left_half_way_in_a_thread_that_ends_hold_no_lock(wh):
    for number in range(1, 4):
        window = f"[WINDOW {number} MINUTES SLIDE 1 MINUTE]"
        wh.add_query(f"q{number}", f"SELECT src, count(*) AS n FROM packets {window} GROUP BY src")
    packet_warehouse.append_and_slide(wh, 21)
    entries = wh._store.catalog.read(lambda tables: [entry for _, entry in tables.items("queries")])
    with wh.snapshot() as snapshot:
        answers, first = evaluation.answer_due(wh._store, snapshot, entries), []
        thread = threading.Thread(target=lambda: first.append(next(answers)))
        thread.start()
        thread.join()
        assert "synopsis" in first[0].how
        assert node_cache_of(wh._store).lock.acquire(blocking=False), "nobody computes"
        node_cache_of(wh._store).lock.release()
        assert len(list(answers)) == 2


def test_an_answer_whose_columns_have_changed_is_refused(wh):
    wh.add_query("q", "SELECT p.len, h.* FROM packets [WINDOW 1 MINUTE SLIDE 1 MINUTE] p JOIN hosts h USING (src)")
    wh.put_table("hosts", pa.table({"src": pa.array([1], pa.int64()), "other": ["x"]}))
    packet_warehouse.append_and_slide(wh, 21)
    (run,) = wh.run_due()
    assert run.outcome == "failed"
    assert "columns are no longer" in (run.error or "")


def test_how_late_a_run_is():
    """periods of 3:  … |0 1 2|3 4 5|6 7 8| …   after a run at 1, slide 3 is in time and 7 is four slides late"""
    pace = Pace(stream="s", stream_id=1, window=None, period=3)
    assert [count_late_slides(pace, {"s": 1}, {"s": j}) for j in (2, 3, 4, 7)] == [0, 0, 1, 4]
    assert count_late_slides(pace, {}, {"s": 9}) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_scheduling_policy_delivers_the_same_runs(wh, policy):
    periods = (1, 2, 3)
    for period in periods:
        wh.add_query(f"q{period}", COUNT.format(window=6, period=period))
    for number in range(21, 31):
        packet_warehouse.append_and_slide(wh, number)
        if number not in (24, 25):  # some are late then
            wh.run_due(policy=policy)
    made = [number for number in range(21, 31) if number not in (24, 25)]
    for period in periods:
        expected = [n for index, n in enumerate(made) if n // period > (made[index - 1] if index else 20) // period]
        assert slides(wh, f"q{period}") == expected


def test_an_unknown_scheduling_policy_is_refused_and_runs_nothing(wh):
    wh.add_query("q", COUNT.format(window=2, period=1))
    packet_warehouse.append_and_slide(wh, 21)
    with pytest.raises(windrow.DefinitionError, match="no scheduling policy 'fast'; choose one of no-sharing"):
        wh.run_due(policy="fast")
    assert slides(wh, "q") == []
    assert [run.outcome for run in wh.run_due()] == ["delivered"]

"""Isolation levels of one-time queries: which slide an answer is of, while slides go on.

asked        read   read   read      check            answered
  │           │      │      │          │                 │
──┼───────┬───┼──────┼───┬──┼────┬─────┼────────┬────────┼──▶
        slide 7        slide 8  slide 9      slide 10

snapshot: slide 6, as when it was asked     latest: slide 9, the last one committed at the check
serial: slides 7 to 10 wait until the answer is used up
"""

import datetime as dt
import gc
import random
import threading
from typing import Any

import pyarrow as pa
import pytest

import isolation_histories
import oracle
import windrow
from faulty_disks import PROCESSES, join_child, start_child
from isolation_histories import KINDS, NOT_SPLIT, STREAM, History, assert_same, hosts, statement
from sample_streams import BASE, DELTA, LAYOUTS, when
from windrow.catalog.records import OWNER, Role
from windrow.errors import BusyError, QueryError
from windrow.queries import incremental, isolation, latest
from windrow.queries.priorities import BACKGROUND, PROCESS_GATE, PriorityGate
from windrow.queries.statement_context import StatementContext

pytestmark = pytest.mark.usefixtures("small_reads")


@pytest.fixture
def small_reads(monkeypatch):
    """Every file is a read of its own, so that slides can come between."""
    monkeypatch.setattr(incremental, "READ_BYTES", 1)


@pytest.fixture
def cut(monkeypatch) -> list[str]:
    """The statements that were computed slot by slot."""
    done: list[str] = []
    real = latest._slot_by_slot

    def spy(asked: Any, *rest: Any) -> Any:
        answer = real(asked, *rest)
        done.append(asked.text)
        return answer

    monkeypatch.setattr(latest, "_slot_by_slot", spy)
    return done


def ask(
    history: History, text: str, params: Any = None, between: Any = None, role: Role = OWNER, level: str = "latest"
) -> windrow.queries.answer.Answer:
    context = StatementContext(role=role)
    return isolation.answer_query(history.wh._store, text, params, isolation=level, between=between, context=context)


def disturb(path, kind: str, seed: int, cut: list[str], questions: int, role: Role = OWNER) -> int:
    """One random history, asked at random moments while it goes on; gives how many statements were cut."""
    chance = random.Random(seed)
    history = History(path, kind, chance)
    history.wh.put_table("hosts", hosts())
    for _ in range(chance.randint(2, 7)):
        history.move(chance.choice((1, 1, 2)))
    for _ in range(questions):
        budget = chance.randint(0, 5)

        def between(step: str) -> None:
            nonlocal budget
            if budget and chance.random() < 0.5:
                budget -= 1
                history.move(chance.choice((1, 1, 1, 2, incremental.SEPARATE_SLIDES + 1)))

        clause, in_window = history.window()

        def live(truth: oracle.Oracle, in_window: Any = in_window) -> list[oracle.Row]:
            youngest, oldest = truth.now - (role.newest or 0), truth.now - (role.oldest or truth.now)
            return [row for row in in_window(truth) if oldest < row.ts <= youngest]

        text, params = statement(chance)
        before = live(history.truth)
        plain = text.replace("{p}", STREAM)
        windowed = text.replace("{p}", f"{STREAM} {clause}")
        held = ask(history, windowed, params, role=role, level="snapshot")
        slide = history.truth.slide_number
        answer = ask(history, windowed, params, between, role)
        actual = [tuple(row.values()) for row in answer.arrow().to_pylist()]
        assert_same(actual, history.expected(plain, live(history.truth), params), f"latest: {windowed}")
        assert answer.windows[0].slide == history.truth.slide_number
        assert answer.staleness == dt.timedelta(0)
        assert held.windows[0].slide == slide
        kept = [tuple(row.values()) for row in held.arrow().to_pylist()]
        assert_same(kept, history.expected(plain, before, params), f"snapshot: {windowed}")
        assert answer.schema == held.schema
    history.wh.close()
    return len(cut)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_latest_is_the_last_slide_and_snapshot_the_first_whatever_comes_between(path, kind, seed, cut):
    assert disturb(path, kind, seed, cut, 3) == 3


ROLES = [
    Role(name="young", rights=("read",), oldest=5 * DELTA),
    Role(name="old", rights=("read",), newest=DELTA + DELTA // 4),
    Role(name="middle", rights=("read",), grants={STREAM: None, "hosts": None}, newest=DELTA, oldest=5 * DELTA),
]
"""They see rows of some ages only; no window of a history is longer than 5 slots."""


@pytest.mark.parametrize(
    ("kind", "role", "seed"), [("never", ROLES[0], 7), ("never", ROLES[1], 3), ("per-row", ROLES[2], 3)]
)
def test_a_slide_that_overtakes_a_statement_shows_a_role_no_hidden_ages(path, kind, role, seed, cut):
    assert disturb(path, kind, seed, cut, 4, role) == 4


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(100, 220))
def test_latest_for_many_histories(path, kind, seed, cut):
    assert disturb(path, kind, seed, cut, 6, [OWNER, *ROLES][seed % 4]) == 6


@pytest.mark.parametrize("text", NOT_SPLIT)
def test_what_cannot_be_cut_is_run_again_until_no_slide_came(path, text, cut):
    history = History(path, "fixed", random.Random(7))
    history.wh.put_table("hosts", hosts())
    for _ in range(4):
        history.move(rows=10)
    left = 2

    def between(step: str) -> None:
        nonlocal left
        if step == "check" and left:
            left -= 1
            history.move(rows=10)

    window = f"{STREAM} [WINDOW {2 * DELTA} MICROSECONDS]"
    answer = ask(history, text.format(p=f"{window} AS a", q=f"{window} AS b"), None, between)
    actual = [tuple(row.values()) for row in answer.arrow().to_pylist()]
    plain = text.format(p=f"{STREAM} AS a", q=f"{STREAM} AS b")
    assert_same(actual, history.expected(plain, history.truth.live(2 * DELTA)), text)
    assert left == 0 and cut == []
    assert {window.slide for window in answer.windows} == {history.truth.slide_number}
    assert answer.staleness == dt.timedelta(0)


def test_what_slides_overtake_too_often_says_how_stale_it_is(path):
    history = History(path, "fixed", random.Random(3))
    history.move(rows=5)
    runs = 0

    def between(step: str) -> None:
        nonlocal runs
        if step == "check":
            runs += 1
            history.move(rows=5)

    answer = ask(history, f"SELECT n FROM {STREAM}", None, between)
    assert runs == latest.MAX_RERUNS + 1
    assert answer.windows[0].slide == history.truth.slide_number - 1
    assert answer.staleness == dt.timedelta(microseconds=DELTA)


def test_slides_at_every_check_are_absorbed_until_that_would_never_end(path, monkeypatch):
    monkeypatch.setattr(incremental, "MAX_ABSORPTIONS", 5)
    history = History(path, "fixed", random.Random(3))
    history.move(rows=5)

    def between(step: str) -> None:
        if step == "check":
            before.append(history.truth.live())
            history.move(rows=5)

    before: list[Any] = []
    answer = ask(history, f"SELECT k, count(*) FROM {STREAM} GROUP BY k", None, between)
    actual = [tuple(row.values()) for row in answer.arrow().to_pylist()]
    assert_same(actual, history.expected(f"SELECT k, count(*) FROM {STREAM} GROUP BY k", before[-1]), "one whole slide")
    assert answer.staleness == dt.timedelta(microseconds=DELTA)


def test_rows_that_were_ahead_of_the_clock_are_counted_when_it_reaches_them(path):
    """A row for slot 3 comes in with slide 1: nobody sees it before slide 3.

        slot 1        slot 2        slot 3
    ──────────────┤─────────────┤──────●──────┤
              asked here     a slide meanwhile ─▶ absorbed
    """
    with windrow.open(path, clock=lambda: BASE + 100 * DELTA) as wh:
        schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
        wh.create_stream("s", schema, time="ts", slide="10 seconds", lifetime="1 hour")
        wh.append("s", pa.table([[BASE + 1, BASE + 2 * DELTA + 1], [1, 2]], schema=schema))
        wh.slide("s", to=when(BASE + DELTA))
        moves = [BASE + 3 * DELTA, BASE + 2 * DELTA]

        def between(step: str) -> None:
            if step == "check" and moves:
                wh.slide("s", to=when(moves.pop()))

        answer = isolation.answer_query(
            wh._store, "SELECT sum(n) FROM s [WINDOW 3 MINUTES]", isolation="latest", between=between
        )
        assert answer.fetchall() == [(3,)]
        assert moves == []


@pytest.fixture
def works(monkeypatch):
    """The queries that were computed slot by slot."""
    actual: list[incremental.IncrementalAggregation] = []
    real = incremental.IncrementalAggregation.run
    monkeypatch.setattr(incremental.IncrementalAggregation, "run", lambda self: (actual.append(self), real(self))[1])
    return actual


def test_more_slides_than_were_kept_apart_are_absorbed_by_reading_again(path, works, monkeypatch):
    monkeypatch.setattr(incremental, "SEPARATE_SLIDES", 1)
    history = History(path, "per-row", random.Random(11))
    for _ in range(6):
        history.move(rows=12)
    todo = [4, 1, 2]

    def between(step: str) -> None:
        if step == "check" and todo:
            for _ in range(todo.pop()):
                history.move(rows=6)

    text = f"SELECT k, sum(n), count(*) FROM {STREAM} GROUP BY k"
    actual = [tuple(row.values()) for row in ask(history, text, None, between).arrow().to_pylist()]
    assert_same(actual, history.expected(text, history.truth.live()), text)
    assert works[0].reread and works[0].absorbed == 3


@pytest.mark.parametrize("kind", KINDS)
def test_slides_that_come_faster_than_they_are_absorbed_do_not_make_it_read_all_again_each_time(path, kind, works):
    history = History(path, kind, random.Random(13))
    for _ in range(6):
        history.move(rows=12)
    left, begun = 8, 0

    def between(step: str) -> None:
        nonlocal left, begun
        begun += step == "read"
        if step == "check" and left:
            left -= 1
            for _ in range(incremental.SEPARATE_SLIDES + 2):
                history.move(rows=6)

    text = f"SELECT k, sum(n), count(*) FROM {STREAM} [WINDOW {5 * DELTA} MICROSECONDS] GROUP BY k"
    actual = [tuple(row.values()) for row in ask(history, text, None, between).arrow().to_pylist()]
    plain = f"SELECT k, sum(n), count(*) FROM {STREAM} GROUP BY k"
    assert_same(actual, history.expected(plain, history.truth.live(5 * DELTA)), text)
    assert works[0].absorbed == 8
    assert works[0].reread <= begun


def test_a_table_that_is_replaced_meanwhile_is_seen_with_the_slide(path):
    history = History(path, "fixed", random.Random(5))
    history.wh.put_table("hosts", hosts())
    for _ in range(3):
        history.move(rows=10)
    todo = [pa.table({"id": [0, 1], "name": ["new", "other"]})]

    def between(step: str) -> None:
        if step == "check" and todo:
            history.wh.put_table("hosts", todo.pop())

    text = f"SELECT h.name, count(*) FROM {STREAM} p JOIN hosts h ON h.id = p.k GROUP BY h.name"
    names = {row[0] for row in ask(history, text, None, between).fetchall()}
    assert names <= {"new", "other"} and todo == []


@pytest.mark.parametrize("text", ["SELECT count(*) FROM {p}", "SELECT k FROM {p}"])
def test_a_lifetime_that_is_changed_meanwhile_is_that_of_the_answer(path, text):
    """Six slots of rows, asked for, and only two of them left when the answer is finished."""
    history = History(path, "fixed", random.Random(5))
    for _ in range(6):
        history.move(rows=10)
    todo = [f"{2 * DELTA} microseconds"]

    def between(step: str) -> None:
        if step == "check" and todo:
            history.wh.alter_stream(STREAM, lifetime=todo.pop())

    actual = ask(history, text.format(p=STREAM), None, between).fetchall()
    left = [(row.values["k"],) for row in history.truth.live(2 * DELTA)]
    assert todo == [] and len(left) < len(history.truth.live())
    assert actual == [(len(left),)] if "count" in text else sorted(actual, key=str) == sorted(left, key=str)


# -- serial ----------------------------------------------------------------------------------------------------------


def two_streams(path) -> windrow.Warehouse:
    wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA)
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    for name in ("a", "b"):
        wh.create_stream(name, schema, time="ts", slide="10 seconds", lifetime="1 hour")
        wh.append(name, pa.table([[BASE + 1], [1]], schema=schema))
        wh.slide(name, to=when(BASE + DELTA))
    return wh


@pytest.mark.parametrize("ending", ["read", "closed", "forgotten"])
def test_slides_wait_for_a_serial_query(path, ending):
    with two_streams(path) as wh:
        answer = wh.sql("SELECT count(*) FROM a", isolation="serial")
        assert answer.isolation == "serial"
        with pytest.raises(BusyError, match="the slide of stream 'a'"):
            wh.slide("a", to=when(BASE + 2 * DELTA), timeout=0.01)
        assert wh.slide("b", to=when(BASE + 2 * DELTA), timeout=0.01).moved
        if ending == "read":
            assert answer.fetchall() == [(1,)]
        elif ending == "closed":
            answer.close()
        else:
            del answer
            gc.collect()
        assert wh.slide("a", to=when(BASE + 2 * DELTA), timeout=0.01).moved


def test_serial_queries_do_not_wait_for_each_other(path):
    with two_streams(path) as wh:
        first = wh.sql("SELECT count(*) FROM a, b", isolation="serial", timeout=5)
        second = wh.sql("SELECT count(*) FROM b, a", isolation="serial", timeout=5)
        assert first.fetchall() == second.fetchall() == [(1,)]


def test_a_serial_query_waits_for_a_slide_that_is_under_way(path):
    from faulty_disks import CallAtStep

    with two_streams(path):
        pass
    messages: list[str] = []

    def ask_inside() -> None:
        with pytest.raises(BusyError, match="the slide of stream 'a'"):
            wh.sql("SELECT count(*) FROM a", isolation="serial", timeout=0.3)
        messages.append("busy")

    wh = windrow.open(path, clock=lambda: BASE + 1000 * DELTA, files=CallAtStep("slide.committing", ask_inside))
    wh.slide("a", to=when(BASE + 2 * DELTA))
    assert messages == ["busy"]
    assert wh.sql("SELECT count(*) FROM a", isolation="serial").windows[0].slide == wh.stream("a").slide
    wh.close()


def test_two_serial_queries_over_two_streams_and_their_slides_do_not_deadlock(path):
    with two_streams(path) as wh:
        failed: list[Exception] = []

        def work(action: Any) -> None:
            try:
                for turn in range(8):
                    action(turn)
            except Exception as error:  # noqa: BLE001 - told by the test's own thread
                failed.append(error)

        def query(text: str) -> Any:
            return lambda turn: wh.sql(text, isolation="serial", timeout=30).fetchall()

        def slide(name: str) -> Any:
            return lambda turn: wh.slide(name, to=when(BASE + (turn + 2) * DELTA), timeout=30)

        actions = [query("SELECT count(*) FROM a, b"), query("SELECT count(*) FROM b, a"), slide("a"), slide("b")]
        threads = [threading.Thread(target=work, args=(action,), daemon=True) for action in actions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert failed == []


# -- names, errors, time ---------------------------------------------------------------------------------------------


def test_an_unknown_level_is_refused_with_those_there_are(path):
    with two_streams(path) as wh, pytest.raises(QueryError, match="'exact'; choose one of snapshot, latest, serial"):
        wh.sql("SELECT 1 FROM a", isolation="exact")


@pytest.mark.parametrize("level", isolation.LEVELS)
def test_errors_are_those_of_the_statement_as_written(path, level):
    with two_streams(path) as wh:
        with pytest.raises(QueryError, match="wrong"):
            wh.sql("SELECT sum(wrong) FROM a [WINDOW 1 MINUTE]", isolation=level).fetchall()
        assert wh.slide("a", to=when(BASE + 2 * DELTA), timeout=0.01).moved


@pytest.mark.parametrize("level", isolation.LEVELS)
def test_before_the_first_slide_there_is_nothing(path, level):
    with windrow.open(path) as wh:
        wh.create_stream("s", pa.schema([("ts", pa.timestamp("us"))]), time="ts", slide="1 minute")
        answer = wh.sql("SELECT count(*) FROM s", isolation=level)
        assert answer.fetchall() == [(0,)]
        assert answer.windows[0].slide is None


@pytest.mark.parametrize("many", ["range(10_000_000_000) t(x)", "t AS t, t AS u, t AS v"], ids=["whole", "by slots"])
def test_a_long_query_is_cancelled_at_latest_too(path, many):
    with two_streams(path) as wh:
        wh.put_table("t", pa.table({"x": range(10_000)}))
        with pytest.raises(QueryError, match=r"longer than 0\.3 s"):
            wh.sql(f"SELECT sum(n + t.x) FROM a, {many}", isolation="latest", timeout=0.3)


# -- priorities ------------------------------------------------------------------------------------------------------


def test_low_priority_work_pauses_while_a_one_time_query_runs():
    gate, passed = PriorityGate(), threading.Event()

    def background() -> None:
        gate.pause(BACKGROUND)
        passed.set()

    with gate.running(0):
        thread = threading.Thread(target=background)
        thread.start()
        assert not gate.pause(BACKGROUND, timeout=0.01)
        assert not passed.is_set()
    thread.join(10)
    assert passed.is_set()


def test_equals_do_not_wait_for_each_other():
    gate = PriorityGate()
    with gate.running(0), gate.running(BACKGROUND):
        assert gate.pause(0, timeout=0)
        assert not gate.pause(BACKGROUND, timeout=0)


def test_a_background_query_is_suspended_between_two_reads(path):
    """The one-time query begins and ends between two reads of the background query, which then goes on."""
    history = History(path, "fixed", random.Random(2))
    for _ in range(4):
        history.move(rows=10)
    order: list[str] = []
    inside, done = threading.Event(), threading.Event()

    def one_time() -> None:
        with PROCESS_GATE.running(0):
            inside.set()
            order.append("one-time begins")
            done.wait(0.05)
            order.append("one-time ends")

    thread = threading.Thread(target=one_time)

    def between(step: str) -> None:
        if step == "read" and not inside.is_set():
            thread.start()
            inside.wait(10)
        else:
            order.append(step)

    text = f"SELECT sum(n) FROM {STREAM}"
    store = history.wh._store
    answer = isolation.answer_query(store, text, isolation="latest", priority=BACKGROUND, between=between)
    thread.join()
    assert answer.fetchall() == [tuple(history.expected(text, history.truth.live())[0])]
    assert order.index("one-time ends") < order.index("check")


# -- several processes -----------------------------------------------------------------------------------------------


def crowd(path, layout: str, readers: int, rounds: int) -> None:
    """A writer that slides without a pause, and readers at every level: each answer is the right slide's state.

    At `latest` that is the last slide's when the answer was finished, unless slides came between any two of so many looks.
    """
    isolation_histories.create_numbered(str(path), layout)
    stop, log, from_child = path.with_name("stop"), path.with_name("log"), PROCESSES.Queue()
    writer = start_child(isolation_histories.write_numbered, str(path), str(stop), str(log))
    asking = [start_child(isolation_histories.read_numbered, str(path), rounds, from_child) for _ in range(readers)]
    answers = []
    for _ in asking:
        answers += from_child.get(timeout=200)
    assert [join_child(process) for process in asking] == [0] * readers
    stop.touch()
    assert join_child(writer) == 0
    committed = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert len(answers) == readers * rounds * 3
    for asked in answers:
        if asked.level == "latest":
            last = max(slot for slot, commit in committed if commit <= asked.version)
            assert asked.slide + asked.stale == last, f"{asked.text}: slide {asked.slide} of {last}"
            assert (
                asked.stale == 0
                or asked.text == isolation_histories.WHOLE
                or asked.rounds == incremental.MAX_ABSORPTIONS
            )
    assert {asked.slide for asked in answers} <= {slot for slot, _ in committed}


@pytest.mark.parametrize("layout", ["adaptive-eager", "round-robin-norebuild"])
def test_every_answer_is_one_slides_state_while_another_process_slides(path, layout):
    crowd(path, layout, readers=2, rounds=5)


@pytest.mark.soak
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_answer_is_one_slides_state_for_a_long_time(path, layout):
    crowd(path, layout, readers=3, rounds=150)

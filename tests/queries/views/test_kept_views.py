"""Views with ``keep=``: a log of matches, each once, that lives as long as it says whatever becomes of its parts.

part 1      ├──────────────────┤
part 2             ├─────────────────────┤
match              ├───────────┤
log                ├──────────────── keep ────────────────┤
"""

import random
from collections import Counter

import pytest

import view_oracle
import windrow
from view_histories import MINUTE, SCHEMA, START, TICK, micros, open_warehouse, rows, time

VIEWS = {
    "pairs": ("SELECT a.k, a.x AS ax, b.x AS bx FROM a JOIN b [WINDOW 4 MINUTES] ON a.k = b.k", 15),
    "brief": ("SELECT a.k, a.x AS ax, b.x AS bx FROM a [WINDOW 1 MINUTE] JOIN b ON a.k = b.k", 2),
    "odd": ("SELECT k, x AS ax FROM a WHERE x % 2 = 1", 11),
    "again": ("SELECT p.k, p.ax FROM pairs p JOIN odd o ON p.k = o.k AND p.ax = o.ax", 20),
}


class Log:
    """Every match that comes about, by the oracle of views; matches that live between two slides count too."""

    def __init__(self, parts, keep: int, fits, gives) -> None:
        self.keep = keep * MINUTE
        self.view = view_oracle.View([view_oracle.Join(parts, fits, gives)], MINUTE, restore=True)
        self.rows: list[view_oracle.Row] = []
        """Of the log, as a view of it sees them."""

    @property
    def clock(self):
        return self.view.clock

    @property
    def slides(self):
        return self.view.slides

    def follow(self) -> None:
        length, ended = len(self.view.rows), len(self.view.restored)
        if self.view.follow():
            new = [(row.values, row.ts) for row in self.view.rows[length:]]
            new += [(values, values["_begins"]) for _, values, _ in self.view.restored[ended:]]
            for given, begins in new:
                values = {name: value for name, value in given.items() if name != "_begins"}
                self.rows.append(view_oracle.Row(values, begins, begins + self.keep, self.view.slides))

    def live(self) -> Counter:
        if self.clock is None:
            return Counter()
        return Counter((tuple(r.values.items()), r.ts) for r in self.rows if r.ts <= self.clock < r.exp)


def make_logs(a: view_oracle.Stream, b: view_oracle.Stream) -> dict[str, Log]:
    part = view_oracle.Part

    def gives(*names):
        def give(*found):
            values = {as_name: row.values[name] for row, (as_name, name) in zip(found, names, strict=False)}
            return {"k": found[0].values["k"], **values, "_begins": max(row.ts for row in found)}

        return give

    def same(one, other):
        return one.values["k"] == other.values["k"]

    both = ("ax", "x"), ("bx", "x")
    pairs = Log((part(a), part(b, 4 * MINUTE)), VIEWS["pairs"][1], same, gives(*both))
    brief = Log((part(a, MINUTE), part(b)), VIEWS["brief"][1], same, gives(*both))
    odd = Log((part(a),), VIEWS["odd"][1], lambda row: row.values["x"] % 2 == 1, gives(("ax", "x")))

    def equal(one, other):
        return all(one.values[name] == other.values[name] for name in ("k", "ax"))

    return {
        "pairs": pairs, "brief": brief, "odd": odd,
        "again": Log((part(pairs), part(odd)), VIEWS["again"][1], equal, gives(("ax", "ax"))),
    }  # fmt: skip


def read_log(wh, name: str) -> Counter:
    actual = wh.sql(f"SELECT * FROM {name}").arrow().to_pylist()
    return Counter((tuple((n, v) for n, v in row.items() if n != "_ts"), micros(row["_ts"])) for row in actual)


def run_history(path, seed: int, steps: int) -> None:
    """Late, early and short-lived rows, slides of uneven length, a lagging input, restarts, relayouts and gc."""
    print("seed", seed)
    choice, a, b = random.Random(seed), view_oracle.Stream(MINUTE, 0, 6 * MINUTE), view_oracle.Stream(2 * MINUTE)
    wh = open_warehouse(path)
    wh.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="6 minutes")
    wh.create_stream("b", SCHEMA, time="ts", key="k", slide="2 minutes", expires="exp", max_lifetime="6 minutes")
    logs, clock, made = make_logs(a, b), START, False
    for number in range(steps):
        if number == 4:  # the streams have lived for a while: the logs begin with what lives now
            made = True
            for name, (sql, keep) in VIEWS.items():
                wh.create_view(name, sql, keep=f"{keep} minutes")
                logs[name].follow()
        stream, name = choice.choice(((a, "a"), (b, "b")))
        if number % 2 == 0:
            given = []
            for _ in range(choice.randint(2, 6)):
                ts = clock + choice.randint(-18, 12) * TICK
                given.append((ts, ts + choice.randint(1, 36) * TICK, choice.randint(0, 2), choice.randint(0, 3)))
            for t, e, k, x in given:
                stream.append({"k": k, "x": x}, t, e if name == "b" else None)
            wh.append(name, rows(given))
        else:
            clock += choice.randint(0, 15) * TICK
            stream.slide(clock)
            wh.slide(name, to=time(clock))
            for log in logs.values() if made else ():
                log.follow()
        action = choice.random()
        if action < 0.1:
            wh.close()
            wh = open_warehouse(path)
        elif action < 0.2:
            wh.relayout(choice.choice("ab"), windrow.Index("round-robin", 2, 2, maintenance="rebuild"))
        elif action < 0.3:
            wh.gc()
        for view, log in logs.items() if made else ():
            now = wh.now(view)
            assert (None if now is None else micros(now)) == log.clock
            assert read_log(wh, view) == log.live(), (view, number)
    assert sum(len(log.rows) for log in logs.values()) > steps and wh.check().ok
    wh.close()


@pytest.mark.parametrize("seed", [2210, 2211])
def test_a_log_has_every_match_once_for_as_long_as_it_says(tmp_path, seed):
    run_history(tmp_path / "w", seed, 40)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_log_has_every_match_once_for_as_long_as_it_says_for_long(tmp_path, seed):
    run_history(tmp_path / "w", seed, 300)


@pytest.fixture
def wh(tmp_path):
    with open_warehouse(tmp_path / "w") as warehouse:
        warehouse.create_stream("a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="6 minutes")
        yield warehouse


def test_a_log_knows_what_it_lacks_though_its_inputs_have_forgotten(wh):
    """Before its first clock, and where a source failed an hour ago whose rows lived six minutes."""
    wh.slide("a", to=time(START))
    wh.create_view("log", "SELECT k, x FROM a WHERE x > 0", keep="2 hours")
    wh.append("a", rows([(START + TICK, START, 1, 1)]))
    wh.slide("a", to=time(START + MINUTE))
    wh.declare_gap("a", start=time(START + MINUTE), end=time(START + 2 * MINUTE), cause="unplugged")
    for minute in range(2, 40):
        wh.slide("a", to=time(START + minute * MINUTE))
    assert wh.sql("SELECT x FROM log [WINDOW 1 HOUR]").fetchall() == [(1,)]
    for minutes, kinds in ((60, {"expired", "declared"}), (39, {"declared"}), (37, set())):
        (window,) = wh.sql(f"SELECT x FROM log [WINDOW {minutes} MINUTES]").windows
        actual = {gap.kind for gap in window.gaps} - {"before first data"}
        assert (actual, window.complete) == (kinds, not kinds), minutes
    for minute in range(40, 130):
        wh.slide("a", to=time(START + minute * MINUTE))
    assert wh.gaps("a") == [], "nobody can ask about them any more"


def test_what_is_given_up_below_a_log_stays_in_it(wh, tmp_path):
    wh.slide("a", to=time(START))
    wh.create_view("log", "SELECT k, x FROM a", keep="1 hour")
    wh.create_view("now", "SELECT k, x FROM a")
    wh.append("a", rows([(START + TICK, START, 1, 1)]))
    wh.slide("a", to=time(START + MINUTE))
    (file,) = {row[0] for row in wh.sql("SELECT file FROM windrow.segments WHERE stream = 'a'").fetchall()}
    (tmp_path / "w" / file).unlink()
    assert wh.repair("a", give_up=True).rows_lost == 1
    assert wh.sql("SELECT x FROM log").fetchall() == [(1,)] and wh.sql("SELECT x FROM now").fetchall() == []


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("SELECT k, count(*) AS n FROM a GROUP BY k", {}, "is recomputed at each slide"),
        ("SELECT DISTINCT k FROM a", {}, "eliminates duplicates, and keep= logs each result once"),
        ("SELECT k FROM a", {"restore": True}, "leave restore out"),
        ("SELECT k FROM a", {"keep": "no time"}, "keep"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_made(wh, sql, options, message):
    with pytest.raises(windrow.WindrowError, match=message):
        wh.create_view("v", sql, **{"keep": "1 hour"} | options)
    assert wh.views() == []

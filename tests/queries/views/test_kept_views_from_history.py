"""A new log over streams with history begins with the matches that came about in the time that is kept.

The oracle joins plain lists of rows: two rows match where their lives meet, and a match comes about with the later one.
"""

import random
from collections import Counter

import pytest

import windrow
from view_histories import MINUTE, SCHEMA, START, TICK, micros, open_warehouse, rows, time

PAIRS = "SELECT a.k, a.x AS ax, b.x AS bx FROM a JOIN b [WINDOW 4 MINUTES] ON a.k = b.k"


def find_matches(a, b, floor: int, begun: int, now: int) -> Counter:
    matches = Counter()
    for t, e, k, x in a:
        for u, f, m, y in b:
            begins, ends = max(t, u), min(e, f, u + 4 * MINUTE)
            if k == m and begins < ends and ends > floor and begun < begins <= now:
                matches[k, x, y, begins] += 1
    return matches


@pytest.mark.parametrize(
    ("history", "keep", "seed"), [(60, 100, 1), (60, 25, 2), (12, 40, 3), *((30, 30, seed) for seed in (4, 5))]
)
def test_a_new_log_has_the_matches_that_history_holds(tmp_path, history, keep, seed):
    print("seed", seed)
    choice, given = random.Random(seed), {"a": [], "b": []}
    with open_warehouse(tmp_path / "w") as wh:
        history_option = f"{history} minutes"
        wh.create_stream(
            "a", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="6 minutes", history=history_option,
            index=windrow.Index("round-robin", 2, 2, maintenance="rebuild"),
        )  # fmt: skip
        wh.create_stream(
            "b", SCHEMA, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="6 minutes",
            history=history_option,
        )  # fmt: skip
        for minute in range(1, 41):
            now = START + minute * MINUTE
            for name in ("a", "b"):
                batch = []
                for _ in range(choice.randint(0, 4)):
                    ts = now - choice.randint(0, 5) * TICK
                    batch.append((ts, ts + choice.randint(7, 36) * TICK, choice.randint(0, 2), choice.randint(0, 99)))
                if batch:
                    wh.append(name, rows(batch))
                    wh.slide(name, to=time(now))
                    given[name] += [(t, t + 6 * MINUTE if name == "a" else e, k, x) for t, e, k, x in batch]
                else:
                    wh.slide(name, to=time(now))
        wh.create_view("log", PAIRS, keep=f"{keep} minutes")
        floor = now - min(keep, history) * MINUTE
        read = "SELECT k, ax, bx, _ts FROM log"
        actual = Counter((*row[:3], micros(row[3])) for row in wh.sql(read).fetchall())
        assert actual == find_matches(given["a"], given["b"], floor, now - keep * MINUTE, now)
        assert len(actual) > 10
        (window,) = wh.sql(f"SELECT k FROM log [WINDOW {min(keep, history) - 7} MINUTES]").windows
        assert "expired" not in {gap.kind for gap in window.gaps}
        for minute in range(41, 45):  # and it goes on
            ts = START + minute * MINUTE
            for name in ("a", "b"):
                batch = [(ts - TICK, ts + 10 * TICK, 1, minute)]
                wh.append(name, rows(batch))
                wh.slide(name, to=time(ts))
                given[name] += [(t, t + 6 * MINUTE if name == "a" else e, k, x) for t, e, k, x in batch]
        actual = Counter((*row[:3], micros(row[3])) for row in wh.sql(read).fetchall())
        assert actual == find_matches(given["a"], given["b"], floor, ts - keep * MINUTE, ts)
        assert wh.check().ok

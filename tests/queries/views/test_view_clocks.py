"""When views move: with the last of their inputs, in the finest slots, and whoever slides beside it."""

import datetime as dt
import threading

import pytest

import view_histories
import windrow
from faulty_disks import CallAtStep
from keyed_streams import SCHEMA, append_rows, fetch_sorted, slide
from view_histories import MINUTE, START, time


def test_the_clock_is_the_least_of_the_inputs_and_a_quiet_input_is_named(wh):
    wh.create_view("v", "SELECT a.k FROM a JOIN b USING (k)")
    slide(wh, "a", 5)
    (view,) = wh.views()
    assert (view.now, view.waiting_for) == (None, ("b",))
    slide(wh, "b", 3)
    (view,) = wh.views()
    assert (view.now, view.waiting_for) == (time(START + 3 * MINUTE), ("b",))
    slide(wh, "b", 9)
    (view,) = wh.views()
    assert (view.now, view.waiting_for) == (time(START + 5 * MINUTE), ("a",))


def test_a_stream_ahead_of_a_view_keeps_what_the_view_still_needs(wh):
    """a's row is dead to a's own queries from minute 10.5 on, and is met by b's row when b comes to minute 4."""
    wh.create_view("v", "SELECT a.x AS ax, b.x AS bx FROM a JOIN b USING (k)")
    append_rows(wh, "a", (0.5, 1, 10))
    slide(wh, "ab", 1)
    for minute in range(2, 30):
        slide(wh, "a", minute)
    assert fetch_sorted(wh, "SELECT x FROM a") == []
    assert wh.stream("a").stored_rows == 1
    append_rows(wh, "b", (3.5, 1, 20))
    slide(wh, "b", 4)
    assert fetch_sorted(wh, "SELECT ax, bx FROM v") == [(10, 20)]
    slide(wh, "b", 30)
    slide(wh, "a", 31)
    assert fetch_sorted(wh, "SELECT ax, bx FROM v") == []
    assert wh.stream("a").stored_rows == 0
    assert wh.check().ok


def test_inputs_with_different_slides_meet_in_the_finest_slots(path):
    with view_histories.open_warehouse(path) as wh:
        wh.create_stream("a", SCHEMA, time="ts", slide="4 minutes", lifetime="20 minutes")
        wh.create_stream("b", SCHEMA, time="ts", slide="6 minutes", lifetime="20 minutes", origin=time(MINUTE))
        wh.create_view("v", "SELECT a.k FROM a JOIN b USING (k)")
        assert wh.stream("v").definition.slide == MINUTE
        wh.create_view("w", "SELECT a.k FROM a JOIN b USING (k)", slide="5 minutes")
        slide(wh, "ab", 30)
        now = {name: wh.now(name) for name in "abvw"}
        assert now["v"] == min(now["a"], now["b"])
        assert now["v"] - dt.timedelta(minutes=5) < now["w"] <= now["v"]


def test_two_inputs_that_slide_at_the_same_time_see_each_other(path):
    """Whoever comes second moves the view: its clock is never left behind the least of its inputs."""
    with view_histories.open_warehouse(path) as wh:
        for name in "ab":
            wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        wh.create_view("v", "SELECT a.x AS ax, b.x AS bx FROM a JOIN b USING (k)")
    errors = []

    def run(name):
        try:
            with view_histories.open_warehouse(path) as wh:
                for minute in range(1, 16):
                    append_rows(wh, name, (minute - 0.5, 1, minute))
                    slide(wh, name, minute)
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    both = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert not errors
    with view_histories.open_warehouse(path) as wh:
        assert wh.now("v") == time(START + 15 * MINUTE)
        assert fetch_sorted(wh, "SELECT ax, bx FROM v") == sorted((i, j) for i in range(6, 16) for j in range(6, 16))
        assert wh.check().ok


def test_a_slide_waits_for_a_serial_query_on_a_view_as_long_as_it_was_told(wh):
    wh.create_view("v", "SELECT k FROM a")
    append_rows(wh, "a", (0.5, 1, 1))
    slide(wh, "a", 1)
    held = pytest.raises(windrow.BusyError, match="view 'v', which moves with 'a', is held by")
    with wh.sql("SELECT k FROM v", isolation="serial"), held:
        wh.slide("a", to=time(START + 2 * MINUTE), timeout=0.05)
    assert wh.slide("a", to=time(START + 2 * MINUTE)).moved
    assert wh.now("v") == wh.now("a")


def test_a_view_made_while_its_input_slides_misses_nothing(path):
    with view_histories.open_warehouse(path) as wh:
        wh.create_stream("a", SCHEMA, time="ts", slide="1 minute", lifetime="10 minutes")
        append_rows(wh, "a", (0.5, 1, 1))
    made = []

    def create():
        def run():
            with view_histories.open_warehouse(path) as other:
                made.append(other.create_view("v", "SELECT x FROM a"))

        thread = threading.Thread(target=run)
        thread.start()
        made.append(thread)

    with view_histories.open_warehouse(path, files=CallAtStep("slide.committing", create)) as wh:
        slide(wh, "a", 1)
        made[0].join()
        assert fetch_sorted(wh, "SELECT x FROM v") == [(1,)]
        assert wh.now("v") == wh.now("a")

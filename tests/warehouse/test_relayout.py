"""A stream changes its layout or search key while it is in use: no answer changes, and the old layout goes away.

slide     5      6      7      8      9
old    ████   ████   ███░   ██░░   █░░░   ░░░░     rows leave as they expire, or are moved
new           █      ██     ███    ████   ████     from the change on, rows come in here
              ▲ relayout
"""

import pyarrow as pa
import pytest

import windrow
from sample_streams import BASE, DELTA, US, when
from windrow import Index
from windrow.append import Append

SCHEMA = pa.schema([("ts", US), ("k", pa.int64()), ("host", pa.string()), ("n", pa.int64())])
PER_SLOT = 20
LIFE = 6


def rows(slot: int) -> pa.Table:
    """Twenty rows of one slot, over four keys and five hosts."""
    numbers = range(PER_SLOT)
    return pa.table(
        [
            pa.array([BASE + (slot - 1) * DELTA + 1 + n for n in numbers], US),
            pa.array([n % 4 for n in numbers]),
            pa.array([f"h{n % 5}" for n in numbers]),
            pa.array([slot * 1000 + n for n in numbers]),
        ],
        schema=SCHEMA,
    )


@pytest.fixture
def wh(path):
    with windrow.open(path, clock=lambda: BASE + 1000 * DELTA) as opened:
        opened.create_stream(
            "s",
            SCHEMA,
            time="ts",
            key="k",
            slide=f"{DELTA} us",
            lifetime=f"{LIFE * DELTA} us",
            index=Index("round-robin", 2, 2),
        )
        yield opened


def slide(wh, *slots):
    for slot in slots:
        wh.append("s", rows(slot))
        report = wh.slide("s", to=when(BASE + slot * DELTA))
    return report


def numbers(rows):
    return sorted(rows.column("n").to_pylist())


def live(last, keep=lambda n: True):
    """Numbers of the rows that are live at a slot."""
    slots = range(max(1, last - LIFE + 1), last + 1)
    return [slot * 1000 + n for slot in slots for n in range(PER_SLOT) if keep(n)]


def assert_answers(wh, last):
    assert numbers(wh.scan("s").read_all()) == live(last)
    assert numbers(wh.sql("SELECT n FROM s WHERE host = 'h3'").arrow()) == live(last, lambda n: n % 5 == 3)
    assert numbers(wh.sql("SELECT n FROM s WHERE k = 2").arrow()) == live(last, lambda n: n % 4 == 2)
    assert wh.check().ok, wh.check().problems


def test_without_moving_the_old_layout_empties_out_by_itself_and_is_forgotten(wh):
    slide(wh, *range(1, 7))
    report = wh.relayout("s", Index("chronological", 3, 2))
    assert report.left_bytes == report.total_bytes > 0
    left = report.left_bytes
    for slot in range(7, 7 + LIFE):
        assert slide(wh, slot).relayout_bytes == 0
        assert_answers(wh, slot)
        status = wh.stream("s")
        now = 0 if status.relayout is None else status.relayout.left_bytes
        assert now < left
        left = now
    assert wh.stream("s").relayout is None
    assert wh.stream("s").layouts == 1
    assert wh.stream("s").index == "chronological 3x2 adaptive"


def test_each_slide_moves_at_most_its_budget_and_at_least_one_segment(wh):
    slide(wh, *range(1, 7))
    sizes = {segment.bytes for segment in wh.snapshot().view("s").segments}
    wh.relayout("s", Index("round-robin", 3, 3), move="steps", budget=2 * max(sizes))
    moved = slide(wh, 7).relayout_bytes
    assert max(sizes) <= moved <= 2 * max(sizes)
    wh.relayout("s", Index("round-robin", 3, 3), move="steps", budget=1)
    assert 0 < slide(wh, 8).relayout_bytes <= max(sizes)
    assert_answers(wh, 8)


def test_moving_now_reports_progress_and_leaves_nothing_behind(wh):
    slide(wh, *range(1, 7))
    seen = []
    report = wh.relayout("s", Index("wave-insertion", 3), move="now", budget=1, progress=seen.append)
    assert report.done
    assert report.moved_bytes == report.total_bytes
    assert [each.left_bytes for each in seen] == sorted((each.left_bytes for each in seen), reverse=True)
    assert len(seen) > 3
    assert wh.stream("s").layouts == 1
    assert_answers(wh, 6)


def test_a_cancelled_change_goes_back_and_what_was_moved_still_answers(wh):
    slide(wh, *range(1, 7))
    wh.relayout("s", Index("round-robin", 4, 4), key="host", budget=1)
    wh.relayout_step("s", budget=1)
    assert_answers(wh, 6)
    report = wh.cancel_relayout("s")
    assert (report.index, report.key) == ("round-robin 2x2 adaptive", ("k",))
    assert report.left_bytes > 0, "the segment that was moved is in the layout that was given up"
    assert numbers(wh.probe("s", 3)) == live(6, lambda n: n % 4 == 3)
    slide(wh, 7)
    assert_answers(wh, 7)
    assert wh.relayout("s", move="now").done
    with pytest.raises(windrow.DefinitionError, match="none to cancel"):
        wh.cancel_relayout("s")


def test_probes_by_a_new_key_are_exact_while_old_segments_are_sorted_by_the_old_one(wh):
    slide(wh, *range(1, 7))
    wh.append("s", rows(7))
    wh.relayout("s", key="host")
    wh.append("s", rows(8))
    for last in (7, 8):
        wh.slide("s", to=when(BASE + last * DELTA))
        actual = live(last, lambda n: n % 5 == 1)
        assert numbers(wh.probe("s", "h1")) == actual
        assert numbers(wh.probe("s", between=("h1", "h1"))) == actual
        assert numbers(wh.probe("s", keys=["h1", "nobody"])) == actual
    with pytest.raises(windrow.SearchKeyError):
        wh.probe("s", 2)
    assert wh.check().ok


@pytest.mark.parametrize(("old", "new"), [(("host", "k"), ("host",)), (("host",), ("host", "k")), (("k",), ())])
def test_a_key_becomes_shorter_longer_or_nothing(wh, old, new):
    wh.relayout("s", key=old)
    slide(wh, *range(1, 5))
    wh.relayout("s", key=new)
    slide(wh, 5, 6)
    assert_answers(wh, 6)
    if new:
        assert numbers(wh.probe("s", keys=[("h2",)])) == live(6, lambda n: n % 5 == 2)


def test_a_batch_is_known_again_after_its_stream_has_another_key(wh):
    wh.append("s", rows(1), batch_id="one")
    wh.relayout("s", key="host")
    assert wh.append("s", rows(1), batch_id="one").duplicate
    with pytest.raises(windrow.BatchConflictError):
        wh.append("s", rows(2), batch_id="one")


def test_an_append_that_began_before_the_change_is_adopted_under_its_old_layout(wh):
    slide(wh, 1)
    late = Append(wh._store, "s", None, None)
    wh.relayout("s", Index("chronological", 3, 2), key="host", move="now")
    assert wh.stream("s").layouts == 1, "the old layout was forgotten"
    late.run(rows(2))
    slide(wh, 3)
    assert_answers(wh, 3)
    assert wh.relayout("s", move="now").done


def test_what_makes_no_sense_is_refused_and_changes_nothing(wh):
    slide(wh, 1)
    before = wh.stream("s").index
    for options, message in (
        ({"key": "nothing"}, "not in the schema"),
        ({"move": "later"}, "must be False, 'steps' or 'now'"),
        ({"budget": 0}, "at least one byte"),
        ({"index": "round-robin"}, "must be 'auto' or windrow.Index"),
    ):
        with pytest.raises(windrow.DefinitionError, match=message):
            wh.relayout("s", **options)
    with pytest.raises(windrow.UnknownStreamError):
        wh.relayout("t", key="k")
    assert wh.stream("s").index == before


def test_a_full_disk_stops_the_moving_and_not_the_slide(wh, monkeypatch):
    slide(wh, *range(1, 4))
    wh.relayout("s", Index("round-robin", 3, 3), move="steps")
    wh.append("s", rows(4))

    def full(step):
        if step == "relayout.planned":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(wh._store.files, "reach", full)
    report = wh.slide("s", to=when(BASE + 4 * DELTA))
    assert report.moved
    assert "disk is full" in report.relayout_problem
    monkeypatch.undo()
    assert_answers(wh, 4)

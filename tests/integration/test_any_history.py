"""Any history of appends, slides, reads, changes, clean-ups and reopenings gives what a plain list of rows gives.

A stateful property test, run for every layout in `shapes.LAYOUTS`. Times are drawn where things go wrong: on slot ends
and one microsecond beside them.

        now-2Δ        now-Δ          now           now+Δ
    ──────┤─────────────┤─────────────┤─────────────┤──────
         -1 0 +1       -1 0 +1       -1 0 +1       -1 0 +1 µs
"""

import random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import scratch_folders
import windrow
from alteration_rules import AlterationRules
from oracle import SECOND, BatchConflict, ExpectedAppend, ExpectedSlide, Oracle, SlideRefused
from sample_streams import BASE, DELTA, LAYOUTS, SHAPES, assert_rows, when
from windrow import times

STREAM = "s"

edges = st.builds(lambda slot, shift: slot * DELTA + shift, st.integers(-6, 3), st.sampled_from((-1, 0, 1)))
anywhere = st.integers(-6 * DELTA, 3 * DELTA)
lives = st.one_of(
    st.builds(lambda slots, shift: slots * DELTA + shift, st.integers(0, 7), st.sampled_from((-1, 0, 1))),
    st.integers(1, 5 * DELTA),
)
# A row that expires exactly at a slide, or a microsecond beside it: (slot, shift) instead of a length of life.
ends = st.tuples(st.integers(1, 5), st.sampled_from((-1, 0, 1)))
lives = st.one_of(lives, ends)
rows = st.tuples(st.one_of(edges, anywhere), lives, st.integers(0, 2**32))
strange = st.sampled_from(("null", "ahead", "absurd", "null-expiry"))
batches = st.tuples(st.lists(rows, max_size=20), st.lists(st.tuples(strange, st.integers(0, 2**32)), max_size=2))
windows = st.one_of(
    st.none(),
    st.integers(1, 6).map(lambda slots: slots * DELTA),
    st.integers(1, 6 * DELTA),
    st.sampled_from((1, DELTA - 1, DELTA + 1, 4 * DELTA + 1)),
)
handles = st.integers(0, 1)


class History(AlterationRules, RuleBasedStateMachine):
    """One warehouse with one stream, two handles, and the truth beside it."""

    layout: windrow.Index | str = "auto"

    @initialize(shape=st.sampled_from(sorted(SHAPES)))
    def begin(self, shape: str) -> None:
        self.place = scratch_folders.scratch_folder()
        self.folder = self.place.__enter__()
        self.clock = BASE
        self.numbers = iter(range(1 << 30))
        self.given: list[tuple[list[dict[str, Any]], str | None, str]] = []
        self.snapshots: list[tuple[windrow.Snapshot, list[Any]]] = []
        self.handles = [self.open(), self.open()]
        self.create(shape)

    def open(self) -> windrow.Warehouse:
        return windrow.open(self.folder / "wh", clock=lambda: self.clock, sleep=self.sleepless)

    @staticmethod
    def sleepless(_: float) -> None:
        raise AssertionError("nobody holds a lock here, so nobody may wait")

    def create(self, shape: str) -> None:
        self.shape = SHAPES[shape]
        self.truth: Oracle = self.shape.oracle()
        self.shape.create(self.handles[0], STREAM, self.layout)
        self.given = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            try:
                report = self.handles[0].check()
                assert report.ok, report.problems
            finally:
                for snapshot, _ in self.snapshots:
                    snapshot.close()
                for handle in self.handles:
                    handle.close()
                self.place.__exit__(None, None, None)

    def source(self, choice: int) -> str | None:
        return self.shape.sources[choice % len(self.shape.sources)] if self.shape.sources else None

    # -- rows in ---------------------------------------------------------------------------------------------------

    def make(self, batch: tuple[list[Any], list[Any]]) -> list[dict[str, Any]]:
        start = self.truth.now if self.truth.now is not None else self.truth.end(int(self.truth.slot(self.clock)))
        made = []
        for offset, life, seed in batch[0]:
            lives = life if isinstance(life, int) else life[0] * DELTA + life[1] - offset
            made.append(self.shape.row(next(self.numbers), start + offset, lives, random.Random(seed)))
        for kind, seed in batch[1]:
            choice = random.Random(seed)
            row = self.shape.row(next(self.numbers), start, DELTA, choice)
            if kind == "null":
                row["ts"] = None
            elif kind == "ahead":
                row["ts"] = self.shape.raw("ts", self.clock + self.shape.max_ahead + choice.choice((1, SECOND, 10**15)))
            elif kind == "absurd":
                row["ts"] = self.shape.raw("ts", -8 * 10**15)
            elif "exp" in row:
                row["exp"] = None
            made.insert(choice.randrange(len(made) + 1), row)
        return made

    @rule(handle=handles, batch=batches, named=st.booleans(), choice=st.integers(0, 2), cut=st.integers(1, 5))
    def append(self, handle: int, batch: Any, named: bool, choice: int, cut: int) -> None:
        rows, source = self.make(batch), self.source(choice)
        batch_id = f"batch {len(self.given)}" if named else None
        table = self.shape.table(rows)
        data = table if cut == 1 else table.to_batches(max_chunksize=cut) or table
        report = self.handles[handle].append(STREAM, data, source=source, batch_id=batch_id)
        self.same(report, self.truth.append(rows, self.clock, source, batch_id))
        if batch_id is not None:
            self.given.append((rows, source, batch_id))

    @precondition(lambda self: self.given)
    @rule(handle=handles, which=st.integers(0, 20), other=st.booleans(), seed=st.integers(0, 100))
    def append_the_same_batch_again(self, handle: int, which: int, other: bool, seed: int) -> None:
        rows, source, batch_id = self.given[which % len(self.given)]
        rows = list(rows)
        random.Random(seed).shuffle(rows)
        if other:
            rows.append(self.shape.row(next(self.numbers), self.clock, DELTA, random.Random(seed)))
        try:
            expected = self.truth.append(rows, self.clock, source, batch_id)
        except BatchConflict:
            with pytest.raises(windrow.BatchConflictError, match=batch_id):
                self.handles[handle].append(STREAM, self.shape.table(rows), source=source, batch_id=batch_id)
        else:
            actual = self.handles[handle].append(STREAM, self.shape.table(rows), source=source, batch_id=batch_id)
            self.same(actual, expected)

    @staticmethod
    def same(report: windrow.AppendReport, expected: ExpectedAppend) -> None:
        actual = ExpectedAppend(report.rows, report.accepted, report.rejected, report.late, report.duplicate)
        assert actual == expected

    @rule(handle=handles, offset=st.integers(0, 3 * DELTA), choice=st.integers(0, 2))
    def heartbeat(self, handle: int, offset: int, choice: int) -> None:
        up_to, source = (self.truth.now or self.clock) + offset, self.source(choice)
        try:
            self.truth.heartbeat(up_to, self.clock, source)
        except SlideRefused:
            with pytest.raises(windrow.ClockError, match="max_ahead"):
                self.handles[handle].heartbeat(STREAM, source=source, up_to=when(up_to))
        else:
            self.handles[handle].heartbeat(STREAM, source=source, up_to=when(up_to))

    @rule(handle=handles)
    def replay(self, handle: int) -> None:
        self.same(self.handles[handle].replay(STREAM), self.truth.replay(self.clock))

    # -- time ------------------------------------------------------------------------------------------------------

    @rule(by=st.sampled_from((1, DELTA, 3 * DELTA, 10 * DELTA)))
    def the_wall_clock_goes_on(self, by: int) -> None:
        self.clock += by

    @rule(handle=handles, force=st.booleans())
    def slide_as_far_as_the_sources_allow(self, handle: int, force: bool) -> None:
        self.slid(self.handles[handle].slide(STREAM, force=force), self.truth.slide(self.clock, force=force))

    @rule(handle=handles, slots=st.integers(-1, 3), part=st.integers(0, DELTA - 1), force=st.booleans())
    def slide_to(self, handle: int, slots: int, part: int, force: bool) -> None:
        to = (self.truth.now or self.clock) + slots * DELTA + part
        self.clock = max(self.clock, to - DELTA)
        try:
            expected = self.truth.slide(self.clock, to, force)
        except SlideRefused as refusal:
            self.refused(handle, to, force, refusal.sources)
        else:
            self.slid(self.handles[handle].slide(STREAM, to=when(to), force=force), expected)

    def refused(self, handle: int, to: int, force: bool, sources: tuple[str, ...]) -> None:
        with pytest.raises(windrow.SourceBehindError if sources else windrow.ClockError) as error:
            self.handles[handle].slide(STREAM, to=when(to), force=force)
        assert all(repr(source) in str(error.value) for source in sources)

    @rule(handle=handles, slots=st.integers(4, 60))
    def slide_many_slots_at_once(self, handle: int, slots: int) -> None:
        to = (self.truth.now or self.clock) + slots * DELTA
        self.clock = max(self.clock, to)
        self.slid(self.handles[handle].slide(STREAM, to=when(to), force=True), self.truth.slide(self.clock, to, True))

    def slid(self, report: windrow.SlideReport, expected: ExpectedSlide) -> None:
        actual = ExpectedSlide(
            report.moved, report.slide, report.inserted, report.expired, report.late, frozenset(report.missing)
        )
        assert actual == expected
        assert report.now == (None if self.truth.now is None else times.to_datetime(self.truth.now))

        if report.moved:
            self.agree(report.slide or 0)

    def agree(self, seed: int) -> None:
        """All live rows, windows on and beside slot ends, and a probe, at this slide."""
        choice, wh = random.Random(seed), self.handles[seed % 2]
        for window in (None, DELTA, choice.choice((2 * DELTA, DELTA - 1, DELTA + 1, choice.randint(1, 2 * DELTA)))):
            if not self.kept(window):
                continue
            length = None if window is None else f"{window} microseconds"
            assert_rows(wh.scan(STREAM, window=length).read_all(), self.truth.live(window), f"scan {window}")
        if self.shape.key:
            keys = [self.key(choice)[: choice.randint(1, len(self.shape.key))] for _ in range(2)]
            assert_rows(wh.probe(STREAM, keys=keys), self.truth.probe(keys=keys), f"keys {keys}")

    @rule(handle=handles, batch=batches, slots=st.integers(1, 2), choice=st.integers(0, 2))
    def append_and_slide(self, handle: int, batch: Any, slots: int, choice: int) -> None:
        """What a stream does most of the time."""
        self.append(handle, batch, named=False, choice=choice, cut=1)
        to = self.truth.end(self.truth.slide_number or int(self.truth.slot(self.clock))) + slots * DELTA
        self.clock = max(self.clock, to)
        self.slid(self.handles[handle].slide(STREAM, to=when(to), force=True), self.truth.slide(self.clock, to, True))

    # -- answers ---------------------------------------------------------------------------------------------------

    def kept(self, window: int | None) -> bool:
        return window is None or self.truth.complete(window)

    @rule(handle=handles, window=windows)
    def scan(self, handle: int, window: int | None) -> None:
        wh, length = self.handles[handle], None if window is None else f"{window} microseconds"
        if not self.kept(window):
            with pytest.raises(windrow.WindowError, match="keeps rows"):
                wh.scan(STREAM, window=length)
            return
        assert_rows(wh.scan(STREAM, window=length).read_all(), self.truth.live(window), f"scan {window}")
        some = wh.scan(STREAM, window=length, columns=["n"]).read_all()
        assert sorted(some.column("n").to_pylist()) == sorted(row.values["n"] for row in self.truth.live(window))

    def key(self, choice: random.Random) -> tuple[Any, ...]:
        return tuple(choice.choice(self.shape.values[name]) for name in self.shape.key)

    @precondition(lambda self: self.shape.key)
    @rule(
        handle=handles, window=windows, seed=st.integers(0, 2**32), kind=st.sampled_from(("keys", "prefix", "between"))
    )
    def probe(self, handle: int, window: int | None, seed: int, kind: str) -> None:
        if not self.kept(window):
            return
        wh, choice = self.handles[handle], random.Random(seed)
        length = None if window is None else f"{window} microseconds"
        if kind == "between":
            low, high = (self.key(choice)[: choice.randint(1, len(self.shape.key))] for _ in range(2))
            actual = wh.probe(STREAM, between=(low, high), window=length)
            assert_rows(actual, self.truth.probe(between=(low, high), window=window), f"between {low, high}")
            return
        size = len(self.shape.key) if kind == "keys" else 1
        keys = [self.key(choice)[:size] for _ in range(choice.randint(1, 4))]
        actual = wh.probe(STREAM, keys=keys, window=length)
        assert_rows(actual, self.truth.probe(keys=keys, window=window), f"keys {keys}")
        if keys[0] != (None,):
            one = wh.probe(STREAM, keys[0], window=length, columns=["n"])
            expected = [row.values["n"] for row in self.truth.probe(keys=keys[:1], window=window)]
            assert sorted(one.column("n").to_pylist()) == sorted(expected)

    @rule(handle=handles)
    def rejected_rows_can_be_read(self, handle: int) -> None:
        actual = self.handles[handle].rejected(STREAM)
        got = zip(actual.column("n").to_pylist(), actual.column("_reason").to_pylist(), strict=True)
        assert sorted(got) == sorted((values["n"], why) for values, why, _ in self.truth.rejects)

    # -- holding on, cleaning up, coming back ----------------------------------------------------------------------

    @rule(handle=handles)
    def take_a_snapshot(self, handle: int) -> None:
        if len(self.snapshots) < 3:
            self.snapshots.append((self.handles[handle].snapshot(), self.truth.live()))

    @precondition(lambda self: self.snapshots)
    @rule(keep=st.booleans())
    def a_snapshot_still_answers_as_when_it_was_taken(self, keep: bool) -> None:
        snapshot, rows = self.snapshots[0]
        if STREAM in snapshot.streams():
            assert_rows(snapshot.scan(STREAM).read_all(), rows, "snapshot")
        if not keep:
            self.snapshots.pop(0)[0].close()

    @rule(handle=handles)
    def gc(self, handle: int) -> None:
        report = self.handles[handle].gc()
        if not self.snapshots:
            assert report.waiting == 0

    @rule(handle=handles)
    def check(self, handle: int) -> None:
        report = self.handles[handle].check()
        assert report.ok, report.problems

    @rule(handle=handles)
    def reopen(self, handle: int) -> None:
        # A snapshot keeps its files, not its catalog: those of the handle that is closed are given back first.
        for snapshot, _ in self.snapshots:
            snapshot.close()
        self.snapshots = []
        self.handles[handle].close()
        self.handles[handle] = self.open()

    @precondition(lambda self: self.truth.inserted > 20)
    @rule(handle=handles, shape=st.sampled_from(sorted(SHAPES)))
    def drop_and_create_again(self, handle: int, shape: str) -> None:
        if self.snapshots and self.snapshots[0][0].streams():
            self.a_snapshot_still_answers_as_when_it_was_taken(keep=True)
        self.handles[handle].drop_stream(STREAM)
        assert self.handles[1 - handle].streams() == []
        for snapshot, _ in self.snapshots:
            snapshot.close()
        self.snapshots = []
        self.create(shape)

    @invariant()
    def the_totals_are_true(self) -> None:
        if not hasattr(self, "truth"):
            return
        status = self.handles[1].stream(STREAM)
        now = None if status.now is None else windrow.times.parse_instant(status.now)
        actual = (now, status.inserted, status.expired, status.late, status.rejected, status.spooled_rows)
        truth = self.truth
        assert actual == (truth.now, truth.inserted, truth.expired, truth.late, len(truth.rejects), len(truth.spool))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_history_gives_what_a_list_of_rows_gives(layout: str) -> None:
    machine = type(f"History_{layout.replace('-', '_')}", (History,), {"layout": LAYOUTS[layout]})
    # The layouts share the profile's examples; a failure is told as it was found: shrinking histories takes minutes.
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=settings.default.max_examples,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            report_multiple_bugs=False,
        ),
    )

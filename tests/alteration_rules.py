"""Hypothesis rules that change a stream while it is in use: layouts, search keys, lifetimes, columns.

They are mixed into the histories of integration tests. The oracle knows no layouts, so a relayout must change no answer.
"""

import math
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import windrow
from oracle import SECOND
from sample_streams import DELTA, LAYOUTS, Shape, assert_rows

STREAM = "s"
UNORDERED = ("tags", "where")
"""Columns of the shapes that cannot be a search key."""
ADDED: dict[str, tuple[pa.DataType, tuple[Any, ...]]] = {
    "note": (pa.string(), ("", "λ", None)),
    "size": (pa.int32(), (0, -1, 2**31 - 1, None)),
    "mark": (pa.list_(pa.int8()), ([], [1, None], None)),
}
handles = st.integers(0, 1)
lengths = st.one_of(
    st.integers(1, 8).map(lambda slots: slots * DELTA),
    st.integers(DELTA, 8 * DELTA),
    st.sampled_from((DELTA, DELTA + 1, 4 * DELTA - 1)),
)


def span(length: int) -> str:
    return f"{length} microseconds" if length else "0 seconds"


class AlterationRules:
    """Rules that change the stream of a history."""

    shape: Shape
    handles: list[windrow.Warehouse]
    truth: Any
    numbers: Any
    clock: int

    # -- layouts and keys ------------------------------------------------------------------------------------------

    @rule(
        handle=handles,
        layout=st.sampled_from([*sorted(LAYOUTS), None]),
        rekey=st.booleans(),
        seed=st.integers(0, 2**32),
        move=st.sampled_from((False, "steps", "now")),
        budget=st.sampled_from((1, 2_000, 1 << 20)),
    )
    def relayout(self, handle: int, layout: Any, rekey: bool, seed: int, move: Any, budget: int) -> None:
        key = self.shape.key
        if rekey:
            choice = random.Random(seed)
            columns = [name for name in self.shape.fields if name not in ("ts", "exp", "mark", *UNORDERED)]
            key = tuple(choice.sample(columns, choice.randint(0, min(2, len(columns)))))
        before = self.handles[handle].stream(STREAM)
        report = self.handles[handle].relayout(
            STREAM, None if layout is None else LAYOUTS[layout], key=key if rekey else None, move=move, budget=budget
        )
        self.shape = replace(self.shape, key=key)
        self.truth.key = key
        assert report.key == key
        if move == "now" and not before.spooled_rows:
            assert report.done

    @rule(handle=handles, budget=st.sampled_from((1, 2_000, 1 << 20)))
    def move_a_step(self, handle: int, budget: int) -> None:
        before = self.handles[handle].stream(STREAM).relayout
        after = self.handles[1 - handle].relayout_step(STREAM, budget=budget)
        if before is not None:
            assert after.left_bytes <= before.left_bytes

    @rule(handle=handles)
    def cancel(self, handle: int) -> None:
        wh = self.handles[handle]
        if wh.stream(STREAM).relayout is None:
            with pytest.raises(windrow.DefinitionError, match="none to cancel"):
                wh.cancel_relayout(STREAM)
            return
        if not wh.stream(STREAM).relayout.can_cancel:
            with pytest.raises(windrow.DefinitionError, match="no way back"):
                wh.cancel_relayout(STREAM)
            return
        report = wh.cancel_relayout(STREAM)
        self.shape = replace(self.shape, key=report.key)
        self.truth.key = report.key

    # -- definitions -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.shape.max_lifetime is None)
    @rule(handle=handles, length=st.one_of(lengths, lengths, st.none()))
    def alter_lifetime(self, handle: int, length: int | None) -> None:
        self.handles[handle].alter_stream(STREAM, lifetime="forever" if length is None else span(length))
        self.truth.alter_lifetime(length)
        self.shape = replace(self.shape, lifetime=length)
        self.agrees(handle)

    @precondition(lambda self: self.shape.max_lifetime is not None)
    @rule(handle=handles, length=lengths)
    def alter_max_lifetime(self, handle: int, length: int) -> None:
        self.handles[handle].alter_stream(STREAM, max_lifetime=span(length))
        self.truth.max_lifetime = length
        self.shape = replace(self.shape, max_lifetime=length)

    @rule(
        handle=handles,
        slack=st.sampled_from((0, SECOND, DELTA)),
        max_skew=st.sampled_from((None, DELTA)),
        max_ahead=st.sampled_from((30 * SECOND, 90 * SECOND)),
    )
    def alter_limits(self, handle: int, slack: int, max_skew: int | None, max_ahead: int) -> None:
        self.handles[handle].alter_stream(
            STREAM,
            slack=span(slack),
            max_skew="never" if max_skew is None else span(max_skew),
            max_ahead=span(max_ahead),
        )
        self.truth.slack, self.truth.max_skew, self.truth.max_ahead = slack, max_skew, max_ahead
        self.shape = replace(self.shape, slack=slack, max_skew=max_skew, max_ahead=max_ahead)

    @precondition(lambda self: set(ADDED) - set(self.shape.fields))
    @rule(handle=handles)
    def add_a_column(self, handle: int) -> None:
        name = next(name for name in ADDED if name not in self.shape.fields)
        kind, values = ADDED[name]
        self.handles[handle].alter_stream(STREAM, add_column=(name, kind))
        self.truth.add_column(name)
        self.shape = replace(
            self.shape, fields=self.shape.fields | {name: kind}, values=self.shape.values | {name: values}
        )
        self.agrees(handle)

    @precondition(lambda self: set(ADDED) & set(self.shape.fields))
    @rule(handle=handles, seeds=st.lists(st.integers(0, 2**32), max_size=8))
    def who_does_not_know_the_new_columns_goes_on(self, handle: int, seeds: list[int]) -> None:
        start = self.truth.now or self.clock
        rows = [self.shape.row(next(self.numbers), start + 1, 2 * DELTA, random.Random(seed)) for seed in seeds]
        columns = [name for name in self.shape.schema.names if name not in ADDED]
        source = self.shape.sources[0] if self.shape.sources else None
        report = self.handles[handle].append(STREAM, self.shape.table(rows).select(columns), source=source)
        rows = [row | dict.fromkeys(set(ADDED) & set(self.shape.fields)) for row in rows]
        assert report.accepted == self.truth.append(rows, self.clock, source).accepted

    # -- answers ---------------------------------------------------------------------------------------------------

    def agrees(self, handle: int) -> None:
        assert_rows(self.handles[1 - handle].scan(STREAM).read_all(), self.truth.live(), "all live rows")

    @rule(handle=handles, seed=st.integers(0, 2**32), ordered=st.booleans())
    def ask_in_sql(self, handle: int, seed: int, ordered: bool) -> None:
        """By key where there is one; `ROWS` reads the files themselves."""
        choice, wh = random.Random(seed), self.handles[handle]
        if self.truth.now is None:
            return
        if ordered:
            names = ["n", *(name for name in ADDED if name in self.shape.fields)]
            answer = wh.sql(f"SELECT {', '.join(names)} FROM {STREAM} [ROWS 1000000]").arrow()
            assert_rows(answer, self.truth.live(), "rows in order")
            return
        name = choice.choice([name for name in self.shape.fields if name not in ("ts", "exp", "mark", *UNORDERED)])
        value = choice.choice([value for value in self.shape.values[name] if value is not None] or [None])
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return
        answer = wh.sql(f'SELECT n FROM {STREAM} WHERE "{name}" = ?', [value]).arrow()
        expected = [row.values["n"] for row in self.truth.live() if row.values[name] == value]
        assert sorted(answer.column("n").to_pylist()) == sorted(expected), (name, value)

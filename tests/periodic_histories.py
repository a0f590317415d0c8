"""Random periodic queries over a random warehouse, with the runs that there must be and what each must answer.

A `PeriodicHistory` registers statements with periods, appends, slides, runs what is due, restarts, adds and drops
queries. Beside it stands what plain DuckDB says over the oracle's rows at each slide at which a run was due.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import random_statements
import random_warehouses
import recorded_history
import scratch_folders
import windrow
from faulty_disks import CountingDisk
from oracle import Row
from random_statements import StatementGenerator, StatementPair, sql_name
from random_warehouses import CLOCK, RandomStream, RandomWarehouse
from sample_streams import BASE, DELTA, LAYOUTS, when

Slides = dict[str, int]


@dataclass
class PeriodicStatements(StatementGenerator):
    """Writes statements whose windows can be computed again after each slide."""

    looks: list[tuple[RandomStream, Callable[[], list[Row]]]] = field(default_factory=list)
    periods: dict[str, int] = field(default_factory=dict)

    def window(self, stream: RandomStream | None = None) -> tuple[RandomStream, str]:
        """Choose a stream and a window, mostly one with a period."""
        choice, stream = self.choice, stream or self.choice.choice(self.world.streams)
        truth, name = stream.truth, sql_name(stream.name, self.choice)
        kind = choice.choice(("range", "range", "range", "all", "rows")) if self.periods else "range"
        text, look = name, truth.live
        if kind == "range":
            most = stream.shape.lifetime or stream.shape.max_lifetime or 8 * DELTA
            length = min(most, choice.choice((DELTA, 2 * DELTA, 3 * DELTA, DELTA // 2, DELTA + 1, most)))
            period = self.periods.setdefault(stream.name, choice.choice((1, 1, 2, 3, 5)))
            paced = f" SLIDE {period * DELTA} MICROSECONDS"
            text = f"{name} [WINDOW {length} MICROSECONDS{paced}]"
            if choice.random() < 0.2:
                text = f"window('{stream.name}', INTERVAL {length} MICROSECONDS, slide := INTERVAL {period * DELTA} MICROSECONDS)"

            def look(length: int = length) -> list[Row]:
                return truth.live(length)
        elif kind == "rows":
            count = choice.choice((1, 2, 5, 10_000))
            text = f"{name} [ROWS {count}]"

            def look(count: int = count) -> list[Row]:
                return stream.newest_first()[:count]

        self.looks.append((stream, look))
        self.references.append(random_statements.Reference(stream, text, look()))
        return stream, f"⟨{len(self.references) - 1}⟩"

    def next(self) -> tuple[StatementPair, list[tuple[RandomStream, Callable[[], list[Row]]]], dict[str, int]]:
        """Write a statement; return it with its windows and its periods in slots by stream."""
        self.looks, self.periods = [], {}
        return self.ask(), self.looks, self.periods


@dataclass
class ExpectedQuery:
    """A registered query and the results that it must have."""

    name: str
    question: StatementPair
    looks: list[tuple[RandomStream, Callable[[], list[Row]]]]
    periods: dict[str, int]
    first: str
    """The stream that numbers its runs."""
    missed: str
    last: Slides
    """The slides of its streams at the last run."""
    seen: Slides
    """The slides of its streams when a slide last made a run due."""
    waiting: list[tuple[Slides, Any]] = field(default_factory=list)
    expected: dict[int, Any] = field(default_factory=dict)


class PeriodicHistory:
    """A random warehouse with periodic queries."""

    def __init__(self, path: Path, seed: int, **size: int) -> None:
        self.path, self.choice = path, random.Random(seed)
        self.world: RandomWarehouse = random_warehouses.make_warehouse(path, seed, **size)
        self.questions = PeriodicStatements(self.world, self.choice)
        self.queries: dict[str, ExpectedQuery] = {}
        self.plain = random_statements.open_plain()
        self.counter = 0
        self.log: list[str] = []

    @property
    def wh(self) -> windrow.Warehouse:
        return self.world.wh

    # -- the truth

    def slides(self, query: ExpectedQuery) -> Slides:
        """Find the slides of the streams that have a period in a query."""
        actual = {s.name: s.truth.slide_number for s in self.world.streams if s.name in query.periods}
        return {name: number for name, number in actual.items() if number is not None}

    @staticmethod
    def due(query: ExpectedQuery, since: Slides, now: Slides) -> bool:
        """Whether every stream has entered a later period."""
        return all(
            name in now and (name not in since or now[name] // slots > since[name] // slots)
            for name, slots in query.periods.items()
        )

    def truth(self, query: ExpectedQuery) -> Any:
        """Ask plain DuckDB over the windows as they are now."""
        tables = {f"t{index}": stream.rows(look()) for index, (stream, look) in enumerate(query.looks)}
        if "hosts" in query.question.tables:
            tables["hosts"] = self.world.hosts
        return random_statements.plain_answer(self.plain, StatementPair(
            query.question.ours, query.question.plain, tables, query.question.parameters, query.question.ordered))  # fmt: skip

    # -- what happens

    def add(self) -> None:
        """Register a statement, if it can be registered."""
        question, looks, periods = self.questions.next()
        name = f"q{self.counter}"
        self.counter += 1
        missed = self.choice.choice(("latest", "every", "every", "skip"))
        query = ExpectedQuery(name, question, looks, periods, "", missed, {}, {})
        if isinstance(self.truth(query), str):
            return
        try:
            made = self.wh.add_query(name, question.ours, params=question.parameters or None, missed=missed)
        except (windrow.QueryError, windrow.DefinitionError) as error:
            if "two columns" not in str(error) and "cannot be kept in" not in str(error):
                raise
            return
        query.first = made.streams[0]
        query.last = query.seen = self.slides(query)
        self.queries[name] = query
        self.log.append(f"add {name} {missed} {periods}: {question.ours} {question.parameters}")

    def drop(self) -> None:
        """Drop a query."""
        if self.queries:
            name = self.choice.choice(sorted(self.queries))
            self.wh.drop_query(name)
            del self.queries[name]
            self.log.append(f"drop {name}")

    def append(self) -> None:
        """Append rows in time, late, early and expired."""
        stream = self.choice.choice(self.world.streams)
        now = stream.truth.now
        self.world._append(
            stream, self.choice, BASE if now is None else now, self.choice.randint(5, 60), first=now is None
        )

    def slide(self) -> None:
        """Move one stream on by one or several slots, with rows or without."""
        stream = self.choice.choice(self.world.streams)
        to = (stream.truth.now or BASE) + self.choice.choice((1, 1, 1, 2, 4)) * DELTA
        self.wh.slide(stream.name, to=when(to))
        stream.truth.slide(CLOCK, to)
        self.log.append(f"slide {stream.name} to {stream.truth.slide_number}")
        for query in self.queries.values():
            now = self.slides(query)
            if stream.name in query.periods and self.due(query, query.seen, now):
                query.seen = now
                if query.missed == "every":
                    query.waiting.append((now, self.truth(query)))

    def round(self) -> None:
        """Run what is due, and note which results there must be."""
        reports = self.wh.run_due()
        self.log.append(f"round: {[(r.query, r.slide, r.outcome) for r in reports]}")
        for query in list(self.queries.values()):
            wanted = self._wanted(query)
            if any(isinstance(answer, str) for _, answer in wanted):
                self._failed(query, reports)
                continue
            got = [report.slide for report in reports if report.query == query.name and report.outcome == "delivered"]
            assert got == [slides[query.first] for slides, _ in wanted], self.told(query)
            for slides, answer in wanted:
                query.expected[slides[query.first]] = answer
                query.last = slides

    def _wanted(self, query: ExpectedQuery) -> list[tuple[Slides, Any]]:
        if query.missed == "every":
            wanted, query.waiting = query.waiting, []
            return wanted
        now = self.slides(query)
        if not self.due(query, query.last, now) or (query.missed == "skip" and query.seen != now):
            return []
        return [(now, self.truth(query))]

    def _failed(self, query: ExpectedQuery, reports: list[Any]) -> None:
        """Expect a failed run where plain DuckDB fails too, and drop the query."""
        assert [r.outcome for r in reports if r.query == query.name][-1:] == ["failed"], self.told(query)
        self.wh.drop_query(query.name)
        del self.queries[query.name]

    def restart(self) -> None:
        """Close and open again."""
        self.wh.close()
        self.world.wh = windrow.open(self.path, clock=lambda: CLOCK)
        self.log.append("restart")

    def relayout(self) -> None:
        """Move a stream to another layout."""
        stream = self.choice.choice(self.world.streams)
        layouts = [index for index in LAYOUTS.values() if not isinstance(index, str)]
        self.wh.relayout(stream.name, self.choice.choice(layouts))
        self.log.append(f"relayout {stream.name}")

    def clean(self) -> None:
        """Reclaim what can go."""
        self.wh.gc()

    # -- comparing

    def told(self, query: ExpectedQuery) -> str:
        """Describe the history, for the message of a failed assertion."""
        return "\n".join([f"{query.name}: {query.question.ours}", f"plain: {query.question.plain}", *self.log])

    def check(self) -> None:
        """Every query has exactly the runs that were due, and each says what plain DuckDB says."""
        for query in self.queries.values():
            runs = self.wh.sql(
                "SELECT slide FROM windrow.runs WHERE query = $1 AND outcome = 'delivered'", [query.name]
            )
            assert sorted(row[0] for row in runs.fetchall()) == sorted(query.expected), self.told(query)
            for slide, answer in query.expected.items():
                assert self._rows(query, slide) == random_statements.comparable(
                    answer, ordered=query.question.ordered
                ), f"slide {slide}\n{self.told(query)}"

    def _rows(self, query: ExpectedQuery, slide: int) -> list[str]:
        if query.question.ordered:
            rows = self.wh.results(query.name, slide=slide).arrow()
            return random_statements.comparable(rows.select(rows.schema.names[6:]), ordered=True)
        given = f'SELECT * EXCLUDE (_slide, _window_start, _window_end, _complete, _staleness, _coverage) FROM "{query.name}" WHERE _slide = $1'
        rows = self.wh.sql(given, [slide]).arrow()
        return random_statements.comparable(rows, ordered=False)

    def close(self) -> None:
        """Close the warehouse and DuckDB."""
        self.wh.close()
        self.plain.close()


STEPS: tuple[Callable[[PeriodicHistory], None], ...] = (
    PeriodicHistory.append, PeriodicHistory.append, PeriodicHistory.append, PeriodicHistory.slide, PeriodicHistory.slide, PeriodicHistory.slide, PeriodicHistory.slide,
    PeriodicHistory.round, PeriodicHistory.round, PeriodicHistory.add, PeriodicHistory.add, PeriodicHistory.drop, PeriodicHistory.restart, PeriodicHistory.clean, PeriodicHistory.clean,
    PeriodicHistory.relayout,
)  # fmt: skip


def run_history(path: Path, seed: int, steps: int, **size: int) -> None:
    """Run a random history of periodic queries, and compare all results at its end."""
    standing = PeriodicHistory(path, seed, **size)
    try:
        for _ in range(6):
            standing.add()
        for _ in range(steps):
            standing.choice.choice(STEPS)(standing)
        standing.round()
        standing.check()
        assert standing.wh.check().ok
        assert standing.wh.status().readers == 0
    finally:
        standing.close()


def count_delivery_steps(
    create: Callable[[str], object],
    advance: Callable[[windrow.Warehouse, int], object],
    slots: int,
    check: Callable[[Path], object],
) -> dict[str, int]:
    """How often each step of a delivery is reached when nothing goes wrong; small limits, so that all of them are."""
    with scratch_folders.scratch_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("windrow.queries.periodic.result_store.INLINE_BYTES", 1800)
        patch.setattr("windrow.queries.periodic.result_store.TAIL_RUNS", 2)
        files = CountingDisk()
        create(str(folder / "w"))
        with recorded_history.open_warehouse(folder / "w", files=files) as wh:
            for slot in range(1, slots + 1):
                advance(wh, slot)
        check(folder / "w")
        return files.steps

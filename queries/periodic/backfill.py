"""Backfill: the runs that a periodic query would have made at slides that were committed before it was there.

Each run is made over the streams and tables as they were at the commit of its slide, oldest first. How far a query has
come is in its state, so that a run is delivered once whoever makes it, and goes on after a kill where it stood.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby

from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import BackfillState, Pace, QueryEntry, QueryState, RunEntry, StreamVersion
from windrow.errors import DefinitionError, QueryError, WindowError
from windrow.history import find_cutoff
from windrow.queries.periodic.due import SlideNumbers, find_period, is_due
from windrow.queries.periodic.result_store import record_trouble
from windrow.queries.sql.statement import parse
from windrow.queries.sql.volatility import find_change
from windrow.snapshot import Snapshot
from windrow.store import Store


@dataclass(frozen=True)
class PastRun:
    """A run that is to be made from history."""

    entry: QueryEntry
    state: QueryState
    commit: int
    """The first one at which it would have been due."""
    slides: SlideNumbers


@dataclass(frozen=True)
class BackfillPlan:
    """What a backfill will do, as one snapshot sees it."""

    state: BackfillState
    last_commit: int
    """Of the last of its runs."""
    last_slides: SlideNumbers

    def go_on(self, tables: Tables, entry: QueryEntry, slides: Mapping[str, int]) -> BackfillState:
        """The state to begin with, if streams have slid to `slides` since the snapshot."""
        upto = slides[entry.paces[0].stream]
        rest = replace(self.state, commit=self.last_commit, reached=self.last_slides, upto=upto)
        return replace(self.state, upto=upto, left=self.state.left + sum(1 for _ in list_runs(tables, entry, rest)))


def check_backfill(entry: QueryEntry, snapshot: Snapshot) -> None:
    """Refuse a query whose runs cannot be made from history.

    Raises:
        QueryError: it reads what has no history, or a run depends on more than its slide.
    """
    if entry.engine != "duckdb":
        raise QueryError(
            f"query {entry.name!r} runs on Spark, and past runs are made by DuckDB only; leave the backfill out"
        )
    statement = parse(entry.sql)
    named = {name.lower() for name in (*snapshot.streams(), *snapshot.tables)}
    for reference in statement.references:
        if reference.schema or reference.name.lower() not in named:
            what = f"windrow.{reference.name}" if reference.schema else f"results of {reference.name!r}"
            raise QueryError(f"query {entry.name!r} reads {what}, of which there is no history; leave the backfill out")
    if (change := find_change(statement)) is not None:
        raise QueryError(
            f"query {entry.name!r} reads {change}, which is volatile and would not give what it gave then; leave the "
            "backfill out"
        )
    for name in entry.reads:
        definition = snapshot.view(name).entry.definition
        if definition.history is None:
            if definition.inputs:
                why = "is a view, which is known as it is now only; ask its streams"
            else:
                why = "keeps no history; declare history=…"
            raise QueryError(f"query {entry.name!r} reads {name!r}, which {why}, or leave the backfill out")


def plan_backfill(
    store: Store, entry: QueryEntry, state: QueryState | None, snapshot: Snapshot, since: int | None, back: int | None
) -> BackfillPlan | None:
    """Which runs a backfill will make; None if there are none.

    Args:
        store: The warehouse.
        entry: The query.
        state: Of its runs, if it is there already.
        snapshot: Of all that it reads.
        since: The time, on the streams' clocks, after which windows end.
        back: The same as a duration before the clock of the first stream.

    Raises:
        WindowError: the history does not reach back so far.
    """
    check_backfill(entry, snapshot)
    first = entry.paces[0]
    now, model = snapshot.now(first.stream), snapshot.view(first.stream).model
    reached = {} if state is None else state.reached
    if now is None or (state is not None and first.stream not in reached):
        return None
    since = now - (back or 0) if since is None else since
    if since >= now:
        raise WindowError(
            f"query {entry.name!r} cannot be backfilled since {times.format_time(since)}: the clock of stream "
            f"{first.stream!r} is at {times.format_time(now)}"
        )
    upto = reached.get(first.stream, model.last_slot(now))
    kept_from = since if entry.keep_time is None else max(since, now - entry.keep_time)

    def plan(tables: Tables) -> BackfillPlan | None:
        for name in entry.reads:
            _check_reach(tables, entry, snapshot, name, since)
        before = {
            pace.stream: snapshot.view(pace.stream).model.last_slot(kept_from)
            for pace in entry.paces
            if snapshot.now(pace.stream) is not None
        }
        start = BackfillState(commit=0, reached=before, upto=upto, left=0)
        runs = [run for run in list_runs(tables, entry, start) if run[0] <= snapshot.version]
        if entry.keep_runs is not None:  # what would be removed at once is not made
            room = entry.keep_runs - (0 if state is None else state.stored_runs)
            passed, runs = (runs[:-room], runs[-room:]) if room > 0 else (runs, [])
            start = replace(start, reached=passed[-1][1]) if passed else start
        if not runs:
            return None
        start = replace(start, commit=runs[0][0] - 1, left=len(runs))
        return BackfillPlan(start, *runs[-1])

    made = store.catalog.read(plan)
    if made is not None:
        then = snapshot.as_of(made.state.commit + 1)
        for name in entry.reads:
            then.view(name)
    return made


def _check_reach(tables: Tables, entry: QueryEntry, snapshot: Snapshot, name: str, since: int) -> None:
    """Refuse a backfill from before the history of a stream, unless that has all there ever was."""
    view = snapshot.view(name)
    cutoff = find_cutoff(view.entry, view.state)
    oldest = next(iter(tables.raw_items("stream_versions", catalog_key(view.entry.id))), None)
    version: StreamVersion | None = None if oldest is None else tables.decode("stream_versions", oldest[1])
    has_all = version is not None and version.ordinal == 0 and view.state.history_from is None
    if cutoff is not None and since < cutoff and not has_all:
        raise WindowError(
            f"query {entry.name!r} cannot be backfilled since {times.format_time(since)}: the history of stream "
            f"{name!r} reaches back to {times.format_time(cutoff)}; begin there or later"
        )


def list_runs(tables: Tables, entry: QueryEntry, backfill: BackfillState) -> Iterator[tuple[int, SlideNumbers]]:
    """The runs that a backfill has still to make: the commits at which they were due, and the slides of then."""
    slides: SlideNumbers = {}
    for pace in entry.paces:
        item = tables.last_item(
            "stream_versions", catalog_key(pace.stream_id), catalog_key(pace.stream_id, backfill.commit)
        )
        if item is not None and item[1].slide is not None:
            slides[pace.stream] = item[1].slide
    reached, first = backfill.reached, entry.paces[0]
    changes = merge(*(_list_versions(tables, pace, backfill.commit) for pace in entry.paces))
    for commit, changed in groupby(changes, key=lambda change: change[0]):
        slides |= {stream: slide for _, stream, slide in changed}
        if slides.get(first.stream, backfill.upto) > backfill.upto:
            return
        if is_due(entry.paces, reached, slides):
            reached = dict(slides)
            if not _is_delivered(tables, entry, reached[first.stream]):
                yield commit, reached


def _list_versions(tables: Tables, pace: Pace, after: int) -> Iterator[tuple[int, str, int]]:
    stream, start = catalog_key(pace.stream_id), catalog_key(pace.stream_id, after + 1)
    for key, raw in tables.raw_items("stream_versions", stream, start):
        shown: StreamVersion = tables.decode("stream_versions", raw)
        if shown.slide is not None:
            yield decode_last_int(key), pace.stream, shown.slide


def _is_delivered(tables: Tables, entry: QueryEntry, slide: int) -> bool:
    """Whether there is a run already of the period that a slide was the first of."""
    pace = entry.paces[0]
    period = find_period(pace, slide)
    for _, raw in tables.raw_items("runs", catalog_key(entry.id), catalog_key(entry.id, slide)):
        run: RunEntry = tables.decode("runs", raw)
        if find_period(pace, run.slide) != period:
            return False
        if run.outcome == "delivered":
            return True
    return False


def find_next_runs(store: Store, entries: Sequence[QueryEntry]) -> list[PastRun]:
    """The next runs to be made, all as of one commit: of the highest priority, the oldest.

    A query that has no more is noted to be done.
    """

    def find(tables: Tables) -> tuple[list[PastRun], list[QueryEntry]]:
        runs, done = [], []
        for entry in entries:
            state: QueryState | None = tables.get("paced", catalog_key(entry.id))
            if state is None or state.backfill is None:
                continue
            following = next(list_runs(tables, entry, state.backfill), None)
            if following is None:
                done.append(entry)
            else:
                runs.append(PastRun(entry, state, *following))
        return runs, done

    runs, done = store.catalog.read(find)
    if done:
        with store.catalog.write() as tables:
            for entry in done:
                state: QueryState | None = tables.get("paced", catalog_key(entry.id))
                if state is None or state.backfill is None:
                    continue
                if next(list_runs(tables, entry, state.backfill), None) is None:
                    tables.put(
                        "paced",
                        catalog_key(entry.id),
                        replace(state, backfill=None, missed=state.missed + state.backfill.left),
                    )
    if not runs:
        return []
    chosen = min(runs, key=lambda run: (-run.entry.priority, run.commit))
    return [run for run in runs if (run.commit, run.entry.priority) == (chosen.commit, chosen.entry.priority)]


def open_past(snapshot: Snapshot, run: PastRun) -> Snapshot:
    """All that the query of a run reads, as it was at the run's commit; open as long as `snapshot` is.

    Raises:
        WindowError: the history reaches back so far no longer.
    """
    then = snapshot.as_of(run.commit)
    for name in run.entry.reads:
        then.view(name)
    return then


def list_later_commits(store: Store, run: PastRun) -> list[int]:
    """The commits from a run's own on that changed what a stream of its query showed, or what was known of its gaps."""

    def read(tables: Tables) -> list[int]:
        commits = {run.commit}
        for name in run.entry.reads:
            stream = find_stream(tables, name)[0].id
            start = catalog_key(stream, run.commit + 1)
            commits |= {
                decode_last_int(key) for key, _ in tables.raw_items("stream_versions", catalog_key(stream), start)
            }
        return sorted(commits)

    return store.catalog.read(read)


def pass_over(store: Store, run: PastRun, window: tuple[int | None, int | None], why: str) -> None:
    """Record that a run cannot be made, now or later."""
    with store.catalog.write() as tables:
        state: QueryState | None = tables.get("paced", catalog_key(run.entry.id))
        if state is None or state.backfill is None or state.backfill != run.state.backfill:
            return
        missed = RunEntry(
            query=run.entry.name,
            slide=run.slides[run.entry.paces[0].stream],
            slides=run.slides,
            outcome="missed",
            version=tables.version,
            window_start=window[0],
            window_end=window[1],
            at=store.clock(),
            error=why,
            backfilled=True,
        )
        state = record_trouble(tables, run.entry, state, missed)
        assert state.backfill is not None
        passed = replace(
            state.backfill, commit=run.commit, reached=run.slides, left=state.backfill.left - 1, failures=0,
            retry_at=None,
        )  # fmt: skip
        tables.put(
            "paced", catalog_key(run.entry.id), replace(state, backfill=passed, missed=state.missed + 1, error=None)
        )


def set_backfill(store: Store, entry: QueryEntry, state: QueryState, since: int) -> None:
    """Let a query that is there already make runs of earlier slides, too; those that it has made stay.

    Raises:
        DefinitionError: the query was dropped, or has run, meanwhile.
        QueryError: it delivers differences, and has delivered some.
    """
    if entry.output != "whole" and state.delivered is not None:
        raise QueryError(
            f"query {entry.name!r} has told its {entry.output} from run to run, and no earlier run fits between them; "
            "add a query of another name with backfill=…"
        )
    with Snapshot(store) as snapshot:
        plan = plan_backfill(store, entry, state, snapshot, since, None)
    with store.catalog.write() as tables:
        current: QueryState | None = tables.get("paced", catalog_key(entry.id))
        if current is None:
            raise DefinitionError(f"query {entry.name!r} was dropped meanwhile")
        tables.put("paced", catalog_key(entry.id), replace(current, backfill=None if plan is None else plan.state))

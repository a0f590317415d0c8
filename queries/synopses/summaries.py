"""Summaries: lists of frequent items of a stream under a name, kept up by its slides and asked as bounds of weights.

The definition lies in the catalog's `summaries`, the lists beside the synopses of the stream: whoever takes rows out of
a stream drops all of these, and the lists are made again from the rows that are held, at the latest by the next slide.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as replaced
from itertools import takewhile
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from windrow import arguments, times
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_name_clash, find_stream
from windrow.catalog.records import SummaryEntry, SynopsisColumn, SynopsisEntry, ViewEntry
from windrow.definitions import check_name
from windrow.errors import QueryError, StreamExistsError, SummaryError
from windrow.formats.html import TableList, TableRecord
from windrow.indexes.bounded_cache import BoundedCache
from windrow.queries.engine import instance
from windrow.queries.planner.scan_sql import find_older_files, window_sql
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.sql.statement import Statement, parse
from windrow.queries.sql.window_spec import WindowSpec
from windrow.queries.synopses import kinds, maintenance, node_store
from windrow.queries.synopses.frequent_items import (
    LEAST_COLUMN,
    ROWS,
    SUM,
    DecodedList,
    GroupBounds,
    UnusableListError,
    encode_list,
    make_lists,
    merge_lists,
)
from windrow.queries.synopses.query_shape import SynopsisStatement, analyse_statement, window_slots
from windrow.slide_hooks import Contribution, SlideContext
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

MOST_FREQUENT = 10_000
"""Groups that a list may name: a bound on what a slide puts into the catalog, not measured."""
_MOST_CACHED = 1 << 14
"""Lists of a warehouse that are kept decoded in memory, and bounds that were merged of them."""
_STATE, _LIST = "f", "i"
"""Kinds of records among a stream's synopses."""


class ListsState(msgspec.Struct, frozen=True, kw_only=True):
    """Of which slide the lists of a summary are."""

    slide: int
    ordinal: int
    version: int
    """The commit that made all of them from stored rows; a snapshot of an earlier one may show other rows."""


@dataclass(frozen=True)
class Summary(TableRecord):
    """A summary as it is reported to users."""

    name: str
    stream: str
    sql: str
    counts: str
    """What it counts: rows, or the sum of a column."""
    frequent: int
    """How many groups are kept of each slot and slide."""
    columns: tuple[str, ...]
    window: str
    """The longest window that it can be asked for."""
    lists: int
    bytes: int
    slide: int | None
    """The slide that its lists are of; None: they are made again with the next one."""


# -- in the catalog --------------------------------------------------------------------------------------------------


def read_summaries(tables: Tables, stream: int) -> list[SummaryEntry]:
    """The summaries of a stream."""
    return [record for _, record in tables.items("summaries", catalog_key(stream))]


def are_there(store: Store) -> bool:
    """Whether there are any summaries: most warehouses have none, and then nobody looks further."""
    return store.catalog.read(lambda tables: next(iter(tables.raw_items("summaries")), None)) is not None


def _find_state(tables: Tables, entry: SummaryEntry) -> ListsState | None:
    raw = tables.raw("synopses", catalog_key(entry.stream, _STATE, entry.number))
    return None if raw is None else msgspec.msgpack.decode(bytes(raw), type=ListsState)


def _list_prefix(entry: SummaryEntry) -> bytes:
    return catalog_key(entry.stream, _LIST, entry.number)


def _forget_lists(tables: Tables, entry: SummaryEntry) -> None:
    tables.delete("synopses", catalog_key(entry.stream, _STATE, entry.number))
    tables.delete_prefix("synopses", _list_prefix(entry))


@dataclass(frozen=True)
class _ListsUpdate:
    """The lists of one summary after a slide, or as they are made anew."""

    entry: SummaryEntry
    slide: int
    ordinal: int
    lists: Mapping[int, bytes]
    """New ones, by event slot."""
    obsolete_keys: Sequence[bytes] = ()
    anew: bool = False

    def commit(self, tables: Tables) -> None:
        """Record it."""
        current = _find_state(tables, self.entry)
        if self.anew:
            _forget_lists(tables, self.entry)
        for key in self.obsolete_keys:
            tables.delete("synopses", key)
        for slot, packed in self.lists.items():
            tables.put_raw("synopses", _list_prefix(self.entry) + catalog_key(slot, self.ordinal), packed)
        version = tables.version if self.anew or current is None else current.version
        state = ListsState(slide=self.slide, ordinal=self.ordinal, version=version)
        key = catalog_key(self.entry.stream, _STATE, self.entry.number)
        tables.put_raw("synopses", key, msgspec.msgpack.encode(state))


# -- with a slide ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SummaryContribution:
    """What summaries add to a slide's transaction."""

    updates: Sequence[_ListsUpdate]
    files: Sequence[str] = ()

    def commit(self, tables: Tables) -> None:
        """Record what was prepared."""
        for update in self.updates:
            update.commit(tables)


@contextmanager
def prepare_summaries(store: Store, context: SlideContext) -> Iterator[Contribution | None]:
    """Prepare the lists of the rows that a slide is about to bring in."""
    stream = context.entry.id
    entries = store.catalog.read(lambda tables: read_summaries(tables, stream))
    states = store.catalog.read(lambda tables: [_find_state(tables, entry) for entry in entries])
    if not entries:
        yield None
        return
    current = [e for e, state in zip(entries, states, strict=True) if state and state.ordinal == context.state.ordinal]
    lost = [entry for entry in entries if entry not in current]
    updates: list[_ListsUpdate] = []
    with instance.open_cursor(store) as cursor:
        if current:
            updates += _prepare_lists(store, cursor, context, current, anew=False)
        if lost:
            held = replaced(context, arrived=(*context.segments, *context.arrived))
            updates += _prepare_lists(store, cursor, held, lost, anew=True)
    yield SummaryContribution(updates)


def _prepare_lists(
    store: Store, cursor: Any, context: SlideContext, entries: Sequence[SummaryEntry], *, anew: bool
) -> Iterator[_ListsUpdate]:
    """The lists of the rows that come in with a slide, all of which are in memory once."""
    counted = [entry.counted for entry in entries]
    after = context.entry.definition.model.slot_end(context.slide - max(each.slots for each in counted))
    if context.arrived:
        maintenance.register_new_rows(store, cursor, context, counted, after)
    for entry in entries:
        floor = context.slide - entry.counted.slots
        lists = make_lists(cursor, entry, "_came") if context.arrived else {}
        packed = {slot: encode_list(each) for slot, each in lists.items() if slot > floor}
        obsolete = store.catalog.read(lambda tables, e=entry, f=floor: _find_obsolete(tables, e, f))  # type: ignore[misc]
        yield _ListsUpdate(entry, context.slide, context.ordinal, packed, obsolete, anew)
    cursor.execute("DROP TABLE IF EXISTS _came")


def _find_obsolete(tables: Tables, entry: SummaryEntry, floor: int) -> list[bytes]:
    """The keys of lists of slots up to `floor`."""
    keys = (key for key, _ in tables.raw_items("synopses", _list_prefix(entry)))
    return list(takewhile(lambda key: decode_last_int(key[:-8]) <= floor, keys))


# -- declared and dropped --------------------------------------------------------------------------------------------


def create_summary(store: Store, name: str, sql: str, frequent: int) -> Summary:
    """Declare a summary, fill it from what its stream holds, and return its description."""
    store.check_writable()
    arguments.check_statement(sql)
    check_name(name, "summary")
    if isinstance(frequent, bool) or not isinstance(frequent, int) or not 1 <= frequent <= MOST_FREQUENT:
        raise SummaryError(
            f"summary {name!r}: frequent is {frequent!r}; it is how many groups are kept of each slot, "
            f"a whole number from 1 to {MOST_FREQUENT:,}"
        )
    with Snapshot(store) as first:
        store.catalog.read(lambda tables: _refuse_taken(tables, name))
        draft, stream = _plan_summary(first, name, sql, frequent)
    with maintenance.stream_lock(store, draft.stream, stream):
        number = maintenance.allocate_numbers(store, 1)
        with Snapshot(store, [stream]) as snapshot:
            draft, _ = _plan_summary(snapshot, name, sql, frequent)
            draft = replace(draft, number=number, counted=replace(draft.counted, number=number))
            update = _fill(store, snapshot.view(stream), draft)
        store.files.reach("summary.filled")
        with store.catalog.write() as tables:
            find_stream(tables, stream)
            _refuse_taken(tables, name)
            tables.put("summaries", catalog_key(draft.stream, draft.number), draft)
            if update is not None:
                update.commit(tables)
    return next(summary for summary in list_summaries(store) if summary.name == name)


def _refuse_taken(tables: Tables, name: str) -> None:
    other = find_name_clash(tables, name)
    if other is not None:
        raise StreamExistsError(
            f"{other!r} exists already (SQL does not tell capitals apart); drop it first or choose another name"
        )


def _plan_summary(snapshot: Snapshot, name: str, sql: str, frequent: int) -> tuple[SummaryEntry, str]:
    """What a summary keeps, and the name of its stream; refuses what has no bounds."""
    parsed = parse(sql)
    _refuse_views(snapshot, name, parsed)
    try:
        if len(parsed.references) != 1:  # a standing query over a join may have a view of its own, a summary has none
            raise CannotSplitError("it does not read exactly one stream")
        statement = analyse_statement(snapshot.store, snapshot, sql)
    except CannotSplitError as error:
        raise SummaryError(
            f"summary {name!r}: {error}; write it like SELECT src, count(*) AS n FROM packets GROUP BY src"
        ) from None
    statement_kind = _find_kind(name, statement)
    view = snapshot.view(_find_name(snapshot, statement.stream.name))
    need, shape = statement.shape.needs[0], statement.shape.decomposed
    columns = need.columns[:1]
    if statement_kind == SUM:
        argument = shape.calls[0].arguments[0].text
        least = SynopsisColumn(key=LEAST_COLUMN, build=f"min({argument}\n)", merge="min", type="HUGEINT")
        columns = (*columns, least)
    counted = SynopsisEntry(
        stream=view.entry.id,
        number=0,
        where="" if need.where is None else need.where.text,
        where_key="" if need.where is None else need.where.key,
        groups=tuple((group.text, group.key, kind) for group, kind in zip(need.groups, need.types, strict=True)),
        columns=node_store.choose_columns(columns),
        kind=kinds.BASIC,
        slots=statement.slots,
        expiring=view.model.expires is not None,
        floor=0,
        slide=None,
    )
    assert statement.array_form is not None
    selected = zip(statement.array_form.final.columns, statement.columns, strict=True)
    entry = SummaryEntry(
        stream=view.entry.id,
        number=0,
        name=name,
        sql=sql,
        kind=statement_kind,
        frequent=frequent,
        columns=tuple((column, output.number) for output, (column, _) in selected if output.group),
        weight=need.columns[0].key,
        counted=counted,
        created=snapshot.store.clock(),
    )
    return entry, view.name


def _find_kind(name: str, statement: SynopsisStatement) -> str:
    """Whether a statement counts rows or adds whole numbers up, by plain groups; refuses all others."""
    shape, form = statement.shape.decomposed, statement.array_form
    asked = (
        "a summary is of one count(*), or one sum of whole numbers, by groups that are whole numbers, text, booleans, "
        "dates or timestamps, all of them selected, without ORDER BY and LIMIT"
    )
    if form is None or len(shape.calls) != 1 or not shape.groups or form.final.orders or form.final.limit is not None:
        raise SummaryError(f"summary {name!r}: {asked}")
    call, final = shape.calls[0], form.final
    groups = [column.number for column in final.columns if column.group]
    names = [column.lower() for column, _ in statement.columns]
    if sorted(groups) != list(range(len(shape.groups))) or final.offset or len(set(names)) < len(names):
        raise SummaryError(f"summary {name!r}: {asked}, each once and under a name of its own")
    if call.condition is not None or call.distinct:
        raise SummaryError(f"summary {name!r}: {call.text} has no bounds; put the condition into WHERE")
    if call.name in ("count", "count_star") and not call.arguments:
        return ROWS
    if call.name == "sum" and statement.shape.finishes[0].type == "HUGEINT":
        return SUM
    raise SummaryError(f"summary {name!r}: {call.text} has no bounds; {asked}")


def _find_name(snapshot: Snapshot, name: str) -> str:
    return next(stream for stream in snapshot.streams() if stream.lower() == name.lower())


def _refuse_views(snapshot: Snapshot, name: str, statement: Statement) -> None:
    """Views whose rows may leave before the time that they were stored with have no lists."""
    read = {reference.name.lower() for reference in statement.references}
    plans = snapshot.store.catalog.read(lambda tables: {plan.name: plan for _, plan in tables.items("plans")})
    for stream in snapshot.streams():
        view = snapshot.view(stream)
        if stream.lower() not in read or not view.entry.definition.inputs:
            continue
        plan: ViewEntry | None = plans.get(view.name)
        if plan is None or plan.recompute or plan.results or view.entry.definition.update_pattern == "strict":
            raise SummaryError(
                f"summary {name!r}: results of view {view.name!r} are taken back, which no list can follow; "
                "ask the view itself, or summarise the streams that it reads"
            )


def _fill(store: Store, view: StreamSnapshot, entry: SummaryEntry) -> _ListsUpdate | None:
    """All lists from the stored rows; None before the first slide. The caller holds the stream's lock."""
    slide = view.state.slide
    if slide is None:
        return None
    with instance.open_cursor(store) as cursor:
        rows = maintenance.offer_stored_rows(store, cursor, view, slide, [entry.counted])
        lists = make_lists(cursor, entry, rows)
    problem = next((each.problem for each in lists.values() if each.problem), "")
    if problem:
        raise SummaryError(f"summary {entry.name!r}: {problem}; leave such rows out with WHERE")
    floor = slide - entry.counted.slots
    packed = {slot: encode_list(each) for slot, each in lists.items() if slot > floor}
    return _ListsUpdate(entry, slide, view.state.ordinal, packed, anew=True)


def renew_summaries(store: Store) -> None:
    """Make lists again that were dropped because rows of their stream have gone."""

    def find_lost(tables: Tables) -> list[SummaryEntry]:
        return [entry for _, entry in tables.items("summaries") if _find_state(tables, entry) is None]

    for lost in store.catalog.read(find_lost):
        with Snapshot(store) as first:
            name = next((n for n in first.streams() if first.view(n).entry.id == lost.stream), None)
        if name is None:
            continue
        with maintenance.stream_lock(store, lost.stream, name), Snapshot(store, [name]) as snapshot:
            try:
                update = _fill(store, snapshot.view(name), lost)
            except SummaryError:
                continue  # the next slide keeps why, and whoever asks reads it
            if update is not None:
                with store.catalog.write() as tables:
                    if tables.get("summaries", catalog_key(lost.stream, lost.number)) is not None:
                        update.commit(tables)


def drop_summary(store: Store, name: str) -> None:
    """Remove a summary and its lists."""
    store.check_writable()
    declared = list_summaries(store)
    dropped = next((summary for summary in declared if summary.name == name), None)
    if dropped is None:
        names = ", ".join(summary.name for summary in declared)
        raise SummaryError(f"there is no summary {name!r}; " + (f"there are {names}" if names else "none was created"))
    entry, _ = store.catalog.read(lambda tables: find_stream(tables, dropped.stream))
    with maintenance.stream_lock(store, entry.id, dropped.stream), store.catalog.write() as tables:
        for summary in read_summaries(tables, entry.id):
            if summary.name == name:
                _forget_lists(tables, summary)
                tables.delete("summaries", catalog_key(summary.stream, summary.number))


def list_summaries(store: Store) -> list[Summary]:
    """All summaries, by name."""

    def read(tables: Tables) -> list[Summary]:
        streams = {entry.id: (name.decode(), entry.definition) for name, entry in tables.items("streams")}
        summaries = []
        for _, entry in tables.items("summaries"):
            name, definition = streams[entry.stream]
            sizes = [len(raw) for _, raw in tables.raw_items("synopses", _list_prefix(entry))]
            state = _find_state(tables, entry)
            counted = "rows" if entry.kind == ROWS else entry.counted.columns[1].build.replace("\n", "")
            summaries.append(
                Summary(
                    name=entry.name,
                    stream=name,
                    sql=entry.sql,
                    counts=counted,
                    frequent=entry.frequent,
                    columns=tuple(column for column, _ in entry.columns),
                    window=times.format_duration(entry.counted.slots * definition.slide),
                    lists=len(sizes),
                    bytes=sum(sizes),
                    slide=None if state is None else state.slide,
                )
            )
        return TableList(sorted(summaries, key=lambda summary: summary.name))

    return store.catalog.read(read)


# -- asked -----------------------------------------------------------------------------------------------------------


def find_bounds(
    store: Store, snapshot: Snapshot, view: StreamSnapshot, entry: SummaryEntry, slots: int
) -> GroupBounds | None:
    """The bounds of a window of so many slots by the lists; None if they are not of the snapshot's slide.

    Raises:
        UnusableListError: why they bound nothing.
    """
    slide, ordinal = view.state.slide, view.state.ordinal
    if slide is None or view.is_past or snapshot.commit is not None or slots > entry.counted.slots:
        return None
    cache: BoundedCache[tuple[object, ...], DecodedList | GroupBounds] = store.shared.attached(
        "summary lists", lambda: BoundedCache(_MOST_CACHED)
    )
    prefix = _list_prefix(entry)
    start = prefix + catalog_key(slide - slots + 1)

    def read(tables: Tables) -> GroupBounds | list[DecodedList] | None:
        state = _find_state(tables, entry)
        if state is None or (state.slide, state.ordinal) != (slide, ordinal) or snapshot.version < state.version:
            return None
        merged = cache.get((entry.number, state.version, ordinal, slots))
        if isinstance(merged, GroupBounds):
            return merged
        lists = []
        for key, raw in tables.raw_items("synopses", prefix, start):
            if decode_last_int(key[:-8]) > slide:
                break
            decoded = cache.get_or_make((key, state.version), lambda packed=raw: DecodedList.of(bytes(packed)))  # type: ignore[misc]
            assert isinstance(decoded, DecodedList)
            lists.append(decoded)
        versions.append(state.version)
        return lists

    versions: list[int] = []
    lists = store.catalog.read(read)
    if lists is None or isinstance(lists, GroupBounds):
        return lists
    bounds = merge_lists(lists, entry, slide)
    cache.put((entry.number, versions[-1], ordinal, slots), bounds)
    return bounds


def compute_bounds(store: Store, view: StreamSnapshot, entry: SummaryEntry, window: WindowSpec) -> GroupBounds:
    """The bounds of a window by its rows: of the states that no lists are of, such as that of a snapshot kept open."""
    from windrow.queries.planner.planner import find_bounds as find_window

    bounds = find_window(view, window)
    selection = view.select(bounds)
    counted = replace(entry.counted, expiring=False)
    needed = {*maintenance.find_columns(view.schema, [counted]), view.model.time}
    narrow = pa.schema([f for f in view.schema if f.name in needed or f.name == view.model.expires])
    store.reader.verify_columns({segment.file for segment in selection.segments}, narrow.names)
    older = find_older_files(view.entry.definition, selection.segments, store.reader)
    rows = window_sql(store.root, view.model, narrow, selection, view.state.torn, older)
    with instance.open_cursor(store) as cursor:
        lists = make_lists(cursor, replace(entry, counted=counted), f"(SELECT *, 0 AS {node_store.SLOT} FROM ({rows}))")
    decoded = [DecodedList.of(encode_list(each)) for each in lists.values()]
    return merge_lists(decoded, replace(entry, counted=counted), 0)


@dataclass(frozen=True)
class SummaryRelation:
    """A summary as a statement names it."""

    entry: SummaryEntry
    stream: str

    def read(self, snapshot: Snapshot, window: WindowSpec) -> pa.Table:
        """The bounds of a window: its groups, ``lower``, ``upper`` and ``certain``, heaviest first.

        Raises:
            QueryError: the window is not made of whole slots, or longer than what is kept.
        """
        entry, view, store = self.entry, snapshot.view(self.stream), snapshot.store
        longest = times.format_duration(entry.counted.slots * view.entry.definition.slide)
        advice = f"summary {entry.name!r} has bounds of windows of whole slots, up to {longest}"
        try:
            slots = window_slots(view, window)
        except CannotSplitError as error:
            raise QueryError(f"{advice}; {str(window) or 'the window'} cannot be asked: {error}") from None
        if slots > entry.counted.slots:
            raise QueryError(f"{advice}; ask for a shorter window, or declare one over a longer window")
        try:
            bounds = find_bounds(store, snapshot, view, entry, slots)
            if bounds is None:
                bounds = compute_bounds(store, view, entry, window)
        except UnusableListError as error:
            raise QueryError(f"summary {entry.name!r} has no bounds for this window: {error}") from None
        return self._make_table(bounds)

    def _make_table(self, bounds: GroupBounds) -> pa.Table:
        arrays: list[pa.Array | pa.ChunkedArray] = []
        for _, group in self.entry.columns:
            kind = _ARROW_TYPES[self.entry.counted.groups[group][2]]
            column = bounds.groups.column(f"g{group}") if bounds.groups.num_rows else pa.array([], kind)
            arrays.append(column.cast(kind))
        certain = bounds.certain(self.entry.frequent)
        names = [*(name for name, _ in self.entry.columns), "lower", "upper", "certain"]
        return pa.table([*arrays, pa.array(bounds.lower), pa.array(bounds.upper), pa.array(certain)], names=names)


_ARROW_TYPES = {
    "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INTEGER": pa.int32(), "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(), "USMALLINT": pa.uint16(), "UINTEGER": pa.uint32(), "VARCHAR": pa.string(),
    "DATE": pa.date32(), "TIMESTAMP": pa.timestamp("us"), "BOOLEAN": pa.bool_(),
}  # fmt: skip
"""Of the group types that summaries take."""


def find_summaries(snapshot: Snapshot, names: Collection[str] | None = None) -> dict[str, SummaryRelation]:
    """The summaries that a snapshot's role sees by their name in lower case; only those among `names`, if given."""
    role = snapshot.role

    def read(tables: Tables) -> dict[str, SummaryRelation]:
        entries = [entry for _, entry in tables.items("summaries") if names is None or entry.name.lower() in names]
        streams = {entry.id: name.decode() for name, entry in tables.items("streams")} if entries else {}
        relations = (SummaryRelation(entry, streams[entry.stream]) for entry in entries)
        return {
            relation.entry.name.lower(): relation
            for relation in relations
            if role.sees(relation.entry.name) and role.sees(relation.stream) and role.newest is role.oldest is None
        }

    return snapshot.store.catalog.read(read)


def find_problems(store: Store) -> Iterator[str]:
    """What is wrong with the summaries of all streams, in words: bounds of whole windows that their rows contradict."""
    with Snapshot(store) as snapshot:
        for relation in find_summaries(snapshot).values():
            entry, view = relation.entry, snapshot.view(relation.stream)
            if view.state.slide is None:
                continue
            try:
                bounds = find_bounds(store, snapshot, view, entry, entry.counted.slots)
            except UnusableListError:
                continue
            if bounds is None:
                continue
            yield from (
                f"stream {relation.stream}: summary {entry.name}: {each}"
                for each in _compare(store, view, entry, bounds)
            )


def _compare(store: Store, view: StreamSnapshot, entry: SummaryEntry, bounds: GroupBounds) -> Iterator[str]:
    groups = [f"g{position}" for position in range(len(entry.counted.groups))]
    same = " AND ".join(f"w.{name} IS NOT DISTINCT FROM b.{name}" for name in groups)
    weight = "c0" if entry.kind == ROWS else "coalesce(c1, 0)"
    with instance.open_cursor(store) as cursor:
        slide = view.state.slide
        assert slide is not None
        rows = maintenance.offer_stored_rows(store, cursor, view, slide, [entry.counted])
        built = node_store.build_sql(entry.counted, rows)
        live = f"slot <= {slide} AND slot > {slide - entry.counted.slots}" + (
            f" AND x > {slide}" * entry.counted.expiring
        )
        by = ", ".join(groups)
        weighed = f"SELECT {by}, sum({weight}) AS n FROM ({built}) WHERE {live} GROUP BY {by}"
        bounds_table = bounds.groups if bounds.groups.num_rows else pa.table({name: pa.nulls(0) for name in groups})
        for name, values in (("lower", bounds.lower), ("upper", bounds.upper)):
            bounds_table = bounds_table.append_column(name, pa.array(values))
        cursor.register("_bounds", bounds_table)
        ((wrong,),) = cursor.execute(
            f"SELECT count(*) FROM ({weighed}) w FULL JOIN _bounds b ON {same} "
            f"WHERE coalesce(w.n, 0) NOT BETWEEN coalesce(b.lower, 0) AND coalesce(b.upper, {bounds.left_out})"
        ).fetchall()
    if wrong:
        yield f"{wrong} groups are not within its bounds"

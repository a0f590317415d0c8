"""Answers from synopses: the nodes of a window are merged and finished, then the final select runs over them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.catalog.records import SynopsisEntry
from windrow.queries.engine.arrow_source import run_streaming as start
from windrow.queries.engine.types import cast_to_marked, mark_schema
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.synopses import kinds, node_store, predicate_cover
from windrow.queries.synopses.kinds import Node
from windrow.queries.synopses.node_cache import CatalogSynopses, NodeCache, node_cache_of
from windrow.queries.synopses.partial_aggregates import SynopsisNeed, finished_sql, merge_expressions
from windrow.queries.synopses.query_shape import SynopsisStatement, analyse_statement
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class SynopsisWindow:
    """A synopsis that meets a need, and its nodes in the window."""

    entry: SynopsisEntry
    sign: int
    nodes: tuple[tuple[Node, int], ...]
    groups: Sequence[int]
    """Where it keeps each group of the need."""
    columns: Sequence[int]
    """The same of its columns."""


@dataclass(frozen=True)
class AnswerPlan:
    """A statement and the synopses that answer it."""

    statement: SynopsisStatement
    view: StreamSnapshot
    sources: tuple[tuple[SynopsisWindow, ...], ...]
    """For each of its needs."""

    @property
    def kinds(self) -> str:
        """The kinds of its synopses, in a word."""
        return "+".join(dict.fromkeys(source.entry.kind for sources in self.sources for source in sources))


def plan_answer(store: Store, snapshot: Snapshot, sql: str, synopses: dict[str, CatalogSynopses]) -> AnswerPlan:
    """Which synopses answer a statement as of the snapshot; the catalog is read once for each stream.

    Raises:
        CannotSplitError: why none do.
    """
    statement = analyse_statement(store, snapshot, sql)
    view = _find_view(snapshot, statement)
    name = view.name
    if name not in synopses:
        synopses[name] = node_cache_of(store).read_catalog(store, view)
    sources = tuple(_find_sources(synopses[name], view, statement, need) for need in statement.shape.needs)
    return AnswerPlan(statement, view, sources)


def _find_view(snapshot: Snapshot, statement: SynopsisStatement) -> StreamSnapshot:
    """The stream that a statement reads, or the view of its join."""
    names = [*snapshot.streams(), *snapshot.hidden()]
    view = snapshot.view(next(name for name in names if name.lower() == statement.stream.name.lower()))
    if view.state.slide is None:
        raise CannotSplitError("the stream has no clock yet")
    joined = () if statement.join is None else statement.join.streams
    inputs = [snapshot.view(stream.definition.name) for stream in joined]
    if any(each.now != view.now or each.is_past for each in inputs):
        raise CannotSplitError("the streams that it joins stand at different times")
    return view


def _find_sources(
    synopses: CatalogSynopses, view: StreamSnapshot, statement: SynopsisStatement, need: SynopsisNeed
) -> tuple[SynopsisWindow, ...]:
    why = "no synopsis keeps what it needs"
    for entry in synopses.by_identity.get(need.identity, ()):
        if (positions := node_store.find_positions(entry, need)) is not None:
            why = "the synopsis does not reach back far enough, or is of a later slide than the snapshot"
            if (source := _make_source(synopses, statement, entry, 1, positions)) is not None:
                return (source,)
    candidates = synopses.by_groups.get(need.identity[1], ()) if need.terms else ()
    found = [(entry, node_store.find_positions(entry, need)) for entry in candidates]
    fitting = [(entry, positions) for entry, positions in found if positions is not None]
    parts = predicate_cover.find_cover(
        need.terms or (),
        {number: entry.terms or () for number, (entry, _) in enumerate(fitting)},
        [column.merge for column in need.columns],
        subtractable=all(column.subtractable for column in need.columns),
        read=predicate_cover.literal_reader(view.schema),
    )
    sources = [
        _make_source(synopses, statement, entry, sign, positions)
        for (entry, positions), sign in ((fitting[number], sign) for number, sign in parts or ())
    ]
    if not sources or None in sources:
        raise CannotSplitError(why)
    return tuple(source for source in sources if source is not None)


def _make_source(
    synopses: CatalogSynopses,
    statement: SynopsisStatement,
    entry: SynopsisEntry,
    sign: int,
    positions: tuple[Sequence[int], Sequence[int]],
) -> SynopsisWindow | None:
    """A synopsis at the window of a question, if it reaches back so far and still is of the snapshot's slide."""
    nodes = synopses.window(entry, statement.slots)
    return None if nodes is None else SynopsisWindow(entry, sign, nodes, *positions)


def answer_plan(cache: NodeCache, cursor: Any, plan: AnswerPlan) -> pa.Table:
    """The answer of a plan whose nodes are in memory."""
    return finish_statement(cursor, plan, [_merged_sql(cache, plan, number) for number in range(len(plan.sources))])


def load_nodes(
    store: Store, cache: NodeCache, plans: Sequence[AnswerPlan], synopses: Mapping[str, CatalogSynopses]
) -> None:
    """Bring everything that plans need into memory."""
    wanted: dict[tuple[str, int], tuple[SynopsisEntry, set[Node]]] = {}
    for plan in plans:
        for source in (source for sources in plan.sources for source in sources):
            _, nodes = wanted.setdefault((plan.view.name, source.entry.number), (source.entry, set()))
            nodes.update(node for node, _ in source.nodes)
    for (stream, number), (entry, nodes) in wanted.items():
        if cache.load(store, entry, synopses[stream].changed[number], nodes) is None:
            raise CannotSplitError("a slide came meanwhile")


def finish_statement(cursor: Any, plan: AnswerPlan, merged: Sequence[str], *, ranked: bool = False) -> pa.Table:
    """Run the rest of the statement over merged relations."""
    whole = plan.statement.shape.decomposed
    done = finished_sql(plan.statement.shape, [f"({text})" for text in merged], ranked)
    reader, _ = start(cursor, f"WITH {whole.done} AS ({done}) {whole.final}", None, _BATCH_ROWS)
    rows = reader.read_all()
    schema = mark_schema(rows.schema, [kind for _, kind in plan.statement.columns])
    fields = [f.with_name(name) for f, (name, _) in zip(schema, plan.statement.columns, strict=True)]
    return pa.Table.from_arrays(cast_to_marked(rows.columns, schema), schema=pa.schema(fields))


def _merged_sql(cache: NodeCache, plan: AnswerPlan, number: int) -> str:
    """The merged groups and columns of one need, in its own order."""
    need, sources = plan.statement.shape.needs[number], plan.sources[number]
    slide = plan.view.state.slide
    slots = plan.statement.slots
    parts = [part for source in sources if (part := _source_sql(cache, need, source, slide, slots)) is not None]
    groups = [f"g{position}" for position in range(len(need.groups))]
    names = {column.key: f"c{position}" for position, column in enumerate(need.columns)}
    signed = any(sign * source.sign < 0 for source in sources for _, sign in source.nodes)
    columns = [
        f"{text} AS c{position}"
        for position, text in enumerate(merge_expressions(need.columns, names, " * s" if signed else ""))
    ]
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    having = " HAVING sum(n * s) > 0" if signed and groups else ""
    return f"SELECT {', '.join([*groups, *columns])} FROM ({' UNION ALL '.join(parts)}){grouped}{having}"


def _source_sql(
    cache: NodeCache, need: SynopsisNeed, source: SynopsisWindow, slide: int | None, slots: int
) -> str | None:
    """What one synopsis gives to a need."""
    entry = source.entry
    if slide is not None and entry.span:  # of shorter windows, results end so much sooner
        slide += entry.span - slots
    table = cache.loaded[entry.stream, entry.number]
    columns = [f"g{kept} AS g{position}" for position, kept in enumerate(source.groups)]
    columns += [f"c{kept} AS c{position}" for position, kept in enumerate(source.columns)]
    columns += ["c0 AS n", f"{_sign_sql(source)} AS s"]
    if not table.changed:
        return _empty_sql(entry, need, source.groups)
    expired = f" AND x > {slide}" if entry.expiring else ""
    return f"SELECT {', '.join(columns)} FROM {table.table} WHERE ({_nodes_sql(source)}){expired}"


def _sign_sql(source: SynopsisWindow) -> str:
    minus = [node.left for node, sign in source.nodes if sign < 0]
    if not minus:
        return str(source.sign)
    return f"CASE WHEN p = {minus[0]} THEN {-source.sign} ELSE {source.sign} END"


def _nodes_sql(source: SynopsisWindow) -> str:
    """The rows of a window's nodes."""
    nodes = [node for node, _ in source.nodes]
    if source.entry.kind == kinds.BASIC:
        return f"p >= {nodes[-1].left} AND p <= {nodes[0].left} AND l = 0"
    levels: dict[int, list[int]] = {}
    for node in nodes:
        levels.setdefault(node.level, []).append(node.left)
    return " OR ".join(f"(l = {level} AND p IN ({', '.join(map(str, lefts))}))" for level, lefts in levels.items())


def _empty_sql(entry: SynopsisEntry, need: SynopsisNeed, group_positions: Sequence[int]) -> str | None:
    """A synopsis without any row has no table yet."""
    columns_by_key = {column.key: column for column in entry.columns}
    columns = [
        f"CAST(NULL AS {entry.groups[group_position][2]}) AS g{position}"
        for position, group_position in enumerate(group_positions)
    ]
    for position, column in enumerate(need.columns):
        if columns_by_key[column.key].state is not None:
            raise CannotSplitError("nothing is kept yet")
        columns.append(f"CAST(NULL AS {columns_by_key[column.key].type}) AS c{position}")
    return f"SELECT {', '.join([*columns, '0 AS n', '1 AS s'])} WHERE false"

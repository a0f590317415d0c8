"""The three ways in which DuckDB reads a window: rows by key, rows kept in memory, and files.

Rows by key come through the directories and are handed over as Arrow; the others are SQL over the row cache's tables
and over Parquet files, in one view if some segments are in memory and some are not.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.indexes.bounded_cache import cached_in_findings
from windrow.indexes.probe import SORTED_BY_KEY, read_candidates, read_matching
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection
from windrow.queries.engine.cursor_pool import PooledCursor
from windrow.queries.planner.row_cache import MAX_SHOWN, CachedRows, row_cache
from windrow.queries.planner.scan_sql import find_older_files, ordered_sql, window_sql
from windrow.queries.sql.window_spec import OrderedWindow
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

if TYPE_CHECKING:
    from windrow.queries.planner.planner import RelationPlan

_NEAR_ROWS = 2_000
"""Up to so many rows are read with all their columns before their keys are compared (`bench sql`: aggregate by key)."""


@dataclass(frozen=True)
class WindowRead:
    """A window as SQL, and what of it should be kept in memory for the next statement."""

    path: str
    why: str
    sql: str
    wanted: Callable[[], None] | None = None
    """Asks for what was read from files to be kept in memory."""

    def keep(self) -> None:
        """After the answer: have the next one read from memory."""
        if self.wanted is not None:
            self.wanted()


def plan_window(
    snapshot: Snapshot,
    pooled: PooledCursor,
    view: StreamSnapshot,
    selection: Selection,
    names: tuple[str, ...],
    torn: Collection[str] = (),
    *,
    window: OrderedWindow | None = None,
    numbered: bool = False,
) -> WindowRead:
    """How the rows of a selection are read: from memory as far as they are there, the others from files.

    Args:
        snapshot: Of which the selection is.
        pooled: Where it will be read; it holds what is in memory until the statement is over.
        view: Of the stream.
        selection: Segments and bounds.
        names: Columns that may be needed.
        torn: Files of which only the segments' own rows may be read, beside those that are known as such.
        window: Only the rows of this window, which goes by their order.
        numbered: With the hidden sequence.
    """
    store, torn = snapshot.store, {*view.state.torn, *torn}
    if not selection.segments or window is not None or numbered:
        files = _files_sql(store, view, selection, view.schema, names, torn, window=window, numbered=numbered)
        path = "scan" if selection.segments else "empty"
        return WindowRead(path, "rows in order" if selection.segments else "no segment can hold such rows", files)
    fields = needed_fields(view, names)
    # Rows that have expired since are not in memory, and neither is the sequence that an earlier slide is found by.
    is_earlier = view.since is not None or view.before is not None
    cache = None if pooled.engine is None or is_earlier else row_cache(store, pooled.engine)
    cached = None if cache is None else cache.read(view, fields, selection)
    if cached is None:
        schema = view.schema if len(view.schema) <= MAX_SHOWN else pa.schema(fields)
        sql = _files_sql(store, view, selection, schema, names, torn)
        wanted = (
            None
            if cache is None
            else partial(cache.want, store, view.at_last_slide or view, fields, selection.segments)
        )
        return WindowRead("scan", "not in memory", sql, wanted)
    pooled.hold(cached.release)
    return _join_files(store, view, cached, fields, torn)


def is_in_memory(
    store: Store, pooled: PooledCursor, view: StreamSnapshot, selection: Selection, names: tuple[str, ...]
) -> bool:
    """Whether all rows of a selection are in memory, with the columns that may be needed."""
    cache = None if pooled.engine is None else row_cache(store, pooled.engine)
    return cache is not None and cache.holds(view, needed_fields(view, names), selection)


@cached_in_findings
def needed_fields(view: StreamSnapshot, names: tuple[str, ...]) -> tuple[pa.Field, ...]:
    """The columns of a stream that are kept in memory where `names` may be needed."""
    needed = {*names, view.model.time, view.model.expires}
    return tuple(field for field in view.schema if field.name in needed)


def _join_files(
    store: Store, view: StreamSnapshot, cached: CachedRows, fields: tuple[pa.Field, ...], torn: Collection[str]
) -> WindowRead:
    """What is in memory, and the rest from files."""
    rest = cached.missing
    if not rest.segments:
        return WindowRead("memory", "all in memory", cached.sql)
    schema = pa.schema(fields)
    files = _files_sql(store, view, rest, schema, schema.names, {*torn, *find_partial_files(rest.segments)})
    why = f"{len(rest.segments)} segments are not in memory"
    wanted = partial(cached.cache.want, store, view.at_last_slide or view, fields, rest.segments)
    return WindowRead("scan", why, f"{cached.sql} UNION ALL {files}", wanted)


def _files_sql(
    store: Store,
    view: StreamSnapshot,
    selection: Selection,
    schema: pa.Schema,
    names: Collection[str],
    torn: Collection[str],
    *,
    window: OrderedWindow | None = None,
    numbered: bool = False,
) -> str:
    """A window out of files, after what will be read of them was compared with its checksums, which DuckDB does not."""
    model, columns, ordered = view.model, set(names), window is not None or numbered
    # Rows of a file that are in none of the segments are dead, and filtered by their times (see `scan_sql`).
    if ordered or selection.edge or find_partial_files(selection.segments):
        columns |= set(selection.bounds.deciding(model))
    if ordered:
        columns |= {SEQ, *(() if window is None else window.keys)}
    store.reader.verify_columns({segment.file for segment in selection.segments}, columns)
    older_files = find_older_files(view.entry.definition, selection.segments, store.reader)
    if not ordered:
        return window_sql(store.root, model, schema, selection, torn, older_files)
    return ordered_sql(store.root, model, schema, selection, torn, window=window, numbered=numbered, older=older_files)


def find_partial_files(segments: Iterable[Segment]) -> set[str]:
    """Files of which only some rows are selected: the others are read elsewhere, or not at all."""
    rows, stored = Counter[str](), dict[str, int]()
    for segment in segments:
        rows[segment.file] += segment.rows
        stored[segment.file] = segment.file_rows
    return {file for file, count in rows.items() if count != stored[file]}


def offer_relation(plan: "RelationPlan", snapshot: Snapshot, pooled: PooledCursor) -> None:
    """Make what a plan says readable under its relation's name."""
    if plan.read is not None:
        pooled.create_view(plan.reference.relation, plan.read.sql)
        return
    view, located, selection = plan.view, plan.located, plan.selection
    assert located is not None
    reader, model, full = snapshot.store.reader, view.model, view.stored_schema

    def read(schema: pa.Schema) -> Iterable[pa.RecordBatch]:
        # DuckDB looks at the keys of the few rows that lie beside those that count; of many, keys are read first.
        if view.sorted_by is SORTED_BY_KEY and (located.rows <= _NEAR_ROWS or located.exact.all()):
            rows = read_candidates(located.spans(), selection, model, full, schema, reader)
        else:
            rows = read_matching(located.ranges(), selection, plan.predicate.keys or (), model, full, schema, reader)
        batches: list[pa.RecordBatch] = rows.to_batches()
        return batches

    pooled.offer_source(plan.reference.relation, view.schema, read, located.rows)

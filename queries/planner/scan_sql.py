"""A window as SQL over segment files: wholly live files are read as they are, edges filtered, torn files by row range.

Expired rows that still lie in a file never pass: where a segment may hold some, its rows are filtered one by one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from windrow.catalog.records import TableEntry
from windrow.definitions import StreamDefinition
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.manifest import Manifest
from windrow.indexes.row_model import SEQ, Int64s, RowModel
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds
from windrow.queries.engine.types import duckdb_type, quote_name, quote_text, stored_column_sql
from windrow.queries.sql.window_spec import CountWindow, OrderedWindow
from windrow.snapshot import StreamSnapshot


@dataclass(frozen=True)
class OlderColumns:
    """In what a file's columns differ from those of the stream, because they changed after it was written."""

    absent: frozenset[str] = frozenset()
    """Columns that were added later: null in its rows."""
    narrower: frozenset[tuple[str, str]] = frozenset()
    """Columns that have a wider type now, with the type that they have in the file."""


_AS_NOW = OlderColumns()


@dataclass(frozen=True)
class _FileScan:
    """The segments of one file that a window needs."""

    path: str
    segments: tuple[Segment, ...]
    edge: bool
    """Whether rows must be filtered; also where some rows are in no segment because they died."""
    torn: bool
    """Whether live rows of the file are in no segment, so that only the ranges of its segments may be read."""
    older: OlderColumns
    """In what its columns are not yet those of the stream."""
    ended: tuple[Segment, ...] = ()
    """Those of which overrides have ended rows."""


_PAUSED = "_windrow_paused"
"""Of a row after which none came for as long as ends a session; no column of a stream begins like that."""
_MOST_LISTED = 64
"""Row numbers that are listed one by one in a statement."""
OlderFiles = Mapping[str, OlderColumns]
"""The files whose columns are not yet those of the stream."""


def find_older_files(
    definition: StreamDefinition, segments: Iterable[Segment], reader: SegmentFileReader
) -> OlderFiles:
    """The files of segments that were written before a column was added to the stream, or widened."""
    added, schema = frozenset(definition.added), definition.schema
    widened = {name: schema.field(name) for name in definition.widened.names}
    if not added and not widened:
        return {}
    older = {}
    for file in {segment.file for segment in segments}:
        types = reader.types(file)
        narrower = ((name, types[name]) for name, field in widened.items() if types.get(name, field.type) != field.type)
        columns = OlderColumns(added.difference(types), frozenset((name, str(kind)) for name, kind in narrower))
        if columns != _AS_NOW:
            older[file] = columns
    return older


def window_sql(
    root: Path,
    model: RowModel,
    schema: pa.Schema,
    selection: Selection,
    torn: Collection[str] = (),
    older: OlderFiles | None = None,
) -> str:
    """A SELECT that gives the rows of a window, with the stream's columns."""
    files = _files(root, selection, torn, older or {})
    bounds = selection.bounds
    parts = list(_parts(files, _columns(schema), _condition(model, schema, bounds), bounds.now))
    return " UNION ALL ".join(parts) if parts else empty_sql(schema)


def ordered_sql(
    root: Path,
    model: RowModel,
    schema: pa.Schema,
    selection: Selection,
    torn: Collection[str] = (),
    *,
    window: OrderedWindow | None = None,
    numbered: bool = False,
    older: OlderFiles | None = None,
) -> str:
    """A SELECT that knows the order of (time, arrival).

    Args:
        root: Of the warehouse.
        model: Of the stream.
        schema: Its columns.
        selection: What to read.
        torn: Files of which only the segments' own rows may be read.
        window: Only the rows of this window; its keys are columns of the schema.
        numbered: Give the order as a further column.
        older: What `find_older_files` found.
    """
    by_base: dict[int, list[Segment]] = {}
    few = isinstance(window, CountWindow) and not window.keys and _newest_first(selection, window.count)
    for segment in few or selection.segments:
        by_base.setdefault(segment.seq_base, []).append(segment)
    inner: list[str] = []
    for base, segments in by_base.items():
        part = Selection(
            selection.bounds,
            tuple(s for s in segments if selection.bounds.holds(s)),
            tuple(s for s in segments if not selection.bounds.holds(s)),
        )
        columns = _columns(schema, _sequence(schema.field(model.time), base))
        files, condition = _files(root, part, torn, older or {}), _condition(model, schema, selection.bounds)
        inner += _parts(files, columns, condition, selection.bounds.now)
    if not inner:
        return empty_sql(schema, *([f"CAST(NULL AS HUGEINT) AS {quote_name(SEQ)}"] if numbered else ()))
    names, rows = (*schema.names, *([SEQ] if numbered else ())), " UNION ALL ".join(inner)
    if window is not None:
        return ordered_window_sql(rows, names, schema.field(model.time), window)
    return f"SELECT {', '.join(map(quote_name, names))} FROM ({rows})"


def ordered_window_sql(rows: str, names: Sequence[str], time: pa.Field, window: OrderedWindow) -> str:
    """A SELECT that gives the rows of a window that goes by their order.

    Args:
        rows: A SELECT of all rows, with their arrival.
        names: The columns that are wanted.
        time: The column that rows are ordered by first.
        window: Its keys are among the columns.
    """
    columns, time_column = ", ".join(map(quote_name, names)), quote_name(time.name)
    order = f"ORDER BY {time_column} DESC, {quote_name(SEQ)} DESC"
    if isinstance(window, CountWindow) and not window.keys:
        return f"SELECT {columns} FROM ({rows}) {order} LIMIT {window.count}"
    over = (f"PARTITION BY {', '.join(map(quote_name, window.keys))} " if window.keys else "") + order
    if isinstance(window, CountWindow):
        return f"SELECT {columns} FROM ({rows}) QUALIFY row_number() OVER ({over}) <= {window.count}"
    epoch, pause = ("epoch_ns", window.pause * 1000) if time.type.unit == "ns" else ("epoch_us", window.pause)
    # A pause belongs to the row before it; the newest session is what comes after the last row that has one.
    paused = (
        f"coalesce(lag({epoch}({time_column})) OVER ({over}) - {epoch}({time_column}) >= {pause}, false) AS {_PAUSED}"
    )
    broken = f"bool_or({_PAUSED}) OVER ({over} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    return f"SELECT {columns} FROM (SELECT *, {paused} FROM ({rows})) QUALIFY NOT {broken}"


def _sequence(time: pa.Field, base: int) -> str:
    """Time in the high bits, arrival in the low ones: one number that orders rows."""
    epoch = "epoch_ns" if time.type.unit == "ns" else "epoch_us"
    seq = quote_name(SEQ)
    return f"CAST({epoch}({quote_name(time.name)}) AS HUGEINT) * {1 << 63} + {seq} + {base} AS {seq}"


def table_sql(root: Path, entry: TableEntry, reader: SegmentFileReader) -> str:
    """A SELECT that gives the rows of a table, whose file is compared with its checksums first."""
    schema = read_table_schema(entry)
    reader.verify_columns([entry.file], schema.names)
    columns = ", ".join(stored_column_sql(field) for field in schema)
    return f"SELECT {columns} FROM read_parquet({quote_text(str(root / entry.file))})"


def read_table_schema(entry: TableEntry) -> pa.Schema:
    """Columns of a table."""
    return pa.ipc.read_schema(pa.py_buffer(entry.schema_bytes))


def empty_sql(schema: pa.Schema, *more: str) -> str:
    """A SELECT with the stream's columns, and more, and no rows."""
    return f"SELECT {', '.join([*map(_null, schema), *more])} WHERE false"


@dataclass(frozen=True)
class SegmentPart:
    """Rows of a segment, and the number that stands for it."""

    segment: Segment
    start: int
    stop: int
    number: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.stop - self.start


def parts_sql(
    root: Path, schema: pa.Schema, parts: Sequence[SegmentPart], numbered_as: str, older: OlderFiles, where: str
) -> str:
    """A SELECT that gives the rows of parts of segments for which a condition holds, with their segments' numbers."""
    by_file: dict[str, list[SegmentPart]] = {}
    for part in parts:
        by_file.setdefault(part.segment.file, []).append(part)
    selects = []
    for file, parts_in_file in by_file.items():
        ranges = " OR ".join(f"file_row_number BETWEEN {part.start} AND {part.stop - 1}" for part in parts_in_file)
        cases = " ".join(f"WHEN file_row_number < {part.stop} THEN {part.number}" for part in _in_order(parts_in_file))
        columns = _columns(schema, f"CAST(CASE {cases} END AS INTEGER) AS {numbered_as}")(older.get(file, _AS_NOW))
        source = f"read_parquet({quote_text(str(root / file))}, file_row_number = true)"
        selects.append(f"SELECT {columns} FROM {source} WHERE ({ranges}) AND {where}")
    return " UNION ALL ".join(selects)


def _in_order(parts: Iterable[SegmentPart]) -> list[SegmentPart]:
    return sorted(parts, key=lambda part: part.start)


def _columns(schema: pa.Schema, *more: str) -> Callable[[OlderColumns], str]:
    """The columns of a SELECT over files that may be older than some."""

    def columns(older: OlderColumns) -> str:
        narrower = {name for name, _ in older.narrower}
        return ", ".join([*(_column_sql(field, older.absent, narrower) for field in schema), *more])

    return columns


def _column_sql(field: pa.Field, absent: Collection[str], narrower: Collection[str]) -> str:
    if field.name in absent:
        return _null(field)
    if field.name in narrower:
        return f"CAST({quote_name(field.name)} AS {duckdb_type(field.type)}) AS {quote_name(field.name)}"
    return stored_column_sql(field)


def _null(field: pa.Field) -> str:
    return f"CAST(NULL AS {duckdb_type(field.type)}) AS {quote_name(field.name)}"


def _files(root: Path, selection: Selection, torn: Collection[str], older: OlderFiles) -> list[_FileScan]:
    whole = {segment.id for segment in selection.whole}
    by_file: dict[str, list[Segment]] = {}
    for segment in selection.segments:
        by_file.setdefault(segment.file, []).append(segment)
    files = []
    for file, segments in by_file.items():
        covered = sum(segment.rows for segment in segments) == segments[0].file_rows
        wholly = all(segment.id in whole for segment in segments) and (covered or file in torn)
        columns = older.get(file, _AS_NOW)
        ended = () if wholly else Manifest(segments).ended
        files.append(_FileScan(str(root / file), tuple(segments), not wholly, file in torn, columns, ended))
    return files


def _parts(
    files: Sequence[_FileScan], columns: Callable[[OlderColumns], str], condition: str, now: int
) -> Iterable[str]:
    together: dict[tuple[bool, OlderColumns], list[str]] = {}
    for file in files:
        if not (file.torn or file.ended):
            together.setdefault((file.edge, file.older), []).append(file.path)
    for (edge, older), paths in together.items():
        where = f" WHERE {condition}" if edge else ""
        yield f"SELECT {columns(older)} FROM read_parquet([{', '.join(map(quote_text, paths))}]){where}"
    for file in files:
        if file.torn or file.ended:
            ranges = " OR ".join(f"file_row_number BETWEEN {s.start} AND {s.stop - 1}" for s in file.segments)
            terms = [f"({ranges})"] if file.torn else []
            terms += [condition] if file.edge else []
            terms += [term for s in file.ended for term in _exclude_rows(find_ended_rows(s, now))]
            where = " AND ".join(terms)
            source = f"read_parquet({quote_text(file.path)}, file_row_number = true)"
            yield f"SELECT {columns(file.older)} FROM {source} WHERE {where}"


def _exclude_rows(rows: Int64s) -> list[str]:
    """The condition that a row of a file is none of some, which are ascending; none if there are none."""
    if len(rows) <= _MOST_LISTED:
        return [f"file_row_number NOT IN ({', '.join(map(str, rows.tolist()))})"] if len(rows) else []
    # A long list takes DuckDB longer to parse than the rows take to read; this is one constant.
    first, last = int(rows[0]), int(rows[-1])
    bits = np.full(last - first + 1, ord("0"), np.uint8)
    bits[rows - first] = ord("1")
    ended = f"get_bit('{bits.tobytes().decode()}'::BIT, (file_row_number - {first})::INTEGER) = 1"
    return [f"NOT CASE WHEN file_row_number BETWEEN {first} AND {last} THEN {ended} ELSE false END"]


def edge_condition(view: StreamSnapshot, selection: Selection) -> str:
    """What rows at the edge of a window must fulfil, without what is known of all their segments."""
    ended = all(segment.max_ts <= selection.bounds.upto for segment in selection.edge)
    return _condition(view.entry.definition.model, view.schema, selection.bounds, ended=ended)


def life_condition(view: StreamSnapshot) -> str:
    """What rows fulfil that live at the view's clock."""
    model, now = view.entry.definition.model, view.now
    if now is None or (model.expires is None and model.find_expiry_cutoff(now) is None):
        return "true"
    return _condition(model, view.entry.definition.schema, WindowBounds(None, now, now), ended=True)


def _condition(model: RowModel, schema: pa.Schema, bounds: WindowBounds, *, ended: bool = False) -> str:
    """``after < ts <= upto and exp > now`` in SQL; a fixed lifetime's expiry is a bound on the time column.

    With `ended`, all rows are known to be at or before `upto`.
    """
    kind, name = schema.field(model.time).type, quote_name(model.time)
    after = bounds.after
    if (oldest := model.find_expiry_cutoff(bounds.now)) is not None:
        after = oldest if after is None else max(after, oldest)
    terms = (
        [] if ended and (after is not None or model.expires) else [f"{name} <= {timestamp_literal(bounds.upto, kind)}"]
    )
    if after is not None:
        terms.append(f"{name} > {timestamp_literal(after, kind)}")
    if model.expires is not None:
        terms.append(f"{quote_name(model.expires)} > {timestamp_literal(bounds.now, schema.field(model.expires).type)}")
    if bounds.before is not None:
        terms.append(f"{quote_name(SEQ)} < {bounds.before}")
    return "(" + " AND ".join(terms) + ")"


def timestamp_literal(micros: int, kind: pa.TimestampType) -> str:
    """An instant as an SQL constant of a column's type; DuckDB compares times in nanoseconds only with their like."""
    if kind.unit == "ns":
        return f"CAST(make_timestamp_ns({micros * 1000}) AS {duckdb_type(kind)})"
    plain = f"make_timestamp({micros})"
    return plain if kind.tz is None else f"{plain} AT TIME ZONE 'UTC'"


def _newest_first(selection: Selection, count: int) -> list[Segment]:
    """The segments that can hold one of the `count` newest rows."""
    candidates: list[Segment] = []
    certain, floor = 0, 0
    for segment in sorted(selection.segments, key=lambda s: -s.max_ts):
        if certain >= count and segment.max_ts < floor:
            break  # the rows found so far are enough, and all newer than any row from here on
        candidates.append(segment)
        if selection.bounds.holds(segment):
            floor = segment.min_ts if not certain else min(floor, segment.min_ts)
            certain += segment.rows
    return candidates

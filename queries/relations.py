"""A window as SQL over segment files: wholly live files are read as they are, edges filtered, torn files by row range.

Expired rows that still lie in a file never pass: where a segment may hold some, its rows are filtered one by one.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from windrow.indexes.model import SEQ, RowModel
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Bounds, Selection
from windrow.queries.types import duckdb_type, quoted, stored, text
from windrow.records import TableEntry
from windrow.snapshot import StreamView


@dataclass(frozen=True)
class _File:
    """The segments of one file that a window needs."""

    path: str
    segments: tuple[Segment, ...]
    edge: bool
    """Whether rows must be filtered; also where some rows are in no segment because they died."""
    torn: bool
    """Whether live rows of the file are in no segment, so that only the ranges of its segments may be read."""


def window_sql(root: Path, model: RowModel, schema: pa.Schema, selection: Selection, torn: Collection[str] = ()) -> str:
    """A SELECT that gives the rows of a window, with the stream's columns."""
    columns = ", ".join(stored(field) for field in schema)
    parts = list(_parts(_files(root, selection, torn), columns, _condition(model, schema, selection.bounds)))
    return " UNION ALL ".join(parts) if parts else empty_sql(schema)


def newest_sql(
    root: Path, model: RowModel, schema: pa.Schema, selection: Selection, count: int, torn: Collection[str] = ()
) -> str:
    """A SELECT that gives the `count` newest rows of a selection by (time, arrival)."""
    names = ", ".join(quoted(name) for name in schema.names)
    inner: list[str] = []
    for base, segments in _newest_first(selection, count).items():
        kept = Selection(
            selection.bounds,
            tuple(s for s in segments if selection.bounds.holds(s)),
            tuple(s for s in segments if not selection.bounds.holds(s)),
        )
        columns = ", ".join([*(stored(field) for field in schema), f"{quoted(SEQ)} + {base} AS {quoted(SEQ)}"])
        inner += _parts(_files(root, kept, torn), columns, _condition(model, schema, selection.bounds))
    if not inner:
        return empty_sql(schema)
    order = f"{quoted(model.time)} DESC, {quoted(SEQ)} DESC"
    return f"SELECT {names} FROM ({' UNION ALL '.join(inner)}) ORDER BY {order} LIMIT {count}"


def table_sql(root: Path, entry: TableEntry) -> str:
    """A SELECT that gives the rows of a table."""
    schema = pa.ipc.read_schema(pa.py_buffer(entry.schema_bytes))
    columns = ", ".join(stored(field) for field in schema)
    return f"SELECT {columns} FROM read_parquet({text(str(root / entry.file))})"


def empty_sql(schema: pa.Schema) -> str:
    """A SELECT with the stream's columns and no rows."""
    columns = ", ".join(f"CAST(NULL AS {duckdb_type(field.type)}) AS {quoted(field.name)}" for field in schema)
    return f"SELECT {columns} WHERE false"


def _files(root: Path, selection: Selection, torn: Collection[str]) -> list[_File]:
    whole = {segment.id for segment in selection.whole}
    by_file: dict[str, list[Segment]] = {}
    for segment in selection.segments:
        by_file.setdefault(segment.file, []).append(segment)
    files = []
    for file, own in by_file.items():
        covered = sum(segment.rows for segment in own) == own[0].file_rows
        wholly = all(segment.id in whole for segment in own) and (covered or file in torn)
        files.append(_File(str(root / file), tuple(own), edge=not wholly, torn=file in torn))
    return files


def _parts(files: Sequence[_File], columns: str, condition: str) -> Iterable[str]:
    for edge in (False, True):
        paths = [file.path for file in files if file.edge == edge and not file.torn]
        if paths:
            where = f" WHERE {condition}" if edge else ""
            yield f"SELECT {columns} FROM read_parquet([{', '.join(map(text, paths))}]){where}"
    for file in files:
        if file.torn:
            ranges = " OR ".join(f"file_row_number BETWEEN {s.start} AND {s.stop - 1}" for s in file.segments)
            where = f"({ranges})" + (f" AND {condition}" if file.edge else "")
            yield f"SELECT {columns} FROM read_parquet({text(file.path)}, file_row_number = true) WHERE {where}"


def edge_condition(view: StreamView, bounds: Bounds) -> str:
    """What rows at the edge of a window must fulfil."""
    return _condition(view.entry.definition.model, view.schema, bounds)


def _condition(model: RowModel, schema: pa.Schema, bounds: Bounds) -> str:
    """``after < ts <= upto and exp > now`` in SQL; a fixed lifetime's expiry is a bound on the time column."""
    kind, name = schema.field(model.time).type, quoted(model.time)
    after = bounds.after
    if model.expires is None and model.lifetime is not None:
        oldest = bounds.now - model.lifetime
        after = oldest if after is None else max(after, oldest)
    terms = [f"{name} <= {stamp(bounds.upto, kind)}"]
    if after is not None:
        terms.append(f"{name} > {stamp(after, kind)}")
    if model.expires is not None:
        terms.append(f"{quoted(model.expires)} > {stamp(bounds.now, schema.field(model.expires).type)}")
    return "(" + " AND ".join(terms) + ")"


def stamp(micros: int, kind: pa.TimestampType) -> str:
    """An instant as an SQL constant of a column's type; DuckDB compares times in nanoseconds only with their like."""
    if kind.unit == "ns":
        return f"CAST(make_timestamp_ns({micros * 1000}) AS {duckdb_type(kind)})"
    plain = f"make_timestamp({micros})"
    return plain if kind.tz is None else f"{plain} AT TIME ZONE 'UTC'"


def _newest_first(selection: Selection, count: int) -> dict[int, list[Segment]]:
    """The segments that can hold one of the `count` newest rows, by the base of their sequence."""
    found: dict[int, list[Segment]] = {}
    certain, floor = 0, 0
    for segment in sorted(selection.segments, key=lambda s: -s.max_ts):
        if certain >= count and segment.max_ts < floor:
            break  # the rows found so far are enough, and all newer than any row from here on
        found.setdefault(segment.seq_base, []).append(segment)
        if selection.bounds.holds(segment):
            floor = segment.min_ts if not certain else min(floor, segment.min_ts)
            certain += segment.rows
    return found

"""A window as a DataFrame: Spark itself reads the pruned segments, with filters only on files that need them.

The files are pinned from when the manifest is read until `release`, or until the Spark session ends.
"""

import datetime as dt
import json
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import TimestampType

from windrow import times
from windrow.errors import ClosedError
from windrow.indexes.end_overrides import find_ended_rows
from windrow.indexes.probe import find_row_ranges
from windrow.indexes.row_model import SEQ
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds
from windrow.ingest.data_source import find_key_ranges
from windrow.ingest.errors import SPARK_ERRORS
from windrow.ingest.expressions import to_micros
from windrow.ingest.file_relation import FileRelations, find_class, find_object
from windrow.ingest.logical_plans import split_condition
from windrow.ingest.schemas import build_read_schema
from windrow.ingest.session import WarehouseOrPath, escape_pattern, go_back, open_warehouse
from windrow.ingest.sort_key import quote_name
from windrow.ingest.stored_files import FileLocations
from windrow.snapshot import Snapshot, StreamSnapshot, select_columns
from windrow.store import Store
from windrow.warehouse import Warehouse
from windrow.windows import METADATA_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.column import Column

_POLL_SECONDS = 1.0
"""How often ended Spark sessions are looked for."""
_MAX_SEPARATE_SCANS = 8
"""Up to so many partly used files get a scan each; more share one scan with a condition on the file name.
Not measured: bounds the size of Spark's plan."""


@dataclass
class _PinnedRead:
    """The snapshot that keeps the files of one DataFrame from being reclaimed."""

    snapshot: "SparkSnapshot"
    frame: "weakref.ref[DataFrame]"
    file_indexes: list[Any] | None
    """Weak references in the JVM to what every plan that is made of the frame shares; None if they cannot be had."""
    about: dict[str, Any]
    """Which window its rows are of."""

    def is_unused(self) -> bool:
        """Whether nobody can compute the frame, or anything made of it, any more."""
        context = getattr(self.snapshot._spark, "_sc", None)
        if context is not None and context._jsc is None:
            return True
        if self.frame() is not None or self.file_indexes is None:
            return False
        return all(reference.refersTo(None) for reference in self.file_indexes)

    def close(self) -> None:
        self.snapshot.close()


_pinned_reads: dict[int, _PinnedRead] = {}
_guard = threading.Lock()
_read_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def read(
    spark: "SparkSession",
    warehouse: WarehouseOrPath,
    stream: str,
    window: times.Duration | None = None,
    columns: Sequence[str] | None = None,
    where: "Column | str | None" = None,
    *,
    as_of: int | times.Instant | None = None,
) -> "DataFrame":
    """The rows of a window (by default all live rows) as a DataFrame, consistent with one slide.

    Args:
        spark: The session.
        warehouse: An open warehouse, or its path.
        stream: Its name.
        window: The length of the window.
        columns: Only these.
        where: A condition, in SQL or as a Column, that rows must meet; Spark reads only what it must.
        as_of: An earlier state of a stream with history: the number of a commit, or a time of the stream's clock.
    """
    snapshot = SparkSnapshot(spark, warehouse, [stream], as_of)
    try:
        frame, locations = _build_frame(spark, snapshot.contents, stream, window, columns, where)
        described = snapshot._describe(stream, window, columns)
    except BaseException:
        snapshot.close()
        raise
    pin_frame(snapshot, frame, described, locations)
    return frame


def pin_frame(
    taken: "SparkSnapshot", frame: "DataFrame", about: dict[str, Any], locations: Sequence[Any] | None
) -> None:
    """Keep a snapshot open until nothing uses the DataFrame that reads it any more.

    Args:
        taken: The snapshot.
        frame: The DataFrame.
        about: Which window its rows are of.
        locations: The lists of files that it reads. A frame that is derived from this one is another object, in Python
            and in the JVM, but has the same ones. None for a client of Spark Connect, which does not see them.
    """
    references = None
    if locations is not None:
        make_reference = find_class(frame.sparkSession, "java.lang.ref.WeakReference")
        references = [make_reference(location) for location in locations]
    with _guard:
        number = max(_pinned_reads, default=0) + 1
        _pinned_reads[number] = _PinnedRead(taken, weakref.ref(frame), references, about)
        _read_numbers[frame] = number
        if len(_pinned_reads) == 1:
            threading.Thread(target=_release_unused_pins, name="windrow-pins", daemon=True).start()


class SparkSnapshot:
    """Several streams at one commit, as DataFrames; use it as a context manager, within which they can be computed.

    Args:
        spark: The session.
        warehouse: An open warehouse, or its path.
        streams: Which streams, by default all.
        as_of: An earlier commit; or, of one stream, a time of its clock.
        alike: Of all, only those whose names in lower case are among these.
    """

    def __init__(
        self,
        spark: "SparkSession",
        warehouse: WarehouseOrPath,
        streams: Sequence[str] | None = None,
        as_of: int | times.Instant | None = None,
        *,
        alike: frozenset[str] | None = None,
    ) -> None:
        self._spark = spark
        self._opened = None if isinstance(warehouse, Warehouse) else open_warehouse(warehouse)
        wh = warehouse if isinstance(warehouse, Warehouse) else self._opened
        assert wh is not None
        try:
            taken = wh.snapshot(streams) if alike is None else Snapshot(wh._store, alike=alike)
            self._snapshot = go_back(taken, streams, as_of)
        except BaseException:
            if self._opened is not None:
                self._opened.close()
            raise

    @property
    def commit(self) -> int:
        """The number of the commit that is read."""
        return self._snapshot.version

    @property
    def contents(self) -> Snapshot:
        """The streams and tables of the commit."""
        return self._snapshot

    def read(
        self,
        stream: str,
        window: times.Duration | None = None,
        columns: Sequence[str] | None = None,
        where: "Column | str | None" = None,
    ) -> "DataFrame":
        """The rows of a window as a DataFrame, as `windrow.spark.read` gives it, of this commit."""
        frame, _ = _build_frame(self._spark, self._snapshot, stream, window, columns, where)
        return frame

    def _describe(self, stream: str, window: times.Duration | None, columns: Sequence[str] | None) -> dict[str, Any]:
        described: dict[str, Any] = json.loads(
            self._snapshot.scan(stream, window, columns).schema.metadata[METADATA_KEY]
        )
        return described

    def close(self) -> None:
        """Let go of the files; the DataFrames must not be computed any more."""
        self._snapshot.close()
        if self._opened is not None:
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def snapshot(
    spark: "SparkSession",
    warehouse: WarehouseOrPath,
    streams: Sequence[str] | None = None,
    *,
    as_of: int | None = None,
) -> SparkSnapshot:
    """One commit pinned, so that several reads of streams are of the same state; `SparkSnapshot` has `read`."""
    return SparkSnapshot(spark, warehouse, streams, as_of)


def release(df: "DataFrame") -> None:
    """Let go of the files of a DataFrame that `read` gave; what is made of it must not be computed any more."""
    with _guard:
        pin = _pinned_reads.pop(_read_numbers.pop(df, -1), None)
    if pin is None:
        raise ClosedError(
            "this DataFrame pins nothing: it was released before, or did not come from windrow.spark.read"
        )
    pin.close()


def about(df: "DataFrame") -> dict[str, Any]:
    """Which window a DataFrame that `read` gave is of, and what is missing of it: windows, coverage, gaps, commit."""
    with _guard:
        pin = _pinned_reads.get(_read_numbers.get(df, -1))
    if pin is None:
        raise ClosedError("this DataFrame was released, or did not come from windrow.spark.read")
    return pin.about


@contextmanager
def window(
    spark: "SparkSession",
    warehouse: WarehouseOrPath,
    stream: str,
    window: times.Duration | None = None,
    columns: Sequence[str] | None = None,
    where: "Column | str | None" = None,
    *,
    as_of: int | times.Instant | None = None,
) -> "Iterator[DataFrame]":
    """`read` for the time of a ``with`` block."""
    frame = read(spark, warehouse, stream, window, columns, where, as_of=as_of)
    try:
        yield frame
    finally:
        release(frame)


def _release_unused_pins() -> None:
    """Release the pins of sessions that have ended and of frames that were dropped, until there is none left."""
    while True:
        time.sleep(_POLL_SECONDS)
        with _guard:
            pins = dict(_pinned_reads)
        unused = []
        for number, pin in pins.items():
            try:
                if pin.is_unused():
                    unused.append(number)
            except SPARK_ERRORS:  # the session is ending
                continue
            except OSError:
                continue
        with _guard:
            released = [_pinned_reads.pop(number) for number in unused if number in _pinned_reads]
            last = not _pinned_reads
        for pin in released:
            pin.close()
        if last:
            return


def _build_frame(
    spark: "SparkSession",
    snapshot: Snapshot,
    stream: str,
    window: times.Duration | None,
    columns: Sequence[str] | None,
    where: "Column | str | None",
) -> tuple["DataFrame", list[Any] | None]:
    """The rows of a window, and the lists of files that are read for them; None if they cannot be had."""
    view = snapshot.view(stream)
    bounds = view.bounds() if window is None else view.last(times.parse_duration(window, "window"))
    names = select_columns(view, columns).names
    selection = view.select(bounds)
    build_read_schema(view.entry.definition, names)  # raises
    selection = selection if where is None else _narrow_selection(spark, snapshot, view, selection, where)
    read = names if where is None else view.schema.names
    scan = SegmentScan(spark, snapshot, view, selection, read)
    scan.verify(read)
    frame = scan.build_frame() if where is None else scan.build_frame().where(where)
    return frame.select(*(quote_name(name) for name in names)), scan.locations


class SegmentScan:
    """How Spark reads the rows of a selection.

    Args:
        spark: The session.
        snapshot: What is seen.
        view: The stream.
        selection: Segments and bounds.
        columns: Those that it has, with the times if rows are chosen by them; by default all.
    """

    def __init__(
        self,
        spark: "SparkSession",
        snapshot: Snapshot,
        view: StreamSnapshot,
        selection: Selection,
        columns: Sequence[str] | None = None,
    ) -> None:
        definition = view.entry.definition
        self._spark, self._store, self._view = spark, snapshot.store, view
        self._times = [name for name in (definition.time, definition.expires) if name is not None]
        added = [name for name in self._times if columns is not None and name not in columns]
        self._schema = build_read_schema(definition, view.schema.names if columns is None else [*columns, *added])
        self._bounds = None if view.state.slide is None else selection.bounds
        numbered = self._bounds is not None and self._bounds.before is not None  # which slide took a row in
        self._numbered = [SEQ] if numbered else []
        self._unfiltered, self._filtered, self._ranged = _classify_files(snapshot.store, view, selection)
        self._locations = FileLocations(snapshot.store, spark)
        self._relations = FileRelations(spark) if hasattr(spark, "_jsparkSession") else None
        self.files = frozenset(segment.file for segment in selection.segments)

    @property
    def locations(self) -> list[Any] | None:
        """The lists of files of the frames that were built, in the JVM; None for a client of Spark Connect."""
        return None if self._relations is None else self._relations.locations

    @property
    def reads_whole_files(self) -> bool:
        """Whether all rows of all files are read, and no row is looked at to find out whether it counts."""
        return not (self._filtered or self._ranged or self._numbered)

    def verify(self, needed: Collection[str]) -> None:
        """Compare columns with their checksums, where the files are those of the folder."""
        filters = bool(self._filtered) or any(edge for _, edge in self._ranged.values())
        if self._locations.in_folder:
            read = [*needed, *self._numbered, *(self._times if filters else ())]
            self._store.reader.verify_columns(set(self.files), read)

    def build_plan(self) -> Any:
        """What reads the rows, as an analyzed plan of the JVM."""
        if self.reads_whole_files:
            return self._make_scanner(self._schema).plan(self._unfiltered)
        return self.build_frame()._jdf.queryExecution().analyzed()

    def build_frame(self) -> "DataFrame":
        """The rows."""
        schema = self._schema
        for name in self._numbered:
            schema = schema.add(name, "long")
        parts = self._make_scanner(schema).scan(self._unfiltered, self._filtered, self._ranged)
        frame = reduce(lambda one, other: one.union(other), parts)
        return frame.drop(*self._numbered) if self._numbered else frame

    def _make_scanner(self, schema: Any) -> "_SegmentScanner":
        return _SegmentScanner(self._spark, schema, self._view, self._bounds, self._locations, self._relations)


def _narrow_selection(
    spark: "SparkSession", snapshot: Snapshot, view: StreamSnapshot, selection: Selection, where: "Column | str"
) -> Selection:
    """Leave out segments that, by the directory, have no search key that the condition allows."""
    schema = build_read_schema(view.entry.definition, view.schema.names)
    ranges = find_key_ranges(_find_filters(spark, schema, where), view)
    if ranges is None:
        return selection
    row_ranges = find_row_ranges(selection.segments, ranges, snapshot.directories, view.sorted_by)
    matching = {row_range.segment.id for row_range in row_ranges if row_range.stop > row_range.start}
    whole, edge = (tuple(s for s in segments if s.id in matching) for segments in (selection.whole, selection.edge))
    return Selection(selection.bounds, whole, edge)


def _find_filters(spark: "SparkSession", schema: Any, where: "Column | str") -> list[Filter]:
    """The comparisons of columns with constants that a condition consists of, as Spark's optimizer finds them."""
    frame = spark.createDataFrame([], schema).where(where)
    if not hasattr(frame, "_jdf"):
        return []
    plan = frame._jdf.queryExecution().optimizedPlan()
    if plan.getClass().getSimpleName() != "Filter":
        return []
    strategy = find_object(spark, "org.apache.spark.sql.execution.datasources.DataSourceStrategy")
    understood: list[Filter] = []
    for condition in split_condition(plan.condition()):
        translated = strategy.translateFilter(condition, True)
        if translated.isDefined() and (filter_ := to_python_filter(translated.get())) is not None:
            understood.append(filter_)
    return understood


_COMPARISONS = {
    kind.__name__: kind for kind in (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
}


def to_python_filter(java_filter: Any) -> Filter | None:
    """A filter of the JVM as one of Python, if its values are numbers, strings or times."""
    name = java_filter.getClass().getSimpleName()
    if name == "In":
        values = tuple(java_filter.values())
        return In((java_filter.attribute(),), values) if all(isinstance(v, int | str) for v in values) else None
    value = _to_python_value(java_filter.value()) if name in _COMPARISONS else None
    return None if value is None else _COMPARISONS[name]((java_filter.attribute(),), value)


def _to_python_value(value: Any) -> Any:
    """Numbers, strings, and times with their microseconds; None for everything else."""
    if isinstance(value, int | str):
        return value
    kind = value.getClass().getName() if hasattr(value, "getClass") else ""
    if kind == "java.sql.Timestamp":
        value, kind = value.toInstant(), "java.time.Instant"
    if kind == "java.time.Instant":
        return times.to_datetime(value.getEpochSecond() * 1_000_000 + value.getNano() // 1_000)
    if kind == "java.time.LocalDateTime":
        text = value.toString()
        return (
            dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)
            if len(text) <= len("2025-01-01T00:00:00.000000")
            else None
        )
    return None


def _classify_files(
    store: Store, view: StreamSnapshot, selection: Selection
) -> tuple[list[Path], list[Path], dict[Path, tuple[list[Segment], bool]]]:
    """Divide files into those read unfiltered, those filtered by time and expiry, and those read in row ranges.

    A file needs row ranges if a merge has replaced one of its segments, if it ends in rejected rows, or if overrides
    have ended some of its rows.
    """
    named_rows: dict[str, int] = defaultdict(int)
    for segment in view.segments:
        named_rows[segment.file] += segment.rows
    whole = {segment.id for segment in selection.whole}
    chosen: dict[str, list[Segment]] = defaultdict(list)
    for segment in selection.segments:
        chosen[segment.file].append(segment)
    unfiltered, filtered, ranged = [], [], {}
    for file, segments in chosen.items():
        path = store.root / file
        rows = segments[0].file_rows
        all_whole = all(segment.id in whole for segment in segments)
        if named_rows[file] != rows or (not all_whole and any(segment.ended for segment in segments)):
            ranged[path] = (segments, not all_whole)
        elif all_whole and sum(segment.rows for segment in segments) == rows:
            unfiltered.append(path)
        else:
            filtered.append(path)
    return unfiltered, filtered, ranged


class _SegmentScanner:
    """Scans of segment files with one schema.

    Args:
        spark: The session.
        schema: The columns that are read.
        view: The stream.
        bounds: The window.
        locations: Where the files are read.
        relations: What makes relations of them; None for a client of Spark Connect.
    """

    def __init__(
        self,
        spark: Any,
        schema: Any,
        view: StreamSnapshot,
        bounds: WindowBounds | None,
        locations: FileLocations,
        relations: FileRelations | None,
    ) -> None:
        self._spark, self._relations = spark, relations
        self._locations = locations
        self._schema = schema
        self._view = view
        self._bounds = bounds

    def scan(
        self, unfiltered: list[Path], filtered: list[Path], ranged: dict[Path, tuple[list[Segment], bool]]
    ) -> "list[DataFrame]":
        """Scan each kind of files that there is; none, where there is no file."""
        parts = []
        if unfiltered or not (filtered or ranged):
            parts.append(self._scan(unfiltered))
        if filtered:
            parts.append(self._filter_live(self._scan(filtered)))
        if len(ranged) <= _MAX_SEPARATE_SCANS:
            parts += [self._scan_ranges([path], {path: segments}) for path, segments in ranged.items()]
        else:
            parts.append(self._scan_ranges(list(ranged), ranged))
        return parts

    def plan(self, paths: list[Path]) -> Any:
        """A plan of the JVM that reads all rows of files."""
        assert self._relations is not None
        urls, options = [self._locations.find(path) for path in paths], self._locations.options
        return self._relations.plan(urls, self._schema, options, self._locations.find_sizes(paths))

    def _scan(self, paths: list[Path]) -> "DataFrame":
        if self._relations is not None:
            return self._relations.make_frame(self.plan(paths))
        urls, options = [self._locations.find(path) for path in paths], self._locations.options
        if not urls:
            return self._spark.createDataFrame([], self._schema)  # type: ignore[no-any-return]
        reader = self._spark.read.schema(self._schema).options(**options)
        return reader.parquet(*map(escape_pattern, urls))  # type: ignore[no-any-return]

    def _filter_live(self, frame: "DataFrame") -> "DataFrame":
        """Filter the rows that are in the window."""
        assert self._bounds is not None
        definition, bounds = self._view.entry.definition, self._bounds
        ts, to_time = _find_instants(frame, definition.time)
        conditions = [ts <= to_time(bounds.upto)]
        if bounds.after is not None:
            conditions.append(ts > to_time(bounds.after))
        if definition.expires is not None:
            expiry, to_expiry = _find_instants(frame, definition.expires)
            conditions.append(expiry > to_expiry(bounds.now))
        elif (oldest := definition.model.find_expiry_cutoff(bounds.now)) is not None:
            conditions.append(ts > to_time(oldest))
        if bounds.before is not None:
            conditions.append(F.col(SEQ) < bounds.before)
        return frame.where(reduce(lambda one, other: one & other, conditions))

    def _scan_ranges(self, paths: list[Path], segments_of: dict[Path, tuple[list[Segment], bool]]) -> "DataFrame":
        """Scan row ranges of files, by Spark's own row numbers."""
        conditions = []
        for path in paths:
            segments, _ = segments_of[path]
            ranges = [F.col("_metadata.row_index").between(s.start, s.stop - 1) for s in join_row_ranges(segments)]
            condition = reduce(lambda one, other: one | other, ranges)
            now = None if self._bounds is None else self._bounds.now
            ended = [row for segment in segments for row in find_ended_rows(segment, now).tolist()]
            condition = condition & ~F.col("_metadata.row_index").isin(ended) if ended else condition
            conditions.append(condition if len(paths) == 1 else (F.col("_metadata.file_name") == path.name) & condition)
        frame = self._scan(paths).where(reduce(lambda one, other: one | other, conditions))
        return self._filter_live(frame) if any(edge for _, edge in segments_of.values()) else frame


def _find_instants(frame: "DataFrame", name: str) -> "tuple[Column, Callable[[int], Column]]":
    """A column of times as something to compare, and how microseconds are written beside it.

    Where Spark's own type is that of an instant, its Parquet reader can leave row groups and pages out by it.
    """
    if isinstance(frame.schema[name].dataType, TimestampType):
        return F.col(quote_name(name)), lambda micros: F.timestamp_micros(F.lit(micros).cast("bigint"))
    return to_micros(frame, name), lambda micros: F.lit(micros).cast("bigint")


@dataclass(frozen=True)
class _RowRange:
    start: int
    stop: int


def join_row_ranges(segments: Sequence[Segment]) -> list[_RowRange]:
    """Find the row ranges of segments of one file, adjacent ones joined."""
    joined: list[_RowRange] = []
    for segment in sorted(segments, key=lambda s: s.start):
        if joined and joined[-1].stop == segment.start:
            joined[-1] = _RowRange(joined[-1].start, segment.stop)
        else:
            joined.append(_RowRange(segment.start, segment.stop))
    return joined

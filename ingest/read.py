"""A window as a DataFrame: the pruned segments, read by Spark itself, with filters only on the files that need them.

The files are pinned from the moment the manifest is read until `release`, or until the Spark session ends.
"""

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from windrow import times
from windrow.errors import ClosedError
from windrow.indexes.segments import Segment
from windrow.indexes.selection import Selection, WindowBounds
from windrow.ingest.expressions import EXP, TS, to_micros
from windrow.ingest.schemas import build_read_schema
from windrow.ingest.session import WarehouseOrPath, open_warehouse, to_read_pattern
from windrow.snapshot import Snapshot, StreamSnapshot, select_columns
from windrow.store import Store
from windrow.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.column import Column

_POLL_SECONDS = 1.0
_MAX_SEPARATE_SCANS = 8
"""Up to so many partly used files get a scan each; more share one, whose rows are told apart by file name."""


@dataclass
class _PinnedRead:
    """What keeps the files of one DataFrame from being reclaimed."""

    snapshot: Snapshot
    warehouse: Warehouse | None
    spark: Any

    def close(self) -> None:
        self.snapshot.close()
        if self.warehouse is not None:
            self.warehouse.close()


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
) -> "DataFrame":
    """The rows of a window (by default all live rows) as a DataFrame, consistent with one slide.

    Args:
        spark: The session.
        warehouse: An open warehouse, or its path.
        stream: Its name.
        window: The length of the window.
        columns: Only these.
        where: A condition, in SQL or as a Column, that rows must meet; Spark reads only what it must.
    """
    own = None if isinstance(warehouse, Warehouse) else open_warehouse(warehouse)
    store = (warehouse if isinstance(warehouse, Warehouse) else own)._store  # type: ignore[union-attr]
    try:
        snapshot = Snapshot(store, [stream])
        try:
            frame = _build_frame(spark, store, snapshot.view(stream), window, columns, where)
        except BaseException:
            snapshot.close()
            raise
    except BaseException:
        if own is not None:
            own.close()
        raise
    with _guard:
        number = max(_pinned_reads, default=0) + 1
        _pinned_reads[number] = _PinnedRead(snapshot, own, spark)
        _read_numbers[frame] = number
        if len(_pinned_reads) == 1:
            threading.Thread(target=_release_ended_sessions, name="windrow-pins", daemon=True).start()
    return frame


def release(df: "DataFrame") -> None:
    """Let go of the files of a DataFrame that `read` gave; what is made of it must not be computed any more."""
    with _guard:
        pin = _pinned_reads.pop(_read_numbers.pop(df, -1), None)
    if pin is None:
        raise ClosedError(
            "this DataFrame pins nothing: it was released before, or did not come from windrow.spark.read"
        )
    pin.close()


@contextmanager
def window(
    spark: "SparkSession",
    warehouse: WarehouseOrPath,
    stream: str,
    window: times.Duration | None = None,
    columns: Sequence[str] | None = None,
    where: "Column | str | None" = None,
) -> "Iterator[DataFrame]":
    """`read` for the time of a ``with`` block."""
    frame = read(spark, warehouse, stream, window, columns, where)
    try:
        yield frame
    finally:
        release(frame)


def _release_ended_sessions() -> None:
    """Let go of the pins of sessions that have ended."""
    while True:
        time.sleep(_POLL_SECONDS)
        with _guard:
            ended = [number for number, pin in _pinned_reads.items() if _has_ended(pin.spark)]
            gone = [_pinned_reads.pop(number) for number in ended]
            last = not _pinned_reads
        for pin in gone:
            pin.close()
        if last:
            return


def _has_ended(spark: Any) -> bool:
    context = getattr(spark, "_sc", None)
    return context is not None and context._jsc is None


def _build_frame(
    spark: "SparkSession",
    store: Store,
    view: StreamSnapshot,
    window: times.Duration | None,
    columns: Sequence[str] | None,
    where: "Column | str | None",
) -> "DataFrame":
    bounds = view.bounds() if window is None else view.last(times.parse_duration(window, "window"))
    wanted = select_columns(view, columns).names
    definition = view.entry.definition
    needed = [name for name in (definition.time, definition.expires) if name is not None and name not in wanted]
    plain, checked, ranged = _classify_files(store, view, view.select(bounds))
    build_read_schema(definition, wanted)
    kinds = build_read_schema(
        definition, [*(wanted if where is None else view.schema.names), *(needed if where is None else [])]
    )
    reader = _SegmentScanner(spark, kinds, view, bounds)
    parts = reader.parts(plain, checked, ranged)
    frame = reduce(lambda one, other: one.union(other), parts) if parts else spark.createDataFrame([], kinds)
    if where is not None:
        frame = frame.where(where)
    return frame.select(*(f"`{name}`" for name in wanted))


def _classify_files(
    store: Store, view: StreamSnapshot, selection: Selection
) -> tuple[list[Path], list[Path], dict[Path, tuple[list[Segment], bool]]]:
    """Files that are read as they are, files to be filtered by time and expiry, and files of which row ranges are ours.

    A file is wholly ours unless a merge has taken a segment of it away, or it ends in rows that were rejected.
    """
    named: dict[str, int] = defaultdict(int)
    for segment in view.segments:
        named[segment.file] += segment.rows
    whole = {segment.id for segment in selection.whole}
    chosen: dict[str, list[Segment]] = defaultdict(list)
    for segment in selection.segments:
        chosen[segment.file].append(segment)
    plain, checked, ranged = [], [], {}
    for file, segments in chosen.items():
        path = store.root / file
        rows = store.reader.open(file)[0].metadata.num_rows
        all_whole = all(segment.id in whole for segment in segments)
        if named[file] != rows:
            ranged[path] = (segments, not all_whole)
        elif all_whole and sum(segment.rows for segment in segments) == rows:
            plain.append(path)
        else:
            checked.append(path)
    return plain, checked, ranged


class _SegmentScanner:
    """Scans of segment files with one schema.

    Args:
        spark: The session.
        schema: Of the columns that are read.
        view: The stream.
        bounds: Of the window.
    """

    def __init__(self, spark: Any, schema: Any, view: StreamSnapshot, bounds: WindowBounds | None) -> None:
        self._spark = spark
        self._schema = schema
        self._view = view
        self._bounds = bounds

    def parts(
        self, plain: list[Path], checked: list[Path], ranged: dict[Path, tuple[list[Segment], bool]]
    ) -> "list[DataFrame]":
        """A DataFrame for each group of files that is there."""
        parts = []
        if plain:
            parts.append(self._scan(plain))
        if checked:
            parts.append(self._live(self._scan(checked)))
        if len(ranged) <= _MAX_SEPARATE_SCANS:
            parts += [self._ranged([path], {path: use}) for path, use in ranged.items()]
        else:
            parts.append(self._ranged(list(ranged), ranged))
        return parts

    def _scan(self, paths: list[Path]) -> "DataFrame":
        frame: DataFrame = self._spark.read.schema(self._schema).parquet(*(to_read_pattern(path) for path in paths))
        return frame

    def _live(self, frame: "DataFrame") -> "DataFrame":
        """The rows that are in the window."""
        assert self._bounds is not None
        definition, bounds, names = self._view.entry.definition, self._bounds, self._schema.names
        timed = frame.withColumn(TS, to_micros(frame, definition.time))
        conditions = [F.col(TS) <= bounds.upto]
        if bounds.after is not None:
            conditions.append(F.col(TS) > bounds.after)
        if definition.expires is not None:
            timed = timed.withColumn(EXP, to_micros(frame, definition.expires))
            conditions.append(F.col(EXP) > bounds.now)
        elif (oldest := definition.model.find_expiry_cutoff(bounds.now)) is not None:
            conditions.append(F.col(TS) > oldest)
        return timed.where(reduce(lambda one, other: one & other, conditions)).select(*(f"`{name}`" for name in names))

    def _ranged(self, paths: list[Path], uses: dict[Path, tuple[list[Segment], bool]]) -> "DataFrame":
        """Row ranges of files, by Spark's own row numbers."""
        conditions = []
        for path in paths:
            segments, _ = uses[path]
            ranges = [F.col("_metadata.row_index").between(s.start, s.stop - 1) for s in join_row_ranges(segments)]
            condition = reduce(lambda one, other: one | other, ranges)
            conditions.append(condition if len(paths) == 1 else (F.col("_metadata.file_name") == path.name) & condition)
        frame = self._scan(paths).where(reduce(lambda one, other: one | other, conditions))
        return self._live(frame) if any(edge for _, edge in uses.values()) else frame


@dataclass(frozen=True)
class _RowRange:
    start: int
    stop: int


def join_row_ranges(segments: Sequence[Segment]) -> list[_RowRange]:
    """The row ranges of segments of one file, adjacent ones joined."""
    joined: list[_RowRange] = []
    for segment in sorted(segments, key=lambda s: s.start):
        if joined and joined[-1].stop == segment.start:
            joined[-1] = _RowRange(joined[-1].start, segment.stop)
        else:
            joined.append(_RowRange(segment.start, segment.stop))
    return joined

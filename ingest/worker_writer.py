"""The other way to stage rows: Spark's Python workers arrange and write them with Arrow, as the warehouse itself would.

It takes every type that a stream can have and every layout, at two to three times the cost of the JVM's own writer.
"""

import os
import uuid
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from windrow import arrow_input
from windrow.append import Append
from windrow.catalog.records import Layout
from windrow.definitions import StreamDefinition
from windrow.errors import SchemaError
from windrow.indexes.row_model import SEQ
from windrow.indexes.segment_builder import number_arrivals, sort_into_segments
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.ingest.expressions import TimeLimits
from windrow.ingest.schemas import find_intermediate_type
from windrow.rejection import classify_rows
from windrow.segment_files import CHUNK_BYTES, split_chunks


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker needs to know to stage rows; it never sees the catalog."""

    definition: StreamDefinition
    layout: Layout
    limits: TimeLimits
    folder: str
    names: tuple[str, ...] | None = None
    """Of the columns, if they come under others."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
        """Write the rows of one task; gives the names of its files, in arrival order."""
        schema = self.definition.schema
        rows = arrow_input.conform_batches(self._eased(batches), schema, self.definition.name, self.definition.added)
        for chunk in split_chunks(rows, schema, CHUNK_BYTES):
            yield self._write(chunk)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """`run`, as Spark's mapInArrow wants it."""
        named = batches if self.names is None else (batch.rename_columns(list(self.names)) for batch in batches)
        for name in self.run(named):
            yield pa.RecordBatch.from_pydict({"file": [name]})

    def _eased(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """The batches with the types that Spark has not made of those in which it has such values."""
        rest = iter(batches)
        first = next(rest, None)
        if first is None:
            return pa.RecordBatchReader.from_batches(self.definition.schema, [])
        eased = self._ease(first)
        return pa.RecordBatchReader.from_batches(eased.schema, _and_then(eased, map(self._ease, rest)))

    def _ease(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        wanted = self.definition.schema
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            kind = wanted.field(name).type
            eased = find_intermediate_type(column.type, kind)
            columns.append(column if eased.equals(kind) else self._exact(column, kind, name))
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    def _exact(self, column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"stream {self.definition.name!r}: column {name!r} cannot become {kind} without loss "
                f"({str(error).splitlines()[0]}); nothing was appended"
            ) from None

    def _write(self, chunk: pa.Table) -> str:
        """One file: the rows that are taken in storage order, then those that are not, without `_seq`."""
        ts, exp, codes = classify_rows(chunk, self.definition, self.limits.now, self.limits.horizon)
        good = codes == 0
        taken = chunk if good.all() else chunk.filter(pa.array(good))
        name = f"{uuid.uuid4().hex}.parquet"
        path = Path(self.folder) / name
        index = self.layout.index
        with pa.OSFile(str(path), "wb") as sink:
            schema = chunk.schema.append(pa.field(SEQ, pa.int64()))
            output = SegmentFileWriter(sink, schema, index.row_group_bytes, self.definition.key)
            if taken.num_rows:
                seq = number_arrivals(taken.num_rows, 0)
                placed = sort_into_segments(
                    taken, self.definition.model, self.layout.partitioner(), ts[good], exp[good], seq
                )
                placed.write(output)
            if not good.all():
                bad = chunk.filter(pa.array(~good))
                output.add(bad.append_column(schema.field(SEQ), pa.nulls(bad.num_rows, pa.int64())))
            output.close()
        _sync(path)
        return name


def stage_in_workers(rows: Any, job: Append, limits: TimeLimits, folder: Path) -> list[Path]:
    """Stage the rows of a DataFrame under `folder`; only the files of tasks that succeeded are given."""
    folder.mkdir()
    # PySpark 4.3 takes the dots in a column's name for a path when it asks for all of them.
    numbered = rows.toDF(*(str(number) for number in range(len(rows.columns))))
    plan = WorkerPlan(job.definition, job.layout, limits, str(folder), tuple(rows.columns))
    with warnings.catch_warnings():
        # PySpark 4.3 warns of pandas 3 wherever it meets Arrow; no row of ours goes through pandas.
        warnings.simplefilter("ignore", FutureWarning)
        staged = numbered.mapInArrow(plan, "file string")
    return [folder / row.file for row in staged.collect()]


def _and_then(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

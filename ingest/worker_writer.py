"""Staging in Spark's Python workers: they sort and write rows with Arrow, as the warehouse itself would.

It takes every type and every layout that a stream can have, at two to three times the cost of the JVM's own writer.
"""

import itertools
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
from windrow.row_checks import apply_checks
from windrow.segment_files import CHUNK_BYTES, split_chunks


@dataclass(frozen=True)
class WorkerPlan:
    """All that a worker needs to stage rows; it never opens the catalog."""

    definition: StreamDefinition
    layout: Layout
    limits: TimeLimits
    folder: str
    names: tuple[str, ...] | None = None
    """The stream's names of the columns, if they arrive under other names."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[str]:
        """Write the rows of one task; give the names of its files in the order of arrival."""
        definition, schema = self.definition, self.definition.schema
        judged = (definition.time, definition.expires or "")
        rows = arrow_input.conform_batches(self._convert(batches), schema, definition.name, definition.added, judged)
        for chunk in split_chunks(rows, schema, CHUNK_BYTES):
            yield self._write(chunk)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do `run` in the form that Spark's mapInArrow expects."""
        renamed = batches if self.names is None else (batch.rename_columns(list(self.names)) for batch in batches)
        for name in self.run(renamed):
            yield pa.RecordBatch.from_pydict({"file": [name]})

    def _convert(self, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Convert columns that arrive in an intermediate type to the stream's types."""
        remaining = iter(batches)
        first = next(remaining, None)
        if first is None:
            return pa.RecordBatchReader.from_batches(self.definition.schema, [])
        converted = self._convert_batch(first)
        return pa.RecordBatchReader.from_batches(
            converted.schema, itertools.chain([converted], map(self._convert_batch, remaining))
        )

    def _convert_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.definition.schema
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            kind = schema.field(name).type
            intermediate = find_intermediate_type(column.type, kind)
            columns.append(column if intermediate.equals(kind) else self._cast(column, kind, name))
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)

    def _cast(self, column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"stream {self.definition.name!r}: column {name!r} cannot become {kind} without loss "
                f"({str(error).splitlines()[0]}); nothing was appended"
            ) from None

    def _write(self, chunk: pa.Table) -> str:
        """Write one file: accepted rows in storage order, then rejected rows, without `_seq`."""
        ts, exp, codes = classify_rows(chunk, self.definition, self.limits.now, self.limits.horizon)
        codes = apply_checks(chunk, self.definition, codes)
        accepted = codes == 0
        accepted_rows = chunk if accepted.all() else chunk.filter(pa.array(accepted))
        name = f"{uuid.uuid4().hex}.parquet"
        path = Path(self.folder) / name
        index = self.layout.index
        with pa.OSFile(str(path), "wb") as sink:
            schema = chunk.schema.append(pa.field(SEQ, pa.int64()))
            output = SegmentFileWriter(sink, schema, index.row_group_bytes, self.definition.key)
            if accepted_rows.num_rows:
                seq = number_arrivals(accepted_rows.num_rows, 0)
                sorted_rows = sort_into_segments(
                    accepted_rows, self.definition.model, self.layout.partitioner(), ts[accepted], exp[accepted], seq
                )
                sorted_rows.write(output)
            if not accepted.all():
                rejected = chunk.filter(pa.array(~accepted))
                output.add(rejected.append_column(schema.field(SEQ), pa.nulls(rejected.num_rows, pa.int64())))
            output.close()
        _sync(path)
        return name


def stage_in_workers(rows: Any, job: Append, limits: TimeLimits, folder: Path) -> list[Path]:
    """Stage the rows of a DataFrame under `folder`; return only the files of tasks that succeeded."""
    folder.mkdir()
    # PySpark 4.3 misreads a dot in the name of a column, so columns are numbered on the way.
    numbered = rows.toDF(*(str(number) for number in range(len(rows.columns))))
    plan = WorkerPlan(job.definition, job.layout, limits, str(folder), tuple(rows.columns))
    with warnings.catch_warnings():
        # PySpark 4.3 warns of pandas 3 whenever Arrow is used; our rows do not go through pandas.
        warnings.simplefilter("ignore", FutureWarning)
        staged = numbered.mapInArrow(plan, "file string")
    return [folder / row.file for row in staged.collect()]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

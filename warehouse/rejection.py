"""Which rows an append does not take and why, and writing them chunk by chunk, so that memory stays bounded."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow import times
from windrow.definitions import StreamDefinition
from windrow.indexes.row_model import Int64s
from windrow.indexes.segment_writer import SegmentFileWriter
from windrow.native import rows as native_rows
from windrow.row_checks import Checks, describe_reasons
from windrow.segment_files import StagedFile, StagedWriter
from windrow.store import Store

REJECTION_COLUMNS = (
    pa.field("_reason", pa.string()),
    pa.field("_source", pa.string()),
    pa.field("_batch", pa.string()),
    pa.field("_rejected_at", pa.timestamp("us", "UTC")),
)
"""What stands behind the stream's own columns in a file of rejected rows."""
LINE_COLUMNS = (
    pa.field("_file", pa.string()),
    pa.field("_line", pa.int64()),
    pa.field("_text", pa.string()),
    pa.field("_format", pa.string()),
)
"""And behind those: of a line of a text file that could not be read, where it is, its text, and how it was read."""


def rejected_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a stream's rejected rows; a stream that has a column of such a name itself keeps no lines there."""
    fields = [field.with_nullable(True) for field in schema]
    lines = [field for field in LINE_COLUMNS if field.name not in schema.names]
    return pa.schema([*fields, *REJECTION_COLUMNS, *lines])


EARLIEST_TIME = times.parse_instant("1900-01-01T00:00:00")


def classify_rows(
    rows: pa.Table, definition: StreamDefinition, now: int | None, horizon: int
) -> tuple[Int64s, Int64s, npt.NDArray[np.uint8]]:
    """Event times, expiries and reasons for rejection (0: the row is taken) of rows.

    Args:
        rows: Of the stream; its time, expiry and key columns are enough.
        definition: Of the stream.
        now: Its clock.
        horizon: The latest event time that is not too far ahead.
    """
    ts, ts_valid = definition.model.times(rows)
    exp, exp_valid = definition.model.expiries(rows, ts)
    codes = native_rows.classify(
        ts,
        ts_valid,
        exp if definition.longest_life is not None or definition.floor is not None else None,
        exp_valid,
        now=now,
        horizon=horizon,
        max_lifetime=definition.max_lifetime,
        earliest=EARLIEST_TIME,
    )
    return ts, exp, codes


class RejectedRowsWriter:
    """The rejected rows of one append.

    Args:
        store: The warehouse.
        source: Where the rows came from.
        batch_id: Of the append.
        checks: Of the stream.
    """

    def __init__(self, store: Store, source: str, batch_id: str | None, checks: Checks = ()) -> None:
        self._store = store
        self._source = source
        self._batch_id = batch_id
        self._names = pa.array(describe_reasons(checks))
        self._file: StagedWriter | None = None
        self._output: SegmentFileWriter | None = None
        self.reasons: dict[str, int] = {}

    def add(self, rows: pa.Table, codes: Any) -> None:
        """Keep rows with the reason code of each."""
        self._add(rows, self._names.take(pa.array(codes)))

    def add_lines(self, lines: Sequence[Any], schema: pa.Schema) -> None:
        """Keep lines of text files (see `windrow.cli.flawed_lines`) that are no rows of a stream with that schema."""
        nulls = pa.table([pa.nulls(len(lines), field.type) for field in schema], schema.names)
        self._add(nulls, pa.array([line.reason for line in lines], pa.string()), lines)

    def _add(self, rows: pa.Table, reasons: pa.Array, lines: Sequence[Any] = ()) -> None:
        for reason_count in reasons.value_counts():
            name = reason_count["values"].as_py()
            self.reasons[name] = self.reasons.get(name, 0) + reason_count["counts"].as_py()
        count = rows.num_rows
        values = (
            reasons,
            pa.repeat(pa.scalar(self._source, pa.string()), count),
            pa.repeat(pa.scalar(self._batch_id, pa.string()), count),
            pa.repeat(pa.scalar(self._store.clock(), REJECTION_COLUMNS[3].type), count),
        )
        wanted = rejected_schema(rows.schema)
        for field, column in zip(REJECTION_COLUMNS, values, strict=True):
            rows = rows.append_column(field, column)
        for field in wanted:
            if field.name not in rows.schema.names:
                line_values = [getattr(line, field.name[1:]) for line in lines] or [None] * count
                rows = rows.append_column(field, pa.array(line_values, field.type))
        rows = rows.cast(wanted)
        if self._output is None:
            self._file = StagedWriter(self._store)
            self._output = self._file.write_rows(rows.schema)
        self._output.add(rows)

    def seal(self) -> StagedFile | None:
        """Make the rows durable; None if there are none."""
        return None if self._file is None else self._file.seal()

    def discard(self) -> None:
        """Throw away what was written."""
        if self._file is not None:
            self._file.discard()

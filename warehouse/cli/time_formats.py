"""Times as files write them, other than in ISO form: by a pattern, as a number since 1970, or in some zone."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from windrow.cli.cells import convert_column
from windrow.errors import DefinitionError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True)
class TimeFormat:
    """How the times of a file are written.

    Args:
        pattern: As of DuckDB's `strptime`, such as ``%d/%b/%Y:%H:%M:%S %z``.
        epoch: The unit of numbers since 1970, ``s``, ``ms``, ``us`` or ``ns``.
        zone: Where times without a zone are meant; by default UTC.
    """

    pattern: str | None = None
    epoch: str | None = None
    zone: str | None = None

    def check(self) -> None:
        """Refuse what contradicts itself or is unknown, before a file is read."""
        import duckdb
        import pyarrow as pa

        if self.pattern is not None and self.epoch is not None:
            raise DefinitionError("times are either written by a pattern or counted since 1970; give one of the two")
        try:
            if self.zone is not None:
                self._localize(pa.array([0], pa.timestamp("us")))
            if self.pattern is not None:
                self._parse(pa.array(["x"]))
        except (pa.ArrowException, ValueError, duckdb.Error) as error:
            raise DefinitionError(f"such times cannot be read: {str(error).splitlines()[0]}") from None

    def convert(self, column: "pa.Array", kind: "pa.DataType") -> "pa.Array":
        """Convert a column from its intermediate type, as `convert_column` does. Raises `pa.ArrowException`."""
        import pyarrow as pa

        if not pa.types.is_timestamp(kind) or self == ISO_TIMES:
            return convert_column(column, kind)
        if self.epoch is not None:
            times = self._count(column)
        elif self.pattern is not None:
            times = self._parse(column)
        else:
            times = convert_column(column, pa.timestamp("us")) if not self._has_zones(column) else None
            if times is None:
                return convert_column(column, kind)
        if times.null_count > column.null_count:
            raise pa.ArrowInvalid("a time is not written like this")
        if times.type.tz is None:
            times = self._localize(times)
        return times.cast(kind, safe=False)  # a coarser unit leaves the end of a fraction out

    def _has_zones(self, column: "pa.Array") -> bool:
        import pyarrow.compute as pc

        return pc.any(pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)$")).as_py() is True

    def _localize(self, times: "pa.Array") -> "pa.Array":
        import pyarrow.compute as pc

        return pc.assume_timezone(times, self.zone or "UTC", ambiguous="earliest", nonexistent="raise")

    def _count(self, column: "pa.Array") -> "pa.Array":
        """Numbers since 1970, whole or with a fraction, as nanoseconds."""
        import pyarrow as pa
        import pyarrow.compute as pc

        factor = NANOSECONDS[str(self.epoch)]
        try:
            counted = pc.multiply_checked(column.cast(pa.int64()), factor)
        except pa.ArrowInvalid:  # one has a fraction, or is no number
            exact = pa.array([factor]).cast(pa.decimal128(19, 0)).cast(pa.decimal128(10, 0))[0]
            counted = pc.floor(pc.multiply(column.cast(pa.decimal128(27, 9)), exact)).cast(pa.int64())
        return counted.cast(pa.timestamp("ns", "UTC"))

    def _parse(self, column: "pa.Array") -> "pa.Array":
        import pyarrow as pa

        pattern = str(self.pattern).replace("'", "''")
        parsed = _connection().from_arrow(pa.table({"cell": column})).project(f"try_strptime(cell, '{pattern}') AS t")
        return parsed.to_arrow_table().column("t").combine_chunks()


ISO_TIMES = TimeFormat()
"""The form that every file may have."""


@cache
def _connection() -> "duckdb.DuckDBPyConnection":
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection

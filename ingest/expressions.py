"""The storage rules as Spark SQL: event time, rejection and the expiry column, row by row what the kernels compute.

The driver computes all of it again from the files that Spark wrote, so no difference can reach the catalog unseen.
"""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.column import Column

from windrow.append import Append
from windrow.indexes.partitioners import NEVER, Partitioner
from windrow.indexes.row_model import SEQ
from windrow.ingest.sort_key import ConstantArray, build_packed_key, quote_name, write_bigint
from windrow.rejection import EARLIEST_TIME

TS, EXP, CELL_COLUMN = "_windrow_ts", "_windrow_exp", "_windrow_place"
_EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"
_HORIZON_MARGIN = 315_576_000_000_000
_MAX_CYCLES = 1 << 16
_ROW_NUMBER_MASK = (1 << 33) - 1


@dataclass(frozen=True)
class TimeLimits:
    """What decides whether a row is taken, and in which expiry column it lies: fixed when an append begins."""

    now: int | None
    horizon: int


def can_sort_in_sql(append: Append) -> bool:
    """Whether the expiry column can be computed in SQL: a random layout only while its permutations are few."""
    partitioner, cycles = append.layout.partitioner(), _find_cycles(append)
    return append.layout.index.name != "random" or partitioner.columns == 1 or 0 < len(cycles) <= _MAX_CYCLES


def sort_rows(rows: DataFrame, append: Append, limits: TimeLimits) -> DataFrame:
    """`rows` (the stream's columns) with `_seq`, each partition in storage order.

    Rows that are not taken come last, without `_seq`; so do rows outside of what a packed order has room for.
    """
    model, spark = append.model, rows.sparkSession
    last = append.layout.partitioner().columns
    kept = ", ".join(quote_name(name) for name in append.schema.names)
    numbers = ConstantArray(TS)
    packing = build_packed_key(append, limits.now, limits.horizon, EXP if model.expires is not None else TS, numbers)
    reasons = build_rejection_sql(append, limits, numbers)
    outside = reasons if packing is None else f"{reasons} OR {packing.outside}"
    place = f"cast(CASE WHEN {outside} THEN {last} ELSE {build_cell_column_sql(append)} END as bigint)"
    # Counted only where rows are taken: the branch of a CASE is not run for the others.
    counted = (
        f"CASE WHEN {CELL_COLUMN} < {last} THEN monotonically_increasing_id() & {write_bigint(_ROW_NUMBER_MASK)} END"
    )
    if packing is not None:
        # One number decides, so that Spark sorts by radix and does not look at the rows.
        order = CELL_COLUMN
        sorted_by = f"shiftleft({CELL_COLUMN}, {packing.bits}) + CASE WHEN {CELL_COLUMN} < {last} THEN {packing.value} ELSE 0L END"
    else:
        by_expiry = [] if append.definition.longest_life is None else [model.expires or model.time]
        order = ", ".join([CELL_COLUMN, *(quote_name(name) for name in (*model.key, *by_expiry)), SEQ])
        sorted_by = CELL_COLUMN
    timed, times = _add_times(rows, append)
    with _temporary_view(timed) as view, contextlib.ExitStack() as stack:
        source = f"SELECT {kept}, {times}, {numbers.column()} AS {ConstantArray.ARRAY} FROM {view}"
        if append.layout.index.name == "random" and last > 1:
            cycles = stack.enter_context(_temporary_view(F.broadcast(_build_permutations(spark, append))))
            source = f"SELECT * FROM ({source}) LEFT JOIN {cycles} ON {_build_cycle_sql(append)} = _windrow_cycle"
        # One statement: each further step on a frame would be another analysis of the whole plan.
        numbered = f"SELECT {kept}, {counted} AS {SEQ}, {sorted_by} AS {CELL_COLUMN}"
        placed = f"SELECT *, {place} AS {CELL_COLUMN} FROM ({source})"
        return spark.sql(f"SELECT {kept}, {SEQ} FROM ({numbered} FROM ({placed})) SORT BY {order}")


def _add_times(rows: DataFrame, append: Append) -> tuple[DataFrame, str]:
    """`rows`, and SQL of the columns of their event times and, where they have their own, expiries."""
    names = {TS: append.model.time} | ({EXP: append.model.expires} if append.model.expires is not None else {})
    zoned = {place: isinstance(rows.schema[name].dataType, T.TimestampType) for place, name in names.items()}
    plain = [to_micros(rows, name).alias(place) for place, name in names.items() if not zoned[place]]
    times = [f"unix_micros({quote_name(name)}) AS {place}" if zoned[place] else place for place, name in names.items()]
    return rows.select("*", *plain) if plain else rows, ", ".join(times)


@contextlib.contextmanager
def _temporary_view(frame: DataFrame) -> Iterator[str]:
    """A frame as a view that SQL can name, for the time of a statement."""
    name = f"_windrow_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


def to_micros(rows: DataFrame, name: str) -> Column:
    """A timestamp column in microseconds since the epoch, read as UTC where it has no zone."""
    column = F.col(quote_name(name))
    if isinstance(rows.schema[name].dataType, T.TimestampType):
        return F.unix_micros(column)
    found = _reinterpret_timestamp(rows.sparkSession, column)
    if found is not None:
        return found
    # The same in plain SQL, slower: an interval of seconds is a decimal with six places.
    exact = f"cast(cast(({quote_name(name)} - {_EPOCH}) as interval second) as decimal(20, 6)) * 1000000"
    return F.expr(f"cast({exact} as bigint)")


def find_latest_time(rows: DataFrame, name: str, horizon: int) -> Column:
    """The greatest time in a timestamp column, in microseconds, leaving out what is absurd or after `horizon`."""
    ts = to_micros(rows, name)
    return F.max(F.when(ts.between(EARLIEST_TIME, horizon), ts))


def _reinterpret_timestamp(spark: Any, column: Column) -> Column | None:
    """A zoneless timestamp as the number that it is inside Spark; None if this Spark does not let us."""
    try:
        jvm = spark._jvm
        bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
        kinds = jvm.org.apache.spark.sql.types.DataTypes
        conversion = jvm.org.apache.spark.sql.catalyst.expressions.PreciseTimestampConversion
        return Column(bridge.column(conversion(bridge.expression(column._jc), kinds.TimestampNTZType, kinds.LongType)))
    except (AttributeError, TypeError):
        return None


def build_rejection_sql(append: Append, limits: TimeLimits, number: ConstantArray) -> str:
    """SQL that is true for a row that is not taken; never null. The kernel says why."""
    definition = append.definition
    horizon = min(limits.horizon, NEVER - _HORIZON_MARGIN)
    reasons = [f"{TS} IS NULL", f"{TS} < {write_bigint(EARLIEST_TIME)}", f"{TS} > {number(horizon)}"]
    if definition.expires is not None:
        reasons += [f"{EXP} IS NULL", f"{EXP} <= {TS}", f"{EXP} > {TS} + {write_bigint(definition.max_lifetime or 0)}"]
        if limits.now is not None:
            reasons.append(f"{EXP} <= {number(limits.now)}")
    elif limits.now is not None and (oldest := definition.model.find_expiry_cutoff(limits.now)) is not None:
        reasons.append(f"{TS} <= {number(oldest)}")
    return " OR ".join(reasons)


def build_cell_column_sql(append: Append) -> str:
    """SQL of the cell column of a row that is taken."""
    partitioner = append.layout.partitioner()
    if partitioner.columns == 1 or append.definition.longest_life is None:
        return "0"
    if append.layout.index.name == "random":
        place = f"pmod({_build_slot_sql(append, partitioner)}, {partitioner.columns})"
        return f"element_at(_windrow_permutation, cast({place} as int) + 1)"
    return f"pmod({_build_slot_sql(append, partitioner)}, {partitioner.columns})"


def _build_slot_sql(append: Append, partitioner: Partitioner) -> str:
    """SQL of the expiry slot, in steps of the layout's column span, rounded down as the partitioner does."""
    model = append.model
    offset = (model.lifetime or 0) - model.origin
    distance = f"({EXP if model.expires is not None else TS} + {write_bigint(offset)})"
    delta = write_bigint(model.delta)
    slot = f"({distance} div {delta} + CASE WHEN {distance} % {delta} > 0 THEN 1L ELSE 0L END)"
    step = partitioner.column_span
    return slot if step == 1 else f"(({slot} - pmod({slot}, {write_bigint(step)})) div {write_bigint(step)})"


def _build_cycle_sql(append: Append) -> str:
    partitioner = append.layout.partitioner()
    span, columns = _build_slot_sql(append, partitioner), write_bigint(partitioner.columns)
    return f"(({span} - pmod({span}, {columns})) div {columns})"


def _find_cycles(append: Append) -> range:
    """The cycles of a random layout that rows that are taken can expire in; empty if there is no telling."""
    now, life = append.now, append.definition.longest_life
    if now is None or life is None:
        return range(0)
    model, columns = append.model, append.layout.partitioner().columns
    first, last = model.slot_of(now), model.slot_of(append.horizon() + append.definition.max_ahead + life)
    return range(first // columns, last // columns + 2)


def _build_permutations(spark: Any, append: Append) -> DataFrame:
    partitioner = append.layout.partitioner()
    columns = partitioner.columns
    rows = [
        (cycle, [partitioner.column(cycle * columns + place) for place in range(columns)])
        for cycle in _find_cycles(append)
    ]
    found: DataFrame = spark.createDataFrame(rows, "_windrow_cycle bigint, _windrow_permutation array<int>")
    return found

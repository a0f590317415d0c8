"""The storage rules as Spark SQL, so that rows are sorted without leaving the JVM: times, rejection, cell column.

The driver computes all of it again from the files that Spark wrote, so no difference can reach the catalog unnoticed.
"""

import contextlib
import re
import uuid
from collections.abc import Iterator, Sequence
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
"""Ten years in microseconds: keeps sums of times below what a bigint holds."""
_MAX_CYCLES = 1 << 16
"""A table of more permutations is not broadcast; Python workers then place the rows."""
_ROW_NUMBER_MASK = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that number the rows of a partition."""


@dataclass(frozen=True)
class TimeLimits:
    """The clock and the latest time that is accepted, in microseconds; fixed when an append begins."""

    now: int | None
    horizon: int


def can_sort_in_sql(append: Append) -> bool:
    """Whether SQL can compute the cell column: for a random layout only while it has few permutations."""
    partitioner, cycles = append.layout.partitioner(), _find_cycles(append)
    return append.layout.index.name != "random" or partitioner.columns == 1 or 0 < len(cycles) <= _MAX_CYCLES


def sort_rows(rows: DataFrame, append: Append, limits: TimeLimits) -> DataFrame:
    """Add `_seq` to rows that have the stream's columns, and sort each partition in storage order.

    Rejected rows come last, without `_seq`, and so do rows that the packed sort key cannot represent.
    """
    model, spark = append.model, rows.sparkSession
    last = append.layout.partitioner().columns
    columns = ", ".join(quote_name(name) for name in append.schema.names)
    constants = ConstantArray(TS)
    packed = build_packed_key(append, limits.now, limits.horizon, EXP if model.expires is not None else TS, constants)
    rejected = build_rejection_sql(append, limits, constants)
    unsorted = rejected if packed is None else f"{rejected} OR {packed.outside}"
    cell_column = f"cast(CASE WHEN {unsorted} THEN {last} ELSE {build_cell_column_sql(append)} END as bigint)"
    # The branch of a CASE runs only for the rows that meet its condition, so rejected rows get no number.
    accepted = f"{CELL_COLUMN} < {last}"
    row_number = f"CASE WHEN {accepted} THEN monotonically_increasing_id() & {write_bigint(_ROW_NUMBER_MASK)} END"
    if packed is not None:
        # By a single number Spark sorts with a radix sort, without comparing rows.
        order = CELL_COLUMN
        sort_value = f"shiftleft({CELL_COLUMN}, {packed.bits}) + CASE WHEN {accepted} THEN {packed.value} ELSE 0L END"
    else:
        by_expiry = [] if append.definition.longest_life is None else [model.expires or model.time]
        order = ", ".join([CELL_COLUMN, *(quote_name(name) for name in (*model.key, *by_expiry)), SEQ])
        sort_value = CELL_COLUMN
    with_times, times = _add_times(rows, append)
    with _temporary_view(with_times) as view, contextlib.ExitStack() as stack:
        source = f"SELECT {columns}, {times}, {constants.column()} AS {ConstantArray.ARRAY} FROM {view}"
        if append.layout.index.name == "random" and last > 1:
            cycles = stack.enter_context(_temporary_view(F.broadcast(_build_permutations(spark, append))))
            source = f"SELECT * FROM ({source}) LEFT JOIN {cycles} ON {_build_cycle_sql(append)} = _windrow_cycle"
        # One statement, because Spark analyses the whole plan again after each step on a frame.
        numbered = f"SELECT {columns}, {row_number} AS {SEQ}, {sort_value} AS {CELL_COLUMN}"
        placed = f"SELECT *, {cell_column} AS {CELL_COLUMN} FROM ({source})"
        return spark.sql(f"SELECT {columns}, {SEQ} FROM ({numbered} FROM ({placed})) SORT BY {order}")


def leave_unsorted(rows: DataFrame, append: Append) -> DataFrame:
    """Rows as they come, without `_seq`: the driver sorts them, and numbers them as they lie in their files."""
    columns = [F.col(quote_name(name)) for name in append.schema.names]
    return rows.select(*columns, F.lit(None).cast(T.LongType()).alias(SEQ))


def _add_times(rows: DataFrame, append: Append) -> tuple[DataFrame, str]:
    """Give rows, and the SQL of their event times and, where rows have their own, expiries."""
    names = {TS: append.model.time} | ({EXP: append.model.expires} if append.model.expires is not None else {})
    has_zone = {column: isinstance(rows.schema[name].dataType, T.TimestampType) for column, name in names.items()}
    converted = [to_micros(rows, name).alias(column) for column, name in names.items() if not has_zone[column]]
    times = [
        f"unix_micros({quote_name(name)}) AS {column}" if has_zone[column] else column for column, name in names.items()
    ]
    return rows.select("*", *converted) if converted else rows, ", ".join(times)


@contextlib.contextmanager
def _temporary_view(frame: DataFrame) -> Iterator[str]:
    """Let SQL name a frame while the block runs."""
    name = f"_windrow_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        frame.sparkSession.catalog.dropTempView(name)


def to_micros(rows: DataFrame, name: str) -> Column:
    """Convert a timestamp column to microseconds since the epoch; without a zone it is UTC."""
    column = F.col(quote_name(name))
    if isinstance(rows.schema[name].dataType, T.TimestampType):
        return F.unix_micros(column)
    reinterpreted = _reinterpret_timestamp(rows.sparkSession, column)
    if reinterpreted is not None:
        return reinterpreted
    # Slower, but plain SQL: an interval of seconds is a decimal with six places.
    exact = f"cast(cast(({quote_name(name)} - {_EPOCH}) as interval second) as decimal(20, 6)) * 1000000"
    return F.expr(f"cast({exact} as bigint)")


def find_latest_time(rows: DataFrame, name: str, horizon: int) -> Column:
    """Find the greatest acceptable time of a timestamp column, in microseconds."""
    ts = to_micros(rows, name)
    return F.max(F.when(ts.between(EARLIEST_TIME, horizon), ts))


def _reinterpret_timestamp(spark: Any, column: Column) -> Column | None:
    """Take a zoneless timestamp as the number that Spark stores; None if this version of Spark does not allow it."""
    try:
        jvm = spark._jvm
        bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
        kinds = jvm.org.apache.spark.sql.types.DataTypes
        conversion = jvm.org.apache.spark.sql.catalyst.expressions.PreciseTimestampConversion
        return Column(bridge.column(conversion(bridge.expression(column._jc), kinds.TimestampNTZType, kinds.LongType)))
    except (AttributeError, TypeError):
        return None


def build_rejection_sql(append: Append, limits: TimeLimits, constants: ConstantArray) -> str:
    """Write the condition that is true, and never null, for a rejected row; the kernel later finds the reason."""
    definition = append.definition
    horizon = min(limits.horizon, NEVER - _HORIZON_MARGIN)
    conditions = [f"{TS} IS NULL", f"{TS} < {write_bigint(EARLIEST_TIME)}", f"{TS} > {constants(horizon)}"]
    if definition.expires is not None:
        conditions += [
            f"{EXP} IS NULL",
            f"{EXP} <= {TS}",
            f"{EXP} > {TS} + {write_bigint(definition.max_lifetime or 0)}",
        ]
        if limits.now is not None:
            conditions.append(f"{EXP} <= {constants(limits.now)}")
    elif limits.now is not None and (oldest := definition.model.find_expiry_cutoff(limits.now)) is not None:
        conditions.append(f"{TS} <= {constants(oldest)}")
    checks = (to_spark_sql(predicate, append.schema.names) for predicate, _ in definition.checks)
    conditions += [f"NOT coalesce(({check}), true)" for check in checks if check is not None]
    return " OR ".join(conditions)


_PLAIN_TOKEN = re.compile(r'\s*(?:("(?:[^"]|"")+"|[A-Za-z_]\w*)|(\d+(?:\.\d+)?|<=|>=|<>|!=|[-=<>(),]))')
_PLAIN_WORDS = frozenset(["and", "or", "not", "is", "null", "between", "in", "true", "false"])


def to_spark_sql(predicate: str, columns: Sequence[str]) -> str | None:
    """A check of a stream in Spark's SQL, if it has only what both engines understand alike; None otherwise.

    It saves the driver, which applies all checks itself, from sorting a file again for rows that Spark let through.
    """
    by_name, written, position = {name.lower(): name for name in columns}, [], 0
    while predicate[position:].strip():
        token = _PLAIN_TOKEN.match(predicate, position)
        if token is None:
            return None
        word, sign = token.groups()
        if word is None or word.lower() in _PLAIN_WORDS:
            written.append(sign or word)
        elif (name := by_name.get(word.strip('"').replace('""', '"').lower())) is not None:
            written.append(quote_name(name))
        else:
            return None
        position = token.end()
    return " ".join(written)


def build_cell_column_sql(append: Append) -> str:
    """Write the cell column of an accepted row."""
    partitioner = append.layout.partitioner()
    if partitioner.columns == 1 or append.definition.longest_life is None:
        return "0"
    if append.layout.index.name == "random":
        position = f"pmod({_build_slot_sql(append, partitioner)}, {partitioner.columns})"
        return f"element_at(_windrow_permutation, cast({position} as int) + 1)"
    return f"pmod({_build_slot_sql(append, partitioner)}, {partitioner.columns})"


def _build_slot_sql(append: Append, partitioner: Partitioner) -> str:
    """Write the expiry slot in steps of the layout's column span, rounded down as the partitioner does."""
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
    """Find the cycles of a random layout in which accepted rows can expire; empty if that is unknown."""
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
    frame: DataFrame = spark.createDataFrame(rows, "_windrow_cycle bigint, _windrow_permutation array<int>")
    return frame

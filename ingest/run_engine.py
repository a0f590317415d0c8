"""Spark as the engine of periodic queries: it plans their statements over a round's snapshot, and runs them.

Clauses, windows and pruning are those of `windrow.spark.sql`; when a run is due and how it is delivered is decided
elsewhere, alike for every engine.
"""

import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, VariantType

from windrow.errors import DefinitionError, QueryError
from windrow.ingest.errors import SPARK_ERRORS, describe_error
from windrow.ingest.statement import Arguments, plan_statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windrow.snapshot import Snapshot


_CALL_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, OSError)
"""What a call can raise whose JVM may be gone."""


class SparkEngine:
    """Runs statements of periodic queries in a Spark session.

    Args:
        spark: The session; by default the one that is active in this process.

    Raises:
        DefinitionError: it is a client of Spark Connect.
    """

    def __init__(self, spark: "SparkSession | None" = None) -> None:
        session = SparkSession.active() if spark is None else spark
        if not hasattr(session, "_jsparkSession"):
            raise DefinitionError(
                "periodic queries need a Spark session of this process; this one is a client of Spark Connect"
            )
        self._spark = session

    def plan(self, snapshot: "Snapshot", sql: str, params: Arguments, context: Any) -> "SparkStatement":
        """Plan a statement; what it reads must be of the warehouse, and what it gives must fit into a results table."""
        try:
            frame, references = plan_statement(self._spark, snapshot, sql, params, context)
            return SparkStatement(self._spark, frame, references)
        except SPARK_ERRORS as error:
            raise QueryError(describe_error(error)) from None

    def is_alive(self) -> bool:
        """Whether the session can still run anything: its JVM is there, and nobody has stopped it."""
        context = self._spark.sparkContext
        try:
            return context._jsc is not None and not context._jsc.sc().isStopped()
        except _CALL_ERRORS:
            return False


class SparkStatement:
    """A statement that is planned over a snapshot, which stays open until it has been read.

    Args:
        spark: The session.
        frame: Its answer.
        references: The relations that it reads.
    """

    def __init__(self, spark: "SparkSession", frame: "DataFrame", references: tuple[Any, ...]) -> None:
        self._context, self._frame = spark.sparkContext, frame
        self._tag = f"windrow-{uuid.uuid4().hex}"
        self.references = references
        self.columns = pa.schema([_to_arrow_field(field) for field in frame.schema.toNullable().fields])

    def read(self) -> pa.Table:
        """Run it, and bring its answer to the driver, where `spark.driver.maxResultSize` bounds it."""
        self._context.addJobTag(self._tag)  # of this thread
        try:
            return self._frame.toArrow().cast(self.columns)
        except _CALL_ERRORS as error:
            raise QueryError(describe_error(error)) from None
        finally:
            self._remove_tag()

    def _remove_tag(self) -> None:
        try:
            self._context.removeJobTag(self._tag)
        except _CALL_ERRORS:  # the JVM is gone, and the tag with it
            return

    def interrupt(self) -> None:
        """Cancel its jobs; one that begins later is met when this is repeated."""
        try:
            self._context.cancelJobsWithTag(self._tag)
        except _CALL_ERRORS:
            return


def _to_arrow_field(field: StructField) -> pa.Field:
    """A column of an answer as results keep it: times in UTC, all nullable, as plans differ in what they know."""
    if _contains_variant(field.dataType):
        raise _refuse_type(field)
    try:
        kind = to_arrow_type(field.dataType, timezone="UTC")
    except SPARK_ERRORS:
        raise _refuse_type(field) from None
    return pa.field(field.name, kind)


def _refuse_type(field: StructField) -> DefinitionError:
    return DefinitionError(
        f"column {field.name!r} has Spark's type {field.dataType.simpleString()}, which results cannot be kept in; "
        "cast it to another"
    )


def _contains_variant(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_contains_variant(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _contains_variant(kind.elementType)
    if isinstance(kind, MapType):
        return _contains_variant(kind.keyType) or _contains_variant(kind.valueType)
    return isinstance(kind, VariantType)

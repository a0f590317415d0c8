"""Parquet files, named one by one, as a relation of Spark.

`DataFrameReader.parquet` takes names for patterns, looks for files and runs a job when there are many names. Those of
segments are known, so the relation is made of the files themselves.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.column import _to_seq
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DATASOURCES = "org.apache.spark.sql.execution.datasources"
LISTING_SETTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Spark looks for more files than this by a job."""


_handles: "weakref.WeakKeyDictionary[Any, dict[str, Any]]" = weakref.WeakKeyDictionary()
"""Classes and singletons of each JVM, by the context that runs in it: to look one up takes some calls."""


def find_class(spark: Any, name: str) -> Any:
    """A class of Java or Scala in the JVM of a session."""
    return _find_handle(spark, name, lambda jvm: getattr(jvm, name))


def find_object(spark: Any, name: str) -> Any:
    """A singleton of Scala in the JVM of a session."""
    return _find_handle(spark, f"{name}$", lambda jvm: getattr(getattr(jvm, f"{name}$"), "MODULE$"))


def _find_handle(spark: Any, name: str, look_up: Callable[[Any], Any]) -> Any:
    context = spark.sparkContext
    handles = _handles.setdefault(context, {})
    if name not in handles:
        handles[name] = look_up(context._jvm)
    return handles[name]


class FileRelations:
    """Makes relations of files, and temporary views of them, in one session of this process.

    Args:
        spark: The session, whose temporary views are changed.
    """

    def __init__(self, spark: Any) -> None:
        self._spark, self._session = spark, spark._jsparkSession
        self.locations: list[Any] = []
        """The lists of files that were made: a plan that reads one refers to it."""

    def make(self, urls: Sequence[str], schema: Any, options: Mapping[str, str]) -> "DataFrame":
        """The rows of the files.

        Args:
            urls: The files; there may be none.
            schema: What is read of them.
            options: Of Hadoop's file system.
        """
        spark = self._spark
        path = find_class(spark, "org.apache.hadoop.fs.Path")
        columns = self._session.parseDataType(schema.json()).asNullable()  # as Spark's reader does
        settings = find_object(spark, "scala.collection.immutable.Map").empty()
        for name, value in options.items():
            settings = settings.updated(name, value)
        wrap, nothing = find_class(spark, "scala.Option").apply, find_object(spark, "scala.None")
        location = find_class(spark, f"{_DATASOURCES}.InMemoryFileIndex")(
            self._session,
            _to_seq(spark.sparkContext, [path(url) for url in urls]),
            settings,
            wrap(columns),
            find_object(spark, f"{_DATASOURCES}.NoopCache"),
            wrap(find_object(spark, f"{_DATASOURCES}.PartitionSpec").emptySpec()),
            nothing,
        )
        self.locations.append(location)
        parquet = find_class(spark, f"{_DATASOURCES}.parquet.ParquetFileFormat")()
        relation = find_class(spark, f"{_DATASOURCES}.HadoopFsRelation")(
            location, location.partitionSchema(), columns, nothing, parquet, settings, self._session
        )
        return ClassicFrame(self._session.baseRelationToDataFrame(relation), spark)

    def offer(self, name: str, plan: Any) -> None:
        """Let statements of the session find an analyzed plan by a name; no command is run for it."""
        spark = self._spark
        helper = find_object(spark, "org.apache.spark.sql.execution.command.ViewHelper")
        identifier = find_class(spark, "org.apache.spark.sql.catalyst.TableIdentifier")(name)
        nothing, none = find_object(spark, "scala.None"), find_object(spark, "scala.collection.immutable.Nil")
        replaced = find_object(spark, "scala.collection.immutable.Map").empty().lift()  # there is no view to replace
        view = helper.createTemporaryViewRelation(
            identifier, self._session, False, replaced, nothing, plan, plan, none, nothing
        )
        self._session.sessionState().catalog().createTempView(name, view, True)

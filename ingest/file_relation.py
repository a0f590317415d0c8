"""Parquet files, named one by one, as a relation of Spark.

`DataFrameReader.parquet` takes names for patterns, looks for files and runs a job when there are many names. Those of
segments are known, so the relation is made of the files themselves.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DATASOURCES = "org.apache.spark.sql.execution.datasources"
LISTING_SETTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Spark looks for more files than this by a job."""
_BLOCK_BYTES = 1 << 27
"""What Hadoop is told of files whose size is known: the size of HDFS's blocks. Spark cuts files by its own settings."""


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

    def plan(
        self, urls: Sequence[str], schema: Any, options: Mapping[str, str], sizes: Sequence[int] | None = None
    ) -> Any:
        """A plan of the JVM that reads the rows of the files.

        Args:
            urls: The files; there may be none.
            schema: What is read of them.
            options: Of Hadoop's file system.
            sizes: Of the files in bytes, where they are known and Spark need not ask for them.
        """
        spark = self._spark
        columns = self._session.parseDataType(schema.json()).asNullable()  # as Spark's reader does
        settings = find_object(spark, "scala.collection.immutable.Map").empty()
        for name, value in options.items():
            settings = settings.updated(name, value)
        wrap, nothing = find_class(spark, "scala.Option").apply, find_object(spark, "scala.None")
        paths = self._make_paths(urls) if urls else find_object(spark, "scala.collection.immutable.Nil")
        known = find_object(spark, f"{_DATASOURCES}.NoopCache") if sizes is None else self._note_sizes(paths, sizes)
        location = find_class(spark, f"{_DATASOURCES}.InMemoryFileIndex")(
            self._session,
            paths,
            settings,
            wrap(columns),
            known,
            wrap(find_object(spark, f"{_DATASOURCES}.PartitionSpec").emptySpec()),
            nothing,
        )
        known.invalidateAll()
        self.locations.append(location)
        parquet = find_class(spark, f"{_DATASOURCES}.parquet.ParquetFileFormat")()
        relation = find_class(spark, f"{_DATASOURCES}.HadoopFsRelation")(
            location, location.partitionSchema(), columns, nothing, parquet, settings, self._session
        )
        return find_object(spark, f"{_DATASOURCES}.LogicalRelation").apply(relation, False)

    def make_frame(self, plan: Any) -> "DataFrame":
        """A plan as a DataFrame of the session."""
        datasets = find_class(self._spark, "org.apache.spark.sql.classic.Dataset")
        return ClassicFrame(datasets.ofRows(self._session, plan), self._spark)

    def _make_paths(self, urls: Sequence[str]) -> Any:
        """The paths of files, by as many calls into the JVM for a thousand as for one."""
        spark = self._spark
        texts = find_class(spark, "java.util.regex.Pattern").compile("\0").split("\0".join(urls))
        paths = find_class(spark, "org.apache.hadoop.util.StringUtils").stringToPath(texts)
        return find_object(spark, "scala.collection.immutable.ArraySeq").unsafeWrapArray(paths)

    def _note_sizes(self, paths: Any, sizes: Sequence[int]) -> Any:
        """What Spark looks up before it asks a file system about files; it is emptied when they have been named."""
        spark = self._spark
        known = find_object(spark, f"{_DATASOURCES}.FileStatusCache").getOrCreate(self._session)
        make_status, gateway = find_class(spark, "org.apache.hadoop.fs.FileStatus"), spark.sparkContext._gateway
        for number, size in enumerate(sizes):
            path, statuses = paths.apply(number), gateway.new_array(make_status, 1)
            statuses[0] = make_status(size, False, 1, _BLOCK_BYTES, 0, path)
            known.putLeafFiles(path, statuses)
        return known

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

"""Parquet files, named one by one, as a relation of Spark.

`DataFrameReader.parquet` takes names for patterns, looks for files and runs a job when there are many names. Those of
segments are known, so the relation is made of the files themselves.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.column import _to_seq
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DATASOURCES = "org.apache.spark.sql.execution.datasources"
LISTING_SETTING = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Spark looks for more files than this by a job."""


class FileRelations:
    """Makes relations of files, and temporary views of them, in one session of this process.

    Args:
        spark: The session, whose settings and temporary views are changed.
    """

    def __init__(self, spark: Any) -> None:
        self._spark, self._jvm = spark, spark.sparkContext._jvm
        self._session = spark._jsparkSession
        self._none = self.object("scala.None")
        self._no_options = self.object("scala.collection.immutable.Map").empty()

    def object(self, name: str) -> Any:
        """A singleton of Scala."""
        return getattr(getattr(self._jvm, f"{name}$"), "MODULE$")

    def kind(self, name: str) -> Any:
        """A class of the JVM, by one call."""
        return getattr(self._jvm, name)

    def make(self, urls: Sequence[str], schema: Any, options: dict[str, str]) -> "DataFrame":
        """The rows of the files.

        Args:
            urls: The files; there may be none.
            schema: What is read of them.
            options: Of Hadoop's file system.
        """
        path = self.kind("org.apache.hadoop.fs.Path")
        paths = _to_seq(self._spark.sparkContext, [path(url) for url in urls])
        columns = self._session.parseDataType(schema.json()).asNullable()  # as Spark's reader does
        settings = self._no_options
        for name, value in options.items():
            settings = settings.updated(name, value)
        wrap = self.kind("scala.Option").apply
        unpartitioned = wrap(self.object(f"{_DATASOURCES}.PartitionSpec").emptySpec())
        index = self.kind(f"{_DATASOURCES}.InMemoryFileIndex")(
            self._session,
            paths,
            settings,
            wrap(columns),
            self.object(f"{_DATASOURCES}.NoopCache"),
            unpartitioned,
            self._none,
        )
        layout = self.kind(f"{_DATASOURCES}.parquet.ParquetFileFormat")()
        relation = self.kind(f"{_DATASOURCES}.HadoopFsRelation")(
            index, index.partitionSchema(), columns, self._none, layout, settings, self._session
        )
        return ClassicFrame(self._session.baseRelationToDataFrame(relation), self._spark)

    def offer(self, name: str, plan: Any) -> None:
        """Let statements of the session find an analyzed plan by a name; no command is run for it."""
        helper = self.object("org.apache.spark.sql.execution.command.ViewHelper")
        identifier = self.kind("org.apache.spark.sql.catalyst.TableIdentifier")(name)
        nothing = self.object("scala.collection.immutable.Nil")
        view = helper.createTemporaryViewRelation(
            identifier, self._session, False, self._no_options.lift(), self._none, plan, plan, nothing, self._none
        )
        self._session.sessionState().catalog().createTempView(name, view, True)

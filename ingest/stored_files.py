"""Segment files for Spark's executors where the warehouse is in an object store: none of them needs its folder.

Spark itself reads objects through Hadoop's file systems (`s3a` for S3); Python workers fetch what the folder of their
machine does not have.
"""

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.catalog.object_log import find_objects
from windrow.catalog.records import ObjectEntry
from windrow.errors import DamageError, StorageError
from windrow.files import compute_digest
from windrow.indexes.segment_reader import SegmentFileReader
from windrow.ingest.session import to_file_url
from windrow.object_store.location import MOST_REQUESTS, open_objects, parse_location
from windrow.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_SETTING = "spark.windrow.files"
"""``folder`` or ``store``: where Spark's executors read; by default the folder where Spark runs in one process."""


@dataclass(frozen=True)
class StoredFiles:
    """Files of a partition that are in an object store: a worker gets this."""

    uri: str
    entries: Mapping[str, ObjectEntry]


def find_stored_files(store: Store, files: Collection[str]) -> StoredFiles | None:
    """Those of the files that are in the store; None of a warehouse that has none."""
    if store.remote is None:
        return None
    entries = store.catalog.read(lambda tables: find_objects(tables, files))
    return StoredFiles(store.remote.entry.uri, entries)


@contextmanager
def open_files(
    path: str, checksums: Mapping[str, bytes | None], stored: StoredFiles | None
) -> Iterator[SegmentFileReader]:
    """A reader of files in a worker, which has the warehouse's folder or fetches what it reads.

    Args:
        path: The folder.
        checksums: What the files are compared with.
        stored: Those that are in an object store.
    """
    if stored is None:
        yield SegmentFileReader(Path(path).absolute(), checksums.get)
        return
    with tempfile.TemporaryDirectory(prefix="windrow-") as folder:
        reader = SegmentFileReader(Path(folder), checksums.get)
        reader.provider = _WorkerFiles(Path(path).absolute(), Path(folder), stored)
        yield reader


class _WorkerFiles:
    """Brings the files of one task into a folder of its own: as links where the machine has them, else by fetching.

    Args:
        shared: The warehouse's folder, which may not be there.
        folder: The task's own.
        stored: What is in the store.
    """

    def __init__(self, shared: Path, folder: Path, stored: StoredFiles) -> None:
        self._shared, self._folder, self._stored = shared, folder, stored
        self._objects = open_objects(parse_location(stored.uri))

    def touch(self, files: Iterable[str]) -> None:
        pass

    def bring(self, files: Collection[str]) -> None:
        missing = [file for file in files if not self._has(file)]
        if missing:
            with ThreadPoolExecutor(MOST_REQUESTS) as pool:
                list(pool.map(self._fetch, missing))

    hold = bring

    def _has(self, file: str) -> bool:
        """Whether a file is in the task's folder, where it is linked if the machine has it."""
        target = self._folder / file
        if target.exists():
            return True
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            os.link(self._shared / file, target)
            return True
        return False

    def _fetch(self, file: str) -> None:
        entry, target = self._stored.entries.get(file), self._folder / file
        if entry is None:
            return
        with target.open("xb") as sink:
            self._objects.fetch(file, sink)
        if (target.stat().st_size, compute_digest(target)) != (entry.bytes, entry.digest):
            target.unlink()
            raise DamageError(
                f"object {self._objects.uri(file)} does not have the checksum with which it was written; "
                "run 'windrow check'"
            )

    def replace(self, file: str) -> bool:
        target = self._folder / file
        if file not in self._stored.entries or target.stat().st_nlink == 1:
            return False  # what was fetched was compared already
        target.unlink()
        self._fetch(file)
        return True


class FileLocations:
    """Where Spark's executors read files: in the warehouse's folder, or in its object store.

    Args:
        store: The warehouse.
        spark: The session.
    """

    def __init__(self, store: Store, spark: "SparkSession") -> None:
        self._root, self._store = store.root, store
        self._location = None
        self.options: dict[str, str] = {}
        """Of Spark's reader."""
        wanted = spark.conf.get(FILES_SETTING, None)
        if wanted not in (None, "folder", "store"):
            raise StorageError(f"{FILES_SETTING} is {wanted!r}; set it to 'folder' or 'store'")
        is_one_process = (spark.conf.get("spark.master", None) or "").partition("[")[0] == "local"
        if store.remote is not None and (wanted == "store" or (wanted is None and not is_one_process)):
            self._location = parse_location(store.remote.entry.uri)
            self._objects = store.remote.objects
            if self._location.scheme == "s3":
                _require_s3a(spark)
                self._add_s3a_options()

    @property
    def in_folder(self) -> bool:
        """Whether it is the folder: then files must be there, and are compared with their checksums by us."""
        return self._location is None

    def find_sizes(self, paths: Sequence[Path]) -> list[int] | None:
        """The sizes of objects, so that a store is not asked for them one by one; None of files of the folder."""
        if self._location is None or not paths:
            return None
        files = [str(path.relative_to(self._root)) for path in paths]
        entries = self._store.catalog.read(lambda tables: find_objects(tables, files))
        return [entries[file].bytes for file in files] if len(entries) == len(files) else None

    def find(self, path: Path) -> str:
        """The URL of a file of the folder."""
        if self._location is None:
            return to_file_url(path)
        uri = self._objects.uri(str(path.relative_to(self._root)))
        scheme, _, rest = uri.partition("://")
        if scheme == "file":
            return to_file_url(Path("/" + rest.lstrip("/")))
        return f"{'s3a' if scheme == 's3' else scheme}://{rest}"

    def _add_s3a_options(self) -> None:
        assert self._location is not None
        endpoint, region = self._location.option("endpoint"), self._location.option("region")
        bucket = f"fs.s3a.bucket.{self._location.host}"
        if endpoint:
            scheme = self._location.option("scheme") or "https"
            self.options |= {
                f"{bucket}.endpoint": f"{scheme}://{endpoint}",
                f"{bucket}.path.style.access": "true",
                f"{bucket}.connection.ssl.enabled": str(scheme == "https").lower(),
            }
        if region:
            self.options[f"{bucket}.endpoint.region"] = region


def _require_s3a(spark: Any) -> None:
    """Refuse to plan what no executor could read."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:  # Spark Connect: the server knows, and says so itself
        return
    try:
        jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass("s3a", spark._jsc.hadoopConfiguration())
    except Exception as error:  # py4j's, of whatever Hadoop raises
        raise StorageError(
            "Spark's executors read objects of S3 by s3a, which this session does not have: start it with "
            "--packages org.apache.hadoop:hadoop-aws of its Hadoop's version, which executors get too, or read with "
            "spark.read.format('windrow'), whose Python workers need only windrow[s3]"
        ) from error

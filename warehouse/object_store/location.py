"""Where objects lie: a bucket of S3 or GCS, HDFS or a folder, written, read by range and deleted by name.

Nothing here lists, renames or reads after deleting. Only `put_if_absent` is conditional: where a store has no such
write, it refuses.
"""

import contextlib
import datetime as dt
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import pyarrow as pa

from windrow.errors import FormatError, StorageError, WindrowError

if TYPE_CHECKING:
    from pyarrow import fs

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hdfs": "hdfs", "file": "file"}
_OPTIONS = {"s3": frozenset(("region", "endpoint", "scheme")), "gs": frozenset(), "hdfs": frozenset(),
            "file": frozenset()}  # fmt: skip
_ATTEMPTS = 4
"""How often a request is made before an error of the store is ours. Not measured, as the next two."""
_CONNECT_SECONDS = 5.0
_REQUEST_SECONDS = 30.0
_MOST_DELETED = 1000
"""Objects that one request of S3 can delete."""
MOST_REQUESTS = 16
"""Requests at a time, which hides most of a store's latency (`bench scale`)."""
_CHUNK = 1 << 20
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")


class Sink(Protocol):
    """Where the bytes of an object go."""

    def write(self, chunk: bytes, /) -> int:
        """Take some bytes."""


@dataclass(frozen=True)
class Location:
    """A parsed URI of a place for objects."""

    scheme: str
    host: str
    """The bucket; of HDFS the name node, with its port; of a folder nothing."""
    prefix: str
    """Without slashes at its ends; of a folder an absolute path."""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def uri(self) -> str:
        """As it is remembered."""
        query = f"?{urlencode(self.options)}" if self.options else ""
        path = quote(self.prefix)
        return f"{self.scheme}://{self.host}{path if path.startswith('/') else f'/{path}'}{query}"

    def option(self, name: str) -> str | None:
        """One of the options."""
        return dict(self.options).get(name)


def parse_location(uri: str) -> Location:
    """The location that a URI names, or an error that says what is wrong with it."""
    if not isinstance(uri, str) or "://" not in uri:
        raise FormatError(f"segments={uri!r} is no URI; write one such as 's3://bucket/prefix' or 'file:///folder'")
    try:
        parts = urlsplit(uri)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        host = parts.netloc
    except ValueError as error:
        raise FormatError(f"segments={uri!r} is no URI ({error}); write one such as 's3://bucket/prefix'") from None
    scheme = _SCHEMES.get(parts.scheme.lower())
    if scheme is None:
        raise FormatError(f"segments={uri!r} begins with {parts.scheme!r}; it may be s3, gs, hdfs or file")
    if "@" in host:
        raise FormatError(
            f"segments='{parts.scheme}://…@{host.rpartition('@')[2]}' has credentials in it, and would be remembered; "
            "give them as the store's own variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if parts.fragment:
        raise FormatError(f"segments={uri!r} has a '#' in it; choose another prefix")
    for name in options.keys() - _OPTIONS[scheme]:
        allowed = ", ".join(sorted(_OPTIONS[scheme])) or "none"
        raise FormatError(f"segments={uri!r} has the option {name!r}; options of {scheme} are: {allowed}")
    path = unquote(parts.path)
    if any(part in (".", "..") for part in path.split("/")):
        raise FormatError(f"segments={uri!r} has '.' or '..' in its path; write the path without them")
    if scheme == "file":
        if host not in ("", "localhost") or not path.strip("/"):
            raise FormatError(f"segments={uri!r} must name a folder of this machine, such as 'file:///srv/segments'")
        return Location(scheme, "", "/" + path.strip("/"))
    if scheme in ("s3", "gs") and not _BUCKET.fullmatch(host):
        raise FormatError(f"segments={uri!r} names no bucket; write one such as '{scheme}://bucket/prefix'")
    prefix = path.strip("/")
    return Location(scheme, host, f"/{prefix}" if scheme == "hdfs" else prefix, tuple(sorted(options.items())))


@contextlib.contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Turn a store's errors into ours: what failed, why, and that nothing was changed."""
    try:
        yield
    except WindrowError:
        raise
    except Exception as error:
        if not _is_of_a_store(error):
            raise
        raise StorageError(f"{what} failed: {_describe(error)}; nothing was changed") from error


def _is_of_a_store(error: Exception) -> bool:
    if isinstance(error, OSError | pa.ArrowException):
        return True
    return type(error).__module__.partition(".")[0] in ("botocore", "boto3", "urllib3")


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    code = (getattr(error, "response", None) or {}).get("Error", {}).get("Code", "")
    for sign, why in (
        ("NoSuchBucket", "there is no such bucket; create it or check the URI"),
        ("NO_SUCH_BUCKET", "there is no such bucket; create it or check the URI"),
        ("AccessDenied", "access was denied; check the credentials and the rights to the bucket"),
        ("ACCESS_DENIED", "access was denied; check the credentials and the rights to the bucket"),
        ("Forbidden", "access was denied; check the credentials and the rights to the bucket"),
        ("InvalidAccessKeyId", "the access key is unknown; check the credentials"),
        ("INVALID_ACCESS_KEY_ID", "the access key is unknown; check the credentials"),
        ("SignatureDoesNotMatch", "the secret key is wrong; check the credentials"),
        ("NoCredentials", "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("Unable to locate credentials", "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ):
        if sign in code or sign in text:
            return why
    return text[:300] or type(error).__name__


class ObjectStore:
    """Objects under a location, by their names relative to it; HDFS and GCS, through Arrow.

    Args:
        location: Where.
    """

    has_conditional_writes = False
    """Whether `put_if_absent` can be asked."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def uri(self, name: str) -> str:
        """The whole URI of an object, without options."""
        return f"{self.location.scheme}://{self.location.host}/{self._key(name).lstrip('/')}"

    def _key(self, name: str) -> str:
        return f"{self.location.prefix}/{name}".lstrip("/")

    @cached_property
    def _fs(self) -> "tuple[fs.FileSystem, str]":
        from pyarrow import fs

        if self.location.scheme == "gs":
            # By itself Arrow would ask for credentials or an answer for a quarter of an hour.
            patient = fs.GcsFileSystem(retry_time_limit=dt.timedelta(seconds=_REQUEST_SECONDS))
            return patient, f"{self.location.host}/{self.location.prefix}".strip("/")
        opened, path = fs.FileSystem.from_uri(self.location.uri)
        return opened, path

    def _path(self, name: str) -> str:
        return f"{self._fs[1]}/{name}"

    def put(self, name: str, content: bytes) -> None:
        """Write a small object, also over one that is there; it is whole, or the call fails."""
        with store_errors(f"writing {self.uri(name)}"):
            self._put(name, io.BytesIO(content), len(content))

    def put_file(self, name: str, path: Path) -> None:
        """Write an object out of a file; it is whole, or the call fails."""
        with store_errors(f"writing {self.uri(name)}"), path.open("rb") as source:
            self._put(name, source, os.fstat(source.fileno()).st_size)

    def _put(self, name: str, source: BinaryIO, size: int) -> None:
        from pyarrow import fs

        path = self._path(name)
        if self.location.scheme == "hdfs":
            self._fs[0].create_dir(path.rpartition("/")[0], recursive=True)
        with self._fs[0].open_output_stream(path) as sink:
            for chunk in _chunks(source):
                sink.write(chunk)
        # A stream that is closed after a lost connection may have made an object of a part.
        info = self._fs[0].get_file_info(path)
        if info.type != fs.FileType.File or info.size != size:
            raise OSError(f"{info.size} of {size} bytes arrived")

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write an object unless one of the name is there; False if one is. Of all who try, one succeeds."""
        raise NotImplementedError(f"{name} of {len(content)} bytes: has_conditional_writes says no")

    def fetch(self, name: str, sink: Sink) -> None:
        """Write the bytes of an object into `sink`, by one request where the store is S3."""
        with store_errors(f"reading {self.uri(name)}"):
            self._fetch(name, sink)

    def _fetch(self, name: str, sink: Sink) -> None:
        with self._fs[0].open_input_stream(self._path(name)) as source:
            shutil.copyfileobj(source, sink, _CHUNK)

    def read_if_present(self, name: str) -> bytes | None:
        """The bytes of an object; None if there is none."""
        content = io.BytesIO()
        with store_errors(f"reading {self.uri(name)}"):
            try:
                self._fetch(name, content)
            except FileNotFoundError:
                return None
        return content.getvalue()

    def size(self, name: str) -> int | None:
        """The size of an object; None if there is none."""
        with store_errors(f"looking at {self.uri(name)}"):
            return self._size(name)

    def _size(self, name: str) -> int | None:
        from pyarrow import fs

        info = self._fs[0].get_file_info(self._path(name))
        return None if info.type != fs.FileType.File else int(info.size)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; they may be gone already."""
        with store_errors(f"deleting objects of {self.location.uri}"):
            self._delete(names)

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._fs[0].delete_file(self._path(name))


class _FolderStore(ObjectStore):
    """Objects as files of a folder, such as a mounted disk of another machine."""

    has_conditional_writes = True

    def _path(self, name: str) -> str:
        return f"{self.location.prefix}/{name}"

    def _put(self, name: str, source: BinaryIO, size: int) -> None:
        del size
        path, hidden = self._write_hidden(name, source)
        hidden.replace(path)
        _sync(path.parent)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with store_errors(f"writing {self.uri(name)}"):
            path, hidden = self._write_hidden(name, io.BytesIO(content))
            try:
                os.link(hidden, path)  # as O_EXCL, but of a file that is whole
            except FileExistsError:
                return False
            finally:
                hidden.unlink()
            _sync(path.parent)
            return True

    def _write_hidden(self, name: str, source: BinaryIO) -> tuple[Path, Path]:
        path = Path(self._path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            with hidden.open("xb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK)
                sink.flush()
                os.fsync(sink.fileno())
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        return path, hidden

    def _fetch(self, name: str, sink: Sink) -> None:
        with open(self._path(name), "rb") as source:
            shutil.copyfileobj(source, sink, _CHUNK)

    def _size(self, name: str) -> int | None:
        try:
            return os.stat(self._path(name)).st_size
        except FileNotFoundError:
            return None

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            Path(self._path(name)).unlink(missing_ok=True)


class _S3Store(ObjectStore):
    """Objects of a bucket of S3, or of a store with its interface, through boto3.

    Arrow asks twice to read an object and four times to write one, gives up headers such as If-None-Match without a
    word, and its deletions ask and write too; here each of these is one request.
    """

    has_conditional_writes = True

    @cached_property
    def _client(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise StorageError(
                f"segments in {self.location.uri} need one more package: pip install 'windrow[s3]'"
            ) from None
        endpoint, scheme = self.location.option("endpoint"), self.location.option("scheme") or "https"
        region = self.location.option("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return boto3.session.Session().client(
            "s3",
            region_name=region or "us-east-1",
            endpoint_url=f"{scheme}://{endpoint}" if endpoint else None,
            config=Config(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_REQUEST_SECONDS,
                retries={"total_max_attempts": _ATTEMPTS, "mode": "standard"},
                max_pool_connections=MOST_REQUESTS,
                s3={"addressing_style": "path"} if endpoint else {},
            ),
        )

    def _of(self, name: str) -> dict[str, str]:
        return {"Bucket": self.location.host, "Key": self._key(name)}

    def _put(self, name: str, source: BinaryIO, size: int) -> None:
        self._client.put_object(**self._of(name), Body=source, ContentLength=size)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        from botocore.exceptions import ClientError

        with store_errors(f"writing {self.uri(name)}"):
            try:
                self._client.put_object(**self._of(name), Body=content, IfNoneMatch="*")
            except ClientError as error:
                if _status(error) == 412:
                    # A request that was repeated after a lost connection may have been taken the first time.
                    return self.read_if_present(name) == content
                if _status(error) == 409:
                    raise OSError("another machine is writing it just now; try again") from None
                raise
            return True

    def _fetch(self, name: str, sink: Sink) -> None:
        from botocore.exceptions import ClientError

        try:
            body = self._client.get_object(**self._of(name))["Body"]
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") == "NoSuchKey":
                raise FileNotFoundError(f"there is no object {self.uri(name)}") from None
            raise
        with contextlib.closing(body):
            for chunk in body.iter_chunks(_CHUNK):
                sink.write(chunk)

    def _size(self, name: str) -> int | None:
        from botocore.exceptions import ClientError

        try:
            return int(self._client.head_object(**self._of(name))["ContentLength"])
        except ClientError as error:
            if _status(error) == 404:
                return None
            raise

    def _delete(self, names: Sequence[str]) -> None:
        keys = [{"Key": self._key(name)} for name in names]
        for start in range(0, len(keys), _MOST_DELETED):
            answer = self._client.delete_objects(
                Bucket=self.location.host, Delete={"Objects": keys[start : start + _MOST_DELETED], "Quiet": True}
            )
            for failure in answer.get("Errors", []):
                raise OSError(f"{failure.get('Code')}: {failure.get('Message')}")


def _status(error: Any) -> int | None:
    status: int | None = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK):
        yield chunk


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_objects(location: Location) -> ObjectStore:
    """The objects of a location."""
    kinds = {"s3": _S3Store, "file": _FolderStore}
    return kinds.get(location.scheme, ObjectStore)(location)

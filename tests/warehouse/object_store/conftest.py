"""One S3 server for all tests of object stores."""

from collections.abc import Iterator

import pytest

from object_stores import FaultyS3, serve_s3


@pytest.fixture(scope="session")
def s3_server() -> Iterator[FaultyS3]:
    """The server."""
    with serve_s3() as proxy:
        yield proxy


@pytest.fixture
def s3(s3_server: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> FaultyS3:
    """The server, without faults and with nothing counted; a request that fails is not made again."""
    monkeypatch.setattr("windrow.object_store.location._ATTEMPTS", 1)
    s3_server.fault, s3_server.delay = lambda _: None, 0.0
    s3_server.requests.clear()
    return s3_server

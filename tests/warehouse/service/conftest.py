"""Servers in this process: one for all tests that only ask, and one for each module's tests that change something."""

from collections.abc import Iterator

import pytest

from served_warehouse import Served, serve_warehouse


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Iterator[Served]:
    with serve_warehouse(tmp_path_factory.mktemp("shared") / "w") as server:
        yield server


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    with serve_warehouse(tmp_path_factory.mktemp("served") / "w") as server:
        yield server

"""Tests of this folder write much: their temporary folders are in memory. Those of the command line share streams."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import scratch_folders
import windrow
from command_line import PACKETS, CommandLine, at, table


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's own, but quick."""
    with scratch_folders.scratch_folder() as path:
        yield path


@pytest.fixture
def empty(path):
    run = CommandLine(path)
    run("init")
    return run


@pytest.fixture
def packets(empty):
    """A stream with the packets of three minutes, slid to its end."""
    empty("stream", "create", "packets", *PACKETS)
    with windrow.open(empty.path) as wh:
        wh.append("packets", table(*range(1, 181)))
        wh.slide("packets", to=at(180))
    return empty


@pytest.fixture
def waiting(empty):
    """A stream without rows."""
    empty("stream", "create", "packets", *PACKETS)
    return empty

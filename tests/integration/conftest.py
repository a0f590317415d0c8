"""Tests of this folder write much: their temporary folders are in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import scratch_folders


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's own, but quick."""
    with scratch_folders.scratch_folder() as path:
        yield path

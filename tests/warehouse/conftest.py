"""Tests of this folder write much: their temporary folders are in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import places


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """As pytest's own, but quick."""
    with places.folder() as path:
        yield path

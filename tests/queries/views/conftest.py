"""Three streams that views are made of."""

import pytest

import keyed
import viewing


@pytest.fixture
def wh(path):
    with viewing.open_warehouse(path) as wh:
        for name in "abc":
            wh.create_stream(name, keyed.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        yield wh

"""Three streams that views are made of."""

import pytest

import keyed_streams
import view_histories


@pytest.fixture
def wh(path):
    with view_histories.open_warehouse(path) as wh:
        for name in "abc":
            wh.create_stream(name, keyed_streams.SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        yield wh

"""Random standing queries over random streams: every run that was due is there, once, and says what plain DuckDB says.

Late rows, rows ahead of the clock, lifetimes of every kind, slides over several slots, quiet periods, restarts, queries that come
and go, missed runs of slides whose rows have long expired.
"""

import hypothesis
import hypothesis.strategies as st
import pytest

import periodic_histories
import scratch_folders


@hypothesis.settings(max_examples=6 if hypothesis.settings.default.max_examples < 100 else 300)
@hypothesis.given(seed=st.integers(0, 1 << 30))
def test_every_result_equals_plain_duckdb_at_its_slide(seed):
    with scratch_folders.scratch_folder() as path:
        periodic_histories.run_history(path / "w", seed, 40, streams=2, rounds=3, rows=20)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_long_lives_of_many_queries():
    for seed in range(100):
        with scratch_folders.scratch_folder() as path:
            periodic_histories.run_history(path / "w", seed, 300, streams=3, rounds=6, rows=40)

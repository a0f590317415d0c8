"""The advisor's bench: its workloads are what they say, and its fit finds the constants that made the figures."""

import numpy as np
import pytest

from bench import advisor


@pytest.mark.parametrize("workload", advisor.WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_is_the_same_each_time_and_of_its_size(workload):
    one, two = workload.batch(4), workload.batch(4)
    assert one.equals(two)
    assert one.schema.equals(workload.schema)
    sizes = [workload.batch(slot).num_rows for slot in range(1, 9)]
    assert np.mean(sizes) == pytest.approx(workload.rows, rel=0.01)


def test_there_are_workloads_of_every_kind_that_was_asked_for():
    kinds = {workload.lives for workload in advisor.WORKLOADS}
    assert kinds == {"equal", "uniform", "skewed"}
    assert any(workload.late for workload in advisor.WORKLOADS)
    assert any(workload.bursts > 1 for workload in advisor.WORKLOADS)
    assert len(advisor.WORKLOADS) >= 10


def test_the_fit_finds_what_the_figures_were_made_of():
    rows = [([1.0, float(n), float(n % 3)], 2.0 + 0.5 * n + 0.0 * (n % 3)) for n in range(1, 20)]
    assert advisor._solve(rows) == pytest.approx([2.0, 0.5, 0.0], abs=1e-6)

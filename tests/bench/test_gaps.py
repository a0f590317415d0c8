"""The bench of gaps and revisions measures what it says: a failed source's ledger, and exactly twenty revisions."""

import pytest

from bench import gaps


def test_the_ledger_is_measured_inside_of_slides(tmp_path):
    actual = gaps.measure_ledger(tmp_path / "w", 300, 2)
    assert 0 < actual["ledger"] < actual["slide"] and actual["ratio"] > 1


@pytest.mark.soak
def test_rounds_have_twenty_revisions_or_none(tmp_path):
    actual = gaps.measure_rounds(tmp_path / "w", 100, 1)
    assert actual["plain"] > 0 and actual["revised"] > 0

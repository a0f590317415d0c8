"""The bench of history measures what it says, on small streams."""

from bench import history


def test_all_its_parts_measure_something(tmp_path):
    slides = history.measure_slides(tmp_path / "slides", 200, 2)
    past = history.measure_past(tmp_path / "past", 200, 1)
    publish = history.measure_publication(tmp_path / "publish", 200, 1)
    assert min(*slides.values(), *past.values(), *publish.values()) >= 0 < slides["history"]
    erased = history.measure_erasure(tmp_path / "erase", 5_000)
    assert erased["windrow"] > 0 and erased["delta"] > 0
    limit = history.measure_limit(tmp_path / "limit", 500, 14)
    assert limit["written"] > 0

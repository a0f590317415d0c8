"""`bench views` measures what it says, and compares what it measures."""

from bench import views


def test_both_ways_of_keeping_a_join_hold_the_same_rows_and_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "ROWS", 200)
    monkeypatch.setattr(views, "KEYS", 100)
    actual = views.measured(tmp_path, 3, "abc", views.THREE, steps=2)
    assert actual["results"][0] > actual["new results"][0] > 0
    assert set(actual) == {*views.UPDATES, *views.ASKED, "results", "new results"}

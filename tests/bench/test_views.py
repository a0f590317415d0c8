"""`bench views` measures what it says, and compares what it measures."""

from bench import strict_views, views


def test_both_ways_of_keeping_a_join_hold_the_same_rows_and_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "ROWS", 200)
    monkeypatch.setattr(views, "KEYS", 100)
    actual = views.measured(tmp_path, 3, "abc", views.THREE, steps=2)
    assert actual["results"][0] > actual["new results"][0] > 0
    assert set(actual) == {*views.UPDATES, *views.ASKED, "results", "new results"}


def test_each_kind_of_view_is_measured_with_a_short_and_a_long_window(tmp_path, monkeypatch):
    for name, value in (("ROWS", 50), ("USERS", 40), ("HOSTS", 5), ("SHORT", 2), ("LONG", 4)):
        monkeypatch.setattr(strict_views, name, value)
    steps: list[str] = []
    figures = strict_views.measured(tmp_path, steps=1, advance=steps.append)
    assert set(figures) == {"no view", *strict_views.VIEWS, strict_views.FROM_SCRATCH}
    assert all(cpu > 0 for of in figures.values() for _, cpu in of.values())
    assert len(steps) == strict_views.work()
    assert len(strict_views.list_aims(figures)) == 2 * len(strict_views.VIEWS)
    assert [line.count("|") for line in strict_views.describe(figures)[-1].splitlines()] == [5] * 10

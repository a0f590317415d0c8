"""Views over count, session and offset windows from new rows: at every slide what plain SQL gives over the live rows."""

import pytest

from strict_views import follow

STATEMENTS = {
    "newest": "SELECT k, x, w FROM {a:rows 2 k}",
    "last": "SELECT w, k AS key, x + 1 AS y FROM {b:rows 1 k w} WHERE x > 1",
    "five": "SELECT k, w FROM {a:rows 5}",
    "session": "SELECT k, x, f FROM {b:session 60 k}",
    "lately": "SELECT x FROM {a:session 10}",
    "earlier": "SELECT k, x FROM {a:offset 2 2}",
    "compared": "SELECT p.k, p.x AS px, q.x AS qx FROM {a:1} p JOIN {b:offset 2 1} q ON p.k = q.k",
    "total": "SELECT w, count(*) AS n, sum(k) AS s FROM {b:offset 1 3} GROUP BY w",
    "kinds": "SELECT DISTINCT w FROM {a:offset 1 1}",
}


@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
def test_a_view_is_what_its_query_gives_at_each_slide(path, variable):
    follow(path, STATEMENTS, 3, 25, variable=variable)


@pytest.mark.soak
@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
@pytest.mark.parametrize("seed", range(100, 130))
def test_any_history(path, seed, variable):
    follow(path, STATEMENTS, seed, 60, variable=variable)

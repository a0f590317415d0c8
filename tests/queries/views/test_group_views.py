"""Views with GROUP BY from new rows: at every slide what plain SQL gives, for work that follows the change."""

import pytest

from strict_views import follow

STATEMENTS = {
    "totals": "SELECT k, count(*) AS n, sum(x) AS s, avg(x) AS a, min(f) AS m FROM {a:3} GROUP BY k",
    "busy": "SELECT w, k, count(x) FILTER (WHERE x > 1) + 1 AS n FROM {a} WHERE w <> 'c' GROUP BY ALL HAVING count(*) > 1",
    "whole": "SELECT count(*) AS n, sum(x) AS s, bool_or(k = 7) AS seven FROM {b}",
    "joined": "SELECT p.k % 2 AS odd, count(*) AS n, max(q.x::HUGEINT + p.x) AS top FROM {a} p JOIN {b:4} q ON p.k = q.k GROUP BY 1",
    "states": "SELECT w, round(stddev(f), 6) AS sd, round(corr(f, k), 6) AS r, arg_max(w, f) AS am FROM {b:5} GROUP BY w",
    "keyless": "SELECT w FROM {a} GROUP BY w HAVING sum(x) > 3",
}


@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
def test_a_view_is_what_its_query_gives_at_each_slide(path, variable):
    follow(path, STATEMENTS, 5, 25, variable=variable)


@pytest.mark.soak
@pytest.mark.parametrize("variable", [False, True], ids=["fixed", "variable"])
@pytest.mark.parametrize("seed", range(100, 130))
def test_any_history(path, seed, variable):
    follow(path, STATEMENTS, seed, 60, variable=variable)

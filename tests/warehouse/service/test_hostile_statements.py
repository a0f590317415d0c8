"""Statements that want more than a query may have, through every way in and for every role: refused, in one sentence."""

import itertools
from pathlib import Path

import pytest

import windrow
from served_warehouse import ROLES
from windrow.cli.completion import Names

FOLDER = Path(__file__).parents[2] / "queries" / "sql" / "statements"
STATEMENTS = [
    line.replace("{outside}", "/tmp/outside")
    .replace("{inside}", "/tmp/inside")
    .replace("\\n", "\n")
    .replace("\\u00a0", "\u00a0")
    for name in ("forbidden", "escapes", "not_queries", "disguised", "several", "overwrites")
    for line in (FOLDER / f"{name}.sql").read_text().splitlines()
    if line.strip()
]
CURIOUS = (
    "SELECT * FROM hidden", "SELECT secret FROM seen", "SELECT seen.secret FROM seen", "SELECT s FROM seen s",
    "SELECT * FROM windrow.segments", "SELECT * FROM duckdb_views()", "SELECT * FROM information_schema.tables",
    "SELECT * FROM sqlite_master", "SELECT * FROM pg_catalog.pg_class", "SHOW TABLES", "DESCRIBE hidden",
    "SELECT * FROM sql_auto_complete('SELECT * FROM h')", "EXPLAIN SELECT * FROM hidden", "FROM seen SELECT COLUMNS(*)",
    "SELECT * FROM windrow.streams", "SELECT * FROM windrow.queries", "SELECT * FROM windrow.sources",
    "SELECT hiden FROM seen", "SELECT secre FROM seen", "SELECT k FROM hiden",
)  # fmt: skip
"""What a role that may see a part only would like to know; also words that are almost those of hidden things."""


@pytest.mark.parametrize("ways", [1, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("role", ROLES)
def test_hostile_statements_are_refused_through_every_way(shared, role, ways):
    """Each statement by each role, through one of three ways in turn, or through all of them."""
    with shared.client(role) as client, shared.connect(role) as remote:
        for number, (statement, way) in enumerate(itertools.product(STATEMENTS, range(ways)), ROLES.index(role)):
            chosen = way if ways == 3 else number % 3
            if chosen == 0:
                with pytest.raises(windrow.WindrowError):
                    remote.sql(statement).arrow()
            else:
                answer = client.post("/sql" if chosen == 1 else "/explain", json={"statement": statement})
                assert answer.status_code in (400, 403), (statement, answer.status_code, answer.text[:200])
                assert set(answer.json()) == {"error"}


def test_a_role_learns_nothing_of_what_it_may_not_see(shared):
    """Names of hidden relations and columns appear only where the statement itself had them."""
    with shared.client("operator") as client:  # so that workers have seen the names
        assert client.post("/sql", json={"statement": "SELECT secret FROM hidden LIMIT 1"}).status_code == 200
    with shared.client("analyst") as client, shared.connect("analyst") as remote:
        for statement in CURIOUS:
            shown = [client.post(path, json={"statement": statement}).text for path in ("/sql", "/explain")]
            try:
                shown.append(str(remote.sql(statement).arrow().to_pylist()))
            except windrow.WindrowError as error:
                shown.append(str(error))
            for text in shown:
                for name in ("hidden", "secret"):
                    assert name not in text.replace(statement, "") or name in statement, (statement, text)
                assert "'s1'" not in text


def test_completion_offers_a_role_only_what_it_may_use(shared):
    """The prompt's completion asks the same questions of a remote warehouse as of one in a folder."""
    with shared.connect("analyst") as remote:
        offered = Names(lambda statement: remote.sql(statement).fetchall()).complete("", "SELECT  FROM seen")
        assert {"k", "ts", "seen", "names"} <= set(offered)
        assert not {"hidden", "secret"} & set(offered)
    names = Names(lambda statement: shared.wh.sql(statement).fetchall())
    assert {"hidden", "secret"} <= set(names.complete("", "SELECT  FROM seen"))

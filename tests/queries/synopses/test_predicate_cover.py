"""Covers by predicates: a row must never be missing or count twice, so what is claimed to be disjoint must be."""

import duckdb
import pyarrow as pa
import pytest

from windrow.queries.synopses import predicate_cover

SCHEMA = pa.schema([("k", pa.int32()), ("s", pa.string()), ("d", pa.decimal128(6, 2)), ("f", pa.float64())])
READ = predicate_cover.literal_reader(SCHEMA)
TCP, UDP, ICMP = (("s", "=", "STRING", name) for name in ("tcp", "udp", "icmp"))
USER = ("k", "=", "INTEGER", "1")


def test_the_six_queries_of_the_text() -> None:
    """Q3 is Q1 and Q2; Q6 (a maximum) is Q4 and Q5 although their rows overlap, a sum would not be."""
    assert predicate_cover.find_cover((TCP, UDP), {1: (TCP,), 2: (UDP,)}, ["sum"], subtractable=True, read=READ) == [
        (1, 1),
        (2, 1),
    ]
    assert predicate_cover.find_cover((TCP, USER), {4: (TCP,), 5: (USER,)}, ["max"], subtractable=False, read=READ) == [
        (4, 1),
        (5, 1),
    ]
    assert (
        predicate_cover.find_cover((TCP, USER), {4: (TCP,), 5: (USER,)}, ["sum"], subtractable=True, read=READ) is None
    )


def test_a_supercover_is_subtracted_from() -> None:
    covers = {2: (UDP,), 3: (TCP, UDP)}
    assert predicate_cover.find_cover((TCP,), covers, ["sum"], subtractable=True, read=READ) == [(3, 1), (2, -1)]
    assert predicate_cover.find_cover((TCP,), covers, ["max"], subtractable=False, read=READ) is None
    assert (
        predicate_cover.find_cover((TCP,), {3: (TCP, UDP, ICMP), 2: (UDP,)}, ["sum"], subtractable=True, read=READ)
        is None
    )


def test_a_subcover_alone_is_no_cover() -> None:
    assert predicate_cover.find_cover((TCP, UDP), {1: (TCP,)}, ["max"], subtractable=True, read=READ) is None
    assert predicate_cover.find_cover((), {1: (TCP,)}, ["sum"], subtractable=True, read=READ) is None


ATOMS = [
    (column, operator, kind, text)
    for column, kind, values in (
        ("k", "INTEGER", ("-1", "0", "1", "01")),
        ("s", "STRING", ("", "a", "b", "é")),
        ("d", "NUMERIC", ("0.50", "0.5", "1.25")),
        ("k", "STRING", ("1", "01")),
        ("s", "INTEGER", ("1",)),
    )
    for operator in ("=", "<>", "<", "<=", ">", ">=")
    for text in values
]


def test_what_is_called_disjoint_shares_no_row() -> None:
    rows = pa.table(
        {
            "k": pa.array([-1, 0, 1, 2, None], pa.int32()),
            "s": pa.array(["", "a", "b", "é", None]),
            "d": pa.array(["0.50", "1.25", "-3.00", "9.99", None]).cast(pa.decimal128(6, 2)),
        }
    )
    with duckdb.connect() as plain:
        plain.register("t", rows)

        def having(atom: predicate_cover.Term) -> set[int]:
            column, operator, kind, text = atom
            constant = f"'{text}'" if kind == "STRING" else text
            try:
                actual = plain.execute(
                    f"SELECT rowid FROM (SELECT *, row_number() OVER () AS rowid FROM t) WHERE {column} {operator} {constant}"
                )
                return {row[0] for row in actual.fetchall()}
            except duckdb.Error:
                return set()

        hits = {atom: having(atom) for atom in ATOMS}
    claimed = 0
    for one in ATOMS:
        for other in ATOMS:
            if predicate_cover.are_all_disjoint([one, other], READ):
                claimed += 1
                assert not hits[one] & hits[other], (one, other)
    assert claimed > 100


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("k", "=", "STRING", "1"), ("k", "=", "STRING", "01")),  # the same number
        (("f", "=", "NUMERIC", "0.1"), ("f", "=", "NUMERIC", "0.10000000000000000001")),  # the same float
        (("k", "<", "INTEGER", "3"), ("k", ">", "INTEGER", "2")),  # no whole number between, but that is not looked at
    ],
)
def test_what_may_be_the_same_is_not_called_disjoint(one: predicate_cover.Term, other: predicate_cover.Term) -> None:
    if one[1] == "=":
        assert not predicate_cover.are_all_disjoint([one, other], READ)
    assert not predicate_cover.are_all_disjoint([one, one], READ)

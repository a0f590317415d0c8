"""What new rows are compared with on their way through the other streams: equal columns stand for each other."""

from types import SimpleNamespace
from typing import Any

from windrow.queries.views.delta_join import Chain, Step, are_linked, can_chain, chain, equal_columns
from windrow.queries.views.plan import Link

A, B, C = 0, 1, 2
K, M = "k", "m"


def branch(*links: Link, streams: int = 3) -> Any:
    return SimpleNamespace(links=links, streams=[SimpleNamespace(number=number) for number in range(streams)])


def test_columns_are_equal_through_others() -> None:
    found = equal_columns(branch(Link(A, K, B, K), Link(A, M, C, M), Link(B, K, C, K)))
    assert set(found) == {frozenset([(A, K), (B, K), (C, K)]), frozenset([(A, M), (C, M)])}
    assert are_linked(found, C, {A})
    assert not are_linked(found[-1:], C, {5})


def test_each_stream_must_be_reached_and_none_compared_with_itself() -> None:
    assert can_chain(branch(Link(A, K, C, K), Link(B, M, C, M)))
    assert not can_chain(branch(Link(A, K, B, K)))
    assert not can_chain(branch(Link(A, K, B, K), Link(C, K, 3, K), streams=4))
    assert not can_chain(branch(Link(A, K, B, K), Link(A, M, B, K), streams=2))


def test_a_key_is_compared_as_soon_as_it_can_be() -> None:
    """a.m = b.m, a.k = c.k and b.k = c.k: that a.k is b.k is written nowhere, and holds before c is reached."""
    equal = equal_columns(branch(Link(A, M, B, M), Link(A, K, C, K), Link(B, K, C, K)))
    assert chain(A, (B, C), equal, [(C, K), (B, "x")]) == Chain(
        (K, M),
        (
            Step(B, (((A, K), K), ((A, M), M)), ((A, K),), ("x",)),
            Step(C, (((A, K), K),), ((A, K), (B, "x")), ()),
        ),
        ((A, K), (B, "x")),
    )

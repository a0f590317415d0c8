"""What new rows are compared with on their way through the other streams: equal columns stand for each other."""

from types import SimpleNamespace
from typing import Any

from windrow.queries.views.delta_join import ChainStep, JoinChain, are_linked, can_chain, find_equal_columns, make_chain
from windrow.queries.views.plan import JoinLink

A, B, C = 0, 1, 2
K, M = "k", "m"


def branch(*links: JoinLink, streams: int = 3) -> Any:
    return SimpleNamespace(links=links, streams=[SimpleNamespace(number=number) for number in range(streams)])


def test_columns_are_equal_through_others() -> None:
    actual = find_equal_columns(branch(JoinLink(A, K, B, K), JoinLink(A, M, C, M), JoinLink(B, K, C, K)))
    assert set(actual) == {frozenset([(A, K), (B, K), (C, K)]), frozenset([(A, M), (C, M)])}
    assert are_linked(actual, C, {A})
    assert not are_linked(actual[-1:], C, {5})


def test_each_stream_must_be_reached_and_none_compared_with_itself() -> None:
    assert can_chain(branch(JoinLink(A, K, C, K), JoinLink(B, M, C, M)))
    assert not can_chain(branch(JoinLink(A, K, B, K)))
    assert not can_chain(branch(JoinLink(A, K, B, K), JoinLink(C, K, 3, K), streams=4))
    assert not can_chain(branch(JoinLink(A, K, B, K), JoinLink(A, M, B, K), streams=2))


def test_a_key_is_compared_as_soon_as_it_can_be() -> None:
    """a.m = b.m, a.k = c.k and b.k = c.k: that a.k is b.k is written nowhere, and holds before c is reached."""
    equal = find_equal_columns(branch(JoinLink(A, M, B, M), JoinLink(A, K, C, K), JoinLink(B, K, C, K)))
    assert make_chain(A, (B, C), equal, [(C, K), (B, "x")]) == JoinChain(
        (K, M),
        (
            ChainStep(B, (((A, K), K), ((A, M), M)), ((A, K),), ("x",)),
            ChainStep(C, (((A, K), K),), ((A, K), (B, "x")), ()),
        ),
        ((A, K), (B, "x")),
    )

"""The tables of section 5.3 (see docs/references.md, [1]), corrected: sizes, costs of orders, and the chosen order."""

import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.queries.views.join_order import (
    MAX_ENUMERATED_INPUTS,
    InputRate,
    choose_order,
    choose_partner_order,
    expected_results,
    greedy_order,
    list_probes,
    order_cost,
    probe_cost,
)

TABLE_5_3 = [InputRate(10, 100, 500), InputRate(1, 100, 50), InputRate(1, 200, 40), InputRate(3, 100, 5)]
TABLE_5_5 = [
    InputRate(10, 100, 40),
    InputRate(1, 100, 100),
    InputRate(1, 100, 8),
    InputRate(1, 100, 5),
]  # E4: λ1 is 10, not 100
TABLE_5_6 = [InputRate(11, 100, 200), InputRate(10, 100, 100), InputRate(1, 100, 65), InputRate(1, 100, 20)]


def order(text: str) -> tuple[int, ...]:
    """S2S1S3S4 as places."""
    return tuple(int(each) - 1 for each in text.split("S")[1:])


@pytest.mark.parametrize(
    ("of", "size"),
    [("S1S2", 200), ("S1S3", 400), ("S1S4", 600), ("S2S3", 400), ("S2S4", 600), ("S3S4", 1500), ("S1S2S3", 800), ("S1S2S4", 1200)],
)  # fmt: skip
def test_expected_sizes_are_those_of_table_5_4(of, size):
    assert expected_results([TABLE_5_3[index] for index in order(of)]) == size


@pytest.mark.parametrize(
    ("inputs", "of", "price"),
    [
        (TABLE_5_3, "S1S2S3S4", 16000),
        (TABLE_5_3, "S4S3S2S1", 86850),
        (TABLE_5_5, "S2S1S3S4", 16200),
        (TABLE_5_5, "S2S3S4S1", 42600),
        (TABLE_5_5, "S1S2S3S4", 21000),
        (TABLE_5_6, "S3S4S1S2", 49542),
        (TABLE_5_6, "S3S1S4S2", 47977),
        (TABLE_5_6, "S3S1S2S4", 51954),
        (TABLE_5_6, "S1S2S3S4", 68200),
        (TABLE_5_6, "S2S1S3S4", 79000),
    ],
)
def test_costs_are_the_printed_ones(inputs, of, price):
    assert round(order_cost(inputs, order(of))) == price


@pytest.mark.parametrize(
    ("inputs", "worst", "mean"), [(TABLE_5_3, 86850, 45325), (TABLE_5_5, 135150, None), (TABLE_5_6, 79000, 63362)]
)
def test_the_worst_and_the_mean_of_all_orders(inputs, worst, mean):
    prices = [order_cost(inputs, each) for each in itertools.permutations(range(4))]
    assert max(prices) == worst
    assert mean is None or round(sum(prices) / len(prices)) == mean


@pytest.mark.parametrize(
    ("inputs", "begun", "chosen"),
    [
        (TABLE_5_3, "S2S1S3S4", "S1S2S3S4"),
        (TABLE_5_5, "S2S3S4S1", "S2S1S3S4"),
        (TABLE_5_6, "S3S4S1S2", "S3S1S4S2"),
    ],
)
def test_the_heuristic_finds_the_best_order_of_each_table(inputs, begun, chosen):
    assert greedy_order(inputs) == order(begun)
    assert choose_order(inputs) == order(chosen)
    assert order_cost(inputs, choose_order(inputs)) == min(
        order_cost(inputs, each) for each in itertools.permutations(range(4))
    )


def test_few_inputs_have_an_order_too():
    assert choose_order([InputRate(1, 1, 1)]) == (0,)
    assert sorted(choose_order([InputRate(5, 1, 1), InputRate(1, 1, 1)])) == [0, 1]


def test_a_row_never_looks_where_nothing_is_linked_while_something_is():
    links = {(0, 1), (1, 2), (2, 3)}

    def linked(one, others):
        return any((one, other) in links or (other, one) in links for other in others)

    assert list_probes(0, (3, 2, 1, 0), linked) == (1, 2, 3)
    assert list_probes(2, (0, 1, 2, 3), linked) == (1, 0, 3)
    assert list_probes(0, (2, 1, 0), lambda one, others: False) == (2, 1)


RATES = st.builds(
    InputRate,
    st.sampled_from([0.1, 1, 3, 10, 500]),
    st.sampled_from([1, 60, 1000]),
    st.sampled_from([1, 5, 40, 500, 100_000]),
)


@st.composite
def joins(draw):
    """Inputs, and which of them are joined with which."""
    inputs = draw(st.lists(RATES, min_size=3, max_size=MAX_ENUMERATED_INPUTS))
    pairs = itertools.combinations(range(len(inputs)), 2)
    return inputs, frozenset(pair for pair in pairs if draw(st.integers(0, 2)))


def joined(links, number, reached):
    return any(tuple(sorted((number, other))) in links for other in reached)


def is_allowed(links, probes, first):
    """Whether a linked input always comes before those that are not linked yet."""
    reached, rest = {first}, list(probes)
    while rest:
        linked = [number for number in rest if joined(links, number, reached)]
        if linked and rest[0] not in linked:
            return False
        reached.add(rest.pop(0))
    return True


@given(joins())
def test_no_order_is_cheaper_than_the_chosen_one(join):
    inputs, links = join
    rates = dict(enumerate(inputs))
    for first in rates:
        chosen = choose_partner_order(first, list(rates), rates, functools.partial(joined, links))
        others = itertools.permutations(number for number in rates if number != first)
        costs = [
            probe_cost(inputs[first], [inputs[number] for number in probes])
            for probes in others
            if is_allowed(links, probes, first)
        ]
        assert is_allowed(links, chosen, first)
        assert probe_cost(inputs[first], [inputs[number] for number in chosen]) == pytest.approx(min(costs))


def test_orders_that_the_heuristic_misses_are_found_and_joins_of_many_have_one_too():
    inputs = [
        InputRate(500, 1000, 100_000),
        InputRate(500, 60, 1),
        InputRate(10, 60, 1),
        InputRate(500, 1000, 100_000),
    ]
    rates, anything = dict(enumerate(inputs)), lambda one, others: True
    probes = {first: choose_partner_order(first, list(rates), rates, anything) for first in rates}
    exact = sum(probe_cost(inputs[first], [inputs[number] for number in probes[first]]) for first in rates)
    assert exact < order_cost(inputs, choose_order(inputs)) / 100
    many = dict(enumerate(inputs * 2))
    assert sorted(choose_partner_order(2, list(many), many, anything)) == [0, 1, 3, 4, 5, 6, 7]

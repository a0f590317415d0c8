"""The tables of section 5.3 (see docs/references.md, [1]), corrected: sizes, costs of orders, and the chosen order."""

import itertools

import pytest

from windrow.queries.views.join_order import (
    InputRate,
    choose_order,
    expected_results,
    greedy_order,
    list_probes,
    order_cost,
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

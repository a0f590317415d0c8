"""The order in which a new row of one input is joined with the others (see docs/references.md, [1], section 5.3).

The cost of an order is how many rows are compared per unit of time. The heuristic begins with the smallest intermediate
results, and then tries to move inputs that are much faster than the others to the front.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

_FAST_FACTOR = 5.0
"""An input counts as fast if it is so many times faster than the lower median. Not measured."""
_MAX_FAST_INPUTS = 3
"""So many fast inputs are moved at most: each multiplies the orders that are compared. Not measured."""


@dataclass(frozen=True)
class InputRate:
    """The statistics of an input.

    Args:
        arrivals: Rows per unit of time, λ.
        window: How long they count, T.
        values: How many different values the joined column has, v.
    """

    arrivals: float
    window: float
    values: float

    @property
    def rows(self) -> float:
        """Rows in the window, λT."""
        return self.arrivals * self.window


Order = tuple[int, ...]


def expected_results(inputs: Sequence[InputRate]) -> float:
    """φ: how many results a join of windows has, from left to right."""
    size, values = inputs[0].rows, inputs[0].values
    for rate in inputs[1:]:
        size = size * rate.rows / max(values, rate.values)
        values = min(values, rate.values)
    return size


def order_cost(inputs: Sequence[InputRate], order: Sequence[int]) -> float:
    """Comparisons per unit of time, if a new row of each input is joined with the others in this order."""
    total = 0.0
    for first in order:
        reached, values = 1.0, inputs[first].values
        for other in (number for number in order if number != first):
            total += inputs[first].arrivals * reached * inputs[other].rows
            reached = reached * inputs[other].rows / max(values, inputs[other].values)
            values = min(values, inputs[other].values)
    return total


def greedy_order(inputs: Sequence[InputRate]) -> Order:
    """Begin with the pair that has fewest results, go on with what keeps them fewest."""
    numbers = range(len(inputs))
    if len(inputs) < 2:
        return tuple(numbers)
    pairs = itertools.combinations(numbers, 2)
    order = list(min(pairs, key=lambda pair: expected_results([inputs[number] for number in pair])))
    order.sort(key=lambda number: inputs[number].rows)
    while len(order) < len(inputs):
        rest = [number for number in numbers if number not in order]
        order.append(min(rest, key=lambda number: expected_results([inputs[member] for member in (*order, number)])))
    return tuple(order)


def choose_order(inputs: Sequence[InputRate]) -> Order:
    """The cheapest of the greedy order and of those in which fast inputs stand earlier than there."""
    greedy = greedy_order(inputs)
    return min(_variants(inputs, greedy), key=lambda order: order_cost(inputs, order))


def _variants(inputs: Sequence[InputRate], greedy: Order) -> list[Order]:
    median = median_low([rate.arrivals for rate in inputs]) if inputs else 0.0
    fast = [
        number
        for number in greedy
        if inputs[number].arrivals >= _FAST_FACTOR * median and inputs[number].arrivals > median
    ][:_MAX_FAST_INPUTS]
    orders = {greedy: None}
    for chosen in itertools.chain.from_iterable(itertools.combinations(fast, n) for n in range(1, len(fast) + 1)):
        for positions in itertools.product(*(range(greedy.index(number) + 1) for number in chosen)):
            order = [number for number in greedy if number not in chosen]
            for number, position in sorted(zip(chosen, positions, strict=True), key=lambda pair: pair[1]):
                order.insert(position, number)
            orders[tuple(order)] = None
    return list(orders)


def choose_partner_order(
    first: int, inputs: Sequence[int], rates: Mapping[int, InputRate], linked: Callable[[int, set[int]], bool]
) -> Order:
    """The order in which a new row of `first` is joined, by the rates of all inputs; as given if some are unknown."""
    all_rates = [rates[number] for number in inputs if number in rates]
    order = [inputs[position] for position in choose_order(all_rates)] if len(all_rates) == len(inputs) > 2 else inputs
    return list_probes(first, order, linked)


def list_probes(first: int, order: Sequence[int], linked: Callable[[int, set[int]], bool]) -> Order:
    """The inputs in the given order without `first`, but linked ones before those that are not linked yet."""
    reached, rest, probes = {first}, [number for number in order if number != first], []
    while rest:
        following = next((number for number in rest if linked(number, reached)), rest[0])
        rest.remove(following)
        reached.add(following)
        probes.append(following)
    return tuple(probes)

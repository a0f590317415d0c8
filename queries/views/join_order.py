"""The order in which a new row of one input is joined with the others (see docs/references.md, [1], section 5.3).

The cost of an order is how many rows are compared per unit of time. New rows of each input have an order of their own.
Of few inputs all orders are compared. Of more a heuristic begins with the smallest intermediate results, and then tries
to move inputs that are much faster than the others to the front.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

MAX_ENUMERATED_INPUTS = 6
"""Of joins with up to so many inputs every order is compared: 80 steps for new rows of one input, of seven 192."""
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


def probe_cost(first: InputRate, partners: Sequence[InputRate]) -> float:
    """Comparisons per unit of time, if new rows of one input are joined with the others in this order."""
    total, reached, values = 0.0, 1.0, first.values
    for partner in partners:
        total += first.arrivals * reached * partner.rows
        reached = reached * partner.rows / max(values, partner.values)
        values = min(values, partner.values)
    return total


def order_cost(inputs: Sequence[InputRate], order: Sequence[int]) -> float:
    """Comparisons per unit of time, if new rows of each input are joined with the others in this order."""
    return sum(probe_cost(inputs[first], [inputs[other] for other in order if other != first]) for first in order)


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


Linked = Callable[[int, set[int]], bool]
"""Whether an input is joined by a column with one of those that were reached."""


def choose_partner_order(first: int, inputs: Sequence[int], rates: Mapping[int, InputRate], linked: Linked) -> Order:
    """The order in which a new row of `first` is joined, by the rates of all inputs; as given if some are unknown."""
    if len(inputs) < 3 or not all(number in rates for number in inputs):
        return list_probes(first, inputs, linked)
    if len(inputs) <= MAX_ENUMERATED_INPUTS:
        return find_cheapest_probes(first, {number: rates[number] for number in inputs}, linked)
    order = [inputs[position] for position in choose_order([rates[number] for number in inputs])]
    return list_probes(first, order, linked)


def find_cheapest_probes(first: int, rates: Mapping[int, InputRate], linked: Linked) -> Order:
    """The cheapest order of all in which no unlinked input comes before a linked one.

    How many rows some inputs give does not depend on their order, so of all orders of a set only the cheapest goes on.
    """
    cheapest: dict[frozenset[int], tuple[float, Order]] = {frozenset([first]): (0.0, ())}
    for _ in range(len(rates) - 1):
        longer: dict[frozenset[int], tuple[float, Order]] = {}
        for reached, (cost, probes) in cheapest.items():
            rows = rates[first].arrivals * _count_partners([rates[number] for number in (first, *probes)])
            rest = [number for number in rates if number not in reached]
            for number in [other for other in rest if linked(other, set(reached))] or rest:
                extended = cost + rows * rates[number].rows, (*probes, number)
                members = reached | {number}
                if members not in longer or extended[0] < longer[members][0]:
                    longer[members] = extended
        cheapest = longer
    return next(iter(cheapest.values()))[1]


def _count_partners(inputs: Sequence[InputRate]) -> float:
    """How many combinations one row of the first input has with rows of all others."""
    return expected_results(inputs) / inputs[0].rows if inputs[0].rows else 1.0


def list_probes(first: int, order: Sequence[int], linked: Linked) -> Order:
    """The inputs in the given order without `first`, but linked ones before those that are not linked yet."""
    reached, rest, probes = {first}, [number for number in order if number != first], []
    while rest:
        following = next((number for number in rest if linked(number, reached)), rest[0])
        rest.remove(following)
        reached.add(following)
        probes.append(following)
    return tuple(probes)

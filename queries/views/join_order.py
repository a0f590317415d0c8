"""In which order a new row of one input looks for partners in the others: the thesis's section 5.3, errors corrected.

The cost of an order is how many rows are compared per unit of time. The heuristic begins with the smallest intermediate
results, and then tries to move inputs that are much faster than the others to the front.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

_FAST_FACTOR = 5.0
"""An input counts as fast if it is so many times faster than the lower median."""
_MAX_FAST_INPUTS = 3
"""So many fast inputs are moved about at most: each multiplies the orders to look at."""


@dataclass(frozen=True)
class InputRate:
    """What is known of an input.

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
    for each in inputs[1:]:
        size = size * each.rows / max(values, each.values)
        values = min(values, each.values)
    return size


def order_cost(inputs: Sequence[InputRate], order: Sequence[int]) -> float:
    """Comparisons per unit of time: a new row of each input looks into the others in this order."""
    total = 0.0
    for first in order:
        reached, values = 1.0, inputs[first].values
        for other in (each for each in order if each != first):
            total += inputs[first].arrivals * reached * inputs[other].rows
            reached = reached * inputs[other].rows / max(values, inputs[other].values)
            values = min(values, inputs[other].values)
    return total


def greedy_order(inputs: Sequence[InputRate]) -> Order:
    """Begin with the pair that has fewest results, go on with what keeps them fewest."""
    every = range(len(inputs))
    if len(inputs) < 2:
        return tuple(every)
    pairs = itertools.combinations(every, 2)
    order = list(min(pairs, key=lambda pair: expected_results([inputs[at] for at in pair])))
    order.sort(key=lambda at: inputs[at].rows)
    while len(order) < len(inputs):
        rest = [at for at in every if at not in order]
        order.append(min(rest, key=lambda at: expected_results([inputs[each] for each in (*order, at)])))
    return tuple(order)


def choose_order(
    inputs: Sequence[InputRate], price: Callable[[Sequence[InputRate], Order], float] = order_cost
) -> Order:
    """The cheapest of the greedy order and of those in which fast inputs stand earlier than there."""
    begun = greedy_order(inputs)
    return min(_variants(inputs, begun), key=lambda order: price(inputs, order))


def _variants(inputs: Sequence[InputRate], begun: Order) -> list[Order]:
    usual = median_low([each.arrivals for each in inputs]) if inputs else 0.0
    fast = [at for at in begun if inputs[at].arrivals >= _FAST_FACTOR * usual and inputs[at].arrivals > usual][
        :_MAX_FAST_INPUTS
    ]
    found = {begun: None}
    for chosen in itertools.chain.from_iterable(itertools.combinations(fast, n) for n in range(1, len(fast) + 1)):
        for places in itertools.product(*(range(begun.index(at) + 1) for at in chosen)):
            order = [at for at in begun if at not in chosen]
            for at, place in sorted(zip(chosen, places, strict=True), key=lambda pair: pair[1]):
                order.insert(place, at)
            found[tuple(order)] = None
    return list(found)


def choose_partner_order(
    first: int, inputs: Sequence[int], rates: Mapping[int, InputRate], linked: Callable[[int, set[int]], bool]
) -> Order:
    """Where a new row of `first` looks, by what is known of all inputs; as they stand if that is not enough."""
    known = [rates[each] for each in inputs if each in rates]
    order = [inputs[at] for at in choose_order(known)] if len(known) == len(inputs) > 2 else inputs
    return list_probes(first, order, linked)


def list_probes(first: int, order: Sequence[int], linked: Callable[[int, set[int]], bool]) -> Order:
    """Where a new row of `first` looks, in the given order, but never without a link while there is one."""
    reached, rest, found = {first}, [each for each in order if each != first], []
    while rest:
        following = next((each for each in rest if linked(each, reached)), rest[0])
        rest.remove(following)
        reached.add(following)
        found.append(following)
    return tuple(found)

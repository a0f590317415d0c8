# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Arithmetic over numbered groups: merging a slot's values into totals, and the few groups that come first.

Numbers are int32 and say where a group's total lies; every function checks them once at its edge and is then one pass.
"""

include "common.pxi"

from libcpp.algorithm cimport pop_heap, push_heap
from libcpp.vector cimport vector

import numpy as np

ctypedef fused Value:
    int8_t
    int16_t
    int32_t
    int64_t
    double

ctypedef fused Total:
    int64_t
    double

cdef enum:
    SUM = 0
    LEAST = 1
    MOST = 2

_HOW = {"sum": SUM, "min": LEAST, "max": MOST}


cdef void _merge(Total[::1] totals, const int32_t[::1] numbers, const Value[::1] values, int how) noexcept nogil:
    cdef Py_ssize_t at
    cdef int32_t number
    cdef Total value
    if how == SUM:
        for at in range(numbers.shape[0]):
            totals[numbers[at]] += <Total>values[at]
        return
    for at in range(numbers.shape[0]):
        number, value = numbers[at], <Total>values[at]
        if (value < totals[number]) if how == LEAST else (value > totals[number]):
            totals[number] = value


cdef bint _inside(const int32_t[::1] numbers, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t at
    cdef uint32_t most = 0
    for at in range(numbers.shape[0]):
        most = max(most, <uint32_t>numbers[at])
    return numbers.shape[0] == 0 or most < <size_t>count


def _merged(Total[::1] totals, const int32_t[::1] numbers, const Value[::1] values, int how):
    with nogil:
        _merge(totals, numbers, values, how)


def merge(totals, numbers, values, how):
    """Merge values into the totals of their groups: `how` is sum, min or max."""
    if len(numbers) != len(values):
        raise ValueError(f"{len(numbers)} numbers for {len(values)} values")
    cdef const int32_t[::1] places = numbers
    cdef Py_ssize_t count = len(totals)
    cdef bint inside
    with nogil:
        inside = _inside(places, count)
    if not inside:
        raise IndexError(f"a number is not below {count}")
    if (totals.dtype == np.float64) != (values.dtype == np.float64):
        raise TypeError(f"{values.dtype} values for {totals.dtype} totals")
    _merged(totals, numbers, values, _HOW[how])


cdef bint _before(const Total& one, const Total& other) noexcept nogil:
    return one > other


def _first(const Total[::1] values, const int64_t[::1] counts, Py_ssize_t most, bint descending):
    cdef vector[Total] heap
    cdef vector[int64_t] found
    cdef Py_ssize_t at
    cdef Total value, least = 0
    cdef int64_t[::1] places
    cdef bint full = False
    with nogil:
        # The heap holds the best `most` values, the worst of them on top; whatever is no worse is remembered, also ties.
        for at in range(values.shape[0]):
            value = values[at] if descending else -values[at]
            # Most groups fall out here: of those, counts are not even read.
            if (full and value < least) or counts[at] <= 0:
                continue
            found.push_back(at)
            if not full:
                heap.push_back(value)
                push_heap(heap.begin(), heap.end(), &_before[Total])
                full = <Py_ssize_t>heap.size() >= most
                least = heap.front()
            elif value > least:
                pop_heap(heap.begin(), heap.end(), &_before[Total])
                heap.pop_back()
                heap.push_back(value)
                push_heap(heap.begin(), heap.end(), &_before[Total])
                least = heap.front()
    result = np.empty(found.size(), np.int64)
    if not found.size():
        return result
    places = result
    cdef Py_ssize_t kept = 0
    with nogil:
        for at in range(<Py_ssize_t>found.size()):
            value = values[found[at]] if descending else -values[found[at]]
            if not full or value >= heap.front():
                places[kept] = found[at]
                kept += 1
    return result[:kept]


def first(values, counts, most, *, descending):
    """Where the first `most` of the values are among groups that have rows, in no order, and all that equal the last.

    Args:
        values: One of each group: int64 above its least one, or float64 without NaN.
        counts: Groups whose count is 0 are left out.
        most: At least 1.
        descending: Whether large values come first.
    """
    if len(values) != len(counts):
        raise ValueError(f"{len(values)} values for {len(counts)} counts")
    if most < 1:
        raise ValueError("at least one group must be asked for")
    return _first(values, counts, most, descending)


include "groups_tally.pxi"

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
    cdef Total value
    cdef int64_t[::1] places
    cdef bint full = False
    with nogil:
        # The heap holds the best `most` values, the worst of them on top; whatever is no worse is remembered, also ties.
        for at in range(values.shape[0]):
            if counts[at] <= 0:
                continue
            value = values[at] if descending else -values[at]
            if full and value < heap.front():
                continue
            found.push_back(at)
            if not full:
                heap.push_back(value)
                push_heap(heap.begin(), heap.end(), &_before[Total])
                full = <Py_ssize_t>heap.size() >= most
            elif value > heap.front():
                pop_heap(heap.begin(), heap.end(), &_before[Total])
                heap.pop_back()
                heap.push_back(value)
                push_heap(heap.begin(), heap.end(), &_before[Total])
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


def _put_codes(int64_t[::1] keys, const Value[::1] values, int64_t least, int shift, bint first):
    cdef Py_ssize_t at
    with nogil:
        if first:
            for at in range(keys.shape[0]):
                keys[at] = <int64_t>((<uint64_t><int64_t>values[at] - <uint64_t>least) << shift)
        else:
            for at in range(keys.shape[0]):
                keys[at] |= <int64_t>((<uint64_t><int64_t>values[at] - <uint64_t>least) << shift)


def codes(columns, leasts, shifts):
    """One number for the values of several columns: each counted from its least one and shifted to its own bits.

    Args:
        columns: int8 to int64, equally long, at least one; none has a value below its least one.
        leasts: What each is counted from.
        shifts: By how many bits each is shifted; that the codes do not overlap is the caller's to know.
    """
    result = np.empty(len(columns[0]), np.int64)
    for at, (column, least, shift) in enumerate(zip(columns, leasts, shifts, strict=True)):
        if len(column) != len(result):
            raise ValueError(f"{len(column)} values beside {len(result)}")
        if not 0 <= shift <= 62:
            raise ValueError(f"codes shifted by {shift} bits")
        if column.dtype.kind != "i":
            raise TypeError(f"{column.dtype} is not a signed whole number")
        _put_codes(result, column, least, shift, at == 0)
    return result


cdef inline uint64_t _mixed(int64_t key, int shift) noexcept nogil:
    return (<uint64_t>key * <uint64_t>0x9E3779B97F4A7C15) >> shift


def number(keys, int bits):
    """Number equal keys in the order in which they come; gives the number of each, the keys by number, and how often.

    Args:
        keys: int64, not negative.
        bits: All of them have at most so many.
    """
    cdef const int64_t[::1] given = keys
    cdef Py_ssize_t count = given.shape[0], at, known = 0
    if not 0 <= bits <= 62:
        raise ValueError(f"keys of {bits} bits")
    if count >= 1 << 30:
        raise ValueError(f"{count} keys are too many")
    cdef uint64_t every = 0
    with nogil:
        for at in range(count):
            every |= <uint64_t>given[at]
    if every >> bits:
        raise ValueError(f"a key does not fit in {bits} bits")
    cdef int room = (2 * len(keys) + 8).bit_length()
    cdef bint direct = bits <= max(16, room + 1)  # a place for each key, if they are not many more than hashing needs
    if direct:
        room = bits
    cdef Py_ssize_t most = min(count, <Py_ssize_t>1 << room)
    table, result = np.full(1 << room, -1, np.int32), np.empty(count, np.int32)
    found, often = np.empty(most, np.int64), np.empty(most, np.int64)
    cdef int32_t[::1] numbers = result, places = table
    cdef int64_t[::1] distinct = found, counts = often
    cdef uint64_t place, mask = (<uint64_t>1 << room) - 1
    cdef int32_t own
    with nogil:
        for at in range(count):
            place = <uint64_t>given[at] if direct else _mixed(given[at], 64 - room)
            own = places[place]
            while own >= 0 and distinct[own] != given[at]:
                place = (place + 1) & mask
                own = places[place]
            if own < 0:
                own = <int32_t>known
                places[place] = own
                distinct[known] = given[at]
                counts[known] = 0
                known += 1
            counts[own] += 1
            numbers[at] = own
    return result, found[:known], often[:known]

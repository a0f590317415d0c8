# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rows by slot, over many packed histograms at once: a slide asks each segment how many of its rows it lets go.

A histogram is the bytes of `segments.pack_histogram`: n ascending slots and then their n counts, 8 bytes each.
"""

include "common.pxi"

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE

import numpy as np


cdef inline int64_t _number(const char* packed, Py_ssize_t at) noexcept nogil:
    cdef int64_t value
    memcpy(&value, packed + 8 * at, 8)
    return value


cdef Py_ssize_t _behind(const char* packed, Py_ssize_t count, int64_t slot) noexcept nogil:
    """How many of the ascending slots are at most `slot`."""
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) >> 1
        if _number(packed, middle) <= slot:
            low = middle + 1
        else:
            high = middle
    return low


def rows_between(list packed not None, after, int64_t upto):
    """How many rows of each histogram lie in the slots (after, upto]; `after` None: in all up to `upto`."""
    cdef Py_ssize_t many = len(packed), at, count, first, last, place
    cdef int64_t low = INT64_MIN if after is None else after
    cdef bint bounded = after is not None
    cdef int64_t total
    cdef const char* data
    found = np.empty(many, np.int64)
    cdef int64_t[::1] rows = found
    for at in range(many):
        one = packed[at]
        if not PyBytes_Check(one) or PyBytes_GET_SIZE(one) % 16:
            raise ValueError("a histogram is bytes of pairs of 8-byte numbers")
        data, count = PyBytes_AS_STRING(one), PyBytes_GET_SIZE(one) // 16
        last = _behind(data, count, upto)
        first = _behind(data, last, low) if bounded else 0
        total = 0
        for place in range(first, last):
            total += _number(data, count + place)
        rows[at] = total
    return found

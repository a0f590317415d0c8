# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rows with equal keys: a table of a few rows that many others are looked up in, batch by batch.

Most of the many have no partner: one look at a bit, in a map that stays in the processor's cache, sends them away.
"""

include "common.pxi"

from libcpp.vector cimport vector

import numpy as np

ctypedef fused Key:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t


cdef enum:
    BLOCK = 1024


cdef inline uint64_t _mixed(int64_t key) noexcept nogil:
    return <uint64_t>key * <uint64_t>0x9E3779B97F4A7C15


cdef class Matcher:
    """Whole numbers and the places at which each stands.

    Args:
        keys: Of up to 64 bits, signed, or of fewer; fewer than 2**30.
    """

    cdef vector[int64_t] _keys
    cdef vector[int32_t] _heads  # the first place of a key, by hash; -1 for none
    cdef vector[int32_t] _nexts  # the next place of the same key; -1 for none
    cdef vector[uint64_t] _flags
    cdef int _room, _wide
    cdef readonly Py_ssize_t distinct

    def __init__(self, keys):
        if len(keys) >= 1 << 30:
            raise ValueError(f"{len(keys)} keys are too many")
        wide = np.ascontiguousarray(_whole(keys), np.int64)
        cdef const int64_t[::1] given = wide
        cdef Py_ssize_t count = given.shape[0], at
        cdef uint64_t mixed, place, mask
        cdef int32_t own
        self._room = (2 * count + 8).bit_length()
        self._wide = max(12, (16 * count).bit_length())
        self.distinct = 0
        with nogil:
            self._keys.resize(count)
            self._nexts.assign(count, -1)
            self._heads.assign(<size_t>1 << self._room, -1)
            self._flags.assign((<size_t>1 << self._wide) >> 6, 0)
            mask = (<uint64_t>1 << self._room) - 1
            for at in range(count - 1, -1, -1):  # so that places of one key come in their order
                self._keys[at] = given[at]
                mixed = _mixed(given[at])
                self._flags[mixed >> (70 - self._wide)] |= <uint64_t>1 << ((mixed >> (64 - self._wide)) & 63)
                place = mixed >> (64 - self._room)
                own = self._heads[place]
                while own >= 0 and self._keys[own] != given[at]:
                    place = (place + 1) & mask
                    own = self._heads[place]
                self.distinct += own < 0
                self._nexts[at] = own
                self._heads[place] = <int32_t>at

    def match(self, values, Py_ssize_t start=0, Py_ssize_t most=1 << 62):
        """Pairs of equal numbers: a place in `values`, from `start` on, and one in the keys.

        Args:
            values: Of the same kinds as keys.
            start: The first to look at.
            most: No other one is looked at once there are so many pairs.

        Returns:
            The places in `values`, in their order, those in the keys, and the first place that was not looked at.
        """
        if not 0 <= start <= len(values):
            raise IndexError(f"{start} of {len(values)} values")
        if most < 1:
            raise ValueError("at least one pair must be asked for")
        return _matched(_whole(values), self, start, most)


def _matched(const Key[::1] values, Matcher known, Py_ssize_t start, Py_ssize_t most):
    cdef vector[int64_t] places, partners
    cdef Py_ssize_t at = start, stop, one
    cdef Py_ssize_t[BLOCK] passing
    cdef int64_t key
    cdef uint64_t mixed, place, mask = (<uint64_t>1 << known._room) - 1
    cdef int room = 64 - known._room, wide = 64 - known._wide, count, each
    cdef const uint64_t* flags = known._flags.data()
    cdef const int32_t* heads = known._heads.data()
    cdef const int64_t* keys = known._keys.data()
    cdef int32_t own
    with nogil:
        while at < values.shape[0] and <Py_ssize_t>places.size() < most:
            stop = min(at + BLOCK, values.shape[0])
            count = 0
            for one in range(at, stop):  # without a branch: whether one passes cannot be foretold
                mixed = _mixed(<int64_t>values[one])
                passing[count] = one
                count += (flags[mixed >> (wide + 6)] >> ((mixed >> wide) & 63)) & 1
            at = stop
            for each in range(count):
                if <Py_ssize_t>places.size() >= most:
                    at = passing[each]
                    break
                key = <int64_t>values[passing[each]]
                place = _mixed(key) >> room
                own = heads[place]
                while own >= 0 and keys[own] != key:
                    place = (place + 1) & mask
                    own = heads[place]
                while own >= 0:
                    places.push_back(passing[each])
                    partners.push_back(own)
                    own = known._nexts[own]
    return _array(places), _array(partners), at


cdef object _array(const vector[int64_t]& values):
    found = np.empty(values.size(), np.int64)
    cdef int64_t[::1] out = found
    if values.size():
        memcpy(&out[0], values.data(), values.size() * sizeof(int64_t))
    return found


def _whole(values):
    if values.dtype.kind not in "iu" or values.dtype == np.uint64 or values.ndim != 1:
        raise TypeError(f"{values.ndim}-dimensional {values.dtype} values are no whole numbers of up to 64 bits, signed")
    return np.ascontiguousarray(values)

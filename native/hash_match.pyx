# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Rows with equal keys: a table of a few rows that many others are looked up in, and the gathering of what was found.

Most of the many have no partner: one look at a bit, in a map that stays in the processor's cache, sends them away. A
window lies in many chunks; a place in it is the chunk's number in the high 32 bits and the row within it in the low.
"""

include "common.pxi"

from libcpp.vector cimport vector

import numpy as np
import pyarrow as pa
import pyarrow.lib as arrow

include "matches_open.pxi"
include "matches_gather.pxi"

cdef enum:
    BLOCK = 1024
    NEAR = 256  # flags for each key, up to which numbers have one of their own
    MOST_FLAGS = 1 << 24


cdef inline uint64_t _mixed(uint64_t before, int64_t value) noexcept nogil:
    return ((before ^ (before >> 32)) + <uint64_t>value) * <uint64_t>0x9E3779B97F4A7C15


cdef class Matcher:
    """Keys of one or more whole numbers, and the places at which each stands.

    Args:
        columns: One for each number of a key, all equally long and without nulls: fewer than 2**30 rows.
    """

    cdef vector[int64_t] _keys  # column by column
    cdef vector[int32_t] _heads  # the first place of a key, by hash; -1 for none
    cdef vector[int32_t] _nexts  # the next place of the same key; -1 for none
    cdef vector[uint64_t] _flags
    cdef Py_ssize_t _columns, _count
    cdef int _room, _wide
    cdef uint64_t _low, _span  # of numbers so near to each other that each has a flag of its own; 0: by hash
    cdef readonly Py_ssize_t distinct

    def __init__(self, columns):
        cdef const int64_t[::1] given
        cdef Py_ssize_t count, column
        wide = [np.ascontiguousarray(_whole(keys), np.int64) for keys in columns]
        if not wide or len({len(keys) for keys in wide}) != 1:
            raise ValueError("keys are one or more columns of the same length")
        if len(wide[0]) >= 1 << 30:
            raise ValueError(f"{len(wide[0])} keys are too many")
        count = self._count = len(wide[0])
        self._columns = len(wide)
        self._keys.resize(self._columns * count)
        for column in range(self._columns):
            given = wide[column]
            if count:
                memcpy(&self._keys[column * count], &given[0], count * sizeof(int64_t))
        self._room = (2 * count + 8).bit_length()
        self._wide = max(12, (16 * count).bit_length())
        self._low = self._span = 0
        if self._columns == 1 and count:
            low, high = int(wide[0].min()), int(wide[0].max())
            if high - low < min(NEAR * count + MOST_FLAGS // NEAR, MOST_FLAGS):
                self._low, self._span = <uint64_t><int64_t>low, high - low + 1
        self.distinct = 0
        with nogil:
            self._enter()

    cdef void _enter(self) noexcept nogil:
        cdef Py_ssize_t at, column
        cdef uint64_t mixed, place, mask = (<uint64_t>1 << self._room) - 1
        cdef int32_t own
        self._nexts.assign(self._count, -1)
        self._heads.assign(<size_t>1 << self._room, -1)
        self._flags.assign((self._span >> 6) + 1 if self._span else (<size_t>1 << self._wide) >> 6, 0)
        for at in range(self._count - 1, -1, -1):  # so that places of one key come in their order
            mixed = 0
            for column in range(self._columns):
                mixed = _mixed(mixed, self._keys[column * self._count + at])
            place = <uint64_t>self._keys[at] - self._low if self._span else mixed >> (64 - self._wide)
            self._flags[place >> 6] |= <uint64_t>1 << (place & 63)
            place = mixed >> (64 - self._room)
            own = self._heads[place]
            while own >= 0 and not self._same(own, at):
                place = (place + 1) & mask
                own = self._heads[place]
            self.distinct += own < 0
            self._nexts[at] = own
            self._heads[place] = <int32_t>at

    cdef inline bint _same(self, Py_ssize_t one, Py_ssize_t other) noexcept nogil:
        cdef Py_ssize_t column
        for column in range(self._columns):
            if self._keys[column * self._count + one] != self._keys[column * self._count + other]:
                return False
        return True

    cdef inline bint _meets(self, Py_ssize_t own, const Column* chunks, Py_ssize_t step, int64_t row) noexcept nogil:
        """Whether a key equals a row of a chunk; `step` chunks lie between two columns of it."""
        cdef Py_ssize_t column
        for column in range(self._columns):
            if self._keys[column * self._count + own] != number_at(chunks + column * step, row):
                return False
        return True

    def match(self, columns, int64_t start=0, Py_ssize_t most=1 << 62):
        """Pairs of equal keys: a place in a window, from `start` on, and one in the keys. What has a null is in none.

        Args:
            columns: One for each number of a key, each a list of chunks: arrays of whole numbers of up to 64 bits,
                signed, or of fewer.
            start: The first place to look at.
            most: No other one is looked at once there are so many pairs.

        Returns:
            The places in the window, in their order, those in the keys, and the first place that was not looked at.
        """
        cdef vector[Column] chunks
        cdef Py_ssize_t count = len(columns[0]) if len(columns) else 0, column, at
        if len(columns) != self._columns or any(len(own) != count for own in columns):
            raise ValueError(f"{len(columns)} columns are no {self._columns} columns with the same chunks")
        chunks.resize(self._columns * count)
        for column in range(self._columns):
            for at in range(count):
                open_numbers(columns[column][at], &chunks[column * count + at])
                if chunks[column * count + at].length != chunks[at].length:
                    raise ValueError("the columns of a chunk are not equally long")
        at = start >> 32
        if start < 0 or at > count or (start & ROW) > (chunks[at].length if at < count else 0):
            raise IndexError(f"place {start} is in none of {count} chunks")
        if most < 1:
            raise ValueError("at least one pair must be asked for")
        return self._matched(chunks, count, start, most)

    cdef tuple _matched(self, const vector[Column]& chunks, Py_ssize_t count, int64_t start, Py_ssize_t most):
        cdef vector[int64_t] places, partners
        cdef int64_t chunk = start >> 32, row = start & ROW
        with nogil:
            while chunk < count and <Py_ssize_t>places.size() < most:
                row = self._look_up(&chunks[chunk], count, chunk << 32, row, most, &places, &partners)
                if row == chunks[chunk].length:
                    chunk, row = chunk + 1, 0
        return _array(places), _array(partners), (chunk << 32) | row

    cdef int64_t _look_up(
        self, const Column* chunks, Py_ssize_t step, int64_t first, int64_t start, Py_ssize_t most,
        vector[int64_t]* places, vector[int64_t]* partners,
    ) noexcept nogil:
        """Look up the rows of a chunk from `start` on, and give the first that was not looked at."""
        cdef uint64_t[BLOCK] mixed
        cdef int32_t[BLOCK] passing
        cdef uint64_t place, mask = (<uint64_t>1 << self._room) - 1
        cdef int room = 64 - self._room, size, count, each
        cdef const uint64_t* flags = self._flags.data()
        cdef const int32_t* heads = self._heads.data()
        cdef int64_t at = start, row
        cdef Py_ssize_t column
        cdef int32_t own
        while at < chunks.length:
            size = <int>min(<int64_t>BLOCK, chunks.length - at)
            if self._span:
                count = pass_near(chunks, at, size, flags, self._low, self._span, passing)
            else:
                memset(mixed, 0, size * sizeof(uint64_t))
                for column in range(self._columns):
                    mix_in(chunks + column * step, at, size, mixed)
                count = pass_mixed(mixed, size, flags, 64 - self._wide, passing)
            for each in range(count):
                row = at + passing[each]
                if <Py_ssize_t>places.size() >= most:
                    return row
                place = (_mixed(0, number_at(chunks, row)) if self._span else mixed[passing[each]]) >> room
                own = heads[place]
                while own >= 0 and not self._meets(own, chunks, step, row):
                    place = (place + 1) & mask
                    own = heads[place]
                if own < 0 or has_null(chunks, self._columns, step, row):
                    continue
                while own >= 0:
                    places.push_back(first | row)
                    partners.push_back(own)
                    own = self._nexts[own]
            at += size
        return at


cdef int pass_mixed(const uint64_t* mixed, int size, const uint64_t* flags, int wide, int32_t* passing) noexcept nogil:
    """Which hashes have their flag; without a branch, as whether one has cannot be foretold."""
    cdef int at, count = 0
    for at in range(size):
        passing[count] = at
        count += (flags[mixed[at] >> (wide + 6)] >> ((mixed[at] >> wide) & 63)) & 1
    return count


cdef int pass_near(
    const Column* chunk, int64_t start, int size, const uint64_t* flags, uint64_t low, uint64_t span, int32_t* passing
) noexcept nogil:
    """The same for numbers with a flag each, and one behind them that is never set, for all others."""
    cdef const int64_t* values = <const int64_t*>chunk.data + start
    cdef int at, count = 0
    cdef uint64_t place
    if chunk.width == 8:
        for at in range(size):
            place = min(<uint64_t>values[at] - low, span)
            passing[count] = at
            count += (flags[place >> 6] >> (place & 63)) & 1
        return count
    for at in range(size):
        place = min(<uint64_t>number_at(chunk, start + at) - low, span)
        passing[count] = at
        count += (flags[place >> 6] >> (place & 63)) & 1
    return count


cdef void mix_in(const Column* chunk, int64_t start, int size, uint64_t* mixed) noexcept nogil:
    """Take one more number into the hashes of some rows; nulls too, whatever lies there."""
    cdef int at
    if chunk.width == 8:
        for at in range(size):
            mixed[at] = _mixed(mixed[at], (<const int64_t*>chunk.data)[start + at])
    elif chunk.width == 4 and not chunk.unsigned:
        for at in range(size):
            mixed[at] = _mixed(mixed[at], (<const int32_t*>chunk.data)[start + at])
    else:
        for at in range(size):
            mixed[at] = _mixed(mixed[at], number_at(chunk, start + at))


cdef bint has_null(const Column* chunks, Py_ssize_t columns, Py_ssize_t step, int64_t row) noexcept nogil:
    cdef Py_ssize_t column
    for column in range(columns):
        if not is_valid(chunks + column * step, row):
            return True
    return False


cdef object _array(const vector[int64_t]& values):
    found = np.empty(values.size(), np.int64)
    cdef int64_t[::1] out = found
    if values.size():
        memcpy(&out[0], values.data(), values.size() * sizeof(int64_t))
    return found


def _whole(values):
    if values.dtype.kind not in "iu" or values.dtype == np.uint64 or values.ndim != 1:
        raise TypeError(f"{values.ndim}-dimensional {values.dtype} values are no whole numbers of up to 64 bits, signed")
    return values

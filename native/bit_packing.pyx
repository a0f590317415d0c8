# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Whole numbers in few bits, for the nodes of synopses: frames of reference, of the numbers or of their differences.

A block of numbers is its least one and what each is above it, in as many bits as the greatest of them needs. A block: the
bits of a number (a byte), the least number (zigzag, seven bits a byte), then the numbers, lowest bits first.
"""

include "common.pxi"

from libcpp.vector cimport vector

import numpy as np

cdef enum:
    BLOCK = 128
    MOST_BITS = 56  # that one access of eight bytes reaches from any bit of a byte; longer numbers take whole words
    WORD = 8


cdef int _width_of(uint64_t span) noexcept nogil:
    cdef int bits = 0
    while span:
        bits += 1
        span >>= 1
    return bits if bits <= MOST_BITS else 64


cdef void _pack_block(const uint64_t* numbers, int count, vector[uint8_t]& out) noexcept nogil:
    """Append a block."""
    cdef int64_t least = INT64_MAX
    cdef uint64_t span = 0, word, folded
    cdef int64_t place
    cdef int i, width
    for i in range(count):
        least = min(least, <int64_t>numbers[i])
    for i in range(count):
        span |= numbers[i] - <uint64_t>least
    width = _width_of(span)
    out.push_back(<uint8_t>width)
    folded = (<uint64_t>least << 1) ^ (<uint64_t>0 - <uint64_t>(least < 0))
    while folded > 127:
        out.push_back(<uint8_t>(folded & 127 | 128))
        folded >>= 7
    out.push_back(<uint8_t>folded)
    place = <int64_t>out.size()
    out.resize(place + (<int64_t>width * count + 7) // 8 + WORD)
    for i in range(count):
        memcpy(&word, &out[place + <int64_t>width * i // 8], WORD)
        word |= (numbers[i] - <uint64_t>least) << (width * i % 8)
        memcpy(&out[place + <int64_t>width * i // 8], &word, WORD)
    out.resize(out.size() - WORD)


def pack(const int64_t[::1] values, *, bint differences):
    """Bytes of whole numbers, or of the differences from each to the next."""
    cdef vector[uint8_t] out
    cdef uint64_t[BLOCK] block
    cdef uint64_t before = 0
    cdef Py_ssize_t start = 0, count = values.shape[0]
    cdef int i, size
    with nogil:
        while start < count:
            size = <int>min(count - start, <Py_ssize_t>BLOCK)
            for i in range(size):
                block[i] = <uint64_t>values[start + i] - before
                if differences:
                    before = <uint64_t>values[start + i]
            _pack_block(block, size, out)
            start += size
    return out.data()[:out.size()] if out.size() else b""


cdef int64_t _unpack_block(const uint8_t* data, int64_t size, int64_t place, uint64_t* numbers, int count) noexcept nogil:
    """Read the block at a place, of data that has a word more than its size; where the next one begins, or -1."""
    cdef uint64_t folded = 0, least, word, mask
    cdef int64_t stop
    cdef int i, width, shift = 0
    if place >= size:
        return -1
    width = data[place]
    if width > MOST_BITS and width != 64:
        return -1
    place += 1
    while True:
        if place >= size or shift > 63:
            return -1
        folded |= <uint64_t>(data[place] & 127) << shift
        shift += 7
        place += 1
        if data[place - 1] < 128:
            break
    least = (folded >> 1) ^ (<uint64_t>0 - (folded & 1))
    stop = place + (<int64_t>width * count + 7) // 8
    if stop > size:
        return -1
    mask = <uint64_t>0 - 1 if width == 64 else (<uint64_t>1 << width) - 1
    for i in range(count):
        memcpy(&word, data + place + <int64_t>width * i // 8, WORD)
        numbers[i] = ((word >> (width * i % 8)) & mask) + least
    return stop


def unpack(const uint8_t[::1] packed, Py_ssize_t count, *, bint differences):
    """The whole numbers that `pack` was given.

    Raises:
        ValueError: these bytes are not so many numbers.
    """
    cdef vector[uint8_t] data
    cdef int64_t size = packed.shape[0], place = 0
    cdef uint64_t[BLOCK] block
    cdef uint64_t before = 0
    cdef Py_ssize_t start = 0
    cdef int i, length
    if count < 0 or count > 128 * size:
        raise ValueError(f"{size} bytes are not {count} numbers")
    values = np.empty(count, np.int64)
    cdef int64_t[::1] out = values
    with nogil:
        data.resize(size + WORD)
        if size:
            memcpy(data.data(), &packed[0], size)
        while start < count:
            length = <int>min(count - start, <Py_ssize_t>BLOCK)
            place = _unpack_block(data.data(), size, place, block, length)
            if place < 0:
                break
            for i in range(length):
                before = block[i] + (before if differences else 0)
                out[start + i] = <int64_t>before
            start += length
    if place != size:
        raise ValueError(f"{size} bytes are not {count} numbers")
    return values

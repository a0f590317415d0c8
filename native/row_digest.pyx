# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The digest of a batch: 64 bits of all values of its rows, whatever order the rows have and whoever brought them.

A value counts under the name of its column, and a null does not count, so a column that a stream is given later changes
nothing. Two batches of as many rows with equal digests are taken for the same.
"""

include "common.pxi"
include "arrow_column.pxi"

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import xxhash

cdef extern from *:
    """
    static inline uint64_t multiplied(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    static inline uint64_t word_at(const uint8_t* p) { uint64_t word; memcpy(&word, p, 8); return word; }
    static inline uint64_t canonical_double(double value) {
        uint64_t bits;
        if (value != value) return 0x7FF8000000000000ULL;
        value += 0.0;  // of the two zeros, the positive one
        memcpy(&bits, &value, 8);
        return bits;
    }
    """
    uint64_t multiplied(uint64_t a, uint64_t b) noexcept nogil
    uint64_t word_at(const uint8_t* p) noexcept nogil
    uint64_t canonical_double(double value) noexcept nogil

cdef uint64_t ODD = <uint64_t>0x9E3779B97F4A7C15
cdef uint64_t FIRST = <uint64_t>0xA0761D6478BD642F
cdef uint64_t SECOND = <uint64_t>0xE7037ED1A0B428DB
cdef uint64_t THIRD = <uint64_t>0x8EBC6AF09C88C6E3


cdef inline uint64_t mixed(uint64_t value) noexcept nogil:
    return multiplied(value ^ FIRST, (value >> 32 | value << 32) ^ SECOND)


cdef inline uint64_t bytes_digest(const uint8_t* data, int64_t size, uint64_t seed) noexcept nogil:
    """Three lanes, because one would wait for each multiplication."""
    cdef uint64_t one = seed, two = seed ^ ODD, three = seed + ODD, tail = 0
    cdef int64_t left = size, position
    while left >= 48:
        one = multiplied(word_at(data) ^ FIRST, word_at(data + 8) ^ one)
        two = multiplied(word_at(data + 16) ^ SECOND, word_at(data + 24) ^ two)
        three = multiplied(word_at(data + 32) ^ THIRD, word_at(data + 40) ^ three)
        data += 48
        left -= 48
    one ^= two ^ three
    while left >= 8:
        one = multiplied(one ^ FIRST, word_at(data) ^ SECOND)
        data += 8
        left -= 8
    for position in range(left):
        tail = tail << 8 | data[position]
    return multiplied(one ^ tail ^ THIRD, <uint64_t>size ^ FIRST)


cdef uint64_t _seed(name):
    return xxhash.xxh3_64_intdigest(name.encode())


cdef int _add(array, uint64_t seed, uint64_t[::1] out) except -1:
    """Add what each value of an array counts to the sums of the rows."""
    kind = array.type
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
        kind = array.type
    if not len(array) or pt.is_null(kind):
        return 0
    if pt.is_dictionary(kind):
        return _add(array.dictionary_decode(), seed, out)
    if pt.is_string_view(kind) or pt.is_binary_view(kind):
        return _add(array.cast(pa.large_binary()), seed, out)
    if pt.is_string(kind) or pt.is_binary(kind):
        return _add_text(array, 4, seed, out)
    if pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _add_text(array, 8, seed, out)
    if pt.is_float16(kind):
        return _add(array.cast(pa.float32()), seed, out)
    if pt.is_struct(kind):
        return _add_struct(array, seed, out)
    if pt.is_nested(kind):
        return _add_lists(array, seed, out)
    return _add_fixed(array, kind, seed, out)


cdef int _add_fixed(array, kind, uint64_t seed, uint64_t[::1] out) except -1:
    cdef ArrowColumn column
    cdef int64_t row
    cdef int width = kind.bit_width // 8
    cdef int real = width if pt.is_floating(kind) else 0
    cdef uint64_t word
    if pt.is_boolean(kind):
        open_booleans(array, &column)
    else:
        open_fixed(array, width, &column)
    with nogil:
        for row in range(column.length):
            if not is_valid(&column, row):
                continue
            if width == 8:
                word = canonical_double((<const double*>column.data)[row]) if real else word_at(column.data + 8 * row)
            elif real:
                word = canonical_double((<const float*>column.data)[row])
            elif width == 0:
                word = is_set(column.data, column.offset + row)
            elif width < 8:
                word = 0
                memcpy(&word, column.data + width * row, width)
            else:
                out[row] += bytes_digest(column.data + width * row, width, seed)
                continue
            out[row] += mixed(word + seed)
    return 0


cdef int _add_text(array, int offset_width, uint64_t seed, uint64_t[::1] out) except -1:
    cdef ArrowColumn column
    cdef int64_t row, start, stop
    open_text(array, offset_width, &column)
    with nogil:
        for row in range(column.length):
            if not is_valid(&column, row):
                continue
            if offset_width == 4:
                start, stop = (<const int32_t*>column.offsets)[row], (<const int32_t*>column.offsets)[row + 1]
            else:
                start, stop = (<const int64_t*>column.offsets)[row], (<const int64_t*>column.offsets)[row + 1]
            if start < 0 or stop < start or stop > column.size:
                with gil:
                    raise ValueError("an array of text points outside of its bytes")
            out[row] += bytes_digest(column.data + start, stop - start, seed)
    return 0


cdef int _add_struct(array, uint64_t seed, uint64_t[::1] out) except -1:
    cdef ArrowColumn column
    cdef int64_t row
    cdef uint64_t[::1] fields = np.zeros(len(array), np.uint64)
    open_array(array, &column)
    for position, field in enumerate(array.type):
        _add(array.field(position), _seed(field.name), fields)
    for row in range(column.length):
        if is_valid(&column, row):
            out[row] += mixed(fields[row] + seed)
    return 0


cdef int _add_lists(array, uint64_t seed, uint64_t[::1] out) except -1:
    """Lists, by the order of their elements; and maps, whose entries have none."""
    cdef ArrowColumn column
    cdef int64_t row, place
    cdef bint is_map = pt.is_map(array.type)
    cdef uint64_t total
    cdef const int64_t[::1] starts, stops
    kind = array.type
    open_array(array, &column)
    count = column.length
    if pt.is_fixed_size_list(kind):
        bounds = (np.arange(count + 1) + array.offset) * kind.list_size
        first, last = bounds[:-1], bounds[1:]
    elif pt.is_list_view(kind) or pt.is_large_list_view(kind):
        first = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        last = first + array.sizes.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        offset_type = np.int64 if pt.is_large_list(kind) else np.int32
        bounds = np.frombuffer(array.buffers()[1], offset_type)[array.offset : array.offset + count + 1].astype(np.int64)
        first, last = bounds[:-1], bounds[1:]
    starts, stops = np.ascontiguousarray(first), np.ascontiguousarray(last)
    low, high = int(first.min()), int(last.max())
    values = [array.keys, array.items] if is_map else [array.values]
    if low < 0 or bool((first > last).any()) or high > len(values[0]):
        raise ValueError("an array of lists points outside of its elements")
    cdef int64_t base = low
    cdef uint64_t[::1] elements = np.zeros(high - low, np.uint64)
    cdef uint64_t own = seed
    for child in values:
        _add(child.slice(low, high - low), own, elements)
        own += ODD
    with nogil:
        for row in range(column.length):
            if not is_valid(&column, row):
                continue
            total = seed + <uint64_t>(stops[row] - starts[row])
            for place in range(starts[row] - base, stops[row] - base):
                total = total + mixed(elements[place]) if is_map else multiplied(total ^ SECOND, elements[place] ^ THIRD)
            out[row] += mixed(total)
    return 0


def digest_rows(rows):
    """Gives the digest of a table or batch; digests of the parts of a batch add up to its own modulo 2**64."""
    cdef uint64_t total = 0
    cdef uint64_t[::1] sums
    cdef int64_t row
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        sums = np.zeros(batch.num_rows, np.uint64)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _add(column, _seed(name), sums)
        with nogil:
            for row in range(sums.shape[0]):
                total += mixed(sums[row] + ODD)
    return total

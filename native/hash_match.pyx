# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The hash join of a few new rows with a window (`bench views`): finds pairs of rows with equal keys and gathers columns.

Most rows of the window have no partner: one test of a bit, in a bitmap that stays in the processor's cache, rejects them.
A window lies in many chunks; a place in it is the chunk's number in the high 32 bits and the row within it in the low.
"""

include "common.pxi"
include "arrow_column.pxi"

from libcpp.vector cimport vector

import numpy as np
import pyarrow as pa
import pyarrow.lib as arrow


cdef enum:
    ROW = 0xFFFFFFFF  # of a place: the row within its chunk

cdef dict INTEGERS = {
    arrow.Type_INT8: (1, False), arrow.Type_INT16: (2, False), arrow.Type_INT32: (4, False),
    arrow.Type_INT64: (8, False), arrow.Type_UINT8: (1, True), arrow.Type_UINT16: (2, True),
    arrow.Type_UINT32: (4, True),
}


cdef inline int64_t number_at(const ArrowColumn* column, int64_t row) noexcept nogil:
    if column.width == 8:
        return (<const int64_t*>column.data)[row]
    # One by one: in an expression of a signed and an unsigned value, C makes both unsigned.
    if column.unsigned:
        if column.width == 4:
            return (<const uint32_t*>column.data)[row]
        return (<const uint16_t*>column.data)[row] if column.width == 2 else column.data[row]
    if column.width == 4:
        return (<const int32_t*>column.data)[row]
    return (<const int16_t*>column.data)[row] if column.width == 2 else (<const int8_t*>column.data)[row]


cdef int open_integers(array, ArrowColumn* column) except -1:
    """Integers of up to 64 bits if they are signed, and of up to 32 if they are not."""
    known = INTEGERS.get(array.type.id)
    if known is None:
        raise TypeError(f"values of type {array.type} are no whole numbers of up to 64 bits, signed")
    check_length(array)
    open_fixed(array, known[0], column)
    column.unsigned = known[1]
    return 0


cdef int check_length(array) except -1:
    if len(array) > ROW:
        raise ValueError(f"a chunk of {len(array)} rows is too long")
    return 0


# Gathering: the values at some places of a window in one array, copied straight from the chunks in which they lie.

cdef enum:
    FINE = 0
    BAD_PLACE = 1
    BAD_OFFSETS = 2
    TOO_LARGE = 3

cdef frozenset TEXTS = frozenset({arrow.Type_STRING, arrow.Type_BINARY})
cdef frozenset FIXED = frozenset({
    arrow.Type_INT8, arrow.Type_INT16, arrow.Type_INT32, arrow.Type_INT64, arrow.Type_UINT8, arrow.Type_UINT16,
    arrow.Type_UINT32, arrow.Type_UINT64, arrow.Type_HALF_FLOAT, arrow.Type_FLOAT, arrow.Type_DOUBLE,
    arrow.Type_DATE32, arrow.Type_DATE64, arrow.Type_TIME32, arrow.Type_TIME64, arrow.Type_TIMESTAMP,
    arrow.Type_DURATION, arrow.Type_DECIMAL128, arrow.Type_DECIMAL256,
})


def can_gather(kind):
    """Whether values of a type can be gathered: fixed width, texts, and dictionaries of texts."""
    if kind.id == arrow.Type_DICTIONARY:
        return kind.index_type.id == arrow.Type_INT32 and kind.value_type.id in TEXTS
    return kind.id in FIXED or kind.id in TEXTS


def gather(chunks, places):
    """The values at `places` of a column that lies in `chunks`; those of a dictionary come as they are, without it."""
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) != 1 or not can_gather(kind := kinds.pop()):
        raise TypeError("values are gathered from chunks of one type that can be")
    cdef const int64_t[::1] wanted = places
    cdef vector[ArrowColumn] columns, dictionaries
    cdef Py_ssize_t count = len(chunks), i
    cdef bint is_dictionary = kind.id == arrow.Type_DICTIONARY
    columns.resize(count)
    dictionaries.resize(count if is_dictionary else 0)
    for i in range(count):
        check_length(chunks[i])
        if is_dictionary:
            open_fixed(chunks[i].indices, 4, &columns[i])
            dictionary = chunks[i].dictionary
            if dictionary.null_count:
                raise ValueError("a null stands in a dictionary, not in what refers to it")
            check_length(dictionary)
            open_text(dictionary, 4, &dictionaries[i])
        elif kind.id in TEXTS:
            open_text(chunks[i], 4, &columns[i])
        else:
            open_fixed(chunks[i], kind.bit_width // 8, &columns[i])
    cdef int rc = FINE
    cdef const int64_t* first = &wanted[0] if wanted.shape[0] else NULL
    with nogil:
        rc = check_places(columns, first, wanted.shape[0])
    if rc:
        raise IndexError("a place lies outside of the chunks")
    valid, nulls = _validity(columns, wanted)
    if is_dictionary or kind.id in TEXTS:
        buffers = [valid, *_texts(columns, dictionaries, wanted)]
        return pa.Array.from_buffers(kind.value_type if is_dictionary else kind, wanted.shape[0], buffers, null_count=nulls)
    return pa.Array.from_buffers(kind, wanted.shape[0], [valid, _fixed(columns, wanted)], null_count=nulls)


cdef int check_places(const vector[ArrowColumn]& columns, const int64_t* places, Py_ssize_t count) noexcept nogil:
    cdef uint64_t chunks = columns.size(), chunk
    cdef Py_ssize_t i
    for i in range(count):
        chunk = <uint64_t>places[i] >> 32
        if chunk >= chunks or (places[i] & ROW) >= columns[chunk].length:
            return BAD_PLACE
    return FINE


cdef tuple _validity(const vector[ArrowColumn]& columns, const int64_t[::1] places):
    """Which values are not null, and how many are; nothing if none can be."""
    cdef Py_ssize_t i, count = places.shape[0]
    cdef int64_t nulls = 0
    cdef bint possible = False
    for i in range(<Py_ssize_t>columns.size()):
        possible = possible or columns[i].valid != NULL
    if not possible or not count:
        return None, 0
    buffer = pa.allocate_buffer((count + 7) // 8)
    cdef uint8_t* bits = <uint8_t*>address_of(buffer)
    with nogil:
        memset(bits, 0, (count + 7) // 8)
        for i in range(count):
            if is_valid(&columns[places[i] >> 32], places[i] & ROW):
                bits[i >> 3] |= <uint8_t>(1 << (i & 7))
            else:
                nulls += 1
    return buffer, nulls


cdef object _fixed(const vector[ArrowColumn]& columns, const int64_t[::1] places):
    cdef int64_t width = columns[0].width
    cdef Py_ssize_t i, count = places.shape[0]
    buffer = pa.allocate_buffer(count * width)
    cdef uint8_t* out = <uint8_t*>address_of(buffer)
    with nogil:
        if width == 8:
            for i in range(count):
                memcpy(out + 8 * i, columns[places[i] >> 32].data + 8 * (places[i] & ROW), 8)
        else:
            for i in range(count):
                memcpy(out + width * i, columns[places[i] >> 32].data + width * (places[i] & ROW), width)
    return buffer


cdef tuple _texts(const vector[ArrowColumn]& columns, const vector[ArrowColumn]& named, const int64_t[::1] places):
    cdef Py_ssize_t i, count = places.shape[0]
    cdef int rc = FINE
    cdef vector[const uint8_t*] sources
    ends = pa.allocate_buffer((count + 1) * 4)
    cdef int32_t* offsets = <int32_t*>address_of(ends)
    with nogil:
        sources.resize(count)
        rc = measure_texts(columns, named, &places[0] if count else NULL, count, offsets, sources.data())
    if rc == BAD_OFFSETS:
        raise ValueError("offsets point outside of the data")
    if rc == TOO_LARGE:
        raise pa.ArrowCapacityError("the texts of these rows make more than 2 GB")
    data = pa.allocate_buffer(offsets[count])
    cdef uint8_t* out = <uint8_t*>address_of(data)
    with nogil:
        for i in range(count):
            if offsets[i + 1] > offsets[i]:
                memcpy(out + offsets[i], sources[i], offsets[i + 1] - offsets[i])
    return ends, data


cdef int measure_texts(
    const vector[ArrowColumn]& columns, const vector[ArrowColumn]& dictionaries, const int64_t* places, Py_ssize_t count,
    int32_t* offsets, const uint8_t** sources,
) noexcept nogil:
    """Where each text lies and where it goes."""
    cdef const ArrowColumn* column
    cdef int64_t total = 0, row, start, stop
    cdef Py_ssize_t i
    offsets[0] = 0
    for i in range(count):
        column = &columns[places[i] >> 32]
        row = places[i] & ROW
        if is_valid(column, row):
            if dictionaries.size():
                row = (<const int32_t*>column.data)[row]
                column = &dictionaries[places[i] >> 32]
                if not 0 <= row < column.length:
                    return BAD_OFFSETS
            start, stop = (<const int32_t*>column.offsets)[row], (<const int32_t*>column.offsets)[row + 1]
            if not 0 <= start <= stop <= column.size:
                return BAD_OFFSETS
            sources[i] = column.data + start
            total += stop - start
            if total > 0x7FFFFFFF:
                return TOO_LARGE
        offsets[i + 1] = <int32_t>total
    return FINE


cdef enum:
    BLOCK = 1024
    FLAGS_PER_KEY = 256    # keys have a flag for each number in their range, if these are not more for each key,
    MOST_FLAGS = 1 << 24   # nor more in all; otherwise a flag for each hash


cdef inline uint64_t hash_next(uint64_t before, int64_t value) noexcept nogil:
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
    cdef int _head_bits, _flag_bits
    cdef uint64_t _low, _span  # the range of the keys if each number in it has a flag; 0: flags are by hash
    cdef readonly Py_ssize_t distinct

    def __init__(self, columns):
        cdef const int64_t[::1] given
        cdef Py_ssize_t count, column
        wide = [np.ascontiguousarray(_check_integers(keys), np.int64) for keys in columns]
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
        self._head_bits = (2 * count + 8).bit_length()
        self._flag_bits = max(12, (16 * count).bit_length())
        self._low = self._span = 0
        if self._columns == 1 and count:
            low, high = int(wide[0].min()), int(wide[0].max())
            if high - low < min(FLAGS_PER_KEY * count + MOST_FLAGS // FLAGS_PER_KEY, MOST_FLAGS):
                self._low, self._span = <uint64_t><int64_t>low, high - low + 1
        self.distinct = 0
        with nogil:
            self._build()

    cdef void _build(self) noexcept nogil:
        cdef Py_ssize_t i, column
        cdef uint64_t hashed, slot, mask = (<uint64_t>1 << self._head_bits) - 1
        cdef int32_t head
        self._nexts.assign(self._count, -1)
        self._heads.assign(<size_t>1 << self._head_bits, -1)
        self._flags.assign((self._span >> 6) + 1 if self._span else (<size_t>1 << self._flag_bits) >> 6, 0)
        for i in range(self._count - 1, -1, -1):  # so that places of one key come in their order
            hashed = 0
            for column in range(self._columns):
                hashed = hash_next(hashed, self._keys[column * self._count + i])
            slot = <uint64_t>self._keys[i] - self._low if self._span else hashed >> (64 - self._flag_bits)
            self._flags[slot >> 6] |= <uint64_t>1 << (slot & 63)
            slot = hashed >> (64 - self._head_bits)
            head = self._heads[slot]
            while head >= 0 and not self._equal_keys(head, i):
                slot = (slot + 1) & mask
                head = self._heads[slot]
            self.distinct += head < 0
            self._nexts[i] = head
            self._heads[slot] = <int32_t>i

    cdef inline bint _equal_keys(self, Py_ssize_t one, Py_ssize_t other) noexcept nogil:
        cdef Py_ssize_t column
        for column in range(self._columns):
            if self._keys[column * self._count + one] != self._keys[column * self._count + other]:
                return False
        return True

    cdef inline bint _equals_row(self, Py_ssize_t key, const ArrowColumn* chunks, Py_ssize_t step, int64_t row) noexcept nogil:
        """Whether a key equals a row of a chunk; its columns are `step` entries apart."""
        cdef Py_ssize_t column
        for column in range(self._columns):
            if self._keys[column * self._count + key] != number_at(chunks + column * step, row):
                return False
        return True

    def match(self, columns, int64_t start=0, Py_ssize_t most=1 << 62):
        """Pairs of equal keys: a place in a window, from `start` on, and one in the keys. What has a null is in none."""
        cdef vector[ArrowColumn] chunks
        cdef Py_ssize_t count = len(columns[0]) if len(columns) else 0, column, i
        if len(columns) != self._columns or any(len(chunk_list) != count for chunk_list in columns):
            raise ValueError(f"{len(columns)} columns are no {self._columns} columns with the same chunks")
        chunks.resize(self._columns * count)
        for column in range(self._columns):
            for i in range(count):
                open_integers(columns[column][i], &chunks[column * count + i])
                if chunks[column * count + i].length != chunks[i].length:
                    raise ValueError("the columns of a chunk are not equally long")
        i = start >> 32
        if start < 0 or i > count or (start & ROW) > (chunks[i].length if i < count else 0):
            raise IndexError(f"place {start} is in none of {count} chunks")
        if most < 1:
            raise ValueError("at least one pair must be asked for")
        return self._match_chunks(chunks, count, start, most)

    cdef tuple _match_chunks(self, const vector[ArrowColumn]& chunks, Py_ssize_t count, int64_t start, Py_ssize_t most):
        cdef vector[int64_t] places, partners
        cdef int64_t chunk = start >> 32, row = start & ROW
        with nogil:
            while chunk < count and <Py_ssize_t>places.size() < most:
                row = self._look_up(&chunks[chunk], count, chunk << 32, row, most, &places, &partners)
                if row == chunks[chunk].length:
                    chunk, row = chunk + 1, 0
        return _array(places), _array(partners), (chunk << 32) | row

    cdef int64_t _look_up(
        self, const ArrowColumn* chunks, Py_ssize_t step, int64_t first, int64_t start, Py_ssize_t most,
        vector[int64_t]* places, vector[int64_t]* partners,
    ) noexcept nogil:
        """Look up the rows of a chunk from `start` on; gives the first row that was not looked up."""
        cdef uint64_t[BLOCK] hashes
        cdef int32_t[BLOCK] passing
        cdef uint64_t slot, mask = (<uint64_t>1 << self._head_bits) - 1
        cdef int shift = 64 - self._head_bits, size, count, k
        cdef const uint64_t* flags = self._flags.data()
        cdef const int32_t* heads = self._heads.data()
        cdef int64_t start_row = start, row
        cdef Py_ssize_t column
        cdef int32_t head
        while start_row < chunks.length:
            size = <int>min(<int64_t>BLOCK, chunks.length - start_row)
            if self._span:
                count = filter_by_flag(chunks, start_row, size, flags, self._low, self._span, passing)
            else:
                memset(hashes, 0, size * sizeof(uint64_t))
                for column in range(self._columns):
                    hash_column(chunks + column * step, start_row, size, hashes)
                count = filter_by_hash(hashes, size, flags, 64 - self._flag_bits, passing)
            for k in range(count):
                row = start_row + passing[k]
                if <Py_ssize_t>places.size() >= most:
                    return row
                slot = (hash_next(0, number_at(chunks, row)) if self._span else hashes[passing[k]]) >> shift
                head = heads[slot]
                while head >= 0 and not self._equals_row(head, chunks, step, row):
                    slot = (slot + 1) & mask
                    head = heads[slot]
                if head < 0 or has_null(chunks, self._columns, step, row):
                    continue
                while head >= 0:
                    places.push_back(first | row)
                    partners.push_back(head)
                    head = self._nexts[head]
            start_row += size
        return start_row


cdef int filter_by_hash(const uint64_t* hashes, int size, const uint64_t* flags, int shift, int32_t* passing) noexcept nogil:
    """Which hashes have their flag set; without a branch, because the processor could not predict it."""
    cdef int i, count = 0
    for i in range(size):
        passing[count] = i
        count += (flags[hashes[i] >> (shift + 6)] >> ((hashes[i] >> shift) & 63)) & 1
    return count


cdef int filter_by_flag(
    const ArrowColumn* chunk, int64_t start, int size, const uint64_t* flags, uint64_t low, uint64_t span, int32_t* passing
) noexcept nogil:
    """The same where each number has a flag; one more, which is never set, stands for all numbers out of range."""
    cdef const int64_t* values = <const int64_t*>chunk.data + start
    cdef int i, count = 0
    cdef uint64_t flag
    if chunk.width == 8:
        for i in range(size):
            flag = min(<uint64_t>values[i] - low, span)
            passing[count] = i
            count += (flags[flag >> 6] >> (flag & 63)) & 1
        return count
    for i in range(size):
        flag = min(<uint64_t>number_at(chunk, start + i) - low, span)
        passing[count] = i
        count += (flags[flag >> 6] >> (flag & 63)) & 1
    return count


cdef void hash_column(const ArrowColumn* chunk, int64_t start, int size, uint64_t* hashes) noexcept nogil:
    """Add one more number to the hashes of some rows; of nulls whatever lies there."""
    cdef int i
    if chunk.width == 8:
        for i in range(size):
            hashes[i] = hash_next(hashes[i], (<const int64_t*>chunk.data)[start + i])
    elif chunk.width == 4 and not chunk.unsigned:
        for i in range(size):
            hashes[i] = hash_next(hashes[i], (<const int32_t*>chunk.data)[start + i])
    else:
        for i in range(size):
            hashes[i] = hash_next(hashes[i], number_at(chunk, start + i))


cdef bint has_null(const ArrowColumn* chunks, Py_ssize_t columns, Py_ssize_t step, int64_t row) noexcept nogil:
    cdef Py_ssize_t column
    for column in range(columns):
        if not is_valid(chunks + column * step, row):
            return True
    return False


cdef object _array(const vector[int64_t]& values):
    array = np.empty(values.size(), np.int64)
    cdef int64_t[::1] out = array
    if values.size():
        memcpy(&out[0], values.data(), values.size() * sizeof(int64_t))
    return array


def _check_integers(values):
    if values.dtype.kind not in "iu" or values.dtype == np.uint64 or values.ndim != 1:
        raise TypeError(f"{values.ndim}-dimensional {values.dtype} values are no whole numbers of up to 64 bits, signed")
    return values

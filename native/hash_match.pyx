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


# Where the values of an Arrow array lie, for matches.pyx; all that the kernels rely on is checked here, once for each array.

cdef enum:
    ROW = 0xFFFFFFFF  # of a place: the row within its chunk

cdef struct Column:
    const uint8_t* data      # of the first value; of texts: their bytes
    const int32_t* offsets   # of texts, from the first on
    const uint8_t* valid     # NULL: none is null
    int64_t first            # of the first value, in `valid`
    int64_t length
    int64_t size             # of texts: bytes of `data`
    int width                # of a number, in bytes
    bint unsigned

cdef dict WHOLE = {
    arrow.Type_INT8: (1, False), arrow.Type_INT16: (2, False), arrow.Type_INT32: (4, False),
    arrow.Type_INT64: (8, False), arrow.Type_UINT8: (1, True), arrow.Type_UINT16: (2, True),
    arrow.Type_UINT32: (4, True),
}


cdef inline bint is_valid(const Column* column, int64_t row) noexcept nogil:
    cdef int64_t at
    if column.valid == NULL:
        return True
    at = column.first + row
    return (column.valid[at >> 3] >> (at & 7)) & 1


cdef inline int64_t number_at(const Column* column, int64_t row) noexcept nogil:
    if column.width == 8:
        return (<const int64_t*>column.data)[row]
    # One by one: of a signed and an unsigned value together C would make an unsigned one.
    if column.unsigned:
        if column.width == 4:
            return (<const uint32_t*>column.data)[row]
        return (<const uint16_t*>column.data)[row] if column.width == 2 else column.data[row]
    if column.width == 4:
        return (<const int32_t*>column.data)[row]
    return (<const int16_t*>column.data)[row] if column.width == 2 else (<const int8_t*>column.data)[row]


cdef const uint8_t* checked(buffer, int64_t least) except? NULL:
    if (0 if buffer is None else buffer.size) < least:
        raise ValueError("an array is shorter than it says")
    return address_of(buffer)


cdef int open_fixed(array, int width, Column* column) except -1:
    """Values of `width` bytes each."""
    buffers = array.buffers()
    cdef int64_t end = array.offset + len(array)
    if len(array) > ROW:
        raise ValueError(f"a chunk of {len(array)} rows is too long")
    column.first, column.length, column.width, column.size, column.unsigned = array.offset, len(array), width, 0, False
    column.offsets = NULL
    column.valid = checked(buffers[0], (end + 7) // 8) if array.null_count else NULL
    column.data = checked(buffers[1], end * width)
    if column.data != NULL:
        column.data += column.first * width
    return 0


cdef int open_numbers(array, Column* column) except -1:
    """Whole numbers of up to 64 bits, signed, or of fewer."""
    found = WHOLE.get(array.type.id)
    if found is None:
        raise TypeError(f"values of type {array.type} are no whole numbers of up to 64 bits, signed")
    open_fixed(array, found[0], column)
    column.unsigned = found[1]
    return 0


cdef int open_text(array, Column* column) except -1:
    """Texts or bytes with offsets of 32 bits; whether these point into the data is seen when one is used."""
    buffers = array.buffers()
    cdef int64_t end = array.offset + len(array)
    if len(array) > ROW:
        raise ValueError(f"a chunk of {len(array)} rows is too long")
    column.first, column.length, column.width, column.unsigned = array.offset, len(array), 0, False
    column.valid = checked(buffers[0], (end + 7) // 8) if array.null_count else NULL
    column.size = 0 if buffers[2] is None else buffers[2].size
    column.data = address_of(buffers[2])
    column.offsets = NULL
    if column.length:
        column.offsets = <const int32_t*>checked(buffers[1], (end + 1) * 4) + column.first
    return 0


# The values at some places of a window, in one array: copied straight from the chunks in which they lie.

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


def gathers(kind):
    """Whether values of a type can be gathered: fixed width, texts, and dictionaries of texts."""
    if kind.id == arrow.Type_DICTIONARY:
        return kind.index_type.id == arrow.Type_INT32 and kind.value_type.id in TEXTS
    return kind.id in FIXED or kind.id in TEXTS


def gather(chunks, places):
    """The values at `places` of a column that lies in `chunks`; those of a dictionary come as they are, without it.

    Args:
        chunks: At least one array, all of the same type.
        places: As `Matcher.match` gives them; of a single chunk, just its rows.
    """
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) != 1 or not gathers(kind := kinds.pop()):
        raise TypeError("values are gathered from chunks of one type that can be")
    cdef const int64_t[::1] given = places
    cdef vector[Column] columns, named
    cdef Py_ssize_t count = len(chunks), at
    cdef bint by_name = kind.id == arrow.Type_DICTIONARY
    columns.resize(count)
    named.resize(count if by_name else 0)
    for at in range(count):
        if by_name:
            open_fixed(chunks[at].indices, 4, &columns[at])
            dictionary = chunks[at].dictionary
            if dictionary.null_count:
                raise ValueError("a null stands in a dictionary, not in what refers to it")
            open_text(dictionary, &named[at])
        elif kind.id in TEXTS:
            open_text(chunks[at], &columns[at])
        else:
            open_fixed(chunks[at], kind.bit_width // 8, &columns[at])
    cdef int problem = FINE
    cdef const int64_t* first = &given[0] if given.shape[0] else NULL
    with nogil:
        problem = check_places(columns, first, given.shape[0])
    if problem:
        raise IndexError("a place lies outside of the chunks")
    valid, nulls = _validity(columns, given)
    if by_name or kind.id in TEXTS:
        buffers = [valid, *_texts(columns, named, given)]
        return pa.Array.from_buffers(kind.value_type if by_name else kind, given.shape[0], buffers, null_count=nulls)
    return pa.Array.from_buffers(kind, given.shape[0], [valid, _fixed(columns, given)], null_count=nulls)


cdef int check_places(const vector[Column]& columns, const int64_t* places, Py_ssize_t count) noexcept nogil:
    cdef uint64_t chunks = columns.size(), chunk
    cdef Py_ssize_t at
    for at in range(count):
        chunk = <uint64_t>places[at] >> 32
        if chunk >= chunks or (places[at] & ROW) >= columns[chunk].length:
            return BAD_PLACE
    return FINE


cdef tuple _validity(const vector[Column]& columns, const int64_t[::1] places):
    """Which values are not null, and how many are; nothing if none can be."""
    cdef Py_ssize_t at, count = places.shape[0]
    cdef int64_t nulls = 0
    cdef bint possible = False
    for at in range(<Py_ssize_t>columns.size()):
        possible = possible or columns[at].valid != NULL
    if not possible or not count:
        return None, 0
    buffer = pa.allocate_buffer((count + 7) // 8)
    cdef uint8_t* bits = <uint8_t*>address_of(buffer)
    with nogil:
        memset(bits, 0, (count + 7) // 8)
        for at in range(count):
            if is_valid(&columns[places[at] >> 32], places[at] & ROW):
                bits[at >> 3] |= <uint8_t>(1 << (at & 7))
            else:
                nulls += 1
    return buffer, nulls


cdef object _fixed(const vector[Column]& columns, const int64_t[::1] places):
    cdef int width = columns[0].width
    cdef Py_ssize_t at, count = places.shape[0]
    buffer = pa.allocate_buffer(count * width)
    cdef uint8_t* out = <uint8_t*>address_of(buffer)
    with nogil:
        if width == 8:
            for at in range(count):
                memcpy(out + 8 * at, columns[places[at] >> 32].data + 8 * (places[at] & ROW), 8)
        else:
            for at in range(count):
                memcpy(out + width * at, columns[places[at] >> 32].data + width * (places[at] & ROW), width)
    return buffer


cdef tuple _texts(const vector[Column]& columns, const vector[Column]& named, const int64_t[::1] places):
    cdef Py_ssize_t at, count = places.shape[0]
    cdef int problem = FINE
    cdef vector[const uint8_t*] sources
    ends = pa.allocate_buffer((count + 1) * 4)
    cdef int32_t* offsets = <int32_t*>address_of(ends)
    with nogil:
        sources.resize(count)
        problem = measure_texts(columns, named, &places[0] if count else NULL, count, offsets, sources.data())
    if problem == BAD_OFFSETS:
        raise ValueError("offsets point outside of the data")
    if problem == TOO_LARGE:
        raise pa.ArrowCapacityError("the texts of these rows make more than 2 GB")
    data = pa.allocate_buffer(offsets[count])
    cdef uint8_t* out = <uint8_t*>address_of(data)
    with nogil:
        for at in range(count):
            if offsets[at + 1] > offsets[at]:
                memcpy(out + offsets[at], sources[at], offsets[at + 1] - offsets[at])
    return ends, data


cdef int measure_texts(
    const vector[Column]& columns, const vector[Column]& named, const int64_t* places, Py_ssize_t count,
    int32_t* offsets, const uint8_t** sources,
) noexcept nogil:
    """Where each text lies and where it goes."""
    cdef const Column* column
    cdef int64_t total = 0, row, start, stop
    cdef Py_ssize_t at
    offsets[0] = 0
    for at in range(count):
        column = &columns[places[at] >> 32]
        row = places[at] & ROW
        if is_valid(column, row):
            if named.size():
                row = (<const int32_t*>column.data)[row]
                column = &named[places[at] >> 32]
                if not 0 <= row < column.length:
                    return BAD_OFFSETS
            start, stop = column.offsets[row], column.offsets[row + 1]
            if not 0 <= start <= stop <= column.size:
                return BAD_OFFSETS
            sources[at] = column.data + start
            total += stop - start
            if total > 0x7FFFFFFF:
                return TOO_LARGE
        offsets[at + 1] = <int32_t>total
    return FINE


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

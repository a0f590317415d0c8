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


# Groups of rows and what they add up to, in one call: the interpreter's lock is let go once, and nothing is written
# down for each row but where it belongs, if there are too many groups for a table of all of them.

cdef enum:
    BLOCK = 2048
    DIGIT = 11
    MOST_KEPT = 1 << 20

cdef struct Column:
    const uint8_t* data
    int width
    uint64_t least
    int bits
    int shift
    int how


cdef uint64_t _add_codes(
    const Value* values, Py_ssize_t count, const Column* column, uint64_t* codes
) noexcept nogil:
    """Put a column's codes to their bits; gives what stands above them."""
    cdef Py_ssize_t at
    cdef uint64_t code, every = 0, least = column.least
    cdef int shift = column.shift
    for at in range(count):
        code = <uint64_t><int64_t>values[at] - least
        every |= code
        codes[at] |= code << shift
    return every >> column.bits


cdef bint _block(const vector[Column]& keys, Py_ssize_t start, Py_ssize_t count, uint64_t* codes) noexcept nogil:
    """The codes of some rows; false if a value has none."""
    cdef size_t at
    cdef uint64_t above = 0
    cdef const Column* column
    memset(codes, 0, count * sizeof(uint64_t))
    for at in range(keys.size()):
        column = &keys[at]
        if column.width == 1:
            above |= _add_codes(<const int8_t*>column.data + start, count, column, codes)
        elif column.width == 2:
            above |= _add_codes(<const int16_t*>column.data + start, count, column, codes)
        elif column.width == 4:
            above |= _add_codes(<const int32_t*>column.data + start, count, column, codes)
        else:
            above |= _add_codes(<const int64_t*>column.data + start, count, column, codes)
    return above == 0


cdef void _gather(
    const Value* values, const uint64_t* codes, Py_ssize_t count, int how, int64_t* totals
) noexcept nogil:
    cdef Py_ssize_t at
    if how == SUM:
        for at in range(count):
            totals[codes[at]] += <int64_t>values[at]
    elif how == LEAST:
        for at in range(count):
            totals[codes[at]] = min(totals[codes[at]], <int64_t>values[at])
    else:
        for at in range(count):
            totals[codes[at]] = max(totals[codes[at]], <int64_t>values[at])


cdef inline int64_t _neutral(int how) noexcept nogil:
    return 0 if how == SUM else INT64_MAX if how == LEAST else INT64_MIN


cdef class Scratch:
    """Room to work in, kept from call to call: memory that is new costs more than all that is done in it."""

    cdef vector[uint64_t] codes  # of the groups
    cdef vector[int64_t] counts
    cdef vector[vector[int64_t]] totals
    cdef vector[int64_t] table
    cdef vector[uint64_t] items
    cdef vector[uint64_t] room
    cdef vector[uint64_t] starts
    cdef vector[uint64_t] wide
    cdef vector[int64_t] narrowed

    cdef size_t size(self):
        """In numbers."""
        cdef size_t size = self.codes.capacity() + self.counts.capacity() + self.table.capacity()
        size += self.items.capacity() + self.room.capacity() + self.wide.capacity() + self.narrowed.capacity()
        for total in range(self.totals.size()):
            size += self.totals[total].capacity()
        return size


_scratch = []  # taken and given back under the interpreter's lock


cdef void _add_up(
    const vector[Column]& values, Py_ssize_t start, Py_ssize_t count, const uint64_t* codes,
    vector[vector[int64_t]]& totals
) noexcept nogil:
    """Add the values of some rows to the totals of their codes."""
    cdef size_t column
    cdef const Column* own
    cdef const uint8_t* data
    for column in range(values.size()):
        own = &values[column]
        data = own.data + start * own.width
        if own.width == 1:
            _gather(<const int8_t*>data, codes, count, own.how, totals[column].data())
        elif own.width == 2:
            _gather(<const int16_t*>data, codes, count, own.how, totals[column].data())
        elif own.width == 4:
            _gather(<const int32_t*>data, codes, count, own.how, totals[column].data())
        else:
            _gather(<const int64_t*>data, codes, count, own.how, totals[column].data())


cdef bint _in_table(
    const vector[Column]& keys, const vector[Column]& values, Py_ssize_t rows, int bits, Scratch found
) except -1 nogil:
    """Add up in a table that has a place for every code; false if a value has none."""
    cdef size_t places = <size_t>1 << bits, place, column, known = 0
    cdef uint64_t[BLOCK] codes
    cdef Py_ssize_t start = 0, count, at
    cdef int64_t* table
    found.table.assign(places, 0)
    table = found.table.data()
    for column in range(values.size()):
        found.totals[column].assign(places, _neutral(values[column].how))
    while start < rows:
        count = min(<Py_ssize_t>BLOCK, rows - start)
        if not _block(keys, start, count, codes):
            return False
        for at in range(count):
            table[codes[at]] += 1
        _add_up(values, start, count, codes, found.totals)
        start += count
    found.codes.resize(min(places, <size_t>rows))
    found.counts.resize(found.codes.size())
    for place in range(places):
        if table[place]:
            found.codes[known] = place
            found.counts[known] = table[place]
            for column in range(values.size()):
                found.totals[column][known] = found.totals[column][place]  # never ahead of what is read
            known += 1
    found.codes.resize(known)
    found.counts.resize(known)
    for column in range(values.size()):
        found.totals[column].resize(known)
    return True


cdef int _sort_digits(Scratch found, int shift, int bits) except -1 nogil:
    """Sort by some bits, from the lowest digit to the highest; what is equal stays in its order."""
    cdef int passes = (bits + DIGIT - 1) // DIGIT, digit, size
    cdef uint64_t mask, count, before, item
    cdef uint64_t* items
    cdef uint64_t* room
    cdef uint64_t* starts
    cdef size_t at, rows = found.items.size()
    if passes == 0:
        return 0
    size = (bits + passes - 1) // passes
    mask = (<uint64_t>1 << size) - 1
    found.room.resize(rows)
    for digit in range(passes):
        found.starts.assign(<size_t>1 << size, 0)
        items, room, starts = found.items.data(), found.room.data(), found.starts.data()
        for at in range(rows):
            starts[(items[at] >> shift) & mask] += 1
        before = 0
        for at in range(mask + 1):
            count = starts[at]
            starts[at] = before
            before += count
        for at in range(rows):
            item = items[at]
            room[starts[(item >> shift) & mask]] = item
            starts[(item >> shift) & mask] += 1
        found.items.swap(found.room)
        shift += size
    return 0


cdef bint _by_sorting(
    const vector[Column]& keys, const vector[Column]& values, Py_ssize_t rows, int bits, Scratch found
) except -1 nogil:
    """Sort row numbers by code and number runs of equal ones; false if a value has no code."""
    cdef Py_ssize_t start = 0, at
    cdef int row_bits = 1, low = 0, own
    cdef uint64_t row_mask, own_mask, row
    cdef uint64_t* items
    cdef uint64_t* wide
    cdef size_t column
    cdef bint packed
    while rows >> row_bits:
        row_bits += 1
    row_mask = (<uint64_t>1 << row_bits) - 1
    packed = bits + row_bits <= 64
    found.items.resize(rows)
    found.wide.resize(0 if packed else rows)
    wide = found.items.data() if packed else found.wide.data()
    while start < rows:
        if not _block(keys, start, min(<Py_ssize_t>BLOCK, rows - start), wide + start):
            return False
        start += BLOCK
    items = found.items.data()
    if packed:
        for at in range(rows):
            items[at] = items[at] << row_bits | <uint64_t>at
        _sort_digits(found, row_bits, bits)
    else:
        for at in range(rows):
            items[at] = <uint64_t>at
        # As many bits of the codes as there is room for above the row's number at a time, the lowest first.
        while low < bits:
            own = min(64 - row_bits, bits - low)
            own_mask = (<uint64_t>1 << own) - 1
            items = found.items.data()
            for at in range(rows):
                row = items[at] & row_mask
                items[at] = ((wide[row] >> low) & own_mask) << row_bits | row
            _sort_digits(found, row_bits, own)
            low += own
    _number_runs(found, row_bits, wide if not packed else NULL)
    for column in range(values.size()):
        found.totals[column].resize(found.codes.size())
        _gather_runs(&values[column], found, row_mask, found.totals[column].data())
    return True


cdef void _number_runs(Scratch found, int row_bits, const uint64_t* wide) noexcept nogil:
    """The codes of runs of equal ones among what was sorted, and where each run starts."""
    cdef size_t at, known = 0, rows = found.items.size()
    cdef uint64_t code, last = 0, row_mask = (<uint64_t>1 << row_bits) - 1
    cdef const uint64_t* items = found.items.data()
    cdef uint64_t* codes
    cdef uint64_t* starts
    found.codes.resize(rows)
    found.starts.resize(rows + 1)
    codes, starts = found.codes.data(), found.starts.data()
    for at in range(rows):
        code = items[at] >> row_bits if wide == NULL else wide[items[at] & row_mask]
        if at == 0 or code != last:
            codes[known], starts[known] = code, at
            known += 1
        last = code
    found.codes.resize(known)
    found.starts.resize(known + 1)
    found.starts[known] = rows
    found.counts.resize(known)
    for at in range(known):
        found.counts[at] = <int64_t>(starts[at + 1] - starts[at])


cdef void _gather_run(
    const Value* values, const uint64_t* items, uint64_t row_mask, const vector[uint64_t]& starts, int how,
    int64_t* totals
) noexcept nogil:
    cdef size_t run, at
    cdef int64_t total
    for run in range(starts.size() - 1):
        total = <int64_t>values[items[starts[run]] & row_mask]
        for at in range(starts[run] + 1, starts[run + 1]):
            if how == SUM:
                total += <int64_t>values[items[at] & row_mask]
            elif how == LEAST:
                total = min(total, <int64_t>values[items[at] & row_mask])
            else:
                total = max(total, <int64_t>values[items[at] & row_mask])
        totals[run] = total


cdef void _gather_runs(const Column* column, Scratch found, uint64_t row_mask, int64_t* totals) noexcept nogil:
    """What the values of each run add up to."""
    cdef const uint64_t* items = found.items.data()
    if column.width == 1:
        _gather_run(<const int8_t*>column.data, items, row_mask, found.starts, column.how, totals)
    elif column.width == 2:
        _gather_run(<const int16_t*>column.data, items, row_mask, found.starts, column.how, totals)
    elif column.width == 4:
        _gather_run(<const int32_t*>column.data, items, row_mask, found.starts, column.how, totals)
    else:
        _gather_run(<const int64_t*>column.data, items, row_mask, found.starts, column.how, totals)


def _filled(Value[::1] out, uintptr_t at):
    cdef const int64_t* values = <const int64_t*>at
    cdef Py_ssize_t place
    with nogil:
        for place in range(out.shape[0]):
            out[place] = <Value>values[place]


cdef object _narrow(const vector[int64_t]& values):
    """An array of the narrowest kind of whole numbers that all of them fit in."""
    cdef uint64_t every = 0
    cdef size_t at
    with nogil:
        for at in range(values.size()):
            every |= <uint64_t>(values[at] ^ (values[at] >> 63))
    kind = np.int64 if every >> 31 else np.int32 if every >> 15 else np.int16 if every >> 7 else np.int8
    out = np.empty(values.size(), kind)
    _filled(out, <uintptr_t>values.data())
    return out


cdef Column _column(given, rows, kept) except *:
    """Where a column's values lie."""
    cdef Column column
    cdef const uint8_t[::1] raw
    if given.dtype.kind != "i":
        raise TypeError(f"{given.dtype} is not a signed whole number")
    if len(given) != rows:
        raise ValueError(f"{len(given)} values for {rows} rows")
    memset(&column, 0, sizeof(Column))
    column.width = given.dtype.itemsize
    if rows:
        plain = np.ascontiguousarray(given).view(np.uint8)
        kept.append(plain)
        raw = plain
        column.data = &raw[0]
    return column


def tally(Py_ssize_t rows, keys, values):
    """Groups of rows with equal keys, in the order of their codes, and what each adds up to.

    Args:
        rows: How many there are, below 2**30.
        keys: Columns of int8 to int64, each with its least value and how many bits are enough for what is above it,
            together at most 62. The code of a row has those of the first column in its lowest bits.
        values: Columns of int8 to int64, each with sum, min or max; sums must fit in 64 bits.

    Returns:
        The columns of the groups' keys, how many rows each group has, and a total for each of the values, all of them
        as narrow as they fit.
    """
    cdef vector[Column] grouped, added
    cdef Column column
    cdef Scratch found
    cdef int bits = 0
    cdef bint inside
    if not 0 <= rows < 1 << 30:
        raise ValueError(f"{rows} rows")
    held = []  # what the pointers lead to
    for given, least, wide in keys:
        column = _column(given, rows, held)
        column.least, column.bits, column.shift = <uint64_t><int64_t>least, wide, bits
        if not 0 <= wide <= 62 - bits:
            raise ValueError(f"a key of {wide} bits behind {bits}")
        bits += wide
        grouped.push_back(column)
    for given, how in values:
        column = _column(given, rows, held)
        column.how = _HOW[how]
        added.push_back(column)
    if not rows:
        nothing = np.empty(0, np.int8)
        return [nothing] * len(keys), nothing, [nothing] * len(values)
    # A table is gone through once more in the end: it should not have many more places than there are rows.
    cdef bint direct = bits <= 14 or <Py_ssize_t>1 << bits <= 2 * rows
    found = _scratch.pop() if _scratch else Scratch()
    if found.totals.size() < added.size():
        found.totals.resize(added.size())
    with nogil:
        if direct:
            inside = _in_table(grouped, added, rows, bits, found)
        else:
            inside = _by_sorting(grouped, added, rows, bits, found)
    if not inside:
        raise ValueError("a key does not fit in its bits")
    columns = [_decoded(found, each) for each in grouped]
    result = columns, _narrow(found.counts), [_narrow(found.totals[at]) for at in range(added.size())]
    if found.size() <= MOST_KEPT:
        _scratch.append(found)
    return result


cdef object _decoded(Scratch found, const Column& column):
    """A column of the groups' keys."""
    cdef uint64_t mask = (<uint64_t>1 << column.bits) - 1
    cdef size_t at
    with nogil:
        found.narrowed.resize(found.codes.size())
        for at in range(found.codes.size()):
            found.narrowed[at] = <int64_t>(((found.codes[at] >> column.shift) & mask) + column.least)
    return _narrow(found.narrowed)

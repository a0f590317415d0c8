# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The group-by of synopses and periodic queries (`bench periodic`): totals of groups, top groups, grouping of new rows.

Groups are numbered by int32, the position of their total; every function checks the numbers once and is then one pass.
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

_FUNCTIONS = {"sum": SUM, "min": LEAST, "max": MOST}


cdef void _merge_into(Total[::1] totals, const int32_t[::1] numbers, const Value[::1] values, int how) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t number
    cdef Total value
    if how == SUM:
        for i in range(numbers.shape[0]):
            totals[numbers[i]] += <Total>values[i]
        return
    for i in range(numbers.shape[0]):
        number, value = numbers[i], <Total>values[i]
        if (value < totals[number]) if how == LEAST else (value > totals[number]):
            totals[number] = value


cdef bint _all_below(const int32_t[::1] numbers, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t most = 0
    for i in range(numbers.shape[0]):
        most = max(most, <uint32_t>numbers[i])
    return numbers.shape[0] == 0 or most < <size_t>count


def _merge_typed(Total[::1] totals, const int32_t[::1] numbers, const Value[::1] values, int how):
    with nogil:
        _merge_into(totals, numbers, values, how)


def merge_totals(totals, numbers, values, how):
    """Merge values into the totals of their groups: `how` is sum, min or max."""
    if len(numbers) != len(values):
        raise ValueError(f"{len(numbers)} numbers for {len(values)} values")
    cdef const int32_t[::1] places = numbers
    cdef Py_ssize_t count = len(totals)
    cdef bint inside
    with nogil:
        inside = _all_below(places, count)
    if not inside:
        raise IndexError(f"a number is not below {count}")
    if (totals.dtype == np.float64) != (values.dtype == np.float64):
        raise TypeError(f"{values.dtype} values for {totals.dtype} totals")
    _merge_typed(totals, numbers, values, _FUNCTIONS[how])


cdef bint _is_greater(const Total& one, const Total& other) noexcept nogil:
    return one > other


def _find_top(const Total[::1] values, const int64_t[::1] counts, Py_ssize_t most, bint descending):
    cdef vector[Total] heap
    cdef vector[int64_t] candidates
    cdef Py_ssize_t i
    cdef Total value, least = 0
    cdef int64_t[::1] positions
    cdef bint full = False
    with nogil:
        # The heap holds the best `most` values, the worst of them on top; rows that are no worse are noted, ties too.
        for i in range(values.shape[0]):
            value = values[i] if descending else -values[i]
            # Most groups are rejected here, before their counts are read.
            if (full and value < least) or counts[i] <= 0:
                continue
            candidates.push_back(i)
            if not full:
                heap.push_back(value)
                push_heap(heap.begin(), heap.end(), &_is_greater[Total])
                full = <Py_ssize_t>heap.size() >= most
                least = heap.front()
            elif value > least:
                pop_heap(heap.begin(), heap.end(), &_is_greater[Total])
                heap.pop_back()
                heap.push_back(value)
                push_heap(heap.begin(), heap.end(), &_is_greater[Total])
                least = heap.front()
    result = np.empty(candidates.size(), np.int64)
    if not candidates.size():
        return result
    positions = result
    cdef Py_ssize_t count = 0
    with nogil:
        for i in range(<Py_ssize_t>candidates.size()):
            value = values[candidates[i]] if descending else -values[candidates[i]]
            if not full or value >= heap.front():
                positions[count] = candidates[i]
                count += 1
    return result[:count]


def find_top(values, counts, most, *, descending):
    """Where the first `most` of the values are among groups that have rows, in no order, and all that equal the last."""
    if len(values) != len(counts):
        raise ValueError(f"{len(values)} values for {len(counts)} counts")
    if most < 1:
        raise ValueError("at least one group must be asked for")
    return _find_top(values, counts, most, descending)


# Grouping of rows and their totals in one call: the GIL is released once. If there are few possible groups, totals are
# added up in a table of all of them; otherwise row numbers are sorted by group.

cdef enum:
    BLOCK = 2048
    DIGIT = 11
    MOST_SCRATCH = 1 << 20

cdef struct GroupColumn:
    const uint8_t* data
    int width
    uint64_t least
    int bits
    int shift
    int how


cdef uint64_t _add_codes(
    const Value* values, Py_ssize_t count, const GroupColumn* column, uint64_t* codes
) noexcept nogil:
    """Add a column's codes to those of its rows; gives the bits of values that are out of range."""
    cdef Py_ssize_t i
    cdef uint64_t code, combined = 0, least = column.least
    cdef int shift = column.shift
    for i in range(count):
        code = <uint64_t><int64_t>values[i] - least
        combined |= code
        codes[i] |= code << shift
    return combined >> column.bits


cdef bint _encode_block(const vector[GroupColumn]& keys, Py_ssize_t start, Py_ssize_t count, uint64_t* codes) noexcept nogil:
    """The codes of some rows; false if a value is out of range."""
    cdef size_t i
    cdef uint64_t above = 0
    cdef const GroupColumn* column
    memset(codes, 0, count * sizeof(uint64_t))
    for i in range(keys.size()):
        column = &keys[i]
        if column.width == 1:
            above |= _add_codes(<const int8_t*>column.data + start, count, column, codes)
        elif column.width == 2:
            above |= _add_codes(<const int16_t*>column.data + start, count, column, codes)
        elif column.width == 4:
            above |= _add_codes(<const int32_t*>column.data + start, count, column, codes)
        else:
            above |= _add_codes(<const int64_t*>column.data + start, count, column, codes)
    return above == 0


cdef void _add_by_code(
    const Value* values, const uint64_t* codes, Py_ssize_t count, int how, int64_t* totals
) noexcept nogil:
    cdef Py_ssize_t i
    if how == SUM:
        for i in range(count):
            totals[codes[i]] += <int64_t>values[i]
    elif how == LEAST:
        for i in range(count):
            totals[codes[i]] = min(totals[codes[i]], <int64_t>values[i])
    else:
        for i in range(count):
            totals[codes[i]] = max(totals[codes[i]], <int64_t>values[i])


cdef inline int64_t _neutral_value(int how) noexcept nogil:
    return 0 if how == SUM else INT64_MAX if how == LEAST else INT64_MIN


cdef class Scratch:
    """Working memory, kept from call to call: new memory costs more than the work that is done in it."""

    cdef vector[uint64_t] codes  # of the groups
    cdef vector[int64_t] counts
    cdef vector[vector[int64_t]] totals
    cdef vector[int64_t] table
    cdef vector[uint64_t] items
    cdef vector[uint64_t] spare
    cdef vector[uint64_t] starts
    cdef vector[uint64_t] wide
    cdef vector[int64_t] narrowed

    cdef size_t size(self):
        """Memory in numbers of eight bytes."""
        cdef size_t size = self.codes.capacity() + self.counts.capacity() + self.table.capacity()
        size += self.items.capacity() + self.spare.capacity() + self.wide.capacity() + self.narrowed.capacity()
        for total in range(self.totals.size()):
            size += self.totals[total].capacity()
        return size


_scratch = []  # taken and given back under the GIL


cdef void _add_values(
    const vector[GroupColumn]& values, Py_ssize_t start, Py_ssize_t count, const uint64_t* codes,
    vector[vector[int64_t]]& totals
) noexcept nogil:
    """Add the values of some rows to the totals of their codes."""
    cdef size_t column
    cdef const GroupColumn* value_column
    cdef const uint8_t* data
    for column in range(values.size()):
        value_column = &values[column]
        data = value_column.data + start * value_column.width
        if value_column.width == 1:
            _add_by_code(<const int8_t*>data, codes, count, value_column.how, totals[column].data())
        elif value_column.width == 2:
            _add_by_code(<const int16_t*>data, codes, count, value_column.how, totals[column].data())
        elif value_column.width == 4:
            _add_by_code(<const int32_t*>data, codes, count, value_column.how, totals[column].data())
        else:
            _add_by_code(<const int64_t*>data, codes, count, value_column.how, totals[column].data())


cdef bint _in_table(
    const vector[GroupColumn]& keys, const vector[GroupColumn]& values, Py_ssize_t rows, int bits, Scratch scratch
) except -1 nogil:
    """Add up in a table that has a place for every code; false if a value is out of range."""
    cdef size_t places = <size_t>1 << bits, place, column, groups = 0
    cdef uint64_t[BLOCK] codes
    cdef Py_ssize_t start = 0, count, i
    cdef int64_t* table
    scratch.table.assign(places, 0)
    table = scratch.table.data()
    for column in range(values.size()):
        scratch.totals[column].assign(places, _neutral_value(values[column].how))
    while start < rows:
        count = min(<Py_ssize_t>BLOCK, rows - start)
        if not _encode_block(keys, start, count, codes):
            return False
        for i in range(count):
            table[codes[i]] += 1
        _add_values(values, start, count, codes, scratch.totals)
        start += count
    scratch.codes.resize(min(places, <size_t>rows))
    scratch.counts.resize(scratch.codes.size())
    for place in range(places):
        if table[place]:
            scratch.codes[groups] = place
            scratch.counts[groups] = table[place]
            for column in range(values.size()):
                scratch.totals[column][groups] = scratch.totals[column][place]  # never ahead of what is read
            groups += 1
    scratch.codes.resize(groups)
    scratch.counts.resize(groups)
    for column in range(values.size()):
        scratch.totals[column].resize(groups)
    return True


cdef int _sort_digits(Scratch scratch, int shift, int bits) except -1 nogil:
    """Sort by some bits, from the lowest digit to the highest; what is equal stays in its order."""
    cdef int passes = (bits + DIGIT - 1) // DIGIT, digit, size
    cdef uint64_t mask, count, before, item
    cdef uint64_t* items
    cdef uint64_t* sorted_items
    cdef uint64_t* starts
    cdef size_t i, rows = scratch.items.size()
    if passes == 0:
        return 0
    size = (bits + passes - 1) // passes
    mask = (<uint64_t>1 << size) - 1
    scratch.spare.resize(rows)
    for digit in range(passes):
        scratch.starts.assign(<size_t>1 << size, 0)
        items, sorted_items, starts = scratch.items.data(), scratch.spare.data(), scratch.starts.data()
        for i in range(rows):
            starts[(items[i] >> shift) & mask] += 1
        before = 0
        for i in range(mask + 1):
            count = starts[i]
            starts[i] = before
            before += count
        for i in range(rows):
            item = items[i]
            sorted_items[starts[(item >> shift) & mask]] = item
            starts[(item >> shift) & mask] += 1
        scratch.items.swap(scratch.spare)
        shift += size
    return 0


cdef bint _by_sorting(
    const vector[GroupColumn]& keys, const vector[GroupColumn]& values, Py_ssize_t rows, int bits, Scratch scratch
) except -1 nogil:
    """Sort row numbers by code and number the runs of equal codes; false if a value is out of range."""
    cdef Py_ssize_t start = 0, i
    cdef int row_bits = 1, low = 0, step
    cdef uint64_t row_mask, step_mask, row
    cdef uint64_t* items
    cdef uint64_t* wide
    cdef size_t column
    cdef bint packed
    while rows >> row_bits:
        row_bits += 1
    row_mask = (<uint64_t>1 << row_bits) - 1
    packed = bits + row_bits <= 64
    scratch.items.resize(rows)
    scratch.wide.resize(0 if packed else rows)
    wide = scratch.items.data() if packed else scratch.wide.data()
    while start < rows:
        if not _encode_block(keys, start, min(<Py_ssize_t>BLOCK, rows - start), wide + start):
            return False
        start += BLOCK
    items = scratch.items.data()
    if packed:
        for i in range(rows):
            items[i] = items[i] << row_bits | <uint64_t>i
        _sort_digits(scratch, row_bits, bits)
    else:
        for i in range(rows):
            items[i] = <uint64_t>i
        # The codes do not fit beside the row numbers: sort by as many bits at a time as do, the lowest first.
        while low < bits:
            step = min(64 - row_bits, bits - low)
            step_mask = (<uint64_t>1 << step) - 1
            items = scratch.items.data()
            for i in range(rows):
                row = items[i] & row_mask
                items[i] = ((wide[row] >> low) & step_mask) << row_bits | row
            _sort_digits(scratch, row_bits, step)
            low += step
    _number_runs(scratch, row_bits, wide if not packed else NULL)
    for column in range(values.size()):
        scratch.totals[column].resize(scratch.codes.size())
        _add_runs(&values[column], scratch, row_mask, scratch.totals[column].data())
    return True


cdef void _number_runs(Scratch scratch, int row_bits, const uint64_t* wide) noexcept nogil:
    """The codes of the runs of equal codes, and where each run starts."""
    cdef size_t i, runs = 0, rows = scratch.items.size()
    cdef uint64_t code, last = 0, row_mask = (<uint64_t>1 << row_bits) - 1
    cdef const uint64_t* items = scratch.items.data()
    cdef uint64_t* codes
    cdef uint64_t* starts
    scratch.codes.resize(rows)
    scratch.starts.resize(rows + 1)
    codes, starts = scratch.codes.data(), scratch.starts.data()
    for i in range(rows):
        code = items[i] >> row_bits if wide == NULL else wide[items[i] & row_mask]
        if i == 0 or code != last:
            codes[runs], starts[runs] = code, i
            runs += 1
        last = code
    scratch.codes.resize(runs)
    scratch.starts.resize(runs + 1)
    scratch.starts[runs] = rows
    scratch.counts.resize(runs)
    for i in range(runs):
        scratch.counts[i] = <int64_t>(starts[i + 1] - starts[i])


cdef void _add_run(
    const Value* values, const uint64_t* items, uint64_t row_mask, const vector[uint64_t]& starts, int how,
    int64_t* totals
) noexcept nogil:
    cdef size_t run, i
    cdef int64_t total
    for run in range(starts.size() - 1):
        total = <int64_t>values[items[starts[run]] & row_mask]
        for i in range(starts[run] + 1, starts[run + 1]):
            if how == SUM:
                total += <int64_t>values[items[i] & row_mask]
            elif how == LEAST:
                total = min(total, <int64_t>values[items[i] & row_mask])
            else:
                total = max(total, <int64_t>values[items[i] & row_mask])
        totals[run] = total


cdef void _add_runs(const GroupColumn* column, Scratch scratch, uint64_t row_mask, int64_t* totals) noexcept nogil:
    """What the values of each run add up to."""
    cdef const uint64_t* items = scratch.items.data()
    if column.width == 1:
        _add_run(<const int8_t*>column.data, items, row_mask, scratch.starts, column.how, totals)
    elif column.width == 2:
        _add_run(<const int16_t*>column.data, items, row_mask, scratch.starts, column.how, totals)
    elif column.width == 4:
        _add_run(<const int32_t*>column.data, items, row_mask, scratch.starts, column.how, totals)
    else:
        _add_run(<const int64_t*>column.data, items, row_mask, scratch.starts, column.how, totals)


def _copy_narrowed(Value[::1] out, uintptr_t address):
    cdef const int64_t* values = <const int64_t*>address
    cdef Py_ssize_t i
    with nogil:
        for i in range(out.shape[0]):
            out[i] = <Value>values[i]


cdef object _narrow(const vector[int64_t]& values):
    """An array of the narrowest kind of whole numbers that all of them fit in."""
    cdef uint64_t combined = 0
    cdef size_t i
    with nogil:
        for i in range(values.size()):
            combined |= <uint64_t>(values[i] ^ (values[i] >> 63))
    kind = np.int64 if combined >> 31 else np.int32 if combined >> 15 else np.int16 if combined >> 7 else np.int8
    out = np.empty(values.size(), kind)
    _copy_narrowed(out, <uintptr_t>values.data())
    return out


cdef GroupColumn _open_column(array, rows, kept_alive) except *:
    """Where a column's values lie."""
    cdef GroupColumn column
    cdef const uint8_t[::1] raw
    if array.dtype.kind != "i":
        raise TypeError(f"{array.dtype} is not a signed whole number")
    if len(array) != rows:
        raise ValueError(f"{len(array)} values for {rows} rows")
    memset(&column, 0, sizeof(GroupColumn))
    column.width = array.dtype.itemsize
    if rows:
        plain = np.ascontiguousarray(array).view(np.uint8)
        kept_alive.append(plain)
        raw = plain
        column.data = &raw[0]
    return column


def tally(Py_ssize_t rows, keys, values):
    """Groups of rows with equal keys, in the order of their codes, and what each adds up to."""
    cdef vector[GroupColumn] grouped, added
    cdef GroupColumn column
    cdef Scratch scratch
    cdef int bits = 0
    cdef bint inside
    if not 0 <= rows < 1 << 30:
        raise ValueError(f"{rows} rows")
    held = []  # keeps the arrays alive that the pointers lead to
    for array, least, key_bits in keys:
        column = _open_column(array, rows, held)
        column.least, column.bits, column.shift = <uint64_t><int64_t>least, key_bits, bits
        if not 0 <= key_bits <= 62 - bits:
            raise ValueError(f"a key of {key_bits} bits behind {bits}")
        bits += key_bits
        grouped.push_back(column)
    for array, how in values:
        column = _open_column(array, rows, held)
        column.how = _FUNCTIONS[how]
        added.push_back(column)
    if not rows:
        nothing = np.empty(0, np.int8)
        return [nothing] * len(keys), nothing, [nothing] * len(values)
    # A table is read once more at the end: it should not have many more places than there are rows.
    cdef bint direct = bits <= 14 or <Py_ssize_t>1 << bits <= 2 * rows
    scratch = _scratch.pop() if _scratch else Scratch()
    if scratch.totals.size() < added.size():
        scratch.totals.resize(added.size())
    with nogil:
        if direct:
            inside = _in_table(grouped, added, rows, bits, scratch)
        else:
            inside = _by_sorting(grouped, added, rows, bits, scratch)
    if not inside:
        raise ValueError("a key does not fit in its bits")
    columns = [_decode_keys(scratch, group_column) for group_column in grouped]
    result = columns, _narrow(scratch.counts), [_narrow(scratch.totals[i]) for i in range(added.size())]
    if scratch.size() <= MOST_SCRATCH:
        _scratch.append(scratch)
    return result


cdef object _decode_keys(Scratch scratch, const GroupColumn& column):
    """A column of the groups' keys."""
    cdef uint64_t mask = (<uint64_t>1 << column.bits) - 1
    cdef size_t i
    with nogil:
        scratch.narrowed.resize(scratch.codes.size())
        for i in range(scratch.codes.size()):
            scratch.narrowed[i] = <int64_t>(((scratch.codes[i] >> column.shift) & mask) + column.least)
    return _narrow(scratch.narrowed)

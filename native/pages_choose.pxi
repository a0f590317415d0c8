# Which of the rows that were looked at are wanted: as ranges of their own, or one by one.

cdef struct Span:
    int part
    int group
    int64_t lo  # rows within the row group
    int64_t hi


cdef int64_t runs_between(const vector[Span]& spans, const int64_t* values, int64_t after, int64_t upto,
                          vector[Span]& kept) except -1 nogil:
    """The runs of rows in spans whose values (one for each row) are in bounds; returns how many rows they have."""
    cdef Span run
    cdef size_t i
    cdef int64_t row, rows = 0, stop
    for i in range(spans.size()):
        run = spans[i]
        row = 0
        stop = run.hi - run.lo
        while row < stop:
            while row < stop and not (after < values[row] <= upto):
                row += 1
            run.lo = spans[i].lo + row
            while row < stop and after < values[row] <= upto:
                row += 1
            run.hi = spans[i].lo + row
            if run.hi > run.lo:
                kept.push_back(run)
                rows += run.hi - run.lo
        values += stop
    return rows


cdef int all_rows(vector[uint32_t]& chosen, int64_t rows) except -1 nogil:
    cdef int64_t row
    chosen.resize(rows)
    for row in range(rows):
        chosen[row] = <uint32_t>row
    return 0


cdef int64_t choose_between(vector[uint32_t]& chosen, const int64_t* values, int64_t after, int64_t upto) except -1 nogil:
    """Of the chosen rows, leave those whose values (one for each of them) are in bounds; returns how many they are."""
    cdef size_t i, left = 0
    for i in range(chosen.size()):
        chosen[left] = chosen[i]
        left += after < values[i] <= upto
    chosen.resize(left)
    return left


cdef void choose_values(const vector[uint32_t]& chosen, uint8_t* values, int width) noexcept nogil:
    """Move the values of chosen rows to the front; rows ascend, so none is overwritten before it is moved."""
    cdef size_t i
    if width == 8:
        for i in range(chosen.size()):
            memcpy(values + i * 8, values + <size_t>chosen[i] * 8, 8)
    elif width == 16:
        for i in range(chosen.size()):
            memcpy(values + i * 16, values + <size_t>chosen[i] * 16, 16)
    else:
        for i in range(chosen.size()):
            memmove(values + i * width, values + <size_t>chosen[i] * width, width)


cdef int64_t choose_bits(const vector[uint32_t]& chosen, uint8_t* bits) noexcept nogil:
    """Move the bits of chosen rows to the front; returns how many are not set."""
    cdef size_t i
    cdef int64_t unset = 0
    cdef uint8_t bit
    for i in range(chosen.size()):
        bit = (bits[chosen[i] >> 3] >> (chosen[i] & 7)) & 1
        bits[i >> 3] = (bits[i >> 3] & ~(1 << (i & 7))) | (bit << (i & 7))
        unset += not bit
    return unset

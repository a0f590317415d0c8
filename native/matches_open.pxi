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

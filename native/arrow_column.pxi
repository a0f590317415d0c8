# Where the values of an Arrow array lie, for the kernels that read them; follows common.pxi. What the kernels rely on is
# checked here, once for each array.

cdef struct ArrowColumn:
    const uint8_t* data     # of the first value; of text: its bytes; of booleans: the whole bitmap
    const uint8_t* offsets  # of text: where each value begins, from the first one on
    const uint8_t* valid    # NULL: no value is null
    int64_t offset          # position of the first value in bitmaps
    int64_t length
    int64_t size            # of text: bytes of `data`
    int64_t width           # bytes of a value; 0: booleans or text
    bint unsigned


cdef inline bint is_valid(const ArrowColumn* column, int64_t row) noexcept nogil:
    return column.valid == NULL or is_set(column.valid, column.offset + row)


cdef list open_array(array, ArrowColumn* column):
    """Fill in what all kinds of arrays have: their place in the buffers, and which values are null; give the buffers."""
    cdef list buffers = array.buffers()
    memset(column, 0, sizeof(ArrowColumn))
    column.offset, column.length = array.offset, len(array)
    if array.null_count:
        column.valid = address_of(buffers[0], (column.offset + column.length + 7) // 8)
    return buffers


cdef int open_booleans(array, ArrowColumn* column) except -1:
    cdef list buffers = open_array(array, column)
    column.data = address_of(buffers[1], (column.offset + column.length + 7) // 8)
    return 0


cdef int open_fixed(array, int64_t width, ArrowColumn* column) except -1:
    """Values of `width` bytes each."""
    cdef list buffers = open_array(array, column)
    column.width = width
    column.data = address_of(buffers[1], (column.offset + column.length) * width)
    if column.data != NULL:
        column.data += column.offset * width
    return 0


cdef int open_text(array, int offset_width, ArrowColumn* column) except -1:
    """Text or bytes; whether the offsets point into the data is for the kernel to check when it follows one."""
    cdef list buffers = open_array(array, column)
    column.data, column.size = address_of(buffers[2]), 0 if buffers[2] is None else buffers[2].size
    if column.length:
        column.offsets = address_of(buffers[1], (column.offset + column.length + 1) * offset_width)
        column.offsets += column.offset * offset_width
    return 0

# Thrift's compact protocol, as much of it as Parquet's headers and footers need. A cursor never passes its end: at the first
# byte that cannot be right it is marked bad and emptied, so that loops over it end and callers check `bad` once.

cdef struct Cursor:
    const uint8_t* p
    const uint8_t* end
    bint bad

cdef enum:
    T_TRUE = 1
    T_FALSE = 2
    T_BYTE = 3
    T_I32 = 5
    T_I64 = 6
    T_DOUBLE = 7
    T_BINARY = 8
    T_LIST = 9
    T_SET = 10
    T_MAP = 11
    T_STRUCT = 12
    MAX_DEPTH = 16


cdef inline void mark_bad(Cursor* c) noexcept nogil:
    c.bad = True
    c.p = c.end


cdef inline uint64_t read_varint(Cursor* c) noexcept nogil:
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while c.p < c.end and shift < 64:
        byte = c.p[0]
        c.p += 1
        value |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    mark_bad(c)
    return 0


cdef inline int64_t read_zigzag(Cursor* c) noexcept nogil:
    cdef uint64_t value = read_varint(c)
    return <int64_t>(value >> 1) ^ -<int64_t>(value & 1)


cdef inline int64_t read_size(Cursor* c) noexcept nogil:
    """A non-negative number that fits 32 bits, as all sizes in page headers must."""
    cdef int64_t value = read_zigzag(c)
    if value < 0 or value > 0x7FFFFFFF:
        mark_bad(c)
        return 0
    return value


cdef inline bint next_field(Cursor* c, int* ident, int* kind) noexcept nogil:
    """Move to the next field of a struct: False at its end (or at damage)."""
    cdef uint8_t byte
    if c.p >= c.end:
        mark_bad(c)
        return False
    byte = c.p[0]
    c.p += 1
    if byte == 0:
        return False
    kind[0] = byte & 0x0F
    if byte >> 4:
        ident[0] += byte >> 4
    else:
        ident[0] = <int>(read_zigzag(c) & 0xFFFF)
    return not c.bad


cdef inline uint64_t read_list_header(Cursor* c, int* kind) noexcept nogil:
    """The length of a list; one that could not fit the bytes that are left is damage."""
    cdef uint64_t size
    if c.p >= c.end:
        mark_bad(c)
        return 0
    kind[0] = c.p[0] & 0x0F
    size = c.p[0] >> 4
    c.p += 1
    if size == 15:
        size = read_varint(c)
    if size > <uint64_t>(c.end - c.p):
        mark_bad(c)
        return 0
    return size


cdef inline const uint8_t* read_binary(Cursor* c, uint64_t* size) noexcept nogil:
    cdef const uint8_t* start
    size[0] = read_varint(c)
    if size[0] > <uint64_t>(c.end - c.p):
        mark_bad(c)
        size[0] = 0
    start = c.p
    c.p += size[0]
    return start


cdef void skip_value(Cursor* c, int kind, int depth, bint in_list) noexcept nogil:
    cdef int ident = 0, inner = 0
    cdef uint64_t i, size
    if depth > MAX_DEPTH:
        mark_bad(c)
    elif kind == T_TRUE or kind == T_FALSE:
        if in_list:  # a struct keeps a boolean in the field's type, a list in a byte
            skip_value(c, T_BYTE, depth, in_list)
    elif kind == T_BYTE:
        if c.p >= c.end:
            mark_bad(c)
        else:
            c.p += 1
    elif kind < T_DOUBLE and kind > T_BYTE:
        read_varint(c)
    elif kind == T_DOUBLE:
        if c.end - c.p < 8:
            mark_bad(c)
        else:
            c.p += 8
    elif kind == T_BINARY:
        read_binary(c, &size)
    elif kind == T_LIST or kind == T_SET:
        size = read_list_header(c, &inner)
        i = 0
        while i < size and not c.bad:
            skip_value(c, inner, depth + 1, True)
            i += 1
    elif kind == T_STRUCT:
        while next_field(c, &ident, &inner):
            skip_value(c, inner, depth + 1, False)
    else:  # maps do not occur in Parquet
        mark_bad(c)

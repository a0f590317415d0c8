# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Turns the values of search key columns into bytes whose order is the order of the values.

Equal values give equal bytes, composites are concatenations, and no encoded value is a prefix of another one of its column.
"""

# One encoded value: a flag byte (null or value), then
#   integers, dates, times, timestamps, durations   8 bytes big-endian, sign bit flipped where the type is signed
#   floats                                          8 bytes of the double: all bits flipped if negative, else the sign bit;
#                                                   zero has one form, and so has NaN (all ones: greatest)
#   decimals                                        the unscaled value, big-endian, sign bit flipped, in the type's width
#   booleans                                        1 byte
#   fixed-size binary                               the bytes
#   strings, binary                                 the bytes with 00 -> 00 FF, closed by 00 00
# A null of a fixed-width column is padded with zeros to the column's width; of a string column it is the flag alone.

from libc.stdlib cimport free, malloc

include "common.pxi"
include "arrow_column.pxi"

import pyarrow as pa

cdef enum:
    NULL_FIRST = 0
    VALUE = 1
    NULL_LAST = 2

cdef enum Kind:
    NOTHING, BOOLEAN, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, FLOAT, DOUBLE, DECIMAL, RAW, TEXT, LONG_TEXT

cdef struct KeyColumn:
    ArrowColumn values
    Kind kind
    int64_t width  # bytes of an encoded value, without its flag; -1 where it varies
    bint zeros  # some byte of the text is zero

cdef struct Output:
    uint8_t* data
    int64_t* cursor  # NULL: every row has `stride` bytes
    int64_t stride
    int64_t position  # of the next value in a row of fixed size

ctypedef fused integer:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t

ctypedef fused real:
    float
    double

ctypedef fused offset_type:
    int32_t
    int64_t

cdef dict KINDS = {
    pa.lib.Type_NA: NOTHING, pa.lib.Type_BOOL: BOOLEAN,
    pa.lib.Type_INT8: INT8, pa.lib.Type_INT16: INT16,
    pa.lib.Type_INT32: INT32, pa.lib.Type_INT64: INT64,
    pa.lib.Type_UINT8: UINT8, pa.lib.Type_UINT16: UINT16,
    pa.lib.Type_UINT32: UINT32, pa.lib.Type_UINT64: UINT64,
    pa.lib.Type_FLOAT: FLOAT, pa.lib.Type_DOUBLE: DOUBLE,
    pa.lib.Type_DATE32: INT32, pa.lib.Type_DATE64: INT64,
    pa.lib.Type_TIME32: INT32, pa.lib.Type_TIME64: INT64,
    pa.lib.Type_TIMESTAMP: INT64, pa.lib.Type_DURATION: INT64,
    pa.lib.Type_DECIMAL32: DECIMAL, pa.lib.Type_DECIMAL64: DECIMAL,
    pa.lib.Type_DECIMAL128: DECIMAL, pa.lib.Type_DECIMAL256: DECIMAL,
    pa.lib.Type_FIXED_SIZE_BINARY: RAW,
    pa.lib.Type_STRING: TEXT, pa.lib.Type_BINARY: TEXT,
    pa.lib.Type_LARGE_STRING: LONG_TEXT, pa.lib.Type_LARGE_BINARY: LONG_TEXT,
}
# Types that are brought to another one before they are encoded.
cdef dict WIDENED = {
    pa.lib.Type_HALF_FLOAT: pa.float64(),
    pa.lib.Type_STRING_VIEW: pa.large_string(),
    pa.lib.Type_BINARY_VIEW: pa.large_binary(),
}


def is_supported(type):
    """Tells whether values of an Arrow type can be encoded as keys."""
    if isinstance(type, pa.BaseExtensionType):
        return is_supported(type.storage_type)
    if pa.types.is_dictionary(type):
        return is_supported(type.value_type)
    return type.id in KINDS or type.id in WIDENED


def encode(arrays, *, bint nulls_last=False):
    """Encodes the rows of one or more key columns so that byte order is value order."""
    columns = [_plain(array) for array in arrays]
    if not columns:
        raise ValueError("a key needs at least one column")
    cdef int64_t rows = len(columns[0])
    for array in columns:
        if len(array) != rows:
            raise ValueError(f"key columns have different lengths: {[len(column) for column in columns]}")
    cdef int64_t count = len(columns)
    cdef KeyColumn* views = <KeyColumn*>malloc(count * sizeof(KeyColumn))
    if views == NULL:
        raise MemoryError
    try:
        for i, array in enumerate(columns):
            open_column(array, &views[<int64_t>i])
        for i in range(count):
            if views[<int64_t>i].width < 0:
                return _encode_varying(views, count, rows, nulls_last)
        return _encode_fixed(views, count, rows, nulls_last)
    finally:
        free(views)


def successor(bytes prefix not None):
    """Gives the smallest byte string greater than all that start with the prefix, or None if there is none."""
    kept = prefix.rstrip(b"\xff")
    last = len(kept) - 1
    return kept[:last] + bytes((kept[last] + 1,)) if kept else None


def _plain(array):
    """Gives one unchunked array of a type that the kernel reads, with extensions and dictionaries undone."""
    if not isinstance(array, (pa.Array, pa.ChunkedArray)):
        raise TypeError(f"a key column must be an Arrow array, not {array.__class__.__name__}")
    if not is_supported(array.type):
        raise TypeError(f"values of type {array.type} cannot be keys")
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks == 1:
            return _plain(array.chunk(0))
        chunks = [_plain(chunk) for chunk in array.chunks]
        return pa.concat_arrays(chunks) if chunks else _plain(pa.array([], type=array.type))
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain(array.storage)
    if pa.types.is_dictionary(array.type):
        return _plain(array.dictionary_decode())
    if array.type.id in WIDENED:
        return array.cast(WIDENED[array.type.id])
    return array


cdef int open_column(array, KeyColumn* column) except -1:
    cdef ArrowColumn* values = &column.values
    cdef int64_t first = 0, last = 0
    column.kind, column.width, column.zeros = KINDS[array.type.id], 8, False
    if column.kind == NOTHING:
        column.width = 0
        return 0
    array.validate()
    if column.kind == TEXT or column.kind == LONG_TEXT:
        column.width = -1
        open_text(array, 4 if column.kind == TEXT else 8, values)
        if values.length and values.data != NULL:
            if column.kind == TEXT:
                first, last = (<const int32_t*>values.offsets)[0], (<const int32_t*>values.offsets)[values.length]
            else:
                first, last = (<const int64_t*>values.offsets)[0], (<const int64_t*>values.offsets)[values.length]
            column.zeros = last > first and memchr(values.data + first, 0, <size_t>(last - first)) != NULL
    elif column.kind == BOOLEAN:
        column.width = 1
        open_booleans(array, values)
    else:
        if column.kind == DECIMAL or column.kind == RAW:
            column.width = array.type.byte_width
        open_fixed(array, array.type.bit_width // 8, values)
    return 0


cdef object _encode_fixed(KeyColumn* columns, int64_t count, int64_t rows, bint nulls_last):
    cdef Output out
    cdef int64_t i
    out.cursor = NULL
    out.stride = 0
    out.position = 0
    for i in range(count):
        out.stride += 1 + columns[i].width
    if out.stride > 0x7FFFFFFF:
        raise ValueError(f"keys of {out.stride} bytes are too wide")
    buffer = pa.allocate_buffer(rows * out.stride)
    out.data = <uint8_t*>address_of(buffer)
    with nogil:
        for i in range(count):
            put(&columns[i], rows, &out, nulls_last)
            out.position += 1 + columns[i].width
    return pa.Array.from_buffers(pa.binary(out.stride), rows, [None, buffer], null_count=0)


cdef object _encode_varying(KeyColumn* columns, int64_t count, int64_t rows, bint nulls_last):
    cdef Output out
    cdef int64_t i, row, fixed = 0, total = 0, size
    ends = pa.allocate_buffer((rows + 1) * 8)
    cdef int64_t* offsets = <int64_t*>address_of(ends)
    cursors = pa.allocate_buffer(rows * 8)
    out.cursor = <int64_t*>address_of(cursors)
    out.stride = 0
    out.position = 0
    with nogil:
        for i in range(count):
            if columns[i].width >= 0:
                fixed += 1 + columns[i].width
        for row in range(rows):
            out.cursor[row] = fixed
        for i in range(count):
            if columns[i].kind == TEXT:
                measure[int32_t](&columns[i], <const int32_t*>columns[i].values.offsets, rows, out.cursor)
            elif columns[i].kind == LONG_TEXT:
                measure[int64_t](&columns[i], <const int64_t*>columns[i].values.offsets, rows, out.cursor)
        for row in range(rows):
            size = out.cursor[row]
            offsets[row] = out.cursor[row] = total
            total += size
        offsets[rows] = total
    buffer = pa.allocate_buffer(total)
    out.data = <uint8_t*>address_of(buffer)
    with nogil:
        for i in range(count):
            put(&columns[i], rows, &out, nulls_last)
    return pa.Array.from_buffers(pa.large_binary(), rows, [None, ends, buffer], null_count=0)


cdef inline uint8_t* place(const Output* out, int64_t row, int64_t size) noexcept nogil:
    """Where the next `size` bytes of a row go."""
    cdef uint8_t* to
    if out.cursor == NULL:
        return out.data + row * out.stride + out.position
    to = out.data + out.cursor[row]
    out.cursor[row] += size
    return to


cdef void put(const KeyColumn* column, int64_t rows, Output* out, bint nulls_last) noexcept nogil:
    cdef uint8_t null = NULL_LAST if nulls_last else NULL_FIRST
    cdef uint64_t sign = <uint64_t>1 << 63
    if column.kind == NOTHING:
        put_nothing(rows, out, null)
    elif column.kind == BOOLEAN:
        put_booleans(column, rows, out, null)
    elif column.kind == INT8:
        put_integers[int8_t](column, <const int8_t*>column.values.data, rows, out, null, sign)
    elif column.kind == INT16:
        put_integers[int16_t](column, <const int16_t*>column.values.data, rows, out, null, sign)
    elif column.kind == INT32:
        put_integers[int32_t](column, <const int32_t*>column.values.data, rows, out, null, sign)
    elif column.kind == INT64:
        put_integers[int64_t](column, <const int64_t*>column.values.data, rows, out, null, sign)
    elif column.kind == UINT8:
        put_integers[uint8_t](column, <const uint8_t*>column.values.data, rows, out, null, 0)
    elif column.kind == UINT16:
        put_integers[uint16_t](column, <const uint16_t*>column.values.data, rows, out, null, 0)
    elif column.kind == UINT32:
        put_integers[uint32_t](column, <const uint32_t*>column.values.data, rows, out, null, 0)
    elif column.kind == UINT64:
        put_integers[uint64_t](column, <const uint64_t*>column.values.data, rows, out, null, 0)
    elif column.kind == FLOAT:
        put_reals[float](column, <const float*>column.values.data, rows, out, null)
    elif column.kind == DOUBLE:
        put_reals[double](column, <const double*>column.values.data, rows, out, null)
    elif column.kind == DECIMAL:
        put_decimals(column, rows, out, null)
    elif column.kind == RAW:
        put_raw(column, rows, out, null)
    elif column.kind == TEXT:
        put_text[int32_t](column, <const int32_t*>column.values.offsets, rows, out, null)
    else:
        put_text[int64_t](column, <const int64_t*>column.values.offsets, rows, out, null)


cdef void put_nothing(int64_t rows, Output* out, uint8_t null) noexcept nogil:
    cdef int64_t row
    for row in range(rows):
        place(out, row, 1)[0] = null


cdef void put_booleans(const KeyColumn* column, int64_t rows, Output* out, uint8_t null) noexcept nogil:
    cdef int64_t row
    cdef uint8_t* to
    for row in range(rows):
        to = place(out, row, 2)
        if is_valid(&column.values, row):
            to[0] = VALUE
            to[1] = is_set(column.values.data, column.values.offset + row)
        else:
            to[0] = null
            to[1] = 0


cdef void put_integers(
    const KeyColumn* column, const integer* values, int64_t rows, Output* out, uint8_t null, uint64_t sign
) noexcept nogil:
    cdef int64_t row
    cdef uint8_t* to
    for row in range(rows):
        to = place(out, row, 9)
        if is_valid(&column.values, row):
            to[0] = VALUE
            store_big(to + 1, (<uint64_t>values[row]) ^ sign)
        else:
            to[0] = null
            memset(to + 1, 0, 8)


cdef void put_reals(const KeyColumn* column, const real* values, int64_t rows, Output* out, uint8_t null) noexcept nogil:
    cdef int64_t row
    cdef uint8_t* to
    cdef double value
    cdef uint64_t bits
    for row in range(rows):
        to = place(out, row, 9)
        if is_valid(&column.values, row):
            value = <double>values[row]
            value += 0.0  # turns -0.0 into 0.0
            memcpy(&bits, &value, 8)
            bits ^= (0 - (bits >> 63)) | (<uint64_t>1 << 63)
            if value != value:
                bits = <uint64_t>-1
            to[0] = VALUE
            store_big(to + 1, bits)
        else:
            to[0] = null
            memset(to + 1, 0, 8)


cdef void put_decimals(const KeyColumn* column, int64_t rows, Output* out, uint8_t null) noexcept nogil:
    cdef int64_t row, i, width = column.width
    cdef uint8_t* to
    cdef const uint8_t* value
    for row in range(rows):
        to = place(out, row, 1 + width)
        if is_valid(&column.values, row):
            value = column.values.data + row * width
            to[0] = VALUE
            for i in range(width):
                to[1 + i] = value[width - 1 - i]
            to[1] ^= 0x80
        else:
            to[0] = null
            memset(to + 1, 0, <size_t>width)


cdef void put_raw(const KeyColumn* column, int64_t rows, Output* out, uint8_t null) noexcept nogil:
    cdef int64_t row, width = column.width
    cdef uint8_t* to
    for row in range(rows):
        to = place(out, row, 1 + width)
        if not is_valid(&column.values, row):
            to[0] = null
            memset(to + 1, 0, <size_t>width)
        else:
            to[0] = VALUE
            if width > 0:
                memcpy(to + 1, column.values.data + row * width, <size_t>width)


cdef void measure(const KeyColumn* column, const offset_type* ends, int64_t rows, int64_t* sizes) noexcept nogil:
    """Adds the encoded size of each text to `sizes`."""
    cdef int64_t row, i
    for row in range(rows):
        if not is_valid(&column.values, row):
            sizes[row] += 1
            continue
        sizes[row] += 3 + ends[row + 1] - ends[row]
        if column.zeros:
            for i in range(ends[row], ends[row + 1]):
                sizes[row] += column.values.data[i] == 0


cdef void put_text(
    const KeyColumn* column, const offset_type* ends, int64_t rows, Output* out, uint8_t null
) noexcept nogil:
    cdef int64_t row, i, size
    cdef uint8_t* to
    for row in range(rows):
        to = out.data + out.cursor[row]
        if not is_valid(&column.values, row):
            to[0] = null
            out.cursor[row] += 1
            continue
        to[0] = VALUE
        to += 1
        size = ends[row + 1] - ends[row]
        if not column.zeros:
            if size > 0:
                memcpy(to, column.values.data + ends[row], <size_t>size)
            to += size
        else:
            for i in range(ends[row], ends[row + 1]):
                to[0] = column.values.data[i]
                to += 1
                if column.values.data[i] == 0:
                    to[0] = 0xFF
                    to += 1
        to[0] = 0
        to[1] = 0
        out.cursor[row] = to + 2 - out.data

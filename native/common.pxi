# What several kernels need, shared through `include`: Cython does not find a cimport between packages that setuptools maps
# to folders of another name.

from libc.stdint cimport (
    INT64_MAX, INT64_MIN, UINT32_MAX,
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t,
)
from libc.string cimport memchr, memcmp, memcpy, memset

cdef extern from *:
    """
    static inline int trailing_zeros(uint64_t value) { return __builtin_ctzll(value); }
    static inline void prefetch(const void* at) { __builtin_prefetch(at); }
    """
    int trailing_zeros(uint64_t value) nogil
    void prefetch(const void* at) nogil


cdef struct Keys:
    const uint8_t* data
    const int64_t* offsets  # NULL: every key has `width` bytes
    int64_t width
    int64_t count


cdef inline const uint8_t* key_at(const Keys* keys, int64_t row, int64_t* size) noexcept nogil:
    if keys.offsets == NULL:
        size[0] = keys.width
        return keys.data + row * keys.width
    size[0] = keys.offsets[row + 1] - keys.offsets[row]
    return keys.data + keys.offsets[row]


cdef inline int compare_bytes(const uint8_t* a, int64_t a_size, const uint8_t* b, int64_t b_size) noexcept nogil:
    """Order of two byte strings; a prefix comes before what it begins."""
    cdef int64_t size = a_size if a_size < b_size else b_size
    cdef int order = memcmp(a, b, <size_t>size) if size > 0 else 0
    if order != 0:
        return order
    return (a_size > b_size) - (a_size < b_size)


cdef inline uint64_t load_big(const uint8_t* p) noexcept nogil:
    return (
        (<uint64_t>p[0] << 56) | (<uint64_t>p[1] << 48) | (<uint64_t>p[2] << 40) | (<uint64_t>p[3] << 32)
        | (<uint64_t>p[4] << 24) | (<uint64_t>p[5] << 16) | (<uint64_t>p[6] << 8) | <uint64_t>p[7]
    )


cdef inline void store_big32(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>(value >> 24)
    p[1] = <uint8_t>(value >> 16)
    p[2] = <uint8_t>(value >> 8)
    p[3] = <uint8_t>value


cdef inline void store_big(uint8_t* p, uint64_t value) noexcept nogil:
    store_big32(p, <uint32_t>(value >> 32))
    store_big32(p + 4, <uint32_t>value)


cdef inline uint32_t load_u16(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] | (<uint32_t>p[1] << 8)


cdef inline uint32_t load_u32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)


cdef inline uint64_t load_u64(const uint8_t* p) noexcept nogil:
    return <uint64_t>load_u32(p) | (<uint64_t>load_u32(p + 4) << 32)


cdef inline int64_t common_size(const uint8_t* a, int64_t a_size, const uint8_t* b, int64_t b_size) noexcept nogil:
    """How many leading bytes two byte strings share."""
    cdef int64_t size = a_size if a_size < b_size else b_size
    cdef int64_t i = 0
    cdef uint64_t differ
    while i + 8 <= size:
        differ = load_u64(a + i) ^ load_u64(b + i)
        if differ != 0:
            return i + trailing_zeros(differ) // 8
        i += 8
    while i < size and a[i] == b[i]:
        i += 1
    return i


cdef inline void store_u16(uint8_t* p, uint32_t value) noexcept nogil:
    p[0] = <uint8_t>value
    p[1] = <uint8_t>(value >> 8)


cdef inline void store_u32(uint8_t* p, uint32_t value) noexcept nogil:
    store_u16(p, value)
    store_u16(p + 2, value >> 16)


cdef const uint8_t* address_of(buffer, int64_t least=0) except? NULL:
    """Where the bytes of an Arrow buffer begin; refuses one that has fewer than `least`."""
    if (0 if buffer is None else buffer.size) < least:
        raise ValueError("an array is shorter than it says")
    if buffer is None:
        return NULL
    return <const uint8_t*><uintptr_t>buffer.address


cdef inline bint is_set(const uint8_t* bits, int64_t position) noexcept nogil:
    return (bits[position >> 3] >> (position & 7)) & 1


import pyarrow as _pa


cdef object open_keys(keys, Keys* view):
    """Fills `view` with the buffers of an array of encoded keys; the result owns them and must outlive it."""
    if isinstance(keys, _pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not isinstance(keys, _pa.Array):
        raise TypeError(f"keys must be an Arrow array of encoded keys, not {type(keys).__name__}")
    if _pa.types.is_binary(keys.type):
        keys = keys.cast(_pa.large_binary())
    if keys.null_count:
        raise ValueError("encoded keys are never null")
    keys.validate()
    buffers = keys.buffers()
    cdef int64_t offset = keys.offset
    view.count = len(keys)
    if _pa.types.is_fixed_size_binary(keys.type):
        view.width = keys.type.byte_width
        view.offsets = NULL
        view.data = address_of(buffers[1])
        if view.data != NULL:
            view.data += offset * view.width
    elif _pa.types.is_large_binary(keys.type):
        view.width = 0
        view.offsets = <const int64_t*>address_of(buffers[1])
        if view.offsets != NULL:
            view.offsets += offset
        view.data = address_of(buffers[2])
    else:
        raise TypeError(f"keys must be encoded by windrow.native.key_encoding, not of type {keys.type}")
    return keys

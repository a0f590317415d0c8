# Writing of directory.pyx: where entries begin, and the bytes of the blob.


cdef int64_t shared_prefix(const Keys* keys, int64_t most) noexcept nogil:
    """How many bytes, up to `most`, all of some sorted keys share."""
    cdef int64_t first_size, last_size
    cdef const uint8_t* first
    cdef const uint8_t* last
    if keys.count == 0:
        return 0
    first = key_at(keys, 0, &first_size)
    last = key_at(keys, keys.count - 1, &last_size)
    return common_size(first, first_size if first_size < most else most, last, last_size)


cdef int64_t count_distinct(const Keys* keys, int64_t* violated) noexcept nogil:
    """Counts distinct keys; `violated` becomes the first row that is out of order."""
    cdef int64_t row, size, last_size, distinct = keys.count > 0
    cdef const uint8_t* key
    cdef const uint8_t* last
    cdef int order
    if keys.count == 0:
        return 0
    last = key_at(keys, 0, &last_size)
    for row in range(1, keys.count):
        key = key_at(keys, row, &size)
        order = compare_bytes(last, last_size, key, size)
        if order > 0:
            violated[0] = row
            return distinct
        distinct += order != 0
        last, last_size = key, size
    return distinct


cdef void collect(
    const Keys* keys, int64_t prefix, int64_t max_key, int64_t block_rows,
    vector[int64_t]* firsts, vector[int64_t]* sizes, bint* inexact
) noexcept nogil:
    """Finds where entries begin and how many bytes behind the prefix each keeps; block_rows 0 gives a dense directory."""
    cdef int64_t row, size, last_size = 0, shared, most = prefix + max_key
    cdef int64_t begin = 0, run = 0  # of the block, of the run of equal keys
    cdef int64_t run_separator = 0
    cdef const uint8_t* key
    cdef const uint8_t* last = NULL
    for row in range(keys.count + 1):
        size = 0
        key = NULL
        shared = 0
        if row < keys.count:
            key = key_at(keys, row, &size)
            if size > most:
                inexact[0] = True
                size = most
            if row > 0:
                shared = common_size(last, last_size, key, size)
                if shared == size and size == last_size:
                    continue
        # The run [run, row) of equal (cut) keys has ended: it begins an entry, or goes on with the block.
        if row > 0 and (run == 0 or row - begin > block_rows):
            begin = run
            firsts.push_back(run)
            sizes.push_back(last_size - prefix if block_rows == 0 or run == 0 else run_separator - prefix)
        run = row
        run_separator = shared + 1
        last, last_size = key, size


cdef object _pack(
    const Keys* keys, int64_t prefix, int64_t max_key, bint dense, bint inexact,
    vector[int64_t]* firsts, vector[int64_t]* sizes
):
    cdef int64_t entries = firsts.size(), at, end = 0, size
    cdef const uint8_t* key
    if entries and not dense:
        key = key_at(keys, keys.count - 1, &size)
        size = size - prefix if size - prefix < max_key else max_key
        sizes.push_back(size)
    cdef int64_t stored = sizes.size()
    cdef bint fixed = True
    for at in range(stored):
        end += sizes[0][at]
        fixed = fixed and sizes[0][at] == sizes[0][0]
    if end > UINT32_MAX:
        raise ValueError(f"a directory with {end} bytes of keys is too large")
    cdef int64_t total = HEADER + prefix + 4 * entries + (0 if fixed else 4 * (stored + 1)) + end
    blob = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(blob)
    cdef uint8_t* to
    cdef uint8_t* ends
    with nogil:
        memcpy(out, MAGIC, 4)
        out[4] = VERSION
        out[5] = (DENSE if dense else 0) | (INEXACT if inexact else 0) | (FIXED if fixed else 0)
        store_u16(out + 6, <uint32_t>sizes[0][0] if fixed and stored else 0)
        store_u32(out + 8, <uint32_t>keys.count)
        store_u32(out + 12, <uint32_t>entries)
        store_u16(out + 16, <uint32_t>prefix)
        store_u16(out + 18, <uint32_t>max_key)
        store_u32(out + 20, <uint32_t>end)
        to = out + HEADER
        if prefix > 0:
            memcpy(to, key_at(keys, 0, &size), <size_t>prefix)
            to += prefix
        for at in range(entries):
            store_u32(to, <uint32_t>firsts[0][at])
            to += 4
        ends = to
        if not fixed:
            store_u32(ends, 0)
            to += 4 * (stored + 1)
        end = 0
        for at in range(stored):
            key = key_at(keys, firsts[0][at] if at < entries else keys.count - 1, &size)
            if sizes[0][at] > 0:
                memcpy(to + end, key + prefix, <size_t>sizes[0][at])
            end += sizes[0][at]
            if not fixed:
                store_u32(ends + 4 * (at + 1), <uint32_t>end)
    return blob

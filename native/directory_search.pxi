# Reading of directory.pyx: every offset of a blob is checked before it is followed, and no blob is trusted.


cdef const char* open_blob(const uint8_t* data, int64_t size, Blob* blob) noexcept nogil:
    """Checks a blob's header and fills `blob`; gives what is wrong, or NULL."""
    cdef int64_t at
    if size < HEADER or memcmp(data, MAGIC, 4) != 0:
        return b"is not a directory"
    if data[4] != VERSION:
        return b"has an unknown version"
    blob.data = data
    blob.size = size
    blob.dense = (data[5] & DENSE) != 0
    blob.inexact = (data[5] & INEXACT) != 0
    blob.fixed = (data[5] & FIXED) != 0
    blob.width = load_u16(data + 6)
    blob.rows = load_u32(data + 8)
    blob.entries = load_u32(data + 12)
    blob.prefix_size = load_u16(data + 16)
    blob.most = load_u16(data + 18)
    blob.keys_size = load_u32(data + 20)
    blob.stored = blob.entries + (not blob.dense and blob.entries > 0)
    if data[5] > (DENSE | INEXACT | FIXED) or blob.entries > blob.rows or (blob.rows > 0 and blob.entries == 0):
        return b"has a damaged header"
    if blob.fixed and blob.keys_size != blob.stored * blob.width:
        return b"has a damaged header"
    at = HEADER
    blob.prefix = data + at
    at += blob.prefix_size
    blob.firsts = data + at
    at += 4 * blob.entries
    blob.ends = data + at
    if not blob.fixed:
        at += 4 * (blob.stored + 1)
    blob.keys = data + at
    if at + blob.keys_size != size:
        return b"has another size than its header says"
    if blob.entries > 0 and load_u32(blob.firsts) != 0:
        return b"does not begin at row 0"
    return NULL


cdef inline const uint8_t* stored_key(const Blob* blob, int64_t at, int64_t* size) noexcept nogil:
    """A stored key, or NULL where the blob is damaged; `at` is below blob.stored."""
    cdef int64_t begin, end
    if blob.fixed:
        size[0] = blob.width
        return blob.keys + at * blob.width
    begin = load_u32(blob.ends + 4 * at)
    end = load_u32(blob.ends + 4 * at + 4)
    if begin > end or end > blob.keys_size:
        return NULL
    size[0] = end - begin
    return blob.keys + begin


cdef inline int64_t first_row(const Blob* blob, int64_t at) noexcept nogil:
    """The first row of an entry, or of the end of the segment."""
    return load_u32(blob.firsts + 4 * at) if at < blob.entries else blob.rows


cdef int64_t search(const Blob* blob, const uint8_t* key, int64_t size, bint past_equal) noexcept nogil:
    """Number of entries whose stored key is less than a key (or equal to it, if past_equal); -1 if damaged."""
    cdef int64_t low = 0, high = blob.entries, middle, found_size
    cdef const uint8_t* found
    cdef int order
    while low < high:
        middle = (low + high) >> 1
        found = stored_key(blob, middle, &found_size)
        if found == NULL:
            return -1
        order = compare_bytes(found, found_size, key, size)
        if order < 0 or (past_equal and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


cdef inline bint begins(const uint8_t* start, int64_t start_size, const uint8_t* key, int64_t size) noexcept nogil:
    return start_size <= size and (start_size == 0 or memcmp(start, key, <size_t>start_size) == 0)


cdef int find(const Blob* blob, const Bound* low, const Bound* high, Span* span) noexcept nogil:
    """Finds the rows that may lie in [low, high]: 1 if there are some, 0 if none, -1 if the blob is damaged."""
    cdef const uint8_t* key
    cdef const uint8_t* low_key = low.data
    cdef const uint8_t* high_key = high.data
    cdef int64_t low_size = low.size, high_size = high.size, size, first = 0, last = blob.entries
    cdef int64_t prefix = blob.prefix_size
    cdef int order
    cdef bint bounded_low = low_size > 0, bounded_high = high_size >= 0
    span.exact = True
    if blob.entries == 0:
        return 0
    if bounded_low and bounded_high and compare_bytes(low_key, low_size, high_key, high_size) > 0:
        return 0
    # Every key starts with the prefix: a bound that does not lies before all keys or behind all.
    if prefix > 0 and bounded_low:
        order = compare_bytes(low_key, low_size if low_size < prefix else prefix, blob.prefix, prefix)
        if order > 0:
            return 0
        bounded_low = order == 0
    if prefix > 0 and bounded_high:
        order = compare_bytes(high_key, high_size if high_size < prefix else prefix, blob.prefix, prefix)
        if order < 0:
            return 0
        bounded_high = order == 0
    if bounded_low:
        low_key += prefix
        low_size -= prefix
    if bounded_high:
        high_key += prefix
        high_size -= prefix
        last = search(blob, high_key, high_size, True)
        if last <= 0:
            return <int>last
        # The last key in question: of the last entry, or of the last row.
        key = stored_key(blob, last - 1 if blob.dense else blob.stored - 1, &size)
        if key == NULL:
            return -1
        if not blob.dense and compare_bytes(key, size, high_key, high_size) > 0:
            span.exact = False
        # A cut key stands for all that start with it, and some of those may be beyond the bound.
        if blob.inexact and size == blob.most and begins(key, size, high_key, high_size):
            span.exact = False
    if bounded_low:
        if blob.dense:
            first = search(blob, low_key, low_size, False)
            if first < 0:
                return -1
            if blob.inexact and first > 0:
                key = stored_key(blob, first - 1, &size)
                if key == NULL:
                    return -1
                if size == blob.most and begins(key, size, low_key, low_size):
                    first -= 1
                    span.exact = False
        else:
            key = stored_key(blob, blob.stored - 1, &size)
            if key == NULL:
                return -1
            if compare_bytes(key, size, low_key, low_size) < 0:
                if not (blob.inexact and size == blob.most and begins(key, size, low_key, low_size)):
                    return 0
            first = search(blob, low_key, low_size, True)
            if first < 0:
                return -1
            if first > 0:
                first -= 1
                key = stored_key(blob, first, &size)
                if key == NULL:
                    return -1
                if compare_bytes(key, size, low_key, low_size) != 0:
                    span.exact = False
    if first >= last:
        return 0
    span.start = first_row(blob, first)
    span.stop = first_row(blob, last)
    if span.start >= span.stop or span.stop > blob.rows:
        return -1
    return 1


cdef const char* misfit(const Blob* blob, const Keys* keys, int64_t* entry) noexcept nogil:
    """What is wrong with the first entry that does not fit the keys, or NULL."""
    cdef int64_t at, row, size, kept, begin, end, prefix = blob.prefix_size
    cdef const uint8_t* key
    cdef const uint8_t* kept_key
    for at in range(blob.stored):
        entry[0] = at
        begin = first_row(blob, at) if at < blob.entries else keys.count - 1
        end = first_row(blob, at + 1) if at < blob.entries else keys.count
        if begin >= end or end > keys.count:
            return b"has a wrong first row"
        kept_key = stored_key(blob, at, &kept)
        if kept_key == NULL or kept > blob.most:
            return b"has a damaged key"
        for row in range(begin, end):
            key = key_at(keys, row, &size)
            if size < prefix or (prefix > 0 and memcmp(key, blob.prefix, <size_t>prefix) != 0):
                return b"has rows without the common prefix"
            key += prefix
            size -= prefix
            if size > blob.most:
                if not blob.inexact:
                    return b"has longer keys than the directory admits"
                if blob.dense or at == blob.entries:
                    size = blob.most
            if blob.dense or at == blob.entries:
                if kept != size or (size > 0 and memcmp(key, kept_key, <size_t>size) != 0):
                    return b"has another key than its rows"
            elif compare_bytes(key, size, kept_key, kept) < 0:
                return b"has rows that are less than its key"
        if at > 0 and at < blob.entries:
            key = key_at(keys, begin - 1, &size)
            if compare_bytes(key + prefix, size - prefix, kept_key, kept) >= 0:
                return b"has a key that is not greater than the rows before it"
    return NULL

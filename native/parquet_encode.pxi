# From Arrow columns to the bytes of a page: rows are gathered in a given order, values that are null are left out. Nothing
# here knows Python. Sizes are known before anything is written, so that a page's header can be put in front of it.

cdef enum Kind:  # how a value is stored
    BIT = 0       # booleans
    AS_IS = 1     # 1 to 32 bytes, copied
    SIGNED = 2    # 1 or 2 bytes, widened to four
    UNSIGNED = 3
    SWAPPED = 4   # decimals: the low bytes, most significant first
    TEXT = 5      # lengths, then bytes
    LARGE = 6     # the same, from 64-bit offsets

cdef struct StoredColumn:
    ArrowColumn values
    Kind kind
    int stored          # bytes of a value in the file
    int physical
    bint optional
    bint extremes       # least and greatest are written down

cdef struct Buffer:
    uint8_t* data
    int64_t size
    int64_t capacity

cdef struct Extremes:
    int64_t low
    int64_t high
    int64_t nulls
    bint any

cdef enum:
    FINE = 0
    NO_MEMORY = 1
    BAD_ORDER = 2
    BAD_OFFSETS = 3
    TOO_LARGE = 4
    NULL_IN_REQUIRED = 5
    PAGE_BYTES = 1 << 21
    AHEAD = 4
    BLOCK = 128   # deltas in a block, in MINIS miniblocks of MINI
    MINIS = 4
    MINI = 32
    HEADER = 32


cdef inline int reserve(Buffer* b, int64_t more) noexcept nogil:
    cdef int64_t capacity
    cdef void* moved
    if b.size + more > b.capacity:
        capacity = max(b.capacity * 2, b.size + more)
        moved = realloc(b.data, <size_t>capacity)
        if moved == NULL:
            return NO_MEMORY
        b.data, b.capacity = <uint8_t*>moved, capacity
    return FINE


cdef inline void put_varint(Buffer* b, uint64_t value) noexcept nogil:
    while value >= 0x80:
        b.data[b.size] = <uint8_t>(value | 0x80)
        b.size += 1
        value >>= 7
    b.data[b.size] = <uint8_t>value
    b.size += 1


cdef inline void put_zigzag(Buffer* b, int64_t value) noexcept nogil:
    put_varint(b, (<uint64_t>value << 1) ^ <uint64_t>(value >> 63))


cdef inline void put_byte(Buffer* b, int value) noexcept nogil:
    b.data[b.size] = <uint8_t>value
    b.size += 1


cdef inline void put_field(Buffer* b, int delta, int kind) noexcept nogil:
    put_byte(b, (delta << 4) | kind)


cdef inline void put_number(Buffer* b, int delta, int kind, int64_t value) noexcept nogil:
    put_field(b, delta, kind)
    put_zigzag(b, value)


cdef inline int varint_size(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline int64_t text_at(const StoredColumn* c, int64_t row, int64_t* size) noexcept nogil:
    """Where the value of a row begins; -1 if its offsets point outside of the data."""
    cdef int64_t start, stop
    if c.kind == TEXT:
        start, stop = (<const int32_t*>c.values.offsets)[row], (<const int32_t*>c.values.offsets)[row + 1]
    else:
        start, stop = (<const int64_t*>c.values.offsets)[row], (<const int64_t*>c.values.offsets)[row + 1]
    size[0] = stop - start
    return start if 0 <= start <= stop <= c.values.size else -1


cdef int check_order(const int64_t* order, int64_t rows, int64_t length) noexcept nogil:
    cdef int64_t i
    cdef uint64_t worst = 0
    for i in range(rows):
        worst = max(worst, <uint64_t>order[i])
    return FINE if rows == 0 or worst < <uint64_t>length else BAD_ORDER


cdef struct Deltas:  # lengths on their way into the DELTA_BINARY_PACKED encoding
    Buffer* out
    int64_t first
    int64_t last
    int64_t block[BLOCK]
    int filled
    bint begun


cdef inline void start_deltas(Deltas* d, Buffer* out) noexcept nogil:
    d.out, d.filled, d.begun, d.first, d.last = out, 0, False, 0, 0
    out.size = HEADER  # the header has the number of values, which is not known yet: it is put in front at the end


cdef inline int add_delta(Deltas* d, int64_t value) noexcept nogil:
    if not d.begun:
        d.begun, d.first, d.last = True, value, value
        return FINE
    d.block[d.filled] = value - d.last
    d.filled += 1
    d.last = value
    return put_block(d) if d.filled == BLOCK else FINE


cdef int put_block(Deltas* d) noexcept nogil:
    """The least delta, the widths of the miniblocks, and the bits that each delta has above the least."""
    cdef Buffer* b = d.out
    cdef int64_t least = d.block[0]
    cdef uint64_t most, word, value
    cdef int i, mini, width, bits
    cdef uint8_t* widths
    for i in range(1, d.filled):
        least = min(least, d.block[i])
    for i in range(d.filled, BLOCK):
        d.block[i] = least
    if reserve(b, 16 + MINIS + BLOCK * 8):
        return NO_MEMORY
    put_zigzag(b, least)
    widths = b.data + b.size
    memset(widths, 0, MINIS)
    b.size += MINIS
    for mini in range((d.filled + MINI - 1) // MINI):
        most = 0
        for i in range(MINI):
            most |= <uint64_t>(d.block[mini * MINI + i] - least)
        width = 0
        while width < 64 and most >> width:
            width += 1
        widths[mini] = <uint8_t>width
        word, bits = 0, 0
        for i in range(MINI):
            if width == 0:
                break
            value = <uint64_t>(d.block[mini * MINI + i] - least)
            word |= value << bits
            bits += width
            if bits >= 64:
                memcpy(b.data + b.size, &word, 8)
                b.size += 8
                bits -= 64
                word = value >> (width - bits) if bits else 0
        if bits:  # 32 values fill whole words of 32 bits
            memcpy(b.data + b.size, &word, (bits + 7) >> 3)
            b.size += (bits + 7) >> 3
    d.filled = 0
    return FINE


cdef int end_deltas(Deltas* d, int64_t count) noexcept nogil:
    """Put the header in front: block size, miniblocks in it, number of values, the first of them."""
    cdef Buffer* b = d.out
    cdef Buffer header
    cdef uint8_t bytes_[HEADER]
    if d.filled and put_block(d):
        return NO_MEMORY
    header.data, header.size, header.capacity = bytes_, 0, HEADER
    put_varint(&header, BLOCK)
    put_varint(&header, MINIS)
    put_varint(&header, <uint64_t>count)
    put_zigzag(&header, d.first)
    if reserve(b, 0):
        return NO_MEMORY
    memmove(b.data + header.size, b.data + HEADER, <size_t>(b.size - HEADER))
    memcpy(b.data, bytes_, <size_t>header.size)
    b.size += header.size - HEADER
    return FINE


cdef int measure(const StoredColumn* c, const int64_t* order, int64_t rows, Buffer* lengths, int64_t* taken,
                 int64_t* present, int64_t* bytes_) noexcept nogil:
    """How many of the rows make a page, how many of them are not null, and the bytes of their values.

    The lengths of texts, which come before them in the page, are encoded on the way.
    """
    cdef int64_t i = 0, row, size = 0
    cdef Deltas d
    present[0] = bytes_[0] = 0
    if c.kind < TEXT and c.values.valid == NULL:
        taken[0] = min(rows, max(<int64_t>1, <int64_t>PAGE_BYTES // max(1, c.stored)))
        present[0] = taken[0]
    else:
        start_deltas(&d, lengths)
        while i < rows and bytes_[0] < PAGE_BYTES:
            row = order[i]
            i += 1
            if not is_valid(&c.values, row):
                if not c.optional:
                    return NULL_IN_REQUIRED
                continue
            present[0] += 1
            if c.kind >= TEXT:
                if text_at(c, row, &size) < 0:
                    return BAD_OFFSETS
                if size > 0x7FFF0000 - 4 * PAGE_BYTES:
                    return TOO_LARGE
                bytes_[0] += size
                if add_delta(&d, size):
                    return NO_MEMORY
            else:
                bytes_[0] += c.stored + (c.kind == BIT)
        taken[0] = i
    if c.kind == BIT:
        bytes_[0] = (present[0] + 7) >> 3
    elif c.kind < TEXT:
        bytes_[0] = present[0] * c.stored
    else:
        if end_deltas(&d, present[0]):
            return NO_MEMORY
        bytes_[0] += lengths.size
    return FINE


cdef inline int64_t levels_size(const StoredColumn* c, int64_t rows) noexcept nogil:
    if not c.optional:
        return 0
    if c.values.valid == NULL:
        return 4 + varint_size(<uint64_t>rows << 1) + 1
    return 4 + varint_size((<uint64_t>((rows + 7) >> 3) << 1) | 1) + ((rows + 7) >> 3)


cdef void put_levels(Buffer* b, const StoredColumn* c, const int64_t* order, int64_t rows) noexcept nogil:
    """Definition levels: one run if nothing is null, else a bit per row."""
    cdef uint32_t size = <uint32_t>(levels_size(c, rows) - 4)
    cdef int64_t i
    cdef uint8_t* bits
    if not c.optional:
        return
    memcpy(b.data + b.size, &size, 4)
    b.size += 4
    if c.values.valid == NULL:
        put_varint(b, <uint64_t>rows << 1)
        put_byte(b, 1)
        return
    put_varint(b, (<uint64_t>((rows + 7) >> 3) << 1) | 1)
    bits = b.data + b.size
    memset(bits, 0, <size_t>((rows + 7) >> 3))
    for i in range(rows):
        if is_set(c.values.valid, c.values.offset + order[i]):
            bits[i >> 3] |= <uint8_t>(1 << (i & 7))
    b.size += (rows + 7) >> 3


cdef void put_text(Buffer* b, const StoredColumn* c, const int64_t* order, int64_t rows, const Buffer* lengths) noexcept nogil:
    """All lengths, then all bytes in one piece: a reader that wants the whole page need not copy it."""
    cdef int64_t i, row, start, size = 0, line
    cdef uint8_t* out = b.data + b.size + lengths.size
    memcpy(b.data + b.size, lengths.data, <size_t>lengths.size)
    for i in range(rows):
        if i + AHEAD < rows:  # a gather is a row of cache misses: have the next ones under way
            start = text_at(c, order[i + AHEAD], &size)
            for line in range(0, min(size, <int64_t>1024), 64):
                prefetch(c.values.data + start + line)
        row = order[i]
        if not is_valid(&c.values, row):
            continue
        start = text_at(c, row, &size)
        if size:
            memcpy(out, c.values.data + start, <size_t>size)
        out += size
    b.size = out - b.data


cdef void put_fixed(Buffer* b, const StoredColumn* c, const int64_t* order, int64_t rows) noexcept nogil:
    cdef int64_t i, row
    cdef int j
    cdef int32_t wide
    cdef const uint8_t* value
    cdef uint8_t* out = b.data + b.size
    for i in range(rows):
        row = order[i]
        if not is_valid(&c.values, row):
            continue
        value = c.values.data + row * c.values.width
        if c.kind == AS_IS:
            memcpy(out, value, c.values.width)
        elif c.kind == SWAPPED:
            for j in range(c.stored):
                out[j] = value[c.stored - 1 - j]
        else:
            if c.kind == SIGNED:
                wide = (<const int8_t*>value)[0] if c.values.width == 1 else (<const int16_t*>value)[0]
            else:
                wide = value[0] if c.values.width == 1 else (<const uint16_t*>value)[0]
            memcpy(out, &wide, 4)
        out += c.stored
    b.size = out - b.data


cdef void put_words(Buffer* b, const StoredColumn* c, const int64_t* order, int64_t rows) noexcept nogil:
    """Eight bytes each and none of them null, as most columns are."""
    cdef const int64_t* data = <const int64_t*>c.values.data
    cdef uint8_t* out = b.data + b.size
    cdef int64_t i
    for i in range(rows):
        memcpy(out + 8 * i, data + order[i], 8)
    b.size += 8 * rows


cdef void put_bits(Buffer* b, const StoredColumn* c, const int64_t* order, int64_t rows, int64_t present) noexcept nogil:
    cdef uint8_t* bits = b.data + b.size
    cdef int64_t i, row, n = 0
    memset(bits, 0, <size_t>((present + 7) >> 3))
    for i in range(rows):
        row = order[i]
        if is_valid(&c.values, row):
            bits[n >> 3] |= <uint8_t>(is_set(c.values.data, c.values.offset + row) << (n & 7))
            n += 1
    b.size += (present + 7) >> 3


cdef inline int64_t number_at(const ArrowColumn* c, int64_t row) noexcept nogil:
    """A whole number as 64 bits; one that is compared without a sign has its highest bit turned."""
    cdef const uint8_t* p = c.data + row * c.width
    cdef uint64_t raw = 0
    if c.unsigned:
        memcpy(&raw, p, c.width)
        return <int64_t>(raw ^ (<uint64_t>1 << 63))
    if c.width == 8:
        return (<const int64_t*>p)[0]
    if c.width == 4:
        return (<const int32_t*>p)[0]
    return (<const int16_t*>p)[0] if c.width == 2 else (<const int8_t*>p)[0]


cdef void find_extremes(const StoredColumn* c, const int64_t* order, int64_t rows, Extremes* extremes) noexcept nogil:
    cdef int64_t i, row, value
    extremes.low, extremes.high, extremes.nulls, extremes.any = INT64_MAX, INT64_MIN, 0, False
    for i in range(rows):
        row = order[i]
        if not is_valid(&c.values, row):
            extremes.nulls += 1
            continue
        value = number_at(&c.values, row)
        extremes.low, extremes.high, extremes.any = min(extremes.low, value), max(extremes.high, value), True


cdef int put_page(Buffer* b, const StoredColumn* c, const int64_t* order, int64_t rows, int64_t present,
                  int64_t values, const Buffer* lengths) noexcept nogil:
    """One page, header first. Only the size of its checksum is not known before; it is nearly always the greatest."""
    cdef int64_t body = levels_size(c, rows) + values, begin = b.size, start, short
    cdef int header
    cdef int32_t crc
    # page type, sizes, checksum, and the struct of a data page: rows, encodings of values and of levels
    header = 2 + 2 * (1 + varint_size(<uint64_t>body << 1)) + 6 + 1 + 1 + varint_size(<uint64_t>rows << 1) + 6 + 2
    if body > 0x7FFFFFFF:
        return TOO_LARGE
    if reserve(b, header + body + 64):
        return NO_MEMORY
    b.size += header
    start = b.size
    put_levels(b, c, order, rows)
    if c.kind >= TEXT:
        put_text(b, c, order, rows, lengths)
    elif c.kind == BIT:
        put_bits(b, c, order, rows, present)
    elif c.kind == AS_IS and c.values.width == 8 and c.values.valid == NULL:
        put_words(b, c, order, rows)
    else:
        put_fixed(b, c, order, rows)
    crc = <int32_t>crc32_of(b.data + start, <size_t>body)
    short = 5 - varint_size(zigzag32(crc))
    if short > 0:
        memmove(b.data + start - short, b.data + start, <size_t>body)
    b.size = begin
    put_number(b, 1, T_I32, 0)
    put_number(b, 1, T_I32, body)
    put_number(b, 1, T_I32, body)
    put_field(b, 1, T_I32)
    put_varint(b, zigzag32(crc))
    put_field(b, 1, T_STRUCT)
    put_number(b, 1, T_I32, rows)
    put_number(b, 1, T_I32, encoding_of(c))
    put_number(b, 1, T_I32, 3)
    put_number(b, 1, T_I32, 3)
    put_byte(b, 0)
    put_byte(b, 0)
    b.size += body
    return FINE


cdef inline uint64_t zigzag32(int32_t value) noexcept nogil:
    return <uint64_t>((<uint32_t>value << 1) ^ <uint32_t>(value >> 31))


cdef inline int encoding_of(const StoredColumn* c) noexcept nogil:
    """DELTA_LENGTH_BYTE_ARRAY or PLAIN."""
    return 6 if c.kind >= TEXT else 0

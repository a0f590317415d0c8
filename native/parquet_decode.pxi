# From the bytes of a page to rows: definition levels, the RLE/bit-packed hybrid, plain and dictionary values. Nothing
# here knows Python. Every function takes the end of what it may read and returns OK or the reason it stopped.

cdef enum:
    OK = 0
    BAD_HEADER = 1
    BAD_BOUNDS = 2
    BAD_COUNT = 3
    BAD_LEVELS = 4
    BAD_VALUES = 5
    BAD_INDEX = 6
    BAD_PACKING = 7
    BAD_CHECKSUM = 8
    ODD_ENCODING = 9
    ODD_PAGE = 10

cdef enum:  # how a stored value becomes an Arrow value
    COPY = 0    # same bytes
    NARROW = 1  # the low bytes
    WIDEN = 2   # sign-extended
    SWAP = 3    # big-endian to little-endian, sign-extended
    BITS = 4    # booleans; one byte per row until the column is whole
    BYTES = 5   # a Piece per row until the column is whole
    NOTHING = 6  # the null type: no bytes at all
    UNKNOWN = 7  # the column is in none of the files

cdef enum:
    PLAIN = 0
    PLAIN_DICTIONARY = 2
    RLE = 3
    DELTA = 5  # DELTA_BINARY_PACKED: integers
    DELTA_LENGTH = 6  # DELTA_LENGTH_BYTE_ARRAY: all lengths, then all bytes in one piece
    RLE_DICTIONARY = 8
    BYTE_STREAM_SPLIT = 9  # first bytes of all values, then second bytes
    BLOCK = 256
    MARK_STEP = 64
    SHARED_TEXT_BYTES = 1 << 15
    LONG_TEXT = 64  # bytes of a page for each of its texts, from which on it is remembered where they begin
    SMALL_PAGE = 1 << 14  # values of a page that are decoded sooner than another thread is let in
    ABSENT = -1


cdef struct Piece:
    const uint8_t* p
    uint32_t size
    int32_t part


cdef struct Page:
    int64_t start      # of the first byte after the header, in the file
    uint32_t size      # as stored
    uint32_t unpacked
    uint32_t first     # row in the row group
    uint32_t values    # rows, as columns are flat
    uint32_t levels    # bytes of definition levels (version 2 only)
    uint32_t repeats   # bytes of repetition levels (version 2 only)
    uint32_t crc       # of the bytes as stored
    uint8_t encoding
    bint v2
    bint packed
    bint has_crc
    bint sound         # the checksum was compared


cdef struct Target:  # the column being built
    int width          # bytes of a value in `data`
    uint8_t* data
    uint8_t* valid     # all ones to begin with; NULL if no file may hold nulls here
    int64_t nulls


cdef struct Visit:  # some rows of one page
    const Page* page          # NULL: the file was written before the column was added, the rows are null
    const uint8_t* levels     # version 2: levels apart from values; version 1: NULL, levels are in front of the values
    const uint8_t* values
    uint64_t size             # of `values`
    const uint8_t* dictionary
    const uint32_t* offsets   # of the dictionary's values if they are byte arrays
    uint32_t entries
    const uint32_t* ends      # lengths: where each value begins in `texts`, and where the last one ends
    const uint8_t* texts
    uint32_t count            # values of the page
    const uint32_t* marks     # offset of every MARK_STEP-th plain byte array, as far as known
    uint32_t marked
    uint32_t lo
    uint32_t hi
    int kind
    int stored                # bytes of a stored value
    bint optional
    int part


cdef struct Trail:  # where the last plain byte array was found, so that the next visit of the page goes on from there
    const Page* page
    const uint8_t* p
    int64_t index


cdef struct Hybrid:
    const uint8_t* p
    const uint8_t* end
    int width
    int64_t left       # values of the current run
    bint literal       # packed values, starting at `p`, of which `taken` are consumed
    int64_t taken
    int64_t packed     # bytes of the packed run
    uint32_t value


cdef inline bint next_run(Hybrid* h) noexcept nogil:
    cdef Cursor c
    cdef uint64_t header
    cdef int i, wide = (h.width + 7) >> 3
    if h.literal:
        h.p += h.packed
    h.literal = False
    c.p, c.end, c.bad = h.p, h.end, False
    header = read_varint(&c)
    if c.bad or header >> 32 != 0:
        return False
    h.p = c.p
    if header & 1:
        h.packed = <int64_t>(header >> 1) * h.width
        h.left = <int64_t>(header >> 1) * 8
        if h.packed > h.end - h.p:  # some writers cut the last group short
            h.packed = h.end - h.p
            h.left = h.packed * 8 // h.width
        h.literal = True
        h.taken = 0
        return True
    if h.end - h.p < wide:
        return False
    h.value = 0
    for i in range(wide):
        h.value |= <uint32_t>h.p[i] << (8 * i)
    h.p += wide
    h.left = <int64_t>(header >> 1)
    return True


cdef inline void start_hybrid(Hybrid* h, const uint8_t* p, const uint8_t* end, int width) noexcept nogil:
    memset(h, 0, sizeof(Hybrid))
    h.p, h.end, h.width = p, end, width


cdef inline bint pass_over(Hybrid* h, int64_t n) noexcept nogil:
    cdef int64_t step
    while n > 0:
        if h.left == 0 and not next_run(h):
            return False
        step = min(n, h.left)
        h.left -= step
        h.taken += step
        n -= step
    return True


cdef inline bint unpack(Hybrid* h, uint32_t* out, int64_t n) noexcept nogil:
    cdef int64_t i, step, bit, byte, room
    cdef uint64_t word, mask = (<uint64_t>1 << h.width) - 1
    while n > 0:
        if h.left == 0 and not next_run(h):
            return False
        step = min(n, h.left)
        if h.literal:
            for i in range(step):
                bit = (h.taken + i) * h.width
                byte = bit >> 3
                room = h.packed - byte
                word = 0
                memcpy(&word, h.p + byte, 8 if room >= 8 else room)
                out[i] = <uint32_t>((word >> (bit & 7)) & mask)
        else:
            for i in range(step):
                out[i] = h.value
        h.left -= step
        h.taken += step
        out += step
        n -= step
    return True


cdef int read_levels(const uint8_t* p, const uint8_t* end, Visit* v, Target* t, int64_t pos, int64_t* before,
                     int64_t* inside) noexcept nogil:
    """Count the values in front of and among the rows, and clear the validity bit of each row that has none."""
    cdef Hybrid h
    cdef int64_t row = 0, i, stop, ones
    cdef uint8_t bit
    start_hybrid(&h, p, end, 1)
    before[0] = inside[0] = 0
    while row < v.hi:
        if h.left == 0 and not next_run(&h):
            return BAD_LEVELS
        if not h.literal and h.value > 1:
            return BAD_LEVELS
        if row < v.lo:
            stop = min(row + h.left, <int64_t>v.lo)
            ones = 0
            if h.literal:
                i = h.taken
                while i & 7 and i < h.taken + stop - row:
                    ones += is_set(h.p, i)
                    i += 1
                while i + 8 <= h.taken + stop - row:
                    ones += __builtin_popcount(h.p[i >> 3])
                    i += 8
                while i < h.taken + stop - row:
                    ones += is_set(h.p, i)
                    i += 1
            elif h.value:
                ones = stop - row
            before[0] += ones
        else:
            stop = min(row + h.left, <int64_t>v.hi)
            if h.literal or not h.value:
                for i in range(stop - row):
                    bit = is_set(h.p, h.taken + i) if h.literal else 0
                    if not bit:
                        t.valid[(pos + row - v.lo + i) >> 3] &= ~(1 << ((pos + row - v.lo + i) & 7))
                    inside[0] += bit
            else:
                inside[0] += stop - row
        h.left -= stop - row
        h.taken += stop - row
        row = stop
    t.nulls += <int64_t>(v.hi - v.lo) - inside[0]
    return OK


cdef inline void convert(int kind, const uint8_t* src, int stored, uint8_t* dst, int width, int64_t n) noexcept nogil:
    cdef int64_t i
    cdef int j
    cdef uint8_t sign
    if kind == COPY:
        memcpy(dst, src, n * width)
        return
    for i in range(n):
        if kind == NARROW:
            memcpy(dst, src, width)
        elif kind == WIDEN:
            sign = 0xFF if src[stored - 1] & 0x80 else 0
            memcpy(dst, src, stored)
            memset(dst + stored, sign, width - stored)
        else:
            sign = 0xFF if src[0] & 0x80 else 0
            for j in range(stored):
                dst[j] = src[stored - 1 - j]
            memset(dst + stored, sign, width - stored)
        src += stored
        dst += width


cdef int read_plain_text(Visit* v, const uint8_t* p, const uint8_t* end, Piece* out, int64_t before, int64_t inside,
                     Trail* trail) noexcept nogil:
    cdef int64_t i = 0, mark = min(before // MARK_STEP, <int64_t>v.marked)
    cdef uint32_t size
    if mark and v.marks[mark - 1] <= end - p:
        i = mark * MARK_STEP
        p += v.marks[mark - 1]
    if trail.page == v.page and i <= trail.index <= before and trail.p >= p and trail.p <= end:
        i, p = trail.index, trail.p
    while i < before + inside:
        if end - p < 4:
            return BAD_VALUES
        size = load_u32(p)
        if size > end - p - 4:
            return BAD_VALUES
        p += 4
        if i >= before:
            out.p, out.size, out.part = p, size, v.part
            out += 1
        p += size
        prefetch(p + 4 * (<int64_t>size + 4))
        i += 1
    trail.page, trail.p, trail.index = v.page, p, i
    return OK


cdef int read_deltas(Cursor* c, uint64_t most, vector[uint64_t]& out) except -1 nogil:
    """The first numbers, `most` or all, in the DELTA_BINARY_PACKED encoding; the cursor is left behind what was read."""
    cdef uint64_t block, minis, per, count, mini, i = 1, last, bit, word, width, packed, byte, value, least, mask
    cdef const uint8_t* widths
    cdef const uint8_t* p
    cdef uint64_t* values
    block, minis, count = read_varint(c), read_varint(c), read_varint(c)
    value = <uint64_t>read_zigzag(c)
    per = block // minis if minis else 0
    if c.bad or per == 0 or per % 32 or block > 1 << 20:
        return BAD_VALUES
    count = min(count, most)
    out.resize(count)
    values = out.data()
    if count:
        values[0] = value
    while i < count:
        least = <uint64_t>read_zigzag(c)
        widths = c.p
        if c.bad or <uint64_t>(c.end - widths) < minis:
            return BAD_VALUES
        p = widths + minis
        for mini in range(minis):
            if i >= count:
                break
            width = widths[mini]
            packed = width * per // 8
            if width > 64 or packed > <uint64_t>(c.end - p):
                return BAD_VALUES
            mask = <uint64_t>-1 if width == 64 else (<uint64_t>1 << width) - 1
            bit = 0
            last = min(i + per, count)
            while i < last:
                word = 0
                byte = bit >> 3
                if packed - byte >= 8:
                    memcpy(&word, p + byte, 8)
                else:
                    memcpy(&word, p + byte, packed - byte)
                word >>= bit & 7
                if (bit & 7) + width > 64:
                    word |= <uint64_t>p[byte + 8] << (64 - (bit & 7))
                value += least + (word & mask)
                values[i] = value
                bit += width
                i += 1
            p += packed
        c.p = p
    return OK


cdef int find_ends(const uint8_t* p, uint64_t size, uint32_t values, vector[uint32_t]& ends,
                   const uint8_t** texts) except -1 nogil:
    """The lengths of a page's texts, added up; `texts` is set to the bytes that follow them."""
    cdef Cursor c
    cdef vector[uint64_t] lengths
    cdef uint64_t total = 0
    cdef size_t i
    c.p, c.end, c.bad = p, p + size, False
    if read_deltas(&c, <uint64_t>values + 1, lengths) != OK or lengths.size() > values:
        return BAD_VALUES
    ends.resize(lengths.size() + 1)
    ends[0] = 0
    for i in range(lengths.size()):
        if <uint32_t>lengths[i] > 0x7FFFFFFF or <uint32_t>lengths[i] > size - total:
            return BAD_VALUES
        total += <uint32_t>lengths[i]
        ends[i + 1] = <uint32_t>total
    if total > <uint64_t>(c.end - c.p):
        return BAD_VALUES
    texts[0] = c.p
    return OK


cdef int expand(const uint8_t* p, uint64_t size, int encoding, int stored, uint64_t values, uint8_t* out,
                uint64_t* written) except -1 nogil:
    """The first `values` numbers of a delta or byte-stream-split page, or all, as a plain page has them."""
    cdef Cursor c
    cdef vector[uint64_t] numbers
    cdef uint64_t i, count, step
    cdef int byte
    if encoding == BYTE_STREAM_SPLIT:
        step = size // stored
        if step * stored != size:
            return BAD_VALUES
        count = min(step, values)
        for byte in range(stored):
            for i in range(count):
                out[i * stored + byte] = p[byte * step + i]
    else:
        c.p, c.end, c.bad = p, p + size, False
        if read_deltas(&c, values, numbers) != OK:
            return BAD_VALUES
        count = numbers.size()
        for i in range(count):
            memcpy(out + i * stored, &numbers[i], stored)  # the low bytes: little-endian, as Arrow is here
    written[0] = count * stored
    return OK


cdef inline int read_delta_length(Visit* v, Piece* out, int64_t before, int64_t inside) noexcept nogil:
    cdef int64_t i
    if before + inside > v.count:
        return BAD_VALUES
    for i in range(inside):
        out[i].p = v.texts + v.ends[before + i]
        out[i].size = v.ends[before + i + 1] - v.ends[before + i]
        out[i].part = v.part
    return OK


cdef int read_dictionary(Visit* v, const uint8_t* p, const uint8_t* end, Target* t, uint8_t* out, int64_t before,
                       int64_t inside) noexcept nogil:
    cdef uint32_t index[BLOCK]
    cdef Hybrid h
    cdef int64_t n, i
    cdef uint32_t k
    cdef Piece* piece
    cdef int width = p[0] if p < end else 33
    if width > 32 or v.dictionary == NULL:
        return BAD_INDEX
    start_hybrid(&h, p + 1, end, width)
    if not pass_over(&h, before):
        return BAD_INDEX
    while inside > 0:
        n = min(inside, <int64_t>BLOCK)
        if not unpack(&h, index, n):
            return BAD_INDEX
        for i in range(n):
            k = index[i]
            if k >= v.entries:
                return BAD_INDEX
            if v.kind == BYTES:
                piece = <Piece*>out
                piece.p = v.dictionary + v.offsets[k] + 4
                piece.size = v.offsets[k + 1] - v.offsets[k] - 4
                piece.part = v.part
            else:
                convert(v.kind, v.dictionary + <uint64_t>k * v.stored, v.stored, out, t.width, 1)
            out += t.width
        inside -= n
    return OK


cdef int read_bits(Visit* v, const uint8_t* p, const uint8_t* end, uint8_t* out, int64_t before,
                   int64_t inside) noexcept nogil:
    """Booleans: packed (plain), or as runs with their length in front."""
    cdef uint32_t value[BLOCK]
    cdef uint32_t size
    cdef Hybrid h
    cdef int64_t i, n
    if v.page.encoding == PLAIN:
        if before + inside > (end - p) * 8:
            return BAD_VALUES
        for i in range(inside):
            out[i] = is_set(p, before + i)
        return OK
    size = load_u32(p) if end - p >= 4 else <uint32_t>-1
    if size > end - p - 4:
        return BAD_VALUES
    start_hybrid(&h, p + 4, p + 4 + size, 1)
    if not pass_over(&h, before):
        return BAD_VALUES
    while inside > 0:
        n = min(inside, <int64_t>BLOCK)
        if not unpack(&h, value, n):
            return BAD_VALUES
        for i in range(n):
            out[i] = value[i] & 1
        out += n
        inside -= n
    return OK


cdef int read_visit(Visit* v, Target* t, int64_t pos, Trail* trail) noexcept nogil:
    """Put the rows of a visit at `pos` of the column."""
    cdef const uint8_t* p = v.values
    cdef const uint8_t* end = v.values + v.size
    cdef uint8_t* out = t.data + pos * t.width
    cdef int64_t before = v.lo, inside = v.hi - v.lo, i, j, n = v.hi - v.lo
    cdef uint32_t size
    cdef int rc = OK
    if v.page == NULL:
        inside = 0
        t.nulls += n
        for i in range(n):
            t.valid[(pos + i) >> 3] &= ~(1 << ((pos + i) & 7))
    elif v.optional:
        if v.levels != NULL:
            rc = read_levels(v.levels, v.levels + v.page.levels, v, t, pos, &before, &inside)
        else:
            if end - p < 4:
                return BAD_LEVELS
            size = load_u32(p)
            if size > end - p - 4:
                return BAD_LEVELS
            rc = read_levels(p + 4, p + 4 + size, v, t, pos, &before, &inside)
            p += 4 + size
        if rc:
            return rc
    if inside:
        if v.page.encoding == PLAIN_DICTIONARY or v.page.encoding == RLE_DICTIONARY:
            rc = read_dictionary(v, p, end, t, out, before, inside)
        elif v.kind == BITS:
            rc = read_bits(v, p, end, out, before, inside)
        elif v.kind == BYTES and v.page.encoding == DELTA_LENGTH:
            rc = read_delta_length(v, <Piece*>out, before, inside)
        elif v.kind == BYTES:
            rc = read_plain_text(v, p, end, <Piece*>out, before, inside, trail)
        elif (before + inside) * v.stored > end - p:
            rc = BAD_VALUES
        else:
            convert(v.kind, p + before * v.stored, v.stored, out, t.width, inside)
        if rc:
            return rc
    j = inside - 1
    i = n - 1
    while i > j:  # values lie densely in front: move them, last first, to the rows they belong to
        if is_set(t.valid, pos + i):
            memcpy(out + i * t.width, out + j * t.width, t.width)
            j -= 1
        else:
            memset(out + i * t.width, 0, t.width)
        i -= 1
    return OK


# Texts once they are found, piece by piece: copied behind one another, or shown where they lie in their files.

cdef enum:
    AHEAD = 4  # pieces whose first bytes are asked for before they are copied
    VIEW_BYTES = 16


cdef uint64_t concatenate_pieces(vector[Piece]& pieces, uint8_t* ends, int width, uint8_t* data) noexcept nogil:
    """Write where each piece ends (and the pieces themselves, if there is room for them yet); returns their bytes."""
    cdef uint64_t total = 0
    cdef size_t i
    memset(ends, 0, width)
    for i in range(pieces.size()):
        if data != NULL and pieces[i].size:  # a null row's piece has no address
            if i + AHEAD < pieces.size():
                prefetch(pieces[i + AHEAD].p)
            memcpy(data + total, pieces[i].p, pieces[i].size)
        total += pieces[i].size
        ends += width
        memcpy(ends, &total, width)  # little-endian, as Arrow is here
    return total


cdef bint view_pieces(vector[Piece]& pieces, vector[const uint8_t*]& bases, vector[int64_t]& sizes,
                      vector[int32_t]& numbers, uint8_t* out) noexcept nogil:
    """Write a view of each piece; files that are needed get the next number. False if a piece is not in its file."""
    cdef size_t i
    cdef int64_t offset
    cdef int32_t used = 0
    cdef Piece piece
    for i in range(pieces.size()):
        piece = pieces[i]
        if i + 2 * AHEAD < pieces.size():
            prefetch(pieces[i + 2 * AHEAD].p)
        memcpy(out, &piece.size, 4)
        if piece.size <= VIEW_BYTES - 4:
            memset(out + 4, 0, VIEW_BYTES - 4)
            if piece.size:  # a null row's piece has no address
                memcpy(out + 4, piece.p, piece.size)
        else:
            offset = piece.p - bases[piece.part]
            if offset < 0 or offset >= sizes[piece.part] or offset > 0x7FFFFFFF or piece.size > 0x7FFFFFFF:
                return False
            if numbers[piece.part] < 0:
                numbers[piece.part] = used
                used += 1
            memcpy(out + 4, piece.p, 4)
            memcpy(out + 8, &numbers[piece.part], 4)
            memcpy(out + 12, &offset, 4)  # little-endian, as Arrow is here
        out += VIEW_BYTES
    return True


cdef list gather_text(vector[Piece]& pieces, object wanted, str name):
    """The offsets and bytes of an Arrow string or binary array."""
    cdef uint64_t total
    cdef uint8_t* ends
    cdef uint8_t* data
    plain = wanted.value_type if wanted.id == arrow.Type_DICTIONARY else wanted
    cdef int width = 8 if plain.id in (arrow.Type_LARGE_STRING, arrow.Type_LARGE_BINARY) else 4
    offsets = pa.allocate_buffer((pieces.size() + 1) * width)
    ends = <uint8_t*><uintptr_t>offsets.address
    with nogil:
        total = concatenate_pieces(pieces, ends, width, NULL)
    if width == 4 and total > 0x7FFFFFFF:
        raise Declined(f"column {name!r} has more than 2 GB in these rows: read fewer at a time, or as large_string")
    joined = allocate_text(total, &data)
    with nogil:
        concatenate_pieces(pieces, ends, width, data)
    return [offsets, joined]

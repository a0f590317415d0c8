# The sort of rows.pyx. Rows are compared by eight key bytes at a time, after the bytes that all of them share: a radix sort
# on as many leading bits as tell most rows apart, then an insertion sort of the small groups that are left. Rows with equal
# keys are sorted by expiry in the same way. Every step is stable, so arrival order decides the last ties. Long keys that
# repeat are first replaced by their ranks: sorted rows lie anywhere in memory, and a rank is read without a second cache
# miss. Measured by the append lines of `bench core`.

cdef enum:
    INSERTION_ROWS = 24    # up to so many rows an insertion sort is fastest
    DROP_BITS_ROWS = 512   # rows from which dropping common bits pays,
    DROP_BITS_LEAST = 24   # and the bits that must differ
    SHORT_KEY = 12         # bytes of a key that one chunk and a shared flag byte cover: ranks gain nothing
    RANK_ROWS = 2048       # rows from which ranks pay,
    RANK_REPEATS = 16      # and the rows per distinct key
    MOST_RANKS = 8192      # distinct keys
    MOST_TRIES = 64        # slots of the hash table that are tried for one key
    AHEAD = 96             # rows between the prefetch of a key and its use
    BY_EXPIRY = -1

cdef struct Item:
    uint64_t chunk
    uint32_t row

cdef struct Sorting:
    const Keys* keys  # NULL: no key
    const int64_t* expiry  # NULL: no expiry
    Item* spare

cdef struct HashSlot:
    uint64_t hashed
    int64_t number  # of the distinct key, from 1; 0: free


def sort_order(column, keys, exp):
    """Gives the order of rows by (column, key, expiry, position); any of the three may be None."""
    cdef const uint16_t[::1] columns
    cdef const int64_t[::1] ends
    cdef const uint16_t* column_at = NULL
    cdef Sorting sorting
    cdef Keys view
    cdef uint8_t* ranks = NULL
    cdef int64_t count = -1, row
    sorting.keys = NULL
    sorting.expiry = NULL
    sizes = {}
    if column is not None:
        columns = _columns(column)
        sizes["column"] = count = columns.shape[0]
        column_at = &columns[0] if count else NULL
    if keys is not None:
        keys = open_keys(keys, &view)
        sorting.keys = &view
        sizes["keys"] = count = view.count
    if exp is not None:
        ends = _integers(exp, "exp")
        sizes["exp"] = count = ends.shape[0]
        sorting.expiry = &ends[0] if count else NULL
    if not sizes:
        raise ValueError("an order needs a column, keys or expiries")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"what is to be sorted has different lengths: {sizes}")
    if count > UINT32_MAX:
        raise ValueError(f"{count} rows are too many to sort at once")
    result = np.empty(count, np.int64)
    cdef int64_t[::1] out = result
    if count == 0:
        return result
    cdef Item* items = <Item*>malloc(2 * count * sizeof(Item))
    cdef int64_t* places = <int64_t*>malloc(65537 * sizeof(int64_t))
    if items == NULL or places == NULL:
        free(items)
        free(places)
        raise MemoryError
    with nogil:
        sorting.spare = items + count
        if sorting.keys != NULL and count >= RANK_ROWS and (view.offsets != NULL or view.width > SHORT_KEY):
            ranks = rank_keys(&view)
            if ranks != NULL:
                view.data = ranks
                view.offsets = NULL
                view.width = 4
        if column_at == NULL:
            for row in range(count):
                items[row].row = <uint32_t>row
            sort_from(&sorting, items, count, 0)
        else:
            sort_columns(&sorting, items, count, column_at, places)
        for row in range(count):
            out[row] = items[row].row
        free(items)
        free(places)
        free(ranks)
    return result


cdef uint8_t* rank_keys(const Keys* keys) noexcept nogil:
    """Gives each row the rank of its key as four big-endian bytes, or NULL where keys do not repeat enough."""
    cdef int64_t limit = min(keys.count // RANK_REPEATS, <int64_t>MOST_RANKS), capacity = 1, distinct, i
    cdef Sorting sorting
    while capacity < 2 * limit:
        capacity *= 2
    cdef uint32_t* numbers = <uint32_t*>malloc(keys.count * sizeof(uint32_t))
    cdef uint32_t* ranks = <uint32_t*>malloc(limit * sizeof(uint32_t))
    cdef Item* items = <Item*>malloc(2 * limit * sizeof(Item))
    cdef HashSlot* table = <HashSlot*>calloc(capacity, sizeof(HashSlot))
    distinct = -1
    if numbers != NULL and ranks != NULL and items != NULL and table != NULL:
        distinct = number_keys(keys, numbers, items, limit, table, capacity - 1)
    if distinct > 0:
        sorting.keys = keys
        sorting.expiry = NULL
        sorting.spare = items + limit
        sort_from(&sorting, items, distinct, 0)
        for i in range(distinct):
            ranks[numbers[items[i].row]] = <uint32_t>i
        for i in range(keys.count):
            store_big32(<uint8_t*>(numbers + i), ranks[numbers[i]])
    free(ranks)
    free(items)
    free(table)
    if distinct <= 0:
        free(numbers)
        return NULL
    return <uint8_t*>numbers


cdef int64_t number_keys(
    const Keys* keys, uint32_t* numbers, Item* items, int64_t limit, HashSlot* table, int64_t mask
) noexcept nogil:
    """Numbers distinct keys as they appear, `items` taking the first row of each; -1 if there are more than `limit`."""
    cdef int64_t row, size, other_size, slot, tries, distinct = 0
    cdef const uint8_t* key
    cdef const uint8_t* other
    cdef uint64_t hashed
    for row in range(keys.count):
        key = key_at(keys, row, &size)
        hashed = digest_bytes(key, size, 0)
        slot = <int64_t>(hashed & <uint64_t>mask)
        for tries in range(MOST_TRIES):
            if table[slot].number == 0:
                if distinct == limit:
                    return -1
                items[distinct].row = <uint32_t>row
                distinct += 1
                table[slot].hashed = hashed
                table[slot].number = distinct
                break
            if table[slot].hashed == hashed:
                other = key_at(keys, items[table[slot].number - 1].row, &other_size)
                if size == other_size and (size == 0 or memcmp(key, other, <size_t>size) == 0):
                    break
            slot = (slot + 1) & mask
        else:
            return -1
        numbers[row] = <uint32_t>(table[slot].number - 1)
    return distinct


cdef void sort_columns(
    Sorting* sorting, Item* items, int64_t count, const uint16_t* column, int64_t* places
) noexcept nogil:
    """Groups the rows by column and sorts each group; `places` has room for every column and one more."""
    cdef int64_t row, i, most = 0, begin = 0
    for row in range(count):
        most = column[row] if column[row] > most else most
    memset(places, 0, (most + 2) * sizeof(int64_t))
    for row in range(count):
        places[column[row] + 1] += 1
    for i in range(most):
        places[i + 1] += places[i]
    for row in range(count):
        items[places[column[row]]].row = <uint32_t>row
        places[column[row]] += 1
    # Each place has moved on to the end of its group.
    for i in range(most + 1):
        if places[i] - begin > 1:
            sort_from(sorting, items + begin, places[i] - begin, 0)
        begin = places[i]


cdef inline uint64_t chunk_of(const Keys* keys, int64_t row, int64_t depth) noexcept nogil:
    """Eight key bytes from `depth` on, as if zeros followed the key."""
    cdef int64_t size, i
    cdef uint64_t chunk = 0
    cdef const uint8_t* key = key_at(keys, row, &size)
    if depth + 8 <= size:
        return load_big(key + depth)
    for i in range(depth, size):
        chunk |= <uint64_t>key[i] << (56 - 8 * (i - depth))
    return chunk


cdef void sort_from(Sorting* sorting, Item* items, int64_t count, int64_t depth) noexcept nogil:
    """Sorts rows whose keys agree before `depth`."""
    cdef const Keys* keys = sorting.keys
    cdef const uint8_t* first
    cdef const uint8_t* other
    cdef int64_t row, first_size, size, common
    cdef bint equal = True
    if keys != NULL:
        first = key_at(keys, items[0].row, &first_size)
        common = first_size
        for row in range(1, count):
            other = key_at(keys, items[row].row, &size)
            equal = equal and size == first_size
            common = depth + common_size(first + depth, common - depth, other + depth, size - depth)
            if common == depth and common < first_size:
                break
        if not equal or common < first_size:
            for row in range(count):
                items[row].chunk = chunk_of(keys, items[row].row, common)
            sort_chunks(sorting, items, count, common)
            return
    if sorting.expiry != NULL:
        for row in range(count):
            items[row].chunk = <uint64_t>sorting.expiry[items[row].row] ^ (<uint64_t>1 << 63)
        sort_chunks(sorting, items, count, BY_EXPIRY)


cdef void sort_chunks(Sorting* sorting, Item* items, int64_t count, int64_t depth) noexcept nogil:
    """Sorts rows by their chunks, and what has equal chunks by what follows."""
    cdef uint64_t differ = 0
    cdef int64_t row, begin
    cdef bint ascending = True
    cdef int high, bits, shift = 0
    if count <= INSERTION_ROWS:
        insertion_sort(sorting, items, count, depth)
        return
    for row in range(1, count):
        differ |= items[row].chunk ^ items[0].chunk
        ascending = ascending and items[row - 1].chunk <= items[row].chunk
    if differ == 0:
        sort_equal_chunks(sorting, items, count, depth)
        return
    if not ascending:
        high = highest_bit(differ)
        if count > DROP_BITS_ROWS and high > DROP_BITS_LEAST:
            high = drop_common_bits(items, count, differ)
        bits = highest_bit(<uint64_t>count) + 2
        shift = high - bits if high > bits else 0
        radix_sort(items, sorting.spare, count, shift, high - shift)
    begin = 0
    for row in range(1, count + 1):
        if shift == 0 and depth != BY_EXPIRY and row + AHEAD < count:
            prefetch_row(sorting, items[row + AHEAD].row, items[row + AHEAD // 2].row)
        if row < count and items[row].chunk >> shift == items[begin].chunk >> shift:
            continue
        if row - begin > 1:
            if shift == 0:
                sort_equal_chunks(sorting, items + begin, row - begin, depth)
            else:
                sort_chunks(sorting, items + begin, row - begin, depth)
        begin = row


cdef int drop_common_bits(Item* items, int64_t count, uint64_t differ) noexcept nogil:
    """Removes from each byte of the chunks the bits on which all rows agree (of a digit, half); gives the bits left."""
    cdef int lows[8]
    cdef int widths[8]
    cdef uint64_t masks[8]
    cdef int kept = 0, left = 0, i
    cdef uint64_t byte, chunk
    cdef int64_t row
    for i in range(56, -8, -8):
        byte = (differ >> i) & 0xFF
        if byte != 0:
            lows[kept] = i + trailing_zeros(byte)
            widths[kept] = i + highest_bit(byte) - lows[kept]
            masks[kept] = (<uint64_t>1 << widths[kept]) - 1
            left += widths[kept]
            kept += 1
    if left + 8 > highest_bit(differ):
        return highest_bit(differ)
    for row in range(count):
        chunk = 0
        for i in range(kept):
            chunk = (chunk << widths[i]) | ((items[row].chunk >> lows[i]) & masks[i])
        items[row].chunk = chunk
    return left


cdef inline void prefetch_row(const Sorting* sorting, int64_t far, int64_t near) noexcept nogil:
    """Has the memory of sorted rows brought into the cache before it is used: it lies anywhere."""
    cdef const Keys* keys = sorting.keys
    if sorting.expiry != NULL:
        prefetch(sorting.expiry + far)
    if keys.offsets == NULL:
        prefetch(keys.data + far * keys.width)
    else:
        prefetch(keys.offsets + far)
        prefetch(keys.data + keys.offsets[near])


cdef void sort_equal_chunks(Sorting* sorting, Item* items, int64_t count, int64_t depth) noexcept nogil:
    """Sorts rows with equal chunks at `depth`."""
    cdef int64_t row, begin, size, left, least = 8, most = 0
    if depth == BY_EXPIRY:
        return
    for row in range(count):
        key_at(sorting.keys, items[row].row, &size)
        left = size - depth if size - depth < 8 else 8
        items[row].chunk = <uint64_t>left
        least = left if left < least else least
        most = left if left > most else most
    if least == most:
        sort_from(sorting, items, count, depth + least)
        return
    # Zeros that end a key and zeros past its end look alike in a chunk: the shorter key comes first.
    radix_sort(items, sorting.spare, count, 0, 4)
    begin = 0
    for row in range(1, count + 1):
        if row < count and items[row].chunk == items[begin].chunk:
            continue
        if row - begin > 1:
            sort_from(sorting, items + begin, row - begin, depth + <int64_t>items[begin].chunk)
        begin = row


cdef void radix_sort(Item* items, Item* spare, int64_t count, int shift, int bits) noexcept nogil:
    """Stable sort by `bits` bits of the chunk above `shift`."""
    cdef uint32_t places[2048]
    # Few rows are not worth many counters.
    cdef int widest = 11 if count > 4096 else 8
    cdef int passes = (bits + widest - 1) // widest
    cdef int digit = (bits + passes - 1) // passes
    cdef int turn, i
    cdef uint64_t mask = (<uint64_t>1 << digit) - 1
    cdef uint32_t total, size
    cdef int64_t row
    cdef Item* source = items
    cdef Item* target = spare
    for turn in range(passes):
        memset(places, 0, (mask + 1) * sizeof(uint32_t))
        for row in range(count):
            places[(source[row].chunk >> shift) & mask] += 1
        total = 0
        for i in range(<int>mask + 1):
            size = places[i]
            places[i] = total
            total += size
        for row in range(count):
            i = <int>((source[row].chunk >> shift) & mask)
            target[places[i]] = source[row]
            places[i] += 1
        source, target = target, source
        shift += digit
    if source != items:
        memcpy(items, spare, count * sizeof(Item))


cdef inline bint precedes(const Sorting* sorting, const Item* a, const Item* b, int64_t depth) noexcept nogil:
    """Tells whether row a, which arrived later, must come before row b."""
    cdef const uint8_t* a_key
    cdef const uint8_t* b_key
    cdef int64_t a_size, b_size
    cdef int order
    if a.chunk != b.chunk:
        return a.chunk < b.chunk
    if depth == BY_EXPIRY:
        return False
    a_key = key_at(sorting.keys, a.row, &a_size)
    b_key = key_at(sorting.keys, b.row, &b_size)
    order = compare_bytes(a_key + depth, a_size - depth, b_key + depth, b_size - depth)
    if order != 0:
        return order < 0
    return sorting.expiry != NULL and sorting.expiry[a.row] < sorting.expiry[b.row]


cdef void insertion_sort(const Sorting* sorting, Item* items, int64_t count, int64_t depth) noexcept nogil:
    """Stable insertion sort of a few rows with their chunks loaded."""
    cdef int64_t row, i
    cdef Item item
    for row in range(1, count):
        item = items[row]
        i = row
        while i > 0 and precedes(sorting, &item, &items[i - 1], depth):
            items[i] = items[i - 1]
            i -= 1
        items[i] = item

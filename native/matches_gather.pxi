# The values at some places of a window, in one array: copied straight from the chunks in which they lie.

cdef enum:
    FINE = 0
    BAD_PLACE = 1
    BAD_OFFSETS = 2
    TOO_LARGE = 3

cdef frozenset TEXTS = frozenset({arrow.Type_STRING, arrow.Type_BINARY})
cdef frozenset FIXED = frozenset({
    arrow.Type_INT8, arrow.Type_INT16, arrow.Type_INT32, arrow.Type_INT64, arrow.Type_UINT8, arrow.Type_UINT16,
    arrow.Type_UINT32, arrow.Type_UINT64, arrow.Type_HALF_FLOAT, arrow.Type_FLOAT, arrow.Type_DOUBLE,
    arrow.Type_DATE32, arrow.Type_DATE64, arrow.Type_TIME32, arrow.Type_TIME64, arrow.Type_TIMESTAMP,
    arrow.Type_DURATION, arrow.Type_DECIMAL128, arrow.Type_DECIMAL256,
})


def gathers(kind):
    """Whether values of a type can be gathered: fixed width, texts, and dictionaries of texts."""
    if kind.id == arrow.Type_DICTIONARY:
        return kind.index_type.id == arrow.Type_INT32 and kind.value_type.id in TEXTS
    return kind.id in FIXED or kind.id in TEXTS


def gather(chunks, places):
    """The values at `places` of a column that lies in `chunks`; those of a dictionary come as they are, without it.

    Args:
        chunks: At least one array, all of the same type.
        places: As `Matcher.match` gives them; of a single chunk, just its rows.
    """
    kinds = {chunk.type for chunk in chunks}
    if len(kinds) != 1 or not gathers(kind := kinds.pop()):
        raise TypeError("values are gathered from chunks of one type that can be")
    cdef const int64_t[::1] given = places
    cdef vector[Column] columns, named
    cdef Py_ssize_t count = len(chunks), at
    cdef bint by_name = kind.id == arrow.Type_DICTIONARY
    columns.resize(count)
    named.resize(count if by_name else 0)
    for at in range(count):
        if by_name:
            open_fixed(chunks[at].indices, 4, &columns[at])
            dictionary = chunks[at].dictionary
            if dictionary.null_count:
                raise ValueError("a null stands in a dictionary, not in what refers to it")
            open_text(dictionary, &named[at])
        elif kind.id in TEXTS:
            open_text(chunks[at], &columns[at])
        else:
            open_fixed(chunks[at], kind.bit_width // 8, &columns[at])
    cdef int problem = FINE
    cdef const int64_t* first = &given[0] if given.shape[0] else NULL
    with nogil:
        problem = check_places(columns, first, given.shape[0])
    if problem:
        raise IndexError("a place lies outside of the chunks")
    valid, nulls = _validity(columns, given)
    if by_name or kind.id in TEXTS:
        buffers = [valid, *_texts(columns, named, given)]
        return pa.Array.from_buffers(kind.value_type if by_name else kind, given.shape[0], buffers, null_count=nulls)
    return pa.Array.from_buffers(kind, given.shape[0], [valid, _fixed(columns, given)], null_count=nulls)


cdef int check_places(const vector[Column]& columns, const int64_t* places, Py_ssize_t count) noexcept nogil:
    cdef uint64_t chunks = columns.size(), chunk
    cdef Py_ssize_t at
    for at in range(count):
        chunk = <uint64_t>places[at] >> 32
        if chunk >= chunks or (places[at] & ROW) >= columns[chunk].length:
            return BAD_PLACE
    return FINE


cdef tuple _validity(const vector[Column]& columns, const int64_t[::1] places):
    """Which values are not null, and how many are; nothing if none can be."""
    cdef Py_ssize_t at, count = places.shape[0]
    cdef int64_t nulls = 0
    cdef bint possible = False
    for at in range(<Py_ssize_t>columns.size()):
        possible = possible or columns[at].valid != NULL
    if not possible or not count:
        return None, 0
    buffer = pa.allocate_buffer((count + 7) // 8)
    cdef uint8_t* bits = <uint8_t*>address_of(buffer)
    with nogil:
        memset(bits, 0, (count + 7) // 8)
        for at in range(count):
            if is_valid(&columns[places[at] >> 32], places[at] & ROW):
                bits[at >> 3] |= <uint8_t>(1 << (at & 7))
            else:
                nulls += 1
    return buffer, nulls


cdef object _fixed(const vector[Column]& columns, const int64_t[::1] places):
    cdef int width = columns[0].width
    cdef Py_ssize_t at, count = places.shape[0]
    buffer = pa.allocate_buffer(count * width)
    cdef uint8_t* out = <uint8_t*>address_of(buffer)
    with nogil:
        if width == 8:
            for at in range(count):
                memcpy(out + 8 * at, columns[places[at] >> 32].data + 8 * (places[at] & ROW), 8)
        else:
            for at in range(count):
                memcpy(out + width * at, columns[places[at] >> 32].data + width * (places[at] & ROW), width)
    return buffer


cdef tuple _texts(const vector[Column]& columns, const vector[Column]& named, const int64_t[::1] places):
    cdef Py_ssize_t at, count = places.shape[0]
    cdef int problem = FINE
    cdef vector[const uint8_t*] sources
    ends = pa.allocate_buffer((count + 1) * 4)
    cdef int32_t* offsets = <int32_t*>address_of(ends)
    with nogil:
        sources.resize(count)
        problem = measure_texts(columns, named, &places[0] if count else NULL, count, offsets, sources.data())
    if problem == BAD_OFFSETS:
        raise ValueError("offsets point outside of the data")
    if problem == TOO_LARGE:
        raise pa.ArrowCapacityError("the texts of these rows make more than 2 GB")
    data = pa.allocate_buffer(offsets[count])
    cdef uint8_t* out = <uint8_t*>address_of(data)
    with nogil:
        for at in range(count):
            if offsets[at + 1] > offsets[at]:
                memcpy(out + offsets[at], sources[at], offsets[at + 1] - offsets[at])
    return ends, data


cdef int measure_texts(
    const vector[Column]& columns, const vector[Column]& named, const int64_t* places, Py_ssize_t count,
    int32_t* offsets, const uint8_t** sources,
) noexcept nogil:
    """Where each text lies and where it goes."""
    cdef const Column* column
    cdef int64_t total = 0, row, start, stop
    cdef Py_ssize_t at
    offsets[0] = 0
    for at in range(count):
        column = &columns[places[at] >> 32]
        row = places[at] & ROW
        if is_valid(column, row):
            if named.size():
                row = (<const int32_t*>column.data)[row]
                column = &named[places[at] >> 32]
                if not 0 <= row < column.length:
                    return BAD_OFFSETS
            start, stop = column.offsets[row], column.offsets[row + 1]
            if not 0 <= start <= stop <= column.size:
                return BAD_OFFSETS
            sources[at] = column.data + start
            total += stop - start
            if total > 0x7FFFFFFF:
                return TOO_LARGE
        offsets[at + 1] = <int32_t>total
    return FINE

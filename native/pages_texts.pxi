# Texts once they are found, piece by piece: copied behind one another, or shown where they lie in their files.

cdef enum:
    AHEAD = 4  # pieces whose first bytes are asked for before they are copied
    VIEW_BYTES = 16


cdef uint64_t join_pieces(vector[Piece]& pieces, uint8_t* ends, int width, uint8_t* data) noexcept nogil:
    """Write where each piece ends (and the pieces themselves, if there is room for them yet); returns their bytes."""
    cdef uint64_t total = 0
    cdef size_t i
    memset(ends, 0, width)
    for i in range(pieces.size()):
        if data != NULL and pieces[i].size:  # a null row's piece has no address
            if i + AHEAD < pieces.size():
                __builtin_prefetch(pieces[i + AHEAD].p)
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
            __builtin_prefetch(pieces[i + 2 * AHEAD].p)
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


cdef list gather(vector[Piece]& pieces, object wanted, str name):
    """The offsets and bytes of an Arrow string or binary array."""
    cdef uint64_t total
    cdef uint8_t* ends
    cdef uint8_t* data
    plain = wanted.value_type if wanted.id == arrow.Type_DICTIONARY else wanted
    cdef int width = 8 if plain.id in (arrow.Type_LARGE_STRING, arrow.Type_LARGE_BINARY) else 4
    offsets = pa.allocate_buffer((pieces.size() + 1) * width)
    ends = <uint8_t*><uintptr_t>offsets.address
    with nogil:
        total = join_pieces(pieces, ends, width, NULL)
    if width == 4 and total > 0x7FFFFFFF:
        raise Declined(f"column {name!r} has more than 2 GB in these rows: read fewer at a time, or as large_string")
    joined = text_memory(total, &data)
    with nogil:
        join_pieces(pieces, ends, width, data)
    return [offsets, joined]

# The footer: which columns there are, what they mean, where their chunks lie. Parsed here and not through pyarrow's
# FileMetaData because its objects cost 10 us per chunk, which is 36 ms before the first probe of 36 files.

cdef enum:
    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED = 7

# What a Parquet column means, from its logical type or else its converted type: (word, first, second).
cdef dict CONVERTED = {
    0: ("string", 0, 0), 6: ("date", 0, 0), 7: ("time", 1, 1), 8: ("time", 2, 1), 9: ("timestamp", 1, 0),
    10: ("timestamp", 2, 0), 11: ("int", 8, 0), 12: ("int", 16, 0), 13: ("int", 32, 0), 14: ("int", 64, 0),
    15: ("int", 8, 1), 16: ("int", 16, 1), 17: ("int", 32, 1), 18: ("int", 64, 1),
}
cdef dict LOGICAL = {1: "string", 5: "decimal", 6: "date", 7: "time", 8: "timestamp", 10: "int", 11: "null", 15: "half"}
cdef tuple PLAIN_MEANING = ("", 0, 0)


cdef struct Chunk:  # one column of one row group
    int64_t start
    int64_t size
    int64_t unpacked
    int64_t rows
    int codec
    uint64_t encodings  # bit e is set where encoding e occurs


cdef class Element:
    """One top-level column as the file's schema describes it."""

    cdef str name
    cdef int physical, length, repetition, leaf
    cdef bint nested
    cdef tuple meaning


cdef tuple read_logical(Cursor* c):
    """A LogicalType: a union, so one field, whose parameters are one or two small numbers or a unit."""
    cdef int ident = 0, kind = 0, logical = 0, inner, unit
    cdef int64_t first = 0, second = 0
    while next_field(c, &ident, &kind):
        if kind != T_STRUCT:
            skip_value(c, kind, 0, False)
            continue
        logical = ident
        inner = 0
        while next_field(c, &inner, &kind):
            if kind == T_TRUE or kind == T_FALSE:  # isAdjustedToUTC, isSigned
                second = kind == T_TRUE
            elif kind == T_STRUCT:  # the unit: milli-, micro-, nanoseconds
                unit = 0
                while next_field(c, &unit, &kind):
                    first = unit
                    skip_value(c, kind, 0, False)
            elif kind == T_BYTE and c.p < c.end:
                first = c.p[0]
                c.p += 1
            elif logical == 5 and inner == 1:
                second = read_zigzag(c)  # scale
            elif logical == 5 and inner == 2:
                first = read_zigzag(c)  # precision
            else:
                skip_value(c, kind, 0, False)
    return (LOGICAL.get(logical, "unknown"), first, second)


cdef Element read_element(Cursor* c, int64_t* children):
    cdef Element e = Element.__new__(Element)
    cdef int ident = 0, kind = 0
    cdef int64_t converted = -1, scale = 0, precision = 0
    cdef uint64_t size
    cdef const uint8_t* text
    e.name, e.physical, e.meaning = "", -1, None
    children[0] = 0
    while next_field(c, &ident, &kind):
        if ident == 1:
            e.physical = <int>read_zigzag(c)
        elif ident == 2:
            e.length = <int>read_size(c)
        elif ident == 3:
            e.repetition = <int>read_zigzag(c)
        elif ident == 4 and kind == T_BINARY:
            text = read_binary(c, &size)
            e.name = (<const char*>text)[:size].decode("utf-8", "surrogateescape")
        elif ident == 5:
            children[0] = read_size(c)
        elif ident == 6:
            converted = read_zigzag(c)
        elif ident == 7:
            scale = read_zigzag(c)
        elif ident == 8:
            precision = read_zigzag(c)
        elif ident == 10 and kind == T_STRUCT:
            e.meaning = read_logical(c)
        else:
            skip_value(c, kind, 0, False)
    if e.meaning is None:
        if converted == 5:
            e.meaning = ("decimal", precision, scale)
        else:
            e.meaning = PLAIN_MEANING if converted < 0 else CONVERTED.get(converted, ("unknown", 0, 0))
    return e


cdef list read_elements(Cursor* c, int* leaves):
    """The top-level columns, each with the number of its (first) leaf."""
    cdef int kind = 0
    cdef int64_t children = 0, open_groups
    cdef uint64_t i, size = read_list_header(c, &kind)
    cdef list columns = []
    cdef Element e
    if size:
        read_element(c, &children)
    i = 1
    while i < size and not c.bad:
        e = read_element(c, &children)
        e.leaf = leaves[0]
        e.nested = children > 0
        columns.append(e)
        i += 1
        leaves[0] += not e.nested
        open_groups = children
        while open_groups > 0 and i < size and not c.bad:  # elements of the subtree still to come
            read_element(c, &children)
            leaves[0] += children == 0
            open_groups += children - 1
            i += 1
    return columns


cdef void read_chunk(Cursor* c, Chunk* chunk) noexcept nogil:
    cdef int ident = 0, kind = 0, inner, element = 0
    cdef int64_t data = -1, dictionary = -1
    cdef uint64_t i, size, encoding
    memset(chunk, 0, sizeof(Chunk))
    chunk.start = -1
    while next_field(c, &ident, &kind):
        if ident == 1:  # the chunk is in another file
            chunk.codec = -1
            skip_value(c, kind, 0, False)
        elif ident == 3 and kind == T_STRUCT:
            inner = 0
            while next_field(c, &inner, &kind):
                if inner == 2 and kind == T_LIST:
                    size = read_list_header(c, &element)
                    i = 0
                    while i < size and not c.bad:
                        encoding = <uint64_t>read_zigzag(c)
                        chunk.encodings |= <uint64_t>1 << (encoding if encoding < 63 else 63)
                        i += 1
                elif inner == 4:
                    chunk.codec = <int>(read_zigzag(c) & 0x7F) if chunk.codec == 0 else -1
                elif inner == 6:
                    chunk.unpacked = read_zigzag(c)
                elif inner == 7:
                    chunk.size = read_zigzag(c)
                elif inner == 9:
                    data = read_zigzag(c)
                elif inner == 11:
                    dictionary = read_zigzag(c)
                else:
                    skip_value(c, kind, 0, False)
        else:
            skip_value(c, kind, 0, False)
    chunk.start = dictionary if 0 < dictionary < data else data


cdef int read_group(Cursor* c, vector[Chunk]& chunks, int leaves, int64_t* rows) except -1 nogil:
    """The chunks of one row group, appended; returns how many there were."""
    cdef int ident = 0, kind = 0, element = 0
    cdef uint64_t i, size = 0
    cdef Chunk chunk
    rows[0] = -1
    while next_field(c, &ident, &kind):
        if ident == 1 and kind == T_LIST and size == 0:
            size = read_list_header(c, &element)
            if size != <uint64_t>leaves:
                mark_bad(c)
            i = 0
            while i < size and not c.bad:
                read_chunk(c, &chunk)
                chunks.push_back(chunk)
                i += 1
        elif ident == 3:
            rows[0] = read_zigzag(c)
        else:
            skip_value(c, kind, 0, False)
    if size != <uint64_t>leaves or rows[0] < 0 or rows[0] > 0x7FFFFFFF:
        mark_bad(c)
    return 0


cdef object read_arrow_schema(Cursor* c):
    """The Arrow schema that pyarrow stores beside Parquet's own, or None: only it knows the unit of a duration."""
    cdef int ident, kind = 0
    cdef uint64_t i, size = read_list_header(c, &kind), length
    cdef const uint8_t* text
    cdef bytes key, value, stored = None
    i = 0
    while i < size and not c.bad:
        ident, key, value = 0, b"", b""
        while next_field(c, &ident, &kind):
            if kind != T_BINARY:
                skip_value(c, kind, 0, False)
                continue
            text = read_binary(c, &length)
            if ident == 1:
                key = (<const char*>text)[:length]
            elif key == b"ARROW:schema":
                value = (<const char*>text)[:length]
        if key == b"ARROW:schema":
            stored = value
        i += 1
    return stored


# Which stored column gives which Arrow type without looking at values. A pair that is not here is declined, never
# guessed: pyarrow then reads the file.

cdef struct Conversion:
    int physical
    int kind      # how values are converted
    int stored    # bytes of a stored value
    int width     # bytes of an Arrow value
    bint optional


cdef dict FIXED_TYPES = {  # Arrow type: (physical type, meanings, conversion, stored bytes, Arrow bytes)
    arrow.Type_BOOL: (BOOLEAN, {PLAIN_MEANING}, BITS, 1, 1),
    arrow.Type_INT8: (INT32, {("int", 8, 1)}, NARROW, 4, 1),
    arrow.Type_INT16: (INT32, {("int", 16, 1)}, NARROW, 4, 2),
    arrow.Type_INT32: (INT32, {("int", 32, 1), PLAIN_MEANING}, COPY, 4, 4),
    arrow.Type_INT64: (INT64, {("int", 64, 1), PLAIN_MEANING}, COPY, 8, 8),
    arrow.Type_UINT8: (INT32, {("int", 8, 0)}, NARROW, 4, 1),
    arrow.Type_UINT16: (INT32, {("int", 16, 0)}, NARROW, 4, 2),
    arrow.Type_UINT32: (INT32, {("int", 32, 0)}, COPY, 4, 4),
    arrow.Type_UINT64: (INT64, {("int", 64, 0)}, COPY, 8, 8),
    arrow.Type_HALF_FLOAT: (FIXED, {("half", 0, 0)}, COPY, 2, 2),
    arrow.Type_FLOAT: (FLOAT, {PLAIN_MEANING}, COPY, 4, 4),
    arrow.Type_DOUBLE: (DOUBLE, {PLAIN_MEANING}, COPY, 8, 8),
    arrow.Type_DATE32: (INT32, {("date", 0, 0)}, COPY, 4, 4),
    arrow.Type_DURATION: (INT64, {PLAIN_MEANING}, COPY, 8, 8),
    arrow.Type_STRING: (BYTE_ARRAY, {("string", 0, 0)}, BYTES, 0, sizeof(Piece)),
    arrow.Type_LARGE_STRING: (BYTE_ARRAY, {("string", 0, 0)}, BYTES, 0, sizeof(Piece)),
    arrow.Type_BINARY: (BYTE_ARRAY, {PLAIN_MEANING}, BYTES, 0, sizeof(Piece)),
    arrow.Type_LARGE_BINARY: (BYTE_ARRAY, {PLAIN_MEANING}, BYTES, 0, sizeof(Piece)),
    arrow.Type_NA: (INT32, {("null", 0, 0)}, NOTHING, 4, 0),
}
cdef dict UNITS = {"ms": 1, "us": 2, "ns": 3}
cdef dict DECIMALS = {
    arrow.Type_DECIMAL32: 4, arrow.Type_DECIMAL64: 8, arrow.Type_DECIMAL128: 16, arrow.Type_DECIMAL256: 32,
}


cdef tuple expected_storage(object wanted, Element e):
    """What must be stored for an Arrow type that has parameters, as in FIXED_TYPES; None if it is not supported."""
    cdef int length
    ident = wanted.id
    if ident == arrow.Type_TIMESTAMP:
        return (INT64, {("timestamp", UNITS.get(wanted.unit), int(wanted.tz is not None))}, COPY, 8, 8)
    if ident == arrow.Type_TIME32:
        return (INT32, {("time", UNITS.get(wanted.unit), utc) for utc in (0, 1)}, COPY, 4, 4)
    if ident == arrow.Type_TIME64:
        return (INT64, {("time", UNITS.get(wanted.unit), utc) for utc in (0, 1)}, COPY, 8, 8)
    if ident == arrow.Type_FIXED_SIZE_BINARY and wanted.byte_width > 0:
        return (FIXED, {PLAIN_MEANING}, COPY, wanted.byte_width, wanted.byte_width)
    if ident in DECIMALS:
        length = {INT32: 4, INT64: 8, FIXED: e.length}.get(e.physical, 0)
        if 0 < length <= DECIMALS[ident]:
            return (e.physical, {("decimal", wanted.precision, wanted.scale)},
                    SWAP if e.physical == FIXED else WIDEN, length, DECIMALS[ident])
    return None


cdef object match_type(object wanted, Element e, bytes stored, Conversion* fit):
    """Fill in how the column is read, or return why it is declined."""
    if e.nested or e.repetition not in (0, 1):
        return "it is nested"
    plain = wanted.value_type if wanted.id == arrow.Type_DICTIONARY else wanted
    expected = FIXED_TYPES.get(plain.id) or expected_storage(plain, e)
    if expected is None:
        return f"type {wanted} is left to pyarrow"
    physical, meanings, fit.kind, fit.stored, fit.width = expected
    if e.physical != physical or e.meaning not in meanings or (physical == FIXED and e.length != fit.stored):
        return f"it is not stored as {wanted}"
    if plain.id == arrow.Type_DURATION and not same_duration(stored, e.name, plain):
        return f"the file does not say that it is {wanted}"
    fit.physical, fit.optional = e.physical, e.repetition == 1
    return None


cdef bint same_duration(bytes stored, str name, object wanted):
    """Whether the Arrow schema in the file has this duration: to Parquet it is a bare integer of unknown unit."""
    if stored is None:
        return False
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))
        return schema.field(name).type == wanted
    except (ValueError, KeyError, OSError):
        return False


cdef object make_array(object wanted, int64_t rows, list buffers, int64_t nulls):
    """The Arrow array over finished buffers, dictionary-encoded if that is what is wanted."""
    if wanted.id != arrow.Type_DICTIONARY:
        return pa.Array.from_buffers(wanted, rows, buffers, nulls)
    encoded = pa.Array.from_buffers(wanted.value_type, rows, buffers, nulls).dictionary_encode()
    try:
        indices = encoded.indices.cast(wanted.index_type)
    except pa.ArrowInvalid:
        raise Declined(f"the rows have more distinct values than {wanted} can number") from None
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=wanted.ordered)

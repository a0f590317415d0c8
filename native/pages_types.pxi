# Which stored column gives which Arrow type without looking at values. A pair that is not here is declined, never
# guessed: pyarrow then reads the file.

cdef struct Fit:
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


cdef tuple expect(object wanted, Element e):
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


cdef object match(object wanted, Element e, bytes stored, Fit* fit):
    """Fill in how the column is read, or return why it is declined."""
    if e.nested or e.repetition not in (0, 1):
        return "it is nested"
    plain = wanted.value_type if wanted.id == arrow.Type_DICTIONARY else wanted
    expected = FIXED_TYPES.get(plain.id) or expect(plain, e)
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


cdef object finish(object wanted, int64_t rows, list buffers, int64_t nulls):
    """The Arrow array over finished buffers, dictionary-encoded if that is what is wanted."""
    if wanted.id != arrow.Type_DICTIONARY:
        return pa.Array.from_buffers(wanted, rows, buffers, nulls)
    encoded = pa.Array.from_buffers(wanted.value_type, rows, buffers, nulls).dictionary_encode()
    try:
        indices = encoded.indices.cast(wanted.index_type)
    except pa.ArrowInvalid:
        raise Declined(f"the rows have more distinct values than {wanted} can number") from None
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=wanted.ordered)

# Rows here and there in files that are not in memory. A page fault asks the disk for one range and waits, and the kernel
# reads megabytes around it, which a scan will want next and a probe will not. So a reader of few rows among many looks
# at some of the places; if one is not in memory, it asks for all of them at once, and for nothing else.

cdef enum:
    SAMPLES = 4
    SPARSE = 4         # a row wanted in so many of the row groups at hand
    HEADER_BYTES = 8192  # of a chunk: its first page's header, and the lengths of some thousand texts


cdef int scatter_all(list files, bint scattered) except -1:
    for file in files:
        if isinstance(file, FileMap):
            (<FileMap>file).scatter(scattered)
    return 0


cdef bint is_sparse(Reader reader) except -1:
    """Whether few of the rows of the row groups at hand are wanted."""
    cdef int64_t rows = 0
    cdef size_t i
    cdef Layout layout
    cdef Span* span
    for i in range(reader.spans.size()):
        span = &reader.spans[i]
        if i and span.part == reader.spans[i - 1].part and span.group == reader.spans[i - 1].group:
            continue
        layout = <Layout>reader.layouts[span.part]
        rows += layout.first[span.group + 1] - layout.first[span.group]
    return rows > SPARSE * reader.looked


cdef int ask_ahead(Reader reader, list names) except -1:
    """Before rows are read: if they are few and not in memory, have the beginnings of their columns fetched."""
    cdef size_t i, step = max(<size_t>1, reader.spans.size() // SAMPLES), slot
    cdef Layout layout
    cdef const Chunk* chunk
    cdef const uint8_t* file
    cdef int64_t length
    cdef Span* span
    if not names or not reader.spans.size() or not is_sparse(reader):
        return 0
    i = 0
    while i < reader.spans.size() and not reader.is_cold:
        reader.is_cold = not is_resident(beginning(reader, &reader.spans[i], <str>names[len(names) - 1]))
        i += step
    if not reader.is_cold:
        return 0
    scatter_all(reader.files, True)
    for i in range(reader.spans.size()):
        span = &reader.spans[i]
        if i and span.part == reader.spans[i - 1].part and span.group == reader.spans[i - 1].group:
            continue
        layout = <Layout>reader.layouts[span.part]
        file, length = <const uint8_t*>reader.views[span.part].buf, reader.views[span.part].len
        for name in names:
            found = layout.slots.get(name)
            if found is None or found == ABSENT:
                continue
            chunk = &layout.chunks[<size_t>span.group * layout.width + <size_t>found]
            if chunk.start < 0 or chunk.size <= 0 or chunk.start > length - chunk.size:
                continue  # damaged: whoever reads it will say so
            # A page whose checksum has yet to be compared is read as a whole.
            ask_for(file + chunk.start, chunk.size if not layout.trusted else min(chunk.size, <int64_t>HEADER_BYTES))
    return 0


cdef const uint8_t* beginning(Reader reader, const Span* span, str name) except NULL:
    """The first byte of a column in a row group, as far as that is in the file."""
    cdef Layout layout = <Layout>reader.layouts[span.part]
    cdef int64_t start = 0
    found = layout.slots.get(name)
    if found is not None and found != ABSENT:
        start = layout.chunks[<size_t>span.group * layout.width + <size_t>found].start
    if start < 0 or start >= reader.views[span.part].len:
        start = 0
    return <const uint8_t*>reader.views[span.part].buf + start


cdef void ask_for_visits(const vector[Visit]& visits) noexcept nogil:
    """Have the values of all visits fetched, about where they lie: how many before them are null has yet to be read."""
    cdef size_t i
    cdef const Visit* v
    for i in range(visits.size()):
        v = &visits[i]
        if v.page == NULL:
            continue
        if v.kind == BYTES and v.page.encoding == LENGTHS and v.hi <= v.count:
            ask_for(v.texts + v.ends[v.lo], v.ends[v.hi] - v.ends[v.lo])
        elif v.kind == COPY and v.page.encoding == PLAIN and <uint64_t>v.hi * v.stored <= v.size:
            ask_for(v.values + <int64_t>v.lo * v.stored, <int64_t>(v.hi - v.lo) * v.stored)

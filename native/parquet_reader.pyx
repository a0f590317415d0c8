# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# distutils: language = c++
"""Reads row ranges of many Parquet files into one Arrow array per column, touching only the pages that hold the rows.

It exists because a probe is a few rows from each of many files, and a general reader's cost is per file, row group and
column, not per row. One key of 100 in 36 files of 8 MB (4 ranges of 20 rows in each: 3000 rows of 1000 bytes, all
columns, page cache warm, 2 cores): pyarrow with kept footers, memory-mapped, takes 14 ms at best (row groups of
64-128 KB, one call per file; 20 ms at 512 KB; 16-50 ms with one call per range, or with threads); this takes
0.5-0.9 ms, and opening 36 footers 1.3-1.9 ms (other work was on the machine). Where Parquet can be written in a way
that this module does not know, it declines, and pyarrow reads the file: there is no second reader for nested columns,
the other delta encodings or INT96. Pages with a checksum are compared with it at the first touch.

A `Layout` is what is known of one file: row groups and chunks from the footer; pages, dictionary offsets and marks
inside long pages from the first touch on. All of them are checked against the buffer at hand each time, so damaged or
shortened bytes raise `Damaged`, or give other rows, but are never read past their end.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memmove, memset
from libcpp.vector cimport vector

import base64

import pyarrow as pa
from pyarrow import lib as arrow

cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil
    void __builtin_prefetch(const void*) noexcept nogil

include "crc.pxi"
include "parquet_thrift.pxi"
include "parquet_footer.pxi"
include "parquet_decode.pxi"
include "mapped_memory.pxi"


class Declined(ValueError):
    """The rows may be sound, but must be read by pyarrow; `part` is the position of the file among the parts."""

    part = None


class Damaged(ValueError):
    """The bytes cannot be what a writer wrote; `part` is the position of the file among the parts."""

    part = None


cdef dict REASONS = {
    BAD_HEADER: "a page header is damaged",
    BAD_BOUNDS: "a page lies outside the file",
    BAD_COUNT: "the pages do not hold as many rows as the footer says",
    BAD_LEVELS: "the definition levels are damaged",
    BAD_VALUES: "the values end before the rows do",
    BAD_INDEX: "a dictionary index is damaged",
    BAD_PACKING: "a page cannot be unpacked",
    BAD_CHECKSUM: "a page does not have its checksum",
    ODD_ENCODING: "a page has an encoding that is left to pyarrow",
    ODD_PAGE: "a page has a kind that is left to pyarrow",
}
cdef dict CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
cdef uint64_t KNOWN_ENCODINGS = 1 << PLAIN | 1 << PLAIN_DICTIONARY | 1 << RLE | 1 << 4 | 1 << LENGTHS | 1 << RLE_DICTIONARY


cdef object problem(int rc, int part, str what):
    error = (Declined if rc >= ODD_ENCODING else Damaged)(f"{what}: {REASONS[rc]}")
    error.part = part
    return error


cdef int read_header(Cursor* c, Page* page, int* kind) noexcept nogil:
    """One PageHeader; the cursor is left at the page's first byte."""
    cdef int ident = 0, field_kind = 0, inner, level_encoding = RLE
    memset(page, 0, sizeof(Page))
    kind[0] = -1
    page.packed = True
    while field(c, &ident, &field_kind):
        if ident == 1:
            kind[0] = <int>count(c)
        elif ident == 2:
            page.unpacked = <uint32_t>count(c)
        elif ident == 3:
            page.size = <uint32_t>count(c)
        elif ident == 4:
            page.crc = <uint32_t>zigzag(c)
            page.has_crc = True
        elif (ident == 5 or ident == 7 or ident == 8) and field_kind == T_STRUCT:
            page.v2 = ident == 8
            inner = 0
            while field(c, &inner, &field_kind):
                if inner == 1:
                    page.values = <uint32_t>count(c)
                elif inner == (4 if ident == 8 else 2):
                    page.encoding = <uint8_t>min(count(c), <int64_t>255)
                elif inner == 3 and ident == 5:
                    level_encoding = <int>count(c)
                elif inner == 5 and ident == 8:
                    page.levels = <uint32_t>count(c)
                elif inner == 6 and ident == 8:
                    page.repeats = <uint32_t>count(c)
                elif inner == 7 and ident == 8:
                    page.packed = field_kind == T_TRUE
                else:
                    skip(c, field_kind, 0, False)
        else:
            skip(c, field_kind, 0, False)
    if c.bad or kind[0] < 0:
        return BAD_HEADER
    return OK if level_encoding == RLE else ODD_ENCODING


cdef int walk(const uint8_t* file, int64_t length, const Chunk* chunk, int physical, bint optional,
              vector[Page]& pages, Page* dictionary) except -1 nogil:
    """Find the pages of a chunk by going from header to header."""
    cdef Cursor c
    cdef Page page
    cdef int kind = 0, rc
    cdef int64_t rows = 0
    if chunk.start < 0 or chunk.size < 0 or chunk.start > length or chunk.size > length - chunk.start:
        return BAD_BOUNDS
    c.p, c.end, c.bad = file + chunk.start, file + chunk.start + chunk.size, False
    while rows < chunk.rows:
        rc = read_header(&c, &page, &kind)
        if rc == BAD_HEADER or (rc and optional and kind == 0):
            return rc
        if page.size > c.end - c.p or <uint64_t>page.levels + page.repeats > page.size:
            return BAD_BOUNDS
        if chunk.codec and page.packed and page.unpacked > <uint64_t>max(chunk.unpacked, <int64_t>0):
            return BAD_BOUNDS
        page.at = c.p - file
        c.p += page.size
        if kind == 2:
            if pages.size() or dictionary.at or page.v2:
                return BAD_HEADER
            if page.encoding != PLAIN and page.encoding != PLAIN_DICTIONARY:
                return ODD_ENCODING
            dictionary[0] = page
        elif kind == 0 or kind == 3:
            if page.v2 != (kind == 3):
                return BAD_HEADER
            if page.encoding != PLAIN and page.encoding != (RLE if physical == BOOLEAN else RLE_DICTIONARY):
                if (page.encoding != PLAIN_DICTIONARY or physical == BOOLEAN) and (
                        page.encoding != LENGTHS or physical != BYTE_ARRAY):
                    return ODD_ENCODING
            page.first = <uint32_t>rows
            rows += page.values
            if rows > chunk.rows:
                return BAD_COUNT
            if page.values:
                pages.push_back(page)
        elif kind != 1:
            return ODD_PAGE
    return OK


cdef int mark_bytes(const uint8_t* p, uint64_t size, bint levels_ahead, vector[uint32_t]& marks) except -1 nogil:
    """Note where every STEP-th byte array of a page begins; at damage, stop: reading will meet it too."""
    cdef uint64_t at = 0, i = 0, length
    if levels_ahead:
        length = load32(p) if size >= 4 else size
        if length + 4 > size:
            return 0
        p += 4 + length
        size -= 4 + length
    while size - at >= 4:
        if i and i % STEP == 0:
            marks.push_back(<uint32_t>at)
        length = load32(p + at)
        if length > size - at - 4:
            return 0
        at += 4 + length
        i += 1
    return 0


cdef class Layout:
    """Where the columns of one file lie: its row groups and chunks, and (found at the first touch) their pages.

    `declined` names each column of the schema that `read_ranges` cannot read from this file, and why. `trusted` may be
    set where the file's bytes were just written by this very process.
    """

    cdef public bint trusted         # checksums need not be compared
    cdef readonly bint packed        # whether a column that can be read is compressed
    cdef readonly object schema
    cdef readonly dict declined
    cdef readonly int64_t num_rows
    cdef readonly int num_row_groups
    cdef dict slots                  # column name -> position among the readable columns
    cdef int width                   # readable columns; chunk of (group, slot) is group * width + slot
    cdef vector[Fit] fits
    cdef vector[int64_t] first       # first row of each row group, and the number of rows
    cdef vector[Chunk] chunks
    cdef vector[vector[Page]] pages
    cdef vector[Page] dictionaries
    cdef vector[vector[uint32_t]] offsets         # of dictionary entries
    cdef vector[vector[vector[uint32_t]]] marks   # of byte arrays in pages
    cdef vector[vector[vector[uint32_t]]] ends    # of long texts in pages
    cdef vector[vector[uint64_t]] texts           # the first of them, in the page's values
    cdef vector[uint8_t] walked

    def __init__(self):
        raise TypeError("a Layout is made by open_layout")

    def row_groups(self):
        """The first row of each row group, and the number of rows at the end: for readers by row group."""
        return [self.first[i] for i in range(<Py_ssize_t>self.first.size())]

    def cuts(self, int64_t start, int64_t stop):
        """The rows between `start` and `stop` at which another row group begins."""
        cdef Py_ssize_t lo = 0, hi = <Py_ssize_t>self.first.size(), middle
        cdef list found = []
        while lo < hi:  # the first that begins after start
            middle = (lo + hi) >> 1
            if self.first[middle] <= start:
                lo = middle + 1
            else:
                hi = middle
        while lo < <Py_ssize_t>self.first.size() and self.first[lo] < stop:
            found.append(self.first[lo])
            lo += 1
        return found

    def open_bytes(self, names, int64_t start, int64_t stop):
        """About how many bytes of columns, in the row groups within [start, stop), can be handed out where they lie."""
        cdef int group
        cdef int64_t found = 0
        cdef const Chunk* chunk
        for name in names:
            slot = self.slots.get(name)
            if slot is None or slot == ABSENT or self.fits[<int>slot].kind != BYTES:
                continue
            for group in range(self.num_row_groups):
                chunk = &self.chunks[<size_t>group * self.width + <int>slot]
                if start <= self.first[group] and self.first[group + 1] <= stop and chunk.codec == 0 and (
                        chunk.encodings & (<uint64_t>1 << LENGTHS)) and (
                        chunk.size >= max(<int64_t>SHARED_BYTES, LONG_TEXT * chunk.rows)):
                    found += max(<int64_t>0, chunk.size - 8 * chunk.rows)
        return found

    cdef int find_pages(self, const uint8_t* file, int64_t length, size_t chunk, const Fit* fit) except -1:
        cdef vector[Page] pages
        cdef Page dictionary
        cdef int rc
        memset(&dictionary, 0, sizeof(Page))
        with nogil:
            rc = walk(file, length, &self.chunks[chunk], fit.physical, fit.optional, pages, &dictionary)
        if rc == OK and not self.walked[chunk]:  # another thread may have been first: what it found is in use
            self.marks[chunk].resize(pages.size())
            self.ends[chunk].resize(pages.size())
            self.texts[chunk].resize(pages.size())
            self.pages[chunk].swap(pages)
            self.dictionaries[chunk] = dictionary
            self.walked[chunk] = True
        return rc

    cdef int mark(self, size_t chunk, size_t page, Visit* v) except -1:
        """Give a visit deep inside a page of byte arrays the marks that save it the way from the page's beginning."""
        cdef vector[uint32_t]* known = &self.marks[chunk][page]
        cdef vector[uint32_t] marks
        if known.empty() and v.lo >= 2 * STEP:
            with nogil:
                mark_bytes(v.values, v.size, v.optional and v.levels == NULL, marks)
            if known.empty():
                known.swap(marks)
        v.marks, v.marked = known.data(), <uint32_t>known.size()
        return 0

    cdef bint find_offsets(self, size_t chunk, const uint8_t* p, uint64_t size) except -1:
        """Where each byte array of a dictionary begins; False if the dictionary is damaged."""
        cdef vector[uint32_t] offsets
        cdef uint64_t i, at = 0, entries = self.dictionaries[chunk].values
        if self.offsets[chunk].size():
            return self.offsets[chunk].back() <= size
        if entries * 4 > size or size > 0x7FFFFFFF:
            return False
        offsets.reserve(entries + 1)
        for i in range(entries):
            offsets.push_back(<uint32_t>at)
            if size - at < 4:
                return False
            at += 4 + <uint64_t>load32(p + at)
            if at > size:
                return False
        offsets.push_back(<uint32_t>at)
        self.offsets[chunk].swap(offsets)
        return True


def open_layout(file, schema):
    """Parse a file's footer (`file` is the whole file as a buffer) for reading columns of the Arrow schema."""
    cdef Py_buffer view
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        return read_footer(<const uint8_t*>view.buf, view.len, schema)
    finally:
        scatter_all([file], False)
        PyBuffer_Release(&view)


cdef Layout read_footer(const uint8_t* file, int64_t length, object schema):
    cdef Layout layout = Layout.__new__(Layout)
    cdef int64_t size = load32(file + length - 8) if length >= 12 else length, rows = 0
    cdef Cursor c
    cdef int ident = 0, kind = 0, leaves = 0
    cdef uint64_t groups = 0, i
    cdef list elements = []
    cdef vector[Chunk] chunks
    cdef bytes stored = None
    if size > length - 12 or file[length - 4:length] not in (b"PAR1", b"PARE"):
        raise Damaged("the file does not end with a Parquet footer")
    if file[length - 1] == b"E":
        raise Declined("the footer is encrypted")
    c.p, c.end, c.bad = file + length - 8 - size, file + length - 8, False
    if size > MEMORY_PAGE and not is_resident(c.p):
        ask_for(c.p, size)
    layout.first.push_back(0)
    while field(&c, &ident, &kind):
        if ident == 2 and kind == T_LIST and not elements:
            elements = read_elements(&c, &leaves)
        elif ident == 4 and kind == T_LIST and elements and not groups:
            groups = list_header(&c, &kind)
            i = 0
            while i < groups and not c.bad:
                read_group(&c, chunks, leaves, &rows)
                layout.first.push_back(layout.first.back() + rows)
                i += 1
        elif ident == 5 and kind == T_LIST:
            stored = read_arrow_schema(&c)
        else:
            skip(&c, kind, 0, False)
    if c.bad or not elements or chunks.size() != groups * leaves:
        raise Damaged("the footer is damaged")
    layout.schema, layout.num_rows, layout.num_row_groups = schema, layout.first.back(), groups
    arrange(layout, elements, chunks, leaves, stored)
    return layout


cdef arrange(Layout layout, list elements, vector[Chunk]& chunks, int leaves, bytes stored):
    """Keep the chunks of the columns that can be read, and say of the others why they cannot."""
    cdef Element e
    cdef Chunk chunk
    cdef Fit fit
    cdef int group
    cdef list kept = []
    by_name = {(<Element>e).name: e for e in elements}
    if len(by_name) != len(elements):
        raise Declined("two columns of the file have the same name")
    layout.slots, layout.declined = {}, {}
    for name, wanted in zip(layout.schema.names, layout.schema.types, strict=True):
        e = by_name.get(name)
        if e is None:
            layout.slots[name] = ABSENT
            continue
        reason = match(wanted, e, stored, &fit)
        if reason is None:
            reason = refuse(chunks, e.leaf, leaves)
        if reason is not None:
            layout.declined[name] = reason
            continue
        layout.slots[name] = len(kept)
        layout.fits.push_back(fit)
        kept.append(e.leaf)
    layout.width = len(kept)
    for group in range(layout.num_row_groups):
        for leaf in kept:
            chunk = chunks[<size_t>(group * leaves + <int>leaf)]
            chunk.rows = layout.first[group + 1] - layout.first[group]
            layout.packed |= chunk.codec != 0
            layout.chunks.push_back(chunk)
    layout.pages.resize(layout.chunks.size())
    layout.dictionaries.resize(layout.chunks.size())
    layout.offsets.resize(layout.chunks.size())
    layout.marks.resize(layout.chunks.size())
    layout.ends.resize(layout.chunks.size())
    layout.texts.resize(layout.chunks.size())
    layout.walked.resize(layout.chunks.size())


cdef object refuse(vector[Chunk]& chunks, int leaf, int leaves):
    cdef size_t i = leaf
    while i < chunks.size():
        if chunks[i].encodings & ~KNOWN_ENCODINGS:
            return "it has pages in an encoding other than plain, run-length or dictionary"
        if chunks[i].codec and chunks[i].codec not in CODECS:
            return "it is compressed by a codec that is left to pyarrow, or lies in another file"
        i += leaves
    return None


# Which of the rows that were looked at are wanted: as ranges of their own, or one by one.

cdef struct Span:
    int part
    int group
    int64_t lo  # rows within the row group
    int64_t hi


cdef int64_t runs_between(const vector[Span]& spans, const int64_t* values, int64_t after, int64_t upto,
                          vector[Span]& kept) except -1 nogil:
    """The runs of rows in spans whose values (one for each row) are in bounds; returns how many rows they have."""
    cdef Span run
    cdef size_t i
    cdef int64_t row, rows = 0, stop
    for i in range(spans.size()):
        run = spans[i]
        row = 0
        stop = run.hi - run.lo
        while row < stop:
            while row < stop and not (after < values[row] <= upto):
                row += 1
            run.lo = spans[i].lo + row
            while row < stop and after < values[row] <= upto:
                row += 1
            run.hi = spans[i].lo + row
            if run.hi > run.lo:
                kept.push_back(run)
                rows += run.hi - run.lo
        values += stop
    return rows


cdef int all_rows(vector[uint32_t]& chosen, int64_t rows) except -1 nogil:
    cdef int64_t row
    chosen.resize(rows)
    for row in range(rows):
        chosen[row] = <uint32_t>row
    return 0


cdef int64_t choose_between(vector[uint32_t]& chosen, const int64_t* values, int64_t after, int64_t upto) except -1 nogil:
    """Of the chosen rows, leave those whose values (one for each of them) are in bounds; returns how many they are."""
    cdef size_t i, left = 0
    for i in range(chosen.size()):
        chosen[left] = chosen[i]
        left += after < values[i] <= upto
    chosen.resize(left)
    return left


cdef void choose_values(const vector[uint32_t]& chosen, uint8_t* values, int width) noexcept nogil:
    """Move the values of chosen rows to the front; rows ascend, so none is overwritten before it is moved."""
    cdef size_t i
    if width == 8:
        for i in range(chosen.size()):
            memcpy(values + i * 8, values + <size_t>chosen[i] * 8, 8)
    elif width == 16:
        for i in range(chosen.size()):
            memcpy(values + i * 16, values + <size_t>chosen[i] * 16, 16)
    else:
        for i in range(chosen.size()):
            memmove(values + i * width, values + <size_t>chosen[i] * width, width)


cdef int64_t choose_bits(const vector[uint32_t]& chosen, uint8_t* bits) noexcept nogil:
    """Move the bits of chosen rows to the front; returns how many are not set."""
    cdef size_t i
    cdef int64_t unset = 0
    cdef uint8_t bit
    for i in range(chosen.size()):
        bit = (bits[chosen[i] >> 3] >> (chosen[i] & 7)) & 1
        bits[i >> 3] = (bits[i >> 3] & ~(1 << (i & 7))) | (bit << (i & 7))
        unset += not bit
    return unset


# From row ranges of many files to columns: ranges are cut at row groups (spans) and pages (visits), then each column
# is decoded in one go without the GIL.

cdef class Reader:
    """The buffers, layouts and spans of one call; buffers are released with it."""

    cdef vector[Py_buffer] views
    cdef list files
    cdef list layouts
    cdef vector[vector[uint32_t]] ends   # of the texts of pages that have their lengths in front
    cdef vector[Span] spans
    cdef int64_t looked                  # rows of the spans
    cdef int64_t rows                    # that are given: all of those, or the chosen ones
    cdef bint choosing
    cdef vector[uint32_t] chosen
    cdef bint is_cold                    # the rows are few among others and not in memory: all are asked for at once
    cdef object schema
    cdef dict codecs

    def __cinit__(self):
        self.files, self.layouts, self.codecs = [], [], {}

    def __dealloc__(self):
        cdef size_t i
        if self.is_cold and self.files is not None:
            scatter_all(self.files, False)
        for i in range(self.views.size()):
            PyBuffer_Release(&self.views[i])

    cdef int add(self, object file, Layout layout) except -1:
        """A part: a file and what is known of it."""
        cdef Py_buffer view
        self.views.reserve(self.views.size() + 1)
        PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
        self.views.push_back(view)
        self.files.append(file)
        self.layouts.append(layout)
        return 0

    cdef int want(self, Layout layout, int part, int64_t start, int64_t stop) except -1:
        """Rows of a part, to be read after those that were wanted before."""
        if start < 0 or stop < start or stop > layout.num_rows:
            error = ValueError(f"rows {start} to {stop} of part {part} are not among its {layout.num_rows} rows")
            error.part = part
            raise error
        self.cut(layout, part, start, stop)
        self.looked += stop - start
        self.rows = self.looked
        return 0

    cdef int cut(self, Layout layout, int part, int64_t start, int64_t stop) except -1:
        cdef Span span
        cdef int lo = 0, hi = layout.num_row_groups, middle
        while hi - lo > 1:  # the last row group that begins at or before start
            middle = (lo + hi) >> 1
            if layout.first[middle] <= start:
                lo = middle
            else:
                hi = middle
        while start < stop:
            span.part, span.group = part, lo
            span.lo = start - layout.first[lo]
            span.hi = min(stop, layout.first[lo + 1]) - layout.first[lo]
            if span.hi > span.lo:
                self.spans.push_back(span)
                start += span.hi - span.lo
            lo += 1
        return 0

    cdef int visit(self, str name, list held, vector[Visit]& visits) except -1:
        """List the pages that hold the column's rows, with their bytes unpacked (and held) where need be."""
        cdef Layout layout = None
        cdef Visit v
        cdef Span span
        cdef size_t i, at, chunk = <size_t>-1
        cdef int part = -1, slot = 0, rc
        cdef const Fit* fit = NULL
        cdef const Page* unpacked = NULL
        memset(&v, 0, sizeof(Visit))
        for i in range(self.spans.size()):
            span = self.spans[i]
            if span.part != part:
                part, layout = span.part, <Layout>self.layouts[span.part]
                slot = layout.slots[name]
                chunk = <size_t>-1
                v.part = part
                if slot != ABSENT:
                    fit = &layout.fits[slot]
                    v.kind, v.stored, v.optional = fit.kind, fit.stored, fit.optional
            if slot == ABSENT:
                v.page = NULL
                v.lo, v.hi = 0, <uint32_t>(span.hi - span.lo)
                visits.push_back(v)
                continue
            if chunk != <size_t>span.group * layout.width + slot:
                chunk = <size_t>span.group * layout.width + slot
                v.dictionary = NULL
                unpacked = NULL
            if not layout.walked[chunk]:
                rc = layout.find_pages(<const uint8_t*>self.views[part].buf, self.views[part].len, chunk, fit)
                if rc:
                    raise problem(rc, part, where(part, name, span.group))
            at = page_of(layout.pages[chunk], span.lo)
            while span.lo < span.hi:
                v.page = &layout.pages[chunk][at]
                v.lo = <uint32_t>(span.lo - v.page.first)
                v.hi = <uint32_t>(min(span.hi, <int64_t>v.page.first + v.page.values) - v.page.first)
                if v.page != unpacked:
                    self.locate(layout, chunk, &v, held, name)
                    unpacked = v.page
                if v.kind == BYTES and v.page.encoding == PLAIN:
                    layout.mark(chunk, at, &v)
                elif v.kind == BYTES and v.page.encoding == LENGTHS:
                    __builtin_prefetch(v.ends + v.lo)
                else:
                    __builtin_prefetch(v.values + <int64_t>v.lo * v.stored)
                visits.push_back(v)
                span.lo += v.hi - v.lo
                at += 1
        return 0

    cdef int locate(self, Layout layout, size_t chunk, Visit* v, list held, str name) except -1:
        """Point a visit at its page's levels and values, and at its dictionary."""
        cdef const Page* page = v.page
        cdef const Chunk* c = &layout.chunks[chunk]
        cdef uint64_t ahead = page.levels + page.repeats
        v.levels = NULL
        v.values = self.bytes_of(page, v.part, name)
        v.size = page.size
        if page.v2:
            v.levels = v.values + page.repeats
            v.values += ahead
            v.size -= ahead
        if c.codec and page.packed:
            v.size = page.unpacked - ahead if page.unpacked > ahead else 0
            v.values = self.unpack(v.values, page.size - ahead, v.size, c.codec, held, v.part, name)
        if page.encoding == LENGTHS and c.codec == 0 and page.size >= LONG_TEXT * <uint64_t>page.values:
            self.recall_texts(layout, chunk, page - layout.pages[chunk].data(), v, name)
        elif page.encoding == LENGTHS:
            self.find_texts(v, name)
        elif page.encoding != PLAIN and page.encoding != RLE and v.dictionary == NULL:
            page = &layout.dictionaries[chunk]
            if page.at == 0:
                raise problem(BAD_INDEX, v.part, where(v.part, name, chunk // layout.width))
            v.dictionary = self.bytes_of(page, v.part, name)
            v.entries = page.values
            if c.codec:
                v.dictionary = self.unpack(v.dictionary, page.size, page.unpacked, c.codec, held, v.part, name)
            self.check_dictionary(layout, chunk, v, page.unpacked if c.codec else page.size, name)
        return 0

    cdef int recall_texts(self, Layout layout, size_t chunk, size_t page, Visit* v, str name) except -1:
        """`find_texts`, once for a page: its texts are long, so to know where each begins takes little room."""
        cdef vector[uint32_t]* known = &layout.ends[chunk][page]
        if known.empty():
            self.find_texts(v, name)
            if known.empty():  # another thread may have been first: what it found is in use
                layout.texts[chunk][page] = v.texts - v.values
                known.swap(self.ends.back())
        v.texts = v.values + layout.texts[chunk][page]
        v.ends, v.count = known.data(), <uint32_t>(known.size() - 1)
        return 0

    cdef int find_texts(self, Visit* v, str name) except -1:
        """Point a visit at the texts of a page that has all lengths in front."""
        cdef const uint8_t* p = v.values
        cdef uint64_t size = v.size, levels = 0
        cdef int rc = OK
        if v.optional and v.levels == NULL:
            levels = 4 + <uint64_t>load32(p) if size >= 4 else size + 1
        self.ends.resize(self.ends.size() + 1)
        if levels > size:
            rc = BAD_LEVELS
        elif v.page.values <= SMALL_PAGE:
            rc = find_ends(p + levels, size - levels, v.page.values, self.ends.back(), &v.texts)
        else:
            with nogil:
                rc = find_ends(p + levels, size - levels, v.page.values, self.ends.back(), &v.texts)
        if rc:
            raise problem(rc, v.part, f"part {v.part}, column {name!r}")
        v.ends, v.count = self.ends.back().data(), <uint32_t>(self.ends.back().size() - 1)
        return 0

    cdef int check_dictionary(self, Layout layout, size_t chunk, Visit* v, uint64_t size, str name) except -1:
        cdef bint sound
        if v.kind == BYTES:
            sound = layout.find_offsets(chunk, v.dictionary, size)
            v.offsets = layout.offsets[chunk].data()
        else:
            sound = <uint64_t>v.entries * v.stored <= size
        if not sound:
            raise problem(BAD_INDEX, v.part, where(v.part, name, chunk // layout.width))
        return 0

    cdef const uint8_t* bytes_of(self, const Page* page, int part, str name) except NULL:
        cdef Py_buffer* view = &self.views[part]
        if page.at > view.len or page.size > view.len - page.at:  # pages may be known from a longer buffer
            raise problem(BAD_BOUNDS, part, f"part {part}, column {name!r}")
        if page.has_crc and not page.sound and not (<Layout>self.layouts[part]).trusted:
            if checksum(<const uint8_t*>view.buf + page.at, page.size) != page.crc:
                raise problem(BAD_CHECKSUM, part, f"part {part}, column {name!r}")
            (<Page*>page).sound = True
        return <const uint8_t*>view.buf + page.at

    cdef const uint8_t* unpack(self, const uint8_t* p, uint64_t size, uint64_t unpacked, int codec, list held,
                               int part, str name) except NULL:
        if unpacked == 0:
            return p
        if codec not in self.codecs:  # not shared between calls: some keep state while they work
            self.codecs[codec] = pa.Codec(CODECS[codec])
        try:
            buffer = self.codecs[codec].decompress(pa.foreign_buffer(<uintptr_t>p, size), unpacked)
        except (OSError, ValueError):
            raise problem(BAD_PACKING, part, f"part {part}, column {name!r}") from None
        if <uint64_t>buffer.size < unpacked:
            raise problem(BAD_PACKING, part, f"part {part}, column {name!r}")
        held.append(buffer)
        return <const uint8_t*><uintptr_t>buffer.address

    cdef object table(self, columns):
        wanted = pa.schema([self.schema.field(name) for name in columns], metadata=self.schema.metadata)
        if not self.rows:
            return wanted.empty_table()
        return pa.Table.from_arrays([self.column(name) for name in columns], schema=wanted)

    cdef object batch(self, object wanted):
        """The rows with the columns of a schema, as one batch."""
        if not self.rows:
            return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in wanted.types], schema=wanted)
        arrays = [self.column(name, kind) for name, kind in zip(wanted.names, wanted.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    cdef int keep(self, str name, int64_t after, int64_t upto) except -1:
        """Of the wanted rows, keep those whose value in a column of 64-bit numbers is above `after`, up to `upto`.

        They become spans of their own, or, if that would be many short ones, are chosen after all have been read.
        """
        cdef vector[Span] kept
        cdef const int64_t* values
        if not self.rows:
            return 0
        found = self.column(name)
        if found.null_count or found.type.bit_width != 64 or found.offset:
            raise Declined(f"column {name!r} has no bounds to compare")
        values = <const int64_t*><uintptr_t>found.buffers()[1].address
        with nogil:
            if not self.choosing:
                self.rows = runs_between(self.spans, values, after, upto, kept)
                self.choosing = kept.size() > 2 * self.spans.size() and self.looked >> 32 == 0
                if not self.choosing:
                    self.looked = self.rows
                    self.spans.swap(kept)
                    return 0
                all_rows(self.chosen, self.looked)
            self.rows = choose_between(self.chosen, values, after, upto)
        return 0

    cdef object column(self, str name, object shown=None):
        """One column of all spans, in order, as one Arrow array; its texts may be shown as views of the files."""
        cdef list held = []
        cdef vector[Visit] visits
        cdef vector[Piece] pieces
        cdef Target t
        cdef size_t i = 0
        cdef uint8_t* packed
        cdef int kind, rc
        memset(&t, 0, sizeof(Target))
        wanted = self.schema.field(name).type
        kind = self.prepare(name, wanted, &t, held)
        valid = held[0] if held else None
        if kind == NOTHING:
            return pa.nulls(self.rows, shown or wanted)
        self.visit(name, held, visits)
        as_views = shown is not None and shown.id in (arrow.Type_STRING_VIEW, arrow.Type_BINARY_VIEW)
        if (kind == BYTES and not as_views and not self.choosing and visits.size() == 1
                and self.is_worth_sharing(&visits[0], wanted)):
            return self.shared(&visits[0], wanted, &t, valid, name)
        if kind == BYTES:
            pieces.resize(self.looked)
            t.data = <uint8_t*>pieces.data()
        else:
            data = pa.allocate_buffer(self.looked * t.width, resizable=self.choosing)
            t.data = <uint8_t*><uintptr_t>data.address
        with nogil:
            if self.is_cold:
                ask_for_visits(visits)
            rc = read_visits(visits, &t, &i)
        if rc:
            raise problem(rc, visits[i].part, f"part {visits[i].part}, column {name!r}")
        if self.choosing:
            with nogil:
                choose_values(self.chosen, t.data, t.width)
                if t.nulls:
                    t.nulls = choose_bits(self.chosen, t.valid)
            if kind == BYTES:
                pieces.resize(self.rows)
            else:  # an array that is kept must not hold on to much more memory than it says
                data.resize(self.rows * t.width, shrink_to_fit=2 * self.rows < self.looked)
                t.data = <uint8_t*><uintptr_t>data.address
        buffers = [valid if t.nulls else None]
        if kind == BYTES and as_views:
            buffers += self.view(pieces, name)
            return pa.Array.from_buffers(shown, self.rows, buffers, t.nulls)
        if kind == BYTES:
            buffers += gather(pieces, wanted, name)
        elif kind == BITS:
            buffers.append(pa.allocate_buffer((self.rows + 7) // 8))
            packed = <uint8_t*><uintptr_t>buffers[1].address
            with nogil:
                pack_bits(t.data, packed, self.rows)
        else:
            buffers.append(data)
        return finish(wanted, self.rows, buffers, t.nulls)

    cdef list view(self, vector[Piece]& pieces, str name):
        """The views of an Arrow array of views, and the files that they are of; short texts are in the views."""
        cdef vector[const uint8_t*] bases
        cdef vector[int64_t] sizes
        cdef vector[int32_t] numbers
        cdef size_t i
        cdef bint inside
        cdef uint8_t* out
        for i in range(self.views.size()):
            bases.push_back(<const uint8_t*>self.views[i].buf)
            sizes.push_back(self.views[i].len)
        numbers.resize(bases.size(), -1)
        views = pa.allocate_buffer(self.rows * VIEW_BYTES)
        out = <uint8_t*><uintptr_t>views.address
        with nogil:
            inside = view_pieces(pieces, bases, sizes, numbers, out)
        if not inside:
            raise Declined(f"column {name!r} has texts that do not lie open in the first 2 GB of their file")
        used = sorted((number, part) for part, number in enumerate(numbers) if number >= 0)
        return [views, *(pa.py_buffer(self.files[part]) for _, part in used)]

    cdef bint is_worth_sharing(self, const Visit* v, object wanted):
        """Whether the texts of a visit are best left where they lie, in the file's own memory."""
        cdef Py_buffer* view = &self.views[v.part]
        if v.page == NULL or v.page.encoding != LENGTHS or wanted.id == arrow.Type_DICTIONARY:
            return False
        if v.texts < <const uint8_t*>view.buf or v.texts >= <const uint8_t*>view.buf + view.len:
            return False  # unpacked into memory of ours
        return 2 * <uint64_t>(v.hi - v.lo) >= v.page.values and v.ends[v.count] >= SHARED_BYTES

    cdef object shared(self, Visit* v, object wanted, Target* t, object valid, str name):
        """A column whose bytes are the file's: only offsets are made."""
        cdef int64_t before = v.lo, inside = v.hi - v.lo, i, at
        cdef int width = 8 if wanted.id in (arrow.Type_LARGE_STRING, arrow.Type_LARGE_BINARY) else 4
        cdef uint8_t* out
        cdef const uint8_t* levels = v.levels
        cdef uint64_t size = v.page.levels, end
        cdef int rc = OK
        if v.optional:
            if levels == NULL:
                levels, size = v.values + 4, load32(v.values)
            rc = read_levels(levels, levels + size, v, t, 0, &before, &inside)
        if rc == OK and before + inside > v.count:
            rc = BAD_VALUES
        if rc:
            raise problem(rc, v.part, f"part {v.part}, column {name!r}")
        offsets = pa.allocate_buffer((self.rows + 1) * width)
        out = <uint8_t*><uintptr_t>offsets.address
        at = before
        if width == 4 and not t.nulls:
            memcpy(out, v.ends + at, (self.rows + 1) * sizeof(uint32_t))
        else:
            for i in range(self.rows + 1):
                end = v.ends[at]
                memcpy(out + i * width, &end, width)
                if i < self.rows and (not t.nulls or (t.valid[i >> 3] >> (i & 7)) & 1):
                    at += 1
        data = pa.py_buffer(self.files[v.part]).slice(v.texts - <const uint8_t*>self.views[v.part].buf, v.ends[v.count])
        return pa.Array.from_buffers(wanted, self.rows, [valid if t.nulls else None, offsets, data], t.nulls)

    cdef int prepare(self, str name, object wanted, Target* t, list held) except -1:
        """Check that every part can give the column, and lay out the validity bits if some row may be null."""
        cdef Layout layout
        cdef const Fit* fit
        cdef int part = 0, kind = UNKNOWN
        cdef bint optional = False
        for part in range(len(self.layouts)):
            layout = <Layout>self.layouts[part]
            slot = layout.slots.get(name)
            if slot is None:
                reason = layout.declined.get(name, "it is not in the layout")
                error = Declined(f"part {part}, column {name!r}: {reason}")
                error.part = part
                raise error
            if layout.schema is not self.schema and layout.schema.field(name).type != wanted:
                raise TypeError(f"part {part} was opened for another type of column {name!r} than {wanted}")
            if slot == ABSENT:
                optional = True
                continue
            fit = &layout.fits[<int>slot]
            optional |= fit.optional
            t.width, kind = fit.width, fit.kind
        if kind == UNKNOWN:
            return NOTHING
        if optional:
            valid = pa.allocate_buffer((self.looked + 7) // 8)
            held.append(valid)
            t.valid = <uint8_t*><uintptr_t>valid.address
            memset(t.valid, 0xFF, (self.looked + 7) // 8)
        return kind


cdef uint32_t checksum(const uint8_t* p, uint64_t size):
    with nogil:
        return crc32_of(p, size)


cdef str where(int part, str name, size_t group):
    return f"part {part}, column {name!r}, row group {group}"


cdef inline size_t page_of(const vector[Page]& pages, int64_t row) noexcept nogil:
    """The page that holds a row of the row group; there is one, as pages were counted when they were found."""
    cdef size_t lo = 0, hi = pages.size(), middle
    while hi - lo > 1:
        middle = (lo + hi) >> 1
        if pages[middle].first <= row:
            lo = middle
        else:
            hi = middle
    return lo


cdef int read_visits(vector[Visit]& visits, Target* t, size_t* i) noexcept nogil:
    cdef int64_t pos = 0
    cdef int rc
    cdef Trail trail
    memset(&trail, 0, sizeof(Trail))
    while i[0] < visits.size():
        rc = read_visit(&visits[i[0]], t, pos, &trail)
        if rc:
            return rc
        pos += visits[i[0]].hi - visits[i[0]].lo
        i[0] += 1
    return OK


cdef void pack_bits(const uint8_t* bytes_, uint8_t* bits, int64_t rows) noexcept nogil:
    cdef int64_t i
    memset(bits, 0, (rows + 7) // 8)
    for i in range(rows):
        bits[i >> 3] |= bytes_[i] << (i & 7)


# What Python calls: rows by range of many files, of one, or only those within limits.

cdef Reader reader_of(object files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, schema):
    """A reader that wants the ranges, in order."""
    cdef Reader reader = Reader()
    cdef Py_ssize_t i
    if part.shape[0] != start.shape[0] or part.shape[0] != stop.shape[0]:
        raise ValueError("each range has a part, a start and a stop")
    reader.schema = schema
    for file, layout in files:
        reader.add(file, <Layout?>layout)
    for i in range(part.shape[0]):
        if part[i] < 0 or part[i] >= len(reader.layouts):
            raise ValueError(f"there is no part {part[i]}")
        reader.want(<Layout>reader.layouts[part[i]], <int>part[i], start[i], stop[i])
    return reader


def read_ranges(parts, columns, schema):
    """Read the row ranges of all parts, in order, as a table of one chunk per column.

    Args:
        parts: (file, layout, starts, stops): the whole file as a buffer, what `open_layout` made of it, row ranges.
        columns: names of columns of the schema.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """
    cdef Reader reader = Reader()
    cdef int part = 0
    reader.schema = schema
    for file, layout, starts, stops in parts:
        reader.add(file, layout)
        starts = starts.tolist() if hasattr(starts, "tolist") else starts
        stops = stops.tolist() if hasattr(stops, "tolist") else stops
        for start, stop in zip(starts, stops, strict=True):
            reader.want(<Layout?>layout, part, start, stop)
        part += 1
    return reader.table(columns)


def read_spans(files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, columns, schema):
    """Read many row ranges, in order, as a table of one chunk per column.

    Args:
        files: (file, layout) of each part.
        part: of each range, the position of its file among `files`.
        start: first row of each range.
        stop: one past the last row of each range.
        columns: names of columns of the schema.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """
    cdef Reader reader = reader_of(files, part, start, stop, schema)
    ask_ahead(reader, list(columns))
    return reader.table(columns)


def read_live(files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, limits, wanted, schema):
    """Read those rows of many ranges that are within limits, in order, as one batch; of the others only what decides.

    Args:
        files: (file, layout) of each part.
        part: of each range, the position of its file among `files`.
        start: first row of each range.
        stop: one past the last row of each range.
        limits: (name, after, upto): columns of 64-bit numbers or times, and which values are kept: after < v <= upto.
        wanted: the schema of the wanted columns, all of them of `schema`; texts may be wanted as views of the files.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """
    cdef Reader reader = reader_of(files, part, start, stop, schema)
    ask_ahead(reader, [*(limit[0] for limit in limits), *wanted.names])
    for name, after, upto in limits:
        reader.keep(name, after, upto)
    return reader.batch(wanted)


def read_rows(file, layout, start, stop, wanted, schema):
    """Read one row range of one file as one batch; arguments and errors as of `read_live`."""
    cdef Reader reader = Reader()
    reader.schema = schema
    reader.add(file, <Layout?>layout)
    reader.want(<Layout>layout, 0, start, stop)
    return reader.batch(wanted)

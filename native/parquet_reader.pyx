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
include "pages_types.pxi"
include "pages_rooms.pxi"
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


include "pages_texts.pxi"
include "pages_choose.pxi"
include "pages_read.pxi"
include "pages_cold.pxi"
include "pages_calls.pxi"

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# distutils: language = c++
"""Reads row ranges of many Parquet files into one Arrow array per column, touching only the pages that hold the rows.

It exists because a probe is a few rows from each of many files, and a general reader's cost is per file, row group and
column, not per row (the probe lines of `bench core`). One key of 100 in 36 files of 8 MB (4 ranges of 20 rows in each: 3000 rows of 1000 bytes, all
columns, page cache warm, 2 cores): pyarrow with kept footers, memory-mapped, takes 14 ms at best (row groups of
64-128 KB, one call per file; 20 ms at 512 KB; 16-50 ms with one call per range, or with threads); this takes
0.5-0.9 ms, and opening 36 footers 1.3-1.9 ms (other work was on the machine). Where Parquet can be written in a way
that this module does not know, it declines, and pyarrow reads the file: there is no second reader for nested columns,
texts as differences to the one before, or INT96. Pages with a checksum are compared with it at the first touch.

A `FileLayout` is what is known of one file: row groups and chunks from the footer; pages, dictionary offsets and marks
inside long pages from the first touch on. All of them are checked against the buffer at hand each time, so damaged or
shortened bytes raise `Damaged`, or give other rows, but are never read past their end.
"""
include "common.pxi"

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memmove
from libcpp.vector cimport vector

import base64
import struct

import pyarrow as pa
from pyarrow import lib as arrow

cdef extern from *:
    int __builtin_popcount(unsigned int) noexcept nogil

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
cdef uint32_t MIX = 0x9E3779B1  # odd, so that a change of one page changes the sum of all
cdef dict CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
cdef uint64_t KNOWN_ENCODINGS = 1 << PLAIN | 1 << PLAIN_DICTIONARY | 1 << RLE | 1 << 4 | 1 << DELTA | 1 << DELTA_LENGTH | 1 << RLE_DICTIONARY | 1 << BYTE_STREAM_SPLIT


cdef object make_error(int rc, int part, str what):
    error = (Declined if rc >= ODD_ENCODING else Damaged)(f"{what}: {REASONS[rc]}")
    error.part = part
    return error


cdef int read_header(Cursor* c, Page* page, int* kind) noexcept nogil:
    """One PageHeader; the cursor is left at the page's first byte."""
    cdef int ident = 0, field_kind = 0, inner, level_encoding = RLE
    memset(page, 0, sizeof(Page))
    kind[0] = -1
    page.packed = True
    while next_field(c, &ident, &field_kind):
        if ident == 1:
            kind[0] = <int>read_size(c)
        elif ident == 2:
            page.unpacked = <uint32_t>read_size(c)
        elif ident == 3:
            page.size = <uint32_t>read_size(c)
        elif ident == 4:
            page.crc = <uint32_t>read_zigzag(c)
            page.has_crc = True
        elif (ident == 5 or ident == 7 or ident == 8) and field_kind == T_STRUCT:
            page.v2 = ident == 8
            inner = 0
            while next_field(c, &inner, &field_kind):
                if inner == 1:
                    page.values = <uint32_t>read_size(c)
                elif inner == (4 if ident == 8 else 2):
                    page.encoding = <uint8_t>min(read_size(c), <int64_t>255)
                elif inner == 3 and ident == 5:
                    level_encoding = <int>read_size(c)
                elif inner == 5 and ident == 8:
                    page.levels = <uint32_t>read_size(c)
                elif inner == 6 and ident == 8:
                    page.repeats = <uint32_t>read_size(c)
                elif inner == 7 and ident == 8:
                    page.packed = field_kind == T_TRUE
                else:
                    skip_value(c, field_kind, 0, False)
        else:
            skip_value(c, field_kind, 0, False)
    if c.bad or kind[0] < 0:
        return BAD_HEADER
    return OK if level_encoding == RLE else ODD_ENCODING


cdef inline bint is_readable(int encoding, int physical) noexcept nogil:
    if encoding == PLAIN or physical == BOOLEAN:
        return encoding == PLAIN or encoding == RLE
    if encoding == RLE_DICTIONARY or encoding == PLAIN_DICTIONARY:
        return True
    if physical == BYTE_ARRAY:
        return encoding == DELTA_LENGTH
    return encoding == BYTE_STREAM_SPLIT or (encoding == DELTA and (physical == INT32 or physical == INT64))


cdef int find_chunk_pages(const uint8_t* file, int64_t length, const Chunk* chunk, int physical, bint optional,
              vector[Page]& pages, Page* dictionary) except -1 nogil:
    """Find the pages of a column chunk by following their headers."""
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
        page.start = c.p - file
        c.p += page.size
        if kind == 2:
            if pages.size() or dictionary.start or page.v2:
                return BAD_HEADER
            if page.encoding != PLAIN and page.encoding != PLAIN_DICTIONARY:
                return ODD_ENCODING
            dictionary[0] = page
        elif kind == 0 or kind == 3:
            if page.v2 != (kind == 3):
                return BAD_HEADER
            if not is_readable(page.encoding, physical):
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


cdef int check_pages(const uint8_t* file, const Chunk* chunk, bint deep, uint32_t* check) noexcept nogil:
    """Fold the checksums of a chunk's page headers into one; with `deep`, compare each page with the one in its header."""
    cdef Cursor c
    cdef Page page
    cdef int kind = 0
    cdef const uint8_t* header
    c.p, c.end, c.bad = file + chunk.start, file + chunk.start + chunk.size, False
    check[0] = 0
    while c.p < c.end:
        header = c.p
        if read_header(&c, &page, &kind) == BAD_HEADER:
            return BAD_HEADER
        if page.size > c.end - c.p:
            return BAD_BOUNDS
        check[0] = check[0] * MIX ^ crc32_of(header, c.p - header)
        if not page.has_crc:
            check[0] = check[0] * MIX ^ crc32_of(c.p, page.size)
        elif deep and crc32_of(c.p, page.size) != page.crc:
            return BAD_CHECKSUM
        c.p += page.size
    return OK


cdef int check_chunk(const uint8_t* file, int64_t length, const Chunk* chunk, bint deep, uint32_t* check) noexcept nogil:
    """The checksum of a chunk: of its headers, each of which holds that of its page; of all its bytes if it has no pages."""
    cdef int rc
    check[0] = 0
    if chunk.start < 0 or chunk.size < 0 or chunk.start > length or chunk.size > length - chunk.start:
        return BAD_BOUNDS
    rc = check_pages(file, chunk, deep, check)
    if rc == BAD_HEADER or rc == BAD_BOUNDS:
        check[0] = crc32_of(file + chunk.start, chunk.size)
        return OK
    return rc


cdef int mark_values(const uint8_t* p, uint64_t size, bint levels_ahead, vector[uint32_t]& marks) except -1 nogil:
    """Note where every MARK_STEP-th byte array of a page begins; stops at damage: reading will find it too."""
    cdef uint64_t position = 0, i = 0, length
    if levels_ahead:
        length = load_u32(p) if size >= 4 else size
        if length + 4 > size:
            return 0
        p += 4 + length
        size -= 4 + length
    while size - position >= 4:
        if i and i % MARK_STEP == 0:
            marks.push_back(<uint32_t>position)
        length = load_u32(p + position)
        if length > size - position - 4:
            return 0
        position += 4 + length
        i += 1
    return 0


cdef class FileLayout:
    """Where the columns of one file lie: its row groups and chunks, and (found at the first touch) their pages.

    `declined` names each column of the schema that `read_ranges` cannot read from this file, and why. `trusted` may be
    set where the file's bytes were just written by this very process.
    """

    cdef public bint trusted         # checksums need not be compared
    cdef public object kept          # a bounded cache of unpacked pages, by file and place; None: they are not kept
    cdef public str name             # of the file, in that cache
    cdef readonly bint packed        # whether a column that can be read is compressed
    cdef readonly object schema
    cdef readonly dict declined
    cdef readonly int64_t num_rows
    cdef readonly int num_row_groups
    cdef dict slots                  # column name -> position among the readable columns
    cdef int width                   # readable columns; chunk of (group, slot) is group * width + slot
    cdef vector[Conversion] conversions
    cdef vector[int64_t] first       # first row of each row group, and the number of rows
    cdef vector[Chunk] chunks
    cdef vector[vector[Page]] pages
    cdef vector[Page] dictionaries
    cdef vector[vector[uint32_t]] offsets         # of dictionary entries
    cdef vector[vector[vector[uint32_t]]] marks   # of byte arrays in pages
    cdef vector[vector[vector[uint32_t]]] ends    # of long texts in pages
    cdef vector[vector[uint64_t]] texts           # the first of them, in the page's values
    cdef vector[uint8_t] walked
    cdef int leaves                  # columns of the file; their chunk of (group, leaf) is group * leaves + leaf
    cdef vector[int] leaf_of         # the leaf of each readable column
    cdef dict spans                  # column name -> its first leaf, and one past its last
    cdef vector[Chunk] stored        # the chunks of all leaves
    cdef vector[uint32_t] checks     # their checksums, if they are known
    cdef vector[uint8_t] sound       # whether their pages were compared

    def __init__(self):
        raise TypeError("a FileLayout is made by open_file_layout")

    def row_groups(self):
        """The first row of each row group, and the number of rows at the end: for readers by row group."""
        return [self.first[i] for i in range(<Py_ssize_t>self.first.size())]

    def cuts(self, int64_t start, int64_t stop):
        """The rows between `start` and `stop` at which another row group begins."""
        cdef Py_ssize_t lo = 0, hi = <Py_ssize_t>self.first.size(), middle
        cdef list starts = []
        while lo < hi:  # the first that begins after start
            middle = (lo + hi) >> 1
            if self.first[middle] <= start:
                lo = middle + 1
            else:
                hi = middle
        while lo < <Py_ssize_t>self.first.size() and self.first[lo] < stop:
            starts.append(self.first[lo])
            lo += 1
        return starts

    def open_bytes(self, names, int64_t start, int64_t stop):
        """About how many bytes of columns, in the row groups within [start, stop), can be handed out where they lie."""
        cdef int group
        cdef int64_t total = 0
        cdef const Chunk* chunk
        for name in names:
            slot = self.slots.get(name)
            if slot is None or slot == ABSENT or self.conversions[<int>slot].kind != BYTES:
                continue
            for group in range(self.num_row_groups):
                chunk = &self.chunks[<size_t>group * self.width + <int>slot]
                if start <= self.first[group] and self.first[group + 1] <= stop and chunk.codec == 0 and (
                        chunk.encodings & (<uint64_t>1 << DELTA_LENGTH)) and (
                        chunk.size >= max(<int64_t>SHARED_TEXT_BYTES, LONG_TEXT * chunk.rows)):
                    total += max(<int64_t>0, chunk.size - 8 * chunk.rows)
        return total

    def plain_texts(self):
        """The text columns that are neither compressed nor in a dictionary anywhere in the file."""
        cdef int group
        cdef uint64_t coded = <uint64_t>1 << RLE_DICTIONARY | <uint64_t>1 << PLAIN_DICTIONARY
        cdef const Chunk* chunk
        names = []
        for name, slot in self.slots.items():
            if slot == ABSENT or self.conversions[<int>slot].kind != BYTES:
                continue
            for group in range(self.num_row_groups):
                chunk = &self.chunks[<size_t>group * self.width + <int>slot]
                if chunk.codec != 0 or chunk.encodings & coded:
                    break
            else:
                names.append(name)
        return names

    cdef int find_pages(self, const uint8_t* file, int64_t length, size_t chunk, const Conversion* fit) except -1:
        cdef vector[Page] pages
        cdef Page dictionary
        cdef int rc
        memset(&dictionary, 0, sizeof(Page))
        rc = self.compare(file, length, chunk // self.width * self.leaves + self.leaf_of[chunk % self.width], False)
        if rc:
            return rc
        with nogil:
            rc = find_chunk_pages(file, length, &self.chunks[chunk], fit.physical, fit.optional, pages, &dictionary)
        if rc == OK and not self.walked[chunk]:  # another thread may have been first: what it found is in use
            self.marks[chunk].resize(pages.size())
            self.ends[chunk].resize(pages.size())
            self.texts[chunk].resize(pages.size())
            self.pages[chunk].swap(pages)
            self.dictionaries[chunk] = dictionary
            self.walked[chunk] = True
        return rc

    cdef int compare(self, const uint8_t* file, int64_t length, size_t chunk, bint deep) noexcept:
        """Compare a chunk of the file with its checksum, and with `deep` its pages with theirs."""
        cdef uint32_t check = 0
        cdef int rc
        if self.checks.empty():
            return OK
        with nogil:
            rc = check_chunk(file, length, &self.stored[chunk], deep, &check)
        if rc == OK and check != self.checks[chunk]:
            rc = BAD_CHECKSUM
        if rc == OK and deep:
            self.sound[chunk] = True
        return rc

    def verify(self, file, names, int first=0, int last=0x7FFFFFFF):
        """Compare columns, in the row groups from `first` up to `last`, with their checksums: each chunk once."""
        cdef Py_buffer view
        cdef int group, leaf, rc
        cdef size_t chunk
        cdef list wanted = [(name, leaf) for name in names for leaf in range(*self.spans.get(name, (0, 0)))]
        cdef bint cold = False, advised = False
        PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
        try:
            for group in range(max(first, 0), min(last, self.num_row_groups)):
                for name, leaf in wanted:
                    chunk = <size_t>group * self.leaves + leaf
                    cold |= self.prefetch_chunk(<const uint8_t*>view.buf, view.len, chunk, cold)
                    if cold and not advised:  # nothing around it: other columns need not be read
                        advised = True
                        advise_all([file], True)
            for group in range(max(first, 0), min(last, self.num_row_groups)):
                for name, leaf in wanted:
                    chunk = <size_t>group * self.leaves + leaf
                    rc = OK if self.sound[chunk] else self.compare(<const uint8_t*>view.buf, view.len, chunk, True)
                    if rc:
                        raise Damaged(f"column {name!r}, row group {group}: {REASONS[rc]}")
        finally:
            if cold:
                advise_all([file], False)
            PyBuffer_Release(&view)
        raise_if_lost([file])

    cdef bint prefetch_chunk(self, const uint8_t* file, int64_t length, size_t chunk, bint cold) noexcept:
        """Begin to read a chunk that is not in memory yet, so that many are on their way at once."""
        cdef const Chunk* c = &self.stored[chunk]
        if self.sound[chunk] or self.checks.empty():
            return False
        if c.start < 0 or c.size <= 0 or c.start > length or c.size > length - c.start:
            return False
        if not cold and is_resident(file + c.start) and is_resident(file + c.start + c.size - 1):
            return False
        with nogil:
            prefetch_range(file + c.start, c.size)
        return True

    def checksums(self, file):
        """What `open_file_layout` compares a file with: its size, and checksums of its footer and column chunks."""
        cdef Py_buffer view
        cdef uint32_t check = 0
        cdef list checks = []
        cdef size_t chunk
        PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
        try:
            checks.append(crc_of_footer(<const uint8_t*>view.buf, view.len))
            for chunk in range(self.stored.size()):
                with nogil:
                    check_chunk(<const uint8_t*>view.buf, view.len, &self.stored[chunk], False, &check)
                checks.append(check)
            return struct.pack(f"<Q{len(checks)}I", view.len, *checks)
        finally:
            PyBuffer_Release(&view)

    cdef int use_marks(self, size_t chunk, size_t page, Visit* v) except -1:
        """Give a visit deep inside a page of byte arrays the marks that save it from starting at the page's beginning."""
        cdef vector[uint32_t]* marks = &self.marks[chunk][page]
        cdef vector[uint32_t] fresh
        if marks.empty() and v.lo >= 2 * MARK_STEP:
            with nogil:
                mark_values(v.values, v.size, v.optional and v.levels == NULL, fresh)
            if marks.empty():
                marks.swap(fresh)
        v.marks, v.marked = marks.data(), <uint32_t>marks.size()
        return 0

    cdef bint find_offsets(self, size_t chunk, const uint8_t* p, uint64_t size) except -1:
        """Where each byte array of a dictionary begins; False if the dictionary is damaged."""
        cdef vector[uint32_t] offsets
        cdef uint64_t i, position = 0, entries = self.dictionaries[chunk].values
        if self.offsets[chunk].size():
            return self.offsets[chunk].back() <= size
        if entries * 4 > size or size > 0x7FFFFFFF:
            return False
        offsets.reserve(entries + 1)
        for i in range(entries):
            offsets.push_back(<uint32_t>position)
            if size - position < 4:
                return False
            position += 4 + <uint64_t>load_u32(p + position)
            if position > size:
                return False
        offsets.push_back(<uint32_t>position)
        self.offsets[chunk].swap(offsets)
        return True


cdef uint32_t crc_of_footer(const uint8_t* file, int64_t length) except? 0:
    cdef int64_t size = load_u32(file + length - 8) if length >= 12 else length
    if size > length - 12:
        raise Damaged("the file does not end with a Parquet footer")
    return crc32_of(file + length - 8 - size, size + 8)


cdef int compare_file(FileLayout layout, const uint8_t* file, int64_t length, bytes checksums) except -1:
    """Refuse a file whose size or footer is not that of the file that was written; keep the checksums of its chunks."""
    cdef Py_ssize_t i
    size, *checks = struct.unpack(f"<Q{(len(checksums) - 8) // 4}I", checksums)
    if size != length:
        raise Damaged(f"it has {length} bytes, {size} were written")
    if crc_of_footer(file, length) != checks[0]:
        raise Damaged("its footer is not the one that was written")
    for i in range(1, len(checks)):
        layout.checks.push_back(checks[i])
    return 0


def open_file_layout(file, schema, checksums=None):
    """Parse a file's footer (`file` is the whole file as a buffer) for reading columns of the Arrow schema."""
    cdef Py_buffer view
    cdef FileLayout layout = FileLayout.__new__(FileLayout)
    PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
    try:
        if checksums is not None:
            compare_file(layout, <const uint8_t*>view.buf, view.len, checksums)
        read_footer(layout, <const uint8_t*>view.buf, view.len, schema)
        raise_if_lost([file])
    finally:
        advise_all([file], False)
        PyBuffer_Release(&view)
    if not layout.checks.empty() and layout.checks.size() != layout.stored.size():
        raise Damaged("it has other column chunks than were written")
    return layout


cdef int read_footer(FileLayout layout, const uint8_t* file, int64_t length, object schema) except -1:
    cdef int64_t size = load_u32(file + length - 8) if length >= 12 else length, rows = 0
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
        prefetch_range(c.p, size)
    layout.first.push_back(0)
    while next_field(&c, &ident, &kind):
        if ident == 2 and kind == T_LIST and not elements:
            elements = read_elements(&c, &leaves)
        elif ident == 4 and kind == T_LIST and elements and not groups:
            groups = read_list_header(&c, &kind)
            i = 0
            while i < groups and not c.bad:
                read_group(&c, chunks, leaves, &rows)
                layout.first.push_back(layout.first.back() + rows)
                i += 1
        elif ident == 5 and kind == T_LIST:
            stored = read_arrow_schema(&c)
        else:
            skip_value(&c, kind, 0, False)
    if c.bad or not elements or chunks.size() != groups * leaves:
        raise Damaged("the footer is damaged")
    layout.schema, layout.num_rows, layout.num_row_groups = schema, layout.first.back(), groups
    keep_readable(layout, elements, chunks, leaves, stored)
    return 0


cdef keep_readable(FileLayout layout, list elements, vector[Chunk]& chunks, int leaves, bytes stored):
    """Keep the chunks of the columns that can be read, and say of the others why they cannot."""
    cdef Element e
    cdef Chunk chunk
    cdef Conversion fit
    cdef int group
    cdef list leaves_kept = []
    by_name = {(<Element>e).name: e for e in elements}
    if len(by_name) != len(elements):
        raise Declined("two columns of the file have the same name")
    layout.slots, layout.declined = {}, {}
    for name, wanted in zip(layout.schema.names, layout.schema.types, strict=True):
        e = by_name.get(name)
        if e is None:
            layout.slots[name] = ABSENT
            continue
        reason = match_type(wanted, e, stored, &fit)
        if reason is None:
            reason = find_refusal(chunks, e.leaf, leaves)
        if reason is not None:
            layout.declined[name] = reason
            continue
        layout.slots[name] = len(leaves_kept)
        layout.conversions.push_back(fit)
        leaves_kept.append(e.leaf)
        layout.leaf_of.push_back(e.leaf)
    starts = [(<Element>e).leaf for e in elements]
    layout.spans = {(<Element>e).name: span for e, span in zip(elements, zip(starts, [*starts[1:], leaves]))}
    layout.leaves = leaves
    layout.stored = chunks
    layout.sound.resize(chunks.size())
    layout.width = len(leaves_kept)
    for group in range(layout.num_row_groups):
        for leaf in leaves_kept:
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


cdef object find_refusal(vector[Chunk]& chunks, int leaf, int leaves):
    cdef size_t i = leaf
    while i < chunks.size():
        if chunks[i].encodings & ~KNOWN_ENCODINGS:
            return "it has pages in an encoding that is left to pyarrow"
        if chunks[i].codec and chunks[i].codec not in CODECS:
            return "it is compressed by a codec that is left to pyarrow, or lies in another file"
        i += leaves
    return None


# Which rows are within the limits: as ranges of their own, or one by one.

cdef struct Span:
    int part
    int group
    int64_t lo  # rows within the row group
    int64_t hi


cdef int64_t find_runs_between(const vector[Span]& spans, const int64_t* values, int64_t after, int64_t upto,
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


cdef int choose_all(vector[uint32_t]& chosen, int64_t rows) except -1 nogil:
    cdef int64_t row
    chosen.resize(rows)
    for row in range(rows):
        chosen[row] = <uint32_t>row
    return 0


cdef int64_t filter_chosen(vector[uint32_t]& chosen, const int64_t* values, int64_t after, int64_t upto) except -1 nogil:
    """Keep those of the chosen rows whose values (one for each) are in bounds; returns how many they are."""
    cdef size_t i, left = 0
    for i in range(chosen.size()):
        chosen[left] = chosen[i]
        left += after < values[i] <= upto
    chosen.resize(left)
    return left


cdef void compact_values(const vector[uint32_t]& chosen, uint8_t* values, int width) noexcept nogil:
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


cdef int64_t compact_bits(const vector[uint32_t]& chosen, uint8_t* bits) noexcept nogil:
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
    cdef vector[int] slots               # of the column that is being read, in each part
    cdef bint is_cold                    # the rows are few among others and not in memory: all are asked for at once
    cdef object schema
    cdef dict codecs

    def __cinit__(self):
        self.files, self.layouts, self.codecs = [], [], {}

    def __dealloc__(self):
        cdef size_t i
        if self.is_cold and self.files is not None:
            advise_all(self.files, False)
        for i in range(self.views.size()):
            PyBuffer_Release(&self.views[i])

    cdef int add_file(self, object file, FileLayout layout) except -1:
        """Add a part: a file and its layout."""
        cdef Py_buffer view
        self.views.reserve(self.views.size() + 1)
        PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
        self.views.push_back(view)
        self.files.append(file)
        self.layouts.append(layout)
        return 0

    cdef int add_range(self, FileLayout layout, int part, int64_t start, int64_t stop) except -1:
        """Add rows of a part, to be read after those added before."""
        if start < 0 or stop < start or stop > layout.num_rows:
            error = ValueError(f"rows {start} to {stop} of part {part} are not among its {layout.num_rows} rows")
            error.part = part
            raise error
        self.split_at_groups(layout, part, start, stop)
        self.looked += stop - start
        self.rows = self.looked
        return 0

    cdef int split_at_groups(self, FileLayout layout, int part, int64_t start, int64_t stop) except -1:
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

    cdef int list_visits(self, str name, list held, vector[Visit]& visits) except -1:
        """List the pages that hold the column's rows, with their bytes unpacked (and held) where need be."""
        cdef FileLayout layout = None
        cdef Visit v
        cdef Span span
        cdef size_t i, position, chunk = <size_t>-1
        cdef int part = -1, slot = 0, rc
        cdef bint single
        cdef const Conversion* fit = NULL
        cdef const Page* unpacked = NULL
        memset(&v, 0, sizeof(Visit))
        for i in range(self.spans.size()):
            span = self.spans[i]
            single = i + 1 == self.spans.size() or self.spans[i + 1].part != span.part or (
                self.spans[i + 1].group != span.group)
            if span.part != part:
                part, layout = span.part, <FileLayout>self.layouts[span.part]
                slot = self.slots[part]
                chunk = <size_t>-1
                v.part = part
                if slot != ABSENT:
                    fit = &layout.conversions[slot]
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
                    raise make_error(rc, part, describe_place(part, name, span.group))
            position = find_page(layout.pages[chunk], span.lo)
            while span.lo < span.hi:
                v.page = &layout.pages[chunk][position]
                v.lo = <uint32_t>(span.lo - v.page.first)
                v.hi = <uint32_t>(min(span.hi, <int64_t>v.page.first + v.page.values) - v.page.first)
                if v.page != unpacked:
                    # Other ranges may follow in the same page.
                    self.locate_page(layout, chunk, &v, v.hi if single else v.page.values, held, name)
                    unpacked = v.page
                if v.kind == BYTES and v.page.encoding == PLAIN:
                    layout.use_marks(chunk, position, &v)
                elif v.kind == BYTES and v.page.encoding == DELTA_LENGTH:
                    prefetch(v.ends + v.lo)
                else:
                    prefetch(v.values + <int64_t>v.lo * v.stored)
                visits.push_back(v)
                span.lo += v.hi - v.lo
                position += 1
        return 0

    cdef int locate_page(self, FileLayout layout, size_t chunk, Visit* v, uint32_t stop, list held, str name) except -1:
        """Point a visit at its page's levels and values (up to row `stop`), and at its dictionary."""
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
            v.values = self.unpack(layout, page, v, v.values, page.size - ahead, v.size, c.codec, held, name)
        if page.encoding == DELTA or page.encoding == BYTE_STREAM_SPLIT:
            self.expand_page(v, stop, held, name)
        elif page.encoding == DELTA_LENGTH and c.codec == 0 and page.size >= LONG_TEXT * <uint64_t>page.values:
            self.find_texts_once(layout, chunk, page - layout.pages[chunk].data(), v, name)
        elif page.encoding == DELTA_LENGTH:
            self.find_texts(v, name)
        elif page.encoding != PLAIN and page.encoding != RLE and v.dictionary == NULL:
            page = &layout.dictionaries[chunk]
            if page.start == 0:
                raise make_error(BAD_INDEX, v.part, describe_place(v.part, name, chunk // layout.width))
            v.dictionary = self.bytes_of(page, v.part, name)
            v.entries = page.values
            if c.codec:
                v.dictionary = self.unpack(layout, page, v, v.dictionary, page.size, page.unpacked, c.codec, held, name)
            self.check_dictionary(layout, chunk, v, page.unpacked if c.codec else page.size, name)
        return 0

    cdef int expand_page(self, Visit* v, uint32_t stop, list held, str name) except -1:
        """Point a visit at a plain copy of its page up to row `stop`, levels and all."""
        cdef uint64_t levels = 0, written = 0
        cdef uint8_t* copy
        cdef int rc
        if v.optional and v.levels == NULL:
            levels = 4 + <uint64_t>load_u32(v.values) if v.size >= 4 else v.size + 1
            if levels > v.size:
                raise make_error(BAD_LEVELS, v.part, f"part {v.part}, column {name!r}")
        buffer = pa.allocate_buffer(levels + <uint64_t>stop * v.stored)
        copy = <uint8_t*><uintptr_t>buffer.address
        memcpy(copy, v.values, levels)
        with nogil:
            rc = expand(v.values + levels, v.size - levels, v.page.encoding, v.stored, stop, copy + levels, &written)
        if rc:
            raise make_error(rc, v.part, f"part {v.part}, column {name!r}")
        held.append(buffer)
        v.values, v.size = copy, levels + written
        return 0

    cdef int find_texts_once(self, FileLayout layout, size_t chunk, size_t page, Visit* v, str name) except -1:
        """`find_texts`, once for a page: where its texts are long, it takes little memory to note where each begins."""
        cdef vector[uint32_t]* ends = &layout.ends[chunk][page]
        if ends.empty():
            self.find_texts(v, name)
            if ends.empty():  # another thread may have been first: what it found is in use
                layout.texts[chunk][page] = v.texts - v.values
                ends.swap(self.ends.back())
        v.texts = v.values + layout.texts[chunk][page]
        v.ends, v.count = ends.data(), <uint32_t>(ends.size() - 1)
        return 0

    cdef int find_texts(self, Visit* v, str name) except -1:
        """Point a visit at the texts of a page that has all lengths in front."""
        cdef const uint8_t* p = v.values
        cdef uint64_t size = v.size, levels = 0
        cdef int rc = OK
        if v.optional and v.levels == NULL:
            levels = 4 + <uint64_t>load_u32(p) if size >= 4 else size + 1
        self.ends.resize(self.ends.size() + 1)
        if levels > size:
            rc = BAD_LEVELS
        elif v.page.values <= SMALL_PAGE:
            rc = find_ends(p + levels, size - levels, v.page.values, self.ends.back(), &v.texts)
        else:
            with nogil:
                rc = find_ends(p + levels, size - levels, v.page.values, self.ends.back(), &v.texts)
        if rc:
            raise make_error(rc, v.part, f"part {v.part}, column {name!r}")
        v.ends, v.count = self.ends.back().data(), <uint32_t>(self.ends.back().size() - 1)
        return 0

    cdef int check_dictionary(self, FileLayout layout, size_t chunk, Visit* v, uint64_t size, str name) except -1:
        cdef bint sound
        if v.kind == BYTES:
            sound = layout.find_offsets(chunk, v.dictionary, size)
            v.offsets = layout.offsets[chunk].data()
        else:
            sound = <uint64_t>v.entries * v.stored <= size
        if not sound:
            raise make_error(BAD_INDEX, v.part, describe_place(v.part, name, chunk // layout.width))
        return 0

    cdef const uint8_t* bytes_of(self, const Page* page, int part, str name) except NULL:
        cdef Py_buffer* view = &self.views[part]
        if page.start > view.len or page.size > view.len - page.start:  # pages may be known from a longer buffer
            raise make_error(BAD_BOUNDS, part, f"part {part}, column {name!r}")
        if page.has_crc and not page.sound and not (<FileLayout>self.layouts[part]).trusted:
            if page_crc(<const uint8_t*>view.buf + page.start, page.size) != page.crc:
                raise make_error(BAD_CHECKSUM, part, f"part {part}, column {name!r}")
            (<Page*>page).sound = True
        return <const uint8_t*>view.buf + page.start

    cdef const uint8_t* unpack(self, FileLayout layout, const Page* page, const Visit* v, const uint8_t* p, uint64_t size,
                               uint64_t unpacked, int codec, list held, str name) except NULL:
        """The bytes of a compressed page; they are kept for others if these are few of its rows: others may follow."""
        cdef object buffer = None, key = None
        if unpacked == 0:
            return p
        if layout.kept is not None:
            key = (layout.name, page.start)
            buffer = layout.kept.get(key)
        if buffer is None:
            if codec not in self.codecs:  # not shared between calls: some keep state while they work
                self.codecs[codec] = pa.Codec(CODECS[codec])
            try:
                buffer = self.codecs[codec].decompress(pa.foreign_buffer(<uintptr_t>p, size), unpacked)
            except (OSError, ValueError):
                raise make_error(BAD_PACKING, v.part, f"part {v.part}, column {name!r}") from None
            if key is not None and 2 * <uint64_t>(v.hi - v.lo) < v.page.values:
                layout.kept.put(key, buffer)
        if <uint64_t>buffer.size < unpacked:
            raise make_error(BAD_PACKING, v.part, f"part {v.part}, column {name!r}")
        held.append(buffer)
        return <const uint8_t*><uintptr_t>buffer.address

    cdef object read_table(self, columns):
        wanted = pa.schema([self.schema.field(name) for name in columns], metadata=self.schema.metadata)
        if not self.rows:
            return wanted.empty_table()
        table = pa.Table.from_arrays([self.read_column(name) for name in columns], schema=wanted)
        raise_if_lost(self.files)
        return table

    cdef object read_batch(self, object wanted):
        """The rows with the columns of a schema, as one batch."""
        if not self.rows:
            return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in wanted.types], schema=wanted)
        arrays = [self.read_column(name, kind) for name, kind in zip(wanted.names, wanted.types)]
        raise_if_lost(self.files)
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    cdef int filter_rows(self, str name, int64_t after, int64_t upto) except -1:
        """Of the wanted rows, keep those whose value in a column of 64-bit numbers is above `after`, up to `upto`.

        They become spans of their own, or, if that would be many short ones, are chosen after all have been read.
        """
        cdef vector[Span] runs
        cdef const int64_t* values
        if not self.rows:
            return 0
        array = self.read_column(name)
        if array.null_count or array.type.bit_width != 64 or array.offset:
            raise Declined(f"column {name!r} has no bounds to compare")
        values = <const int64_t*><uintptr_t>array.buffers()[1].address
        with nogil:
            if not self.choosing:
                self.rows = find_runs_between(self.spans, values, after, upto, runs)
                self.choosing = runs.size() > 2 * self.spans.size() and self.looked >> 32 == 0
                if not self.choosing:
                    self.looked = self.rows
                    self.spans.swap(runs)
                    return 0
                choose_all(self.chosen, self.looked)
            self.rows = filter_chosen(self.chosen, values, after, upto)
        return 0

    cdef object read_column(self, str name, object shown=None):
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
        self.list_visits(name, held, visits)
        as_views = shown is not None and shown.id in (arrow.Type_STRING_VIEW, arrow.Type_BINARY_VIEW)
        if (kind == BYTES and not as_views and not self.choosing and visits.size() == 1
                and self.is_worth_sharing(&visits[0], wanted)):
            return self.share_text(&visits[0], wanted, &t, valid, name)
        if kind == BYTES:
            pieces.resize(self.looked)
            t.data = <uint8_t*>pieces.data()
        else:
            data = pa.allocate_buffer(self.looked * t.width, resizable=self.choosing)
            t.data = <uint8_t*><uintptr_t>data.address
        with nogil:
            if self.is_cold:
                prefetch_visits(visits)
            rc = read_visits(visits, &t, &i)
        if rc:
            raise make_error(rc, visits[i].part, f"part {visits[i].part}, column {name!r}")
        if self.choosing:
            with nogil:
                compact_values(self.chosen, t.data, t.width)
                if t.nulls:
                    t.nulls = compact_bits(self.chosen, t.valid)
            if kind == BYTES:
                pieces.resize(self.rows)
            else:  # an array that is kept must not hold on to much more memory than it says
                data.resize(self.rows * t.width, shrink_to_fit=2 * self.rows < self.looked)
                t.data = <uint8_t*><uintptr_t>data.address
        buffers = [valid if t.nulls else None]
        if kind == BYTES and as_views:
            buffers += self.make_views(pieces, name)
            return pa.Array.from_buffers(shown, self.rows, buffers, t.nulls)
        if kind == BYTES:
            buffers += gather_text(pieces, wanted, name)
        elif kind == BITS:
            buffers.append(pa.allocate_buffer((self.rows + 7) // 8))
            packed = <uint8_t*><uintptr_t>buffers[1].address
            with nogil:
                pack_bits(t.data, packed, self.rows)
        else:
            buffers.append(data)
        return make_array(wanted, self.rows, buffers, t.nulls)

    cdef list make_views(self, vector[Piece]& pieces, str name):
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
        """Whether the text of a visit is best left where it lies, in the mapped file (scan lines of `bench core`)."""
        cdef Py_buffer* view = &self.views[v.part]
        if v.page == NULL or v.page.encoding != DELTA_LENGTH or wanted.id == arrow.Type_DICTIONARY:
            return False
        if v.texts < <const uint8_t*>view.buf or v.texts >= <const uint8_t*>view.buf + view.len:
            return False  # unpacked into memory of ours
        return 2 * <uint64_t>(v.hi - v.lo) >= v.page.values and v.ends[v.count] >= SHARED_TEXT_BYTES

    cdef object share_text(self, Visit* v, object wanted, Target* t, object valid, str name):
        """A column whose bytes are the file's: only offsets are made."""
        cdef int64_t before = v.lo, inside = v.hi - v.lo, i, position
        cdef int width = 8 if wanted.id in (arrow.Type_LARGE_STRING, arrow.Type_LARGE_BINARY) else 4
        cdef uint8_t* out
        cdef const uint8_t* levels = v.levels
        cdef uint64_t size = v.page.levels, end
        cdef int rc = OK
        if v.optional:
            if levels == NULL:
                levels, size = v.values + 4, load_u32(v.values)
            rc = read_levels(levels, levels + size, v, t, 0, &before, &inside)
        if rc == OK and before + inside > v.count:
            rc = BAD_VALUES
        if rc:
            raise make_error(rc, v.part, f"part {v.part}, column {name!r}")
        offsets = pa.allocate_buffer((self.rows + 1) * width)
        out = <uint8_t*><uintptr_t>offsets.address
        position = before
        if width == 4 and not t.nulls:
            memcpy(out, v.ends + position, (self.rows + 1) * sizeof(uint32_t))
        else:
            for i in range(self.rows + 1):
                end = v.ends[position]
                memcpy(out + i * width, &end, width)
                if i < self.rows and (not t.nulls or is_set(t.valid, i)):
                    position += 1
        data = pa.py_buffer(self.files[v.part]).slice(v.texts - <const uint8_t*>self.views[v.part].buf, v.ends[v.count])
        return pa.Array.from_buffers(wanted, self.rows, [valid if t.nulls else None, offsets, data], t.nulls)

    cdef int prepare(self, str name, object wanted, Target* t, list held) except -1:
        """Check that every part can give the column, and lay out the validity bits if some row may be null."""
        cdef FileLayout layout
        cdef const Conversion* fit
        cdef int part = 0, kind = UNKNOWN
        cdef bint optional = False
        self.slots.resize(len(self.layouts))
        for part in range(len(self.layouts)):
            layout = <FileLayout>self.layouts[part]
            slot = layout.slots.get(name)
            if slot is not None:
                self.slots[part] = slot
            else:
                reason = layout.declined.get(name, "it is not in the layout")
                error = Declined(f"part {part}, column {name!r}: {reason}")
                error.part = part
                raise error
            if layout.schema is not self.schema and layout.schema.field(name).type != wanted:
                raise TypeError(f"part {part} was opened for another type of column {name!r} than {wanted}")
            if slot == ABSENT:
                optional = True
                continue
            fit = &layout.conversions[<int>slot]
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


cdef uint32_t page_crc(const uint8_t* p, uint64_t size):
    with nogil:
        return crc32_of(p, size)


cdef str describe_place(int part, str name, size_t group):
    return f"part {part}, column {name!r}, row group {group}"


cdef inline size_t find_page(const vector[Page]& pages, int64_t row) noexcept nogil:
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

cdef Reader make_reader(object files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, schema):
    """A reader that wants the ranges, in order."""
    cdef Reader reader = Reader()
    cdef Py_ssize_t i
    if part.shape[0] != start.shape[0] or part.shape[0] != stop.shape[0]:
        raise ValueError("each range has a part, a start and a stop")
    reader.schema = schema
    for file, layout in files:
        reader.add_file(file, <FileLayout?>layout)
    for i in range(part.shape[0]):
        if part[i] < 0 or part[i] >= len(reader.layouts):
            raise ValueError(f"there is no part {part[i]}")
        reader.add_range(<FileLayout>reader.layouts[part[i]], <int>part[i], start[i], stop[i])
    return reader


def read_ranges(parts, columns, schema):
    """Read the row ranges of all parts, in order, as a table of one chunk per column."""
    cdef Reader reader = Reader()
    cdef int part = 0
    reader.schema = schema
    for file, layout, starts, stops in parts:
        reader.add_file(file, layout)
        starts = starts.tolist() if hasattr(starts, "tolist") else starts
        stops = stops.tolist() if hasattr(stops, "tolist") else stops
        for start, stop in zip(starts, stops, strict=True):
            reader.add_range(<FileLayout?>layout, part, start, stop)
        part += 1
    return reader.read_table(columns)


def read_spans(files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, columns, schema):
    """Read many row ranges, in order, as a table of one chunk per column."""
    cdef Reader reader = make_reader(files, part, start, stop, schema)
    prefetch_columns(reader, list(columns))
    return reader.read_table(columns)


def read_live(files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, limits, wanted, schema):
    """Read those rows of many ranges that are within limits, in order, as one batch; of the others only what decides."""
    cdef Reader reader = make_reader(files, part, start, stop, schema)
    prefetch_columns(reader, [*(limit[0] for limit in limits), *wanted.names])
    for name, after, upto in limits:
        reader.filter_rows(name, after, upto)
    return reader.read_batch(wanted)


def read_rows(file, layout, start, stop, wanted, schema):
    """Read one row range of one file as one batch; arguments and errors as of `read_live`."""
    cdef Reader reader = Reader()
    reader.schema = schema
    reader.add_file(file, <FileLayout?>layout)
    reader.add_range(<FileLayout>layout, 0, start, stop)
    return reader.read_batch(wanted)

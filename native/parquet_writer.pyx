# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# distutils: language = c++
"""Writes rows of Arrow columns, in a given order, as plain Parquet pages: gathered, checked and hashed in one pass.

It exists because an append spends most of its time copying rows: into sorted order, into encoded pages, into the file,
and back out of it for the digest (the update lines of `bench core`). Here each value is copied once, from where it lies
into a buffer that stays in the cache, and from there into the file. A first version, without checksums of pages, took
4.8 ms of processor time for 8 MB of 1000-byte rows, against 12 for take and pyarrow's writer and 1.2 for the digest.

Only pages, chunks and row groups are written here. What a schema means is taken, byte by byte, from the footer that
pyarrow writes for an empty file of it. Types that need more than that are declined, and pyarrow writes the file: there is
no second writer for nested or dictionary columns.
"""
include "common.pxi"
include "arrow_column.pxi"

from libc.stdlib cimport free, realloc
from libc.string cimport memmove

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyarrow import lib as arrow

from windrow.native.parquet_reader import Declined

include "crc.pxi"
include "parquet_thrift.pxi"
include "parquet_encode.pxi"

cdef enum:
    FLUSH_BYTES = 262144


cdef dict PHYSICAL = {
    "BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7,
}
cdef dict TEXTS = {
    arrow.Type_STRING: TEXT, arrow.Type_BINARY: TEXT, arrow.Type_LARGE_STRING: LARGE, arrow.Type_LARGE_BINARY: LARGE,
}
cdef dict NARROW = {
    arrow.Type_INT8: SIGNED, arrow.Type_INT16: SIGNED, arrow.Type_UINT8: UNSIGNED, arrow.Type_UINT16: UNSIGNED,
}
cdef frozenset UNSIGNED_TYPES = frozenset({
    arrow.Type_UINT8, arrow.Type_UINT16, arrow.Type_UINT32, arrow.Type_UINT64,
})
# Stored as they lie in memory. Seconds are missing where Parquet has none, and days in milliseconds: pyarrow converts.
cdef frozenset SAME = frozenset({
    arrow.Type_INT32, arrow.Type_INT64, arrow.Type_UINT32, arrow.Type_UINT64, arrow.Type_HALF_FLOAT, arrow.Type_FLOAT,
    arrow.Type_DOUBLE, arrow.Type_DATE32, arrow.Type_TIME32, arrow.Type_TIME64, arrow.Type_TIMESTAMP,
    arrow.Type_DURATION, arrow.Type_FIXED_SIZE_BINARY,
})
cdef frozenset NO_SECONDS = frozenset({arrow.Type_TIME32, arrow.Type_TIMESTAMP})
cdef frozenset DECIMALS = frozenset({
    arrow.Type_DECIMAL32, arrow.Type_DECIMAL64, arrow.Type_DECIMAL128, arrow.Type_DECIMAL256,
})
cdef frozenset NUMBERS = frozenset({
    *NARROW, arrow.Type_INT32, arrow.Type_INT64, arrow.Type_UINT32, arrow.Type_UINT64, arrow.Type_DATE32,
    arrow.Type_TIME32, arrow.Type_TIME64, arrow.Type_TIMESTAMP, arrow.Type_DURATION,
})
cdef dict PROBLEMS = {
    BAD_ORDER: (IndexError, "the order names rows that the columns do not have"),
    BAD_OFFSETS: (ValueError, "offsets point outside of the data"),
    TOO_LARGE: (ValueError, "a value of 2 GB or more does not fit into a page"),
    NULL_IN_REQUIRED: (ValueError, "a null in a column that is declared as never null"),
    NO_MEMORY: (MemoryError, "no memory for a page"),
}


cdef object problem(int rc, str column):
    kind, words = PROBLEMS[rc]
    return kind(f"column {column!r}: {words}")


cdef class Template:
    """What pyarrow's footer of an empty file says of a schema: its bytes before and after the row groups, its columns."""

    cdef bytes head, tail
    cdef list columns

    def __init__(self, schema):
        sink = pa.BufferOutputStream()
        pq.ParquetWriter(sink, schema, version="2.6", write_statistics=False).close()
        raw = sink.getvalue().to_pybytes()
        size = int.from_bytes(raw[len(raw) - 8:len(raw) - 4], "little")
        self.head, self.tail = split_footer(raw[len(raw) - 8 - size:len(raw) - 8])
        described = pq.read_metadata(pa.BufferReader(raw)).schema
        if len(described) != len(schema):
            raise Declined("nested columns are left to pyarrow")
        self.columns = [describe(schema.field(i), described.column(i)) for i in range(len(schema))]


cdef tuple describe(field, stored):
    """(kind, bytes in memory, bytes stored, physical type, optional, without sign, may have extremes) of a column."""
    kind = field.type
    physical = PHYSICAL.get(stored.physical_type, -1)
    optional = stored.max_definition_level
    if physical < 0 or optional > 1 or stored.max_repetition_level:
        raise Declined(f"column {field.name!r} of type {kind} is left to pyarrow")
    if kind.id in TEXTS and physical == 6:
        return TEXTS[kind.id], 0, 0, physical, optional, False, False
    if kind.id == arrow.Type_BOOL and physical == 0:
        return BIT, 0, 0, physical, optional, False, False
    if kind.id in NARROW and physical == 1:
        return NARROW[kind.id], kind.bit_width // 8, 4, physical, optional, kind.id in UNSIGNED_TYPES, True
    width = {1: 4, 2: 8, 4: 4, 5: 8, 7: stored.length}.get(physical, 0)
    if kind.id in DECIMALS and physical == 7 and 0 < width <= kind.bit_width // 8:
        return SWAPPED, kind.bit_width // 8, width, physical, optional, False, False
    if kind.id in SAME and kind.bit_width == 8 * width and not (kind.id in NO_SECONDS and kind.unit == "s"):
        return AS_IS, width, width, physical, optional, kind.id in UNSIGNED_TYPES, kind.id in NUMBERS
    raise Declined(f"column {field.name!r} of type {kind} is left to pyarrow")


cdef tuple split_footer(bytes footer):
    """The bytes of fields 1 and 2, and of those after field 4, of a FileMetaData without row groups."""
    cdef const uint8_t* start = <const uint8_t*><const char*>footer
    cdef Cursor c
    cdef int ident = 0, kind = 0
    cdef Py_ssize_t end = 0
    cdef dict fields = {}
    c.p, c.end, c.bad = start, start + len(footer), False
    while next_field(&c, &ident, &kind):
        skip_value(&c, kind, 0, False)
        fields[ident] = end, c.p - start
        end = c.p - start
    if c.bad or not {2, 3, 4} <= fields.keys() or fields[3][0] != fields[2][1] or fields[4][0] != fields[3][1]:
        raise Declined("the footer that pyarrow writes is not understood")
    return footer[:fields[2][1]], footer[fields[4][1]:end]


cdef dict templates = {}


cdef Template template_of(schema):
    serialized = schema.serialize().to_pybytes()
    template = templates.get(serialized)
    if template is None:
        if len(templates) >= 256:
            templates.clear()
        try:
            template = Template(schema)
        except Declined as error:
            template = str(error)
        templates[serialized] = template
    if isinstance(template, str):
        raise Declined(template)
    return template


cdef class PageWriter:
    """One Parquet file under way.

    Args:
        sink: Has `write`, which takes a buffer; it is given pieces of about 256 KB.
        schema: Of the columns.
        extremes: Names of columns whose least and greatest value is kept for each row group: whole numbers and times.

    Raises:
        Declined: pyarrow has to write files of this schema.
    """

    cdef object sink, hasher
    cdef Template template
    cdef list names
    cdef set extremes
    cdef Buffer page, meta, lengths
    cdef int64_t groups
    cdef readonly int64_t rows
    cdef readonly int64_t size
    cdef readonly object digest

    def __cinit__(self, sink, schema, extremes=()):
        self.sink = sink
        self.template = template_of(schema)
        self.names = schema.names
        self.extremes = {schema.names.index(name) for name in extremes}
        for number in self.extremes:
            if not self.template.columns[number][6]:
                raise Declined(f"the least and greatest of column {self.names[number]!r} are left to pyarrow")
        self.hasher = xxhash.xxh3_64()
        self.digest = None
        if reserve(&self.page, 2 * FLUSH_BYTES) or reserve(&self.meta, 1 << 16) or reserve(&self.lengths, 1 << 12):
            raise MemoryError()
        memcpy(self.page.data, b"PAR1", 4)
        self.page.size = 4

    def __dealloc__(self):
        free(self.page.data)
        free(self.meta.data)
        free(self.lengths.data)

    cdef int flush(self) except -1:
        if self.page.size:
            piece = <uint8_t[:self.page.size]>self.page.data
            self.hasher.update(piece)
            self.sink.write(piece)
            self.size += self.page.size
            self.page.size = 0
        return 0

    def add_group(self, list columns, const int64_t[::1] order):
        """Write one row group: the rows `order` of the columns, which are arrays of the schema's types."""
        cdef int64_t rows = order.shape[0], start = self.size + self.page.size, before
        cdef Buffer* m = &self.meta
        cdef StoredColumn c
        cdef int number
        if self.digest is not None:
            raise ValueError("the file is closed")
        if len(columns) != len(self.names):
            raise ValueError(f"{len(columns)} columns were given for a schema of {len(self.names)}")
        if rows == 0:
            return
        if reserve(m, 64):
            raise MemoryError()
        put_field(m, 1, T_LIST)
        put_list(m, len(columns), T_STRUCT)
        for number in range(len(columns)):
            self.open_column(columns[number], number, &c)
            if check_order(&order[0], rows, c.values.length):
                raise problem(BAD_ORDER, self.names[number])
            before = self.size + self.page.size
            self.add_pages(&c, &order[0], rows, number)
            self.add_chunk(&c, &order[0], rows, number, before)
        put_number(m, 1, T_I64, self.size + self.page.size - start)
        put_number(m, 1, T_I64, rows)
        put_number(m, 2, T_I64, start)
        put_number(m, 1, T_I64, self.size + self.page.size - start)
        put_byte(m, 0)
        self.groups += 1
        self.rows += rows

    cdef int add_pages(self, const StoredColumn* c, const int64_t* order, int64_t rows, int number) except -1:
        cdef int64_t done = 0, taken = 0, present = 0, values = 0
        cdef int rc = FINE
        while done < rows:
            with nogil:
                while done < rows and self.page.size < FLUSH_BYTES:
                    rc = measure(c, order + done, rows - done, &self.lengths, &taken, &present, &values)
                    if rc == FINE:
                        rc = put_page(&self.page, c, order + done, taken, present, values, &self.lengths)
                    if rc:
                        break
                    done += taken
            if rc:
                raise problem(rc, self.names[number])
            if self.page.size >= FLUSH_BYTES:
                self.flush()
        return 0

    cdef int add_chunk(self, const StoredColumn* c, const int64_t* order, int64_t rows, int number, int64_t start) except -1:
        """Note the column chunk that was just written for the footer."""
        cdef Buffer* m = &self.meta
        cdef int64_t size = self.size + self.page.size - start
        cdef bytes name = self.names[number].encode()
        cdef Extremes extremes
        if reserve(m, 256 + len(name)):
            raise MemoryError()
        put_number(m, 2, T_I64, 0)
        put_field(m, 1, T_STRUCT)
        put_number(m, 1, T_I32, c.physical)
        put_field(m, 1, T_LIST)
        put_list(m, 2, T_I32)
        put_zigzag(m, encoding_of(c))
        put_zigzag(m, 3)
        put_field(m, 1, T_LIST)
        put_list(m, 1, T_BINARY)
        put_bytes(m, <const uint8_t*><const char*>name, len(name))
        put_number(m, 1, T_I32, 0)
        put_number(m, 1, T_I64, rows)
        put_number(m, 1, T_I64, size)
        put_number(m, 1, T_I64, size)
        put_number(m, 2, T_I64, start)
        if c.extremes:
            with nogil:
                find_extremes(c, order, rows, &extremes)
                put_statistics(m, c, &extremes)
        put_byte(m, 0)
        put_byte(m, 0)
        return 0

    cdef int open_column(self, array, int number, StoredColumn* c) except -1:
        """Where the values of an array lie; everything that the kernels rely on is checked here."""
        kind, width, stored, physical, optional, unsigned, _ = self.template.columns[number]
        c.kind, c.stored, c.physical, c.optional, c.extremes = kind, stored, physical, optional, number in self.extremes
        if c.kind >= TEXT:
            open_text(array, 4 if c.kind == TEXT else 8, &c.values)
        elif c.kind == BIT:
            open_booleans(array, &c.values)
        else:
            open_fixed(array, width, &c.values)
        c.values.unsigned = unsigned
        return 0

    def close(self):
        """Write the footer; `size` and `digest` (XXH3 of all bytes) are then of the whole file."""
        cdef Buffer* b = &self.page
        cdef int64_t begin
        cdef uint32_t length
        if self.digest is not None:
            return
        self.flush()
        head, tail = self.template.head, self.template.tail
        if reserve(b, len(head) + len(tail) + self.meta.size + 64):
            raise MemoryError()
        begin = b.size
        memcpy(b.data + b.size, <const char*>head, len(head))
        b.size += len(head)
        put_number(b, 1, T_I64, self.rows)
        put_field(b, 1, T_LIST)
        put_list(b, self.groups, T_STRUCT)
        memcpy(b.data + b.size, self.meta.data, self.meta.size)
        b.size += self.meta.size
        memcpy(b.data + b.size, <const char*>tail, len(tail))
        b.size += len(tail)
        put_byte(b, 0)
        length = <uint32_t>(b.size - begin)
        memcpy(b.data + b.size, &length, 4)
        memcpy(b.data + b.size + 4, b"PAR1", 4)
        b.size += 8
        self.flush()
        self.digest = self.hasher.hexdigest()


cdef inline void put_list(Buffer* b, int64_t size, int kind) noexcept nogil:
    if size < 15:
        put_byte(b, (<int>size << 4) | kind)
    else:
        put_byte(b, 0xF0 | kind)
        put_varint(b, <uint64_t>size)


cdef inline void put_bytes(Buffer* b, const uint8_t* data, int64_t size) noexcept nogil:
    put_varint(b, <uint64_t>size)
    memcpy(b.data + b.size, data, <size_t>size)
    b.size += size


cdef void put_statistics(Buffer* b, const StoredColumn* c, Extremes* extremes) noexcept nogil:
    """Nulls, greatest, least, and that both are exact."""
    cdef int64_t low = extremes.low, high = extremes.high
    if c.values.unsigned:
        low, high = low ^ INT64_MIN, high ^ INT64_MIN
    put_field(b, 3, T_STRUCT)
    put_number(b, 3, T_I64, extremes.nulls)
    if extremes.any:
        put_field(b, 2, T_BINARY)
        put_bytes(b, <const uint8_t*>&high, c.stored)
        put_field(b, 1, T_BINARY)
        put_bytes(b, <const uint8_t*>&low, c.stored)
        put_field(b, 1, T_TRUE)
        put_field(b, 1, T_TRUE)
    put_byte(b, 0)


def crc32(data):
    """The checksum of a page, for tests."""
    cdef const uint8_t[::1] view = data
    return crc32_of(&view[0], view.shape[0]) if view.shape[0] else 0

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The directory of a segment: an immutable blob that finds the rows of a key, or of a range of keys, among its sorted rows.

A lookup never misses a row; it reads only the entries that a binary search meets, and refuses a damaged blob without leaving its bounds.
"""

# The blob, little-endian, at any alignment:
#    0  4  magic "WDIR"
#    4  1  version, 1
#    5  1  flags: 1 dense, 2 inexact (some key was cut), 4 fixed (all stored keys have the same width, there are no ends)
#    6  2  width of a stored key if fixed, else 0
#    8  4  rows of the segment
#   12  4  entries n
#   16  2  size of the prefix that all keys share (stored once, here only)
#   18  2  most bytes of a key that are kept behind the prefix
#   20  4  size of the stored keys in all
#   24     prefix
#          n x 4      first row of each entry
#          (m+1) x 4  ends of the stored keys, first one 0, unless fixed
#          m keys     without the prefix
# Dense: m = n; entry i is a key, cut to `most bytes`, and the first of the rows that hold it.
# Sparse: m = n + 1; entry i is a block of rows whose keys are all >= stored key i, and those of the blocks before are < it:
# the shortest such separator (the first one is the first key itself). Stored key n is the last row's key, cut.
# Rows whose keys are equal after the cut are always in one entry, so that stored keys strictly ascend (but for key n).

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free
from libcpp.vector cimport vector

include "common.pxi"

from collections import namedtuple

import numpy as np

cdef extern from *:
    """
    #include <algorithm>
    #include <vector>
    struct Span { int64_t start, stop; bool exact; };
    static inline void sort_spans(std::vector<Span>& spans) {
        std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.start < b.start; });
    }
    """
    struct Span:
        int64_t start
        int64_t stop
        bint exact
    void sort_spans(vector[Span]& spans) nogil

cdef enum:
    HEADER = 24
    VERSION = 1
    DENSE = 1
    INEXACT = 2
    FIXED = 4
    TINY = 32  # rows up to which a dense one costs nothing

cdef const char* MAGIC = b"WDIR"

cdef struct Blob:
    const uint8_t* data
    const uint8_t* prefix
    const uint8_t* firsts
    const uint8_t* ends
    const uint8_t* keys
    int64_t size
    int64_t rows
    int64_t entries
    int64_t stored
    int64_t prefix_size
    int64_t width
    int64_t most
    int64_t keys_size
    bint dense
    bint inexact
    bint fixed

cdef struct Bound:
    const uint8_t* data
    int64_t size  # -1: unbounded

Ranges = namedtuple("Ranges", ("blob", "start", "stop", "exact"), module=__name__)
Ranges.__doc__ = "Candidate rows as parallel arrays: rows [start, stop) of a blob, all of them matching where exact."


# Writing of directory.pyx: where entries begin, and the bytes of the blob.


cdef int64_t shared_prefix(const Keys* keys, int64_t most) noexcept nogil:
    """How many bytes, up to `most`, all of some sorted keys share."""
    cdef int64_t first_size, last_size
    cdef const uint8_t* first
    cdef const uint8_t* last
    if keys.count == 0:
        return 0
    first = key_at(keys, 0, &first_size)
    last = key_at(keys, keys.count - 1, &last_size)
    return common_size(first, first_size if first_size < most else most, last, last_size)


cdef int64_t count_distinct(const Keys* keys, int64_t* violated) noexcept nogil:
    """Counts distinct keys; `violated` becomes the first row that is out of order."""
    cdef int64_t row, size, last_size, distinct = keys.count > 0
    cdef const uint8_t* key
    cdef const uint8_t* last
    cdef int order
    if keys.count == 0:
        return 0
    last = key_at(keys, 0, &last_size)
    for row in range(1, keys.count):
        key = key_at(keys, row, &size)
        order = compare_bytes(last, last_size, key, size)
        if order > 0:
            violated[0] = row
            return distinct
        distinct += order != 0
        last, last_size = key, size
    return distinct


cdef void collect(
    const Keys* keys, int64_t prefix, int64_t max_key, int64_t block_rows,
    vector[int64_t]* firsts, vector[int64_t]* sizes, bint* inexact
) noexcept nogil:
    """Finds where entries begin and how many bytes behind the prefix each keeps; block_rows 0 gives a dense directory."""
    cdef int64_t row, size, last_size = 0, shared, most = prefix + max_key
    cdef int64_t begin = 0, run = 0  # of the block, of the run of equal keys
    cdef int64_t run_separator = 0
    cdef const uint8_t* key
    cdef const uint8_t* last = NULL
    for row in range(keys.count + 1):
        size = 0
        key = NULL
        shared = 0
        if row < keys.count:
            key = key_at(keys, row, &size)
            if size > most:
                inexact[0] = True
                size = most
            if row > 0:
                shared = common_size(last, last_size, key, size)
                if shared == size and size == last_size:
                    continue
        # The run [run, row) of equal (cut) keys has ended: it begins an entry, or goes on with the block.
        if row > 0 and (run == 0 or row - begin > block_rows):
            begin = run
            firsts.push_back(run)
            sizes.push_back(last_size - prefix if block_rows == 0 or run == 0 else run_separator - prefix)
        run = row
        run_separator = shared + 1
        last, last_size = key, size


cdef object _pack(
    const Keys* keys, int64_t prefix, int64_t max_key, bint dense, bint inexact,
    vector[int64_t]* firsts, vector[int64_t]* sizes
):
    cdef int64_t entries = firsts.size(), i, end = 0, size
    cdef const uint8_t* key
    if entries and not dense:
        key = key_at(keys, keys.count - 1, &size)
        size = size - prefix if size - prefix < max_key else max_key
        sizes.push_back(size)
    cdef int64_t stored = sizes.size()
    cdef bint fixed = True
    for i in range(stored):
        end += sizes[0][i]
        fixed = fixed and sizes[0][i] == sizes[0][0]
    if end > UINT32_MAX:
        raise ValueError(f"a directory with {end} bytes of keys is too large")
    cdef int64_t total = HEADER + prefix + 4 * entries + (0 if fixed else 4 * (stored + 1)) + end
    blob = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* out = <uint8_t*>PyBytes_AS_STRING(blob)
    cdef uint8_t* to
    cdef uint8_t* ends
    with nogil:
        memcpy(out, MAGIC, 4)
        out[4] = VERSION
        out[5] = (DENSE if dense else 0) | (INEXACT if inexact else 0) | (FIXED if fixed else 0)
        store_u16(out + 6, <uint32_t>sizes[0][0] if fixed and stored else 0)
        store_u32(out + 8, <uint32_t>keys.count)
        store_u32(out + 12, <uint32_t>entries)
        store_u16(out + 16, <uint32_t>prefix)
        store_u16(out + 18, <uint32_t>max_key)
        store_u32(out + 20, <uint32_t>end)
        to = out + HEADER
        if prefix > 0:
            memcpy(to, key_at(keys, 0, &size), <size_t>prefix)
            to += prefix
        for i in range(entries):
            store_u32(to, <uint32_t>firsts[0][i])
            to += 4
        ends = to
        if not fixed:
            store_u32(ends, 0)
            to += 4 * (stored + 1)
        end = 0
        for i in range(stored):
            key = key_at(keys, firsts[0][i] if i < entries else keys.count - 1, &size)
            if sizes[0][i] > 0:
                memcpy(to + end, key + prefix, <size_t>sizes[0][i])
            end += sizes[0][i]
            if not fixed:
                store_u32(ends + 4 * (i + 1), <uint32_t>end)
    return blob


# Reading of directory.pyx: every offset of a blob is checked before it is followed, and no blob is trusted.


cdef const char* open_blob(const uint8_t* data, int64_t size, Blob* blob) noexcept nogil:
    """Checks a blob's header and fills `blob`; gives what is wrong, or NULL."""
    cdef int64_t position
    if size < HEADER or memcmp(data, MAGIC, 4) != 0:
        return b"is not a directory"
    if data[4] != VERSION:
        return b"has an unknown version"
    blob.data = data
    blob.size = size
    blob.dense = (data[5] & DENSE) != 0
    blob.inexact = (data[5] & INEXACT) != 0
    blob.fixed = (data[5] & FIXED) != 0
    blob.width = load_u16(data + 6)
    blob.rows = load_u32(data + 8)
    blob.entries = load_u32(data + 12)
    blob.prefix_size = load_u16(data + 16)
    blob.most = load_u16(data + 18)
    blob.keys_size = load_u32(data + 20)
    blob.stored = blob.entries + (not blob.dense and blob.entries > 0)
    if data[5] > (DENSE | INEXACT | FIXED) or blob.entries > blob.rows or (blob.rows > 0 and blob.entries == 0):
        return b"has a damaged header"
    if blob.fixed and blob.keys_size != blob.stored * blob.width:
        return b"has a damaged header"
    position = HEADER
    blob.prefix = data + position
    position += blob.prefix_size
    blob.firsts = data + position
    position += 4 * blob.entries
    blob.ends = data + position
    if not blob.fixed:
        position += 4 * (blob.stored + 1)
    blob.keys = data + position
    if position + blob.keys_size != size:
        return b"has another size than its header says"
    if blob.entries > 0 and load_u32(blob.firsts) != 0:
        return b"does not begin at row 0"
    return NULL


cdef inline const uint8_t* stored_key(const Blob* blob, int64_t entry, int64_t* size) noexcept nogil:
    """A stored key, or NULL where the blob is damaged; `entry` is below blob.stored."""
    cdef int64_t begin, end
    if blob.fixed:
        size[0] = blob.width
        return blob.keys + entry * blob.width
    begin = load_u32(blob.ends + 4 * entry)
    end = load_u32(blob.ends + 4 * entry + 4)
    if begin > end or end > blob.keys_size:
        return NULL
    size[0] = end - begin
    return blob.keys + begin


cdef inline int64_t first_row(const Blob* blob, int64_t entry) noexcept nogil:
    """The first row of an entry, or of the end of the segment."""
    return load_u32(blob.firsts + 4 * entry) if entry < blob.entries else blob.rows


cdef int64_t search(const Blob* blob, const uint8_t* wanted, int64_t wanted_size, bint past_equal) noexcept nogil:
    """Number of entries whose stored key is less than a key (or equal to it, if past_equal); -1 if damaged."""
    cdef int64_t low = 0, high = blob.entries, middle, key_size
    cdef const uint8_t* key
    cdef int order
    while low < high:
        middle = (low + high) >> 1
        key = stored_key(blob, middle, &key_size)
        if key == NULL:
            return -1
        order = compare_bytes(key, key_size, wanted, wanted_size)
        if order < 0 or (past_equal and order == 0):
            low = middle + 1
        else:
            high = middle
    return low


cdef inline bint begins(const uint8_t* start, int64_t start_size, const uint8_t* key, int64_t size) noexcept nogil:
    return start_size <= size and (start_size == 0 or memcmp(start, key, <size_t>start_size) == 0)


cdef int find(const Blob* blob, const Bound* low, const Bound* high, Span* span) noexcept nogil:
    """Finds the rows that may lie in [low, high]: 1 if there are some, 0 if none, -1 if the blob is damaged."""
    cdef const uint8_t* key
    cdef const uint8_t* low_key = low.data
    cdef const uint8_t* high_key = high.data
    cdef int64_t low_size = low.size, high_size = high.size, size, first = 0, last = blob.entries
    cdef int64_t prefix = blob.prefix_size
    cdef int order
    cdef bint bounded_low = low_size > 0, bounded_high = high_size >= 0
    span.exact = True
    if blob.entries == 0:
        return 0
    if bounded_low and bounded_high and compare_bytes(low_key, low_size, high_key, high_size) > 0:
        return 0
    # Every key starts with the prefix: a bound that does not lies before all keys or behind all.
    if prefix > 0 and bounded_low:
        order = compare_bytes(low_key, low_size if low_size < prefix else prefix, blob.prefix, prefix)
        if order > 0:
            return 0
        bounded_low = order == 0
    if prefix > 0 and bounded_high:
        order = compare_bytes(high_key, high_size if high_size < prefix else prefix, blob.prefix, prefix)
        if order < 0:
            return 0
        bounded_high = order == 0
    if bounded_low:
        low_key += prefix
        low_size -= prefix
    if bounded_high:
        high_key += prefix
        high_size -= prefix
        last = search(blob, high_key, high_size, True)
        if last <= 0:
            return <int>last
        # The last key in question: of the last entry, or of the last row.
        key = stored_key(blob, last - 1 if blob.dense else blob.stored - 1, &size)
        if key == NULL:
            return -1
        if not blob.dense and compare_bytes(key, size, high_key, high_size) > 0:
            span.exact = False
        # A cut key stands for all that start with it, and some of those may be beyond the bound.
        if blob.inexact and size == blob.most and begins(key, size, high_key, high_size):
            span.exact = False
    if bounded_low:
        if blob.dense:
            first = search(blob, low_key, low_size, False)
            if first < 0:
                return -1
            if blob.inexact and first > 0:
                key = stored_key(blob, first - 1, &size)
                if key == NULL:
                    return -1
                if size == blob.most and begins(key, size, low_key, low_size):
                    first -= 1
                    span.exact = False
        else:
            key = stored_key(blob, blob.stored - 1, &size)
            if key == NULL:
                return -1
            if compare_bytes(key, size, low_key, low_size) < 0:
                if not (blob.inexact and size == blob.most and begins(key, size, low_key, low_size)):
                    return 0
            first = search(blob, low_key, low_size, True)
            if first < 0:
                return -1
            if first > 0:
                first -= 1
                key = stored_key(blob, first, &size)
                if key == NULL:
                    return -1
                if compare_bytes(key, size, low_key, low_size) != 0:
                    span.exact = False
    if first >= last:
        return 0
    span.start = first_row(blob, first)
    span.stop = first_row(blob, last)
    if span.start >= span.stop or span.stop > blob.rows:
        return -1
    return 1


cdef const char* misfit(const Blob* blob, const Keys* keys, int64_t* entry) noexcept nogil:
    """What is wrong with the first entry that does not fit the keys, or NULL."""
    cdef int64_t i, row, size, stored_size, begin, end, prefix = blob.prefix_size
    cdef const uint8_t* key
    cdef const uint8_t* stored
    for i in range(blob.stored):
        entry[0] = i
        begin = first_row(blob, i) if i < blob.entries else keys.count - 1
        end = first_row(blob, i + 1) if i < blob.entries else keys.count
        if begin >= end or end > keys.count:
            return b"has a wrong first row"
        stored = stored_key(blob, i, &stored_size)
        if stored == NULL or stored_size > blob.most:
            return b"has a damaged key"
        for row in range(begin, end):
            key = key_at(keys, row, &size)
            if size < prefix or (prefix > 0 and memcmp(key, blob.prefix, <size_t>prefix) != 0):
                return b"has rows without the common prefix"
            key += prefix
            size -= prefix
            if size > blob.most:
                if not blob.inexact:
                    return b"has longer keys than the directory admits"
                if blob.dense or i == blob.entries:
                    size = blob.most
            if blob.dense or i == blob.entries:
                if stored_size != size or (size > 0 and memcmp(key, stored, <size_t>size) != 0):
                    return b"has another key than its rows"
            elif compare_bytes(key, size, stored, stored_size) < 0:
                return b"has rows that are less than its key"
        if i > 0 and i < blob.entries:
            key = key_at(keys, begin - 1, &size)
            if compare_bytes(key + prefix, size - prefix, stored, stored_size) >= 0:
                return b"has a key that is not greater than the rows before it"
    return NULL


def build(keys, *, int64_t block_rows=128, int64_t max_key=64, int64_t repeats=32):
    """Makes the directory of a segment from its encoded keys in sorted order."""
    if block_rows < 1:
        raise ValueError(f"block_rows must be positive, not {block_rows}")
    if repeats < 1:
        raise ValueError(f"repeats must be positive, not {repeats}")
    if not 1 <= max_key <= 8192:
        raise ValueError(f"max_key must be from 1 to 8192, not {max_key}")
    cdef Keys view
    keys = open_keys(keys, &view)
    if view.count >= UINT32_MAX:
        raise ValueError(f"a segment of {view.count} rows is too large for a directory")
    cdef int64_t prefix = shared_prefix(&view, 4 * max_key)
    cdef int64_t distinct, violated = -1
    cdef vector[int64_t] firsts
    cdef vector[int64_t] sizes
    cdef bint dense, inexact = False
    with nogil:
        distinct = count_distinct(&view, &violated)
        dense = distinct <= view.count // repeats or view.count <= TINY
        if violated < 0:
            collect(&view, prefix, max_key, 0 if dense else block_rows, &firsts, &sizes, &inexact)
    if violated >= 0:
        raise ValueError(f"keys are not sorted: row {violated} is less than the row before it")
    return _pack(&view, prefix, max_key, dense, inexact, &firsts, &sizes)


cdef int add_spans(
    const Blob* blob, vector[Bound]& lows, vector[Bound]& highs, vector[Span]& spans
) except -2 nogil:
    """Appends to `spans` the merged, ascending candidate rows of all bounds in one blob; -1 if it is damaged."""
    cdef vector[Span] candidates
    cdef Span span
    cdef size_t i, begin = spans.size()
    cdef int outcome
    cdef bint ascending = True
    for i in range(lows.size()):
        outcome = find(blob, &lows[i], &highs[i], &span)
        if outcome < 0:
            return -1
        if outcome:
            ascending = ascending and (candidates.empty() or candidates.back().start <= span.start)
            candidates.push_back(span)
    if not ascending:
        sort_spans(candidates)
    for i in range(candidates.size()):
        if spans.size() > begin and candidates[i].start <= spans.back().stop:
            spans.back().exact = spans.back().exact and candidates[i].exact
            if candidates[i].stop > spans.back().stop:
                spans.back().stop = candidates[i].stop
        else:
            spans.push_back(candidates[i])
    return 0


cdef int open_bounds(bounds, bint open_ended, vector[Bound]* out) except -1:
    cdef Bound bound
    for value in bounds:
        if value is None and open_ended:
            bound.data = NULL
            bound.size = -1
        elif isinstance(value, bytes):
            bound.data = <const uint8_t*>PyBytes_AS_STRING(value)
            bound.size = PyBytes_GET_SIZE(value)
        else:
            raise TypeError(f"a bound must be bytes, not {type(value).__name__}")
        out.push_back(bound)
    return 0


def lookup(blobs, lows, highs):
    """Finds the rows of each directory that may lie in any of the inclusive key ranges; a high of None is unbounded."""
    # Tuples keep the bounds alive while the GIL is released.
    blobs, lows, highs = tuple(blobs), tuple(lows), tuple(highs)
    if len(lows) != len(highs):
        raise ValueError(f"{len(lows)} lower bounds and {len(highs)} upper bounds")
    cdef vector[Bound] low_bounds, high_bounds
    open_bounds(lows, False, &low_bounds)
    open_bounds(highs, True, &high_bounds)
    cdef int64_t count = len(blobs), i, opened = 0, failed = -1
    cdef vector[Span] spans
    cdef vector[int32_t] owners
    cdef Blob blob
    cdef const char* wrong = NULL
    cdef Py_buffer* buffers = <Py_buffer*>calloc(count + 1, sizeof(Py_buffer))
    if buffers == NULL:
        raise MemoryError
    try:
        for i in range(count):
            PyObject_GetBuffer(blobs[i], &buffers[i], PyBUF_SIMPLE)
            opened += 1
            prefetch(buffers[i].buf)
        with nogil:
            for i in range(count):
                wrong = open_blob(<const uint8_t*>buffers[i].buf, buffers[i].len, &blob)
                if wrong == NULL and add_spans(&blob, low_bounds, high_bounds, spans) < 0:
                    wrong = b"has damaged entries"
                if wrong != NULL:
                    failed = i
                    break
                owners.resize(spans.size(), <int32_t>i)
    finally:
        for i in range(opened):
            PyBuffer_Release(&buffers[i])
        free(buffers)
    if failed >= 0:
        raise ValueError(f"directory {failed} {wrong.decode()}")
    return _ranges(spans, owners)


cdef object _ranges(vector[Span]& spans, vector[int32_t]& owners):
    cdef int64_t count = spans.size(), i
    result = Ranges(np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_))
    cdef int32_t[::1] blob = result.blob
    cdef int64_t[::1] start = result.start, stop = result.stop
    cdef uint8_t[::1] exact = result.exact.view(np.uint8)
    for i in range(count):
        blob[i] = owners[i]
        start[i] = spans[i].start
        stop[i] = spans[i].stop
        exact[i] = spans[i].exact
    return result


def describe(blob):
    """Says what a directory is: its rows, entries, size, and whether it is dense and exact."""
    cdef const uint8_t[::1] data = memoryview(blob).cast("B")
    cdef Blob view
    cdef const char* wrong = open_blob(&data[0] if data.shape[0] else NULL, data.shape[0], &view)
    if wrong != NULL:
        raise ValueError(f"the directory {wrong.decode()}")
    return {
        "rows": view.rows,
        "entries": view.entries,
        "dense": bool(view.dense),
        "exact": bool(view.dense and not view.inexact),
        "bytes": view.size,
    }


def find_extremes(blob):
    """The least key of a directory and what its greatest key begins with; either may be cut. None if it has no rows."""
    cdef const uint8_t[::1] data = memoryview(blob).cast("B")
    cdef Blob view
    cdef const uint8_t* first
    cdef const uint8_t* last
    cdef int64_t first_size = 0, last_size = 0
    cdef const char* wrong = open_blob(&data[0] if data.shape[0] else NULL, data.shape[0], &view)
    if wrong != NULL:
        raise ValueError(f"the directory {wrong.decode()}")
    if view.stored == 0:
        return None
    first, last = stored_key(&view, 0, &first_size), stored_key(&view, view.stored - 1, &last_size)
    if first == NULL or last == NULL:
        raise ValueError("the directory has damaged entries")
    prefix = PyBytes_FromStringAndSize(<const char*>view.prefix, view.prefix_size)
    return (
        prefix + PyBytes_FromStringAndSize(<const char*>first, first_size),
        prefix + PyBytes_FromStringAndSize(<const char*>last, last_size),
    )


def verify(blob, keys):
    """Says in a sentence what in a directory does not fit the sorted keys of its segment, or gives None."""
    cdef const uint8_t[::1] data = memoryview(blob).cast("B")
    cdef Blob view
    cdef Keys rows
    cdef int64_t violated = -1, entry = -1
    cdef const char* wrong = open_blob(&data[0] if data.shape[0] else NULL, data.shape[0], &view)
    if wrong != NULL:
        return f"the directory {wrong.decode()}"
    keys = open_keys(keys, &rows)
    if rows.count != view.rows:
        return f"the directory is of {view.rows} rows and the segment has {rows.count}"
    with nogil:
        count_distinct(&rows, &violated)
        if violated < 0:
            wrong = misfit(&view, &rows, &entry)
    if violated >= 0:
        return f"the segment is not sorted: row {violated} is less than the row before it"
    return None if wrong == NULL else f"entry {entry} of the directory {wrong.decode()}"

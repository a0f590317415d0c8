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
include "encoded.pxi"

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


include "directory_build.pxi"
include "directory_search.pxi"


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
    cdef vector[Span] found
    cdef Span span
    cdef size_t at, begin = spans.size()
    cdef int outcome
    cdef bint ascending = True
    for at in range(lows.size()):
        outcome = find(blob, &lows[at], &highs[at], &span)
        if outcome < 0:
            return -1
        if outcome:
            ascending = ascending and (found.empty() or found.back().start <= span.start)
            found.push_back(span)
    if not ascending:
        sort_spans(found)
    for at in range(found.size()):
        if spans.size() > begin and found[at].start <= spans.back().stop:
            spans.back().exact = spans.back().exact and found[at].exact
            if found[at].stop > spans.back().stop:
                spans.back().stop = found[at].stop
        else:
            spans.push_back(found[at])
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
    cdef int64_t count = len(blobs), at, opened = 0, failed = -1
    cdef vector[Span] spans
    cdef vector[int32_t] owners
    cdef Blob blob
    cdef const char* wrong = NULL
    cdef Py_buffer* buffers = <Py_buffer*>calloc(count + 1, sizeof(Py_buffer))
    if buffers == NULL:
        raise MemoryError
    try:
        for at in range(count):
            PyObject_GetBuffer(blobs[at], &buffers[at], PyBUF_SIMPLE)
            opened += 1
            prefetch(buffers[at].buf)
        with nogil:
            for at in range(count):
                wrong = open_blob(<const uint8_t*>buffers[at].buf, buffers[at].len, &blob)
                if wrong == NULL and add_spans(&blob, low_bounds, high_bounds, spans) < 0:
                    wrong = b"has damaged entries"
                if wrong != NULL:
                    failed = at
                    break
                owners.resize(spans.size(), <int32_t>at)
    finally:
        for at in range(opened):
            PyBuffer_Release(&buffers[at])
        free(buffers)
    if failed >= 0:
        raise ValueError(f"directory {failed} {wrong.decode()}")
    return _ranges(spans, owners)


cdef object _ranges(vector[Span]& spans, vector[int32_t]& owners):
    cdef int64_t count = spans.size(), at
    result = Ranges(np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.bool_))
    cdef int32_t[::1] blob = result.blob
    cdef int64_t[::1] start = result.start, stop = result.stop
    cdef uint8_t[::1] exact = result.exact.view(np.uint8)
    for at in range(count):
        blob[at] = owners[at]
        start[at] = spans[at].start
        stop[at] = spans[at].stop
        exact[at] = spans[at].exact
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

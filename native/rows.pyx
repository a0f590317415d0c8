# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Arithmetic over the rows of a batch: slots, reasons for rejection, order, counts and digests.

Times are int64 microseconds, and INT64_MAX as an expiry means that a row never expires; every function is one pass or one sort.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cython.operator cimport dereference
from libc.stdlib cimport calloc, free, malloc
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

include "common.pxi"

import numpy as np

cdef extern from *:
    """
    static const int64_t DECADE = 315576000000000LL;  // microseconds
    static inline bool subtract_overflows(int64_t a, int64_t b, int64_t* result) {
        return __builtin_sub_overflow(a, b, result);
    }
    static inline int64_t wide_slot(int64_t time, int64_t origin, int64_t delta) {
        __int128 distance = (__int128)time - origin;
        __int128 slot = distance / delta + (distance % delta > 0);
        return slot > INT64_MAX ? INT64_MAX : slot < INT64_MIN ? INT64_MIN : (int64_t)slot;
    }
    static inline int highest_bit(uint64_t value) { return 64 - __builtin_clzll(value); }
    """
    const int64_t DECADE
    bint subtract_overflows(int64_t a, int64_t b, int64_t* result) nogil
    int64_t wide_slot(int64_t time, int64_t origin, int64_t delta) nogil
    int highest_bit(uint64_t value) nogil

NEVER = INT64_MAX
OK = 0
NULL_TIME = 1
ABSURD_TIME = 2
TOO_FAR_AHEAD = 3
NULL_EXPIRY = 4
EXPIRY_NOT_AFTER_TIME = 5
LIFETIME_TOO_LONG = 6
DEAD_ON_ARRIVAL = 7
REASONS = (
    "the row is accepted",
    "the event time is null",
    "the event time is absurd",
    "the event time is too far ahead of the clock",
    "the expiry is null",
    "the expiry is not after the event time",
    "the expiry is further after the event time than max_lifetime",
    "the row had already expired on arrival",
)


def _integers(values, name):
    """Gives values as a contiguous one-dimensional int64 array, refusing other types."""
    array = np.ascontiguousarray(values)
    if array.dtype != np.int64 or array.ndim != 1:
        raise TypeError(f"{name} must be a one-dimensional int64 array, not {array.ndim}-dimensional {array.dtype}")
    return array


def _flags(values, name, size):
    """Gives a validity mask as uint8, or None when everything is valid."""
    if values is None:
        return None
    array = np.ascontiguousarray(values)
    if array.dtype not in (np.bool_, np.uint8) or array.shape != (size,):
        raise ValueError(f"{name} must be {size} booleans, not {array.dtype} of shape {array.shape}")
    return array.view(np.uint8)


def _columns(values):
    """Gives expiry columns as a contiguous one-dimensional uint16 array, refusing other types."""
    array = np.ascontiguousarray(values)
    if array.dtype != np.uint16 or array.ndim != 1:
        raise TypeError(f"column must be a one-dimensional uint16 array, not {array.ndim}-dimensional {array.dtype}")
    return array


def slots(times, int64_t origin, int64_t delta):
    """Gives the slot of each time, ceil((t - origin) / delta); a time that never comes stays INT64_MAX."""
    if delta <= 0:
        raise ValueError(f"a slide must be positive, not {delta}")
    cdef const int64_t[::1] given = _integers(times, "times")
    cdef int64_t count = given.shape[0], row
    result = np.empty(count, np.int64)
    cdef int64_t[::1] out = result
    with nogil:
        for row in range(count):
            out[row] = slot_of(given[row], origin, delta)
    return result


cdef inline int64_t slot_of(int64_t time, int64_t origin, int64_t delta) noexcept nogil:
    cdef int64_t distance, slot
    if time == INT64_MAX:
        return INT64_MAX
    if subtract_overflows(time, origin, &distance):
        return wide_slot(time, origin, delta)
    slot = distance / delta
    return slot + (distance - slot * delta > 0)


def classify(ts, ts_valid, exp, exp_valid, *, now, horizon, max_lifetime, earliest):
    """Gives each row's reason for rejection, or OK: the first that applies in the order of REASONS."""
    cdef const int64_t[::1] times = _integers(ts, "ts")
    cdef int64_t count = times.shape[0], row
    cdef const int64_t[::1] ends
    cdef const uint8_t[::1] time_valid, end_valid
    cdef const uint8_t* time_ok = NULL
    cdef const uint8_t* end_ok = NULL
    cdef const int64_t* expiry = NULL
    cdef bint has_now = now is not None
    cdef bint has_limit = max_lifetime is not None
    cdef int64_t clock = now if has_now else 0
    cdef int64_t ahead = INT64_MAX if horizon is None else horizon
    cdef int64_t first = INT64_MIN if earliest is None else earliest
    cdef uint64_t limit
    if has_limit and max_lifetime < 0:
        raise ValueError(f"max_lifetime must not be negative, not {max_lifetime}")
    limit = max_lifetime if has_limit else 0
    mask = _flags(ts_valid, "ts_valid", count)
    if mask is not None and count:
        time_valid = mask
        time_ok = &time_valid[0]
    if exp is not None:
        ends = _integers(exp, "exp")
        if ends.shape[0] != count:
            raise ValueError(f"exp has {ends.shape[0]} rows and ts {count}")
        mask = _flags(exp_valid, "exp_valid", count)
        if count:
            expiry = &ends[0]
            if mask is not None:
                end_valid = mask
                end_ok = &end_valid[0]
    result = np.zeros(count, np.uint8)
    cdef uint8_t[::1] out = result
    cdef int64_t time, end
    with nogil:
        for row in range(count):
            time = times[row]
            if time_ok != NULL and not time_ok[row]:
                out[row] = 1
            elif time < first or time > INT64_MAX - DECADE or time == INT64_MIN:
                out[row] = 2
            elif time > ahead:
                out[row] = 3
            elif expiry != NULL:
                end = expiry[row]
                if end_ok != NULL and not end_ok[row]:
                    out[row] = 4
                elif end <= time:
                    out[row] = 5
                elif has_limit and <uint64_t>end - <uint64_t>time > limit:
                    out[row] = 6
                elif has_now and end <= clock:
                    out[row] = 7
    return result


def histogram(values):
    """Gives the distinct values in ascending order and how often each occurs."""
    array = _integers(values, "values")
    cdef const int64_t[::1] given = array
    cdef int64_t count = given.shape[0], row, never = 0, least = INT64_MAX, most = INT64_MIN, value
    cdef uint64_t span
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    with nogil:
        for row in range(count):
            value = given[row]
            # The sentinel is counted apart: it would stretch any range.
            if value == INT64_MAX:
                never += 1
                continue
            least = value if value < least else least
            most = value if value > most else most
    if never == count:
        return np.array([INT64_MAX], np.int64), np.array([never], np.int64)
    span = <uint64_t>most - <uint64_t>least
    if span <= 4 * <uint64_t>count + 1024:
        distinct, counts = _count_dense(array, least, <int64_t>span + 1)
    else:
        distinct, counts = _count_sorted(np.sort(array), count - never)
    if never:
        distinct, counts = np.append(distinct, np.int64(INT64_MAX)), np.append(counts, np.int64(never))
    return distinct, counts


def _count_dense(const int64_t[::1] values, int64_t least, int64_t span):
    """Counts values of a small range in an array of counters."""
    counters = np.zeros(span, np.int64)
    cdef int64_t[::1] counts = counters
    cdef int64_t row, count = values.shape[0]
    with nogil:
        for row in range(count):
            if values[row] != INT64_MAX:
                counts[values[row] - least] += 1
    present = np.flatnonzero(counters)
    return present + np.int64(least), counters[present]


def _count_sorted(const int64_t[::1] values, int64_t count):
    """Counts the runs of the first `count` sorted values."""
    distinct = np.empty(count, np.int64)
    counters = np.empty(count, np.int64)
    cdef int64_t[::1] values_out = distinct, counts = counters
    cdef int64_t row, runs = 0
    with nogil:
        for row in range(count):
            if runs == 0 or values[row] != values_out[runs - 1]:
                values_out[runs] = values[row]
                counts[runs] = 0
                runs += 1
            counts[runs - 1] += 1
    return distinct[:runs].copy(), counters[:runs].copy()


def find_run_starts(column):
    """Gives the distinct values of a sorted column and the row at which each begins."""
    cdef const uint16_t[::1] given = _columns(column)
    cdef int64_t count = given.shape[0], row, runs = 0
    cdef bint ascending = True
    with nogil:
        for row in range(count):
            runs += row == 0 or given[row] != given[row - 1]
            ascending = ascending and (row == 0 or given[row] >= given[row - 1])
    if not ascending:
        raise ValueError("column is not sorted")
    values = np.empty(runs, np.uint16)
    starts = np.empty(runs, np.int64)
    cdef uint16_t[::1] out_values = values
    cdef int64_t[::1] out_starts = starts
    with nogil:
        runs = 0
        for row in range(count):
            if row == 0 or given[row] != given[row - 1]:
                out_values[runs] = given[row]
                out_starts[runs] = row
                runs += 1
    return values, starts


def find_members(values, int64_t low, known):
    """Gives the positions of values that a table of flags, the first of which stands for `low`, knows."""
    cdef const int64_t[::1] given = _integers(values, "values")
    table = np.ascontiguousarray(known)
    if table.dtype != np.bool_ or table.ndim != 1:
        raise TypeError(f"known must be a one-dimensional array of bool, not {table.ndim}-dimensional {table.dtype}")
    cdef const uint8_t[::1] flags = table.view(np.uint8)
    cdef int64_t size = given.shape[0], i, count = 0
    cdef uint64_t span = flags.shape[0], flag
    positions = np.empty(size, np.int64)
    cdef int64_t[::1] out = positions
    with nogil:
        for i in range(size):
            # What lies below wraps around, and so lies above.
            flag = <uint64_t>given[i] - <uint64_t>low
            out[count] = i
            if flag < span:
                count += flags[flag]
    return positions[:count]


def number_distinct(const int64_t[::1] values):
    """Gives the position at which each distinct value comes first, and of every value which of those it is."""
    cdef unordered_map[int64_t, int64_t] numbers
    cdef unordered_map[int64_t, int64_t].iterator entry
    cdef vector[int64_t] first
    cdef int64_t i, count = values.shape[0]
    numbering = np.empty(count, np.int64)
    cdef int64_t[::1] out = numbering
    for i in range(count):
        if i and values[i] == values[i - 1]:
            out[i] = out[i - 1]
            continue
        entry = numbers.find(values[i])
        if entry != numbers.end():
            out[i] = dereference(entry).second
            continue
        numbers[values[i]] = out[i] = <int64_t>first.size()
        first.push_back(i)
    return first, numbering


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


cdef inline uint64_t digest_bytes(const uint8_t* data, int64_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t tail = 0
    cdef int64_t position = 0
    seed ^= <uint64_t>size * <uint64_t>0x9E3779B97F4A7C15
    while position + 8 <= size:
        seed = mix(seed ^ load_u64(data + position)) + <uint64_t>0x9E3779B97F4A7C15
        position += 8
    while position < size:
        tail = (tail << 8) | data[position]
        position += 1
    return mix(seed ^ tail)


def digest(ts, exp=None, keys=None):
    """Gives a 64-bit digest of a multiset of rows; digests of its parts add up to it modulo 2**64."""
    cdef const int64_t[::1] times = _integers(ts, "ts")
    cdef const int64_t[::1] ends
    cdef const int64_t* expiry = NULL
    cdef int64_t count = times.shape[0], row, size
    cdef Keys view
    cdef bint has_keys = keys is not None
    cdef const uint8_t* key
    cdef uint64_t total = 0, hashed
    if exp is not None:
        ends = _integers(exp, "exp")
        if ends.shape[0] != count:
            raise ValueError(f"exp has {ends.shape[0]} rows and ts {count}")
        expiry = &ends[0] if count else NULL
    if has_keys:
        keys = open_keys(keys, &view)
        if view.count != count:
            raise ValueError(f"keys has {view.count} rows and ts {count}")
    with nogil:
        for row in range(count):
            hashed = mix(<uint64_t>times[row] + <uint64_t>0x9E3779B97F4A7C15)
            hashed = mix(hashed ^ <uint64_t>(expiry[row] if expiry != NULL else INT64_MAX))
            if has_keys:
                key = key_at(&view, row, &size)
                hashed = digest_bytes(key, size, hashed)
            total += hashed
    return total


# Rows by slot, over many packed histograms at once: a slide asks each segment how many of its rows it lets go.
# A histogram is the bytes of `segments.pack_histogram`: n ascending slots and then their n counts, 8 bytes each.

cdef inline int64_t _number(const char* packed, Py_ssize_t position) noexcept nogil:
    cdef int64_t value
    memcpy(&value, packed + 8 * position, 8)
    return value


cdef Py_ssize_t _behind(const char* packed, Py_ssize_t slots, int64_t slot) noexcept nogil:
    """How many of the ascending slots are at most `slot`."""
    cdef Py_ssize_t low = 0, high = slots, middle
    while low < high:
        middle = (low + high) >> 1
        if _number(packed, middle) <= slot:
            low = middle + 1
        else:
            high = middle
    return low


def count_rows_between(list packed not None, after, int64_t upto):
    """How many rows of each histogram lie in the slots (after, upto]; `after` None: in all up to `upto`."""
    cdef Py_ssize_t histograms = len(packed), i, count, first, last, slot
    cdef int64_t low = INT64_MIN if after is None else after
    cdef bint bounded = after is not None
    cdef int64_t total
    cdef const char* data
    counts = np.empty(histograms, np.int64)
    cdef int64_t[::1] rows = counts
    for i in range(histograms):
        histogram = packed[i]
        if not PyBytes_Check(histogram) or PyBytes_GET_SIZE(histogram) % 16:
            raise ValueError("a histogram is bytes of pairs of 8-byte numbers")
        data, count = PyBytes_AS_STRING(histogram), PyBytes_GET_SIZE(histogram) // 16
        last = _behind(data, count, upto)
        first = _behind(data, last, low) if bounded else 0
        total = 0
        for slot in range(first, last):
            total += _number(data, count + slot)
        rows[i] = total
    return counts


include "row_sort.pxi"

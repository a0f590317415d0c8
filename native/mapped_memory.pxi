# Files as memory. Python's own maps keep a descriptor open for each, of which a process has 1024 by default; a warehouse
# may well have more files than that, and a reader of all of them maps them all.

from libc.errno cimport errno

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void* at, size_t size, unsigned char* resident)
    int MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED

cdef enum:
    MEMORY_PAGE = 4096
    ASKED_AT_ONCE = 128 << 10  # the kernel may cut a longer request short


cdef class FileMap:
    """A whole file as memory that cannot be written; the descriptor is no longer needed."""

    cdef void* p
    cdef Py_ssize_t size

    def __cinit__(self, int descriptor, Py_ssize_t size):
        if size <= 0:
            raise Damaged("the file is empty")
        self.p = mmap(NULL, size, PROT_READ, MAP_SHARED, descriptor, 0)
        if self.p == MAP_FAILED:
            self.p = NULL
            raise OSError(errno, "a file cannot be mapped")
        self.size = size
        self.scatter(True)  # until its footer was read, which is all that is known of it

    cdef void scatter(self, bint scattered) noexcept:
        """Say whether the next reader wants bytes here and there, and not also, as the kernel supposes, those near."""
        madvise(self.p, self.size, MADV_RANDOM if scattered else MADV_NORMAL)

    def __dealloc__(self):
        if self.p != NULL:
            munmap(self.p, self.size)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p, self.size, 1, flags)

    def __len__(self):
        return self.size

    def holds(self, uintptr_t address):
        """Whether an address is in this memory."""
        return <uintptr_t>self.p <= address < <uintptr_t>self.p + self.size


cdef bint is_resident(const uint8_t* p) noexcept nogil:
    """Whether a byte of a mapped file is in memory; also said of memory that is no file's."""
    cdef unsigned char found = 1
    mincore(<void*>(<uintptr_t>p & ~<uintptr_t>(MEMORY_PAGE - 1)), 1, &found)
    return found & 1


cdef void ask_for(const uint8_t* p, int64_t size) noexcept nogil:
    """Have bytes of a mapped file read from the disk; returns at once: a disk takes many requests at a time."""
    cdef uintptr_t at = <uintptr_t>p & ~<uintptr_t>(MEMORY_PAGE - 1), end = <uintptr_t>p + size
    while at < end:
        madvise(<void*>at, min(end - at, <uintptr_t>ASKED_AT_ONCE), MADV_WILLNEED)
        at += ASKED_AT_ONCE


# Memory for long columns of text. It is asked for in large pages and kept for the next column when an array lets go of
# it: fresh memory costs a fault and a cleared page for every four kilobytes, which is more than copying rows into it.

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* at, size_t size, int protection, int flags, int file, long offset)
    int munmap(void* at, size_t size)
    int madvise(void* at, size_t size, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_SHARED, MAP_ANONYMOUS, MADV_HUGEPAGE
    void* MAP_FAILED

cdef enum:
    ROOM_BYTES = 1 << 20      # less than this is Arrow's to allocate
    ROOM_STEP = 1 << 21       # a large page
    ROOMS_IDLE = 48 << 20     # bytes kept for the next reader, at most


cdef struct Idle:
    uint8_t* p
    size_t size


cdef vector[Idle] idle_rooms
cdef size_t idle_bytes = 0


cdef class Room:
    """Some large pages; written before it is shown to anybody, and given back when the last array over it is gone."""

    cdef uint8_t* p
    cdef size_t size
    cdef Py_ssize_t used

    def __dealloc__(self):
        global idle_bytes
        cdef Idle idle
        if self.p == NULL:
            return
        if idle_bytes + self.size > ROOMS_IDLE:
            munmap(self.p, self.size)
            return
        idle.p, idle.size = self.p, self.size
        idle_rooms.push_back(idle)
        idle_bytes += self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p, self.used, 1, flags)


cdef Room take_room(size_t wanted):
    """Room for so many bytes; of those that are idle, one that is at most twice as large."""
    global idle_bytes
    cdef Room room = Room.__new__(Room)
    cdef size_t size = (wanted + ROOM_STEP - 1) // ROOM_STEP * ROOM_STEP, i, best = idle_rooms.size(), ahead
    cdef uint8_t* p
    for i in range(idle_rooms.size()):
        if size <= idle_rooms[i].size <= 2 * size and (
                best == idle_rooms.size() or idle_rooms[i].size <= idle_rooms[best].size):
            best = i  # the last that came back may still be in the processor's cache
    room.used = wanted
    if best < idle_rooms.size():
        room.p, room.size = idle_rooms[best].p, idle_rooms[best].size
        idle_bytes -= room.size
        idle_rooms[best] = idle_rooms.back()
        idle_rooms.pop_back()
        return room
    p = <uint8_t*>mmap(NULL, size + ROOM_STEP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if p == <uint8_t*>MAP_FAILED:
        raise MemoryError(f"there is no memory for {wanted} bytes of text")
    ahead = (ROOM_STEP - <uintptr_t>p % ROOM_STEP) % ROOM_STEP
    if ahead:
        munmap(p, ahead)
    if ahead < ROOM_STEP:
        munmap(p + ahead + size, ROOM_STEP - ahead)
    madvise(p + ahead, size, MADV_HUGEPAGE)
    room.p, room.size = p + ahead, size
    return room


cdef object text_memory(uint64_t size, uint8_t** p):
    """A buffer for text, and where to write it."""
    cdef Room room
    if size < ROOM_BYTES:
        buffer = pa.allocate_buffer(size)
        p[0] = <uint8_t*><uintptr_t>buffer.address
        return buffer
    room = take_room(size)
    p[0] = room.p
    return pa.py_buffer(room)


def idle_memory():
    """Bytes that are kept for the next long column of text."""
    return idle_bytes


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

# Mapped files, and memory for long text. Python's own maps keep a descriptor open for each file, of which a process has
# 1024 by default; a warehouse may have more files than that, and a full scan maps all of them.

from libc.errno cimport errno

cdef extern from "<sys/mman.h>" nogil:
    int mincore(void* at, size_t size, unsigned char* resident)
    int MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED

# A mapped file that becomes shorter kills who reads behind its end, by SIGBUS. So the places of all maps are noted: where
# such a signal is about one of them, the missing page becomes one of zeros and the map is marked, so that the reader raises
# an error when it is done. Signals about anything else go to whoever was asked before.

cdef extern from *:
    """
    #include <signal.h>
    #include <stdint.h>
    #include <sys/mman.h>

    #define MOST_MAPS 65536
    typedef struct { volatile uintptr_t start; volatile size_t size; volatile int lost; } NotedMap;
    static NotedMap noted_maps[MOST_MAPS];
    static volatile int noted_end = 0;
    static volatile long lost_pages = 0;
    static struct sigaction earlier_action;

    static void replace_lost_page(int number, siginfo_t* info, void* context) {
        uintptr_t at = (uintptr_t)info->si_addr;
        for (int i = 0; i < noted_end; i++) {
            uintptr_t start = noted_maps[i].start;
            if (noted_maps[i].size && at >= start && at - start < noted_maps[i].size) {
                void* page = (void*)(at & ~(uintptr_t)4095);
                if (mmap(page, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
                    noted_maps[i].lost = 1;
                    lost_pages++;
                    return;
                }
            }
        }
        if (earlier_action.sa_flags & SA_SIGINFO)
            earlier_action.sa_sigaction(number, info, context);
        else if (earlier_action.sa_handler != SIG_DFL && earlier_action.sa_handler != SIG_IGN)
            earlier_action.sa_handler(number);
        else
            sigaction(number, &earlier_action, 0);  /* the read is tried again, and the process ends as it would have */
    }

    static void handle_lost_pages(void) {
        struct sigaction action = {0};
        action.sa_sigaction = replace_lost_page;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &earlier_action);
    }

    static int note_map(void* start, size_t size) {
        for (int i = 0; i < MOST_MAPS; i++)
            if (!noted_maps[i].size) {
                noted_maps[i].start = (uintptr_t)start;
                noted_maps[i].lost = 0;
                noted_maps[i].size = size;
                if (i >= noted_end) noted_end = i + 1;
                return i;
            }
        return -1;
    }
    static void forget_map(int slot) { if (slot >= 0) noted_maps[slot].size = 0; }
    static int has_lost_pages(int slot) { return slot >= 0 && noted_maps[slot].lost; }
    """
    void handle_lost_pages() nogil
    int note_map(void* start, size_t size) nogil
    void forget_map(int slot) nogil
    int has_lost_pages(int slot) nogil
    long lost_pages

handle_lost_pages()


def count_lost_pages():
    """Gives how many pages of mapped files were gone when somebody read them."""
    return lost_pages


cdef int raise_if_lost(files) except -1:
    """Raise an error if a file became shorter: what was read of it may be zeros."""
    if lost_pages:
        for part, file in enumerate(files):
            if isinstance(file, FileMap) and (<FileMap>file).lost:
                error = Damaged("the file became shorter after it was opened")
                error.part = part
                raise error
    return 0


cdef enum:
    MEMORY_PAGE = 4096
    PREFETCH_BYTES = 128 << 10  # of one request: the kernel may cut a longer one short


cdef class FileMap:
    """A whole file as memory that cannot be written; the descriptor is no longer needed."""

    cdef void* p
    cdef Py_ssize_t size
    cdef int slot  # among the maps that are noted

    def __cinit__(self, int descriptor, Py_ssize_t size):
        self.slot = -1
        if size <= 0:
            raise Damaged("the file is empty")
        self.p = mmap(NULL, size, PROT_READ, MAP_SHARED, descriptor, 0)
        if self.p == MAP_FAILED:
            self.p = NULL
            raise OSError(errno, "a file cannot be mapped")
        self.size = size
        self.slot = note_map(self.p, size)
        self.advise(True)  # until the footer was read: only its place is known

    cdef void advise(self, bint scattered) noexcept:
        """Tell the kernel whether the next reads are scattered, so that it does not read what lies around them."""
        madvise(self.p, self.size, MADV_RANDOM if scattered else MADV_NORMAL)

    def __dealloc__(self):
        if self.p != NULL:
            munmap(self.p, self.size)
            forget_map(self.slot)

    @property
    def lost(self):
        """Whether a page was read that the file no longer has."""
        return bool(has_lost_pages(self.slot))

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p, self.size, 1, flags)

    def __len__(self):
        return self.size

    def holds(self, uintptr_t address):
        """Whether an address is in this memory."""
        return <uintptr_t>self.p <= address < <uintptr_t>self.p + self.size


cdef bint is_resident(const uint8_t* p) noexcept nogil:
    """Whether a byte of a mapped file is in memory; true of any memory that is not a file's."""
    cdef unsigned char resident = 1
    mincore(<void*>(<uintptr_t>p & ~<uintptr_t>(MEMORY_PAGE - 1)), 1, &resident)
    return resident & 1


cdef void prefetch_range(const uint8_t* p, int64_t size) noexcept nogil:
    """Start reading bytes of a mapped file from the disk, without waiting: a disk serves many requests at a time."""
    cdef uintptr_t start = <uintptr_t>p & ~<uintptr_t>(MEMORY_PAGE - 1), end = <uintptr_t>p + size
    while start < end:
        madvise(<void*>start, min(end - start, <uintptr_t>PREFETCH_BYTES), MADV_WILLNEED)
        start += PREFETCH_BYTES


# Memory for long columns of text. It is allocated in large pages and reused for the next column when the last array over
# it is gone: new memory costs a page fault and a cleared page for every four kilobytes, which is more than copying the
# rows into it. Measured by the scan lines of `bench core`.

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* at, size_t size, int protection, int flags, int file, long offset)
    int munmap(void* at, size_t size)
    int madvise(void* at, size_t size, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_SHARED, MAP_ANONYMOUS, MADV_HUGEPAGE
    void* MAP_FAILED

cdef enum:
    TEXT_BUFFER_LEAST = 1 << 20  # bytes; smaller buffers are allocated by Arrow
    LARGE_PAGE = 1 << 21
    MOST_IDLE_BYTES = 48 << 20   # kept for the next reader


cdef struct IdleBuffer:
    uint8_t* p
    size_t size


cdef vector[IdleBuffer] idle_buffers
cdef size_t idle_bytes = 0


cdef class TextBuffer:
    """Some large pages. They are written before an array is made over them, and reused when the last such array is gone."""

    cdef uint8_t* p
    cdef size_t size
    cdef Py_ssize_t used

    def __dealloc__(self):
        global idle_bytes
        cdef IdleBuffer idle
        if self.p == NULL:
            return
        if idle_bytes + self.size > MOST_IDLE_BYTES:
            munmap(self.p, self.size)
            return
        idle.p, idle.size = self.p, self.size
        idle_buffers.push_back(idle)
        idle_bytes += self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p, self.used, 1, flags)


cdef TextBuffer take_text_buffer(size_t wanted):
    """A buffer of at least `wanted` bytes: an idle one if there is one that is at most twice as large."""
    global idle_bytes
    cdef TextBuffer buffer = TextBuffer.__new__(TextBuffer)
    cdef size_t size = (wanted + LARGE_PAGE - 1) // LARGE_PAGE * LARGE_PAGE, i, best = idle_buffers.size(), ahead
    cdef uint8_t* p
    for i in range(idle_buffers.size()):
        if size <= idle_buffers[i].size <= 2 * size and (
                best == idle_buffers.size() or idle_buffers[i].size <= idle_buffers[best].size):
            best = i  # the last that came back may still be in the processor's cache
    buffer.used = wanted
    if best < idle_buffers.size():
        buffer.p, buffer.size = idle_buffers[best].p, idle_buffers[best].size
        idle_bytes -= buffer.size
        idle_buffers[best] = idle_buffers.back()
        idle_buffers.pop_back()
        return buffer
    p = <uint8_t*>mmap(NULL, size + LARGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if p == <uint8_t*>MAP_FAILED:
        raise MemoryError(f"there is no memory for {wanted} bytes of text")
    ahead = (LARGE_PAGE - <uintptr_t>p % LARGE_PAGE) % LARGE_PAGE
    if ahead:
        munmap(p, ahead)
    if ahead < LARGE_PAGE:
        munmap(p + ahead + size, LARGE_PAGE - ahead)
    madvise(p + ahead, size, MADV_HUGEPAGE)
    buffer.p, buffer.size = p + ahead, size
    return buffer


cdef object allocate_text(uint64_t size, uint8_t** p):
    """A buffer for text, and where to write it."""
    cdef TextBuffer large
    if size < TEXT_BUFFER_LEAST:
        small = pa.allocate_buffer(size)
        p[0] = <uint8_t*><uintptr_t>small.address
        return small
    large = take_text_buffer(size)
    p[0] = large.p
    return pa.py_buffer(large)


def count_idle_bytes():
    """Gives the bytes that are kept for the next long column of text."""
    return idle_bytes


# Few rows of files that are not in memory. A page fault reads one range from the disk and waits for it, and the kernel reads
# megabytes around it, which a scan will want next and a probe will not. So a reader of few rows among many looks at some
# of them; if one is not in memory, it requests all of them at once and nothing else. A cold probe of 36 files took 65 ms
# with this and 1,000 ms without (tests/native/test_cold_files.py checks what is read).

cdef enum:
    SAMPLES = 4              # rows that are looked at
    SPARSE_FACTOR = 4        # rows are few if the row groups that hold them have more than so many times as many
    CHUNK_HEAD_BYTES = 8192  # of a column chunk: the first page's header and the lengths of some thousand texts


cdef int advise_all(list files, bint scattered) except -1:
    for file in files:
        if isinstance(file, FileMap):
            (<FileMap>file).advise(scattered)
    return 0


cdef bint is_sparse(Reader reader) except -1:
    """Whether few of the rows of the row groups are wanted."""
    cdef int64_t rows = 0
    cdef size_t i
    cdef FileLayout layout
    cdef Span* span
    for i in range(reader.spans.size()):
        span = &reader.spans[i]
        if i and span.part == reader.spans[i - 1].part and span.group == reader.spans[i - 1].group:
            continue
        layout = <FileLayout>reader.layouts[span.part]
        rows += layout.first[span.group + 1] - layout.first[span.group]
    return rows > SPARSE_FACTOR * reader.looked


cdef int prefetch_columns(Reader reader, list names) except -1:
    """Before rows are read: if they are few and not in memory, request the beginnings of their column chunks."""
    cdef size_t i, step = max(<size_t>1, reader.spans.size() // SAMPLES), slot
    cdef FileLayout layout
    cdef const Chunk* chunk
    cdef const uint8_t* file
    cdef int64_t length
    cdef Span* span
    if not names or not reader.spans.size() or not is_sparse(reader):
        return 0
    i = 0
    while i < reader.spans.size() and not reader.is_cold:
        reader.is_cold = not is_resident(first_byte_of(reader, &reader.spans[i], <str>names[len(names) - 1]))
        i += step
    if not reader.is_cold:
        return 0
    advise_all(reader.files, True)
    for i in range(reader.spans.size()):
        span = &reader.spans[i]
        if i and span.part == reader.spans[i - 1].part and span.group == reader.spans[i - 1].group:
            continue
        layout = <FileLayout>reader.layouts[span.part]
        file, length = <const uint8_t*>reader.views[span.part].buf, reader.views[span.part].len
        for name in names:
            position = layout.slots.get(name)
            if position is None or position == ABSENT:
                continue
            chunk = &layout.chunks[<size_t>span.group * layout.width + <size_t>position]
            if chunk.start < 0 or chunk.size <= 0 or chunk.start > length - chunk.size:
                continue  # damaged: reading it will raise the error
            # A page whose checksum was not compared yet is read as a whole.
            prefetch_range(file + chunk.start, chunk.size if not layout.trusted else min(chunk.size, <int64_t>CHUNK_HEAD_BYTES))
    return 0


cdef const uint8_t* first_byte_of(Reader reader, const Span* span, str name) except NULL:
    """The first byte of a column in a row group, as far as that is in the file."""
    cdef FileLayout layout = <FileLayout>reader.layouts[span.part]
    cdef int64_t start = 0
    position = layout.slots.get(name)
    if position is not None and position != ABSENT:
        start = layout.chunks[<size_t>span.group * layout.width + <size_t>position].start
    if start < 0 or start >= reader.views[span.part].len:
        start = 0
    return <const uint8_t*>reader.views[span.part].buf + start


cdef void prefetch_visits(const vector[Visit]& visits) noexcept nogil:
    """Request the values of all visits, about where they lie: how many nulls come before them is not known yet."""
    cdef size_t i
    cdef const Visit* v
    for i in range(visits.size()):
        v = &visits[i]
        if v.page == NULL:
            continue
        if v.kind == BYTES and v.page.encoding == DELTA_LENGTH and v.hi <= v.count:
            prefetch_range(v.texts + v.ends[v.lo], v.ends[v.hi] - v.ends[v.lo])
        elif v.kind == COPY and v.page.encoding == PLAIN and <uint64_t>v.hi * v.stored <= v.size:
            prefetch_range(v.values + <int64_t>v.lo * v.stored, <int64_t>(v.hi - v.lo) * v.stored)

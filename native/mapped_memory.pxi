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

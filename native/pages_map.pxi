# Files as memory. Python's own maps keep a descriptor open for each, of which a process has 1024 by default; a warehouse
# may well have more files than that, and a reader of all of them maps them all.

from libc.errno cimport errno


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

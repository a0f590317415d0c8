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

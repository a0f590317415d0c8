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
    cdef bint is_cold                    # the rows are few among others and not in memory: all are asked for at once
    cdef object schema
    cdef dict codecs

    def __cinit__(self):
        self.files, self.layouts, self.codecs = [], [], {}

    def __dealloc__(self):
        cdef size_t i
        if self.is_cold and self.files is not None:
            scatter_all(self.files, False)
        for i in range(self.views.size()):
            PyBuffer_Release(&self.views[i])

    cdef int add(self, object file, Layout layout) except -1:
        """A part: a file and what is known of it."""
        cdef Py_buffer view
        self.views.reserve(self.views.size() + 1)
        PyObject_GetBuffer(file, &view, PyBUF_SIMPLE)
        self.views.push_back(view)
        self.files.append(file)
        self.layouts.append(layout)
        return 0

    cdef int want(self, Layout layout, int part, int64_t start, int64_t stop) except -1:
        """Rows of a part, to be read after those that were wanted before."""
        if start < 0 or stop < start or stop > layout.num_rows:
            error = ValueError(f"rows {start} to {stop} of part {part} are not among its {layout.num_rows} rows")
            error.part = part
            raise error
        self.cut(layout, part, start, stop)
        self.looked += stop - start
        self.rows = self.looked
        return 0

    cdef int cut(self, Layout layout, int part, int64_t start, int64_t stop) except -1:
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

    cdef int visit(self, str name, list held, vector[Visit]& visits) except -1:
        """List the pages that hold the column's rows, with their bytes unpacked (and held) where need be."""
        cdef Layout layout = None
        cdef Visit v
        cdef Span span
        cdef size_t i, at, chunk = <size_t>-1
        cdef int part = -1, slot = 0, rc
        cdef const Fit* fit = NULL
        cdef const Page* unpacked = NULL
        memset(&v, 0, sizeof(Visit))
        for i in range(self.spans.size()):
            span = self.spans[i]
            if span.part != part:
                part, layout = span.part, <Layout>self.layouts[span.part]
                slot = layout.slots[name]
                chunk = <size_t>-1
                v.part = part
                if slot != ABSENT:
                    fit = &layout.fits[slot]
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
                    raise problem(rc, part, where(part, name, span.group))
            at = page_of(layout.pages[chunk], span.lo)
            while span.lo < span.hi:
                v.page = &layout.pages[chunk][at]
                v.lo = <uint32_t>(span.lo - v.page.first)
                v.hi = <uint32_t>(min(span.hi, <int64_t>v.page.first + v.page.values) - v.page.first)
                if v.page != unpacked:
                    self.locate(layout, chunk, &v, held, name)
                    unpacked = v.page
                if v.kind == BYTES and v.page.encoding == PLAIN:
                    layout.mark(chunk, at, &v)
                elif v.kind == BYTES and v.page.encoding == LENGTHS:
                    __builtin_prefetch(v.ends + v.lo)
                else:
                    __builtin_prefetch(v.values + <int64_t>v.lo * v.stored)
                visits.push_back(v)
                span.lo += v.hi - v.lo
                at += 1
        return 0

    cdef int locate(self, Layout layout, size_t chunk, Visit* v, list held, str name) except -1:
        """Point a visit at its page's levels and values, and at its dictionary."""
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
            v.values = self.unpack(v.values, page.size - ahead, v.size, c.codec, held, v.part, name)
        if page.encoding == LENGTHS and c.codec == 0 and page.size >= LONG_TEXT * <uint64_t>page.values:
            self.recall_texts(layout, chunk, page - layout.pages[chunk].data(), v, name)
        elif page.encoding == LENGTHS:
            self.find_texts(v, name)
        elif page.encoding != PLAIN and page.encoding != RLE and v.dictionary == NULL:
            page = &layout.dictionaries[chunk]
            if page.at == 0:
                raise problem(BAD_INDEX, v.part, where(v.part, name, chunk // layout.width))
            v.dictionary = self.bytes_of(page, v.part, name)
            v.entries = page.values
            if c.codec:
                v.dictionary = self.unpack(v.dictionary, page.size, page.unpacked, c.codec, held, v.part, name)
            self.check_dictionary(layout, chunk, v, page.unpacked if c.codec else page.size, name)
        return 0

    cdef int recall_texts(self, Layout layout, size_t chunk, size_t page, Visit* v, str name) except -1:
        """`find_texts`, once for a page: its texts are long, so to know where each begins takes little room."""
        cdef vector[uint32_t]* known = &layout.ends[chunk][page]
        if known.empty():
            self.find_texts(v, name)
            if known.empty():  # another thread may have been first: what it found is in use
                layout.texts[chunk][page] = v.texts - v.values
                known.swap(self.ends.back())
        v.texts = v.values + layout.texts[chunk][page]
        v.ends, v.count = known.data(), <uint32_t>(known.size() - 1)
        return 0

    cdef int find_texts(self, Visit* v, str name) except -1:
        """Point a visit at the texts of a page that has all lengths in front."""
        cdef const uint8_t* p = v.values
        cdef uint64_t size = v.size, levels = 0
        cdef int rc = OK
        if v.optional and v.levels == NULL:
            levels = 4 + <uint64_t>load32(p) if size >= 4 else size + 1
        self.ends.resize(self.ends.size() + 1)
        if levels > size:
            rc = BAD_LEVELS
        elif v.page.values <= SMALL_PAGE:
            rc = find_ends(p + levels, size - levels, v.page.values, self.ends.back(), &v.texts)
        else:
            with nogil:
                rc = find_ends(p + levels, size - levels, v.page.values, self.ends.back(), &v.texts)
        if rc:
            raise problem(rc, v.part, f"part {v.part}, column {name!r}")
        v.ends, v.count = self.ends.back().data(), <uint32_t>(self.ends.back().size() - 1)
        return 0

    cdef int check_dictionary(self, Layout layout, size_t chunk, Visit* v, uint64_t size, str name) except -1:
        cdef bint sound
        if v.kind == BYTES:
            sound = layout.find_offsets(chunk, v.dictionary, size)
            v.offsets = layout.offsets[chunk].data()
        else:
            sound = <uint64_t>v.entries * v.stored <= size
        if not sound:
            raise problem(BAD_INDEX, v.part, where(v.part, name, chunk // layout.width))
        return 0

    cdef const uint8_t* bytes_of(self, const Page* page, int part, str name) except NULL:
        cdef Py_buffer* view = &self.views[part]
        if page.at > view.len or page.size > view.len - page.at:  # pages may be known from a longer buffer
            raise problem(BAD_BOUNDS, part, f"part {part}, column {name!r}")
        if page.has_crc and not page.sound and not (<Layout>self.layouts[part]).trusted:
            if checksum(<const uint8_t*>view.buf + page.at, page.size) != page.crc:
                raise problem(BAD_CHECKSUM, part, f"part {part}, column {name!r}")
            (<Page*>page).sound = True
        return <const uint8_t*>view.buf + page.at

    cdef const uint8_t* unpack(self, const uint8_t* p, uint64_t size, uint64_t unpacked, int codec, list held,
                               int part, str name) except NULL:
        if unpacked == 0:
            return p
        if codec not in self.codecs:  # not shared between calls: some keep state while they work
            self.codecs[codec] = pa.Codec(CODECS[codec])
        try:
            buffer = self.codecs[codec].decompress(pa.foreign_buffer(<uintptr_t>p, size), unpacked)
        except (OSError, ValueError):
            raise problem(BAD_PACKING, part, f"part {part}, column {name!r}") from None
        if <uint64_t>buffer.size < unpacked:
            raise problem(BAD_PACKING, part, f"part {part}, column {name!r}")
        held.append(buffer)
        return <const uint8_t*><uintptr_t>buffer.address

    cdef object table(self, columns):
        wanted = pa.schema([self.schema.field(name) for name in columns], metadata=self.schema.metadata)
        if not self.rows:
            return wanted.empty_table()
        return pa.Table.from_arrays([self.column(name) for name in columns], schema=wanted)

    cdef object batch(self, object wanted):
        """The rows with the columns of a schema, as one batch."""
        if not self.rows:
            return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in wanted.types], schema=wanted)
        arrays = [self.column(name, kind) for name, kind in zip(wanted.names, wanted.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    cdef int keep(self, str name, int64_t after, int64_t upto) except -1:
        """Of the wanted rows, keep those whose value in a column of 64-bit numbers is above `after`, up to `upto`.

        They become spans of their own, or, if that would be many short ones, are chosen after all have been read.
        """
        cdef vector[Span] kept
        cdef const int64_t* values
        if not self.rows:
            return 0
        found = self.column(name)
        if found.null_count or found.type.bit_width != 64 or found.offset:
            raise Declined(f"column {name!r} has no bounds to compare")
        values = <const int64_t*><uintptr_t>found.buffers()[1].address
        with nogil:
            if not self.choosing:
                self.rows = runs_between(self.spans, values, after, upto, kept)
                self.choosing = kept.size() > 2 * self.spans.size() and self.looked >> 32 == 0
                if not self.choosing:
                    self.looked = self.rows
                    self.spans.swap(kept)
                    return 0
                all_rows(self.chosen, self.looked)
            self.rows = choose_between(self.chosen, values, after, upto)
        return 0

    cdef object column(self, str name, object shown=None):
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
        self.visit(name, held, visits)
        as_views = shown is not None and shown.id in (arrow.Type_STRING_VIEW, arrow.Type_BINARY_VIEW)
        if (kind == BYTES and not as_views and not self.choosing and visits.size() == 1
                and self.is_worth_sharing(&visits[0], wanted)):
            return self.shared(&visits[0], wanted, &t, valid, name)
        if kind == BYTES:
            pieces.resize(self.looked)
            t.data = <uint8_t*>pieces.data()
        else:
            data = pa.allocate_buffer(self.looked * t.width, resizable=self.choosing)
            t.data = <uint8_t*><uintptr_t>data.address
        with nogil:
            if self.is_cold:
                ask_for_visits(visits)
            rc = read_visits(visits, &t, &i)
        if rc:
            raise problem(rc, visits[i].part, f"part {visits[i].part}, column {name!r}")
        if self.choosing:
            with nogil:
                choose_values(self.chosen, t.data, t.width)
                if t.nulls:
                    t.nulls = choose_bits(self.chosen, t.valid)
            if kind == BYTES:
                pieces.resize(self.rows)
            else:  # an array that is kept must not hold on to much more memory than it says
                data.resize(self.rows * t.width, shrink_to_fit=2 * self.rows < self.looked)
                t.data = <uint8_t*><uintptr_t>data.address
        buffers = [valid if t.nulls else None]
        if kind == BYTES and as_views:
            buffers += self.view(pieces, name)
            return pa.Array.from_buffers(shown, self.rows, buffers, t.nulls)
        if kind == BYTES:
            buffers += gather(pieces, wanted, name)
        elif kind == BITS:
            buffers.append(pa.allocate_buffer((self.rows + 7) // 8))
            packed = <uint8_t*><uintptr_t>buffers[1].address
            with nogil:
                pack_bits(t.data, packed, self.rows)
        else:
            buffers.append(data)
        return finish(wanted, self.rows, buffers, t.nulls)

    cdef list view(self, vector[Piece]& pieces, str name):
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
        """Whether the texts of a visit are best left where they lie, in the file's own memory."""
        cdef Py_buffer* view = &self.views[v.part]
        if v.page == NULL or v.page.encoding != LENGTHS or wanted.id == arrow.Type_DICTIONARY:
            return False
        if v.texts < <const uint8_t*>view.buf or v.texts >= <const uint8_t*>view.buf + view.len:
            return False  # unpacked into memory of ours
        return 2 * <uint64_t>(v.hi - v.lo) >= v.page.values and v.ends[v.count] >= SHARED_BYTES

    cdef object shared(self, Visit* v, object wanted, Target* t, object valid, str name):
        """A column whose bytes are the file's: only offsets are made."""
        cdef int64_t before = v.lo, inside = v.hi - v.lo, i, at
        cdef int width = 8 if wanted.id in (arrow.Type_LARGE_STRING, arrow.Type_LARGE_BINARY) else 4
        cdef uint8_t* out
        cdef const uint8_t* levels = v.levels
        cdef uint64_t size = v.page.levels, end
        cdef int rc = OK
        if v.optional:
            if levels == NULL:
                levels, size = v.values + 4, load32(v.values)
            rc = read_levels(levels, levels + size, v, t, 0, &before, &inside)
        if rc == OK and before + inside > v.count:
            rc = BAD_VALUES
        if rc:
            raise problem(rc, v.part, f"part {v.part}, column {name!r}")
        offsets = pa.allocate_buffer((self.rows + 1) * width)
        out = <uint8_t*><uintptr_t>offsets.address
        at = before
        if width == 4 and not t.nulls:
            memcpy(out, v.ends + at, (self.rows + 1) * sizeof(uint32_t))
        else:
            for i in range(self.rows + 1):
                end = v.ends[at]
                memcpy(out + i * width, &end, width)
                if i < self.rows and (not t.nulls or (t.valid[i >> 3] >> (i & 7)) & 1):
                    at += 1
        data = pa.py_buffer(self.files[v.part]).slice(v.texts - <const uint8_t*>self.views[v.part].buf, v.ends[v.count])
        return pa.Array.from_buffers(wanted, self.rows, [valid if t.nulls else None, offsets, data], t.nulls)

    cdef int prepare(self, str name, object wanted, Target* t, list held) except -1:
        """Check that every part can give the column, and lay out the validity bits if some row may be null."""
        cdef Layout layout
        cdef const Fit* fit
        cdef int part = 0, kind = UNKNOWN
        cdef bint optional = False
        for part in range(len(self.layouts)):
            layout = <Layout>self.layouts[part]
            slot = layout.slots.get(name)
            if slot is None:
                reason = layout.declined.get(name, "it is not in the layout")
                error = Declined(f"part {part}, column {name!r}: {reason}")
                error.part = part
                raise error
            if layout.schema is not self.schema and layout.schema.field(name).type != wanted:
                raise TypeError(f"part {part} was opened for another type of column {name!r} than {wanted}")
            if slot == ABSENT:
                optional = True
                continue
            fit = &layout.fits[<int>slot]
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


cdef uint32_t checksum(const uint8_t* p, uint64_t size):
    with nogil:
        return crc32_of(p, size)


cdef str where(int part, str name, size_t group):
    return f"part {part}, column {name!r}, row group {group}"


cdef inline size_t page_of(const vector[Page]& pages, int64_t row) noexcept nogil:
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

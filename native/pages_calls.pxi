# What Python calls: rows by range of many files, of one, or only those within limits.

cdef Reader reader_of(object files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, schema):
    """A reader that wants the ranges, in order."""
    cdef Reader reader = Reader()
    cdef Py_ssize_t i
    if part.shape[0] != start.shape[0] or part.shape[0] != stop.shape[0]:
        raise ValueError("each range has a part, a start and a stop")
    reader.schema = schema
    for file, layout in files:
        reader.add(file, <Layout?>layout)
    for i in range(part.shape[0]):
        if part[i] < 0 or part[i] >= len(reader.layouts):
            raise ValueError(f"there is no part {part[i]}")
        reader.want(<Layout>reader.layouts[part[i]], <int>part[i], start[i], stop[i])
    return reader


def read_ranges(parts, columns, schema):
    """Read the row ranges of all parts, in order, as a table of one chunk per column.

    Args:
        parts: (file, layout, starts, stops): the whole file as a buffer, what `open_layout` made of it, row ranges.
        columns: names of columns of the schema.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """
    cdef Reader reader = Reader()
    cdef int part = 0
    reader.schema = schema
    for file, layout, starts, stops in parts:
        reader.add(file, layout)
        starts = starts.tolist() if hasattr(starts, "tolist") else starts
        stops = stops.tolist() if hasattr(stops, "tolist") else stops
        for start, stop in zip(starts, stops, strict=True):
            reader.want(<Layout?>layout, part, start, stop)
        part += 1
    return reader.table(columns)


def read_spans(files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, columns, schema):
    """Read many row ranges, in order, as a table of one chunk per column.

    Args:
        files: (file, layout) of each part.
        part: of each range, the position of its file among `files`.
        start: first row of each range.
        stop: one past the last row of each range.
        columns: names of columns of the schema.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """
    cdef Reader reader = reader_of(files, part, start, stop, schema)
    ask_ahead(reader, list(columns))
    return reader.table(columns)


def read_live(files, const int64_t[::1] part, const int64_t[::1] start, const int64_t[::1] stop, limits, wanted, schema):
    """Read those rows of many ranges that are within limits, in order, as one batch; of the others only what decides.

    Args:
        files: (file, layout) of each part.
        part: of each range, the position of its file among `files`.
        start: first row of each range.
        stop: one past the last row of each range.
        limits: (name, after, upto): columns of 64-bit numbers or times, and which values are kept: after < v <= upto.
        wanted: the schema of the wanted columns, all of them of `schema`; texts may be wanted as views of the files.
        schema: the schema that the layouts were opened with (the same object, if time matters).

    Raises:
        Declined: pyarrow has to read these rows; `part` says of which file.
        Damaged: the file is not what its writer wrote.
    """
    cdef Reader reader = reader_of(files, part, start, stop, schema)
    ask_ahead(reader, [*(limit[0] for limit in limits), *wanted.names])
    for name, after, upto in limits:
        reader.keep(name, after, upto)
    return reader.batch(wanted)


def read_rows(file, layout, start, stop, wanted, schema):
    """Read one row range of one file as one batch; arguments and errors as of `read_live`."""
    cdef Reader reader = Reader()
    reader.schema = schema
    reader.add(file, <Layout?>layout)
    reader.want(<Layout>layout, 0, start, stop)
    return reader.batch(wanted)

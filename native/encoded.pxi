# Access to arrays of encoded keys, for the kernels that read them; follows common.pxi.

import pyarrow as _pa


cdef object open_keys(keys, Keys* view):
    """Fills `view` with the buffers of an array of encoded keys; the result owns them and must outlive it."""
    if isinstance(keys, _pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not isinstance(keys, _pa.Array):
        raise TypeError(f"keys must be an Arrow array of encoded keys, not {type(keys).__name__}")
    if _pa.types.is_binary(keys.type):
        keys = keys.cast(_pa.large_binary())
    if keys.null_count:
        raise ValueError("encoded keys are never null")
    keys.validate()
    buffers = keys.buffers()
    cdef int64_t offset = keys.offset
    view.count = len(keys)
    if _pa.types.is_fixed_size_binary(keys.type):
        view.width = keys.type.byte_width
        view.offsets = NULL
        view.data = address_of(buffers[1])
        if view.data != NULL:
            view.data += offset * view.width
    elif _pa.types.is_large_binary(keys.type):
        view.width = 0
        view.offsets = <const int64_t*>address_of(buffers[1])
        if view.offsets != NULL:
            view.offsets += offset
        view.data = address_of(buffers[2])
    else:
        raise TypeError(f"keys must be encoded by windrow.native.keys, not of type {keys.type}")
    return keys

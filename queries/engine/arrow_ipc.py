"""Rows as an Arrow stream in memory.

Most results are one batch, which is encoded without a writer; whatever needs dictionaries gets one.
"""

from collections.abc import Iterable

import pyarrow as pa


def as_single_batch(rows: pa.Table) -> pa.RecordBatch | None:
    """The rows as one batch that can stand by itself behind its schema; None if they need a writer."""
    batches = rows.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 and not has_dictionary(rows.schema.types) else None


def has_dictionary(kinds: Iterable[pa.DataType]) -> bool:
    """Whether some columns are dictionaries, whose values are stored apart from their batch."""
    return any(
        isinstance(kind, pa.DictionaryType)
        or (kind.num_fields and has_dictionary(kind.field(index).type for index in range(kind.num_fields)))
        for kind in kinds
    )


def encode_batch(batch: pa.RecordBatch, *, before: bytes = b"", schema: pa.Schema | None = None) -> bytes:
    """A batch as bytes behind the bytes `before`: its schema and the batch itself make a complete stream."""
    return b"".join((before, (batch.schema if schema is None else schema).serialize(), batch.serialize()))


def encode_table(rows: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> pa.Buffer:
    """Rows of any type as bytes, by a writer."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=options) as sink:
        sink.write_table(rows)
    return out.getvalue()

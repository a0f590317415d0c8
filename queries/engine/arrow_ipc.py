"""Rows as an Arrow stream in memory: most are one batch, which is put together without a writer."""

from collections.abc import Iterable

import pyarrow as pa


def as_single_batch(rows: pa.Table) -> pa.RecordBatch | None:
    """The rows as one batch that can stand by itself behind its schema; None if they need a writer."""
    batches = rows.combine_chunks().to_batches()
    return batches[0] if len(batches) == 1 and not has_dictionary(rows.schema.types) else None


def has_dictionary(kinds: Iterable[pa.DataType]) -> bool:
    """Whether some columns have values apart from their batch."""
    return any(
        pa.types.is_dictionary(kind) or has_dictionary(kind.field(at).type for at in range(kind.num_fields))
        for kind in kinds
    )


def encode_batch(batch: pa.RecordBatch, *, before: bytes = b"", schema: pa.Schema | None = None) -> bytes:
    """A batch as bytes, behind some others: a schema and a batch, one behind the other, are a whole stream."""
    return b"".join((before, (batch.schema if schema is None else schema).serialize(), batch.serialize()))


def encode_table(rows: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> pa.Buffer:
    """Rows of any kind as bytes, by a writer."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema, options=options) as sink:
        sink.write_table(rows)
    return out.getvalue()

"""Types of the digest of a batch."""

import pyarrow as pa

def digest_rows(rows: pa.Table | pa.RecordBatch) -> int:
    """Gives the digest of a table or batch; digests of the parts of a batch add up to its own modulo 2**64."""

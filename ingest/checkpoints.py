"""Checkpoints of streaming queries: which query a batch belongs to, and whether the batches before it are here.

Spark never sends a batch again that its checkpoint counts as done. So a checkpoint that is ahead of the warehouse, as
after a restoration from a backup, means that rows are lost, which is told before any other row is taken.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from windrow.append import Append
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import encode_batch_key, encode_checkpoint_key
from windrow.catalog.records import BatchEntry, CheckpointEntry
from windrow.errors import BatchConflictError
from windrow.identity import Origin, read_origin


def read_query_id(checkpoint: str) -> str | None:
    """Read the id that Spark gave the query of a checkpoint; None if it is not on a disk of this machine."""
    url = urlsplit(checkpoint)
    if url.scheme not in ("", "file"):
        return None
    path = Path(unquote(url.path) if url.scheme else checkpoint) / "metadata"
    try:
        return str(json.loads(path.read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class StreamingBatch:
    """One micro-batch of a streaming query."""

    query: str
    number: int
    older_id: str | None = None
    """The batch id that earlier releases gave it."""
    accept_loss: bool = False

    @property
    def id(self) -> str:
        """The batch id."""
        return f"spark:{self.query}:{self.number}"

    def find_older(self, job: Append) -> BatchEntry | None:
        """Find the entry that an earlier release made of this batch."""
        if self.older_id is None:
            return None
        key = encode_batch_key(job.entry.id, job.source, self.older_id)
        batch: BatchEntry | None = job.store.catalog.read(lambda tables: tables.get("batches", key))
        return None if batch is None or batch.whole else batch

    def attach(self, job: Append, *, is_recorded: bool) -> None:
        """Let an append record how far the query has come; refuse it if batches before this one are missing."""
        job.checkpoint = (self.query, self.number)
        if is_recorded or self.accept_loss or self.number == 0:
            return
        before = StreamingBatch(self.query, self.number - 1)

        def read_progress(tables: Tables) -> tuple[CheckpointEntry | None, bool, Origin | None]:
            reached = tables.get("checkpoints", encode_checkpoint_key(job.entry.id, self.query))
            has_last = tables.raw("batches", encode_batch_key(job.entry.id, job.source, before.id)) is not None
            return reached, has_last, read_origin(tables)

        reached, has_last, origin = job.store.catalog.read(read_progress)
        # A warehouse that was never restored may have got the query from elsewhere, or from an earlier release.
        if has_last or (origin is None if reached is None else reached.batch >= self.number - 1):
            return
        missing = f"0 to {before.number}" if reached is None else f"{reached.batch + 1} to {before.number}"
        raise BatchConflictError(
            f"the checkpoint of query {self.query!r} is at batch {self.number}, but batches {missing} of it are not in "
            f"stream {job.definition.name!r}, and Spark never sends them again; the warehouse was probably restored "
            "from a backup: start the query with a new checkpoint that reads them again, or with accept_loss=True"
        )

"""Checkpoints of streaming queries: which query a batch belongs to, and whether the batches before it are here.

Spark never sends a batch again that its checkpoint counts as done. So a checkpoint that is ahead of the warehouse, as
after a restoration from a backup, means that rows are lost, which is told before any other row is taken.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import structs

from windrow.append import Append
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import encode_batch_key, encode_checkpoint_key, find_stream
from windrow.catalog.records import BatchEntry, CheckpointEntry
from windrow.errors import BatchConflictError
from windrow.identity import Origin, read_origin
from windrow.store import Store


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
    is_part: bool = False
    """Whether it is what one of several sources has in it. Then `begin` and `finish` stand for all parts."""
    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of Kafka: where the batch ends in each partition, and how much lay behind that when it began."""
    began: int = 0

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
        if self.is_part:
            return
        job.checkpoint = (self.query, self._make_entry(()))
        if is_recorded or self.accept_loss or self.number == 0:
            return
        before = StreamingBatch(self.query, self.number - 1)

        def read_progress(tables: Tables) -> tuple[CheckpointEntry | None, bool, Origin | None]:
            reached = tables.get("checkpoints", encode_checkpoint_key(job.entry.id, self.query))
            has_last = tables.raw("batches", encode_batch_key(job.entry.id, job.source, before.id)) is not None
            return reached, has_last, read_origin(tables)

        reached, has_last, origin = job.store.catalog.read(read_progress)
        if reached is not None and reached.sources:
            raise BatchConflictError(
                f"query {self.query!r} has appended to stream {job.definition.name!r} as the sources "
                f"{', '.join(reached.sources)}; go on as before, or start it with a new checkpoint"
            )
        if not has_last:
            self._refuse_gap(job.definition.name, reached, origin)

    def begin(self, store: Store, stream: str) -> bool:
        """Say whether all of a batch of several sources is in; refuse it if batches before this one are missing."""

        def read_progress(tables: Tables) -> tuple[CheckpointEntry | None, Origin | None]:
            key = encode_checkpoint_key(find_stream(tables, stream)[0].id, self.query)
            return tables.get("checkpoints", key), read_origin(tables)

        reached, origin = store.catalog.read(read_progress)
        if reached is not None and reached.batch >= self.number:
            return True
        if not self.accept_loss and self.number > 0:
            self._refuse_gap(stream, reached, origin)
        return False

    def finish(self, store: Store, stream: str, sources: set[str]) -> None:
        """Record that what each of several sources has in the batch is in; `sources` are all that the query has had."""
        with store.catalog.write() as tables:
            key = encode_checkpoint_key(find_stream(tables, stream)[0].id, self.query)
            reached = self._make_entry(tuple(sorted(sources)))
            tables.put("checkpoints", key, structs.replace(reached, at=store.clock()))

    def _make_entry(self, sources: tuple[str, ...]) -> CheckpointEntry:
        """What the catalog keeps of it, but for the time of the commit."""
        return CheckpointEntry(
            source="", batch=self.number, at=0, sources=sources, partitions=dict(self.partitions), seen=self.began
        )

    def _refuse_gap(self, stream: str, reached: CheckpointEntry | None, origin: Origin | None) -> None:
        # A warehouse that was never restored may have got the query from elsewhere, or from an earlier release.
        if origin is None if reached is None else reached.batch >= self.number - 1:
            return
        last = self.number - 1
        missing = f"0 to {last}" if reached is None else f"{reached.batch + 1} to {last}"
        raise BatchConflictError(
            f"the checkpoint of query {self.query!r} is at batch {self.number}, but batches {missing} of it are not in "
            f"stream {stream!r}, and Spark never sends them again; the warehouse was probably restored "
            "from a backup: start the query with a new checkpoint that reads them again, or with accept_loss=True"
        )


def list_sources(store: Store, stream: str, query: str) -> set[str]:
    """List the sources that a query has had, of which its rows themselves tell."""

    def read_sources(tables: Tables) -> set[str]:
        reached = tables.get("checkpoints", encode_checkpoint_key(find_stream(tables, stream)[0].id, query))
        return set() if reached is None else set(reached.sources)

    return store.catalog.read(read_sources)

"""Source adapters: an object with three methods brings rows from anywhere into a stream, without Spark if need be.

Each source has a thread of its own. One that fails is declared failed, with the reason, and the others go on.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from windrow import times
from windrow.append import Append, AppendReport
from windrow.errors import DefinitionError, WindrowError
from windrow.ingest.backpressure import log, try_slide, wait_for_spool_space
from windrow.ingest.session import Totals, WarehouseOrPath, borrow_or_open
from windrow.warehouse import Warehouse


@dataclass(frozen=True)
class Batch:
    """Rows that come in together.

    Args:
        id: The same for the same rows, also after a restart; a batch that is in already is skipped.
        rows: Whatever `wh.append` takes, a Spark DataFrame, or a function without arguments that gives one of these
            (it is not called for a batch that is in already). None for a mere heartbeat.
        up_to: Nothing at or before this time will follow from the source.
    """

    id: str
    rows: Any = None
    up_to: times.Instant | None = None


class Adapter(Protocol):
    """A source of rows."""

    def start(self) -> None:
        """Open what has to be opened; called once, in the source's own thread."""

    def next_batch(self) -> Batch | None:
        """The next batch, when there is one; None when nothing will follow."""

    def done(self, batch: Batch) -> None:
        """The batch is durable: it may be acknowledged, or removed."""


class FolderAdapter:
    """Files of a folder, in the order of their names, each one a batch.

    Args:
        folder: Where they are.
        pattern: Which of them.
        format: As pyarrow names it: parquet, csv, json, arrow.
        remove: Remove a file when its rows are in.
    """

    def __init__(
        self, folder: str | Path, pattern: str = "*.parquet", format: str = "parquet", *, remove: bool = False
    ) -> None:
        self._folder = Path(folder)
        self._pattern = pattern
        self._format = format
        self._remove = remove
        self._files: Iterator[Path] = iter(())

    def start(self) -> None:
        """Look at the folder."""
        if not self._folder.is_dir():
            raise DefinitionError(f"{self._folder} is not a folder")
        self._files = iter(sorted(self._folder.glob(self._pattern)))

    def next_batch(self) -> Batch | None:
        """The next file."""
        path = next(self._files, None)
        return None if path is None else Batch(path.name, lambda: self._read(path))

    def _read(self, path: Path) -> Any:
        import pyarrow.dataset as ds

        return ds.dataset(path, format=self._format).scanner().to_reader()

    def done(self, batch: Batch) -> None:
        """Remove the file, if that is wanted."""
        if self._remove:
            (self._folder / batch.id).unlink(missing_ok=True)


def ingest(
    warehouse: WarehouseOrPath,
    stream: str,
    adapters: Mapping[str, Adapter],
    *,
    slide: str | None = "auto",
    max_spool_bytes: int | None = None,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Totals]:
    """Bring in what the adapters give until all have ended; each is the source of its name.

    Args:
        warehouse: An open warehouse, or its path.
        stream: Its name.
        adapters: By source.
        slide: ``"auto"`` slides whenever the sources have passed a slot, None leaves that to others.
        max_spool_bytes: While more than this is spooled, sources wait (but for those that the stream waits for).
        stopping: Asked between batches; once it says True, no further batch is taken.

    Returns:
        What each source brought in; `failure` says why one ended early.
    """
    if slide not in ("auto", None):
        raise DefinitionError(f"slide={slide!r} is unknown; use 'auto', or None to slide yourself")
    with borrow_or_open(warehouse) as wh:
        runs = [
            _AdapterRun(wh, stream, name, adapter, slide == "auto", max_spool_bytes, stopping)
            for name, adapter in adapters.items()
        ]
        threads = [threading.Thread(target=run.run, name=f"windrow-{run.source}") for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {run.source: run.totals for run in runs}


@dataclass(eq=False)
class _AdapterRun:
    """The run of one adapter, in its own thread."""

    warehouse: Warehouse
    stream: str
    source: str
    adapter: Adapter
    slide: bool
    limit: int | None
    stopping: Callable[[], bool]
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        # An unknown stream or source is then an error of the call, not of a thread.
        Append(self.warehouse._store, self.stream, self.source, None)

    def run(self) -> None:
        try:
            self.adapter.start()
            while not self.stopping() and (batch := self.adapter.next_batch()) is not None:
                if not self._take(batch):
                    return
                self.adapter.done(batch)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self.totals.failure = reason
            log.error("stream %r: source %r failed: %s", self.stream, self.source, reason)
            try:
                self.warehouse.fail_source(self.stream, self.source, reason)
            except WindrowError as refusal:
                log.error("stream %r: source %r could not be declared failed: %s", self.stream, self.source, refusal)

    def _take(self, batch: Batch) -> bool:
        wh = self.warehouse
        if not wait_for_spool_space(wh, self.stream, self.source, self.limit, slide=self.slide, stopping=self.stopping):
            return False
        if batch.rows is not None:
            self.totals.add(self._append(batch))
        if batch.up_to is not None:
            wh.heartbeat(self.stream, source=self.source, up_to=batch.up_to)
            self.totals.heartbeats += 1
        while self.slide and try_slide(wh, self.stream):
            self.totals.slides += 1
        return True

    def _append(self, batch: Batch) -> AppendReport:
        store = self.warehouse._store
        job = Append(store, self.stream, self.source, batch.id)
        known_batch = job.known_batch()
        if known_batch is not None:
            job.tally.rows, job.tally.digest = known_batch.rows, known_batch.digest
            return job.duplicate(known_batch)
        rows = batch.rows() if callable(batch.rows) else batch.rows
        if type(rows).__module__.partition(".")[0] == "pyspark":
            from windrow.ingest.append import append_rows

            return append_rows(rows, store, self.stream, self.source, batch.id)
        return job.run(rows)

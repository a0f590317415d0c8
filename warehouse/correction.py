"""Correction: a batch that was appended before gets other rows, in one transaction, wherever its rows are by now."""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from windrow.append import Append, AppendReport
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import BatchEntry, SourceEntry
from windrow.erasure import Replacement, replace_batch
from windrow.errors import BatchConflictError, DefinitionError
from windrow.relayout import hold_stream_lock
from windrow.segment_files import StagedFile
from windrow.slide_hooks import PrepareContribution, SlideHook
from windrow.store import Store


class Correction(Append):
    """An append that takes the place of an earlier one of the same source and batch id.

    Args:
        store: The warehouse.
        stream: Its name.
        source: Which source the rows come from.
        batch_id: Which batch; one that is not known is appended.
        hooks: What may add to the same transaction.
        refill: Fills views anew that have known the old rows.
        timeout: Seconds to wait for a slide.
    """

    def __init__(
        self,
        store: Store,
        stream: str,
        source: str | None,
        batch_id: str | None,
        hooks: Sequence[SlideHook],
        refill: PrepareContribution,
        timeout: float = 60.0,
    ) -> None:
        if batch_id is None:
            raise DefinitionError(
                f"replace=True says which batch of stream {stream!r} gets other rows by its batch_id; give one"
            )
        super().__init__(store, stream, source, batch_id, hooks)
        self._refill, self._timeout, self._all_hooks = refill, timeout, hooks
        self._sealed: StagedFile | None = None

    def known_batch(self) -> BatchEntry | None:
        """None: rows are written whatever is known, and compared at the commit."""
        return None

    def commit(self, replacing: Sequence[int] = ()) -> AppendReport:
        """Exchange the rows in one transaction, while nobody slides the stream."""
        store = self.store
        with hold_stream_lock(store, self.definition.name, self._timeout):
            old = super().known_batch()
            if old is None:
                return super().commit(replacing)
            if old.whole and not old.erased and (old.rows, old.digest) == (self.tally.rows, self.tally.digest):
                self.discard()
                return self.duplicate(old)
            if old.places is None:
                raise BatchConflictError(
                    f"where the rows of batch {self.batch_id!r} of source {self.source!r} are was not noted when it "
                    f"was appended to stream {self.definition.name!r}, by an earlier release; erase its rows "
                    "(wh.erase(where=…)) and append the new ones under another batch id, nothing was changed"
                )
            self._drain(0)
            self._check_share()  # before anything is written for the exchange
            self._preparers.clear()  # synopses are filled anew when rows have gone
            for staged in self.tally.files:
                staged.contributions = ()
            new = Replacement(self.batch_id or "", old.places, self._publish, partial(self._take_place, old))
            store.files.reach("append.committing")
            replaced = replace_batch(store, self.definition.name, new, refill=self._refill, hooks=self._all_hooks)
        store.cache_directories(self._directories)
        store.files.reach("append.committed")
        return self.report(self._sealed, replaced)

    def _publish(self) -> list[str]:
        names, self._sealed = self.publish()
        return names

    def _take_place(self, old: BatchEntry, tables: Tables) -> None:
        """Record the new rows; those of the old ones that were rejected go, and the source has sent so many less."""
        prefix = catalog_key(self.entry.id)
        rejected = [
            decode_last_int(key)
            for key, record in tables.items("rejected", prefix)
            if (record.source, record.batch_id) == (self.source, self.batch_id)
        ]
        source: SourceEntry = tables.get("sources", prefix + self.source.encode())
        tables.put("sources", prefix + self.source.encode(), replace(source, rows=source.rows - old.accepted))
        self._record(tables, self._sealed, rejected)

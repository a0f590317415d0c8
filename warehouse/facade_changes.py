"""The part of the front door through which a live stream is changed."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from windrow import times
from windrow.advisor import Advice, advise
from windrow.alter import alter_stream
from windrow.indexes.partitioners import Index
from windrow.moving import STEP_BYTES
from windrow.relayout import RelayoutReport, cancel_relayout, move_all, relayout
from windrow.store import Store


class Changes:
    """Layouts, search keys, columns and lifetimes of streams that are in use."""

    _store: Store

    def alter_stream(
        self,
        stream: str,
        *,
        add_column: tuple[str, pa.DataType] | pa.Field | None = None,
        lifetime: times.Duration | None = None,
        max_lifetime: times.Duration | None = None,
        slack: times.Duration | None = None,
        max_skew: times.Duration | None = None,
        max_ahead: times.Duration | None = None,
        timeout: float = 60.0,
    ) -> None:
        """Change a stream while it is in use; what is not given stays as it is. One transaction.

        Args:
            stream: Its name.
            add_column: A pair (name, Arrow type) or a nullable field; stored rows have null there, and so do rows that
                are appended without it.
            lifetime: How long every row lives, stored rows too; ``"forever"`` for rows that never expire. Rows that
                have expired stay gone. Only for streams whose rows all live equally long.
            max_lifetime: The longest that rows to come may live, on a stream with `expires`; stored rows keep theirs.
            slack: How far out of order the rows of a source may be.
            max_skew: How far a silent source may fall behind before it is spoken for; ``"never"`` to wait for it.
            max_ahead: How far ahead of the wall clock a row may be.
            timeout: Seconds to wait for a slide.
        """
        alter_stream(
            self._store,
            stream,
            add_column=add_column,
            lifetime=lifetime,
            max_lifetime=max_lifetime,
            slack=slack,
            max_skew=max_skew,
            max_ahead=max_ahead,
            timeout=timeout,
        )

    def relayout(
        self,
        stream: str,
        index: Index | str | None = None,
        *,
        key: str | Sequence[str] | None = None,
        move: bool | str = False,
        budget: int = STEP_BYTES,
        timeout: float = 60.0,
        progress: Callable[[RelayoutReport], None] | None = None,
    ) -> RelayoutReport:
        """Turn a stream to another layout or search key while it is read and written; answers stay exact throughout.

        Args:
            stream: Its name.
            index: An `Index`, ``"auto"``, or None to keep the one it has.
            key: Another search key, one column or several; None keeps the one it has, ``[]`` takes it away.
            move: False: rows go to the new layout as they come, older ones leave as they expire. ``"steps"``: besides,
                each slide moves stored rows. ``"now"``: stored rows are moved before this returns, step by step.
            budget: Bytes that one step moves at most; at least one segment.
            timeout: Seconds to wait for a slide.
            progress: Called after each step of ``"now"``.
        """
        return relayout(self._store, stream, index, key, move=move, budget=budget, timeout=timeout, progress=progress)

    def advise(self, stream: str, among: Sequence[Index] | None = None) -> Advice:
        """What layout and search key would serve a stream best, by what was measured of its rows and queries.

        Args:
            stream: Its name; it must have taken rows in.
            among: Only these layouts (and the present one); by default all that are worth a look.
        """
        return advise(self._store, stream, among)

    def relayout_step(self, stream: str, *, budget: int = STEP_BYTES, timeout: float = 60.0) -> RelayoutReport:
        """Move at most `budget` bytes of stored rows (at least one segment) from older layouts into the current one."""
        return move_all(self._store, stream, budget=budget, steps=1, timeout=timeout)

    def cancel_relayout(self, stream: str, *, timeout: float = 60.0) -> RelayoutReport:
        """Go back to the layout and key before a change that is under way; rows that were moved leave by expiring."""
        return cancel_relayout(self._store, stream, timeout)

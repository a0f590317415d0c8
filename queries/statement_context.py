"""What the layers above execution add to a statement: results of periodic queries, and how its rows would leave a view.

Execution knows neither periodic queries nor views; whoever asks for an answer passes this in.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from windrow.catalog.records import OWNER, Role
from windrow.queries.sql.statement import Reference, Statement
from windrow.queries.sql.window_spec import WindowSpec
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store
from windrow.windows import Window


class ResultTable(Protocol):
    """The results of a periodic query, which a statement may read like a table."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        ...

    @property
    def clock(self) -> int | None:
        """The end of the newest window in it."""
        ...

    def describe(self, store: Store, bounds: tuple[int, int] | None, clause: str) -> Window:
        """What is known of the runs whose windows end between two times."""
        ...

    def batches(self, store: Store, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows, with all columns or only the named ones."""
        ...


class SummaryTable(Protocol):
    """A summary, which a statement may read with windows of its stream."""

    @property
    def stream(self) -> str:
        """The stream that it is of."""
        ...

    def read(self, snapshot: Snapshot, window: WindowSpec) -> pa.Table:
        """What is known of the groups of a window."""
        ...


class Shortcut(Protocol):
    """How a statement is answered without reading its whole window."""

    @property
    def view(self) -> StreamSnapshot:
        """The only stream that the statement reads."""
        ...

    @property
    def reference(self) -> Reference:
        """What the statement says of it."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether no row need be read at all."""
        ...

    def answer(self) -> pa.Table:
        """The answer, if it is known."""
        ...

    def restrict(self) -> str | None:
        """A statement with the same answer that reads fewer rows; None if there is none."""
        ...

    def describe(self) -> str:
        """What is done, in words."""
        ...


def _find_no_results(snapshot: Snapshot, names: Collection[str] | None) -> Mapping[str, ResultTable]:  # noqa: ARG001
    return {}


def _find_no_summaries(snapshot: Snapshot, names: Collection[str] | None) -> Mapping[str, SummaryTable]:  # noqa: ARG001
    return {}


def _find_no_shortcut(snapshot: Snapshot, sql: str, params: object) -> Shortcut | None:  # noqa: ARG001
    return None


def _describe_no_pattern(statement: Statement, snapshot: Snapshot) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True)
class StatementContext:
    """What a statement can name and show beside streams and tables; by default nothing."""

    find_results: Callable[[Snapshot, Collection[str] | None], Mapping[str, ResultTable]] = _find_no_results
    """Result tables as of a snapshot, by name: those whose name in lower case is given, or all for None."""
    describe_pattern: Callable[[Statement, Snapshot], str] = _describe_no_pattern
    """The update pattern of a statement in words, for EXPLAIN; empty if it reads no stream."""
    find_summaries: Callable[[Snapshot, Collection[str] | None], Mapping[str, SummaryTable]] = _find_no_summaries
    """Summaries, by name in lower case: those that are given, or all for None."""
    find_shortcut: Callable[[Snapshot, str, object], Shortcut | None] = _find_no_shortcut
    """How a statement with its parameters can be answered from a snapshot without reading its whole window."""
    role: Role = OWNER
    """Who asks."""


NO_CONTEXT = StatementContext()

"""The interface of a system under test: a store updates and answers, a lower bound only writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.workload import Batch, SlidingRows

Scanned = tuple[int, str]
"""Count of the live rows, and the greatest payload."""


class System:
    """A system under test.

    Args:
        folder: Its own; empty at the beginning, removed by the harness at the end.
        workload: What it is going to be given.
    """

    name = ""
    about = ""
    """One line for the report: how it is set up."""
    needs = ""
    """The module that must be installed for it, if it is an optional one."""
    answers = True
    """Whether it can be asked; a floor cannot."""
    scan_by_sql: Callable[[], Scanned] | None = None
    """The scan in SQL, for a system whose `scan` is something else."""

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        self.folder = folder
        self.workload = workload

    def prepare(self, batch: Batch) -> Any:
        """The batch in the form that the system takes; not timed."""
        return batch.rows

    def update(self, batch: Batch, prepared: Any) -> None:
        """Take the rows in, let expired ones go, durably."""
        raise NotImplementedError

    def probe(self, key: int) -> Any:
        """All columns of the live rows with this key, in the fastest form that the system gives."""
        raise NotImplementedError

    def as_arrow(self, answer: Any) -> pa.Table:
        """What `probe` gave as Arrow, to be compared; not timed."""
        table: pa.Table = answer
        return table

    def scan(self) -> Scanned:
        """Touch the payload of every live row."""
        raise NotImplementedError

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """What another thread asks, on a connection of its own where there can be one, and what closes it.

        It counts the rows that had expired at a given time and are in an answer all the same, without a filter.
        """
        raise NotImplementedError

    def space(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.folder.rglob("*") if path.is_file())

    def notes(self) -> dict[str, Any]:
        """Figures of its own, recorded at the end."""
        return {}

    def close(self) -> None:
        """Let go of files."""


def rows_to_arrow(rows: list[tuple[int, int, int, str]], schema: pa.Schema) -> pa.Table:
    """What a store gave as Python rows, times in microseconds."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    whole = [pa.int64()] * 3 + [pa.string()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, whole, strict=True)]
    return pa.table([array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema)

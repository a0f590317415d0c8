"""Delta Lake through deltalake: append, delete what has expired, and compact and vacuum now and then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.systems.base import Scanned, System
from bench.workload import Batch, SlidingRows

_UPKEEP = 12
"""Updates between compactions: files of the deltas would pile up otherwise."""


class Delta(System):
    """One commit appends, the next deletes: readers in between filter by expiry, as these queries do."""

    name = "delta"
    about = (
        f"deltalake: append + delete(exp <= now), compaction and vacuum every {_UPKEEP} updates; "
        "asked by its own engine, with a filter on exp"
    )
    needs = "deltalake"

    def __init__(self, folder: Path, workload: SlidingRows) -> None:
        super().__init__(folder, workload)
        self.path = str(folder / "rows")
        self.table: Any = None
        self.now = 0

    def prepare(self, batch: Batch) -> Any:
        """Delta knows UTC times and ones without a zone; the latter need a newer protocol."""
        return batch.rows.set_column(1, "ts", _zoned(batch.rows["ts"])).set_column(2, "exp", _zoned(batch.rows["exp"]))

    def update(self, batch: Batch, prepared: Any) -> None:
        """Append, delete, sometimes clean up."""
        import deltalake

        deltalake.write_deltalake(self.path, prepared, mode="append")
        self.now = batch.now
        if self.table is None:
            self.table = deltalake.DeltaTable(self.path)
        self.table.update_incremental()
        self.table.delete(f"exp <= {_literal(batch.now)}")
        if batch.slot % _UPKEEP == 0:
            self.table.optimize.compact()
            self.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def _ask(self, columns: str, condition: str) -> pa.Table:
        from deltalake import QueryBuilder

        asked = f"SELECT {columns} FROM rows WHERE exp > {_literal(self.now)}{condition}"
        return pa.table(QueryBuilder().register("rows", self.table).execute(asked).read_all())

    def probe(self, key: int) -> Any:
        """By the statistics of the files."""
        return self._ask("key, ts, exp, payload", f" AND key = {key}")

    def as_arrow(self, answer: Any) -> pa.Table:
        """Of the workload's schema."""
        schema = self.workload.schema
        return pa.table([answer.column(f.name).cast(f.type) for f in schema], schema=schema)

    def scan(self) -> Scanned:
        """An aggregate over the payload."""
        totals = self._ask("count(*) AS n, max(payload) AS greatest", "").to_pylist()[0]
        return int(totals["n"]), str(totals["greatest"] or "")

    def reader(self) -> tuple[Callable[[int], int], Callable[[], None]]:
        """The newest version of the table, opened anew each time."""

        def ask(now: int) -> int:
            from deltalake import DeltaTable, QueryBuilder

            asked = f"SELECT count(*) AS n FROM rows WHERE exp <= {_literal(now)}"
            rows = QueryBuilder().register("rows", DeltaTable(self.path)).execute(asked).read_all()
            return int(pa.table(rows).column("n")[0].as_py())

        return ask, lambda: None


def _zoned(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return times.cast(pa.timestamp("us", "UTC"))


def _literal(now: int) -> str:
    return f"arrow_cast({now}, 'Timestamp(Microsecond, Some(\"UTC\"))')"

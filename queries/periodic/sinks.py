"""File sinks: after a run is committed, its rows are put into a folder as one file, under a name that is the run's own.

The file is written beside its place, synced and renamed, so nobody sees half of one. A crash between commit and rename
leaves the run marked as not yet placed; the next round writes the same file again, under the same name.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import QueryEntry, QueryState, RunEntry
from windrow.errors import StorageError
from windrow.files import disk_errors
from windrow.formats.text import write_csv, write_json_lines
from windrow.queries.answer import narrow_integers
from windrow.queries.periodic import html_report, result_store
from windrow.store import Store

_SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl", "html": ".html"}


def query_folder(entry: QueryEntry) -> str:
    """The warehouse's own folder of a query's files, relative to it: what is in there follows the retention."""
    return f"results/{entry.name}/"


def run_file_name(entry: QueryEntry, slide: int, end: int | None) -> str:
    """The path of a run's file: relative to the warehouse, or absolute in a folder that the user named."""
    stamp = "" if end is None else times.format_time(end).translate({ord("-"): None, ord(":"): None})
    name = f"{entry.name}-{stamp}-{slide}{_SUFFIXES[entry.sink]}"
    return str(Path(entry.folder) / name) if entry.folder else query_folder(entry) + name


def latest_file_name(entry: QueryEntry) -> str:
    """The path of the newest report of a query in the warehouse."""
    return f"{query_folder(entry)}{entry.name}-latest.html"


def place_file(store: Store, entry: QueryEntry, run: RunEntry) -> None:
    """Put a run's file into its folder."""
    target = store.root / run.file  # an absolute name stays what it is
    rows = result_store.read_run(store, entry, run.slide)
    with disk_errors(f"writing {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace_file(store, target, _WRITERS[entry.sink](store, entry, run, rows))
        if entry.sink == "html":
            _replace_file(store, target.with_name(Path(latest_file_name(entry)).name), target.read_bytes())
    store.files.reach("query.placed")


def _replace_file(store: Store, target: Path, content: bytes) -> None:
    hidden = target.with_name(f".{target.name}.tmp")
    with store.files.sink(hidden) as sink:
        sink.write(content)
    store.files.sync(hidden)
    store.files.rename(hidden, target)
    store.files.sync(target.parent)


def place_waiting_files(store: Store, entries: Sequence[QueryEntry]) -> dict[int, str]:
    """Put the files of delivered runs that are still waiting for it into their folders, and note it in one commit.

    The caller holds the queries' locks. A folder that cannot be written is kept as the query's error and tried again.

    Returns:
        Why the newest file of a query is still waiting, by the query's number; those whose files are all there are not
        in it.
    """
    done: dict[int, tuple[list[int], str | None]] = {}
    waiting = store.catalog.read(lambda tables: [_find_waiting(tables, entry) for entry in entries])
    for entry, runs in zip(entries, waiting, strict=True):
        placed: list[int] = []
        done[entry.id] = placed, None
        for run in runs:
            try:
                place_file(store, entry, run)
            except StorageError as failure:
                done[entry.id] = placed, str(failure)
                break
            placed.append(run.slide)
    if not done:
        return {}
    with store.catalog.write() as tables:
        for query, (placed, error) in done.items():
            state: QueryState | None = tables.get("paced", catalog_key(query))
            if state is not None:
                left = tuple(slide for slide in state.unplaced if slide not in placed) if error else ()
                message = error or (state.error if state.failures else None)
                tables.put("paced", catalog_key(query), replace(state, unplaced=left, error=message))
    store.files.reach("query.settled")
    return {query: error for query, (_, error) in done.items() if error is not None}


def _find_waiting(tables: Tables, entry: QueryEntry) -> list[RunEntry]:
    state: QueryState | None = tables.get("paced", catalog_key(entry.id))
    runs = [tables.get("runs", catalog_key(entry.id, slide)) for slide in (() if state is None else state.unplaced)]
    return [run for run in runs if run is not None]


def _portable(rows: pa.Table) -> pa.Table:
    """Staleness in seconds, which every reader of files understands."""
    position = rows.schema.get_field_index("_staleness")
    seconds = pc.divide(rows.column(position).cast(pa.int64()).cast(pa.float64()), 1e6)
    return narrow_integers(rows.set_column(position, "_staleness", seconds))


def _parquet(store: Store, entry: QueryEntry, run: RunEntry, rows: pa.Table) -> bytes:  # noqa: ARG001
    out = pa.BufferOutputStream()
    pq.write_table(_portable(rows), out)
    content: bytes = out.getvalue().to_pybytes()
    return content


def _csv(store: Store, entry: QueryEntry, run: RunEntry, rows: pa.Table) -> bytes:  # noqa: ARG001
    pieces: list[bytes] = []
    portable = _portable(rows)
    write_csv(portable.to_batches(), portable.schema, pieces.append)
    return b"".join(pieces)


def _jsonl(store: Store, entry: QueryEntry, run: RunEntry, rows: pa.Table) -> bytes:  # noqa: ARG001
    pieces: list[bytes] = []
    write_json_lines(_portable(rows).to_batches(), pieces.append)
    return b"".join(pieces)


def _html(store: Store, entry: QueryEntry, run: RunEntry, rows: pa.Table) -> bytes:
    history = result_store.read_last_runs(store, entry, html_report.MAX_POINTS) if rows.num_rows == 1 else rows
    return html_report.render_page(entry, run, rows, history).encode()


_WRITERS: dict[str, Callable[[Store, QueryEntry, RunEntry, pa.Table], bytes]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
    "html": _html,
}

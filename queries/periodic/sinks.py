"""Sinks: after a run is committed, its rows are put into a folder as one file with a name of its own, or sent away.

The file is written beside its place, synced and renamed, so nobody sees half of one. A crash between commit and rename
leaves the run marked as not yet placed; the next round writes the same file again, under the same name.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
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
from windrow.identity import read_owner
from windrow.queries.answer import narrow_integers
from windrow.queries.periodic import html_report, result_store
from windrow.queries.periodic.definition import read_own_schema
from windrow.queries.periodic.outbound import OUTBOUND, send_run
from windrow.store import Store
from windrow.windows import attach

_SENDERS = 8
"""Queries whose runs are sent away at once; each waits for its host."""
_FIRST_BACK_OFF, _MAX_BACK_OFF = times.SECOND, 3600 * times.SECOND
_SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "jsonl": ".jsonl", "html": ".html"}


def query_folder(entry: QueryEntry) -> str:
    """The warehouse's own folder of a query's files, relative to it: what is in there follows the retention."""
    return f"results/{entry.name}/"


def run_file_name(entry: QueryEntry, slide: int, end: int | None, revision: int = 0) -> str:
    """The path of a run's file: relative to the warehouse, or absolute in a folder that the user named."""
    stamp = "" if end is None else times.format_time(end).translate({ord("-"): None, ord(":"): None})
    number = f"-r{revision}" if revision else ""
    name = f"{entry.name}-{stamp}-{slide}{number}{_SUFFIXES[entry.sink]}"
    return str(Path(entry.folder) / name) if entry.folder else query_folder(entry) + name


def latest_file_name(entry: QueryEntry) -> str:
    """The path of the newest report of a query in the warehouse."""
    return f"{query_folder(entry)}{entry.name}-latest.html"


def place_file(store: Store, entry: QueryEntry, run: RunEntry, newest: int | None) -> None:
    """Put a run's file into its folder; `newest` is the slide of the last run."""
    target = store.root / run.file  # an absolute name stays what it is
    rows = result_store.read_run(store, entry, run.slide, run.revision)
    with disk_errors(f"writing {target}"):
        if entry.folder:
            target.parent.mkdir(parents=True, exist_ok=True)
        store.files.make_folder(target.parent)
        content = _WRITERS[entry.sink](store, entry, run, rows)
        _replace_file(store, target, content)
        if entry.sink == "html" and (newest is None or run.slide >= newest or not (run.revision or run.backfilled)):
            _replace_file(store, target.with_name(Path(latest_file_name(entry)).name), content)
    store.files.reach("query.placed")


def _replace_file(store: Store, target: Path, content: bytes) -> None:
    # A folder that the user named may be anybody's: the hidden name cannot be guessed, and the file is made anew, never
    # followed. It is the same for each attempt, so what a process that was killed has left is replaced by the next.
    secret = store.catalog.read(read_owner).uuid or str(store.root)
    digest = hashlib.blake2b(str(target).encode(), key=secret.encode()[:64], digest_size=16).hexdigest()
    hidden = target.with_name(f".{target.name}.{digest}.tmp")
    store.files.unlink(hidden)
    try:
        with store.files.sink(hidden) as sink:
            sink.write(content)
        store.files.sync(hidden)
        store.files.rename(hidden, target)
    except BaseException:
        store.files.unlink(hidden)
        raise
    store.files.sync(target.parent)


def place_waiting_files(store: Store, entries: Sequence[QueryEntry]) -> dict[int, str]:
    """Put the files of delivered runs that are still waiting for it into their folders, and note it in one commit.

    The caller holds the queries' locks. A folder that cannot be written is kept as the query's error and tried again.

    Returns:
        Why the newest file of a query is still waiting, by the query's number; those whose files are all there are not
        in it.
    """
    waiting = store.catalog.read(lambda tables: [_find_waiting(store, tables, entry) for entry in entries])
    todo = [(entry, *file) for entry, file in zip(entries, waiting, strict=True) if file is not None]
    if not todo:
        return {}
    sent = [each for each in todo if each[0].sink in OUTBOUND]
    done = {each[0].id: _place_runs(store, *each) for each in todo if each[0].sink not in OUTBOUND}
    if sent:
        with ThreadPoolExecutor(min(_SENDERS, len(sent)), thread_name_prefix="windrow-send") as pool:
            done |= zip(
                (each[0].id for each in sent), pool.map(lambda each: _place_runs(store, *each), sent), strict=True
            )
    with store.catalog.write() as tables:
        for query, (placed, error) in done.items():
            state: QueryState | None = tables.get("paced", catalog_key(query))
            if state is not None:
                unplaced = tuple(slide for slide in state.unplaced if (slide, 0) not in placed) if error else ()
                revisions = tuple(each for each in state.unplaced_revisions if each not in placed) if error else ()
                message = error or (state.error if state.failures else None)
                failures = state.place_failures + 1 if error else 0
                wait = min(_FIRST_BACK_OFF << min(failures - 1, 32), _MAX_BACK_OFF) if error else 0
                state = replace(
                    state,
                    unplaced=unplaced,
                    unplaced_revisions=revisions,
                    error=message,
                    place_failures=failures,
                    place_at=store.clock() + wait if error else None,
                )
                tables.put("paced", catalog_key(query), state)
    store.files.reach("query.settled")
    return {query: error for query, (_, error) in done.items() if error is not None}


def _place_runs(
    store: Store, entry: QueryEntry, runs: Sequence[RunEntry], newest: int | None
) -> tuple[list[tuple[int, int]], str | None]:
    """Place or send runs in their order; gives which, and why not all."""
    placed: list[tuple[int, int]] = []
    for run in runs:
        try:
            if entry.sink in OUTBOUND:
                rows = result_store.read_run(store, entry, run.slide, run.revision)
                send_run(store, entry, run, _portable(rows).select(read_own_schema(entry).names))
                store.files.reach("query.placed")
            else:
                place_file(store, entry, run, newest)
        except StorageError as failure:
            return placed, str(failure)
        placed.append((run.slide, run.revision))
    return placed, None


def _find_waiting(store: Store, tables: Tables, entry: QueryEntry) -> tuple[list[RunEntry], int | None] | None:
    """The runs and revisions that wait to be placed, and the slide of the last run; None if it is too early to try."""
    state: QueryState | None = tables.get("paced", catalog_key(entry.id))
    if state is None:
        return [], None
    if entry.sink in OUTBOUND and state.place_at is not None and store.clock() < state.place_at:
        return None
    runs = [tables.get("runs", catalog_key(entry.id, slide)) for slide in state.unplaced]
    runs += [tables.get("revisions", catalog_key(entry.id, *each)) for each in state.unplaced_revisions]
    return [run for run in runs if run is not None], state.delivered


def _portable(rows: pa.Table) -> pa.Table:
    """Staleness in seconds, which every reader of files understands."""
    position = rows.schema.get_field_index("_staleness")
    seconds = pc.divide(rows.column(position).cast(pa.int64()).cast(pa.float64()), 1e6)
    return narrow_integers(rows.set_column(position, "_staleness", seconds))


def _parquet(store: Store, entry: QueryEntry, run: RunEntry, rows: pa.Table) -> bytes:  # noqa: ARG001
    out = pa.BufferOutputStream()
    portable = _portable(rows)
    about = {
        "windows": msgspec.json.decode(run.windows or "[]"), "complete": run.complete, "coverage": run.coverage,
        "isolation": "snapshot", "staleness": run.staleness / 1e6, "commit": run.version,
    }  # fmt: skip
    pq.write_table(portable.replace_schema_metadata(attach(portable.schema, about).metadata), out)
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

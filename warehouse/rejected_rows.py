"""Rejected rows: kept with their reason, readable, replayable, discardable."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from windrow.append import Append, AppendReport
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import RejectedEntry, StreamEntry
from windrow.catalog.segment_log import retire_files
from windrow.indexes.segment_reader import conform_to_schema
from windrow.rejection import rejected_schema
from windrow.store import Store

if TYPE_CHECKING:
    from windrow.cli.flawed_lines import FlawedLines, TextFormat


def _read_entries(tables: Tables, stream: str) -> tuple[StreamEntry, dict[int, RejectedEntry]]:
    entry, _ = find_stream(tables, stream)
    return entry, {decode_last_int(key): record for key, record in tables.items("rejected", catalog_key(entry.id))}


def read_rejected(store: Store, stream: str) -> pa.Table:
    """All rejected rows of a stream, oldest first."""
    entry, entries = store.catalog.read(lambda tables: _read_entries(tables, stream))
    schema = rejected_schema(entry.definition.schema)
    return pa.concat_tables(
        [schema.empty_table(), *(read_rejected_file(store, record, schema) for record in entries.values())]
    )


def read_rejected_file(store: Store, record: RejectedEntry, schema: pa.Schema) -> pa.Table:
    """The rows of one file of rejected rows."""
    stored = store.reader.open(record.file)[0].schema_arrow
    return conform_to_schema(pa.Table.from_batches(list(store.reader.read_file(record.file)), stored), schema)


def replay_rejected(
    store: Store,
    stream: str,
    reading: "Callable[[TextFormat], TextFormat] | None" = None,
    mend: Callable[[pa.Table], pa.Table] | None = None,
) -> AppendReport:
    """Append all rejected rows again, those of each source in one transaction; some may be rejected anew.

    Lines of text files are read again, as they were or as `reading` says; or all rows are as `mend` makes them.
    """
    store.check_writable()
    entry, entries = store.catalog.read(lambda tables: _read_entries(tables, stream))
    schema = rejected_schema(entry.definition.schema)
    names, reports = entry.definition.schema.names, []
    # By source: a row that is taken now is progress of the source that sent it, not of another.
    for source in dict.fromkeys(record.source for record in entries.values()):
        of_source = {number: record for number, record in entries.items() if record.source == source}
        rows = pa.concat_tables([read_rejected_file(store, record, schema) for record in of_source.values()])
        if mend is None:
            rows, flaws = _read_lines_again(rows, entry.definition.schema, reading)
        else:
            rows, flaws = mend(rows), None
            columns = [name for name in rows.schema.names if name in names or name not in schema.names]
            rows = rows.select(columns)
        reports.append(Append(store, stream, source, None).run(rows, replacing=list(of_source), flaws=flaws))
    return _sum_reports(stream, reports)


def _read_lines_again(
    rows: pa.Table, schema: pa.Schema, reading: "Callable[[TextFormat], TextFormat] | None"
) -> "tuple[pa.Table, FlawedLines]":
    """The rows, and those of lines that can be read now; the others are flaws again."""
    from windrow.cli.flawed_lines import FlawedLine, FlawedLines, TextFormat

    flaws = FlawedLines()
    if "_format" not in rows.schema.names or schema.get_field_index("_format") >= 0:
        return rows.select(schema.names), flaws
    typed = rows.filter(pc.is_null(rows.column("_format"))).select(schema.names)
    tables = [typed]
    for written in pc.unique(rows.column("_format").drop_null()).to_pylist():
        lines = rows.filter(pc.equal(rows.column("_format"), written)).select(["_file", "_line", "_text"]).to_pylist()
        text = TextFormat.from_json(written)
        text = text if reading is None else reading(text)
        parsed, reasons = text.parse([line["_text"].encode() for line in lines], schema)
        tables.append(conform_to_schema(parsed, typed.schema))
        for position, why in sorted(reasons.items()):
            line = lines[position]
            flaws.kept.append(FlawedLine(line["_file"], line["_line"], why, line["_text"], text.to_json()))
    return pa.concat_tables(tables), flaws


def _sum_reports(stream: str, reports: list[AppendReport]) -> AppendReport:
    reasons: Counter[str] = sum((Counter(report.rejected) for report in reports), Counter())
    return AppendReport(
        stream=stream,
        source=", ".join(report.source for report in reports),
        batch_id=None,
        rows=sum(r.rows for r in reports),
        accepted=sum(r.accepted for r in reports),
        rejected=dict(reasons),
        late=sum(r.late for r in reports),
        duplicate=False,
        bytes_written=sum(r.bytes_written for r in reports),
        seconds=sum(r.seconds for r in reports),
    )


def discard_rejected(store: Store, stream: str) -> int:
    """Throw the rejected rows away."""
    store.check_writable()
    with store.catalog.write() as tables:
        entry, entries = _read_entries(tables, stream)
        state = tables.get("states", catalog_key(entry.id))
        rows = sum(record.rows for record in entries.values())
        for number in entries:
            tables.delete("rejected", catalog_key(entry.id, number))
        tables.put("states", catalog_key(entry.id), replace(state, rejected=state.rejected - rows))
        retire_files(tables, [record.file for record in entries.values()], entry.id)
        return rows

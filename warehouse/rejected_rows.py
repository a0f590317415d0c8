"""Rejected rows: kept with their reason, readable, replayable, discardable."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from windrow.append import Append, AppendReport
from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import RejectedEntry, StreamEntry
from windrow.catalog.segment_log import retire_files
from windrow.errors import DamageError
from windrow.rejection import REJECTION_COLUMNS
from windrow.store import Store


def _read_entries(tables: Tables, stream: str) -> tuple[StreamEntry, dict[int, RejectedEntry]]:
    entry, _ = find_stream(tables, stream)
    return entry, {decode_last_int(key): record for key, record in tables.items("rejected", catalog_key(entry.id))}


def read_rejected(store: Store, stream: str) -> pa.Table:
    """All rejected rows of a stream, oldest first."""
    entry, entries = store.catalog.read(lambda tables: _read_entries(tables, stream))
    schema = pa.schema([*(field.with_nullable(True) for field in entry.definition.schema), *REJECTION_COLUMNS])
    return pa.concat_tables([schema.empty_table(), *(_read_file(store, record, schema) for record in entries.values())])


def _read_file(store: Store, record: RejectedEntry, schema: pa.Schema) -> pa.Table:
    from windrow.indexes.segment_reader import conform_to_schema

    try:
        return conform_to_schema(pq.ParquetFile(store.root / record.file).read(), schema)
    except (OSError, pa.ArrowInvalid) as error:
        raise DamageError(
            f"file of rejected rows {record.file} cannot be read ({error}); run 'windrow check'"
        ) from None


def replay_rejected(store: Store, stream: str) -> AppendReport:
    """Append all rejected rows again, those of each source in one transaction; some may be rejected anew."""
    store.check_writable()
    entry, entries = store.catalog.read(lambda tables: _read_entries(tables, stream))
    schema = pa.schema([*(field.with_nullable(True) for field in entry.definition.schema), *REJECTION_COLUMNS])
    reports = []
    # By source: a row that is taken now is progress of the source that sent it, not of another.
    for source in dict.fromkeys(record.source for record in entries.values()):
        of_source = {number: record for number, record in entries.items() if record.source == source}
        rows = pa.concat_tables([_read_file(store, record, schema) for record in of_source.values()])
        reports.append(
            Append(store, stream, source, None).run(
                rows.select(entry.definition.schema.names), replacing=list(of_source)
            )
        )
    return _sum_reports(stream, reports)


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

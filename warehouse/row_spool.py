"""The row spool: rows of small appends wait in the catalog, until one file takes all that a source has sent.

Waiting rows have a number in the spool like a file has: a `WaitingEntry` holds its place there. Beside it, in
`waiting`, lie a head (how much waits) and the rows, one record for each append. Whoever gathers them writes a file and
puts its `SpoolEntry` in that place, in one transaction; rows that came meanwhile move behind it under a new number.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import xxhash
from msgspec.structs import replace

from windrow.catalog.environment import Catalog, Tables, catalog_key, decode_last_int
from windrow.catalog.lookups import find_stream
from windrow.catalog.records import ArrivalEntry, SourceEntry, SpoolEntry, StreamState, WaitingEntry
from windrow.errors import FormatError
from windrow.indexes.segments import Segment

SMALL_ROWS = 8
SMALL_BYTES = 16 << 10
"""Appends of at most so many rows and bytes wait in the catalog (`bench trickle`): a file costs two syncs more."""
GATHERED_BYTES = 16 << 20
GATHERED_RECORDS = 1 << 16
"""What may wait of one source before an append writes it to a file; at four times as much, appends write files."""
_RECORDS_AT_A_TIME = 2048
"""Of waiting rows that are gathered: some milliseconds, for which writers wait. Not measured."""
_HEAD = struct.Struct(">QQQQ")


@dataclass(frozen=True)
class Head:
    """How much waits under one number."""

    records: int = 0
    rows: int = 0
    bytes: int = 0
    schema: int = 0
    """A hash of the columns that the rows have."""

    @property
    def is_full(self) -> bool:
        """Whether it is time to write a file."""
        return self.bytes >= GATHERED_BYTES or self.records >= GATHERED_RECORDS


@dataclass(frozen=True)
class WaitingRows:
    """What waits under a number, as one transaction found it; more may come, but these stay until they are gathered."""

    number: int
    entry: WaitingEntry
    head: Head


def read_head(tables: Tables, stream: bytes, number: int) -> Head | None:
    """How much waits under a number; None if nothing does."""
    raw = tables.raw("waiting", stream + catalog_key(number))
    return None if raw is None else Head(*_HEAD.unpack(raw))


def add_rows(
    tables: Tables, stream: bytes, state: StreamState, source: SourceEntry, rows: WaitingEntry, count: int, body: bytes
) -> tuple[int, Head] | None:
    """Let the rows of one append wait: those of one source that have the same columns wait together.

    Args:
        tables: Of the append's transaction.
        stream: Its key.
        state: Of the stream; its record is changed where the rows get a new number.
        source: The record of whose rows they are.
        rows: Their place, if they need a new one.
        count: How many they are.
        body: They, as Arrow IPC.

    Returns:
        The number under which they wait, and how much does now; None if there is too much, and nothing was changed.
    """
    number, hashed = source.spooled, xxhash.xxh3_64_intdigest(rows.schema)
    head = read_head(tables, stream, number) if number >= 0 else None
    if head is None or head.schema != hashed:
        number, head = state.next_spool, Head(schema=hashed)
        tables.put("states", stream, replace(state, next_spool=number + 1))
        tables.put("spool", stream + catalog_key(number), rows)
    elif head.bytes >= 4 * GATHERED_BYTES or head.records >= 4 * GATHERED_RECORDS:
        return None
    key = stream + catalog_key(number)
    tables.put_raw("waiting", key + catalog_key(head.records), body)
    head = Head(head.records + 1, head.rows + count, head.bytes + len(body), hashed)
    tables.put_raw("waiting", key, _pack(head))
    return number, head


def _pack(head: Head) -> bytes:
    return _HEAD.pack(head.records, head.rows, head.bytes, head.schema)


def list_waiting(tables: Tables, stream: bytes) -> Iterator[WaitingRows]:
    """What waits of a stream, in the order of its numbers."""
    for key, record in tables.items("spool", stream):
        number = decode_last_int(key)
        if isinstance(record, WaitingEntry) and (head := read_head(tables, stream, number)) is not None:
            yield WaitingRows(number, record, head)


def find_waiting(tables: Tables, stream: str) -> list[WaitingRows]:
    """What waits of a stream, by its name."""
    entry, _ = find_stream(tables, stream)
    return list(list_waiting(tables, catalog_key(entry.id)))


def list_files(tables: Tables, stream: bytes = b"") -> Iterator[tuple[bytes, SpoolEntry]]:
    """The files in the spool, of a stream or of all."""
    for key, record in tables.items("spool", stream):
        if isinstance(record, SpoolEntry):
            yield key, record


def read_rows(catalog: Catalog, stream: bytes, waiting: WaitingRows) -> pa.Table:
    """Waiting rows, in the order in which they came; the stream's lock must be held.

    Ordinary reads begin anew when commits overtake them, and many writers commit while so much is read: a few records
    at a time are read while nobody writes.
    """
    bodies: list[bytes] = []
    while len(bodies) < waiting.head.records:
        most = min(_RECORDS_AT_A_TIME, waiting.head.records - len(bodies))
        with catalog.exclusive() as tables:
            stored = list(islice(_bodies(tables, stream, waiting.number, len(bodies)), most))
        if len(stored) < most:
            raise FormatError(
                f"the catalog has lost waiting rows of source {waiting.entry.source!r}; restore it from a copy"
            )
        bodies += stored
    return _decode(waiting.entry, bodies)


def _decode(entry: WaitingEntry, bodies: Iterable[bytes]) -> pa.Table:
    schema = pa.ipc.read_schema(pa.py_buffer(entry.schema))
    return pa.Table.from_batches([pa.ipc.read_record_batch(body, schema) for body in bodies], schema).combine_chunks()


def _bodies(tables: Tables, stream: bytes, number: int, first: int) -> Iterator[bytes]:
    key = stream + catalog_key(number)
    for _, raw in tables.raw_items("waiting", key, key + catalog_key(first)):
        yield bytes(raw)


def replace_waiting(
    tables: Tables, stream: bytes, state: StreamState, taken: WaitingRows, file: SpoolEntry
) -> StreamState:
    """Put a file in the place of rows that it was made of; rows that came meanwhile get the next number.

    Returns:
        The stream's state, for the caller to put down.
    """
    key = stream + catalog_key(taken.number)
    head = read_head(tables, stream, taken.number)
    assert head is not None, "waiting rows go only under the stream's lock"
    later = list(_bodies(tables, stream, taken.number, taken.head.records))
    tables.delete_prefix("waiting", key)
    tables.put("spool", key, file)
    if not later:
        return state
    moved = stream + catalog_key(state.next_spool)
    tables.put("arrivals", key, ArrivalEntry(file.at, after=taken.head.rows, moved=state.next_spool))
    tables.put("spool", moved, taken.entry)
    for place, body in enumerate(later):
        tables.put_raw("waiting", moved + catalog_key(place), body)
    rest = Head(len(later), head.rows - taken.head.rows, head.bytes - taken.head.bytes, head.schema)
    tables.put_raw("waiting", moved, _pack(rest))
    source = stream + taken.entry.source.encode()
    record: SourceEntry = tables.get("sources", source)
    if record.spooled == taken.number:
        tables.put("sources", source, replace(record, spooled=state.next_spool))
    return replace(state, next_spool=state.next_spool + 1)


def note_arrivals(
    tables: Tables,
    stream: int,
    spooled: Mapping[int, SpoolEntry],
    placed: Iterable[Segment],
    slide: int,
    wall_time: int,
) -> None:
    """Note what a slide has made of numbers in the spool, for who asks for the rows of a batch."""
    if next(iter(tables.raw_items("batches", catalog_key(stream))), None) is None:
        return
    bases = {segment.id: segment.seq_base for segment in placed}
    for number, record in spooled.items():
        key = catalog_key(stream, number)
        arrivals: ArrivalEntry = tables.get("arrivals", key) or ArrivalEntry(wall_time)
        tables.put("arrivals", key, arrivals._replace(at=wall_time, base=bases[record.segments[0].id], slide=slide))


@dataclass(frozen=True)
class BatchRows:
    """Where the rows of a batch are: all in the spool, or all taken in by one slide."""

    spooled: frozenset[int]
    """Their numbers in the spool; then `arrivals` count from 0 there."""
    slides: frozenset[int]
    """The slots of the slides that took them in; then `arrivals` are sequences of rows."""
    arrivals: tuple[tuple[int, int], ...]
    """First ones, and those after the last."""


def find_batch(tables: Tables, stream: int, places: Iterable[tuple[int, int, int]]) -> BatchRows:
    """Find the rows of a batch by where they were spooled."""
    spooled, slides, arrivals = set[int](), set[int](), list[tuple[int, int]]()
    for place in places:
        number, first, rows = place
        arrival: ArrivalEntry | None = tables.get("arrivals", catalog_key(stream, number))
        while arrival is not None and arrival.after is not None and first >= arrival.after:
            assert arrival.moved is not None
            number, first = arrival.moved, first - arrival.after
            arrival = tables.get("arrivals", catalog_key(stream, number))
        if tables.raw("spool", catalog_key(stream, number)) is not None:
            spooled.add(number)
            arrivals.append((first, first + rows))
        elif arrival is not None and arrival.base is not None and arrival.slide is not None:
            slides.add(arrival.slide)
            arrivals.append((arrival.base + first, arrival.base + first + rows))
    return BatchRows(frozenset(spooled), frozenset(slides), tuple(arrivals))


def find_problems(tables: Tables) -> Iterator[str]:
    """What is wrong with waiting rows: each head is true, each record can be read, and each has its place."""
    places = set()
    for key, record in tables.items("spool"):
        if not isinstance(record, WaitingEntry):
            continue
        places.add(key)
        stream, number = key[:8], decode_last_int(key)
        head = read_head(tables, stream, number)
        if head is None:
            yield f"waiting rows of source {record.source!r} have a place in the spool but are not there"
            continue
        bodies = list(_bodies(tables, stream, number, 0))
        rows = _decode(record, bodies)
        actual = Head(len(bodies), rows.num_rows, sum(map(len, bodies)), xxhash.xxh3_64_intdigest(record.schema))
        if actual != head:
            yield f"waiting rows of source {record.source!r} should be {head}, they are {actual}"
    stray = {key[:16] for key, _ in tables.raw_items("waiting")} - places
    if stray:
        yield f"{len(stray)} numbers of waiting rows have no place in the spool"

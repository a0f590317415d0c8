"""The packed sort key: cell column, search key and expiry in one 63-bit number, where they fit exactly.

Spark sorts a single number with a radix sort, at a fraction of the cost of comparing rows. The ranges of the keys come
from earlier batches of the stream; rows outside of them are sorted by the driver.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.append import Append
from windrow.catalog.environment import Tables, catalog_key
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.segment_reader import conform_to_schema
from windrow.indexes.segment_writer import choose_encodings
from windrow.indexes.segments import Segment
from windrow.row_spool import list_files
from windrow.snapshot import load_stream

_MAX_KEY_BITS = 63
"""A bigint that is never negative."""
_TYPE_RANGES = {pa.bool_(): (0, 1), pa.int8(): (-(1 << 7), (1 << 7) - 1), pa.int16(): (-(1 << 15), (1 << 15) - 1)}
_MAX_COMPRESSED_SHARE = 0.7
"""Rows are compressed if a sample becomes smaller than this share of itself. No trial is on record."""
SAMPLE_ROWS = 1024
"""Rows of a sample."""
_MAX_PROFILES = 1024
"""Streams of a warehouse whose profiles are kept."""


@dataclass(frozen=True)
class PackedKey:
    """SQL that sorts accepted rows by one number."""

    outside: str
    """A condition that is true, and never null, for a row that the number cannot represent."""
    value: str
    """The number, for all other rows."""
    bits: int
    """How many bits the number has at most."""


class ConstantArray:
    """Constants that change from batch to batch, in SQL whose text does not change.

    Spark compiles a job again, and the JVM has to warm up again, when a constant in its code is another one. So the
    constants stand in an array, which is data; its index depends on the row, or Spark would compute it beforehand.

    Args:
        row: An SQL expression that is null for hardly any row.
    """

    ARRAY = "_windrow_numbers"

    def __init__(self, row: str) -> None:
        self._row = row
        self._values: list[int] = []

    def __call__(self, value: int) -> str:
        """Add a constant; return its SQL, a bigint."""
        self._values.append(value)
        # Each constant is there twice, so that a null in the row does not matter.
        return f"{self.ARRAY}[{2 * len(self._values) - 2} + cast({self._row} IS NULL as int)]"

    def column(self) -> str:
        """The SQL of the array, once all constants are added."""
        return f"array({', '.join(write_bigint(value) for value in self._values for _ in range(2))})"


@dataclass
class StreamProfile:
    """What this process has learned of a stream from its earlier batches; a guess, never a promise."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    latest: int | None = None
    """The greatest expiry, or the greatest event time where all rows live equally long."""
    compresses: bool = True
    settings: dict[str, Any] | None = None
    """How our own writer would write the columns, chosen by a sample of rows."""
    guard: threading.Lock = field(default_factory=threading.Lock)


def find_profile(append: Append) -> StreamProfile:
    """Find the profile of the stream that an append goes to."""
    profiles: BoundedCache[int, StreamProfile] = append.store.shared.attached(
        "ingest profiles", lambda: BoundedCache(_MAX_PROFILES)
    )
    profile = profiles.get_or_make(append.entry.id, StreamProfile)
    if profile.settings is None:
        _choose_writer_settings(profile, append, _read_stored_rows(append, profile))
    return profile


def _read_stored_rows(append: Append, profile: StreamProfile) -> pa.Table:
    """Read some stored rows and learn the ranges of keys, for a process that has not appended to the stream yet."""
    store, name, stream = append.store, append.definition.name, catalog_key(append.entry.id)

    def find_newest(tables: Tables) -> Segment | None:
        spooled = [entry.segments[-1] for _, entry in list_files(tables, stream) if entry.segments]
        stored = load_stream(store, tables, name).segments
        return spooled[-1] if spooled else stored[-1] if stored else None

    newest = store.catalog.read(find_newest)
    if newest is None:
        return append.schema.empty_table()
    stop = min(newest.stop, newest.start + SAMPLE_ROWS)
    try:
        for keys in store.reader.batches(newest.file, newest.start, newest.stop, list(append.model.key)):
            _learn_ranges(profile, append, keys)
        return conform_to_schema(
            next(store.reader.batches(newest.file, newest.start, stop, append.schema.names)), append.schema
        )
    except OSError:  # the file was reclaimed meanwhile
        return append.schema.empty_table()


def _choose_writer_settings(profile: StreamProfile, append: Append, sample: pa.Table) -> None:
    """Choose which columns get a dictionary, and whether rows are compressed."""
    profile.settings = choose_encodings(sample, list(append.model.key)).settings
    if sample.num_rows:
        profile.compresses = _is_compressible(sample)


def update_profile(append: Append, keys: pa.Table, latest: int | None, sample: pa.Table) -> None:
    """Add the key ranges, the latest time and a sample of a batch to the profile of its stream."""
    profile = find_profile(append)
    _learn_ranges(profile, append, keys)
    with profile.guard:
        profile.latest = max((time for time in (profile.latest, latest) if time is not None), default=None)
    _choose_writer_settings(profile, append, sample)


def _learn_ranges(profile: StreamProfile, append: Append, keys: pa.Table) -> None:
    for name in append.model.key:
        if name not in keys.column_names or not _is_integer_like(append.schema.field(name).type):
            continue
        extremes = pc.min_max(_to_integers(keys.column(name)))
        low, high = extremes["min"].as_py(), extremes["max"].as_py()
        if low is not None:
            with profile.guard:
                known_range = profile.ranges.get(name, (low, high))
                profile.ranges[name] = (min(low, known_range[0]), max(high, known_range[1]))


def _is_compressible(sample: pa.Table) -> bool:
    """Whether compression makes rows as a whole clearly smaller."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as stream:
        stream.write_table(sample)
    plain = sink.getvalue()
    return bool(len(pa.Codec("lz4_raw").compress(plain)) < _MAX_COMPRESSED_SHARE * plain.size)


def build_packed_key(
    append: Append, now: int | None, horizon: int, time: str, constants: ConstantArray
) -> PackedKey | None:
    """Build the packed key of a stream's rows, if they fit; `time` is the SQL column that expiries follow, in µs."""
    definition, profile = append.definition, find_profile(append)
    parts: list[tuple[str, int]] = []
    outside: list[str] = []
    for name in append.model.key:
        kind = append.schema.field(name).type
        if not _is_integer_like(kind):
            return None
        key_range = _TYPE_RANGES.get(kind) or _widen_range(profile.ranges.get(name))
        if key_range is None:
            return None
        low, high = key_range
        integer = _build_integer_sql(name, kind)
        # Null is 0, so it comes first.
        parts.append((f"coalesce({integer} - {constants(low - 1)}, 0L)", (high - low + 1).bit_length()))
        outside.append(f"coalesce({integer} < {constants(low)} OR {integer} > {constants(high)}, false)")
    if definition.longest_life is not None:
        if now is None:
            return None
        # No accepted row is at or before this time; see `build_rejection_sql`.
        after = now if definition.expires is not None else now - definition.longest_life
        upto = horizon + (definition.longest_life if definition.expires is not None else 0)
        if profile.latest is not None:
            upto = min(upto, max(now, profile.latest) + 2 * definition.longest_life)
        parts.append((f"({time} - {constants(after)})", max(1, upto - after).bit_length()))
        outside.append(f"{time} > {constants(upto)}")
    bits = sum(size for _, size in parts)
    if bits + append.layout.partitioner().columns.bit_length() > _MAX_KEY_BITS:
        return None
    return PackedKey(" OR ".join(outside) or "false", _concatenate_bits(parts), bits)


def _concatenate_bits(parts: Sequence[tuple[str, int]]) -> str:
    terms, shift = [], sum(size for _, size in parts)
    for value, size in parts:
        shift -= size
        terms.append(f"shiftleft({value}, {shift})" if shift else value)
    return " + ".join(terms) or "0L"


def _widen_range(known_range: tuple[int, int] | None) -> tuple[int, int] | None:
    """Widen a range to both sides, so that a few new keys do not fall outside."""
    if known_range is None:
        return None
    margin = known_range[1] - known_range[0] + 1024
    return max(known_range[0] - margin, -(1 << 62)), min(known_range[1] + margin, 1 << 62)


def _is_integer_like(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))


def _to_integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a key column to integers."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column


def _build_integer_sql(name: str, kind: pa.DataType) -> str:
    """Write a key column as a bigint that keeps its order."""
    if pa.types.is_date32(kind):
        return f"cast(unix_date({quote_name(name)}) as bigint)"
    return f"cast({quote_name(name)} as bigint)"


def write_bigint(value: int) -> str:
    """Write a bigint as SQL."""
    return f"({value}L)" if value > -(1 << 63) else "(-9223372036854775807L - 1L)"


def quote_name(name: str) -> str:
    """Quote the name of a column for SQL."""
    return "`" + name.replace("`", "``") + "`"

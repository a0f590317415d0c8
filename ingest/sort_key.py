"""Storage order in one number: (expiry column, search key, expiry) packed into 63 bits, where they fit exactly.

Spark sorts by a single number with a radix sort, at a fraction of the cost of comparing rows. What the keys of a stream
range over is learned from its earlier batches; rows outside of that are left for the driver to place.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.append import Append
from windrow.indexes.segment_reader import conform_to_schema
from windrow.indexes.segment_writer import choose_column_settings
from windrow.snapshot import load_stream

_MAX_KEY_BITS = 63
_TYPE_RANGES = {pa.bool_(): (0, 1), pa.int8(): (-(1 << 7), (1 << 7) - 1), pa.int16(): (-(1 << 15), (1 << 15) - 1)}
_MAX_COMPRESSED_SHARE = 0.7
SAMPLE_ROWS = 1024


@dataclass(frozen=True)
class PackedKey:
    """How rows that are taken are put in order by one number."""

    outside: str
    """SQL that is true for a row that has no place in it; never null."""
    value: str
    """SQL of the number, of a row that has one."""
    bits: int
    """That it has at most."""


class ConstantArray:
    """Numbers that change from batch to batch, as SQL that does not.

    Spark compiles the code of a job anew, and the JVM warms up to it anew, as soon as one number in it is another. So
    these stand in an array, which Spark hands to the code; the index must be something that only a row can tell.

    Args:
        row: SQL of an expression that is null for hardly any row.
    """

    ARRAY = "_windrow_numbers"

    def __init__(self, row: str) -> None:
        self._row = row
        self._values: list[int] = []

    def __call__(self, value: int) -> str:
        """SQL of a bigint."""
        self._values.append(value)
        # Each number is there twice, so that it does not matter whether the row has a null.
        return f"{self.ARRAY}[{2 * len(self._values) - 2} + cast({self._row} IS NULL as int)]"

    def column(self) -> str:
        """SQL of the array, once all of them are known."""
        return f"array({', '.join(write_bigint(value) for value in self._values for _ in range(2))})"


@dataclass
class StreamProfile:
    """What earlier batches of a stream have shown, in this process."""

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    latest: int | None = None
    """The greatest expiry, or event time where all rows live equally long."""
    compresses: bool = True
    settings: dict[str, Any] | None = None
    """How our own writer would write the columns, judged on some rows."""


_learned: dict[tuple[str, int], StreamProfile] = {}
_guard = threading.Lock()


def find_profile(append: Append) -> StreamProfile:
    """What is known of the stream that an append goes to."""
    with _guard:
        known = _learned.setdefault((str(append.store.catalog.folder), append.entry.id), StreamProfile())
    if known.settings is None:
        _choose_writer_settings(known, append, _read_stored_sample(append))
    return known


def _read_stored_sample(append: Append) -> pa.Table:
    """Some rows that the stream has, for a process that has not appended to it yet."""
    store, name = append.store, append.definition.name
    segments = store.catalog.read(lambda tables: load_stream(store, tables, name)).segments
    if not segments:
        return append.schema.empty_table()
    newest = segments[-1]
    stop = min(newest.stop, newest.start + SAMPLE_ROWS)
    try:
        return conform_to_schema(
            next(store.reader.batches(newest.file, newest.start, stop, append.schema.names)), append.schema
        )
    except OSError:  # reclaimed meanwhile
        return append.schema.empty_table()


def _choose_writer_settings(known: StreamProfile, append: Append, sample: pa.Table) -> None:
    """Which columns are worth a dictionary, and whether rows are worth compressing."""
    known.settings = choose_column_settings(sample, list(append.model.key))
    if sample.num_rows:
        known.compresses = _is_compressible(sample)


def update_profile(append: Append, keys: pa.Table, latest: int | None, sample: pa.Table) -> None:
    """Remember what the keys of a batch range over, how late its rows are, and whether they are worth compressing."""
    known = find_profile(append)
    for name in append.model.key:
        if not _is_integer_like(append.schema.field(name).type):
            continue
        span = pc.min_max(_to_integers(keys.column(name)))
        low, high = span["min"].as_py(), span["max"].as_py()
        if low is not None:
            with _guard:
                before = known.ranges.get(name, (low, high))
                known.ranges[name] = (min(low, before[0]), max(high, before[1]))
    with _guard:
        known.latest = max((time for time in (known.latest, latest) if time is not None), default=None)
    _choose_writer_settings(known, append, sample)


def _is_compressible(sample: pa.Table) -> bool:
    """Whether compression pays for a row as a whole."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sample.schema) as stream:
        stream.write_table(sample)
    plain = sink.getvalue()
    return bool(len(pa.Codec("lz4_raw").compress(plain)) < _MAX_COMPRESSED_SHARE * plain.size)


def build_packed_key(
    append: Append, now: int | None, horizon: int, time: str, number_of: ConstantArray
) -> PackedKey | None:
    """The packing of a stream's rows, if there is one; `time` is the SQL column that expiries follow, in µs."""
    definition, known = append.definition, find_profile(append)
    parts: list[tuple[str, int]] = []
    outside: list[str] = []
    for name in append.model.key:
        kind = append.schema.field(name).type
        if not _is_integer_like(kind):
            return None
        span = _TYPE_RANGES.get(kind) or _widen_range(known.ranges.get(name))
        if span is None:
            return None
        low, high = span
        number = _build_integer_sql(name, kind)
        # Null comes first, as 0.
        parts.append((f"coalesce({number} - {number_of(low - 1)}, 0L)", (high - low + 1).bit_length()))
        outside.append(f"coalesce({number} < {number_of(low)} OR {number} > {number_of(high)}, false)")
    if definition.longest_life is not None:
        if now is None:
            return None
        # No row that is taken is at or before this; see `rejected`.
        after = now if definition.expires is not None else now - definition.longest_life
        upto = horizon + (definition.longest_life if definition.expires is not None else 0)
        if known.latest is not None:
            upto = min(upto, max(now, known.latest) + 2 * definition.longest_life)
        parts.append((f"({time} - {number_of(after)})", max(1, upto - after).bit_length()))
        outside.append(f"{time} > {number_of(upto)}")
    bits = sum(size for _, size in parts)
    if bits + append.layout.partitioner().columns.bit_length() > _MAX_KEY_BITS:
        return None
    return PackedKey(" OR ".join(outside) or "false", _concatenate_bits(parts), bits)


def _concatenate_bits(parts: Sequence[tuple[str, int]]) -> str:
    terms, below = [], sum(size for _, size in parts)
    for value, size in parts:
        below -= size
        terms.append(f"shiftleft({value}, {below})" if below else value)
    return " + ".join(terms) or "0L"


def _widen_range(span: tuple[int, int] | None) -> tuple[int, int] | None:
    """A range with room to both sides, so that a few new keys do not fall outside."""
    if span is None:
        return None
    room = span[1] - span[0] + 1024
    return max(span[0] - room, -(1 << 62)), min(span[1] + room, 1 << 62)


def _is_integer_like(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind))


def _to_integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A key column as numbers."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column


def _build_integer_sql(name: str, kind: pa.DataType) -> str:
    """SQL of a key column as a bigint that keeps its order."""
    if pa.types.is_date32(kind):
        return f"cast(unix_date({quote_name(name)}) as bigint)"
    return f"cast({quote_name(name)} as bigint)"


def write_bigint(value: int) -> str:
    """SQL of a bigint."""
    return f"({value}L)" if value > -(1 << 63) else "(-9223372036854775807L - 1L)"


def quote_name(name: str) -> str:
    """SQL of a column's name."""
    return "`" + name.replace("`", "``") + "`"

"""Stream definitions: what a user declares, checked so that every later step can rely on it."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from windrow import arguments, times
from windrow.errors import DefinitionError, InvalidNameError
from windrow.formats import text
from windrow.indexes.arrow_arrays import parquet as pq
from windrow.indexes.partitioners import Index
from windrow.indexes.row_model import SEQ, RowModel
from windrow.native import key_encoding as native_keys
from windrow.value_checks import is_list_view, map_type, without_list_view

RESERVED_COLUMNS = ("_seq", "_reason", "_source", "_batch", "_rejected_at", "_file", "_line", "_text", "_format")
INTERNAL_PREFIX = "_windrow_"
"""Prefix of columns that exist only on the way through Spark."""
FAILURE_POLICIES = ("block", "exclude")
RESERVED_WORDS = frozenset(
    """
    all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast check
    collate collation column concurrently constraint create cross default deferrable desc describe distinct do else end
    except false fetch for foreign freeze from full glob group having ilike in initially inner intersect into is isnull
    join lambda lateral leading left like limit natural not notnull null offset on only or order outer overlaps pivot
    pivot_longer pivot_wider placing positional primary qualify references returning right select semi show similar some
    summarize symmetric table tablesample then to trailing true union unique unpack unpivot using variadic verbose when
    where window with
    """.split()  # noqa: SIM905
)
"""What DuckDB does not take as the name of a relation without quotes."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)")
HIDDEN_PREFIX = "~"
"""Begins the names of views that users do not see, which no name of theirs can."""
DEFAULT_SOURCE = "default"
_MOST_DIGITS = 38
_MOST_LEVELS = 100


_NOTHING = pa.schema([])


class StreamDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as declared; times and durations in microseconds."""

    name: str
    schema_bytes: bytes
    time: str
    key: tuple[str, ...]
    slide: int
    lifetime: int | None = None
    expires: str | None = None
    max_lifetime: int | None = None
    sources: tuple[str, ...] = ()
    slack: int = 0
    max_skew: int | None = None
    max_ahead: int = 3600 * times.SECOND
    origin: int = 0
    on_source_failure: str = "block"
    liveness: int | None = None
    """A declared source from which nothing arrived for so long, by the wall clock, has failed."""
    index_auto: bool = False
    inputs: tuple[str, ...] = ()
    """Of a view: the streams it is derived from. Nobody appends to it or slides it."""
    pattern: str = ""
    """Of a view: its update pattern; see `update_pattern`."""
    floor: int | None = None
    """Rows at or before this event time are gone for good; see `RowModel`."""
    added: tuple[str, ...] = ()
    """Columns that were added later: older files lack them, and so may rows that are appended."""
    widened_bytes: bytes = b""
    """See `widened`."""
    checks: tuple[tuple[str, str], ...] = ()
    """SQL predicates over a row, each with what happens to rows that fail it; see `windrow.row_checks`."""
    rejected_retention: int | None = None
    """How long, by the wall clock, rejected rows are kept; None: until somebody discards them."""
    first_key: tuple[str, ...] | None = None
    """The search key that the stream began with, if it was changed: batches are told apart by it."""
    history: int | None = None
    """How long expired rows are kept aside and earlier slides can be asked again; None: not at all."""
    erase_within: int | None = None
    """How long after its expiry, or the end of the history, a file may hold a row; None: until it is merged or goes."""

    @property
    def update_pattern(self) -> str:
        """How rows leave: monotonic (never), weakest (as they came), weak (known at birth), strict (only later)."""
        if self.pattern:
            return self.pattern
        return "monotonic" if self.longest_life is None else "weakest" if self.expires is None else "weak"

    @property
    def has_overrides(self) -> bool:
        """Whether rows may end before the expiry that is stored with them: of strict views kept up from new rows."""
        return self.pattern == "strict" and self.lifetime is None

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the stream's rows."""
        return read_schema(self.schema_bytes)

    @property
    def widened(self) -> pa.Schema:
        """Columns that became wider, with the types that they had, each time: older files have them in these."""
        return read_schema(self.widened_bytes) if self.widened_bytes else _NOTHING

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of its files: its rows' and the hidden sequence."""
        return _stored_schema(self.schema_bytes)

    @property
    def model(self) -> RowModel:
        """The columns and times that the index needs to know."""
        return RowModel(self.time, self.key, self.expires, self.lifetime, self.origin, self.slide, self.floor)

    @property
    def identity(self) -> RowModel:
        """By what a batch is recognised, whatever was altered since: its rows' times and the first search key."""
        return self.model.with_key(self.key if self.first_key is None else self.first_key)

    def lasts_otherwise(self, other: "StreamDefinition") -> bool:
        """Whether the same row would expire at another time under the other definition."""
        return (self.lifetime, self.floor) != (other.lifetime, other.floor)

    @property
    def longest_life(self) -> int | None:
        """S: the longest a row can live, None if rows never expire."""
        return self.lifetime if self.expires is None else self.max_lifetime

    @property
    def lifetime_slots(self) -> int | None:
        """S/Δ, rounded up."""
        return None if self.longest_life is None else -(-self.longest_life // self.slide)

    def key_types(self) -> list[pa.DataType]:
        """Types of the search key columns."""
        schema = self.schema
        return [schema.field(name).type for name in self.key]


@lru_cache(maxsize=1024)
def read_schema(serialized: bytes) -> pa.Schema:
    """The schema that a definition keeps as bytes."""
    # One object per stream: readers keep what they learn about files by the schema's identity.
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    return pa.schema([_as_read(field) for field in schema], schema.metadata)


def _as_read(field: pa.Field) -> pa.Field:
    """A column of an older definition that may have views of lists, or a type that only its metadata names."""
    plain = field.remove_metadata() if text.EXTENSION in (field.metadata or {}) else field
    return plain.with_type(map_type(field.type, without_list_view))


@lru_cache(maxsize=1024)
def _stored_schema(serialized: bytes) -> pa.Schema:
    return read_schema(serialized).append(pa.field(SEQ, pa.int64()))


def is_hidden(name: str) -> bool:
    """Whether a stream is a view that standing queries share, and that users do not see."""
    return name.startswith(HIDDEN_PREFIX)


def check_name(name: str, what: str) -> str:
    """A name that is safe as a folder and as an SQL identifier."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or _DEVICE.fullmatch(name):
        raise InvalidNameError(
            f"{what} name {name!r} is not allowed; use 1 to 63 letters, digits, '_' or '-', "
            "beginning with a letter or '_'"
        )
    if name.lower() == "windrow":
        raise InvalidNameError(f"{what} name {name!r} is that of the system tables (windrow.streams); choose another")
    if name.lower() in RESERVED_WORDS:
        raise InvalidNameError(f"{what} name {name!r} is a reserved word of SQL; choose another")
    return name


def check_label(label: str, what: str) -> str:
    """A source name or batch id: any text without control characters, not too long."""
    if (
        not isinstance(label, str)
        or not label
        or len(label.encode()) > 256
        or any(unicodedata.category(c) == "Cc" for c in label)
    ):
        raise InvalidNameError(
            f"{what} {label!r} is not allowed; use 1 to 256 bytes of text without control characters"
        )
    return label


def make_definition(
    name: str,
    schema: pa.Schema,
    *,
    time: str,
    key: str | Sequence[str] | None,
    slide: times.Duration,
    lifetime: times.Duration | None,
    expires: str | None,
    max_lifetime: times.Duration | None,
    sources: Sequence[str] | None,
    slack: times.Duration,
    max_skew: times.Duration | None,
    max_ahead: times.Duration,
    origin: times.Instant | None,
    on_source_failure: str,
    index_auto: bool,
    liveness: times.Duration | None = None,
    rejected_retention: times.Duration | None = None,
    history: times.Duration | None = None,
    erase_within: times.Duration | None = None,
) -> StreamDefinition:
    """Check a declaration and give the definition, or say what is wrong with it."""
    check_name(name, "stream")
    schema = check_schema(name, schema)
    _check_time_column(name, schema, time, "time")
    slide_micros = times.parse_duration(slide, f"stream {name!r}: slide")
    fixed, longest = _check_lives(name, schema, time, slide_micros, lifetime, expires, max_lifetime)
    if on_source_failure not in FAILURE_POLICIES:
        raise DefinitionError(
            f"stream {name!r}: on_source_failure {on_source_failure!r} is unknown; choose block or exclude"
        )
    if liveness is not None and (on_source_failure != "exclude" or not sources):
        raise DefinitionError(
            f"stream {name!r}: liveness={liveness!r} fails a silent source so that the stream goes on without it; "
            "it needs sources=… and on_source_failure='exclude'"
        )
    return StreamDefinition(
        name=name,
        schema_bytes=schema.serialize().to_pybytes(),
        time=time,
        key=check_key(name, schema, key),
        slide=slide_micros,
        lifetime=fixed,
        expires=expires,
        max_lifetime=longest,
        sources=_check_sources(name, sources),
        slack=times.parse_slack(slack, f"stream {name!r}: slack"),
        max_skew=None if max_skew is None else times.parse_slack(max_skew, f"stream {name!r}: max_skew"),
        max_ahead=times.parse_slack(max_ahead, f"stream {name!r}: max_ahead"),
        origin=0 if origin is None else times.parse_instant(origin, f"stream {name!r}: origin"),
        on_source_failure=on_source_failure,
        index_auto=index_auto,
        liveness=_parse_optional(liveness, f"stream {name!r}: liveness"),
        rejected_retention=_parse_optional(rejected_retention, f"stream {name!r}: rejected_retention"),
        history=check_history(name, history, slide_micros),
        erase_within=check_erase_within(name, erase_within, slide_micros, fixed or longest),
    )


def _check_lives(
    name: str,
    schema: pa.Schema,
    time: str,
    slide: int,
    lifetime: times.Duration | None,
    expires: str | None,
    max_lifetime: times.Duration | None,
) -> tuple[int | None, int | None]:
    """How long every row lives, or the longest that one with its own expiry may; neither if rows never expire."""
    if expires is None:
        if max_lifetime is not None:
            raise DefinitionError(
                f"stream {name!r}: max_lifetime goes with expires=…; for one fixed lifetime use lifetime=…"
            )
    else:
        if lifetime is not None:
            raise DefinitionError(
                f"stream {name!r}: give either lifetime (fixed) or expires with max_lifetime (per row), not both"
            )
        if max_lifetime is None:
            raise DefinitionError(
                f"stream {name!r}: expires={expires!r} needs max_lifetime, the longest a row may live"
            )
        _check_time_column(name, schema, expires, "expires")
        if expires == time:
            raise DefinitionError(f"stream {name!r}: expires and time are the same column {time!r}")
    fixed = None if lifetime is None else times.parse_duration(lifetime, f"stream {name!r}: lifetime")
    longest = None if max_lifetime is None else times.parse_duration(max_lifetime, f"stream {name!r}: max_lifetime")
    if (life := fixed or longest) is not None and life < slide:
        raise DefinitionError(
            f"stream {name!r}: lifetime {times.format_duration(life)} is shorter than the slide "
            f"{times.format_duration(slide)}; "
            "rows would be gone before they are seen"
        )
    return fixed, longest


def _parse_optional(duration: times.Duration | None, what: str) -> int | None:
    return None if duration is None else times.parse_duration(duration, what)


def check_history(name: str, history: times.Duration | None, slide: int) -> int | None:
    """A history is counted in the stream's own time, of which a slide is the least."""
    if history is None:
        return None
    length = times.parse_duration(history, f"stream {name!r}: history")
    if length < slide:
        raise DefinitionError(
            f"stream {name!r}: history {times.format_duration(length)} is shorter than the "
            f"slide {times.format_duration(slide)}; nothing could be asked again"
        )
    return length


def check_erase_within(name: str, within: times.Duration | None, slide: int, life: int | None) -> int | None:
    """Rows expire with slides, so that a file cannot be rid of them sooner than at the next one."""
    if within is None:
        return None
    length = times.parse_duration(within, f"stream {name!r}: erase_within")
    if life is None:
        raise DefinitionError(
            f"stream {name!r}: its rows never expire, so erase_within={within!r} says nothing; give it a lifetime, or "
            "erase rows by key"
        )
    if length < slide:
        raise DefinitionError(
            f"stream {name!r}: erase_within {times.format_duration(length)} is shorter than the slide "
            f"{times.format_duration(slide)}, and rows leave with slides; allow at least one slide"
        )
    return length


def check_schema(name: str, schema: pa.Schema) -> pa.Schema:
    """The schema as it is stored, with lists for views of lists; refuse one that cannot be stored or asked."""
    if not isinstance(schema, pa.Schema):
        raise DefinitionError(f"stream {name!r}: schema must be a pyarrow.Schema, not {type(schema).__name__}")
    folded_names: set[str] = set()
    schema = pa.schema([field.with_type(without_list_view(field.type)) for field in schema], schema.metadata)
    for field in schema:
        folded = field.name.lower()
        if not field.name or folded in RESERVED_COLUMNS or folded.startswith(INTERNAL_PREFIX) or "\x00" in field.name:
            raise DefinitionError(f"stream {name!r}: column name {field.name!r} is reserved or empty; rename it")
        if folded in folded_names:
            raise DefinitionError(
                f"stream {name!r}: column {field.name!r} occurs twice (SQL does not tell capitals apart)"
            )
        folded_names.add(folded)
        check_column(field, f"stream {name!r}")
    if not folded_names:
        raise DefinitionError(f"stream {name!r}: the schema has no columns")
    return schema


def check_column(field: pa.Field, what: str, *, is_sorted: bool = True) -> None:
    """Refuse a column whose type cannot be stored or asked for, or whose zone nobody knows; `what` has it."""
    if _count_levels(field.type) > _MOST_LEVELS:
        raise DefinitionError(f"{what}: column {field.name!r} is nested deeper than {_MOST_LEVELS} levels; flatten it")
    zone = find_unknown_zone(field.type)
    if zone is not None:
        raise DefinitionError(
            f"{what}: column {field.name!r} has the time zone {zone!r}, which is unknown; "
            "write it like UTC, Europe/Berlin or +01:00"
        )
    if text.contains_type(field.type, _is_too_wide):
        raise DefinitionError(
            f"{what}: column {field.name!r} of type {field.type} has more digits than the {_MOST_DIGITS} "
            f"that SQL counts with; make it a decimal of at most {_MOST_DIGITS} digits, or text"
        )
    if text.contains_type(field.type, _has_twins):
        raise DefinitionError(
            f"{what}: column {field.name!r} of type {field.type} has a field twice (SQL does not tell capitals apart)"
        )
    if text.contains_type(field.type, is_list_view):
        raise DefinitionError(
            f"{what}: column {field.name!r} of type {field.type} has views of lists inside; make them plain lists"
        )
    if (
        field.metadata == text.BITS
        or text.contains_type(field.type, text.is_opaque)
        or text.EXTENSION in (field.metadata or {})
    ):
        raise DefinitionError(
            f"{what}: column {field.name!r} of type {text.type_name(field)} would come back as bytes; cast it to text"
        )
    try:
        empty = pa.schema([field]).empty_table()
        pq.write_table(empty, pa.BufferOutputStream())
        if is_sorted:
            empty.take(pa.array([], pa.int64()))  # which Arrow cannot do with its views
    except (pa.ArrowException, OSError) as error:
        raise DefinitionError(
            f"{what}: column {field.name!r} of type {field.type} cannot be stored ({error}); cast it to text, perhaps"
        ) from None


def _has_twins(kind: pa.DataType) -> bool:
    """Whether a struct has two fields of one name."""
    names = (
        [kind.field(position).name.lower() for position in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    )
    return len(set(names)) < len(names)


def _count_levels(kind: pa.DataType) -> int:
    """How deep a type is nested; counted level by level, since the deepest ones end every recursion."""
    level, depth = [kind], 0
    while level and depth <= _MOST_LEVELS:
        depth += 1
        nested = (each for each in level if pa.types.is_nested(each))
        level = [each.field(position).type for each in nested for position in range(each.num_fields)]
    return depth


def _is_too_wide(kind: pa.DataType) -> bool:
    """Whether SQL would round the decimals of a type: DuckDB reads those that it cannot hold as floating numbers."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_decimal(plain)) and plain.precision > _MOST_DIGITS


def find_unknown_zone(kind: pa.DataType) -> str | None:
    """The time zone in a type that is in no list of zones; None if all are known."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.array([0], kind).cast(pa.string())
        except pa.ArrowInvalid:
            return str(kind.tz)
    inner = (kind.field(position).type for position in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return next((zone for kind_inside in inner if (zone := find_unknown_zone(kind_inside)) is not None), None)


def _check_time_column(name: str, schema: pa.Schema, column: str, role: str) -> None:
    if column not in schema.names:
        raise DefinitionError(
            f"stream {name!r}: {role} column {column!r} is not in the schema; it has {', '.join(schema.names)}"
        )
    kind = schema.field(column).type
    if not pa.types.is_timestamp(kind):
        raise DefinitionError(f"stream {name!r}: {role} column {column!r} is {kind}; it must be a timestamp")


def check_key(name: str, schema: pa.Schema, key: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns of a search key, or what is wrong with it."""
    columns = () if key is None else arguments.check_names(key, f"stream {name!r}: key")
    if len(set(columns)) != len(columns):
        raise DefinitionError(f"stream {name!r}: the key names a column twice: {', '.join(columns)}")
    for column in columns:
        if column not in schema.names:
            raise DefinitionError(
                f"stream {name!r}: key column {column!r} is not in the schema; it has {', '.join(schema.names)}"
            )
        if not native_keys.is_supported(schema.field(column).type):
            raise DefinitionError(
                f"stream {name!r}: key column {column!r} of type {schema.field(column).type} has no order; "
                "choose another"
            )
    return columns


def _check_sources(name: str, sources: Sequence[str] | None) -> tuple[str, ...]:
    if sources is None:
        return ()
    if isinstance(sources, str):
        raise DefinitionError(f"stream {name!r}: sources must be a list of names, not the string {sources!r}")
    names = tuple(check_label(source, f"stream {name!r}: source") for source in sources)
    if len(set(names)) != len(names):
        raise DefinitionError(f"stream {name!r}: a source is named twice in {', '.join(names)}")
    return names


def choose_index(definition: StreamDefinition, late_rows: bool = False) -> tuple[Index, str]:
    """The layout for ``index="auto"`` by update pattern, and why."""
    if definition.longest_life is None:
        return Index("append-only"), "rows never expire, so they are only appended"
    slots = definition.lifetime_slots or 1
    if definition.expires is None and not late_rows and not definition.slack:
        count = max(1, min(4, slots))
        return (
            Index("wave-insertion", count),
            "all rows live equally long and arrive in order, so they leave in the order in which they came",
        )
    side = max(1, min(4, slots))
    why = "rows have their own lifetimes" if definition.expires else "late rows have a shorter life left"
    return Index("round-robin", side, side), f"{why}, so arrival and expiry order differ and both are partitioned"

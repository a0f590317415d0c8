"""Statements with ORDER BY and LIMIT: the first column of ORDER BY tells which rows can be among the first ones.

Only those rows are offered to the statement, which then runs as it was written. DuckDB does the same for its own
tables, but not for rows that it reads from Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.indexes.column_cache import ColumnCache, SegmentRanges
from windrow.indexes.row_model import Int64s
from windrow.indexes.segments import Segment
from windrow.queries.sql import parse_tree
from windrow.queries.sql.statement import Statement, cached_per_template

MAX_TOP_K = 10_000
"""A statement that wants more rows than this reads all."""
_MIN_NOTED_ROWS = 64
"""At least so many extremes of a segment are remembered, so that a slightly greater LIMIT finds them too."""
_SAMPLE_STEP = 64
"""One row in so many is sampled to guess where the extremes begin."""
_NULLS_LAST = {"ORDER_DEFAULT", "NULLS LAST"}
_PLAIN_CLASSES = {"STAR", "COLUMN_REF", "CONSTANT"}
"""What a select list may be made of: a row of the answer for each row of the stream, whatever the others are."""


@dataclass(frozen=True)
class TopK:
    """The first column that a statement orders by, and how many rows it wants."""

    column: str
    descending: bool
    count: int


@cached_per_template
def find_top_k(statement: Statement, relation: str, columns: tuple[str, ...]) -> TopK | None:
    """What a statement of the shape ``SELECT … FROM stream ORDER BY column, … LIMIT n`` orders by first.

    Args:
        statement: As parsed.
        relation: Of the stream.
        columns: Of the stream.
    """
    tree = statement.tree
    if tree["type"] != "SELECT_NODE" or len(statement.references) != 1 or _has_more(tree, relation):
        return None
    kinds = {modifier["type"]: modifier for modifier in tree["modifiers"]}
    if set(kinds) != {"ORDER_MODIFIER", "LIMIT_MODIFIER"} or len(tree["modifiers"]) != 2:
        return None
    limits = kinds["LIMIT_MODIFIER"]
    limit, offset = (_number(limits.get(name)) for name in ("limit", "offset"))
    if limit is None or limits["limit_type"] != "ROW_COUNT" or (offset is None and limits.get("offset") is not None):
        return None
    order = kinds["ORDER_MODIFIER"]["orders"][0]
    name = _column(order["expression"], statement.references[0].alias, tree["select_list"], columns)
    count = limit + (offset or 0)
    if name is None or not 0 < count <= MAX_TOP_K or order["null_order"] not in _NULLS_LAST:
        return None
    return TopK(name, order["type"] == "DESCENDING", count)


def _has_more(tree: parse_tree.Node, relation: str) -> bool:
    """Whether it does anything but select rows of one relation."""
    source = tree["from_table"]
    return bool(
        tree["cte_map"]["map"]
        or any(tree[name] for name in ("where_clause", "group_expressions", "having", "qualify", "sample"))
        or tree["aggregate_handling"] != "STANDARD_HANDLING"
        or source["type"] != "BASE_TABLE"
        or source["table_name"].lower() != relation.lower()
        or source["sample"]
        or source.get("column_name_alias")
        or any(
            visit.node.get("class", "STAR") not in _PLAIN_CLASSES
            for item in tree["select_list"]
            for visit in parse_tree.walk(item)
        )
    )


def _number(node: Any) -> int | None:
    """The integer that a constant is."""
    literal = node.get("literal") if isinstance(node, dict) else None
    return int(literal["text"]) if literal and literal["kind"] == "INTEGER" and literal["text"].isdigit() else None


def _column(node: parse_tree.Node, alias: str, items: Sequence[parse_tree.Node], columns: Sequence[str]) -> str | None:
    """The column of the stream that ORDER BY certainly means."""
    path = [str(name).lower() for name in node.get("column_names", ())]
    if not path or path[:-1] not in ([], [alias.lower()]):
        return None
    name = path[-1]
    matches = [column for column in columns if column.lower() == name]
    hidden = any(item["alias"].lower() == name or _renames(item) for item in items)
    return matches[0] if len(matches) == 1 and not hidden else None


def _renames(item: parse_tree.Node) -> bool:
    """Whether a star gives columns other names or values than they have; ``COLUMNS(…)`` may."""
    changes = (item.get("replace_list"), item.get("rename_list"), item.get("columns"))
    return any(changes) or (item.get("class") == "STAR" and bool(item["alias"]))


@dataclass(frozen=True)
class SegmentExtremes:
    """The rows of a segment that have the greatest values, in the order of the file, and all that equal the last."""

    values: Int64s
    rows: Int64s
    """Where they are in the file."""
    floor: int | None
    """All rows with this value or a greater one are here; None: all that have a value."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return int(self.values.nbytes + self.rows.nbytes)


class TopKPicker:
    """The rows of a window that can be among the first ones.

    Segments never change, so the extremes of a segment are noted beside its columns: after a slide only the new
    segment is looked through.

    Args:
        first: What is wanted.
        whole: Segments of which every row is in the window.
        cache: Of columns.
        full: All columns of the files.
    """

    def __init__(self, first: TopK, whole: Sequence[Segment], cache: ColumnCache, full: pa.Schema) -> None:
        self._first, self._whole, self._cache = first, whole, cache
        self._full, self._schema = full, pa.schema([full.field(first.column)])
        self._form = "greatest" if first.descending else "smallest"
        self._limit: int | None = None
        self._looked: dict[int, SegmentExtremes] = {}

    @staticmethod
    def suits(kind: pa.DataType) -> bool:
        """Whether a column's values can be compared as they are stored."""
        return bool(pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))

    def picks(self, segments: Sequence[Segment]) -> SegmentRanges:
        """Rows of segments, as ranges in their files."""
        if self._limit is None:
            self._limit = self._nth()
        return {segment.id: self._beyond(segment, self._limit) for segment in segments}

    def _nth(self) -> int | None:
        """The value that the last of the wanted rows has; None if there are too few rows that have any."""
        values = [self._extremes(segment).values for segment in self._whole]
        best = np.concatenate(values) if values else np.empty(0, np.int64)
        position = len(best) - self._first.count
        return int(np.partition(best, position)[position]) if position >= 0 else None

    def _beyond(self, segment: Segment, limit: int | None) -> tuple[Int64s, Int64s]:
        if limit is None:
            return np.array([segment.start]), np.array([segment.stop])
        extremes = self._extremes(segment)
        if extremes.floor is None or extremes.floor <= limit:
            rows = extremes.rows[extremes.values >= limit]
        else:  # at the edge of the window: its greatest rows may be dead, and those that count lie below them
            values, valid = self._values(segment)
            mask = values >= limit
            rows = np.flatnonzero(mask if valid is None else mask & valid) + segment.start
        return rows, rows + 1

    def _extremes(self, segment: Segment) -> SegmentExtremes:
        """At least as many rows of a segment as are wanted of all, if it has so many."""
        extremes = self._looked.get(segment.id)
        if extremes is None:
            extremes = self._cache.get_derived(segment, self._first.column, self._form)
            if extremes is None or (extremes.floor is not None and len(extremes.rows) < self._first.count):
                wanted = max(_MIN_NOTED_ROWS, 1 << (self._first.count - 1).bit_length())
                extremes = find_extremes(*self._values(segment), segment.start, wanted)
                if len(extremes.rows) <= 4 * wanted:  # else too many are equal to be worth the memory
                    self._cache.put_derived(segment, self._first.column, self._form, extremes)
            self._looked[segment.id] = extremes
        return extremes

    def _values(self, segment: Segment) -> tuple[Int64s, Any]:
        """A column of a segment as numbers of which the greatest are wanted, and which of them are not null."""
        batches = list(self._cache.read_batches([segment], self._schema, self._full))
        column = pa.chunked_array([batch.column(0) for batch in batches], self._schema.field(0).type)
        valid = column.is_valid().to_numpy() if column.null_count else None
        width = (
            pa.int64() if column.type.bit_width == 64 else pa.int32() if column.type.bit_width == 32 else column.type
        )
        numbers = column if column.type == width else pa.chunked_array([c.view(width) for c in column.chunks], width)
        values = numbers.fill_null(0).to_numpy() if numbers.null_count else numbers.to_numpy()
        return (values if self._first.descending else ~values), valid


def find_extremes(values: Int64s, valid: Any, start: int, wanted: int) -> SegmentExtremes:
    """The rows with the `wanted` greatest values, and those that equal the least of them.

    Args:
        values: Of a segment's rows.
        valid: Which of them count; None for all.
        start: The segment's first row in its file.
        wanted: How many are wanted at least.
    """
    valid_rows: Int64s | None = None if valid is None else np.flatnonzero(valid)
    candidates = values if valid_rows is None else values[valid_rows]
    if len(candidates) <= wanted:
        rows = np.arange(len(candidates)) if valid_rows is None else valid_rows
        return SegmentExtremes(candidates.astype(np.int64), rows + start, None)
    # A sample says where the floor is about: the exact one is looked for among the few rows above that.
    sample = np.sort(candidates[::_SAMPLE_STEP])
    rough = sample[max(0, len(sample) - 4 * (wanted // _SAMPLE_STEP + 1))]
    above = candidates[candidates >= rough]
    above = above if len(above) >= wanted else candidates
    floor = np.partition(above, len(above) - wanted)[len(above) - wanted]
    chosen = np.flatnonzero(candidates >= floor)
    return SegmentExtremes(
        candidates[chosen].astype(np.int64), (chosen if valid_rows is None else valid_rows[chosen]) + start, int(floor)
    )

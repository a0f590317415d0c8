"""Synopses in the catalog: the keys and bytes of their nodes, and the SQL that builds and merges nodes.

A node is an Arrow table (expiry slot where lifetimes differ, groups, kept values). In front of it stands the ordinal of
the slide that last changed it, so that a reader of an older snapshot sees whether it still holds for it.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.catalog.environment import Tables, catalog_key, decode_last_int
from windrow.catalog.records import SynopsisColumn, SynopsisEntry
from windrow.indexes.row_model import RowModel
from windrow.queries.engine import python_values
from windrow.queries.engine.arrow_source import run_streaming
from windrow.queries.engine.types import quote_name
from windrow.queries.synopses import kinds, node_encoding
from windrow.queries.synopses.decomposition import ROW_ALIAS
from windrow.queries.synopses.kinds import Node
from windrow.queries.synopses.partial_aggregates import ROWS, SynopsisNeed, merge_expressions, state_sql

SLOT, EXPIRY = "_windrow_slot", "_windrow_x"
_HEAD = struct.Struct("<q")
_TALLIES_PREFIX = b"tallies:"
"""Before the numbers of the spooled files whose tallies a node is made of; the rows of a node begin otherwise."""
_BATCH_ROWS = 1 << 17
_PAGE, _PAGE_HEAD = 4096, 16
"""Of LMDB; a record that is longer than half a page lies in pages of its own."""
_NODE_KEY, _KEY_ZERO = struct.Struct(">QQ"), 1 << 63
"""The level and the slot of a node at the end of its key, and what is added to each (`catalog_key`)."""
_KEY_OFFSET = 1 << 40
"""Slots and times before 1970 are counted from so far back that division need not know of signs."""


@dataclass(frozen=True)
class StoredNode:
    """A node as it lies in the catalog."""

    changed: int
    """The ordinal of the slide that last changed it."""
    bodies: tuple[bytes, ...]
    """Usually one; of a node that names several tallies, each of them."""

    def table(self) -> pa.Table:
        """Its rows; a group that is in several tallies is there several times."""
        tables = [node_encoding.decode_rows(body) for body in self.bodies]
        return tables[0] if len(tables) == 1 else concat_rows(tables)


def fetch_rows(cursor: Any, sql: str) -> pa.Table:
    """The rows of a query; asked once, where DuckDB's relations would bind it twice."""
    return run_streaming(cursor, sql, None, _BATCH_ROWS)[0].read_all()


def concat_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several nodes, each of which has its numbers as narrow as they fit."""
    return pa.concat_tables(tables, promote_options="permissive")


# -- in the catalog --------------------------------------------------------------------------------------------------


def encode_entry_key(stream: int, number: int) -> bytes:
    """The key of a synopsis's record."""
    return catalog_key(stream, "d", number)


def encode_node_key(stream: int, number: int, node: Node) -> bytes:
    """The key of a node."""
    return catalog_key(stream, "n", number, node.level, node.left)


def read_entries(tables: Tables, stream: int) -> list[SynopsisEntry]:
    """The synopses of a stream."""
    return [record for _, record in tables.items("synopses", catalog_key(stream, "d"))]


def list_nodes(
    tables: Tables, entry: SynopsisEntry, level: int | None = None, first: int | None = None
) -> Iterator[tuple[Node, int]]:
    """The nodes of a synopsis and when each was last changed: all, those of a level, or those from `first` on there."""
    prefix = catalog_key(entry.stream, "n", entry.number, *(() if level is None else (level,)))
    start = prefix if first is None else prefix + catalog_key(first)
    for key, raw in tables.raw_items("synopses", prefix, start):
        level, left = _NODE_KEY.unpack_from(key, len(key) - _NODE_KEY.size)
        yield Node(level - _KEY_ZERO, left - _KEY_ZERO), _HEAD.unpack_from(raw)[0]


def read_node(tables: Tables, entry: SynopsisEntry, node: Node) -> StoredNode | None:
    """A node, None if it is empty."""
    raw = tables.raw("synopses", encode_node_key(entry.stream, entry.number, node))
    if raw is None:
        return None
    tallies = [bytes(tables.raw("synopses", key)) for key in _decode_tally_names(entry, node, raw)]
    return StoredNode(_HEAD.unpack_from(raw)[0], tuple(tallies) or (bytes(raw[_HEAD.size :]),))


def read_change(tables: Tables, entry: SynopsisEntry, node: Node) -> int | None:
    """When a node was last changed, None if it is empty."""
    raw = tables.raw("synopses", encode_node_key(entry.stream, entry.number, node))
    return None if raw is None else int(_HEAD.unpack_from(raw)[0])


def encode_tally_key(stream: int, number: int, spool: int, slot: int) -> bytes:
    """Where the tally of a spooled file's rows of one slot lies, before and after a node names it."""
    return catalog_key(stream, "t", number, spool, slot)


def find_tallied_slots(tables: Tables, entry: SynopsisEntry, spool: int) -> list[int]:
    """The slots of a spooled file, if an append has tallied its rows for a synopsis."""
    return [
        decode_last_int(key)
        for key, _ in tables.raw_items("synopses", catalog_key(entry.stream, "t", entry.number, spool))
    ]


def encode_tally_names(changed: int, spools: Sequence[int]) -> bytes:
    """A node as bytes that is made of tallies."""
    return b"".join((_HEAD.pack(changed), _TALLIES_PREFIX, *map(_HEAD.pack, spools)))


def _decode_tally_names(entry: SynopsisEntry, node: Node, raw: Any) -> list[bytes]:
    """The keys of the tallies that a node consists of."""
    start = _HEAD.size + len(_TALLIES_PREFIX)
    if bytes(raw[_HEAD.size : start]) != _TALLIES_PREFIX:
        return []
    spools = [spool for (spool,) in _HEAD.iter_unpack(bytes(raw[start:]))]
    return [encode_tally_key(entry.stream, entry.number, spool, node.right) for spool in spools]


def find_node_keys(tables: Tables, entry: SynopsisEntry, node: Node) -> list[bytes]:
    """All keys under which a node lies: its own, and those of the tallies that it names."""
    key = encode_node_key(entry.stream, entry.number, node)
    raw = tables.raw("synopses", key)
    return [] if raw is None else [key, *_decode_tally_names(entry, node, raw)]


def encode_node(changed: int, rows: pa.Table) -> bytes:
    """A node as bytes."""
    return node_encoding.encode_rows(rows, _HEAD.pack(changed))


def estimate_stored(size: float) -> float:
    """What a node of so many bytes takes in the catalog: whole pages if it is long, else its share of one."""
    return math.ceil((size + _PAGE_HEAD) / _PAGE) * _PAGE if size > _PAGE // 2 - 64 else 1.5 * (size + 64)


def drop_synopsis(tables: Tables, entry: SynopsisEntry) -> None:
    """Remove a synopsis and its nodes."""
    tables.delete("synopses", encode_entry_key(entry.stream, entry.number))
    for what in ("n", "t"):
        tables.delete_prefix("synopses", catalog_key(entry.stream, what, entry.number))


# -- what meets a need -----------------------------------------------------------------------------------------------


def choose_columns(wanted: Sequence[SynopsisColumn]) -> tuple[SynopsisColumn, ...]:
    """What a synopsis keeps so that every wanted column is there: each once, the number of rows first."""
    return tuple({column.key: column for column in (ROWS, *wanted)}.values())


def find_positions(entry: SynopsisEntry, need: SynopsisNeed) -> tuple[Sequence[int], Sequence[int]] | None:
    """Where a synopsis of the same rows keeps each group and each column of a need; None if it lacks some."""
    groups, kept = find_group_positions(entry, need), [column.key for column in entry.columns]
    try:
        return None if groups is None else (groups, [kept.index(column.key) for column in need.columns])
    except ValueError:
        return None


def find_group_positions(entry: SynopsisEntry, need: SynopsisNeed) -> list[int] | None:
    """Which of the synopsis's groups each group of a need is; None if they are not the same."""
    stored_keys = [stored_group[1] for stored_group in entry.groups]
    wanted = [group.key for group in need.groups]
    return [stored_keys.index(key) for key in wanted] if sorted(stored_keys) == sorted(wanted) else None


def name_columns(entry: SynopsisEntry) -> dict[str, str]:
    """The name of each kept column by its key."""
    return {column.key: f"c{position}" for position, column in enumerate(entry.columns)}


def list_group_names(entry: SynopsisEntry) -> list[str]:
    """The names of all columns of a node that are grouped by."""
    return [*(["x"] if entry.expiring else []), *(f"g{position}" for position in range(len(entry.groups)))]


# -- SQL -------------------------------------------------------------------------------------------------------------


def slot_sql(model: RowModel, column: str, unit: str) -> str:
    """The slot of a time, in SQL."""
    times = f"epoch_us({quote_name(column)})"
    if unit == "ns":
        times = f"((epoch_ns({quote_name(column)}) + {_KEY_OFFSET * 1_000_000} + 999) // 1000 - {_KEY_OFFSET * 1000})"
    delta, far = model.delta, -(-(1 << 58) // model.delta)
    return f"(({times} - {model.origin} + {far * delta + delta - 1}) // {delta} - {far})"


def build_sql(entry: SynopsisEntry, rows: str) -> str:
    """Kept values of rows, by event slot; `rows` is a relation with the stream's columns, `SLOT` and `EXPIRY`."""
    by = [f"{SLOT} AS slot", *([f"{EXPIRY} AS x"] if entry.expiring else [])]
    by += [f"{text}\n AS g{position}" for position, (text, _, _) in enumerate(entry.groups)]
    columns = []
    for position, column in enumerate(entry.columns):
        if column.merge == "state":
            columns.append(f"{column.build} AS c{position}")
        else:
            columns.append(f"CAST({column.build} AS {column.type}) AS c{position}")
    where = f" WHERE {entry.where}\n" if entry.where else ""
    positions = ", ".join(str(position + 1) for position in range(len(by)))
    return f"SELECT {', '.join([*by, *columns])} FROM {rows} AS {ROW_ALIAS}{where} GROUP BY {positions}"


def columns_sql(entry: SynopsisEntry) -> str:
    """A node's columns with their DuckDB types, out of Arrow."""
    columns = ["x"] if entry.expiring else []
    columns += [f"CAST(g{position} AS {kind}) AS g{position}" for position, (_, _, kind) in enumerate(entry.groups)]
    for position, column in enumerate(entry.columns):
        if column.state is not None:
            columns.append(f"{state_sql(f'c{position}', column.state)} AS c{position}")
        else:
            columns.append(f"CAST(c{position} AS {column.type}) AS c{position}")
    return ", ".join(columns)


def merge_sql(entry: SynopsisEntry, rows: str, slide: int, *, signed: bool = False) -> str:
    """One node of the rows of several; with signs, what some add and others take away."""
    by = list_group_names(entry)
    sign = " * s" if signed else ""
    merged = merge_expressions(entry.columns, name_columns(entry), sign)
    columns = [f"{text} AS c{position}" for position, text in enumerate(merged)]
    where = f" WHERE x > {slide}" if entry.expiring else ""
    grouped = f" GROUP BY {', '.join(by)}" if by else ""
    having = f" HAVING sum(c0{sign}) > 0" if signed or not by else ""
    return f"SELECT {', '.join([*by, *columns])} FROM ({rows}){where}{grouped}{having}"


class NodeMerger:
    """Merges nodes of one synopsis with a DuckDB cursor.

    Args:
        open_cursor: Gives a cursor of the warehouse's engine; called when there is something to merge.
        entry: The synopsis.
        slide: Rows that have expired by then are left out.
    """

    def __init__(self, open_cursor: Callable[[], Any], entry: SynopsisEntry, slide: int) -> None:
        self._open_cursor, self.entry, self.slide = open_cursor, entry, slide

    @property
    def cursor(self) -> Any:
        """A cursor of the warehouse's instance."""
        return self._open_cursor()

    def merge(self, parts: list[pa.Table]) -> pa.Table:
        """One node of several."""
        self.cursor.register("_parts", concat_rows(parts))
        source = f"SELECT {columns_sql(self.entry)} FROM _parts"
        return fetch_rows(self.cursor, merge_sql(self.entry, source, self.slide))

    def subtract(self, whole: pa.Table, part: pa.Table) -> pa.Table | None:
        """What is left of a node without another."""
        self.cursor.register("_parts", whole)
        self.cursor.register("_less", part)
        columns = columns_sql(self.entry)
        source = f"SELECT {columns}, 1 AS s FROM _parts UNION ALL SELECT {columns}, -1 FROM _less"
        rest = fetch_rows(self.cursor, merge_sql(self.entry, source, self.slide, signed=True))
        return rest if rest.num_rows else None

    def equal(self, one: pa.Table | None, other: pa.Table | None) -> bool:
        """Whether two nodes give the same, but for how floats are rounded; expired rows do not count."""
        first, second = self._read_groups(one), self._read_groups(other)
        return len(first) == len(second) and all(map(_is_nearly, first, second))

    def _read_groups(self, rows: pa.Table | None) -> list[tuple[Any, ...]]:
        """The values of each group of a node, in one order."""
        if rows is None:
            return []
        self.cursor.register("_parts", rows)
        by = list_group_names(self.entry)
        expressions = []
        for column, text in zip(
            self.entry.columns, merge_expressions(self.entry.columns, name_columns(self.entry)), strict=True
        ):
            # A sum of nothing is null, and 0 where something was taken out again; the count beside it tells which.
            expressions.append(
                f"finalize({text})" if column.state else f"coalesce({text}, 0)" if column.merge == "sum" else text
            )
        where = f" WHERE x > {self.slide}" if self.entry.expiring else ""
        grouped = f" GROUP BY {', '.join(by)}" if by else " HAVING count(*) > 0"
        source = f"SELECT {columns_sql(self.entry)} FROM _parts"
        result = fetch_rows(self.cursor, f"SELECT {', '.join([*by, *expressions])} FROM ({source}){where}{grouped}")
        columns = zip(result.columns, result.schema, strict=True)
        values = (python_values.to_python_values(column.combine_chunks(), field) for column, field in columns)
        group_rows = list(zip(*values, strict=True))
        return sorted(group_rows, key=lambda row: repr(_without_zero_sign(row[: len(by)])))

    def operations(self, nodes: Mapping[Node, pa.Table]) -> kinds.NodeOperations[pa.Table]:
        """For `kinds.advance_nodes`, over nodes that were fetched."""
        return kinds.NodeOperations(nodes.get, self.merge, self.subtract)


def _without_zero_sign(value: Any) -> Any:
    """A value in which nothing has no sign, since a group may be known by either."""
    if isinstance(value, dict):
        return {key: _without_zero_sign(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_without_zero_sign(inner) for inner in value]
    return value + 0.0 if isinstance(value, float) else value


def _is_nearly(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        same = one == other or (math.isnan(one) and math.isnan(other))
        return same or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_is_nearly, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_nearly(one[key], other[key]) for key in one)
    return bool(one == other)


def split_rows_by_slot(rows: pa.Table) -> dict[int, pa.Table]:
    """What came in, cut by its column `slot`."""
    if not rows.num_rows:
        return {}
    slots = rows.column("slot")
    bare = rows.drop_columns(["slot"])
    distinct = slots.unique().to_pylist()
    if len(distinct) == 1:
        return {distinct[0]: bare}
    ordered = rows.sort_by("slot")
    sorted_slots = ordered.column("slot").to_numpy()
    bare = ordered.drop_columns(["slot"])
    starts = [0, *((sorted_slots[1:] != sorted_slots[:-1]).nonzero()[0] + 1).tolist(), len(sorted_slots)]
    # Copied, not sliced: DuckDB does not take structs that begin inside a buffer.
    return {int(sorted_slots[start]): bare.take(pa.array(np.arange(start, stop))) for start, stop in pairwise(starts)}

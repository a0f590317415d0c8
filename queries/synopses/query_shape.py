"""Analyses a statement once: what it needs of synopses, and whether its final select is plain enough for arrays.

Plain means nothing but columns, an order and a limit; DuckDB runs all other final selects (HAVING, expressions,
DISTINCT). Results are cached with the warehouse, since the same standing queries are asked again and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from windrow.catalog.environment import catalog_key
from windrow.catalog.records import JoinedWindows
from windrow.definitions import HIDDEN_PREFIX, StreamDefinition
from windrow.errors import QueryError
from windrow.indexes.bounded_cache import BoundedCache
from windrow.indexes.row_model import RowModel
from windrow.queries.engine import instance
from windrow.queries.engine.arrow_source import run_streaming
from windrow.queries.engine.types import mark_schema, quote_name
from windrow.queries.planner.scan_sql import empty_sql
from windrow.queries.sql import split_aggregate, window_spec
from windrow.queries.sql.analysis import analyse
from windrow.queries.sql.confinement import confine
from windrow.queries.sql.parse_tree import Node, parse_statements, walk
from windrow.queries.sql.split_aggregate import CannotSplitError
from windrow.queries.sql.statement import Reference, Statement, parse
from windrow.queries.synopses.decomposition import ROW_ALIAS, DecomposedStatement, decompose_statement
from windrow.queries.synopses.join_statement import JoinStatement, WindowJoin, column_name, split_join
from windrow.queries.synopses.partial_aggregates import StatementNeeds, find_needs
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.store import Store

_INTEGER_TYPES = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"}
_GROUP_TYPES = _INTEGER_TYPES | {"VARCHAR", "DATE", "TIMESTAMP", "BOOLEAN"}
_RESULT_TYPES = _INTEGER_TYPES | {"HUGEINT", "DOUBLE"}
_ABSENT_CLAUSES = ("where_clause", "having", "qualify", "sample")


@dataclass(frozen=True)
class OutputColumn:
    """A group or an aggregate of the statement, by its number."""

    group: bool
    number: int


@dataclass(frozen=True)
class SortColumn:
    """A column of the order."""

    column: OutputColumn
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class FinalSelect:
    """The final select of a statement over finished groups and aggregates."""

    columns: tuple[OutputColumn, ...]
    orders: tuple[SortColumn, ...]
    limit: int | None
    offset: int


@dataclass(frozen=True)
class ArrayStatement:
    """How arrays answer a statement."""

    final: FinalSelect
    schema: pa.Schema
    """As DuckDB would give it, with the answer's own names."""


def recognise_final_select(shape: StatementNeeds) -> FinalSelect | None:
    """The final select of a statement, if it and the aggregates before it are plain."""
    whole = shape.decomposed
    plain = all(finish.plain is not None and finish.type in _RESULT_TYPES for finish in shape.finishes)
    types = shape.needs[0].types[: len(whole.groups)]
    if not plain or len(shape.needs) != 1 or not _GROUP_TYPES.issuperset(types):
        return None
    trees = parse_statements(whole.final)
    if not isinstance(trees, list) or len(trees) != 1:
        return None
    tree = trees[0]
    if not _is_plain_select(tree, whole):
        return None
    selected = [_find_column(node, whole) for node in tree["select_list"]]
    columns = tuple(column for column in selected if column is not None)
    if len(columns) < len(selected):
        return None
    names = [str(node["alias"]).lower() for node in tree["select_list"]]
    orders: tuple[SortColumn, ...] | None = ()
    limit: tuple[int | None, int] | None = (None, 0)
    for modifier in tree["modifiers"]:
        if modifier["type"] == "ORDER_MODIFIER" and not orders:
            orders = _find_orders(modifier, whole, columns, names)
        elif modifier["type"] == "LIMIT_MODIFIER" and limit == (None, 0):
            limit = _find_limit(modifier)
        else:
            return None
    if orders is None or limit is None or (limit != (None, 0) and not orders):
        return None  # which rows a limit without an order gives is for DuckDB to say
    return FinalSelect(columns, orders, *limit)


def _is_plain_select(tree: Node, whole: DecomposedStatement) -> bool:
    """Whether it reads all finished groups and nothing else."""
    if tree["type"] != "SELECT_NODE" or any(tree[name] is not None for name in _ABSENT_CLAUSES):
        return False
    if tree["cte_map"]["map"] or tree["group_expressions"] or tree["group_sets"]:
        return False
    table = tree["from_table"]
    if table["type"] != "BASE_TABLE" or table["sample"] is not None or table["column_name_alias"]:
        return False
    return tree["aggregate_handling"] == "STANDARD_HANDLING" and bool(table["table_name"] == whole.done)


def _find_column(node: Node, whole: DecomposedStatement) -> OutputColumn | None:
    if node.get("class") != "COLUMN_REF" or len(node["column_names"]) != 1:
        return None
    name = node["column_names"][0].lower()
    for number in range(len(whole.groups)):
        if name == whole.group_column(number).lower():
            return OutputColumn(True, number)
    for number in range(len(whole.calls)):
        if name == whole.aggregate_column(number).lower():
            return OutputColumn(False, number)
    return None


def _find_orders(
    modifier: Node, whole: DecomposedStatement, columns: Sequence[OutputColumn], names: Sequence[str]
) -> tuple[SortColumn, ...] | None:
    sort_columns = []
    for order in modifier["orders"]:
        column = _ordered_by(order["expression"], whole, columns, names)
        if column is None or order["type"] not in ("ORDER_DEFAULT", "ASCENDING", "DESCENDING"):
            return None
        if order["null_order"] not in ("ORDER_DEFAULT", "NULLS FIRST", "NULLS LAST"):
            return None
        sort_columns.append(SortColumn(column, order["type"] == "DESCENDING", order["null_order"] == "NULLS FIRST"))
    return tuple(sort_columns)


def _ordered_by(
    node: Node, whole: DecomposedStatement, columns: Sequence[OutputColumn], names: Sequence[str]
) -> OutputColumn | None:
    column = _find_column(node, whole)
    if column is not None:
        return column
    if node.get("class") == "COLUMN_REF" and len(node["column_names"]) == 1:
        name = node["column_names"][0].lower()
        return columns[names.index(name)] if names.count(name) == 1 else None
    place = _read_integer(node)
    return columns[place - 1] if place is not None and 1 <= place <= len(columns) else None


def _find_limit(modifier: Node) -> tuple[int | None, int] | None:
    if modifier["limit_type"] != "ROW_COUNT":
        return None
    limit = None if modifier["limit"] is None else _read_integer(modifier["limit"])
    offset = 0 if modifier["offset"] is None else _read_integer(modifier["offset"])
    if offset is None or (limit is None and modifier["limit"] is not None):
        return None
    return limit, offset


def _read_integer(node: Node) -> int | None:
    """A constant that is a whole number."""
    literal = node.get("literal") or {}
    text = str(literal.get("text"))
    plain = node.get("class") == "CONSTANT" and literal.get("kind") == "INTEGER"
    return int(text) if plain and text.isdecimal() and len(text) <= len(str(1 << 40)) else None


_ShapeResult = tuple[StatementNeeds, tuple[tuple[str, str], ...], ArrayStatement | None]
_ShapeCache = BoundedCache[tuple[str, str], tuple[pa.Schema, _ShapeResult | str]]
"""By text and stream: what a statement needs of a stream with a schema, or why synopses cannot answer it."""
_MAX_SHAPES = 4096
"""Statements of a warehouse that are remembered; it may have some thousand periodic queries."""


@dataclass(frozen=True)
class StandingStatement:
    """What is remembered of a standing query's text between rounds; its parse tree takes a hundred times as much."""

    text: str
    sql: str
    references: tuple[Reference, ...]
    explain: str
    plain: bool
    """Whether it means the same over views of an instance that other statements use too."""
    names: frozenset[str] | None
    """Every name in it, in lower case; None if it may read columns that it does not name."""


def read_standing_statement(store: Store, sql: str) -> StandingStatement:
    """A standing query's statement, parsed once."""
    cache: BoundedCache[str, StandingStatement] = store.shared.attached(
        "standing statements", lambda: BoundedCache(_MAX_SHAPES)
    )

    def read() -> StandingStatement:
        parsed = parse(sql)
        plain, names = _is_plain(parsed), _find_names(parsed)
        return StandingStatement(sql, parsed.sql, parsed.references, parsed.explain, plain, names)

    return cache.get_or_make(sql, read)


def _is_plain(statement: Statement) -> bool:
    analysis = analyse(statement)
    if statement.explain or analysis.uses_sequence or analysis.is_volatile:
        return False
    if any(reference.schema for reference in statement.references):
        return False
    if any("pivot" in token.word for token in statement.source.tokens):
        return False
    try:
        confine(statement, lambda _: True)
    except QueryError:
        return False
    return True


def _find_names(statement: Statement) -> frozenset[str] | None:
    aliases = {reference.alias.lower() for reference in statement.references}
    for visit in walk(statement.tree):
        node = visit.node
        if node.get("class") == "STAR" or node.get("ref_type") == "NATURAL":
            return None
        if node.get("class") == "COLUMN_REF" and node["column_names"][-1].lower() in aliases:
            return None  # a whole row
    return frozenset(token.name.lower() for token in statement.source.tokens if token.is_name)


@dataclass(frozen=True)
class SynopsisStatement:
    """A statement that synopses could answer."""

    statement: StandingStatement
    stream: Reference
    shape: StatementNeeds
    slots: int
    """How many slots its window has."""
    columns: tuple[tuple[str, str], ...]
    """Names and DuckDB types of its answer's columns."""
    array_form: ArrayStatement | None = None
    """How arrays answer it, if they can."""
    join: WindowJoin | None = None
    """What it joins, if `stream` is a view of that."""


NO_JOIN_VIEW = "no view of its join is kept"
"""Why its rows answer a statement over a join that others could share."""


def analyse_statement(store: Store, snapshot: Snapshot, sql: str) -> SynopsisStatement:
    """What a statement needs of synopses.

    Raises:
        CannotSplitError: why only its rows can answer it.
    """
    statement = read_standing_statement(store, sql)
    if statement.explain:
        raise CannotSplitError("it asks for a plan")
    if len(statement.references) > 1:
        return _analyse_join(store, snapshot, statement)
    (view,) = _find_streams(snapshot, statement)
    reference = statement.references[0]
    slots = window_slots(view, reference.window)
    shaped, columns, direct = _find_shape(store, sql, reference, view.schema)
    return SynopsisStatement(statement, reference, shaped, slots, columns, direct)


def _find_streams(snapshot: Snapshot, statement: StandingStatement) -> list[StreamSnapshot]:
    """What a statement reads, if that is nothing but streams."""
    streams = {name.lower(): name for name in snapshot.streams()}
    names = ["" if reference.schema else reference.name.lower() for reference in statement.references]
    if not names or not streams.keys() >= set(names):
        raise CannotSplitError("it does not read a stream" if len(names) == 1 else "it reads more than streams")
    return [snapshot.view(streams[name]) for name in names]


# -- over a join ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StandingJoin:
    """A standing statement over a join of windows, and what it needs of synopses of a view of the join."""

    split: JoinStatement
    reference: Reference
    """To a view of the join, whichever it will be."""
    shape: StatementNeeds
    columns: tuple[tuple[str, str], ...]
    """Names and DuckDB types of its answer's columns."""
    array_form: ArrayStatement | None


def read_join(store: Store, snapshot: Snapshot, statement: StandingStatement) -> StandingJoin:
    """A standing statement over several streams, in a join and the rest.

    Raises:
        CannotSplitError: why only its rows can answer it.
    """
    definitions = tuple(view.entry.definition for view in _find_streams(snapshot, statement))
    cache: BoundedCache[str, tuple[tuple[StreamDefinition, ...], StandingJoin | str]] = store.shared.attached(
        "standing joins", lambda: BoundedCache(_MAX_SHAPES)
    )
    cached = cache.get(statement.text)
    if cached is None or cached[0] != definitions:
        cached = definitions, _split_join(store, parse(statement.text), definitions)
        cache.put(statement.text, cached)
    if isinstance(cached[1], str):
        raise CannotSplitError(cached[1])
    return cached[1]


def _split_join(store: Store, statement: Statement, definitions: Sequence[StreamDefinition]) -> StandingJoin | str:
    with instance.open_cursor(store) as cursor:
        try:
            split = split_join(statement, definitions, split_aggregate.read_engine_functions(cursor))
            over_view = parse(split.sql_over(HIDDEN_PREFIX))
            (reference,) = over_view.references
            shape, columns, array_form = _compute_shape(cursor, over_view, reference, split.schema)
            empty = {
                each.relation: f"{quote_name(each.relation)} AS ({empty_sql(definition.schema)})"
                for each, definition in zip(statement.references, definitions, strict=True)
            }
            written = _describe_columns(cursor, f"WITH {', '.join(empty.values())} {statement.sql}")
            if [kind for _, kind in columns] != [kind for _, kind in written]:
                raise CannotSplitError("its pieces have other types")
            if array_form is not None:
                named = [f.with_name(name) for f, (name, _) in zip(array_form.schema, written, strict=True)]
                array_form = replace(array_form, schema=pa.schema(named))
            return StandingJoin(split, reference, shape, tuple(written), array_form)
        except CannotSplitError as error:
            return str(error)
        except duckdb.Error:
            return "its pieces do not stand on their own"


def read_joined(store: Store, snapshot: Snapshot, name: str) -> JoinedWindows | None:
    """Which join a hidden view is of."""
    cache: BoundedCache[int, tuple[JoinedWindows | None]] = store.shared.attached(
        "join views", lambda: BoundedCache(_MAX_SHAPES)
    )
    number = snapshot.view(name).entry.id

    def read() -> tuple[JoinedWindows | None]:
        plan = store.catalog.read(lambda tables: tables.get("plans", catalog_key(number)))
        return (None if plan is None else plan.joined,)

    return cache.get_or_make(number, read)[0]


def find_join_view(store: Store, snapshot: Snapshot, split: JoinStatement) -> StreamSnapshot | None:
    """A view that has all results of a statement's join."""
    key, wanted = split.join.key, {column_name(place) for place in split.columns}
    for name in snapshot.hidden():
        joined = read_joined(store, snapshot, name)
        if joined is not None and joined.key == key and joined.window >= split.join.window:
            view = snapshot.view(name)
            if wanted <= set(view.schema.names):
                return view
    return None


def _analyse_join(store: Store, snapshot: Snapshot, statement: StandingStatement) -> SynopsisStatement:
    """What a statement over a join needs of synopses of a view of the join."""
    joined = read_join(store, snapshot, statement)
    view = find_join_view(store, snapshot, joined.split)
    if view is None:
        raise CannotSplitError(NO_JOIN_VIEW)
    reference, join = replace(joined.reference, name=view.name), joined.split.join
    slots = -(-join.window // view.entry.definition.slide)
    return SynopsisStatement(statement, reference, joined.shape, slots, joined.columns, joined.array_form, join)


_REASONS = {
    window_spec.CountWindow: "its window is a count of rows",
    window_spec.SessionWindow: "its window goes by the pauses between rows",
    window_spec.CalendarWindow: "its window is a unit of the calendar",
}


def window_slots(view: StreamSnapshot, window: window_spec.WindowSpec) -> int:
    """The whole slots that a window is made of."""
    definition, model = view.entry.definition, view.entry.definition.model
    if definition.has_overrides:
        raise CannotSplitError("its stream is a strict view, whose rows can end before they expire")
    if isinstance(window, window_spec.RangeWindow):
        if window.length % definition.slide:
            raise CannotSplitError("its window is no multiple of the stream's slide")
        if definition.longest_life is not None and window.length > definition.longest_life:
            raise CannotSplitError("its window is longer than the stream keeps rows")
        return window.length // definition.slide
    if not isinstance(window, window_spec.AllRows):
        raise CannotSplitError(_REASONS.get(type(window), "its window does not end at the stream's clock"))
    return _all_live(definition.longest_life, definition.slide, model)


def _all_live(longest: int | None, slide: int, model: RowModel) -> int:
    if longest is None:
        raise CannotSplitError("it asks for all rows of a stream that keeps them for ever")
    if model.expires is None and longest % slide:
        raise CannotSplitError("the stream's lifetime is no multiple of its slide")
    return -(-longest // slide)


def _find_shape(store: Store, text: str, stream: Reference, schema: pa.Schema) -> _ShapeResult:
    """What a statement over a stream with a schema needs, which depends on nothing else."""
    shapes: _ShapeCache = store.shared.attached("statement shapes", lambda: _ShapeCache(_MAX_SHAPES))

    def compute() -> _ShapeResult | str:
        with instance.open_cursor(store) as cursor:
            try:
                return _compute_shape(cursor, parse(text), stream, schema)
            except CannotSplitError as error:
                return str(error)
            except duckdb.Error:
                return "its pieces do not stand on their own"

    cached = shapes.get((text, stream.name))
    if cached is None or not cached[0].equals(schema, check_metadata=True):
        cached = schema, compute()
        shapes.put((text, stream.name), cached)
    shape = cached[1]
    if isinstance(shape, str):
        raise CannotSplitError(shape)
    return shape


def _compute_shape(cursor: Any, statement: Statement, stream: Reference, schema: pa.Schema) -> _ShapeResult:
    functions = split_aggregate.read_engine_functions(cursor)
    whole = decompose_statement(statement, stream, tuple(schema.names), functions)
    rows = f"({empty_sql(schema)}) AS {ROW_ALIAS}"
    needs = find_needs(cursor, whole, rows)
    if statement.tree["type"] != "SELECT_NODE":
        raise CannotSplitError("it is not a single SELECT")
    columns = _describe_columns(cursor, f"WITH {quote_name(stream.relation)} AS ({empty_sql(schema)}) {statement.sql}")
    group_types = needs.needs[0].types[: len(whole.groups)]
    stand_ins = [f"CAST(NULL AS {kind}) AS {whole.group_column(position)}" for position, kind in enumerate(group_types)]
    stand_ins += [
        f"CAST(NULL AS {f.type}) AS {whole.aggregate_column(position)}" for position, f in enumerate(needs.finishes)
    ]
    empty = f"SELECT {', '.join(stand_ins)}"
    final_columns = _describe_columns(cursor, f"WITH {whole.done} AS ({empty}) {whole.final}")
    if [kind for _, kind in columns] != [kind for _, kind in final_columns]:
        raise CannotSplitError("its pieces have other types")
    return (
        needs,
        tuple(columns),
        _find_array_statement(cursor, needs, columns, f"WITH {whole.done} AS ({empty}) {whole.final}"),
    )


def _find_array_statement(
    cursor: Any, needs: StatementNeeds, columns: Sequence[tuple[str, str]], empty_sql_text: str
) -> ArrayStatement | None:
    """How arrays answer it; `empty_sql_text` is the final select over no rows, which gives the types of the answer."""
    final = recognise_final_select(needs)
    if final is None:
        return None
    schema = mark_schema(run_streaming(cursor, empty_sql_text, None, 1)[0].schema, [kind for _, kind in columns])
    return ArrayStatement(final, pa.schema([f.with_name(name) for f, (name, _) in zip(schema, columns, strict=True)]))


def _describe_columns(cursor: Any, sql: str) -> list[tuple[str, str]]:
    return [(str(row[0]), str(row[1])) for row in cursor.execute(f"DESCRIBE {sql}").fetchall()]

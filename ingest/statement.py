"""Spark's SQL with window clauses: a statement over one snapshot, as a DataFrame.

Clauses, windows and what is left out of them are as in `wh.sql`; the dialect, the optimizer and the work are Spark's.
Spark's optimizer is asked first which columns the statement needs of each relation, which conditions it puts on them
and which of their columns must be equal. If files can be left out by that, the statement is planned again over those
that are left.
"""

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow import times
from windrow.catalog.environment import Tables
from windrow.catalog.lookups import find_stream
from windrow.errors import ConfinementError, QueryError
from windrow.formats.text import json_values
from windrow.indexes.probe import find_row_ranges
from windrow.indexes.selection import Selection
from windrow.ingest.data_source import find_key_ranges
from windrow.ingest.errors import SPARK_ERRORS
from windrow.ingest.file_relation import LISTING_SETTING, FileRelations, find_class, find_object
from windrow.ingest.logical_plans import (
    find_kind,
    find_names,
    find_numbers,
    list_items,
    split_condition,
    walk_with_kinds,
)
from windrow.ingest.reader import SegmentScan, SparkSnapshot, pin_frame, to_python_filter
from windrow.ingest.schemas import build_read_schema
from windrow.ingest.session import WarehouseOrPath, keep_active_session
from windrow.queries.answer import Explanation
from windrow.queries.execution import answer_from_snapshot, describe_window, go_back, show_pasts
from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT
from windrow.queries.planner.join_ranges import prune
from windrow.queries.planner.key_ranges import KeyPredicate
from windrow.queries.planner.planner import UNRESTRICTED, RelationPlan, find_bounds, keep_segments, prune_by_time
from windrow.queries.sql.foreign_dialect import ForeignStatement, find_clauses
from windrow.queries.sql.statement import Reference
from windrow.queries.sql.window_spec import AllRows, OrderedWindow
from windrow.queries.statement_context import StatementContext
from windrow.snapshot import Snapshot, StreamSnapshot
from windrow.windows import make_about

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Arguments = Mapping[str, Any] | Sequence[Any] | None
_COMMANDS = (
    "org.apache.spark.sql.catalyst.plans.logical.Command",
    "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement",
)
_QUERIES = frozenset(
    {"Project", "Filter", "Aggregate", "UnresolvedHaving", "Join", "Sort", "GlobalLimit", "LocalLimit", "Distinct"}
    | {"SubqueryAlias", "UnresolvedWith", "UnresolvedRelation", "OneRowRelation"}
)
"""Operators that are known to be no commands."""
_VOLATILE = frozenset(
    {"now", "current_timestamp", "current_date", "current_time", "curdate", "localtimestamp", "unix_timestamp"}
    | {"rand", "randn", "random", "uuid", "shuffle"}
)
"""Functions of Spark whose values depend on when they are called; of the past they are refused, as in `wh.sql`."""
_STREAM_LEAF = "LogicalRelation"
"""The operator that reads files: a stream is read by it, and so are tables and views of Spark."""
_MAX_FILES_AT_FIRST = 32
"""A stream of more files is first planned without any, as naming them takes longer than planning once more.
Bench: `scale`, whose windows have 10 files."""
_POSITIONAL = ("Union", "Generate", "ScriptTransformation", "Repartition")
"""Operators that take the columns of their inputs as they come, without naming them."""
_CONSTANT_ROWS = ("LocalRelation", "OneRowRelation", "Range", "CTERelationRef", "UnionLoopRef")
"""Operators whose rows stand in the statement, or are tables and results, which the driver has sent."""
_KEEPS_ROWS_APART = ("Project", "Filter", "SubqueryAlias")
"""Operators that a row passes, or not, whatever other rows there are."""


def sql(
    spark: "SparkSession", warehouse: "WarehouseOrPath | SparkSnapshot", text: str, args: Arguments = None
) -> "DataFrame":
    """A query in Spark's SQL with window clauses, over one snapshot, as a DataFrame.

    The files are pinned until `release`, until nothing uses the DataFrame any more, or until the session ends.

    Args:
        spark: The session; its settings, functions and temporary views can be used in the statement.
        warehouse: An open warehouse, its path, or a `windrow.spark.snapshot`, which then has to stay open.
        text: The statement. Streams, views, tables, results of periodic queries and ``windrow.…`` go before
            relations of Spark with the same names.
        args: Values of ``:name`` or ``?``, as `SparkSession.sql` takes them.
    """
    statement = find_clauses(text)
    taken, borrowed = _take_snapshot(spark, warehouse, statement)
    try:
        with keep_active_session(spark):
            plan = _StatementPlanner(spark, taken.contents, statement, args)
            frame = plan.build_frame()
        about = plan.describe()
    except BaseException:
        if not borrowed:
            taken.close()
        raise
    if not borrowed:
        pin_frame(taken, frame, about, plan.locations)
    return frame


def explain(
    spark: "SparkSession", warehouse: "WarehouseOrPath | SparkSnapshot", text: str, args: Arguments = None
) -> Explanation:
    """What a statement of `sql` would read of each stream, what was left out and why, and Spark's plan."""
    statement = find_clauses(text)
    taken, borrowed = _take_snapshot(spark, warehouse, statement)
    try:
        with keep_active_session(spark):
            plan = _StatementPlanner(spark, taken.contents, statement, args)
            frame: Any = plan.build_frame()
        return Explanation(plan.relation_plans(), plan.windows(), frame._jdf.queryExecution().toString())
    finally:
        if not borrowed:
            taken.close()


def plan_statement(
    spark: "SparkSession", snapshot: Snapshot, text: str, args: Arguments, context: StatementContext
) -> tuple["DataFrame", tuple[Reference, ...]]:
    """A statement over a snapshot that somebody else keeps open, and the relations of the warehouse that it reads.

    Raises:
        QueryError: it reads other relations too.
    """
    with keep_active_session(spark):
        planner = _StatementPlanner(spark, snapshot, find_clauses(text), args, context)
        references = planner.find_references()
        return planner.build_frame(), references


def _take_snapshot(
    spark: "SparkSession", warehouse: "WarehouseOrPath | SparkSnapshot", statement: ForeignStatement
) -> tuple[SparkSnapshot, bool]:
    """One commit with what the statement names, and whether it is somebody else's."""
    if not hasattr(spark, "_jsparkSession"):
        raise QueryError("windrow.spark.sql needs a session of its own process; this one is a client of Spark Connect")
    if isinstance(warehouse, SparkSnapshot):
        return warehouse, True
    if any(reference.schema for reference in statement.references):
        return SparkSnapshot(spark, warehouse), False  # system tables show all streams
    alike = statement.names | {reference.name.lower() for reference in statement.references}
    taken = SparkSnapshot(spark, warehouse, alike=frozenset(alike))
    summaries = STATEMENT_CONTEXT.find_summaries(taken.contents, alike - set(taken.contents.streams()))
    if summaries:  # their bounds need the streams that they are of
        taken.close()
        alike |= {summary.stream.lower() for summary in summaries.values()}
        taken = SparkSnapshot(spark, warehouse, alike=frozenset(alike))
    return taken, False


@dataclass
class _Occurrence:
    """One place of Spark's optimized plan where a relation is read."""

    conditions: list[Any]
    """What Spark asks of its rows there, in the JVM's terms."""


@dataclass
class _Relation:
    """A stream of the statement, and what Spark's optimizer said of it."""

    reference: Reference
    view: StreamSnapshot
    selection: Selection
    occurrences: list[_Occurrence] = field(default_factory=list)
    columns: set[str] = field(default_factory=set)
    """Those that the statement needs."""
    predicate: KeyPredicate = UNRESTRICTED
    joined: str = ""
    offered: SegmentScan | None = None
    """What the session finds by its name; None while that has no rows."""

    @property
    def by_driver(self) -> bool:
        """Whether its rows are picked by their order, which the driver does."""
        return isinstance(self.reference.window, OrderedWindow)


class _StatementPlanner:
    """Plans one statement.

    Args:
        spark: The session.
        snapshot: What is seen.
        statement: With its clauses read.
        args: Of the statement.
        context: What it can name beside streams and tables.
    """

    def __init__(
        self,
        spark: Any,
        snapshot: Snapshot,
        statement: ForeignStatement,
        args: Arguments,
        context: StatementContext = STATEMENT_CONTEXT,
    ) -> None:
        self._spark, self._snapshot, self._statement, self._args = spark, snapshot, statement, args
        self._context = context
        # A copy of the session: the user's own keeps its temporary views, and sees none of ours.
        self._session = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
        self._files = FileRelations(self._session)
        self.locations: list[Any] = []
        """The lists of files that the plans read."""
        self._session.conf.set(LISTING_SETTING, 1 << 30)  # files are named: a job that looks for them is of no use
        self._sql = self._choose_spelling()
        self._relations: dict[str, _Relation] = {}
        self._others: dict[str, Reference] = {}
        """What the driver has the rows of: tables, results, summaries and system tables; by the name in `_sql`."""
        self._offer_relations()
        self._leaves = find_class(spark, "java.util.IdentityHashMap")()
        """The streams by the lists of files that are read for them."""
        self._offer_streams()
        self._optimize()
        self._prune_by_conditions()

    def windows(self) -> tuple[Any, ...]:
        """Which windows the statement reads."""
        return tuple(describe_window(each.view, each.reference) for each in self._relations.values())

    @cached_property
    def _analyzed(self) -> list[tuple[Any, str]]:
        """The operators of the statement as it was written."""
        analyzed = self._planned._jdf.queryExecution().analyzed()
        return [(node, kind) for node, kind, _ in walk_with_kinds(analyzed)]

    def describe(self) -> dict[str, Any]:
        """What is known of the answer, as `windrow.spark.about` gives it."""
        return make_about(self.windows(), "snapshot", 0.0, self._snapshot.version)

    def find_references(self) -> tuple[Reference, ...]:
        """The relations of the warehouse that the statement reads.

        Raises:
            QueryError: it reads others too, which another session would not have.
        """
        views = {node.desc().identifier().table() for node, kind in self._analyzed if kind == "View"}
        of_warehouse = {name.lower() for name in (*self._relations, *self._others)}
        outside = sorted(name for name in views if name.lower() not in of_warehouse)
        outside += ["a table or file" for node, kind in self._analyzed if self._is_outside(node, kind)]
        if outside:
            raise QueryError(
                f"a periodic query reads streams, views, tables and results of the warehouse, and not {outside[0]} "
                "that another Spark session would not have; put_table() keeps a small relation in the warehouse"
            )
        folded = {name.lower() for name in views}
        others = [reference for name, reference in self._others.items() if name.lower() in folded]
        return (*(each.reference for each in self._relations.values()), *others)

    def _is_outside(self, node: Any, kind: str) -> bool:
        """Whether an operator brings rows in that are neither the warehouse's nor written in the statement."""
        if node.children().size() or kind in _CONSTANT_ROWS:
            return False
        return kind != _STREAM_LEAF or self._find_stream(node) is None

    def relation_plans(self) -> tuple[RelationPlan, ...]:
        """What is read of each stream."""
        plans = []
        for each in self._relations.values():
            path, why = ("driver", "its rows go by their order") if each.by_driver else ("scan", "by Spark")
            bounds = None if each.view.state.slide is None else each.selection.bounds
            plans.append(
                RelationPlan(
                    each.reference, each.view, bounds, path, why, each.selection, None, None, each.predicate,
                    joined=each.joined,
                )
            )  # fmt: skip
        return tuple(plans)

    def build_frame(self) -> "DataFrame":
        """The statement over the files that are left, as a DataFrame of the user's own session."""
        is_planned = True
        for name, each in self._relations.items():
            if each.by_driver:
                continue
            scan = SegmentScan(self._session, self._snapshot, each.view, each.selection)
            scan.verify(each.columns)
            if each.offered is None or each.offered.files != scan.files:
                self._files.offer(name, self._build(scan))
                is_planned = False
        return self._planned if is_planned else self._plan()

    def _choose_spelling(self) -> str:
        """The text as Spark's parser takes it; refuses whatever is no query."""
        parser = self._session._jsparkSession.sessionState().sqlParser()
        refusal: BaseException | None = None
        for text in self._statement.candidates:
            try:
                parsed = parser.parsePlan(text)
            except SPARK_ERRORS as error:
                refusal = refusal or error
                continue
            self._refuse_commands(parsed)
            return text
        assert refusal is not None
        raise self._translate(refusal) from None

    def _refuse_commands(self, parsed: Any) -> None:
        """Only queries: `SparkSession.sql` would run a command at once."""
        classes = find_class(self._spark, "java.lang.Class")
        for node, kind, _ in walk_with_kinds(parsed):
            if kind not in _QUERIES and any(classes.forName(name).isInstance(node) for name in _COMMANDS):
                raise ConfinementError(
                    f"only queries can be asked here, not {kind}; for a plan there is windrow.spark.explain"
                )

    def _translate(self, error: BaseException) -> QueryError:
        # Behind the sentence stand its plan, the text, and where in Spark it happened.
        message = re.split(r";\n|\n== SQL|\n\nJVM stacktrace", str(error))[0]
        return QueryError(self._statement.reword(" ".join(message.split())))

    def _plan(self) -> "DataFrame":
        """The statement over what is offered, in the user's session, which goes on with what was planned here."""
        try:
            answer = self._session.sql(self._sql, self._args)
        except SPARK_ERRORS as error:
            raise self._translate(error) from None
        datasets = find_class(self._spark, "org.apache.spark.sql.classic.Dataset")
        dataset = datasets.ofRows(self._spark._jsparkSession, answer._jdf.queryExecution().analyzed())
        frame: DataFrame = type(answer)(dataset, self._spark)
        return frame

    def _build(self, scan: SegmentScan) -> Any:
        plan = scan.build_plan()
        self.locations += scan.locations or ()
        return plan

    def _offer_relations(self) -> None:
        """Find out what each name means; all but streams are small, and come by way of the driver."""
        streams = {name.lower(): name for name in self._snapshot.streams()}
        tables = {name.lower(): name for name in self._snapshot.tables}
        plain = [name for name in self._statement.names if name in streams or name in tables]
        named = self._statement.names | {each.name.lower() for each in self._statement.references if not each.schema}
        unknown = named - {*streams, *tables}
        results = {name.lower(): name for name in self._context.find_results(self._snapshot, unknown)}
        summaries = self._context.find_summaries(self._snapshot, unknown - results.keys())
        results |= {name: name for name, each in summaries.items() if each.stream in streams.values()}
        self._snapshot = go_back(
            self._statement.references,
            self._snapshot,
            lambda: next((f"{name}()" for name in sorted(_VOLATILE & self._statement.names)), None),
        )
        read = []
        for reference in self._statement.references:
            folded = reference.name.lower()
            if reference.schema or folded in results or folded in tables:
                self._others[reference.relation] = reference
                self._offer_rows(reference.relation, self._statement.written(reference))
            elif folded not in streams:
                self._refuse_unknown(reference.name)
            else:
                read.append(replace(reference, name=streams[folded]))
        for folded in sorted({*plain, *(self._statement.names & results.keys())}):
            if folded in streams:
                name = streams[folded]
                read.append(Reference(name, "", AllRows(), name, None, name))
            else:
                name = tables.get(folded) or results[folded]
                self._others[name] = Reference(name, "", AllRows(), name, None, name)
                self._offer_rows(name, f'"{name.replace(chr(34), chr(34) * 2)}"')
        self._snapshot, shown = show_pasts(self._snapshot, read)
        for reference in shown:
            self._add_stream(reference)

    def _refuse_unknown(self, name: str) -> None:
        """The error that names what streams there are."""

        def find(tables: Tables) -> None:
            find_stream(tables, name)

        self._snapshot.store.catalog.read(find)

    def _add_stream(self, reference: Reference) -> None:
        view = self._snapshot.view(reference.name)
        selection = view.select(find_bounds(view, reference.window))
        build_read_schema(view.entry.definition, view.schema.names)  # raises
        self._relations[reference.relation] = _Relation(reference, view, selection)

    def _offer_rows(self, relation: str, written: str) -> None:
        """A relation whose rows the driver has."""
        with answer_from_snapshot(
            self._snapshot.store, f"SELECT * FROM {written}", snapshot=self._snapshot, context=self._context
        ) as answer:
            rows: pa.Table = answer.arrow()
        arrays = [_to_spark_array(rows.column(number), field) for number, field in enumerate(rows.schema)]
        frame: Any = self._session.createDataFrame(pa.Table.from_arrays(arrays, rows.column_names))
        self._files.offer(relation, frame._jdf.queryExecution().analyzed())

    def _offer_streams(self) -> None:
        """Streams for the optimizer to look at, without rows where they cannot be read as they are."""
        for name, each in self._relations.items():
            if each.by_driver:
                self._offer_rows(name, self._statement.written(each.reference))
                continue
            scan = SegmentScan(self._session, self._snapshot, each.view, each.selection)
            if scan.reads_whole_files and len(scan.files) <= _MAX_FILES_AT_FIRST:
                each.offered, plan = scan, self._build(scan)
            else:
                schema = build_read_schema(each.view.entry.definition, each.view.schema.names)
                # The option tells it apart: the optimizer would take relations of no files for one and the same.
                plan = self._files.plan([], schema, {"windrow.relation": name})
            self._leaves.put(plan.relation().location(), name)
            self._files.offer(name, plan)

    def _optimize(self) -> None:
        """Ask Spark's optimizer which columns of the streams are needed, and under which conditions."""
        self._planned = self._plan()
        execution = self._planned._jdf.queryExecution()
        if any(each.reference.span is None for each in self._relations.values()):
            # Names were compared as words: some are those of columns.
            read = {self._find_stream(node) for node, kind in self._analyzed if kind == _STREAM_LEAF}
            self._relations = {name: each for name, each in self._relations.items() if each.by_driver or name in read}
        try:
            optimized = execution.optimizedPlan()
        except SPARK_ERRORS as error:
            raise self._translate(error) from None
        nodes, used = list(walk_with_kinds(optimized)), find_numbers(optimized.output())
        for node, kind, _ in nodes:
            used |= find_numbers(node.references())
            if kind in _POSITIONAL:
                used |= {number for child in list_items(node.children()) for number in find_numbers(child.output())}
        attributes: dict[int, tuple[str, str]] = {}
        for node, kind, condition in nodes:
            name = self._find_stream(node) if kind == _STREAM_LEAF else None
            if name is None:
                continue
            self._relations[name].occurrences.append(_Occurrence([condition] if condition is not None else []))
            for number, column in find_names(node.output()).items():
                attributes[number] = name, column
                if number in used:
                    self._relations[name].columns.add(column)
        joins = [node for node, kind, _ in nodes if kind == "Join"]
        self._equalities = list(self._find_equalities(joins, attributes))

    def _find_stream(self, leaf: Any) -> str | None:
        relation = leaf.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            return None
        name: str | None = self._leaves.get(relation.location())
        return name

    def _find_equalities(
        self, joins: Sequence[Any], attributes: Mapping[int, tuple[str, str]]
    ) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        """Columns of streams that inner and semi joins require to be equal, each pair once."""
        for join in joins:
            if join.joinType().sql() not in ("INNER", "LEFT SEMI"):
                continue
            condition = join.condition()
            if condition.isEmpty():
                continue
            sides = [
                {key: attributes[key] for key in _find_passed(child) if key in attributes}
                for child in (join.left(), join.right())
            ]
            for part in split_condition(condition.get()):
                if find_kind(part) != "EqualTo":
                    continue
                ends = [part.left(), part.right()]
                if any(find_kind(end) != "AttributeReference" for end in ends):
                    continue
                one, other = (end.exprId().id() for end in ends)
                for a, b in ((one, other), (other, one)):
                    if a in sides[0] and b in sides[1]:
                        yield sides[0][a], sides[1][b]

    def _prune_by_conditions(self) -> None:
        """Leave out segments whose times or keys no condition allows, and that match nothing on the side of a join."""
        for each in self._relations.values():
            if each.occurrences and all(occurrence.conditions for occurrence in each.occurrences):
                self._prune_relation(each)
        for (one, column), (other, other_column) in self._equalities:
            self._prune_by_join(self._relations[one], column, self._relations[other], other_column)
            self._prune_by_join(self._relations[other], other_column, self._relations[one], column)

    def _prune_relation(self, each: _Relation) -> None:
        """What any of the places where it is read may need stays."""
        numbers, ranges = set[int](), []
        for occurrence in each.occurrences:
            filters = self._translate_filters(occurrence)
            selection = prune_by_time(each.selection, _find_times(filters, each.view))
            keyed = find_key_ranges(filters, each.view)
            if keyed is not None:
                rows = find_row_ranges(selection.segments, keyed, self._snapshot.directories, each.view.sorted_by)
                selection = keep_segments(selection, {r.segment.id for r in rows if r.stop > r.start})
            ranges.append(keyed)
            numbers |= {segment.id for segment in selection.segments}
        each.selection = keep_segments(each.selection, numbers)
        if all(keyed is not None for keyed in ranges):
            each.predicate = KeyPredicate(tuple(key_range for keyed in ranges for key_range in keyed or ()), None, None)

    def _translate_filters(self, occurrence: _Occurrence) -> list[Any]:
        strategy = find_object(self._spark, "org.apache.spark.sql.execution.datasources.DataSourceStrategy")
        filters = []
        for condition in occurrence.conditions:
            for part in split_condition(condition):
                translated = strategy.translateFilter(part, True)
                filter_ = to_python_filter(translated.get()) if translated.isDefined() else None
                if filter_ is not None:
                    filters.append(filter_)
        return filters

    def _prune_by_join(self, each: _Relation, column: str, other: _Relation, other_column: str) -> None:
        if len(each.occurrences) != 1 or each.by_driver or other.by_driver:
            return
        numbers = prune(
            self._snapshot,
            each.selection.segments,
            each.view,
            column,
            other.selection.segments,
            other.view,
            other_column,
        )
        if numbers is not None and len(numbers) < len(each.selection.segments):
            each.selection = keep_segments(each.selection, numbers)
            each.joined = f"; segments that {other.view.name}.{other_column} can match"


def _to_spark_array(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """A column in one piece; intervals, which Spark does not take from Arrow, as text."""
    if pa.types.is_interval(field.type) or pa.types.is_duration(field.type):
        return pa.array(json_values(column.combine_chunks(), field), pa.string())
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], field.type)


def _find_times(filters: Sequence[Any], view: StreamSnapshot) -> KeyPredicate:
    """The event times that conditions allow, with a microsecond to spare: Spark compares them itself."""
    after = upto = None
    for condition in filters:
        value = getattr(condition, "value", None)
        if getattr(condition, "attribute", None) != (view.model.time,) or not isinstance(value, dt.datetime):
            continue
        instant = times.parse_instant(value)
        kind = type(condition).__name__
        if kind.startswith(("GreaterThan", "Equal")):
            after = instant - 1 if after is None else max(after, instant - 1)
        if kind.startswith(("LessThan", "Equal")):
            upto = instant if upto is None else min(upto, instant)
    return KeyPredicate(None, after, upto)


def _find_passed(plan: Any) -> Iterator[int]:
    """The numbers of columns of relations below a join whose rows reach it one by one."""
    kind = find_kind(plan)
    if kind == _STREAM_LEAF:
        yield from find_names(plan.output())
    elif kind in _KEEPS_ROWS_APART:
        yield from _find_passed(plan.child())
    elif kind == "Join" and plan.joinType().sql() == "INNER":
        yield from _find_passed(plan.left())
        yield from _find_passed(plan.right())
    elif kind == "Join" and plan.joinType().sql() in ("LEFT SEMI", "LEFT ANTI", "LEFT OUTER"):
        yield from _find_passed(plan.left())

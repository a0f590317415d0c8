"""Answers ``GROUP BY … ORDER BY count(*) DESC LIMIT j`` with the help of a summary, exactly or not at all.

The bounds of a summary say which groups can be among the heaviest. Where it has their exact weights, the rest of the
statement runs over these; otherwise the statement runs over the rows of those groups alone, which a search key finds
by probes. Where a group that is on no list could be among them, the statement is answered as if there were no summary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.catalog.records import SummaryEntry
from windrow.errors import WindrowError
from windrow.indexes.arrow_arrays import to_arrow
from windrow.queries.engine.types import quote_name
from windrow.queries.sql.split_aggregate import CannotSplitError, find_clauses
from windrow.queries.sql.statement import Reference, Statement, parse
from windrow.queries.synopses import node_store, summaries
from windrow.queries.synopses.decomposition import ROW_ALIAS
from windrow.queries.synopses.frequent_items import ROWS, GroupBounds, Int64s, UnusableListError
from windrow.queries.synopses.query_shape import (
    OutputColumn,
    SynopsisStatement,
    analyse_statement,
    read_standing_statement,
)
from windrow.snapshot import Snapshot, StreamSnapshot

_MOST_CANDIDATES = 1000
"""With more groups to look up the rows are read as ever. Not measured: bounds the text of the predicate."""
_MAX_DAYS = 1_000_000
"""Dates that are further from 1970, infinite ones among them, are not written into a predicate."""


@dataclass(frozen=True)
class TopGroups:
    """How a summary answers a statement."""

    summary: SummaryEntry
    view: StreamSnapshot
    statement: SynopsisStatement
    bounds: GroupBounds
    candidates: Int64s
    """Positions of the groups among which the answer is."""

    @property
    def reference(self) -> Reference:
        """What the statement says of the stream that it reads."""
        return self.statement.stream

    @property
    def is_known(self) -> bool:
        """Whether the lists have all that the answer needs."""
        exact = bool((self.bounds.lower == self.bounds.upper)[self.candidates].all())
        return exact and len(self.statement.shape.decomposed.calls) == 1

    def answer(self) -> pa.Table:
        """The answer, of exact weights alone: few groups are sorted and cut as the statement says."""
        form = self.statement.array_form
        assert form is not None
        rows = list(range(len(self.candidates)))
        for order in reversed(form.final.orders):
            values = self._sort_keys(order.column)
            present = [row for row in rows if values[row] is not None]
            nulls = [row for row in rows if values[row] is None]
            present.sort(key=values.__getitem__, reverse=order.descending)
            rows = nulls + present if order.nulls_first else present + nulls
        chosen = pa.array(rows[form.final.offset : form.final.offset + (form.final.limit or 0)], pa.int64())
        arrays = [
            self._values(column).take(chosen).cast(of.type)
            for column, of in zip(form.final.columns, form.schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=form.schema)

    def _values(self, column: OutputColumn) -> pa.Array:
        """What the candidates have in a column of the answer."""
        if not column.group:
            return to_arrow(self.bounds.lower[self.candidates])
        positions = node_store.find_group_positions(self.summary.counted, self.statement.shape.needs[0])
        assert positions is not None
        return self._candidate_groups()[f"g{positions[column.number]}"]

    def _sort_keys(self, column: OutputColumn) -> list[Any]:
        """The values of a column in an order that is DuckDB's; times as their counts, which have infinite ones too."""
        values = self._values(column)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        elif pa.types.is_date(values.type):
            values = values.cast(pa.int32())
        return values.to_pylist()  # type: ignore[no-any-return]

    def restrict(self) -> str | None:
        """The statement over the rows of the candidates alone; None if they cannot be written down."""
        statement = parse(self.statement.statement.text)
        predicate = self._predicate()
        return None if predicate is None else _add_condition(statement, predicate)

    def describe(self) -> str:
        """What is done, in words."""
        most = len(self.candidates)
        how = "whose weights the lists have" if self.is_known else "whose rows alone are read"
        return (
            f"{self.view.name} {self.statement.stream.clause} at slide {self.view.state.slide}: summary "
            f"{self.summary.name} ({self.bounds.lists} lists of {self.summary.frequent}) leaves {most} "
            f"group{'s' * (most != 1)} for the answer, {how}"
        )

    def _candidate_groups(self) -> dict[str, pa.Array]:
        count = len(self.summary.counted.groups)
        if not self.bounds.groups.num_rows:
            return {f"g{position}": pa.nulls(0) for position in range(count)}
        taken = self.bounds.groups.take(to_arrow(self.candidates)).combine_chunks()
        return {name: taken.column(name).combine_chunks() for name in taken.column_names}

    def _predicate(self) -> str | None:
        """A condition that the rows of the candidates meet, and no others."""
        if not len(self.candidates):
            return "false"
        texts, literals = [], []
        for position, (text, _, kind) in enumerate(self.summary.counted.groups):
            values = _write_literals(self._candidate_groups()[f"g{position}"], kind)
            if values is None:
                return None
            literals.append(values)
            texts.append(re.sub(rf"\b{ROW_ALIAS}\b", lambda _: quote_name(self.statement.stream.alias), f"({text}\n)"))
        conditions = [_among(text, values) for text, values in zip(texts, literals, strict=True)]
        if len(texts) > 1:
            rows = (
                " AND ".join(
                    f"{text} IS NOT DISTINCT FROM {value or 'NULL'}" for text, value in zip(texts, row, strict=True)
                )
                for row in zip(*literals, strict=True)
            )
            conditions.append("(" + " OR ".join(f"({row})" for row in rows) + ")")
        return " AND ".join(conditions)


def _among(text: str, values: Sequence[str | None]) -> str:
    """A condition on one group; null is the value that no comparison meets."""
    distinct = list(dict.fromkeys(value for value in values if value is not None))
    parts = [f"{text} IN ({', '.join(distinct)})"] if distinct else []
    parts += [f"{text} IS NULL"] if None in values else []
    return f"({' OR '.join(parts)})"


def _write_literals(values: pa.Array, kind: str) -> list[str | None] | None:
    """Values of a group as SQL, None for null; None altogether if some cannot be written."""
    if kind == "TIMESTAMP":
        return [None if v is None else f"make_timestamp({v})" for v in values.cast(pa.int64()).to_pylist()]
    if kind == "DATE":
        days = values.cast(pa.int32()).to_pylist()
        if any(v is not None and abs(v) > _MAX_DAYS for v in days):
            return None
        return [None if v is None else f"(DATE '1970-01-01' + ({v}))" for v in days]
    if kind == "VARCHAR":
        texts = values.to_pylist()
        if any(v is not None and "\0" in v for v in texts):
            return None
        return [None if v is None else "'" + v.replace("'", "''") + "'" for v in texts]
    return [None if v is None else str(v).lower() for v in values.to_pylist()]


def _add_condition(statement: Statement, predicate: str) -> str | None:
    """The statement as it was written, over the rows alone that also meet a condition."""
    try:
        clauses = find_clauses(statement)
    except CannotSplitError:
        return None
    data = statement.text.encode()
    if "where" not in clauses:
        start = clauses["group"][0]
        return (data[:start] + f"\nWHERE {predicate}\n".encode() + data[start:]).decode()
    start, stop = clauses["where"]
    written = data[start + len("where") : stop]
    return (data[:start] + f"WHERE {predicate} AND (".encode() + written + b"\n) " + data[stop:]).decode()


def find_top_groups(snapshot: Snapshot, sql: str, params: object = None) -> TopGroups | None:
    """How a summary answers a statement; None if none does, or if it could not be certain."""
    store = snapshot.store
    folded = sql.lower()
    if params or "limit" not in folded or "group" not in folded or snapshot.role.is_restricted:
        return None
    if not summaries.are_there(store):
        return None
    try:
        references = read_standing_statement(store, sql).references
        if len(references) != 1 or references[0].schema or references[0].past is not None:
            return None
        name = next((n for n in snapshot.streams() if n.lower() == references[0].name.lower()), None)
        if name is None:
            return None
        view = snapshot.view(name)
        entries = store.catalog.read(lambda tables: summaries.read_summaries(tables, view.entry.id))
        if not entries or view.state.slide is None:
            return None
        statement = analyse_statement(store, snapshot, sql)
        most = _count_wanted(statement)
        for entry in entries if most else ():
            if _suits(entry, statement):
                bounds = summaries.find_bounds(store, snapshot, view, entry, statement.slots)
                candidates = None if bounds is None else bounds.find_candidates(most)
                if bounds is not None and candidates is not None and len(candidates) <= _MOST_CANDIDATES:
                    return TopGroups(entry, view, statement, bounds, candidates)
    except (CannotSplitError, UnusableListError, WindrowError):
        return None  # what is wrong with a statement is told when it is run
    return None


def _count_wanted(statement: SynopsisStatement) -> int:
    """How many of the heaviest groups a statement needs; 0 if it does not ask for the heaviest."""
    form = statement.array_form
    if form is None or not form.final.limit or not form.final.orders:
        return 0
    first = form.final.orders[0]
    if first.column.group or not first.descending or first.nulls_first:
        return 0
    return form.final.limit + form.final.offset


def _suits(entry: SummaryEntry, statement: SynopsisStatement) -> bool:
    """Whether a summary weighs the groups of a statement by what it orders them by."""
    assert statement.array_form is not None
    shape, counted = statement.shape, entry.counted
    need, first = shape.needs[0], statement.array_form.final.orders[0].column
    identity = counted.where_key, tuple(sorted(key for _, key, _ in counted.groups))
    finish = shape.finishes[first.number]
    if need.identity != identity or statement.slots > counted.slots or finish.plain is None:
        return False
    operation, position = finish.plain[0], finish.plain[1]
    wanted = "count" if entry.kind == ROWS else "sum"
    return operation == wanted and need.columns[int(position)].key == entry.weight

"""From a statement's text to what it needs of synopses, remembered since standing queries are asked again and again."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from windrow.indexes.model import RowModel
from windrow.queries import engine, states, windows
from windrow.queries.marking import marked
from windrow.queries.periodic.components import Shape, shape
from windrow.queries.periodic.decompose import ROW, decompose
from windrow.queries.periodic.finals import Direct, recognised
from windrow.queries.pieces import CannotCutError
from windrow.queries.relations import empty_sql
from windrow.queries.sources import run
from windrow.queries.statements import Reference, Statement, parse
from windrow.queries.types import quoted
from windrow.snapshot import Snapshot, StreamView
from windrow.store import Store

_functions: dict[int, states.Functions] = {}
_Shaped = tuple[Shape, tuple[tuple[str, str], ...], Direct | None]


@dataclass(frozen=True)
class Asked:
    """A statement that synopses could answer."""

    statement: Statement
    stream: Reference
    shape: Shape
    slots: int
    """How many slots its window has."""
    columns: tuple[tuple[str, str], ...]
    """Names and DuckDB types of its answer's columns."""
    direct: Direct | None = None
    """If arrays can answer it."""


def asked(store: Store, snapshot: Snapshot, sql: str) -> Asked:
    """What a statement needs of synopses.

    Raises:
        CannotCutError: why only its rows can answer it.
    """
    statement = parse(sql)
    if statement.explain:
        raise CannotCutError("it asks for a plan")
    known = {name.lower(): name for name in snapshot.streams()}
    if len(statement.references) != 1 or statement.references[0].schema:
        raise CannotCutError("it does not read exactly one stream")
    reference = statement.references[0]
    if reference.name.lower() not in known:
        raise CannotCutError("it does not read a stream")
    view = snapshot.view(known[reference.name.lower()])
    slots = window_slots(view, reference.window)
    shaped, columns, direct = _shaped(_Question(store, statement, reference, view.schema.serialize().to_pybytes()))
    return Asked(statement, reference, shaped, slots, columns, direct)


def window_slots(view: StreamView, window: windows.WindowSpec) -> int:
    """The whole slots that a window is made of."""
    definition, model = view.entry.definition, view.entry.definition.model
    if isinstance(window, windows.Range):
        if window.length % definition.slide:
            raise CannotCutError("its window is no multiple of the stream's slide")
        if definition.longest_life is not None and window.length > definition.longest_life:
            raise CannotCutError("its window is longer than the stream keeps rows")
        return window.length // definition.slide
    if not isinstance(window, windows.All):
        raise CannotCutError("its window is a count of rows or has a fixed end")
    return _all_live(definition.longest_life, definition.slide, model)


def _all_live(longest: int | None, slide: int, model: RowModel) -> int:
    if longest is None:
        raise CannotCutError("it asks for all rows of a stream that keeps them for ever")
    if model.expires is None and longest % slide:
        raise CannotCutError("the stream's lifetime is no multiple of its slide")
    return -(-longest // slide)


class _Question:
    """A statement over a stream with a schema; what it needs depends on nothing else."""

    def __init__(self, store: Store, statement: Statement, stream: Reference, schema: bytes) -> None:
        self.store, self.statement, self.stream, self.schema = store, statement, stream, schema
        self._identity = (os.getpid(), str(store.root), statement.text, stream.name, schema)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Question) and self._identity == other._identity


def _shaped(question: _Question) -> _Shaped:
    found = _remembered(question)
    if isinstance(found, str):
        raise CannotCutError(found)
    return found


@lru_cache(maxsize=2048)
def _remembered(question: _Question) -> _Shaped | str:
    schema = pa.ipc.read_schema(pa.py_buffer(question.schema))
    with engine.cursor(question.store) as cursor:
        try:
            return _look(cursor, question, schema)
        except CannotCutError as error:
            return str(error)
        except duckdb.Error:
            return "its pieces do not stand on their own"


def _look(cursor: Any, question: _Question, schema: pa.Schema) -> _Shaped:
    known = _functions.get(os.getpid())
    if known is None:
        known = _functions[os.getpid()] = states.known_functions(cursor)
    whole = decompose(question.statement, question.stream, tuple(schema.names), known)
    rows = f"({empty_sql(schema)}) AS {ROW}"
    shaped = shape(cursor, whole, rows)
    own = f"WITH {quoted(question.stream.relation)} AS ({empty_sql(schema)}) {question.statement.sql}"
    if question.statement.tree["type"] != "SELECT_NODE":
        raise CannotCutError("it is not a single SELECT")
    columns = _described(cursor, own)
    group_types = shaped.needs[0].types[: len(whole.groups)]
    stand_ins = [f"CAST(NULL AS {kind}) AS {whole.group_column(at)}" for at, kind in enumerate(group_types)]
    stand_ins += [f"CAST(NULL AS {f.type}) AS {whole.aggregate_column(at)}" for at, f in enumerate(shaped.finishes)]
    none = f"SELECT {', '.join(stand_ins)}"
    given = _described(cursor, f"WITH {whole.done} AS ({none}) {whole.final}")
    if [kind for _, kind in columns] != [kind for _, kind in given]:
        raise CannotCutError("its pieces have other types")
    return shaped, tuple(columns), _direct(cursor, shaped, columns, f"WITH {whole.done} AS ({none}) {whole.final}")


def _direct(cursor: Any, shaped: Shape, columns: Sequence[tuple[str, str]], nothing: str) -> Direct | None:
    """How arrays answer it; `nothing` is its last part over stand-ins, which says what DuckDB's answer looks like."""
    final = recognised(shaped)
    if final is None:
        return None
    schema = marked(run(cursor, nothing, None, 1)[0].schema, [kind for _, kind in columns])
    return Direct(final, pa.schema([f.with_name(name) for f, (name, _) in zip(schema, columns, strict=True)]))


def _described(cursor: Any, sql: str) -> list[tuple[str, str]]:
    return [(str(row[0]), str(row[1])) for row in cursor.execute(f"DESCRIBE {sql}").fetchall()]

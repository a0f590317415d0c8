"""The door from one-time queries to synopses: a statement that standing queries' synopses cover is answered from them.

Streams without synopses pay one look into the catalog for it, once for each commit; everything behind the door is
loaded when there are some.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windrow.catalog import Tables, key
from windrow.queries.pieces import CannotCutError
from windrow.queries.statements import Statement
from windrow.queries.windows import Range
from windrow.snapshot import Snapshot


def answer(
    snapshot: Snapshot, statement: Statement, params: Sequence[Any] | Mapping[str, Any] | None
) -> pa.Table | None:
    """The answer out of synopses if it is exactly the one over the rows, else None."""
    if not _kept(snapshot, statement):
        return None
    from windrow.queries.periodic import answering

    named = params if isinstance(params, Mapping) else {str(at): value for at, value in enumerate(params or (), 1)}
    try:
        rows, _ = answering.answer_one(snapshot.store, snapshot, statement.text, dict(named), exact=True)
    except CannotCutError:
        return None
    return rows


def explain(snapshot: Snapshot, statement: Statement) -> str:
    """Which synopsis answers a statement, or why none does; empty where there is nothing to say."""
    kept = _kept(snapshot, statement)
    standing = any(isinstance(r.window, Range) and r.window.slide is not None for r in statement.references)
    if not kept and not standing and not _kept_of_any(snapshot, statement):
        return ""
    from windrow.queries.periodic import answering

    try:
        return f"answered from: {answering.plan(snapshot.store, snapshot, _bare(statement))}"
    except CannotCutError as error:
        return f"answered from its rows: {error}"


def _bare(statement: Statement) -> str:
    """The statement without EXPLAIN in front."""
    return statement.source.data.decode().lstrip() if statement.explain else statement.text


def _kept(snapshot: Snapshot, statement: Statement) -> bool:
    """Whether the only relation of a statement is a stream with synopses."""
    return len(statement.references) == 1 and _kept_of_any(snapshot, statement)


def _kept_of_any(snapshot: Snapshot, statement: Statement) -> bool:
    wanted = {reference.name.lower() for reference in statement.references if not reference.schema}
    numbers = tuple([snapshot.view(name).entry.id for name in snapshot.streams() if name.lower() in wanted])

    def look(tables: Tables) -> bool:
        return any(next(iter(tables.raw_items("synopses", key(number))), None) is not None for number in numbers)

    asked = _kept_of_any, numbers
    if numbers and asked not in snapshot.notes:
        snapshot.notes[asked] = snapshot.store.catalog.read(look)
    return bool(numbers) and bool(snapshot.notes[asked])

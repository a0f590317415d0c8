"""Checks of a stream's rows: SQL predicates that its owner declared, which DuckDB evaluates on each chunk of an append.

A predicate was confined when it was declared (`windrow.queries.sql.row_predicate`); the instance here reaches no file
either. As in SQL, a row fails where a predicate is false, and passes where it is null.
"""

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.errors import SchemaError
from windrow.fork_safety import forget_after_fork
from windrow.native import rows as native_rows

if TYPE_CHECKING:
    import duckdb

    from windrow.definitions import StreamDefinition

Checks = tuple[tuple[str, str], ...]
"""Predicates, each with what happens to a row that fails it: ``"reject"`` or ``"refuse"`` (the whole append)."""
OUTCOMES = ("reject", "refuse")
_ROWS = "_windrow_rows"
_lock = threading.Lock()
_instances: "dict[str, duckdb.DuckDBPyConnection]" = {}
forget_after_fork(_instances, _lock)


def _open_cursor() -> "duckdb.DuckDBPyConnection":
    """A cursor of this process's instance for checks: opening one takes longer than checking a small append."""
    import duckdb

    with _lock:
        if not _instances:
            settings: dict[str, Any] = {
                "python_enable_replacements": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "temp_directory": "",
            }
            instance = duckdb.connect(":memory:", config=settings)
            for setting in ("TimeZone = 'UTC'", "enable_external_access = false", "lock_configuration = true"):
                instance.execute(f"SET GLOBAL {setting}")
            _instances["checks"] = instance
        return _instances["checks"].cursor()


def describe_reasons(checks: Checks) -> list[str]:
    """The reasons of rejection by code: those that every stream has, and one for each check."""
    return [*native_rows.REASONS, *(f"it fails the check {predicate}" for predicate, _ in checks)]


def find_columns(checks: Checks, schema: pa.Schema) -> list[str]:
    """The columns that checks may read, and perhaps some more."""
    text = " ".join(predicate.lower() for predicate, _ in checks)
    return [name for name in schema.names if name.lower().replace('"', '""') in text]


def evaluate(rows: pa.Table, predicates: Iterable[str]) -> list[npt.NDArray[np.bool_]]:
    """For each predicate, which rows fail it. Raises `duckdb.Error` where one cannot be computed."""
    columns = ", ".join(f"coalesce(NOT ({predicate}\n), false) AS c{i}" for i, predicate in enumerate(predicates))
    with _open_cursor() as cursor:
        cursor.register(_ROWS, rows)
        failing = cursor.sql(f"SELECT {columns} FROM {_ROWS}").to_arrow_table()
        return [column.to_numpy() for column in failing.columns]


def bind(schema: pa.Schema, predicate: str) -> str:
    """DuckDB's name for the type of a predicate over such rows. Raises `duckdb.Error` if it is none, as a sum."""
    with _open_cursor() as cursor:
        cursor.register(_ROWS, schema.empty_table())
        cursor.sql(f"SELECT 1 FROM {_ROWS} WHERE ({predicate}\n)").fetchall()
        return str(cursor.sql(f"SELECT ({predicate}\n) FROM {_ROWS}").types[0])


def apply_checks(
    rows: pa.Table, definition: "StreamDefinition", codes: npt.NDArray[np.uint8], before: int | None = None
) -> npt.NDArray[np.uint8]:
    """Reason codes of rows, with those of the checks for rows that had none.

    Args:
        rows: Of the stream, with the columns of `find_columns` at least.
        definition: Of the stream.
        codes: What `classify_rows` found; 0 where a row is taken so far.
        before: How many rows of the append came before these, to name one in an error; None where nobody knows.

    Raises:
        SchemaError: a row fails a check that refuses the append, or a check cannot be computed.
    """
    checks = definition.checks
    if not checks or not rows.num_rows:
        return codes
    import duckdb

    codes = codes.copy()
    columns = rows.select(find_columns(checks, rows.schema) or rows.column_names[:1])
    try:
        failures = evaluate(columns, [predicate for predicate, _ in checks])
    except duckdb.Error as error:
        message = str(error).splitlines()[0]
        raise SchemaError(
            f"stream {definition.name!r}: its checks cannot be computed for these rows ({message}); "
            "nothing was appended"
        ) from None
    for number, ((predicate, outcome), failing) in enumerate(zip(checks, failures, strict=True)):
        newly = failing & (codes == 0)
        if outcome == "refuse" and newly.any():
            place = "a row" if before is None else f"row {before + int(newly.argmax()) + 1:,}"
            raise SchemaError(
                f"stream {definition.name!r}: {place} fails the check {predicate}, which refuses such appends; "
                "mend the rows, or alter the stream's checks; nothing was appended"
            )
        codes[newly] = len(native_rows.REASONS) + number
    return codes

"""Random SQL over windows, each statement in two forms: ours, and plain DuckDB's over tables of the same rows.

`StatementGenerator` writes statements over a `RandomWarehouse`.
"""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import oracle
import windrow
from oracle import Row
from random_warehouses import KEYS, RandomStream, RandomWarehouse
from sample_streams import BASE, DELTA


@dataclass
class StatementPair:
    """One statement: `ours` with window clauses, `plain` over tables that hold exactly the rows of those windows."""

    ours: str
    plain: str
    tables: dict[str, pa.Table]
    parameters: dict[str, Any]
    ordered: bool = False


def sql_name(name: str, choice: random.Random) -> str:
    """A name as some user would write it."""
    quoted = '"' + name.replace('"', '""') + '"'
    if not name.replace("_", "").isalnum():
        return quoted if choice.random() < 0.7 else quoted.upper()
    return choice.choice((name, name, name.upper(), quoted))


def sql_value(value: Any, kind: pa.DataType) -> str | None:
    """A value as a constant, None if this test does not write it."""
    if value is None:
        return "NULL"
    if pa.types.is_boolean(kind):
        return "true" if value else "false"
    if pa.types.is_floating(kind):
        return f"'{float(value)!r}'::DOUBLE" if not np.isfinite(value) else repr(float(value))
    if pa.types.is_timestamp(kind):
        micros = oracle.micros(int(value), kind.unit) or 0
        instant = (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)).isoformat(" ")
        if kind.unit == "ns":
            return f"'{instant}'" if kind.tz is None else f"'{instant}+00'"
        return f"TIMESTAMP '{instant}'" if kind.tz is None else f"TIMESTAMPTZ '{instant}+00'"
    if pa.types.is_date(kind):
        return f"DATE '{value.isoformat()}'"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "'" + "".join(f"\\x{byte:02x}" for byte in value) + "'::BLOB"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return "'" + value.replace("'", "''") + "'"
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return str(value)
    return None


@dataclass
class Reference:
    """One place in a statement where a window stands."""

    stream: RandomStream
    ours: str
    rows: list[Row]


@dataclass
class StatementGenerator:
    """Writes statements.

    Args:
        world: Over what.
        choice: By which chance.
    """

    world: RandomWarehouse
    choice: random.Random
    references: list[Reference] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    with_hosts: bool = False

    def ask(self) -> StatementPair:
        """The next statement."""
        self.references, self.parameters, self.with_hosts = [], {}, False
        kind = self.choice.choice(KINDS)
        body, ordered = kind(self)
        ours, plain = body, body
        tables = {}
        for position, reference in enumerate(self.references):
            ours = ours.replace(f"⟨{position}⟩", reference.ours)
            plain = plain.replace(f"⟨{position}⟩", f"t{position}")
            tables[f"t{position}"] = reference.stream.rows(reference.rows)
        if self.with_hosts:
            tables["hosts"] = self.world.hosts
        return StatementPair(ours, plain, tables, self.parameters, ordered)

    def ask_alike(self, count: int) -> list[StatementPair]:
        """Statements that point at a search key, and differ only in constants."""
        self.references, self.parameters, self.with_hosts = [], {}, False
        stream, ref = self.window(self.choice.choice([s for s in self.world.streams if s.shape.key] or [None]))
        what = self.choice.choice(("*", "a.n, a.ts", "count(*), sum(a.n), min(a.ts)", "a.n % 2 AS odd, count(*)"))
        names = [(name, f"a.{sql_name(name, self.choice)}") for name in stream.shape.key]
        more = self.choice.choice(("", " AND a.n % 2 = 0", " AND a.ts IS NOT NULL"))
        last = " GROUP BY odd" if "odd" in what else ""
        reference = self.references[0]
        pairs = []
        for _ in range(count):
            self.parameters = {}
            values = [self.value(stream, name) for name, _ in names]
            conditions = [f"{name} = {value}" for (_, name), value in zip(names, values, strict=True)]
            where = " AND ".join([*conditions, f"a.n >= {self.choice.randint(0, 9)}"])
            body = f"SELECT {what} FROM {ref} AS a WHERE {where}{more}{last}"
            plain = {"t0": stream.rows(reference.rows)}
            pairs.append(
                StatementPair(body.replace("⟨0⟩", reference.ours), body.replace("⟨0⟩", "t0"), plain, self.parameters)
            )
        return pairs

    # -- windows

    def window(self, stream: RandomStream | None = None) -> tuple[RandomStream, str]:
        """A stream with a window, as ``⟨n⟩``, to be replaced."""
        choice = self.choice
        stream = stream or choice.choice(self.world.streams)
        truth, name = stream.truth, sql_name(stream.name, choice)
        live, now = truth.live(), truth.now
        text, rows = name, live
        kinds = ("all", "range", "range", "rows", "since", "between", "function")
        kind = choice.choice(kinds)
        if kind in ("range", "function"):
            most = stream.shape.lifetime or stream.shape.max_lifetime or 8 * DELTA
            length = min(most, choice.choice((DELTA, 2 * DELTA, 3 * DELTA, DELTA // 2, DELTA + 1, 2 * DELTA - 1, most)))
            rows = truth.live(length)
            word = choice.choice(("WINDOW", "RANGE", "window"))
            text = f"{name} [{word} {length} MICROSECONDS]"
            if kind == "function":
                text = f"window('{stream.name}', INTERVAL {length} MICROSECONDS)"
        elif kind == "rows":
            count = choice.choice((1, 2, 5, 20, 10_000))
            rows = stream.newest_first()[:count]
            text = choice.choice((f"{name} [ROWS {count}]", f"window('{stream.name}', rows := {count})"))
        elif kind == "since":
            start = self.moment(now)
            rows = [row for row in live if row.ts > start]
            text = f"{name} [SINCE TIMESTAMP '{_text(start)}']"
        elif kind == "between":
            start = self.moment(now)
            stop = start + choice.choice((1, DELTA // 3, DELTA, 2 * DELTA))
            rows = [row for row in live if start < row.ts <= stop]
            text = f"{name} [FROM TIMESTAMP '{_text(start)}' TO TIMESTAMP '{_text(stop)}']"
        self.references.append(Reference(stream, text, rows))
        return stream, f"⟨{len(self.references) - 1}⟩"

    def moment(self, now: int | None) -> int:
        """A time near a stream's window."""
        base = BASE if now is None else now
        return base - self.choice.choice((0, 1, DELTA // 2, DELTA, 2 * DELTA, 3 * DELTA + 1, -DELTA, 20 * DELTA))

    # -- predicates

    def value(self, stream: RandomStream, column: str) -> str | None:
        """A constant for a column: one that occurs, or one beside it; often a parameter."""
        kind = stream.shape.schema.field(column).type
        if column in ("ts", "exp"):
            raw = stream.shape.raw(column, self.moment(stream.truth.now))
            return sql_value(raw, kind)
        if column == "n":
            return str(self.choice.randint(0, max(1, self.world.number)))
        written = sql_value(self.choice.choice(stream.shape.values[column]), kind)
        if written is not None and written != "NULL" and pa.types.is_integer(kind) and self.choice.random() < 0.4:
            name = f"p{len(self.parameters)}"
            self.parameters[name] = int(written)
            return f"${name}"
        return written

    def comparable(self, stream: RandomStream) -> list[str]:
        """Columns that constants can be compared with; keys and time more often than others."""
        names = [n for n in stream.shape.schema.names if not pa.types.is_nested(stream.shape.schema.field(n).type)]
        usual = [n for n in names if n not in ("span", "nothing")]
        return usual + list(stream.shape.key) * 4 + ["ts"] * 2

    def predicate(self, stream: RandomStream, alias: str, depth: int = 2) -> str:
        """A condition on one relation."""
        choice = self.choice
        if depth and choice.random() < 0.6:
            word = choice.choice(("AND", "AND", "OR"))
            inner = [self.predicate(stream, alias, depth - 1) for _ in range(choice.choice((2, 2, 3)))]
            text = "(" + f" {word} ".join(inner) + ")"
            return f"NOT {text}" if choice.random() < 0.15 else text
        column = choice.choice(self.comparable(stream))
        name = f"{alias}.{sql_name(column, choice)}"
        given = [self.value(stream, column) for _ in range(4)]
        if any(value is None for value in given):
            return f"{name} IS NOT NULL"
        first, second, third, _ = given
        return choice.choice((
            f"{name} = {first}", f"{name} = {first}", f"{name} <> {first}", f"{name} < {first}", f"{name} >= {first}",
            f"{first} < {name}", f"{name} <= {first}", f"{name} IN ({first}, {second}, {third})", f"{name} NOT IN ({first}, {second})",
            f"{name} BETWEEN {first} AND {second}", f"{name} IS NULL", f"{name} IS NOT NULL", f"{name} IS DISTINCT FROM {first}",
            f"{name} IS NOT DISTINCT FROM {first}", f"coalesce({name} = {first}, false)",
        ))  # fmt: skip

    def where(self, stream: RandomStream, alias: str) -> str:
        """A WHERE, or none."""
        return f" WHERE {self.predicate(stream, alias)}" if self.choice.random() < 0.85 else ""

    # -- columns

    def groupable(self, stream: RandomStream) -> str:
        """A column to group or join by."""
        able = [n for n in stream.shape.schema.names if n in KEYS]
        return self.choice.choice([*able, *stream.shape.key, *stream.shape.key])

    def column(self, alias: str, name: str) -> str:
        """A column of a relation."""
        return f"{alias}.{sql_name(name, self.choice)}"


Body = tuple[str, bool]


def _text(micros: int) -> str:
    return (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)).isoformat(" ")


def rows_of_a_window(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    return f"SELECT * FROM {ref} AS a{q.where(stream, 'a')}", False


def some_columns(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    names = q.choice.sample(stream.shape.schema.names, 2)
    chosen = ", ".join(q.column("a", name) for name in names)
    return f"SELECT {q.choice.choice(('', '', 'DISTINCT '))}{chosen} FROM {ref} a{q.where(stream, 'a')}", False


def no_columns(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    what = q.choice.choice(("count(*)", "1", "count(*) FILTER (WHERE n % 2 = 0)", "count(a.n), max(n)"))
    return f"SELECT {what} FROM {ref} a{q.where(stream, 'a')}", False


def aggregates(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    name = q.column("a", q.groupable(stream))
    return (
        f"SELECT count(*), count({name}), min({name}), max({name}), count(DISTINCT {name}), sum(a.n), avg(a.n), "
        f"min(a.ts), max(a.ts) FROM {ref} AS a{q.where(stream, 'a')}"
    ), False


def groups(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    name = q.column("a", q.groupable(stream))
    having = q.choice.choice(("", " HAVING count(*) > 1", f" HAVING {name} IS NOT NULL"))
    return (
        f"SELECT {name} AS k, count(*) AS c, sum(a.n) FROM {ref} AS a{q.where(stream, 'a')} GROUP BY {name}{having}",
        False,
    )


def newest(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    order = q.choice.choice(("a.n DESC", "a.ts DESC, a.n", "a.n"))
    return f"SELECT a.n, a.ts FROM {ref} a{q.where(stream, 'a')} ORDER BY {order} LIMIT {q.choice.randint(1, 9)}", True


def windows_joined(q: StatementGenerator) -> Body:
    """Two windows of one stream, or of two streams that share a column."""
    stream, first = q.window()
    others = [s for s in q.world.streams if set(s.shape.values) & set(stream.shape.values) & set(KEYS)]
    other, second = q.window(q.choice.choice(others or [stream]))
    shared = sorted(set(stream.shape.values) & set(other.shape.values) & set(KEYS)) or ["n"]
    on = q.choice.choice([*shared, *(k for k in stream.shape.key if k in shared)])
    join = q.choice.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
    also = q.predicate(q.choice.choice((stream,)), "a")
    more = f" AND {q.predicate(other, 'b', 1)}" if q.choice.random() < 0.5 else ""
    condition = f"a.{sql_name(on, q.choice)} = b.{sql_name(on, q.choice)}"
    if q.choice.random() < 0.3:
        return f"SELECT a.n, b.n AS m FROM {first} a {join} {second} b ON {condition} AND {also}{more}", False
    return f"SELECT a.n, b.n AS m FROM {first} a {join} {second} b ON {condition} WHERE {also}{more}", False


def half_joins(q: StatementGenerator) -> Body:
    stream, first = q.window()
    other, second = q.window(stream)
    on = sql_name(q.groupable(stream), q.choice)
    join = q.choice.choice(("SEMI", "ANTI"))
    return (
        f"SELECT a.n FROM {first} a {join} JOIN {second} b ON a.{on} = b.{on} AND {q.predicate(other, 'b', 1)}{q.where(stream, 'a')}",
        False,
    )


def joined_with_a_table(q: StatementGenerator) -> Body:
    able = [s for s in q.world.streams if {"i", "s"} & set(s.shape.values)]
    if not able:
        return no_columns(q)
    stream, ref = q.window(q.choice.choice(able))
    on = q.choice.choice(sorted({"i", "s"} & set(stream.shape.values)))
    q.with_hosts = True
    label = q.choice.choice(("'one'", "'two'", "'none'"))
    return q.choice.choice((
        f"SELECT a.n, h.label FROM {ref} a JOIN hosts h ON a.{on} = h.{on}{q.where(stream, 'a')}",
        f"SELECT h.label, count(*) FROM {ref} a JOIN hosts h USING ({on}) WHERE h.label = {label} GROUP BY ALL",
        f"SELECT a.n, h.label FROM {ref} a LEFT JOIN hosts h ON a.{on} = h.{on} AND h.label = {label}",
        f"SELECT a.n FROM {ref} a WHERE a.{on} IN (SELECT {on} FROM hosts WHERE label = {label})",
        f"SELECT a.n FROM {ref} a WHERE a.{on} NOT IN (SELECT {on} FROM hosts WHERE label = {label} AND {on} IS NOT NULL)",
        f"SELECT a.n FROM {ref} a WHERE a.{on} = (SELECT max({on}) FROM hosts WHERE label = {label})",
        f"SELECT a.n FROM {ref} a WHERE EXISTS (SELECT 1 FROM hosts h WHERE h.{on} = a.{on} AND h.label = {label})",
        f"SELECT h.label, a.n FROM hosts h LEFT JOIN {ref} a ON a.{on} = h.{on}",
        f"SELECT a.n FROM {ref} a, hosts h WHERE a.{on} = h.{on} AND (h.label = {label} OR a.n % 3 = 0)",
        f"SELECT a.n FROM hosts AS h JOIN {ref} a ON (h.{on}) = a.{on} AND h.label IN ({label}, 'two') AND h.i IS NOT NULL",
        f"SELECT a.n FROM {ref} a, hosts, hosts h WHERE a.{on} = h.{on} AND h.label = {label} AND hosts.i = 1",
        f"WITH hosts AS (SELECT 1::BIGINT AS i, 'b' AS s, 'one' AS label) SELECT a.n FROM {ref} a JOIN hosts USING ({on})",
        (f"WITH x AS (SELECT * FROM {ref} a WHERE {on} IN (SELECT DISTINCT {on} FROM hosts h WHERE h.label = {label})) "
        f"SELECT count(*), (SELECT min(n) FROM x) AS m FROM x{q.where(stream, 'x')}"),
        (f"SELECT a.n, h.label FROM hosts h LEFT JOIN {ref} a ON a.{on} = h.{on} "
        f"WHERE a.{on} IN (SELECT {on} FROM hosts WHERE label = {label})"),
        f"SELECT a.n, h.label FROM {ref} a FULL JOIN hosts h ON a.{on} = h.{on} WHERE h.label IS NULL OR h.label = {label}",
        (f"SELECT h.label, a.n FROM hosts h ASOF JOIN {ref} a ON h.i >= a.n "
        f"WHERE a.{on} IN (SELECT {on} FROM hosts WHERE label = {label})"),
        f"SELECT h.label FROM hosts h SEMI JOIN {ref} a ON a.{on} = h.{on} AND h.label = {label}",
        f"SELECT h.label FROM hosts h ANTI JOIN {ref} a ON a.{on} = h.{on} WHERE h.label = {label}",
        f"SELECT a.n, g.label FROM {ref} a JOIN hosts h ON a.{on} = h.{on} LEFT JOIN hosts g ON g.i = h.i AND g.label = {label}",
        f"SELECT a.n FROM {ref} a WHERE a.{on} IN (SELECT h.{on} FROM hosts h WHERE h.label = {label} LIMIT 0) OR a.n = 1",
    )), False  # fmt: skip


def set_operations(q: StatementGenerator) -> Body:
    stream, first = q.window()
    _, second = q.window(stream)
    name = sql_name(q.groupable(stream), q.choice)
    word = q.choice.choice(("UNION", "UNION ALL", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"))
    return (
        f"SELECT {name} FROM {first} a{q.where(stream, 'a')} {word} SELECT {name} FROM {second} b{q.where(stream, 'b')}",
        False,
    )


def filtered_union(q: StatementGenerator) -> Body:
    stream, first = q.window()
    _, second = q.window(stream)
    names = ", ".join(sql_name(name, q.choice) for name in stream.shape.schema.names)
    return (
        f"SELECT u.n FROM (SELECT {names} FROM {first} a UNION ALL SELECT {names} FROM {second} b{q.where(stream, 'b')}) AS u "
        f"WHERE {q.predicate(stream, 'u')}"
    ), False


def used_once(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    how = q.choice.choice(("AS", "AS MATERIALIZED", "AS NOT MATERIALIZED"))
    return (
        f"WITH x {how} (SELECT * FROM {ref} a{q.where(stream, 'a')}) SELECT x.n FROM x WHERE {q.predicate(stream, 'x')}",
        False,
    )


def used_twice(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    how = q.choice.choice(("AS", "AS MATERIALIZED", "AS NOT MATERIALIZED"))
    on = sql_name(q.groupable(stream), q.choice)
    outer = q.choice.choice((
        f"SELECT p.n, r.n FROM x p JOIN x r ON p.{on} = r.{on} WHERE {q.predicate(stream, 'p')} AND {q.predicate(stream, 'r', 1)}",
        f"SELECT n FROM x p WHERE {q.predicate(stream, 'p')} UNION ALL SELECT n FROM x r WHERE {q.predicate(stream, 'r')}",
        f"SELECT p.n FROM x p WHERE p.n >= (SELECT avg(r.n) FROM x r WHERE {q.predicate(stream, 'r')})",
    ))  # fmt: skip
    return f"WITH x {how} (SELECT * FROM {ref} a{q.where(stream, 'a')}) {outer}", False


def subqueries(q: StatementGenerator) -> Body:
    stream, first = q.window()
    _, second = q.window(stream)
    on = sql_name(q.groupable(stream), q.choice)
    return q.choice.choice((
        f"SELECT a.n FROM {first} a WHERE a.n IN (SELECT b.n FROM {second} b{q.where(stream, 'b')})",
        f"SELECT a.n FROM {first} a WHERE a.{on} IN (SELECT b.{on} FROM {second} b{q.where(stream, 'b')})",
        f"SELECT a.n FROM {first} a WHERE a.n > (SELECT avg(b.n) FROM {second} b{q.where(stream, 'b')})",
        f"SELECT a.n, (SELECT count(*) FROM {second} b WHERE b.{on} = a.{on}) AS c FROM {first} a{q.where(stream, 'a')}",
        f"SELECT a.n FROM {first} a WHERE EXISTS (SELECT 1 FROM {second} b WHERE b.{on} = a.{on} AND {q.predicate(stream, 'b')})",
        f"SELECT * FROM (SELECT a.n, a.{on} AS k FROM {first} a) x, LATERAL (SELECT count(*) c FROM {second} b WHERE b.n < x.n) y",
    )), False  # fmt: skip


def ranked(q: StatementGenerator) -> Body:
    stream, ref = q.window()
    by = sql_name(q.groupable(stream), q.choice)
    inner = f"SELECT *, row_number() OVER (PARTITION BY a.{by} ORDER BY a.ts, a.n) AS r FROM {ref} a"
    return q.choice.choice((
        f"SELECT n, r FROM ({inner}) x WHERE {q.predicate(stream, 'x')}",
        f"{inner}{q.where(stream, 'a')} QUALIFY r = 1",
        f"SELECT a.n, lag(a.n) OVER (ORDER BY a.ts, a.n) FROM {ref} a{q.where(stream, 'a')}",
    )), False  # fmt: skip


KINDS: tuple[Callable[[StatementGenerator], Body], ...] = (
    rows_of_a_window, some_columns, some_columns, no_columns, aggregates, aggregates, groups, newest, windows_joined, windows_joined,
    half_joins, joined_with_a_table, joined_with_a_table, set_operations, filtered_union, used_once, used_twice, subqueries,
    subqueries, ranked,
)  # fmt: skip


# -- answers ---------------------------------------------------------------------------------------------------------


def open_plain() -> duckdb.DuckDBPyConnection:
    """A DuckDB for the truth."""
    plain = duckdb.connect(config={"threads": 1})
    plain.execute("SET TimeZone = 'UTC'")
    return plain


def plain_answer(plain: duckdb.DuckDBPyConnection, question: StatementPair) -> pa.Table | str:
    """What DuckDB says, or the class of its error."""
    for name, rows in question.tables.items():
        plain.register("given", rows)
        plain.execute(f"CREATE OR REPLACE TABLE {name} AS FROM given")
        plain.unregister("given")
    try:
        return plain.sql(question.plain, params=question.parameters or None).to_arrow_table()
    except duckdb.Error as error:
        return type(error).__name__


def our_answer(wh: windrow.Warehouse, question: StatementPair) -> pa.Table | str:
    """What the warehouse says, or the message of its error."""
    try:
        return wh.sql(question.ours, question.parameters or None).arrow()
    except windrow.QueryError as error:
        return str(error)


def comparable(table: pa.Table, *, ordered: bool) -> list[str]:
    """Rows in a form in which equal answers are equal: the order counts only where it was asked for, and zero has no sign."""
    rows = [repr(tuple(_value(value) for value in row.values())) for row in _positions(table).to_pylist()]
    return rows if ordered else sorted(rows)


def _positions(table: pa.Table) -> pa.Table:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return pa.table(columns, names=[str(index) for index in range(len(columns))])


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if np.isnan(value) else float(f"{value + 0.0:.12g}")
    return value

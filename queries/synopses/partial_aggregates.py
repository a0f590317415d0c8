"""The partial values of each slot from which an aggregate is finished later: sums, counts, states or frequency counts.

What DuckDB computes from parts is stored as those parts (AVG as a sum and a count), so that queries share them. What it
cannot merge (DISTINCT, mode, histogram) and integer quantiles are finished from how often each value occurs.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from windrow.catalog.records import StateCall, SynopsisColumn
from windrow.queries.engine.types import survives_arrow
from windrow.queries.sql.split_aggregate import MERGEABLE_AGGREGATES, CannotSplitError
from windrow.queries.synopses.decomposition import AggregateCall, DecomposedStatement, Expression

_SAME = {"min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor", "product"}
_COUNTS = {"count", "count_star"}
_COUNT_IF = {"count_if", "countif"}
_QUANTILES = {"median", "quantile_cont", "quantile_disc", "quantile"}
_BY_FREQUENCY = {"mode", "histogram", "entropy", "approx_top_k"}
_DISTINCT = {
    "count", "sum", "avg", "mean", "min", "max", "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp",
    "var_pop", "product", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor",
}  # fmt: skip
_APPROXIMATE = {"approx_quantile"}
"""Merged sketches are as good as one over all rows, but not the same."""
_INTEGERS = {
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN",
}  # fmt: skip
_FLOATS = {"FLOAT", "DOUBLE"}
_EXACT_DIGITS = 15
"""Fractions that are no longer are the same double in Python and in DuckDB."""
ROWS = SynopsisColumn(key="rows", build="count(*)", merge="sum", type="BIGINT")
"""Kept in every synopsis: says whether a group is there at all."""


@dataclass(frozen=True)
class SynopsisNeed:
    """What a statement needs of one synopsis."""

    where: Expression | None
    terms: tuple[tuple[str, str, str, str], ...] | None
    groups: tuple[Expression, ...]
    types: tuple[str, ...]
    """Of the groups."""
    counted: bool
    """Whether the last group is a value whose occurrences are counted."""
    columns: tuple[SynopsisColumn, ...]

    @property
    def identity(self) -> tuple[str, tuple[str, ...]]:
        """Needs with the same identity are met by one synopsis."""
        return "" if self.where is None else self.where.key, tuple(sorted(group.key for group in self.groups))


@dataclass(frozen=True)
class FinalExpression:
    """How an aggregate comes out of a need's merged columns."""

    need: int
    expression: str
    """Over columns ``c0…``; of frequency counts also ``v`` (the value), ``h`` (how many are not after it), ``t``."""
    type: str
    plain: tuple[str | int | float, ...] | None = None
    """The same as a word and the numbers of its columns, where `array_answers` can compute it."""


@dataclass(frozen=True)
class StatementNeeds:
    """A statement with everything that must be known to answer it from synopses."""

    decomposed: DecomposedStatement
    needs: tuple[SynopsisNeed, ...]
    finishes: tuple[FinalExpression, ...]


class _NeedCollector:
    """The needs of one statement while its aggregates are looked at."""

    def __init__(self, whole: DecomposedStatement, types: Sequence[str]) -> None:
        self.whole, self.types = whole, tuple(types)
        self.terms = None if whole.terms is None else tuple(comparison.term for comparison in whole.terms)
        self.order: list[str] = []
        self.values: dict[str, tuple[Expression, str]] = {}
        self.columns: dict[str, list[SynopsisColumn]] = {}

    def column(self, value: tuple[Expression, str] | None, column: SynopsisColumn) -> tuple[int, str]:
        """Ask for a column beside the plain groups, or beside counts of a value; gives the need and its name there."""
        key = "" if value is None else value[0].key
        if key not in self.columns:
            self.order.append(key)
            self.columns[key] = []
            if value is not None:
                self.values[key] = value
        columns = self.columns[key]
        if column not in columns:
            columns.append(column)
        return self.order.index(key), f"c{columns.index(column)}"

    def needs(self) -> tuple[SynopsisNeed, ...]:
        """The needs that were collected."""
        if not self.order:
            self.column(None, ROWS)
        return tuple(self._need(key) for key in self.order)

    def _need(self, key: str) -> SynopsisNeed:
        groups, types, value = self.whole.groups, self.types, self.values.get(key)
        if value is not None:
            groups, types = (*groups, value[0]), (*types, value[1])
        return SynopsisNeed(self.whole.where, self.terms, groups, types, value is not None, tuple(self.columns[key]))


def find_needs(cursor: Any, whole: DecomposedStatement, rows: str) -> StatementNeeds:
    """What a statement needs.

    Args:
        cursor: To ask DuckDB for types.
        whole: The pieces of the statement.
        rows: A relation with the stream's columns under the name `ROW_ALIAS`, as the text behind FROM.

    Raises:
        CannotSplitError: an aggregate cannot be finished from parts.
    """
    arguments = [a.text for call in whole.calls for a in (*call.arguments, *((call.within,) if call.within else ()))]
    texts = [*(group.text for group in whole.groups), *(call.text for call in whole.calls)]
    types = iter(_types(cursor, [*texts[: len(whole.groups)], *arguments], rows, ""))
    group_types = [next(types) for _ in whole.groups]
    results = _types(cursor, texts[len(whole.groups) :], rows, "")
    needs, finishes = _NeedCollector(whole, group_types), []
    for call, result in zip(whole.calls, results, strict=True):
        argument_types = [next(types) for _ in call.arguments]
        order_type = next(types) if call.within else None
        finishes.append(_plan_aggregate(cursor, needs, call, argument_types, order_type, result, rows))
    return StatementNeeds(whole, needs.needs(), tuple(finishes))


def _types(cursor: Any, texts: Sequence[str], rows: str, tail: str) -> list[str]:
    if not texts:
        return []
    columns = ", ".join(f"{text}\n AS t{position}" for position, text in enumerate(texts))
    described = cursor.execute(f"DESCRIBE SELECT {columns} FROM {rows}{tail}").fetchall()
    types = [str(row[1]) for row in described]
    for kind in types:
        if not survives_arrow(kind):
            raise CannotSplitError(f"values of type {kind} cannot be kept")
    return types


def _with_filter(call: AggregateCall) -> str:
    return "" if call.condition is None else f" FILTER (WHERE {call.condition.text}\n)"


def _make_column(call: AggregateCall, function: str, text: str, merge: str, kind: str) -> SynopsisColumn:
    """A column that any aggregate with the same argument and filter shares."""
    argument = call.arguments[0].key if call.arguments else ""
    key = f"{function}:{argument}:{'' if call.condition is None else call.condition.key}"
    return SynopsisColumn(key=key, build=f"{text}{_with_filter(call)}", merge=merge, type=kind)


def _plan_aggregate(
    cursor: Any,
    needs: _NeedCollector,
    call: AggregateCall,
    argument_types: Sequence[str],
    within: str | None,
    result: str,
    rows: str,
) -> FinalExpression:
    """How one aggregate is kept and finished."""
    if call.distinct or call.name in _BY_FREQUENCY or (call.name in ("min", "max") and len(argument_types) == 2):
        return _by_frequency(needs, call, argument_types, within, result)
    if call.name in _QUANTILES and (within or argument_types[0]) in _INTEGERS and _quantile_fraction(call) is not None:
        return _by_frequency(needs, call, argument_types, within, result)
    if call.within is not None and call.name not in ("quantile_cont", "quantile_disc"):
        raise CannotSplitError(f"{call.name} depends on an order")
    if call.name in _COUNTS:
        need, name = needs.column(None, _count_column(call))
        return FinalExpression(need, f"coalesce({name}, 0)", result, ("count", _column_position(name)))
    argument = call.arguments[0].text if call.arguments else ""
    if call.name in _COUNT_IF and len(argument_types) == 1:  # to DuckDB a sum, which is null over nulls
        need, total = needs.column(None, _make_column(call, "count_if", f"count_if({argument}\n)", "sum", "HUGEINT"))
        _, count = needs.column(None, _make_column(call, "count", f"count({argument}\n)", "sum", "BIGINT"))
        return FinalExpression(need, f"CASE WHEN {count} > 0 THEN {total} END", result)
    if call.name in ("sum", "avg", "mean") and _summable(argument_types):
        need, total = needs.column(
            None, _make_column(call, "sum", f"sum({argument}\n)", "sum", _sum_type(argument_types[0]))
        )
        _, count = needs.column(None, _make_column(call, "count", f"count({argument}\n)", "sum", "BIGINT"))
        operation = "sum" if call.name == "sum" else "avg"
        value = total if operation == "sum" else f"CAST({total} AS DOUBLE) / {count}"
        return FinalExpression(
            need,
            f"CASE WHEN {count} > 0 THEN {value} END",
            result,
            (operation, _column_position(total), _column_position(count)),
        )
    if call.name in _SAME and len(argument_types) == 1:
        need, name = needs.column(None, _make_column(call, call.name, f"{call.name}({argument}\n)", call.name, result))
        return FinalExpression(
            need, name, result, (call.name, _column_position(name)) if call.name in ("min", "max") else None
        )
    if call.name not in MERGEABLE_AGGREGATES and call.name not in _APPROXIMATE:
        raise CannotSplitError(f"states of {call.name} do not merge into what one pass gives")
    need, name = needs.column(None, _state_column(cursor, call, argument_types, within, rows))
    nothing = cursor.execute(f"SELECT CAST({call.text}\n AS VARCHAR) FROM {rows}").fetchall()[0][0]
    finished = f"finalize({name})" if nothing is None else f"coalesce(finalize({name}), '{nothing}'::{result})"
    return FinalExpression(need, finished, result)


def _count_column(call: AggregateCall) -> SynopsisColumn:
    if call.name == "count_star" and call.condition is None:
        return ROWS
    if call.name == "count_star":
        return _make_column(call, "count*", "count(*)", "sum", "BIGINT")
    argument = call.arguments[0].text if call.arguments else "*"
    return _make_column(call, "count", f"count({argument}\n)", "sum", "BIGINT")


def _summable(argument_types: Sequence[str]) -> bool:
    return len(argument_types) == 1 and (
        argument_types[0] in _INTEGERS | _FLOATS or argument_types[0].startswith("DECIMAL")
    )


def _sum_type(kind: str) -> str:
    if kind in _INTEGERS:
        return "HUGEINT"
    scale = re.fullmatch(r"DECIMAL\(\d+,(\d+)\)", kind)
    return "DOUBLE" if scale is None else f"DECIMAL(38,{scale[1]})"


# -- states ----------------------------------------------------------------------------------------------------------


def _state_column(
    cursor: Any, call: AggregateCall, argument_types: Sequence[str], within: str | None, rows: str
) -> SynopsisColumn:
    """A state of DuckDB's own, with the signature that it binds."""
    arguments = list(zip(argument_types, call.arguments, call.constant, strict=True))
    signature = [kind for kind, _, _ in arguments]
    constants = [argument.text if constant else "NULL" for _, argument, constant in arguments]
    if within is not None:
        signature, constants = [within, *signature], ["NULL", *constants]
    for _ in range(2):
        state = StateCall(name=call.name, signature=tuple(signature), constants=tuple(constants))
        column = SynopsisColumn(
            key=f"state:{call.key}", build=f"{call.text}\n EXPORT_STATE", merge="state", type="", state=state
        )
        try:
            states = cursor.sql(f"SELECT {column.build} AS c FROM {rows}").to_arrow_table()
            cursor.register("_probe", states)
            cursor.execute(f"SELECT finalize(combine_aggr({state_sql('c', state)})) FROM _probe").fetchall()
        except duckdb.Error as error:
            bound = re.search(r"bound=\[(.*?)\] requested", str(error))
            if bound is None:
                raise CannotSplitError(f"states of {call.name} cannot be kept: {error}") from None
            signature = _split(bound[1])
            continue
        return column
    raise CannotSplitError(f"states of {call.name} cannot be kept")


def _split(types: str) -> list[str]:
    """Types between commas; those in brackets belong to one."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", types)]


def state_sql(name: str, state: StateCall) -> str:
    """A kept value as the state that it is."""
    signature = ", ".join(f"'{kind}'" for kind in state.signature)
    constants = f", [{', '.join(state.constants)}]" if any(c != "NULL" for c in state.constants) else ""
    return f"to_aggregate_state({name}, '{state.name}', [{signature}]{constants})"


# -- frequency counts ------------------------------------------------------------------------------------------------


def _quantile_fraction(call: AggregateCall) -> str | None:
    """The quantile that is asked for, as SQL; None unless it is one constant from 0 to 1."""
    if call.name == "median":
        return "0.5" if len(call.arguments) == 1 else None
    if len(call.arguments) != (1 if call.within else 2) or not call.constant[-1]:
        return None
    text = call.arguments[-1].text.strip()
    return text if re.fullmatch(r"0?\.\d+|[01](\.0*)?|0\.\d*", text) else None


def _by_frequency(
    needs: _NeedCollector, call: AggregateCall, argument_types: Sequence[str], within: str | None, result: str
) -> FinalExpression:
    """Counts of each value, and an expression over the distinct ones."""
    value = call.within or (call.arguments[0] if call.arguments else None)
    if value is None or (call.distinct and (len(argument_types) != 1 or call.name not in _DISTINCT)):
        raise CannotSplitError(f"{call.name} of distinct values cannot be finished from counts")
    plain = SynopsisColumn(
        key=f"count*::{'' if call.condition is None else call.condition.key}",
        build=f"count(*){_with_filter(call)}",
        merge="sum",
        type="BIGINT",
    )
    column = ROWS if call.condition is None else plain
    need, name = needs.column((value, argument_types[0] if within is None else within), column)
    return FinalExpression(
        need, _frequency_expression(call, argument_types, name), result, _plain_frequency(call, _column_position(name))
    )


def _column_position(name: str) -> int:
    """The number of a need's column."""
    return int(name[1:])


def _plain_frequency(call: AggregateCall, position: int) -> tuple[str | int | float, ...] | None:
    if call.distinct:
        return ("distinct", position) if call.name == "count" else None
    text = _quantile_fraction(call) if call.name in _QUANTILES else None
    if text is None or len(text) > _EXACT_DIGITS:
        return None
    return "disc" if call.name in ("quantile_disc", "quantile") else "cont", position, float(text)


def _frequency_expression(call: AggregateCall, argument_types: Sequence[str], name: str) -> str:
    present = f"FILTER (WHERE {name} > 0 AND v IS NOT NULL)"
    if call.distinct:
        return f"{call.name}(v) {present}"
    if call.name == "mode":
        return f"arg_min(v, {{'n': -{name}, 'v': v}}) {present}"
    if call.name == "histogram":
        return f"map_from_entries(list({{'k': v, 'v': CAST({name} AS UBIGINT)}} ORDER BY v) {present})"
    if call.name == "entropy":
        share = f"(CAST({name} AS DOUBLE) / t_{name})"
        return f"coalesce(greatest(-sum({share} * log2({share})) {present}, 0), 0)"
    if call.name == "approx_top_k":
        limit = _read_count(call, argument_types)
        return f"list(v ORDER BY {name} DESC, v) {present}[1:{limit}]"
    if call.name in ("min", "max"):
        limit, order = _read_count(call, argument_types), "ASC" if call.name == "min" else "DESC"
        return f"flatten(list(list_resize([v], least({name}, {limit}), v) ORDER BY v {order}) {present})[1:{limit}]"
    fraction = _quantile_fraction(call)
    if call.name in ("quantile_disc", "quantile"):
        rank = f"greatest(CAST(ceil(t_{name} * CAST({fraction} AS DOUBLE)) AS BIGINT), 1)"
        return f"min(v) FILTER (WHERE v IS NOT NULL AND h_{name} >= {rank})"
    rank_position = f"((t_{name} - 1) * CAST({fraction} AS DOUBLE))"
    low = f"(min(v) FILTER (WHERE v IS NOT NULL AND h_{name} > floor({rank_position})))"
    high = f"(min(v) FILTER (WHERE v IS NOT NULL AND h_{name} > ceil({rank_position})))"
    part = f"any_value({rank_position} - floor({rank_position}))"
    return f"CAST({low} AS DOUBLE) + (CAST({high} AS DOUBLE) - CAST({low} AS DOUBLE)) * {part}"


def _read_count(call: AggregateCall, argument_types: Sequence[str]) -> int:
    text = call.arguments[1].text.strip() if len(argument_types) == 2 else ""
    if not text.isdecimal():
        raise CannotSplitError(f"{call.name} without a constant number")
    return int(text)


def finished_sql(shape: StatementNeeds, merged: Sequence[str], ranked: bool = False) -> str:
    """The relation that the statement's last part reads, over one merged relation for each need.

    Args:
        shape: The statement.
        merged: A relation for each of its needs.
        ranked: Whether those that count values have ``h_c`` and ``t_c`` already.
    """
    whole = shape.decomposed
    groups = [f"g{position}" for position in range(len(whole.groups))]
    parts = []
    for position, (need, relation) in enumerate(zip(shape.needs, merged, strict=True)):
        finishes = [(number, finish) for number, finish in enumerate(shape.finishes) if finish.need == position]
        parts.append(_finish_sql(whole, need, relation, groups, finishes, ranked))
    names = [f"n0.{group} AS {whole.group_column(position)}" for position, group in enumerate(groups)]
    for number, finish in enumerate(shape.finishes):
        column = whole.aggregate_column(number)
        names.append(f"CAST(n{finish.need}.{column} AS {finish.type}) AS {column}")
    joined = f"({parts[0]}) n0"
    for position, part in enumerate(parts[1:], 1):
        same = " AND ".join(f"n0.{group} IS NOT DISTINCT FROM n{position}.{group}" for group in groups) or "true"
        joined += f" JOIN ({part}) n{position} ON {same}"
    return f"SELECT {', '.join(names)} FROM {joined}"


def _finish_sql(
    whole: DecomposedStatement,
    need: SynopsisNeed,
    relation: str,
    groups: Sequence[str],
    finishes: Sequence[tuple[int, FinalExpression]],
    ranked: bool,
) -> str:
    columns = [*groups, *(f"{finish.expression} AS {whole.aggregate_column(number)}" for number, finish in finishes)]
    if not need.counted:
        return f"SELECT {', '.join(columns) or '1'} FROM {relation}"
    value, by = f"g{len(groups)}", f"PARTITION BY {', '.join(groups)} " if groups else ""
    extra = ""
    for position in range(len(need.columns)):
        named = any(
            f"h_c{position}" in finish.expression or f"t_c{position}" in finish.expression for _, finish in finishes
        )
        if named and not ranked:
            valued = f"sum(c{position}) FILTER (WHERE {value} IS NOT NULL) OVER"
            extra += f", {valued} ({by}ORDER BY {value}) AS h_c{position}, {valued} ({by.strip()}) AS t_c{position}"
    grouped = f" GROUP BY {', '.join(groups)}" if groups else ""
    return f"SELECT {', '.join(columns)} FROM (SELECT *, {value} AS v{extra} FROM {relation}){grouped}"


def merge_expressions(columns: Sequence[SynopsisColumn], names: Mapping[str, str], sign: str = "") -> list[str]:
    """Aggregates that merge kept columns, by key, under their names; `sign` is a factor of what is added."""
    expressions = []
    for column in columns:
        name = names[column.key]
        if column.merge == "state":
            expressions.append(f"combine_aggr({name})")
        elif column.merge == "sum":
            exact = "" if column.type.startswith("DECIMAL") else f"::{column.type}"
            expressions.append(f"sum({name}{sign}){exact}")
        else:
            expressions.append(f"{column.merge}({name})")
    return expressions

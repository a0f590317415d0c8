"""Names that can be completed while a statement is typed: relations, their columns, system tables, words of SQL."""

import re
from collections.abc import Callable
from typing import Any

from windrow.errors import WindrowError

Ask = Callable[[str], list[list[Any]]]
"""Answers a statement with its rows."""
_MOST_DESCRIBED = 50
"""Relations whose columns are offered while a statement names none."""
_WORD = re.compile(r"\w+")
KEYWORDS = [
    "ALL", "AND", "AS", "ASC", "ASOF", "BETWEEN", "BY", "CASE", "COUNT", "DAYS", "DESC", "DESCRIBE", "DISTINCT", "ELSE",
    "END", "EXCEPT", "EXISTS", "EXPLAIN", "FILTER", "FROM", "FULL", "GROUP", "HAVING", "HOURS", "IN", "INTERSECT",
    "INTERVAL", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "MINUTES", "NOT", "NULL", "ON", "OR", "ORDER", "OVER",
    "PARTITION", "QUALIFY", "RANGE", "RIGHT", "ROWS", "SECONDS", "SELECT", "SINCE", "SLIDE", "TIMESTAMP", "TO", "UNION",
    "USING", "VALUES", "WHERE", "WINDOW", "WITH",
]  # fmt: skip


def quote(name: str) -> str:
    """A name as SQL has it; that of a system table is in a schema of its own."""
    schema, dot, table = name.partition(".")
    if dot and schema.lower() == "windrow":
        return f"windrow.{quote(table)}"
    return '"' + name.replace('"', '""') + '"'


class Names:
    """What there is, as it was when it was first asked for; `forget` after each statement.

    Args:
        ask: Answers statements of the prompt itself, with the rights of its user.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._relations: dict[str, str] | None = None
        self._columns: dict[str, list[tuple[str, str]]] = {}

    def forget(self) -> None:
        """Look again when it is needed."""
        self._relations = None
        self._columns.clear()

    def relations(self) -> dict[str, str]:
        """Streams, views, summaries, tables and results, with their kind."""
        if self._relations is None:
            rows = self._ask("SELECT name, kind FROM windrow.relations ORDER BY name")
            self._relations = {str(name): str(kind) for name, kind in rows}
        return self._relations

    def columns(self, relation: str) -> list[tuple[str, str]]:
        """Columns and types of a relation; none if there is no such relation."""
        if relation.lower() not in self._columns:
            try:
                rows = self._ask(f"DESCRIBE {quote(relation)}")
            except WindrowError:
                rows = []
            self._columns[relation.lower()] = [(str(row[0]), str(row[1])) for row in rows]
        return self._columns[relation.lower()]

    def complete(self, word: str, text: str) -> list[str]:
        """Completions of a word: columns (of relations in the text, if any), relations, system tables, keywords."""
        from windrow.queries.system_tables import TABLE_NAMES

        relations = list(self.relations())
        used = {name.lower() for name in _WORD.findall(text)}
        named = [name for name in relations if name.lower() in used]
        columns = [column for name in named or relations[:_MOST_DESCRIBED] for column, _ in self.columns(name)]
        system = [f"windrow.{name}" for name in sorted(TABLE_NAMES)]
        keywords = [keyword if word[:1].isupper() else keyword.lower() for keyword in KEYWORDS]
        candidates = dict.fromkeys([*columns, *relations, *system, *keywords])
        return [name for name in candidates if name.lower().startswith(word.lower())]

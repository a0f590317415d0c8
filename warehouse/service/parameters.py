"""Parameters of a statement: their names, and the types that drivers are told, which those of JDBC hold on to.

DuckDB knows no types of parameters before they are bound, and takes a text for anything. So a parameter that is
compared with a column has that column's type here, and any other is a text.
"""

import re
from collections.abc import Mapping

import pyarrow as pa

_MOST = 10_000
"""Parameters of one statement. A bound, not measured."""
_PARAMETER = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|(\?\d*)|\$(\d+)|\$([^\W\d]\w*)", re.DOTALL
)
_COMPARED = re.compile(
    r"(\w+)\"?\s*(?:=|<>|!=|<=|>=|<|>|\bBETWEEN|\bBETWEEN\s+\S+\s+AND|\bIN\s*\((?:\s*[?$]\w*\s*,)*)\s*$", re.IGNORECASE
)
_LOOKED_AT = 200
"""Characters before a parameter."""


def find_parameters(query: str) -> dict[str, list[int]]:
    """The parameters of a statement and where they are: ``1``, ``2``, … of ``?`` and ``$1``, or names.

    What stands in texts, quoted names and comments is none.
    """
    marks, numbered = list[int](), dict[int, list[int]]()
    names = dict[str, list[int]]()
    for match in _PARAMETER.finditer(query):
        if match[1]:
            marks.append(match.start())
        elif match[2]:
            numbered.setdefault(int(match[2]), []).append(match.start())
        elif match[3]:
            names.setdefault(match[3], []).append(match.start())
    count = min(max(len(marks), *numbered, 0), _MOST)
    by_number = {str(n + 1): marks[n : n + 1] + numbered.get(n + 1, []) for n in range(count)}
    return by_number or names


def describe_parameters(query: str, columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """The parameters with their types; `columns` are those of the relations that the statement names, in lower case."""

    def type_of(places: list[int]) -> pa.DataType:
        for place in places:
            compared = _COMPARED.search(query[max(0, place - _LOOKED_AT) : place])
            kind = None if compared is None else columns.get(compared[1].lower())
            if kind is not None and not pa.types.is_nested(kind):
                return kind
        return pa.string()

    return pa.schema([pa.field(name, type_of(places)) for name, places in find_parameters(query).items()])

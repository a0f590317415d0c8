"""The plan of a view: the parts that its statement reads, the columns that join them, and the SQL that is run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from windrow.definitions import StreamDefinition
from windrow.indexes.column_cache import SegmentRanges
from windrow.indexes.segments import Segment
from windrow.queries.sql.parse_tree import Node
from windrow.queries.sql.statement import Reference, Statement
from windrow.queries.sql.window_spec import OffsetWindow, OrderedWindow, RangeWindow
from windrow.queries.views.update_patterns import Label, Pattern

Prune = Callable[[Sequence[Segment]], tuple[Sequence[Segment], SegmentRanges] | None]
"""Which rows of which segments can matter; None: all of them."""


@dataclass(frozen=True)
class PlanPart:
    """One reference of a statement to a stream or a table.

    Args:
        number: Its position in the statement.
        reference: As parsed.
        name: Of the stream or table, as declared.
        definition: Of the stream; None for a table.
        columns: Its columns.
        relation: Its name in DuckDB.
    """

    number: int
    reference: Reference
    name: str
    definition: StreamDefinition | None
    columns: tuple[str, ...]
    relation: str

    @property
    def alias(self) -> str:
        """Its name in the statement."""
        return self.reference.alias

    @property
    def window(self) -> int | None:
        """How long before the clock its window begins, None if it has none: so long after its time a row leaves it."""
        window = self.reference.window
        return window.reach if isinstance(window, RangeWindow | OffsetWindow) else None

    @property
    def offset(self) -> int:
        """How long after its time a row comes into the window."""
        return self.reference.window.offset if isinstance(self.reference.window, OffsetWindow) else 0

    @property
    def life(self) -> int | None:
        """The longest time for which a row of it counts; None: for ever."""
        lifetime = None if self.definition is None else self.definition.longest_life
        lives = [life for life in (lifetime, self.window) if life is not None]
        return min(lives) if lives else None


@dataclass(frozen=True)
class JoinLink:
    """Two columns that a branch requires to be equal."""

    left: int
    left_column: str
    right: int
    right_column: str

    def from_part(self, number: int) -> "JoinLink":
        """The same with the part `number` on the left."""
        if self.left == number:
            return self
        return JoinLink(self.right, self.right_column, self.left, self.left_column)


@dataclass(frozen=True)
class PlanBranch:
    """One SELECT: streams and tables that are joined."""

    parts: tuple[PlanPart, ...]
    links: tuple[JoinLink, ...]

    @cached_property
    def streams(self) -> tuple[PlanPart, ...]:
        """The parts that are streams, which bring new rows."""
        return tuple(part for part in self.parts if part.definition is not None)

    @property
    def has_late_results(self) -> bool:
        """Whether a row can make results later than at its own time."""
        return len(self.streams) > 1 or any(part.offset for part in self.streams)


@dataclass(frozen=True)
class PlainJoin:
    """A strict statement that is nothing but a join of two streams by equalities of columns.

    Args:
        kind: INNER, LEFT, RIGHT, FULL, SEMI or ANTI.
        keys: Of both parts the columns that must be equal.
        columns: Name, part and column of each column of the result.
    """

    kind: str
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Partition:
    """Which rows of its inputs belong together in a strict view: those on which one result can depend.

    Args:
        columns: For each part, by number, the columns whose values say where a row belongs; alike in all parts.
        watched: Parts of which the end of a row can bring results, or take away others than those with that row.
        alone: Parts of which a result has one row, and no other row of the same part has anything to do with it.
        life: The longest that a result can live; None: for ever.
        join: The whole statement, if it is no more than that.
        not_in: Parts of which a column must not be IN: one row of such a part with a null there, and nothing is. Each
            with the part that is compared with it, of which a null is only not in it while it is empty.
        divided: Whether rows with other values in the columns can be left aside; if not, all rows are compared.
        window: Of a selection from a count or session window.
        shown: Of the same, the columns of the result that have those values.
    """

    columns: Mapping[int, tuple[str, ...]]
    watched: frozenset[int]
    alone: frozenset[int]
    life: int | None
    join: PlainJoin | None = None
    not_in: Mapping[int, int] = field(default_factory=dict)
    divided: bool = True
    window: OrderedWindow | None = None
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class ViewPlan:
    """How a view is computed.

    Args:
        statement: As parsed.
        label: Its update pattern.
        parts: Everything that it reads.
        branches: Its SELECTs; none if it is recomputed.
        distinct: Whether duplicates are eliminated.
        sql: What is run: for each result `begins` and `ends`, then its columns. The statement itself if recomputed.
        prefix: Begins the names of hidden columns.
        result_columns: Name, part and column of each column of the result, if it is nothing but columns of streams that
            equalities of columns join; none otherwise.
        partition: Of a strict view that is kept up from new rows.
    """

    statement: Statement
    label: Label
    parts: tuple[PlanPart, ...]
    branches: tuple[PlanBranch, ...]
    distinct: bool
    sql: str
    prefix: str
    result_columns: tuple[tuple[str, int, str], ...] = ()
    partition: Partition | None = None

    @property
    def recompute(self) -> bool:
        """Whether every slide computes it from scratch."""
        return self.label.pattern is Pattern.STRICT and self.partition is None

    @property
    def reach(self) -> dict[str, int | None]:
        """Of inputs whose rows can make results later than themselves: how much later; None: at any time."""
        whole = self.label.pattern is Pattern.STRICT or self.distinct
        branches = [self.streams] if whole else [branch.streams for branch in self.branches if branch.has_late_results]
        lives = {(part.name, part.life) for streams in branches for part in streams}
        names = {name for name, _ in lives}
        return {
            name: None if (name, None) in lives else max(life or 0 for other, life in lives if other == name)
            for name in sorted(names)
        }

    @property
    def streams(self) -> tuple[PlanPart, ...]:
        """The parts that are streams."""
        return tuple(part for part in self.parts if part.definition is not None)

    def time_columns(self, part: PlanPart) -> tuple[str, str]:
        """Names of the columns with the beginning and the end of a part's rows."""
        return f"{self.prefix}t{part.number}", f"{self.prefix}e{part.number}"

    @property
    def begins(self) -> str:
        """The column with the beginning of a result."""
        return f"{self.prefix}t"

    @property
    def ends(self) -> str:
        """The column with the end of a result."""
        return f"{self.prefix}e"


def list_base_tables(node: Node) -> Iterator[Node]:
    """The relations of a FROM clause, in the order of the text."""
    if node["type"] == "BASE_TABLE":
        yield node
    elif node["type"] == "JOIN":
        yield from list_base_tables(node["left"])
        yield from list_base_tables(node["right"])


def list_selects(node: Node) -> Iterator[Node]:
    """The SELECTs of a statement, in the order of the text."""
    if node["type"] == "SET_OPERATION_NODE":
        for child in node["children"]:
            yield from list_selects(child)
    else:
        yield node

"""The requests of the HTTP interface: what each takes, as types that are checked and that the OpenAPI page shows."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from windrow.errors import SchemaError

Text = Annotated[str, Meta(min_length=1, max_length=1_000_000)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Duration = Annotated[str, Meta(min_length=1, max_length=64, description="such as '10 minutes'")]
Instant = Annotated[str, Meta(min_length=1, max_length=64, description="ISO 8601")]
Parameters = list[Any] | dict[str, Any]


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class SqlRequest(_Request, frozen=True):
    """A statement with its parameters."""

    statement: Text
    params: Parameters | None = None
    isolation: Literal["snapshot", "latest", "serial", "fresh"] = "snapshot"
    on_gap: Literal["tell", "error"] = "tell"
    timeout: Seconds | None = None


class ExplainRequest(_Request, frozen=True):
    """A statement that is planned and not run."""

    statement: Text
    params: Parameters | None = None


class AnswerOptions(_Request, frozen=True):
    """How rows are written."""

    escape: Annotated[
        Literal["none", "spreadsheet"], Meta(description="CSV cells that a spreadsheet would run get an apostrophe")
    ] = "none"


class ResultOptions(AnswerOptions, frozen=True):
    """Which results, and how they are written."""

    slide: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    revisions: Annotated[bool, Meta(description="all revisions of each window, not only the newest")] = False


class OverviewOptions(_Request, frozen=True):
    """Which streams."""

    find: Annotated[str, Meta(max_length=128, description="a part of the names")] = ""
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class PieceOptions(_Request, frozen=True):
    """Which rows of an answer, and how long to wait for them."""

    start: Annotated[int, Meta(ge=0, le=2**53)] = 0
    count: Annotated[int, Meta(ge=0, le=1_000)] = 200
    wait: Annotated[float, Meta(ge=0, le=20, description="seconds")] = 0.0
    whole: Annotated[bool, Meta(description="long values too; they are cut otherwise")] = False


class ChartOptions(_Request, frozen=True):
    """What is drawn."""

    measures: Annotated[
        str, Meta(max_length=10_000, description="names of columns as a JSON array; without it, those with numbers")
    ] = ""

    def names(self) -> list[str] | None:
        """The columns, None for all that can be drawn."""
        if not self.measures:
            return None
        try:
            return msgspec.json.decode(self.measures, type=list[str])
        except msgspec.MsgspecError as error:
            raise SchemaError(f"the measures are no JSON array of names: {error}") from None


class AppendOptions(_Request, frozen=True):
    """Whose rows they are; a batch id makes a repeated request harmless."""

    source: Name | None = None
    batch_id: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    covers: (
        Annotated[
            str, Meta(min_length=1, max_length=129, description="START/END: the source has sent all that it had there")
        ]
        | None
    ) = None
    max_rejected: (
        Annotated[float, Meta(ge=0, le=1, description="with a greater share of rejected rows nothing is appended")]
        | None
    ) = None


class TableOptions(_Request, frozen=True):
    """From when on a table is valid."""

    valid_from: Instant | None = None


class HeartbeatRequest(_Request, frozen=True):
    """How far a source has come."""

    up_to: Instant
    source: Name | None = None
    covers: Instant | None = None


class SlideRequest(_Request, frozen=True):
    """Where a stream's clock moves to; as far as its sources allow without `to`."""

    to: Instant | None = None
    force: bool = False


class QueryRequest(_Request, frozen=True):
    """A periodic query."""

    name: Name
    sql: Text
    params: Parameters | None = None
    slide: Duration | None = None
    lag: Duration | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    missed: Literal["latest", "every", "skip"] = "latest"
    output: Literal["whole", "inserts", "deletes"] = "whole"
    isolation: Literal["snapshot", "latest"] = "snapshot"
    on_gap: Literal["tell", "error", "wait"] = "tell"
    deadline: Duration | None = None
    revise: Duration | None = None
    backfill: Duration | None = None


class SummaryRequest(_Request, frozen=True):
    """A summary of frequent items."""

    name: Name
    sql: Text
    frequent: int = 64


class ViewRequest(_Request, frozen=True):
    """A view."""

    name: Name
    sql: Text
    key: list[Name] | None = None
    slide: Duration | None = None
    keep: Duration | None = None

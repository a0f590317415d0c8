"""What one role may do with a warehouse: every request of every protocol passes here, so rights are checked once."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from windrow import arguments, times
from windrow.append import AppendReport
from windrow.catalog.records import Role
from windrow.cli.writers import convert_for_arrow
from windrow.errors import AccessError, QueryError
from windrow.queries import execution, isolation
from windrow.queries.answer import Answer
from windrow.queries.engine.types import quote_name
from windrow.queries.periodic.result_tables import STATEMENT_CONTEXT
from windrow.queries.synopses.summaries import find_summaries
from windrow.queries.system_tables import TABLE_NAMES, shows
from windrow.service import row_formats
from windrow.snapshot import Snapshot
from windrow.warehouse import Warehouse
from windrow.windows import gap_to_json

_WORD = re.compile(r"\w+")
_EXPLAIN = re.compile(r"\s*explain\b", re.IGNORECASE)


def serialize_schema(schema: pa.Schema) -> bytes:
    """The schema in which rows are sent."""
    content: bytes = convert_for_arrow(pa.RecordBatchReader.from_batches(schema, [])).schema.serialize().to_pybytes()
    return content


@dataclass(frozen=True)
class RoleSession:
    """One role's way to a warehouse.

    Args:
        warehouse: Open for writing, or only for reading.
        role: Of the token.
        who: The token's id.
    """

    warehouse: Warehouse
    role: Role
    who: str = "none"

    # -- asking: what can take long, and is done by workers ------------------------------------------------------------

    def sql(
        self, statement: str, params: Any = None, *, isolation_level: str = "snapshot", on_gap: str = "tell"
    ) -> Answer:
        """Ask; the answer ends with an error if it has more rows than the role may get."""
        self.role.check("read")
        if isolation_level == "serial":
            self.role.check("operate")  # it makes slides wait
        arguments.check_statement(statement, params)
        return isolation.answer_query(
            self.warehouse._store,
            statement,
            params,
            isolation=isolation_level,
            memory_limit=self.role.memory,
            context=replace(STATEMENT_CONTEXT, role=self.role),
            on_gap=on_gap,
        )

    def describe(self, statement: str, params: Any = None) -> bytes:
        """The columns of an answer, as a serialized schema in which rows are sent."""
        self.role.check("read")
        arguments.check_statement(statement, params)
        context = replace(STATEMENT_CONTEXT, role=self.role)
        plain = statement.rstrip().rstrip(";")
        wrapped = statement if _EXPLAIN.match(statement) else f"SELECT * FROM ({plain}\n) LIMIT 0"
        store = self.warehouse._store
        try:
            with isolation.answer_query(store, wrapped, params, context=context) as answer:
                return serialize_schema(answer.schema)
        except QueryError:
            execution.explain(store, statement, params, context=context)  # its error shows the user's own text
            raise

    def limited(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of an answer, as far as the role may get rows."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            if self.role.rows is not None and rows > self.role.rows:
                raise QueryError(
                    f"the answer has more than {self.role.rows:,} rows, which is all that role {self.role.name!r} "
                    "may get; aggregate, filter, or set a LIMIT"
                )
            yield batch

    def explain(self, statement: str, params: Any = None) -> str:
        """What a statement would read, and DuckDB's plan."""
        self.role.check("read")
        arguments.check_statement(statement, params)
        context = replace(STATEMENT_CONTEXT, role=self.role)
        return str(execution.explain(self.warehouse._store, statement, params, context=context))

    def add_query(self, **options: Any) -> dict[str, Any]:
        """Add a periodic query, which plans its statement."""
        return asdict(self.operate().add_query(**options))

    def create_view(self, **options: Any) -> dict[str, Any]:
        """Create a view, which plans its statement."""
        return asdict(self.operate().create_view(**options))

    def create_summary(self, **options: Any) -> dict[str, Any]:
        """Create a summary, which plans its statement."""
        return asdict(self.operate().create_summary(**options))

    def advise(self, name: str) -> dict[str, Any]:
        """What layout would serve a stream best; layouts are played through, which takes some hundred milliseconds."""
        advice = self.operate(name).advise(name)
        return asdict(advice) | {"clearly_better": advice.clearly_better}

    def check(self) -> dict[str, Any]:
        """Verify everything."""
        report = self.operate().check()
        return asdict(report) | {"ok": report.ok}

    def gc(self) -> dict[str, Any]:
        """Remove what can go now."""
        return asdict(self.operate().gc())

    def results(self, name: str, slide: int | None = None, *, revisions: bool = False) -> Answer:
        """What a periodic query has delivered."""
        self.role.check("read", name)
        if self.role.columns(name) is not None:
            if revisions:
                raise AccessError(f"role {self.role.name!r} may use only some columns of {name!r}, not its revisions")
            quoted, where = quote_name(name), "" if slide is None else f" WHERE _slide = {int(slide)}"
            return self.sql(f"SELECT * FROM {quoted}{where}")
        return self.warehouse.results(name, slide=slide, revisions=revisions)

    # -- what there is ------------------------------------------------------------------------------------------------

    def streams(self) -> list[str]:
        """Streams and views that the role sees."""
        return [name for name in self.warehouse.streams() if self.role.sees(name)]

    def tables(self) -> list[str]:
        """Tables that it sees."""
        return [name for name in self.warehouse.tables() if self.role.sees(name)]

    def schemas(self) -> dict[str, tuple[str, pa.Schema]]:
        """Kind and columns of everything that the role can name in a statement."""
        self.role.check("read")
        with Snapshot(self.warehouse._store, role=self.role) as snapshot:
            views = {view.name for view in self.warehouse.views()}
            relations: dict[str, tuple[str, pa.Schema]] = {
                name: ("VIEW" if name in views else "STREAM", snapshot.view(name).schema) for name in snapshot.streams()
            }
            others = [(name, "TABLE") for name in snapshot.tables]
            others += [(name, "RESULT") for name in STATEMENT_CONTEXT.find_results(snapshot, None)]
            others += [(each.entry.name, "SUMMARY") for each in find_summaries(snapshot).values()]
        for name, kind in others:
            if name not in relations and self.role.sees(name):
                relations[name] = kind, self._columns_of(quote_name(name))
        return relations

    def columns_named_in(self, statement: str) -> dict[str, pa.DataType]:
        """Types of the columns of the streams and views that a statement names, by their name in lower case."""
        words = {word.lower() for word in _WORD.findall(statement)}
        named = [name for name in self.streams() if name.lower() in words]
        with Snapshot(self.warehouse._store, named, role=self.role) as snapshot:
            return {f.name.lower(): f.type for name in named for f in snapshot.view(name).schema}

    def system_schemas(self) -> dict[str, pa.Schema]:
        """Columns of the system tables that the role may read."""
        self.role.check("read")
        names = sorted(name for name in TABLE_NAMES if shows(self.role, name))
        return {name: self._columns_of(f"windrow.{quote_name(name)}") for name in names}

    def _columns_of(self, relation: str) -> pa.Schema:
        answer = isolation.answer_query(
            self.warehouse._store,
            f"SELECT * FROM {relation} LIMIT 0",
            context=replace(STATEMENT_CONTEXT, role=self.role),
        )
        with answer:
            return answer.schema

    def stream(self, name: str) -> dict[str, Any]:
        """One stream: its columns, clock, sources and sizes."""
        self.role.check("read", name)
        with Snapshot(self.warehouse._store, [name], role=self.role) as snapshot:
            view = snapshot.view(name)
            definition, state, covered = view.entry.definition, view.state, view.coverage(view.bounds())
            return {
                "stream": name,
                "columns": [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in view.schema],
                "time": definition.time,
                "key": [column for column in definition.key if column in view.schema.names],
                "expires": definition.expires,
                "slide": times.format_duration(definition.slide),
                "lifetime": None if definition.lifetime is None else times.format_duration(definition.lifetime),
                "number": state.slide,
                "now": None if view.now is None else times.format_time(view.now),
                "complete": view.now is not None and not covered.gaps,
                "coverage": covered.share,
                "gaps": [gap_to_json(gap) for gap in covered.gaps],
                "missing": list(state.missing),
                "waiting_for": list(view.progress().waiting_for()),
                "sources": [source.name for source in view.progress().sources],
                "rejected": state.rejected,
                "late": state.late,
            }

    def status(self) -> list[dict[str, Any]]:
        """Every stream that the role sees."""
        return [self.stream(name) for name in self.streams()]

    def queries(self) -> list[dict[str, Any]]:
        """Periodic queries whose results the role sees; an operator also sees their statements."""
        shown = []
        for query in self.warehouse.queries():
            if self.role.sees(query.name):
                record = asdict(query)
                if "operate" not in self.role.rights:
                    for hidden in ("sql", "statement", "params", "sink", "folder", "error", "streams"):
                        record.pop(hidden, None)
                shown.append(record)
        return shown

    def views(self) -> list[dict[str, Any]]:
        """Views that the role sees; an operator also sees their statements."""
        operates = "operate" in self.role.rights
        return [
            asdict(view) if operates else {"name": view.name}
            for view in self.warehouse.views()
            if self.role.sees(view.name)
        ]

    def summaries(self) -> list[dict[str, Any]]:
        """Summaries that the role sees; an operator also sees their statements."""
        operates = "operate" in self.role.rights
        return [
            asdict(summary) if operates else {"name": summary.name}
            for summary in self.warehouse.summaries()
            if self.role.sees(summary.name)
        ]

    # -- changing -----------------------------------------------------------------------------------------------------

    def append(
        self,
        stream: str,
        rows: Any,
        *,
        source: str | None = None,
        batch_id: str | None = None,
        covers: str | None = None,
        max_rejected: float | None = None,
    ) -> AppendReport:
        """Append rows; they are durable when this returns."""
        self.role.check("append", stream)
        self._check_writable_columns(stream)
        return self.warehouse.append(
            stream, rows, source=source, batch_id=batch_id, covers=covers, max_rejected=max_rejected
        )

    def append_file(self, stream: str, path: str, media: str, **options: Any) -> Any:
        """Append the rows of a body that was received into a file."""
        self.role.check("append", stream)
        definition = self.warehouse.stream(stream).definition
        with row_formats.reading(path, media, definition.schema, definition.name, definition.added) as rows:
            return asdict(self.append(definition.name, rows, **options))

    def put_table(self, name: str, path: str, media: str, valid_from: str | None = None) -> Any:
        """Put the rows of a body as a table."""
        with row_formats.reading_table(path, media) as rows:
            return {"table": name, "rows": self.operate(name).put_table(name, rows, valid_from=valid_from)}

    def _check_writable_columns(self, stream: str) -> None:
        if self.role.columns(stream) is not None:
            raise AccessError(
                f"role {self.role.name!r} may use only some columns of {stream!r}; appending needs all of them"
            )

    def heartbeat(
        self, stream: str, source: str | None, up_to: times.Instant, covers: times.Instant | None = None
    ) -> None:
        """A source has sent everything up to a time."""
        self.role.check("append", stream)
        self.warehouse.heartbeat(stream, source=source, up_to=up_to, covers=covers)

    def operate(self, name: str | None = None) -> Warehouse:
        """The warehouse itself, for a role that may change it."""
        self.role.check("operate", name)
        return self.warehouse

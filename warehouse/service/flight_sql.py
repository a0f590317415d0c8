"""Arrow Flight SQL: statements, prepared statements, metadata and appends, for ADBC, JDBC and ODBC drivers."""

import contextlib
import json
import math
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from windrow import errors
from windrow.access import authenticate, list_tokens
from windrow.append import AppendReport
from windrow.catalog.records import OWNER
from windrow.errors import WindrowError
from windrow.service import flight_messages
from windrow.service.flight_messages import CALL, COUNTED_END
from windrow.service.http_api import LOCAL, Service
from windrow.service.operations import Ask
from windrow.service.parameters import describe_parameters, find_parameters
from windrow.service.role_session import RoleSession, serialize_schema
from windrow.service.row_formats import dump_json
from windrow.service.statement_worker import FLIGHT
from windrow.service.worker_pool import RunningStatement, read_batches

if TYPE_CHECKING:
    from windrow.service.server import ServerSettings

CATALOG, SCHEMA, SYSTEM_SCHEMA = "windrow", "main", "windrow"
_CALLS = ("streams", "stream", "tables", "views", "queries", "status", "explain", "heartbeat")
_MOST_HANDLES = 10_000
"""Statements that are prepared or wait to be fetched; of more, the oldest are forgotten."""
_HANDLE_SECONDS = 3600.0
"""How long a statement waits to be fetched. Both are bounds, not measured."""
_FAIL, _CREATE, _REPLACE = 1, 1, 3
_CANCELLED, _NOT_CANCELLABLE = 1, 3
_GONE_CHECKS, _GONE_SECONDS = 4, 0.005
_HEADER = "x-windrow-"
_UPLOAD_OPTIONS = ("batch_id", "covers", "source", "max_rejected", "end")
_STATEMENT_OPTIONS = ("isolation", "on_gap", "timeout")
_MOST_SECONDS = 86_400.0
"""The longest timeout of a statement: a day. A bound, not measured."""


@dataclass(eq=False)
class _Prepared:
    """A statement that a client prepared, with the parameters it has bound."""

    query: str
    who: str
    options: dict[str, Any] = field(default_factory=dict)
    params: list[Any] | dict[str, Any] = field(default_factory=list)
    schema: pa.Schema | None = None
    """Of its rows, as long as no other parameters are bound."""
    since: float = field(default_factory=time.monotonic)
    running: set[RunningStatement] = field(default_factory=set)


class _Handles:
    """What clients have prepared, by handle; bounded in number and age."""

    def __init__(self) -> None:
        self._entries: OrderedDict[bytes, _Prepared] = OrderedDict()
        self._guard = threading.Lock()

    def add(self, prepared: _Prepared) -> bytes:
        """Keep an entry; gives its handle."""
        handle = secrets.token_bytes(16)
        with self._guard:
            self._entries[handle] = prepared
            oldest = time.monotonic() - _HANDLE_SECONDS
            while len(self._entries) > _MOST_HANDLES or next(iter(self._entries.values())).since < oldest:
                self._entries.popitem(last=False)
        return handle

    def get(self, handle: bytes, who: str) -> _Prepared:
        """The entry of a handle, for whoever made it."""
        with self._guard:
            prepared = self._entries.get(handle)
        if prepared is None or prepared.who != who:
            raise errors.QueryError("the prepared statement is not, or no longer, known; prepare it again")
        return prepared

    def drop(self, handle: bytes) -> None:
        """Forget an entry."""
        with self._guard:
            self._entries.pop(handle, None)


class _TokenReader(flight.ServerMiddlewareFactory):
    """Finds the token in the header of each call."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> "_Caller":  # noqa: ARG002
        text = next((values[0] for name, values in headers.items() if name.lower() == "authorization"), "")
        scheme, _, token = text.partition(" ")
        if token and scheme.lower() == "bearer":
            credentials = authenticate(self._service.store, token.strip())
            if credentials is None:
                raise flight.FlightUnauthenticatedError("the token is not, or no longer, valid")
            return _Caller(self._service.session_of(credentials[1], credentials[0].id), headers)
        if self._service.insecure:
            return _Caller(self._service.session_of(OWNER, "none"), headers)
        if list_tokens(self._service.store):
            raise flight.FlightUnauthenticatedError("send a token in the header 'authorization: Bearer …'")
        return _Caller(self._service.session_of(LOCAL, "none"), headers)


class _Caller(flight.ServerMiddleware):
    """Who called, and what the headers say of a statement or an upload."""

    def __init__(self, session: RoleSession, headers: dict[str, list[str]]) -> None:
        super().__init__()
        self.session = session
        self._headers = headers

    def options(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the options that the headers give."""
        texts = {name: self._headers.get(_HEADER + name.replace("_", "-")) for name in names}
        return {name: values[0] for name, values in texts.items() if values}


class _Handshake(flight.ServerAuthHandler):
    """JDBC's driver shakes hands before it asks; who it is, the token in the header of each call says."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Nothing to say."""

    def is_valid(self, token: bytes) -> bytes:  # noqa: ARG002
        """Every call has a header of its own."""
        return b""


class FlightSqlServer(flight.FlightServerBase):
    """Flight SQL on a port of its own.

    Args:
        service: The warehouse, its limits and its queue.
        settings: Address, port and certificate.
    """

    def __init__(self, service: Service, settings: "ServerSettings") -> None:
        secure = settings.certificate is not None and settings.key is not None
        scheme = "grpc+tls" if secure else "grpc+tcp"
        certificates = (
            [(settings.certificate.read_bytes(), settings.key.read_bytes())]  # type: ignore[union-attr]
            if secure
            else None
        )
        super().__init__(
            f"{scheme}://{settings.host}:{settings.flight_port}",
            auth_handler=_Handshake(),
            tls_certificates=certificates,
            middleware={"token": _TokenReader(service)},
        )
        self.location = f"{scheme}://{settings.host}:{self.port}"
        self._service = service
        self._handles = _Handles()
        self._uploads = threading.BoundedSemaphore(service.limits.concurrency + service.limits.waiting)
        self._metadata: dict[str, Callable[[RoleSession, Any], pa.Table]] = {
            "CommandGetSqlInfo": _sql_info,
            "CommandGetCatalogs": lambda *_: pa.table(
                [[CATALOG]], pa.schema([pa.field("catalog_name", pa.string(), nullable=False)])
            ),
            "CommandGetDbSchemas": _schemas,
            "CommandGetTables": _tables,
            "CommandGetTableTypes": lambda *_: _table(
                {"table_type": pa.string()}, [{"table_type": kind} for kind in _TABLE_TYPES]
            ),
            "CommandGetPrimaryKeys": lambda *_: _table(_PRIMARY_KEYS, []),
            "CommandGetExportedKeys": lambda *_: _table(_FOREIGN_KEYS, []),
            "CommandGetImportedKeys": lambda *_: _table(_FOREIGN_KEYS, []),
            "CommandGetCrossReference": lambda *_: _table(_FOREIGN_KEYS, []),
            "CommandGetXdbcTypeInfo": lambda *_: _table(_TYPE_INFO, []),
        }

    # -- what a call is about -----------------------------------------------------------------------------------------

    @staticmethod
    def _session(context: Any) -> RoleSession:
        session: RoleSession = context.get_middleware("token").session
        return session

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Where the rows of a command are to be had: here, by a ticket."""
        session = self._session(context)
        name, message = self._command(descriptor.command)
        with _flight_errors():
            schema, ticket = self._plan(session, name, message, descriptor.command, context)
        return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """The columns of a command's rows."""
        session = self._session(context)
        name, message = self._command(descriptor.command)
        with _flight_errors():
            return flight.SchemaResult(self._plan(session, name, message, descriptor.command, context)[0])

    def _command(self, content: bytes) -> tuple[str, Any]:
        command = flight_messages.unpack(content)
        if command is None:
            raise flight.FlightServerError("this server speaks Flight SQL; the command is none of it")
        return command

    def _plan(
        self, session: RoleSession, name: str, message: Any, command: bytes, context: Any
    ) -> tuple[pa.Schema, bytes]:
        if name in self._metadata:
            return self._metadata[name](session, message).schema, command
        if name == "CommandStatementQuery":
            prepared = _Prepared(message.query, session.who, _statement_options(context))
            schema = self._describe(session, prepared, context)
            ticket = flight_messages.pack("TicketStatementQuery", statement_handle=self._handles.add(prepared))
            return schema, ticket
        if name == "CommandPreparedStatementQuery":
            prepared = self._handles.get(message.prepared_statement_handle, session.who)
            return self._describe(session, prepared, context), command
        raise flight.FlightServerError(f"{name} is not possible here: statements only read; rows come in by an ingest")

    def _describe(self, session: RoleSession, prepared: _Prepared, context: Any) -> pa.Schema:
        """The columns of an answer, without its rows."""
        if prepared.schema is None:
            values = prepared.params or _no_values(list(find_parameters(prepared.query)))
            arguments = {"statement": prepared.query, "params": values or None}
            ask = Ask("describe", arguments, prepared.query, prepared.options.get("timeout"), audited=False)
            prepared.schema = pa.ipc.read_schema(pa.py_buffer(self._ask(session, ask, context)))
        return prepared.schema

    def _ask(self, session: RoleSession, ask: Ask, context: Any) -> bytes:
        """Have a worker do something that gives no rows."""
        statement = self._service.statement(session, ask)
        statement.begin(ask.request(session.role), context.is_cancelled)
        return statement.value()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """The rows of a ticket."""
        session = self._session(context)
        with _flight_errors():
            if ticket.ticket.startswith(b"{"):
                name, arguments = _parse_call(ticket.ticket)
                if name != "results":
                    raise errors.QueryError(f"{name} gives no rows")
                ask = Ask("results", arguments, f"results of {arguments.get('name')}")
                return self._stream_rows(session, ask, set(), context)
            name, message = self._command(ticket.ticket)
            if name in self._metadata:
                return flight.RecordBatchStream(self._metadata[name](session, message))
            if name == "TicketStatementQuery":
                prepared = self._handles.get(message.statement_handle, session.who)
            elif name == "CommandPreparedStatementQuery":
                prepared = self._handles.get(message.prepared_statement_handle, session.who)
            else:
                raise errors.QueryError(f"{name} is no ticket")
            return self._stream_rows(session, _ask_sql(prepared), prepared.running, context)

    def _stream_rows(self, session: RoleSession, ask: Ask, running: set[RunningStatement], context: Any) -> Any:
        rows = self._rows(session, ask, running, context)
        return flight.GeneratorStream(next(rows), rows)

    def _rows(self, session: RoleSession, ask: Ask, running: set[RunningStatement], context: Any) -> Iterator[Any]:
        """First the schema, then the batches; the statement ends with the call."""
        statement = self._service.statement(session, ask)
        running.add(statement)
        try:
            with _flight_errors():
                statement.begin(ask.request(session.role, FLIGHT), context.is_cancelled)
                statement.frame()
                yield from read_batches(statement)
        finally:
            running.discard(statement)
            statement.close()

    # -- prepared statements and appends ------------------------------------------------------------------------------

    def list_actions(self, context: Any) -> list[tuple[str, str]]:  # noqa: ARG002
        """What `do_action` takes."""
        return [
            ("CreatePreparedStatement", "prepares a statement"),
            ("ClosePreparedStatement", "forgets a prepared statement"),
            ("CancelQuery", "ends a statement"),
            ("CancelFlightInfo", "ends a statement"),
            (CALL, "a method of windrow's own client, as JSON"),
        ]

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Prepare, close, cancel."""
        session = self._session(context)
        body = action.body.to_pybytes()
        with _flight_errors():
            if action.type == "CreatePreparedStatement":
                _, message = self._command(body)
                return [self._prepare(session, message.query, context)]
            if action.type == "ClosePreparedStatement":
                _, message = self._command(body)
                self._handles.drop(message.prepared_statement_handle)
                return []
            if action.type == CALL:
                return [self._call(session, body, context)]
            if action.type == "CancelQuery":
                _, message = self._command(body)
                return [flight_messages.pack("ActionCancelQueryResult", result=self._cancel(session, message.info))]
            if action.type == "CancelFlightInfo":
                message = flight_messages.CLASSES["CancelFlightInfoRequest"]()
                message.ParseFromString(body)
                return [flight_messages.plain("CancelFlightInfoResult", status=self._cancel(session, message.info))]
        raise flight.FlightServerError(f"there is no action {action.type!r} here")

    def _cancel(self, session: RoleSession, info: bytes) -> int:
        """End what runs for a ticket of this token's."""
        try:
            command = flight_messages.unpack(flight.FlightInfo.deserialize(info).endpoints[0].ticket.ticket)
        except (pa.ArrowException, IndexError):
            command = None
        if command is None or command[0] not in ("TicketStatementQuery", "CommandPreparedStatementQuery"):
            return _NOT_CANCELLABLE
        message = command[1]
        handle = message.statement_handle if command[0][0] == "T" else message.prepared_statement_handle
        running = list(self._handles.get(handle, session.who).running)
        for statement in running:
            statement.cancel("by its client")
        return _CANCELLED if running else _NOT_CANCELLABLE

    def _prepare(self, session: RoleSession, query: str, context: Any) -> bytes:
        prepared = _Prepared(query, session.who, _statement_options(context))
        schema = self._describe(session, prepared, context)
        parameters = describe_parameters(query, session.columns_named_in(query) if find_parameters(query) else {})
        return flight_messages.pack(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=self._handles.add(prepared),
            dataset_schema=schema.serialize().to_pybytes(),
            parameter_schema=parameters.serialize().to_pybytes(),
        )

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Bind parameters, or append rows."""
        session = self._session(context)
        name, message = self._command(descriptor.command)
        with _flight_errors():
            if name == "CommandPreparedStatementQuery":
                prepared = self._handles.get(message.prepared_statement_handle, session.who)
                rows = reader.read_all()
                if rows.num_rows > 1:
                    raise errors.QueryError("bind one row of parameters; a statement is asked once at a time")
                values = [column[0].as_py() for column in rows.columns] if rows.num_rows else []
                names = list(find_parameters(prepared.query))
                prepared.params = values
                if rows.num_rows and not any(name.isdigit() for name in names) and set(rows.column_names) == set(names):
                    prepared.params = dict(zip(rows.column_names, values, strict=True))
                prepared.schema = None
                handle = message.prepared_statement_handle  # JDBC's driver goes on with what it is told here
                writer.write(flight_messages.plain("DoPutPreparedStatementResult", prepared_statement_handle=handle))
            elif name == "CommandStatementIngest":
                report = self._take_rows(session, message, reader, context)
                writer.write(flight_messages.plain("DoPutUpdateResult", record_count=report.accepted))
                if "end" in context.get_middleware("token").options(("end",)):
                    writer.write(dump_json(asdict(report)))  # which only our own client reads
            else:
                raise errors.QueryError(f"{name} is not possible here: statements only read")

    def _take_rows(self, session: RoleSession, message: Any, reader: Any, context: Any) -> AppendReport:
        if not self._uploads.acquire(blocking=False):
            raise errors.BusyError("too many uploads are under way already; ask again later")
        try:
            with self._service.audited(session, f"append to {message.table}") as record:
                upload = context.get_middleware("token").options(_UPLOAD_OPTIONS)
                report = _ingest(
                    session, message, reader, upload, self._service.limits.body_bytes, context.is_cancelled
                )
                record.rows = report.accepted
                return report
        finally:
            self._uploads.release()

    def _call(self, session: RoleSession, body: bytes, context: Any) -> bytes:
        """A method of the client that gives no rows."""
        name, arguments = _parse_call(body)
        if name not in _CALLS:
            raise errors.QueryError(f"there is no call {name!r}; there is {', '.join(_CALLS)}")
        try:
            if name == "explain":
                text = f"EXPLAIN {arguments.get('statement')}"
                return self._ask(session, Ask("explain", arguments, text), context)
            return dump_json(getattr(session, name)(**arguments))
        except TypeError as error:
            raise errors.QueryError(f"{name} does not take these arguments: {error}") from None


def _ingest(
    session: RoleSession,
    message: Any,
    reader: Any,
    upload: dict[str, str],
    most_bytes: int,
    is_gone: Callable[[], bool],
) -> AppendReport:
    """Append the rows of an upload; options may be headers too, and a ``batch_id`` makes a repeated upload harmless."""
    options = message.table_definition_options
    if options.if_not_exist == _CREATE and message.table not in session.streams():
        raise errors.UnknownStreamError(
            f"there is no stream {message.table!r} for this role, and an ingest does not create one; "
            "append to a stream that is there"
        )
    if options.if_exists in (_FAIL, _REPLACE):
        raise errors.QueryError("a stream is appended to: ask for mode 'append', not 'create' or 'replace'")
    all_options: dict[str, Any] = upload | dict(message.options)
    unknown = all_options.keys() - set(_UPLOAD_OPTIONS)
    if unknown:
        raise errors.QueryError(f"an ingest has no option {min(unknown)!r}; it has {', '.join(_UPLOAD_OPTIONS)}")

    end = all_options.pop("end", None)
    if end not in (None, COUNTED_END):
        raise errors.QueryError(f"the option end of an ingest is {COUNTED_END!r} or left out, not {end!r}")

    if "max_rejected" in all_options:
        all_options["max_rejected"] = _parse_number("max_rejected", all_options["max_rejected"])
    batches = _receive_batches(reader, most_bytes, is_gone, counted=end is not None)
    rows = pa.RecordBatchReader.from_batches(reader.schema, batches)
    return session.append(message.table, rows, **all_options)


def _receive_batches(
    reader: Any, most_bytes: int, is_gone: Callable[[], bool], *, counted: bool
) -> Iterator[pa.RecordBatch]:
    """The batches of an upload; raises at its end if it is not whole."""
    size, rows, announced = 0, 0, None
    for chunk in reader:
        if chunk.app_metadata is not None:
            announced = chunk.app_metadata.to_pybytes()
        if chunk.data is None:
            continue
        size, rows = size + chunk.data.nbytes, rows + chunk.data.num_rows
        if size > most_bytes:
            raise errors.SchemaError(f"the upload is longer than {most_bytes:,} bytes; send less at once")
        yield chunk.data
    if counted:
        if announced != str(rows).encode():
            raise errors.QueryError("the upload ended before all its rows had come; nothing was appended")
        return
    # A client that dies ends its upload like one that is ready; that it is gone may be known a little later.
    for _ in range(_GONE_CHECKS):
        if is_gone():
            raise errors.QueryError("the client went away before its upload was complete; nothing was appended")
        time.sleep(_GONE_SECONDS)


def _no_values(names: list[str]) -> list[None] | dict[str, None]:
    """A null for each parameter."""
    return [None] * len(names) if not names or names[0].isdigit() else dict.fromkeys(names)


def _ask_sql(prepared: _Prepared) -> Ask:
    levels = {"isolation_level": prepared.options.get("isolation"), "on_gap": prepared.options.get("on_gap")}
    arguments = {"statement": prepared.query, "params": prepared.params or None}
    arguments |= {name: value for name, value in levels.items() if value is not None}
    return Ask("sql", arguments, prepared.query, prepared.options.get("timeout"))


def _statement_options(context: Any) -> dict[str, Any]:
    """What the headers of a call say of its statement."""
    texts = context.get_middleware("token").options(_STATEMENT_OPTIONS)
    return {name: _parse_number(name, text) if name == "timeout" else text for name, text in texts.items()}


def _parse_number(name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= _MOST_SECONDS:
        raise errors.QueryError(f"{_HEADER}{name.replace('_', '-')} is {text!r}; give a number such as 0.5")
    return number


def _parse_call(body: bytes) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a method of our own client."""
    try:
        request = json.loads(body)
        return str(request["call"]), dict(request.get("arguments", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise errors.QueryError(f"a call is a JSON object with 'call' and 'arguments': {error}") from None


_KINDS_OF_ERRORS: tuple[tuple[type[BaseException], Callable[..., Exception]], ...] = (
    (errors.AccessError, flight.FlightUnauthorizedError),
    (errors.BusyError, flight.FlightUnavailableError),
    (errors.StorageError, flight.FlightUnavailableError),
    (errors.QueryTimeoutError, flight.FlightTimedOutError),
    (WindrowError, flight.FlightServerError),
)


@contextlib.contextmanager
def _flight_errors() -> Iterator[None]:
    """Raise our errors as Flight's, with their own words, and our name for those who know it."""
    try:
        yield
    except WindrowError as error:
        kind = next(kind for ours, kind in _KINDS_OF_ERRORS if isinstance(error, ours))
        raise kind(str(error), type(error).__name__.encode()) from None


# -- metadata ---------------------------------------------------------------------------------------------------------

_PRIMARY_KEYS = {
    "catalog_name": pa.string(), "db_schema_name": pa.string(), "table_name": pa.string(),
    "column_name": pa.string(), "key_name": pa.string(), "key_sequence": pa.int32(),
}  # fmt: skip
_FOREIGN_KEYS = {
    **{f"{side}_{name}": pa.string() for side in ("pk", "fk")
       for name in ("catalog_name", "db_schema_name", "table_name", "column_name")},
    "key_sequence": pa.int32(), "fk_key_name": pa.string(), "pk_key_name": pa.string(),
    "update_rule": pa.uint8(), "delete_rule": pa.uint8(),
}  # fmt: skip
_TYPE_INFO = {
    "type_name": pa.string(), "data_type": pa.int32(), "column_size": pa.int32(), "literal_prefix": pa.string(),
    "literal_suffix": pa.string(), "create_params": pa.list_(pa.string()), "nullable": pa.int32(),
    "case_sensitive": pa.bool_(), "searchable": pa.int32(), "unsigned_attribute": pa.bool_(),
    "fixed_prec_scale": pa.bool_(), "auto_increment": pa.bool_(), "local_type_name": pa.string(),
    "minimum_scale": pa.int32(), "maximum_scale": pa.int32(), "sql_data_type": pa.int32(),
    "datetime_subcode": pa.int32(), "num_prec_radix": pa.int32(), "interval_precision": pa.int32(),
}  # fmt: skip
_TABLE_TYPES = ("STREAM", "VIEW", "TABLE", "RESULT", "SYSTEM TABLE")
_REQUIRED = frozenset((
    "table_name", "table_type", "table_schema", "column_name", "key_sequence", "pk_table_name", "pk_column_name",
    "fk_table_name", "fk_column_name", "update_rule", "delete_rule", "type_name", "data_type", "nullable",
    "case_sensitive", "searchable", "fixed_prec_scale", "sql_data_type",
))  # fmt: skip
"""Columns of metadata that are never null."""
_INFO_VALUE = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
)
_INFO: dict[int, str | bool | int] = {
    0: "windrow",  # name of the server
    1: "1",  # its version
    2: pa.__version__,  # of Arrow
    3: True,  # read-only: no update statements
    4: True,  # statements in SQL
    5: False,  # statements in Substrait
    8: 0,  # no transactions
    9: True,  # cancelling by an action
    10: True,  # uploads
    11: False,  # transactions of uploads
    500: False,  # DDL of catalogs
    501: False,  # of schemas
    502: False,  # of tables
    503: 1,  # names: case-insensitive
    504: '"',  # how names are quoted
    505: 1,
}
"""By the numbers of the protocol's SqlInfo."""


def _table(columns: dict[str, pa.DataType], rows: list[dict[str, Any]]) -> pa.Table:
    """A table of metadata; drivers compare its schema with the protocol's, nulls included."""
    fields = [pa.field(name, kind, nullable=name not in _REQUIRED) for name, kind in columns.items()]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def _sql_info(session: RoleSession, message: Any) -> pa.Table:  # noqa: ARG001
    wanted = list(message.info) or list(_INFO)
    values = [(number, _INFO[number]) for number in wanted if number in _INFO]
    by_kind: list[list[Any]] = [[], [], []]  # texts, truth values, numbers
    kinds, places = [], []
    for _, value in values:
        kind = 1 if isinstance(value, bool) else 2 if isinstance(value, int) else 0
        kinds.append(kind)
        places.append(len(by_kind[kind]))
        by_kind[kind].append(value)
    texts, flags, numbers = by_kind
    children = [
        pa.array(texts, pa.string()), pa.array(flags, pa.bool_()), pa.array(numbers, pa.int64()),
        pa.array([], pa.int32()), pa.array([], pa.list_(pa.string())),
        pa.array([], pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]  # fmt: skip
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(places, pa.int32()), children, [f.name for f in _INFO_VALUE]
    )
    schema = pa.schema(
        [pa.field("info_name", pa.uint32(), nullable=False), pa.field("value", _INFO_VALUE, nullable=False)]
    )
    return pa.Table.from_arrays(
        [pa.array([number for number, _ in values], pa.uint32()), union.cast(_INFO_VALUE)], schema=schema
    )


def _schemas(session: RoleSession, message: Any) -> pa.Table:  # noqa: ARG001
    names = [name for name in (SCHEMA, SYSTEM_SCHEMA) if _like(name, message, "db_schema_filter_pattern")]
    rows = [{"catalog_name": CATALOG, "db_schema_name": name} for name in names if _in_catalog(message)]
    schema = pa.schema([("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), nullable=False)])
    return pa.Table.from_pylist(rows, schema)


def _tables(session: RoleSession, message: Any) -> pa.Table:
    columns = {name: pa.string() for name in ("catalog_name", "db_schema_name", "table_name", "table_type")}
    if message.include_schema:
        columns["table_schema"] = pa.binary()
    tables: list[tuple[str, str, str, pa.Schema]] = []
    if _in_catalog(message) and _like(SCHEMA, message, "db_schema_filter_pattern"):
        tables += [(SCHEMA, name, *described) for name, described in sorted(session.schemas().items())]
    if _in_catalog(message) and _like(SYSTEM_SCHEMA, message, "db_schema_filter_pattern"):
        tables += [(SYSTEM_SCHEMA, name, "SYSTEM TABLE", schema) for name, schema in session.system_schemas().items()]
    rows = []
    for schema_name, name, kind, schema in tables:
        if _like(name, message, "table_name_filter_pattern") and kind in (message.table_types or (kind,)):
            row: dict[str, Any] = {
                "catalog_name": CATALOG, "db_schema_name": schema_name, "table_name": name, "table_type": kind,
            }  # fmt: skip
            if message.include_schema:
                row["table_schema"] = serialize_schema(schema)
            rows.append(row)
    return _table(columns, rows)


def _in_catalog(message: Any) -> bool:
    return not message.HasField("catalog") or message.catalog in ("", CATALOG)


def _like(name: str, message: Any, pattern_field: str) -> bool:
    if not message.HasField(pattern_field):
        return True
    pattern = "".join({"%": ".*", "_": "."}.get(char, re.escape(char)) for char in getattr(message, pattern_field))
    return re.fullmatch(pattern, name, re.IGNORECASE | re.DOTALL) is not None

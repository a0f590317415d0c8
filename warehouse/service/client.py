"""A warehouse on another machine: the reading and appending half of `Warehouse`, over Arrow Flight SQL."""

import contextlib
import datetime as dt
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyarrow import flight

from windrow import arguments, arrow_input, times
from windrow.errors import AccessError, BusyError, QueryError, WindrowError
from windrow.gaps import Gap
from windrow.queries.answer import Answer, check_gap_policy
from windrow.service import flight_messages
from windrow.service.flight_sql import CALL, COUNTED_END
from windrow.sources import parse_covers
from windrow.windows import Window

if TYPE_CHECKING:
    from windrow.warehouse import GapPolicy

_MESSAGE_END = re.compile(r"\. (gRPC client debug context|Detail: \w+).*", re.DOTALL)
_MESSAGE_START = re.compile(r"^Flight (error|returned \w+ error, with message): ")


class RemoteWarehouse:
    """A warehouse that a server has open. Use it as a context manager or call `close`.

    Args:
        address: Such as ``grpc+tls://host:9465``.
        token: As 'windrow token create' has printed it; without one only a server on this machine answers.
        certificates: A file with the certificates that sign the server's, if the system does not know them.
    """

    def __init__(self, address: str, token: str | None = None, certificates: str | Path | None = None) -> None:
        options = {} if certificates is None else {"tls_root_certs": Path(certificates).read_bytes()}
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        try:
            self._client = flight.FlightClient(address, **options)
        except pa.ArrowException as error:
            raise QueryError(
                f"{address!r} is no address of a server, such as 'grpc+tls://host:9465': {error}"
            ) from None

    def _options(self, *more: tuple[bytes, bytes]) -> Any:
        return flight.FlightCallOptions(headers=[*self._headers, *more])

    # -- asking -------------------------------------------------------------------------------------------------------

    def sql(self, statement: str, params: Sequence[Any] | None = None, *, on_gap: "GapPolicy" = "tell") -> Answer:
        """Ask in SQL, with window clauses; parameters are bound to ``?`` or ``$1``. `on_gap` as in `Warehouse.sql`."""
        arguments.check_statement(statement, params)
        check_gap_policy(on_gap)
        with _translated():
            request = flight_messages.pack("ActionCreatePreparedStatementRequest", query=statement)
            answers = list(self._client.do_action(flight.Action("CreatePreparedStatement", request), self._options()))
            prepared = flight_messages.unpack(answers[0].body.to_pybytes())
            if prepared is None:
                raise QueryError("the server does not speak Flight SQL as expected")
            handle = prepared[1].prepared_statement_handle
            command = flight_messages.pack("CommandPreparedStatementQuery", prepared_statement_handle=handle)
            descriptor = flight.FlightDescriptor.for_command(command)
            if params:
                self._bind(descriptor, params)
            reader = self._client.do_get(flight.Ticket(command), self._options()).to_reader()
        answer = self._answer(reader, statement, handle)
        return answer.without_gaps() if on_gap == "error" else answer

    def _bind(self, descriptor: Any, params: Sequence[Any]) -> None:
        row = pa.RecordBatch.from_arrays(
            [pa.array([value]) for value in params], [str(n + 1) for n in range(len(params))]
        )
        writer, replies = self._client.do_put(descriptor, row.schema, self._options())
        with writer:
            writer.write_batch(row)
            writer.done_writing()
            replies.read()

    def _answer(self, reader: pa.RecordBatchReader, statement: str, handle: bytes) -> Answer:
        about = json.loads((reader.schema.metadata or {}).get(b"windrow", b"{}"))
        windows = tuple(_read_window(window) for window in about.get("windows", ()))
        closing = flight_messages.pack("ActionClosePreparedStatementRequest", prepared_statement_handle=handle)

        def release() -> None:
            with contextlib.suppress(pa.ArrowException):
                list(self._client.do_action(flight.Action("ClosePreparedStatement", closing), self._options()))

        return Answer(
            pa.RecordBatchReader.from_batches(reader.schema, _batches(reader)),
            windows,
            about.get("isolation", "snapshot"),
            release,
            lambda: dt.timedelta(seconds=about.get("staleness", 0.0)),
            statement,
        )

    def scan(
        self, stream: str, window: times.Duration | None = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """The rows of a window, streamed."""
        return self._select(stream, window, columns, "", None)

    def probe(
        self,
        stream: str,
        key: Any = None,
        *,
        keys: Sequence[Any] | None = None,
        between: tuple[Any, Any] | None = None,
        window: times.Duration | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of a window whose key equals `key`, is one of `keys`, or lies in `between` (both ends included)."""
        names = self.stream(stream)["key"]
        key_values = [between[0], between[1]] if between is not None else [key] if keys is None else list(keys)
        rows = [value if isinstance(value, tuple) else (value,) for value in key_values]
        columns_of_key = [_quote(name) for name in names]
        if between is not None:
            left = ", ".join(columns_of_key[: len(rows[0])])
            low, high = (", ".join("?" for _ in row) for row in rows)
            condition = f"({left}) BETWEEN ({low}) AND ({high})"
        else:
            equal = [
                " AND ".join(f"{name} IS NOT DISTINCT FROM ?" for name, _ in zip(columns_of_key, row, strict=False))
                for row in rows
            ]
            condition = " OR ".join(f"({one})" for one in equal) or "false"
        reader = self._select(stream, window, columns, f" WHERE {condition}", [value for row in rows for value in row])
        return reader.read_all()

    def _select(
        self, stream: str, window: times.Duration | None, columns: Sequence[str] | None, rest: str, params: Any
    ) -> pa.RecordBatchReader:
        wanted = "*" if columns is None else ", ".join(map(_quote, arguments.check_names(columns, "columns")))
        length = None if window is None else times.parse_duration(window, "window")
        clause = "" if length is None else f" [WINDOW {times.format_duration(length).upper()}]"
        answer = self.sql(f"SELECT {wanted} FROM {_quote(stream)}{clause}{rest}", params)
        return pa.RecordBatchReader.from_batches(answer.schema, answer.batches())

    def explain(self, statement: str, params: Sequence[Any] | None = None) -> str:
        """What a statement would read."""
        return str(self._call("explain", statement=statement, params=None if params is None else list(params)))

    def results(self, name: str, *, slide: int | None = None) -> Answer:
        """What a periodic query has delivered."""
        where = "" if slide is None else f" WHERE _slide = {int(slide)}"
        return self.sql(f"SELECT * FROM {_quote(name)}{where}")

    # -- what there is, and appending ---------------------------------------------------------------------------------

    def _call(self, name: str, /, **values: Any) -> Any:
        body = json.dumps({"call": name, "arguments": values}).encode()
        with _translated():
            answers = list(self._client.do_action(flight.Action(CALL, body), self._options()))
        return json.loads(answers[0].body.to_pybytes())

    def streams(self) -> list[str]:
        """Names of the streams and views."""
        return list(self._call("streams"))

    def stream(self, name: str) -> dict[str, Any]:
        """One stream: its columns, clock, sources."""
        return dict(self._call("stream", name=name))

    def now(self, stream: str) -> dt.datetime | None:
        """The stream's clock."""
        text = self.stream(stream)["now"]
        return None if text is None else dt.datetime.fromisoformat(text)

    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(self._call("tables"))

    def views(self) -> list[dict[str, Any]]:
        """The views."""
        return list(self._call("views"))

    def queries(self) -> list[dict[str, Any]]:
        """The periodic queries."""
        return list(self._call("queries"))

    def status(self) -> list[dict[str, Any]]:
        """Every stream."""
        return list(self._call("status"))

    def append(
        self,
        stream: str,
        data: Any,
        *,
        source: str | None = None,
        batch_id: str | None = None,
        covers: tuple[times.Instant, times.Instant] | str | None = None,
    ) -> int:
        """Append rows; gives how many were taken. They are durable when this returns. Options as in `Warehouse`."""
        claim = parse_covers(covers)
        interval = None if claim is None else "/".join(map(times.format_time, claim))
        rows = arrow_input.open_reader(data, f"rows for {stream!r}")
        headers = [
            (b"x-windrow-batch-id", batch_id), (b"x-windrow-source", source), (b"x-windrow-covers", interval),
            (b"x-windrow-end", COUNTED_END),
        ]  # fmt: skip
        options = self._options(*[(name, value.encode()) for name, value in headers if value is not None])
        command = flight_messages.pack(
            "CommandStatementIngest",
            table=stream,
            table_definition_options=flight_messages.CLASSES["TableDefinitionOptions"](if_not_exist=2, if_exists=2),
        )
        with _translated():
            writer, replies = self._client.do_put(flight.FlightDescriptor.for_command(command), rows.schema, options)
            count = 0
            try:
                for batch in rows:
                    writer.write_batch(batch)
                    count += batch.num_rows
            except BaseException as error:
                with contextlib.suppress(*() if isinstance(error, pa.ArrowException) else (pa.ArrowException,)):
                    writer.close()  # raises what the server says, if it has refused the upload
                raise
            with writer:
                # Else a client that dies half-way would look to the server like one that has sent everything.
                writer.write_metadata(str(count).encode())
                writer.done_writing()
                reply = replies.read()
        result = flight_messages.CLASSES["DoPutUpdateResult"]()
        result.ParseFromString(reply.to_pybytes())
        return int(result.record_count)

    def heartbeat(
        self, stream: str, *, source: str | None = None, up_to: times.Instant, covers: times.Instant | None = None
    ) -> None:
        """Promise that nothing at or before `up_to` will follow from a source, and that all since `covers` has come."""
        instant = times.format_time(times.parse_instant(up_to, "up_to"))
        start = None if covers is None else times.format_time(times.parse_instant(covers, "covers"))
        self._call("heartbeat", stream=stream, source=source, up_to=instant, covers=start)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(address: str, token: str | None = None, certificates: str | Path | None = None) -> RemoteWarehouse:
    """Connect to the Flight SQL port of a server; see `RemoteWarehouse`."""
    return RemoteWarehouse(address, token, certificates)


def _read_window(window: dict[str, Any]) -> Window:
    """A window as the server wrote it."""
    values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in window.items()}
    values["gaps"] = tuple(Gap(**_read_instants(gap) | {"files": tuple(gap["files"])}) for gap in window["gaps"])
    return Window(**_read_instants(values))


def _read_instants(values: dict[str, Any]) -> dict[str, Any]:
    instants = [name for name in ("start", "end", "opened", "closed") if values.get(name) is not None]
    return values | {name: dt.datetime.fromisoformat(values[name]) for name in instants}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    with _translated():
        yield from reader


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the server as ours, in its own words."""
    try:
        yield
    except (flight.FlightUnauthorizedError, flight.FlightUnauthenticatedError) as error:
        raise AccessError(_message(error)) from None
    except flight.FlightUnavailableError as error:
        raise BusyError(f"the server cannot be reached or is busy: {_message(error)}") from None
    except WindrowError:
        raise
    except pa.ArrowException as error:
        raise QueryError(_message(error)) from None


def _message(error: BaseException) -> str:
    return _MESSAGE_START.sub("", _MESSAGE_END.sub("", str(error)))

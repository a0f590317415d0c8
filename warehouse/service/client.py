"""A warehouse on another machine: the reading and appending half of `Warehouse`, over Arrow Flight SQL."""

import contextlib
import datetime as dt
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyarrow import flight

from windrow import arguments, arrow_input, errors, times
from windrow.append import AppendReport
from windrow.errors import AccessError, BusyError, QueryError, WindrowError
from windrow.gaps import Gap
from windrow.queries.answer import Answer, check_gap_policy
from windrow.service import flight_messages
from windrow.service.flight_messages import CALL, COUNTED_END, FLIGHT_PORT
from windrow.sources import parse_covers
from windrow.windows import Window

if TYPE_CHECKING:
    from windrow.warehouse import GapPolicy, Isolation

_MESSAGE_END = re.compile(r"\. (gRPC client debug context|Detail: \w+).*", re.DOTALL)
_MESSAGE_START = re.compile(r"^Flight (error|returned \w+ error, with message): ")

_POLL_SECONDS = 0.2
"""Between two looks whether a slide that is waited for has come. A choice, not measured."""


class RemoteWarehouse:
    """A warehouse that a server has open. Use it as a context manager or call `close`.

    Args:
        address: Such as ``grpc+tls://host``; the port is 9465 unless another is given.
        token: As 'windrow token create' has printed it; without one only a server on this machine answers.
        certificates: A file with the certificates that sign the server's, if the system does not know them.
    """

    def __init__(self, address: str, token: str | None = None, certificates: str | Path | None = None) -> None:
        options = {} if certificates is None else {"tls_root_certs": Path(certificates).read_bytes()}
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        try:
            self._client = flight.FlightClient(_with_port(address), **options)
        except pa.ArrowException as error:
            raise QueryError(
                f"{address!r} is no address of a server, such as 'grpc+tls://host:9465': {error}"
            ) from None

    def _options(self, **more: Any) -> Any:
        """Of a call: the token, and what else its headers say."""
        headers = [
            (f"x-windrow-{name.replace('_', '-')}".encode(), str(value).encode())
            for name, value in more.items()
            if value is not None
        ]
        return flight.FlightCallOptions(headers=[*self._headers, *headers])

    # -- asking -------------------------------------------------------------------------------------------------------

    def sql(
        self,
        statement: str,
        params: Sequence[Any] | dict[str, Any] | None = None,
        *,
        isolation: "Isolation" = "snapshot",
        timeout: float | times.Duration | None = None,
        on_gap: "GapPolicy" = "tell",
    ) -> Answer:
        """Ask in SQL, with window clauses; parameters and options as in `Warehouse.sql`."""
        arguments.check_statement(statement, params)
        check_gap_policy(on_gap)
        limit = None if timeout is None else times.parse_seconds(timeout, "timeout")
        with _translated():
            request = flight_messages.pack("ActionCreatePreparedStatementRequest", query=statement)
            action = flight.Action("CreatePreparedStatement", request)
            options = self._options(isolation=isolation, timeout=limit, on_gap=on_gap)
            prepared = flight_messages.unpack(next(iter(self._client.do_action(action, options))).body.to_pybytes())
            if prepared is None:
                raise QueryError("the server does not speak Flight SQL as expected")
            handle = prepared[1].prepared_statement_handle
            command = flight_messages.pack("CommandPreparedStatementQuery", prepared_statement_handle=handle)
            if params:
                self._bind(flight.FlightDescriptor.for_command(command), params)
            reader = self._client.do_get(flight.Ticket(command), self._options()).to_reader()

        def release() -> None:
            closing = flight_messages.pack("ActionClosePreparedStatementRequest", prepared_statement_handle=handle)
            with contextlib.suppress(pa.ArrowException):
                list(self._client.do_action(flight.Action("ClosePreparedStatement", closing), self._options()))

        return _read_answer(reader, statement, release)

    def _bind(self, descriptor: Any, params: Sequence[Any] | dict[str, Any]) -> None:
        named = params if isinstance(params, dict) else {str(n + 1): value for n, value in enumerate(params)}
        row = pa.RecordBatch.from_arrays([pa.array([value]) for value in named.values()], list(named))
        writer, replies = self._client.do_put(descriptor, row.schema, self._options())
        with writer:
            writer.write_batch(row)
            writer.done_writing()
            replies.read()

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
            key_columns = ", ".join(columns_of_key[: len(rows[0])])
            low, high = (", ".join("?" for _ in row) for row in rows)
            condition = f"({key_columns}) BETWEEN ({low}) AND ({high})"
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

    def results(self, name: str, *, slide: int | None = None, revisions: bool = False) -> Answer:
        """What a periodic query has delivered; options as in `Warehouse.results`."""
        ticket = _pack_call("results", {"name": name, "slide": slide, "revisions": revisions})
        with _translated():
            reader = self._client.do_get(flight.Ticket(ticket), self._options()).to_reader()
        return _read_answer(reader, f"results of {name}", lambda: None)

    # -- what there is, and appending ---------------------------------------------------------------------------------

    def _call(self, name: str, /, **values: Any) -> Any:
        action = flight.Action(CALL, _pack_call(name, values))
        with _translated():
            answers = list(self._client.do_action(action, self._options()))
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

    def wait_for(self, stream: str, *, up_to: times.Instant, timeout: float | times.Duration | None = None) -> None:
        """Wait until the stream's clock has reached `up_to`, whoever slides it."""
        instant = times.to_datetime(times.parse_instant(up_to, "up_to"))
        limit = None if timeout is None else 0.0 if timeout == 0 else times.parse_seconds(timeout, "timeout")
        end = None if limit is None else time.monotonic() + limit
        while (now := self.now(stream)) is None or now < instant:
            if end is not None and time.monotonic() >= end:
                reached = "no slide yet" if now is None else times.format_time(times.parse_instant(now))
                raise BusyError(
                    f"stream {stream!r} has reached {reached}, not "
                    f"{times.format_time(times.parse_instant(instant))}, within {limit:g} s"
                )
            time.sleep(_POLL_SECONDS)

    def gaps(self, stream: str) -> list[Gap]:
        """What is known to be missing of a stream."""
        return [_read_gap(gap) for gap in self.stream(stream)["gaps"]]

    def tables(self) -> list[str]:
        """Names of the tables."""
        return list(self._call("tables"))

    def views(self) -> list[dict[str, Any]]:
        """The views."""
        return list(self._call("views"))

    def summaries(self) -> list[dict[str, Any]]:
        """The summaries."""
        return list(self._call("summaries"))

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
        max_rejected: float | None = None,
        covers: tuple[times.Instant, times.Instant] | str | None = None,
    ) -> AppendReport:
        """Append rows; they are durable when this returns. Options as in `Warehouse.append`."""
        claim = parse_covers(covers)
        rows = arrow_input.open_reader(data, f"rows for {stream!r}")
        options = self._options(
            batch_id=batch_id,
            source=source,
            max_rejected=arguments.check_share(max_rejected, "max_rejected"),
            covers=None if claim is None else "/".join(map(times.format_time, claim)),
            end=COUNTED_END,
        )
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
                replies.read()  # Flight SQL's own, with the number of rows
                report = replies.read()
        return AppendReport(**json.loads(report.to_pybytes()))

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


def _with_port(address: str) -> str:
    """The address, with Flight SQL's port if it has none."""
    scheme, separator, place = address.partition("://")
    if not separator or scheme == "grpc+unix" or re.search(r":\d*/?$", place):
        return address
    return f"{scheme}://{place.rstrip('/')}:{FLIGHT_PORT}"


def _pack_call(name: str, values: dict[str, Any]) -> bytes:
    return json.dumps({"call": name, "arguments": values}).encode()


def _read_answer(reader: pa.RecordBatchReader, text: str, release: Callable[[], None]) -> Answer:
    about = json.loads((reader.schema.metadata or {}).get(b"windrow", b"{}"))
    return Answer(
        pa.RecordBatchReader.from_batches(reader.schema, _batches(reader)),
        tuple(_read_window(window) for window in about.get("windows", ())),
        about.get("isolation", "snapshot"),
        release,
        lambda: dt.timedelta(seconds=about.get("staleness", 0.0)),
        text,
    )


def _read_window(window: dict[str, Any]) -> Window:
    """A window as the server wrote it."""
    values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in window.items()}
    values["gaps"] = tuple(map(_read_gap, window["gaps"]))
    return Window(**_read_instants(values))


def _read_gap(gap: dict[str, Any]) -> Gap:
    return Gap(**_read_instants(gap) | {"files": tuple(gap["files"])})


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
    except WindrowError:
        raise
    except flight.FlightError as error:
        raise _to_ours(error)(_message(error)) from None
    except pa.ArrowException as error:
        raise QueryError(_message(error)) from None


def _to_ours(error: Any) -> Callable[[str], WindrowError]:
    """Our class for an error of the server, which says its name."""
    named = getattr(errors, (error.extra_info or b"").decode(errors="replace"), None)
    if isinstance(named, type) and issubclass(named, WindrowError):
        return named
    if isinstance(error, (flight.FlightUnauthorizedError, flight.FlightUnauthenticatedError)):
        return AccessError
    if isinstance(error, flight.FlightUnavailableError):
        return lambda message: BusyError(f"the server cannot be reached or is busy: {message}")
    if isinstance(error, flight.FlightCancelledError):  # not by us: a server that ends lets go of its calls
        return lambda message: BusyError(f"the server has cancelled the call; ask again, or another: {message}")
    return QueryError


def _message(error: BaseException) -> str:
    return _MESSAGE_START.sub("", _MESSAGE_END.sub("", str(error)))

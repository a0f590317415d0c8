"""What can be asked over HTTP: one table, out of which the routes and the OpenAPI document are made."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse

from windrow.catalog.records import Role
from windrow.errors import WindrowError
from windrow.queries.charts import make_chart
from windrow.service import openapi, requests, row_formats
from windrow.service.console_files import charts_version, console_file
from windrow.service.health import read_health
from windrow.service.kept_answers import KeptAnswer, encode_piece
from windrow.service.metrics import render_metrics, render_status
from windrow.service.overview import read_overview
from windrow.service.responses import HEADERS, error_response
from windrow.service.role_session import RoleSession
from windrow.service.statement_worker import FLIGHT
from windrow.service.statement_worker import Request as WorkerRequest
from windrow.service.stream_layout import read_rejected_page, read_stream_page
from windrow.service.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from windrow.service.http_api import Service


@dataclass(frozen=True)
class Call:
    """One request: who asks, and for what, checked."""

    session: RoleSession
    path: Mapping[str, str]
    query: Any = None
    body: Any = None
    media: str = ""
    """Of the rows that were sent, or the one in which rows are wanted."""
    rows: str = ""
    """The file with the rows that were sent."""


@dataclass(frozen=True)
class Ask:
    """What a worker is asked for a request."""

    method: str
    """Of `RoleSession`."""
    arguments: dict[str, Any]
    text: str
    """For the audit."""
    timeout: float | None = None
    name: str = ""
    """Of the value in the answer; empty: the value is the answer."""
    audited: bool = True
    """False for what a protocol asks before the statement itself: only its errors are told."""

    def request(self, role: Role, media: str | None = None, *, escape: bool = False) -> WorkerRequest:
        """The request for a worker."""
        return WorkerRequest(self.method, role, self.arguments, media, escape, role.memory)


EVENTS = "/events"
_STILL_THERE_SECONDS = 15.0
"""A silent stream of events sends a comment: proxies close silent connections. Not measured."""
Handler = Callable[["Service", Call], Any]


@dataclass(frozen=True)
class Operation:
    """One operation, as it is routed and as it is documented."""

    method: str
    path: str
    summary: str
    right: str
    """What a role must be allowed; empty: nothing."""
    handler: Handler
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    takes_rows: bool = False
    gives_rows: bool = False
    asks: bool = False
    """Whether a worker does it; the handler then gives what it is asked."""
    status: int = 200


def _sql(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    body: requests.SqlRequest = call.body
    arguments = {"statement": body.statement, "params": body.params, "isolation_level": body.isolation}
    return Ask("sql", arguments | {"on_gap": body.on_gap}, body.statement, body.timeout)


def _explain(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    body: requests.ExplainRequest = call.body
    arguments = {"statement": body.statement, "params": body.params}
    return Ask("explain", arguments, f"EXPLAIN {body.statement}", name="explain")


def _streams(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return {"streams": [call.session.stream(name) for name in call.session.streams()]}


def _stream(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return call.session.stream(call.path["name"])


def _append(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    stream = call.path["name"]
    call.session.role.check("append", stream)
    arguments = {"stream": stream, "path": call.rows, "media": call.media, **msgspec.structs.asdict(call.query)}
    return Ask("append_file", arguments, f"append to {stream}")


def _put_table(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    name = call.path["name"]
    arguments = {"name": name, "path": call.rows, "media": call.media, "valid_from": call.query.valid_from}
    return Ask("put_table", arguments, f"put table {name}")


def _heartbeat(service: "Service", call: Call) -> Any:  # noqa: ARG001
    call.session.heartbeat(call.path["name"], call.body.source, call.body.up_to, call.body.covers)
    return {"stream": call.path["name"], "source": call.body.source, "up_to": call.body.up_to}


def _slide(service: "Service", call: Call) -> Any:  # noqa: ARG001
    name = call.path["name"]
    return asdict(call.session.operate(name).slide(name, to=call.body.to, force=call.body.force))


def _queries(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return {"queries": call.session.queries()}


def _add_query(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    return Ask("add_query", msgspec.structs.asdict(call.body), f"add query {call.body.name}: {call.body.sql}")


def _drop_query(service: "Service", call: Call) -> Any:  # noqa: ARG001
    call.session.operate(call.path["name"]).drop_query(call.path["name"])
    return {"dropped": call.path["name"]}


def _run_query(service: "Service", call: Call) -> Any:  # noqa: ARG001
    name = call.path["name"]
    return {"runs": [asdict(run) for run in call.session.operate(name).run_due([name], now=True)]}


def _results(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    name = call.path["name"]
    arguments = {"name": name, "slide": call.query.slide, "revisions": call.query.revisions}
    return Ask("results", arguments, f"results of {name}")


def _views(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return {"views": call.session.views()}


def _create_view(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    return Ask("create_view", msgspec.structs.asdict(call.body), f"create view {call.body.name}: {call.body.sql}")


def _drop_view(service: "Service", call: Call) -> Any:  # noqa: ARG001
    call.session.operate(call.path["name"]).drop_view(call.path["name"])
    return {"dropped": call.path["name"]}


def _summaries(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return {"summaries": call.session.summaries()}


def _create_summary(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    body = msgspec.structs.asdict(call.body)
    return Ask("create_summary", body, f"create summary {call.body.name}: {call.body.sql}")


def _drop_summary(service: "Service", call: Call) -> Any:  # noqa: ARG001
    call.session.operate(call.path["name"]).drop_summary(call.path["name"])
    return {"dropped": call.path["name"]}


def _tables(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return {"tables": call.session.tables()}


def _drop_table(service: "Service", call: Call) -> Any:  # noqa: ARG001
    call.session.operate(call.path["name"]).drop_table(call.path["name"])
    return {"dropped": call.path["name"]}


def _status(service: "Service", call: Call) -> Any:
    return render_status(service.store, service.counts, call.session.role)


def _metrics(service: "Service", call: Call) -> Any:
    return Response(
        render_metrics(service.store, service.counts, call.session.role, (service.pool.running, service.pool.waiting)),
        media_type="text/plain; version=0.0.4; charset=utf-8",
        headers=HEADERS,
    )


def _health(service: "Service", call: Call) -> Any:  # noqa: ARG001
    failing = service.counts.failing
    if failing:
        return PlainTextResponse("rounds fail; /status says why\n", 503, headers=HEADERS)
    return PlainTextResponse("ok\n" if service.counts.leading else "ok (standby)\n", headers=HEADERS)


async def stream_events(service: "Service", session: RoleSession, request: Request) -> Response:
    """Slides, runs and failures as they happen, as server-sent events."""
    if service.events.listeners >= service.limits.event_streams:
        return error_response(503, f"{service.limits.event_streams} event streams are open already")

    async def stream() -> AsyncIterator[bytes]:
        with service.events.listening(session.role) as queue:
            yield b": windrow\n\n"
            while not await request.is_disconnected():
                try:
                    event = await asyncio.wait_for(queue.get(), _STILL_THERE_SECONDS)
                except TimeoutError:
                    event = {"event": ""}
                if reason := _why_not(service, session, request):
                    event = {"event": "end", "reason": reason}
                name = event["event"]
                yield f"event: {name}\ndata: {json.dumps(event)}\n\n".encode() if name else b": still there\n\n"
                if name == "end":
                    return

    return StreamingResponse(stream(), media_type="text/event-stream", headers=HEADERS)


# -- the console ------------------------------------------------------------------------------------------------------


def _console(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return RedirectResponse("console/", 307, headers=HEADERS)


def _console_file(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return console_file(call.path.get("file", "index.html"))


def _session(service: "Service", call: Call) -> Any:
    role = call.session.role
    return {
        "warehouse": service.store.root.name,
        "role": role.name,
        "rights": list(role.rights),
        "restricted": role.is_restricted,
        "rows": role.rows,
        "charts": charts_version(),
    }


def _overview(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return read_overview(call.session, call.query.find, call.query.offset, call.query.limit)


def _layout(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return read_stream_page(call.session, call.path["name"])


def _advice(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    return Ask("advise", {"name": call.path["name"]}, f"advise on {call.path['name']}")


def _rejected(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return read_rejected_page(call.session, call.path["name"])


def _replay(service: "Service", call: Call) -> Any:  # noqa: ARG001
    name = call.path["name"]
    return asdict(call.session.operate(name).replay(name))


def _vocabulary(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return read_vocabulary(call.session)


def _read_health(service: "Service", call: Call) -> Any:
    return read_health(service, call.session)


def _check(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    return Ask("check", {}, "check")


def _gc(service: "Service", call: Call) -> Ask:  # noqa: ARG001
    return Ask("gc", {}, "gc")


def _begin_answer(service: "Service", call: Call) -> Any:
    ask = _sql(service, call)
    statement = service.statement(call.session, ask)
    request = ask.request(call.session.role, FLIGHT)
    key = service.answers.begin(call.session.who, call.session.role, statement, request)
    return {"id": key}


def _kept(service: "Service", call: Call) -> KeptAnswer:
    return service.answers.get(call.path["id"], call.session.who, call.session.role)


def _read_answer(service: "Service", call: Call) -> Any:
    answer, wanted = _kept(service, call), call.query
    answer.wait(wanted.start + wanted.count, wanted.wait)
    content = encode_piece(answer, wanted.start, wanted.count, whole=wanted.whole)
    return Response(content, media_type=row_formats.JSON, headers=HEADERS)


def _export_answer(service: "Service", call: Call) -> Any:
    answer = _kept(service, call)
    answer.wait(1, 60)
    schema, about = answer.schema, answer.about or {}
    if schema is None:
        return error_response(503, "there are no rows yet; ask again later")
    pieces = row_formats.encode(call.media, schema, answer.batches(), about, escape=call.query.escape == "spreadsheet")
    body = (b"".join(bytes(memoryview(buffer)) for buffer in buffers) for buffers in pieces)
    return StreamingResponse(body, media_type=call.media, headers=HEADERS)


def _chart_answer(service: "Service", call: Call) -> Any:
    answer = _kept(service, call)
    answer.wait(0, 60)
    chart = make_chart(answer.chart_rows(), call.query.names())
    return {"chart": None if chart is None else chart.specification(), "cut": "" if chart is None else chart.cut}


def _drop_answer(service: "Service", call: Call) -> Any:
    _kept(service, call)
    service.answers.drop(call.path["id"])
    return {"dropped": call.path["id"]}


def _why_not(service: "Service", session: RoleSession, request: Request) -> str | None:
    """Why whoever listens may no longer: a token can be revoked, and a role be changed."""
    try:
        same = service.session(request).role == session.role
    except WindrowError as error:
        return str(error)
    return None if same else "the role was changed; ask again"


def _openapi(service: "Service", call: Call) -> Any:  # noqa: ARG001
    return openapi.describe(OPERATIONS)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/sql", "Ask", "read", _sql, requests.AnswerOptions, requests.SqlRequest, gives_rows=True, asks=True
    ),
    Operation("POST", "/explain", "Plan a statement", "read", _explain, body=requests.ExplainRequest, asks=True),
    Operation("GET", "/streams", "Streams and views", "read", _streams),
    Operation("GET", "/streams/{name}", "One stream", "read", _stream),
    Operation(
        "POST", "/streams/{name}/append", "Append rows", "append", _append, requests.AppendOptions, takes_rows=True,
        asks=True,
    ),
    Operation(
        "POST", "/streams/{name}/heartbeat", "A source has come so far", "append", _heartbeat,
        body=requests.HeartbeatRequest,
    ),
    Operation("POST", "/streams/{name}/slide", "Move the clock", "operate", _slide, body=requests.SlideRequest),
    Operation("GET", "/queries", "Periodic queries", "read", _queries),
    Operation(
        "POST", "/queries", "Add a query", "operate", _add_query, body=requests.QueryRequest, asks=True, status=201
    ),
    Operation("DELETE", "/queries/{name}", "Drop a periodic query", "operate", _drop_query),
    Operation("POST", "/queries/{name}/run", "Run a periodic query now", "operate", _run_query),
    Operation(
        "GET", "/queries/{name}/results", "What it has delivered", "read", _results, requests.ResultOptions,
        gives_rows=True, asks=True,
    ),
    Operation("GET", "/views", "Views", "read", _views),
    Operation(
        "POST", "/views", "Create a view", "operate", _create_view, body=requests.ViewRequest, asks=True, status=201
    ),
    Operation("DELETE", "/views/{name}", "Drop a view", "operate", _drop_view),
    Operation("GET", "/summaries", "Summaries", "read", _summaries),
    Operation(
        "POST", "/summaries", "Create a summary", "operate", _create_summary, body=requests.SummaryRequest, asks=True,
        status=201,
    ),
    Operation("DELETE", "/summaries/{name}", "Drop a summary", "operate", _drop_summary),
    Operation("GET", "/tables", "Tables", "read", _tables),
    Operation(
        "PUT", "/tables/{name}", "Put a table", "operate", _put_table, requests.TableOptions, takes_rows=True, asks=True
    ),
    Operation("DELETE", "/tables/{name}", "Drop a table", "operate", _drop_table),
    Operation("GET", "/status", "How the warehouse is doing", "read", _status),
    Operation("GET", "/metrics", "Metrics for Prometheus", "read", _metrics),
    Operation("GET", EVENTS, "What happens, as it happens", "read", stream_events),  # type: ignore[arg-type]
    Operation("GET", "/healthz", "Whether it works", "", _health),
    Operation("GET", "/readyz", "Whether it works", "", _health),
    Operation("GET", "/openapi.json", "This document", "any", _openapi),
    Operation("GET", "/session", "Who asks, and what the role may", "any", _session),
    Operation("GET", "/overview", "Streams, gaps, failing queries", "read", _overview, requests.OverviewOptions),
    Operation("GET", "/streams/{name}/layout", "How a stream lies on disk", "read", _layout),
    Operation("GET", "/streams/{name}/advice", "What layout would serve it best", "operate", _advice, asks=True),
    Operation("GET", "/streams/{name}/rejected", "Rows that were not taken", "read", _rejected),
    Operation("POST", "/streams/{name}/replay", "Append its rejected rows again", "operate", _replay),
    Operation("GET", "/vocabulary", "Words for an editor of statements", "read", _vocabulary),
    Operation("GET", "/health", "Pins, background work, versions", "read", _read_health),
    Operation("POST", "/check", "Verify all files", "operate", _check, asks=True),
    Operation("POST", "/gc", "Remove what can go now", "operate", _gc, asks=True),
    Operation(
        "POST", "/answers", "Ask, and read the answer in pieces", "read", _begin_answer, body=requests.SqlRequest,
        status=201,
    ),
    Operation("GET", "/answers/{id}", "A piece of an answer", "read", _read_answer, requests.PieceOptions),
    Operation(
        "GET", "/answers/{id}/rows", "All of its rows", "read", _export_answer, requests.AnswerOptions, gives_rows=True
    ),
    Operation("GET", "/answers/{id}/chart", "Its chart, for Vega-Lite", "read", _chart_answer, requests.ChartOptions),
    Operation("DELETE", "/answers/{id}", "Forget it", "read", _drop_answer),
    Operation("GET", "/", "To the console", "", _console, status=307),
    Operation("GET", "/console/", "The console", "", _console_file),
    Operation("GET", "/console/{file}", "A file of the console", "", _console_file),
)  # fmt: skip
"""Everything that can be asked over HTTP."""

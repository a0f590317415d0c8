"""What a serving process publishes: Prometheus metrics and a JSON status, on a port of this machine only."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from windrow import times
from windrow.catalog.environment import Tables, catalog_key
from windrow.queries.periodic.registry import QueryStatus, list_queries
from windrow.queries.periodic.runner import RunReport
from windrow.store import Store

ADDRESS = "127.0.0.1"
_ALLOWED_HOSTS = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
"""Host names of local requests; another name may come from a web page that rebinds its DNS name to this machine."""


@dataclass
class ServerCounters:
    """What a process has done since it was started."""

    started: int
    leading: bool = False
    rounds: int = 0
    errors: int = 0
    last_error: str | None = None
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def add(self, run: RunReport) -> None:
        """Count a run."""
        self.runs[run.query, run.outcome] += 1
        self.seconds[run.query] += run.seconds  # type: ignore[assignment]
        self.rows[run.query] += run.rows


def _stream_metrics(tables: Tables) -> list[dict[str, Any]]:
    streams = []
    for _, entry in tables.items("streams"):
        state = tables.get("states", catalog_key(entry.id))
        now = None if state.slide is None else entry.definition.model.slot_end(state.slide)
        streams.append({"stream": entry.definition.name, "slide": state.slide, "now": now})
    return streams


def render_status(store: Store, counts: ServerCounters) -> dict[str, Any]:
    """The status as JSON values."""
    streams = store.catalog.read(_stream_metrics)
    return {
        "warehouse": str(store.root),
        "leading": counts.leading,
        "started": times.format_time(counts.started),
        "rounds": counts.rounds,
        "runs": sum(counts.runs.values()),
        "errors": counts.errors,
        "last_error": counts.last_error,
        "streams": [
            stream | {"now": times.format_time(stream["now"]) if stream["now"] is not None else None}
            for stream in streams
        ],
        "queries": [_query_metrics(query) for query in list_queries(store)],
    }


def _query_metrics(query: QueryStatus) -> dict[str, Any]:
    instants = ("created", "delivered_at", "retry_at")
    fields = asdict(query)
    return fields | {name: None if fields[name] is None else times.format_time(fields[name]) for name in instants}


def render_metrics(store: Store, counts: ServerCounters) -> str:
    """The metrics in Prometheus's text form."""
    return "".join(line + "\n" for line in _metric_lines(store, counts))


def _metric_lines(store: Store, counts: ServerCounters) -> Iterator[str]:
    queries = list_queries(store)
    streams = [stream for stream in store.catalog.read(_stream_metrics) if stream["slide"] is not None]

    def values_of(attribute: Callable[[QueryStatus], float | None]) -> list[tuple[dict[str, str], float]]:
        values = ((query.name, attribute(query)) for query in queries)
        return [({"query": name}, value) for name, value in values if value is not None]

    yield from _metric("leader", "gauge", "Whether this process runs the queries.", [({}, int(counts.leading))])
    yield from _metric("rounds_total", "counter", "Rounds made.", [({}, counts.rounds)])
    yield from _metric("errors_total", "counter", "Rounds that ended with an error.", [({}, counts.errors)])
    runs = [({"query": name, "outcome": outcome}, count) for (name, outcome), count in sorted(counts.runs.items())]
    yield from _metric("runs_total", "counter", "Runs made by this process.", runs)
    seconds = [({"query": name}, value) for name, value in sorted(counts.seconds.items())]
    yield from _metric("run_seconds_total", "counter", "Time spent answering.", seconds)
    rows = [({"query": name}, value) for name, value in sorted(counts.rows.items())]
    yield from _metric("rows_total", "counter", "Rows delivered by this process.", rows)
    yield from _metric("query_due", "gauge", "Whether a run is due.", values_of(lambda q: int(q.due)))
    yield from _metric(
        "query_waiting", "gauge", "Runs of earlier slides still to be made.", values_of(lambda q: q.waiting)
    )
    yield from _metric("query_failures", "gauge", "Failures in a row.", values_of(lambda q: q.failures))
    yield from _metric("query_missed_total", "counter", "Periods without a run.", values_of(lambda q: q.missed_runs))
    yield from _metric("query_slide", "gauge", "Slide of the last delivered run.", values_of(lambda q: q.slide))
    yield from _metric(
        "query_delivered_timestamp_seconds",
        "gauge",
        "When the last run was delivered.",
        values_of(lambda q: None if q.delivered_at is None else q.delivered_at.timestamp()),
    )
    slides = [({"stream": stream["stream"]}, stream["slide"]) for stream in streams]
    yield from _metric("stream_slide", "gauge", "Slide that a stream has reached.", slides)
    clocks = [({"stream": stream["stream"]}, stream["now"] / times.SECOND) for stream in streams]
    yield from _metric("stream_clock_timestamp_seconds", "gauge", "A stream's clock.", clocks)


def _metric(name: str, kind: str, help_text: str, values: Sequence[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP windrow_{name} {help_text}"
    yield f"# TYPE windrow_{name} {kind}"
    for labels, value in values:
        label_text = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
        yield f"windrow_{name}{{{label_text}}} {value:.17g}" if label_text else f"windrow_{name} {value:.17g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """An HTTP server that answers GET /metrics, /status and /healthz.

    Args:
        store: The warehouse.
        counts: What the process has done.
        port: 0 for any that is free.
    """

    def __init__(self, store: Store, counts: ServerCounters, port: int) -> None:
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/metrics": ("text/plain; version=0.0.4; charset=utf-8", lambda: render_metrics(store, counts)),
            "/status": ("application/json", lambda: json.dumps(render_status(store, counts), default=str)),
            "/healthz": ("text/plain; charset=utf-8", lambda: "ok\n"),
        }

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                self._answer(*_render_response(pages, self.path, self.headers.get("Host", "")))

            def _answer(self, code: int, kind: str, body: str) -> None:
                content = body.encode()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: requests for metrics come every few seconds."""

        self._server = ThreadingHTTPServer((ADDRESS, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="windrow-http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _render_response(pages: dict[str, tuple[str, Callable[[], str]]], path: str, host: str) -> tuple[int, str, str]:
    plain = "text/plain; charset=utf-8"
    if not _ALLOWED_HOSTS.fullmatch(host):
        return 403, plain, "ask as localhost\n"
    page = pages.get(path.partition("?")[0])
    if page is None:
        return 404, plain, f"there is {', '.join(pages)}\n"
    try:
        return 200, page[0], page[1]()
    except Exception as error:  # noqa: BLE001 - the client must see the error
        return 500, plain, f"{type(error).__name__}: {error}\n"

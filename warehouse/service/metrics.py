"""What a serving process publishes: metrics for Prometheus, and a status as JSON, as far as a role may know it."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from windrow import times
from windrow.background import background_of
from windrow.catalog.environment import Tables, catalog_key
from windrow.catalog.records import OWNER, Role
from windrow.queries.periodic.counters import ServerCounters
from windrow.queries.periodic.registry import QueryStatus, list_queries
from windrow.status import StreamStatus, warehouse_status
from windrow.store import Store


def _stream_metrics(tables: Tables) -> list[dict[str, Any]]:
    streams = []
    for _, entry in tables.items("streams"):
        state = tables.get("states", catalog_key(entry.id))
        now = None if state.slide is None else entry.definition.model.slot_end(state.slide)
        streams.append({"stream": entry.definition.name, "slide": state.slide, "now": now})
    return streams


def render_status(store: Store, counts: ServerCounters, role: Role = OWNER) -> dict[str, Any]:
    """The status as JSON values, as far as a role may know it."""
    streams = [stream for stream in store.catalog.read(_stream_metrics) if role.sees(stream["stream"])]
    operates = "operate" in role.rights or role.grants is None
    return {
        "warehouse": store.root.name,
        "leading": counts.leading,
        "started": times.format_time(counts.started),
        "rounds": counts.rounds,
        "runs": sum(counts.runs.values()),
        "errors": counts.errors,
        "failing": counts.failing if operates else counts.failing is not None,
        "last_error": counts.last_error if operates else None,
        "background": background_of(store).waiting() if operates else None,
        "streams": [
            stream | {"now": times.format_time(stream["now"]) if stream["now"] is not None else None}
            for stream in streams
        ],
        "queries": [_query_metrics(query, role) for query in list_queries(store) if role.sees(query.name)],
    }


def _query_metrics(query: QueryStatus, role: Role) -> dict[str, Any]:
    instants = ("created", "delivered_at", "retry_at")
    fields = asdict(query)
    if role.grants is not None and "operate" not in role.rights:
        fields |= {"sql": None, "streams": [], "sink": None, "error": None}
    return fields | {name: None if fields[name] is None else times.format_time(fields[name]) for name in instants}


def render_metrics(
    store: Store, counts: ServerCounters, role: Role = OWNER, statements: tuple[int, int] = (0, 0)
) -> bytes:
    """The metrics in Prometheus's text form; `statements` that run and wait in this process."""
    registry = CollectorRegistry()
    registry.register(_MetricsOf(store, counts, role, statements))
    return generate_latest(registry)


_STREAM_METRICS: tuple[tuple[type, str, str, Callable[[StreamStatus], float]], ...] = (
    (GaugeMetricFamily, "live_rows", "Rows of a stream that queries see.", lambda stream: stream.live_rows),
    (GaugeMetricFamily, "spooled_rows", "Rows that wait for the next slide.", lambda stream: stream.spooled_rows),
    (
        GaugeMetricFamily,
        "bytes",
        "Bytes of its files, also spooled.",
        lambda stream: stream.bytes + stream.spooled_bytes,
    ),
    (CounterMetricFamily, "late_rows", "Rows that came after their slot.", lambda stream: stream.late),
    (CounterMetricFamily, "rejected_rows", "Rows that were not taken.", lambda stream: stream.rejected),
)


class _MetricsOf(Collector):
    """All metrics of one time."""

    def __init__(self, store: Store, counts: ServerCounters, role: Role, statements: tuple[int, int]) -> None:
        self._store, self._counts, self._role, self._statements = store, counts, role, statements

    def describe(self) -> list[Metric]:
        """None beforehand: what there is depends on streams and queries."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Of the process, of each query, of each stream."""
        counts = self._counts
        yield GaugeMetricFamily("windrow_leader", "Whether this process runs the queries.", int(counts.leading))
        yield GaugeMetricFamily("windrow_failing", "Whether the last round failed.", int(counts.failing is not None))
        for name, number in zip(("running", "waiting"), self._statements, strict=True):
            yield GaugeMetricFamily(f"windrow_statements_{name}", f"Statements {name} in this process.", number)
        yield CounterMetricFamily("windrow_rounds", "Rounds made.", counts.rounds)
        yield CounterMetricFamily("windrow_errors", "Rounds that ended with an error.", counts.errors)
        runs = CounterMetricFamily("windrow_runs", "Runs made by this process.", labels=("query", "outcome"))
        for (name, outcome), number in sorted(counts.runs.items()):
            if self._role.sees(name):
                runs.add_metric((name, outcome), number)
        yield runs
        yield self._by_query(CounterMetricFamily, "run_seconds", "Time spent answering.", counts.seconds)
        yield self._by_query(CounterMetricFamily, "rows", "Rows delivered by this process.", counts.rows)
        yield from self._queries()
        yield from self._streams()

    def _by_query(self, kind: type, name: str, help_text: str, values: Mapping[str, float]) -> Metric:
        family: Metric = kind(f"windrow_{name}", help_text, labels=("query",))
        for query, value in sorted(values.items()):
            if self._role.sees(query):
                family.add_metric((query,), value)  # type: ignore[attr-defined]
        return family

    def _queries(self) -> Iterator[Metric]:
        queries = list_queries(self._store)

        def values(attribute: Callable[[QueryStatus], float | None]) -> dict[str, float]:
            return {query.name: value for query in queries if (value := attribute(query)) is not None}

        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        yield self._by_query(gauge, "query_due", "Whether a run is due.", values(lambda q: int(q.due)))
        yield self._by_query(
            gauge, "query_waiting", "Runs of earlier slides still to be made.", values(lambda q: q.waiting)
        )
        yield self._by_query(gauge, "query_failures", "Failures in a row.", values(lambda q: q.failures))
        yield self._by_query(counter, "query_missed", "Periods without a run.", values(lambda q: q.missed_runs))
        yield self._by_query(gauge, "query_slide", "Slide of the last delivered run.", values(lambda q: q.slide))
        yield self._by_query(
            gauge,
            "query_delivered_timestamp_seconds",
            "When the last run was delivered.",
            values(lambda q: None if q.delivered_at is None else q.delivered_at.timestamp()),
        )

    def _streams(self) -> Iterator[Metric]:
        slides = GaugeMetricFamily("windrow_stream_slide", "Slide that a stream has reached.", labels=("stream",))
        clocks = GaugeMetricFamily("windrow_stream_clock_timestamp_seconds", "A stream's clock.", labels=("stream",))
        for stream in self._store.catalog.read(_stream_metrics):
            if stream["slide"] is not None and self._role.sees(stream["stream"]):
                slides.add_metric((stream["stream"],), stream["slide"])
                clocks.add_metric((stream["stream"],), stream["now"] / times.SECOND)
        yield slides
        yield clocks
        status, wall = warehouse_status(self._store), self._store.clock()
        visible = [each for each in status.streams if self._role.sees(each.name)]
        for kind, name, help_text, value in _STREAM_METRICS:
            family: Any = kind(f"windrow_stream_{name}", help_text, labels=("stream",))
            for each in visible:
                family.add_metric((each.name,), value(each))
            yield family
        lags = GaugeMetricFamily("windrow_stream_lag_seconds", "Wall time minus a stream's clock.", labels=("stream",))
        for each in visible:
            if each.now is not None:
                lags.add_metric((each.name,), (wall - times.parse_instant(each.now)) / times.SECOND)
        yield lags
        left = GaugeMetricFamily(
            "windrow_kafka_lag_offsets", "Offsets behind the last batch when it began.", labels=("stream", "partition")
        )
        for each in visible:
            for partition in each.partitions:
                left.add_metric((each.name, partition.name), partition.lag)
        yield left
        behind = 0 if status.oldest_reader is None else status.version - status.oldest_reader
        yield GaugeMetricFamily("windrow_oldest_pin_commits", "Commits since the oldest reader's.", behind)
        free = shutil.disk_usage(self._store.root).free
        yield GaugeMetricFamily("windrow_disk_free_bytes", "Room on the warehouse's disk.", free)

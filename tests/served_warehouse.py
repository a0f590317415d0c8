"""A warehouse behind a server in this process, with an operator, a producer and an analyst."""

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa

import windrow
from windrow.access import create_token, put_role
from windrow.queries.periodic.counters import ServerCounters
from windrow.service.http_api import Limits
from windrow.service.server import NetworkServer, ServerSettings, serving

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("secret", pa.string())])
ROWS = 600
ROLES = ("operator", "producer", "analyst", "small")
LIMITS = Limits(concurrency=2, waiting=2, patience=60)
HEADER = "adbc.flight.sql.authorization_header"


def rows(first: int, number: int) -> pa.Table:
    """One row a second."""
    numbers = range(first, first + number)
    instants = [START + dt.timedelta(seconds=n) for n in numbers]
    return pa.table([instants, list(numbers), [f"s{n % 7}" for n in numbers]], schema=SCHEMA)


@dataclass
class Served:
    """A server, its warehouse, tokens by role, and what it wrote into its audit."""

    wh: windrow.Warehouse
    server: NetworkServer
    tokens: dict[str, str]
    audit: list[dict]

    def client(self, role: str | None) -> httpx.Client:
        """An HTTP client with a role's token."""
        headers = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.server.port}", headers=headers, timeout=60)

    @property
    def flight(self) -> str:
        """The address of Flight SQL."""
        return f"grpc+tcp://127.0.0.1:{self.server.flight_port}"

    def connect(self, role: str):
        """Windrow's own client with a role's token."""
        return windrow.connect(self.flight, token=self.tokens[role])


@contextmanager
def serve_warehouse(path: Path, limits: Limits = LIMITS, say=lambda _: None, **options) -> Iterator[Served]:
    """A server of a new warehouse."""
    with windrow.open(path) as wh:
        for name in ("seen", "hidden"):
            wh.create_stream(name, SCHEMA, time="ts", key="k", slide="1 minute", lifetime="1 hour")
            wh.append(name, rows(0, ROWS))
            wh.slide(name, to=START + dt.timedelta(seconds=ROWS))
        wh.put_table("names", pa.table({"k": [1, 2], "name": ["=one", "two"]}))
        wh.add_query("counted", "SELECT count(*) AS n FROM hidden [WINDOW 5 MINUTES SLIDE 1 MINUTE]")
        wh.run_due(now=True)
        put_role(wh._store, "operator", ["read", "append", "operate"])
        put_role(wh._store, "producer", ["append"], {"seen": None})
        put_role(wh._store, "analyst", ["read"], {"seen": ["k"], "counted": None, "names": ["name"]}, newest="1 minute")
        put_role(wh._store, "small", ["read"], rows=10, seconds=5)
        tokens = {role: create_token(wh._store, role)[1] for role in ROLES}
        audit: list[dict] = []
        settings = ServerSettings(**{"port": 0, "flight_port": 0, "grace": 1, "limits": limits} | options)
        with serving(wh, settings, ServerCounters(0), audit.append, say) as server:
            yield Served(wh, server, tokens, audit)

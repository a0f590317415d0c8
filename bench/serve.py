"""`bench serve`: what the network costs, as ratios to the same statements in this process; everything on loopback."""

import contextlib
import datetime as dt
import http.client
import json
import math
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

import windrow
from bench import machine, report
from bench.results import Results, verdicts
from bench.runner import WrongAnswerError
from bench.statistics import Aim
from bench.worker import checkout_on_path
from windrow.access import create_token, put_role

MINUTE = 60_000_000
BEGIN = 1_767_225_600_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.float64())])
STATEMENTS = {
    "a key": ("SELECT k, v FROM s WHERE k = ?", [12_345]),
    "a minute counted": ("SELECT count(*) AS n, avg(v) AS v FROM s [WINDOW 1 MINUTE]", None),
    "no stream": ("SELECT 1 AS n", None),
}
WHOLE = "SELECT ts, k, v FROM s [WINDOW 10 MINUTES]"
THREADS, CLIENTS = 8, 32
FORMATS = (
    "application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream",
    "application/vnd.apache.parquet",
)  # fmt: skip
ROUND_SECONDS = 0.25
"""Between two rounds of the part that looks at memory: it may last an hour, beside other work."""
SAMPLES = 60


@dataclass(frozen=True)
class Size:
    """How much is done: rows of ten minutes, seconds of each rate, slides, event streams, seconds of the last part."""

    rows: int
    seconds: float
    slides: int
    streams: int
    lasting: float
    fetches: int = 9
    """How often all rows are fetched each way."""


QUICK = Size(5_000_000, 4.0, 60, 1000, 60.0)
FULL = Size(5_000_000, 10.0, 300, 1000, 3600.0)


def work(*, quick: bool) -> int:  # noqa: ARG001
    """How many times `advance` will be called."""
    return 5


def _rows(minute: int, number: int) -> pa.Table:
    ts = BEGIN + minute * MINUTE + 1 + np.arange(number) * (MINUTE // (number + 1))
    keys = np.arange(number) + minute * number
    return pa.table([pa.array(ts, SCHEMA.field("ts").type), keys, np.random.default_rng(minute).random(number)], SCHEMA)


def _instant(minute: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(BEGIN // 1_000_000 + minute * 60, dt.UTC)


def _slide(wh: windrow.Warehouse, minute: int, number: int) -> float:
    """Append a minute and slide; gives the seconds of the slide."""
    wh.append("s", _rows(minute, number))
    began = time.perf_counter()
    wh.slide("s", to=_instant(minute + 1))
    return time.perf_counter() - began


@contextlib.contextmanager
def _server(path: Path) -> Iterator[tuple[int, str, int]]:
    """A server; gives its port, the address of Flight SQL, and its process group."""
    command = Path(sys.executable).with_name("windrow")
    child = subprocess.Popen(
        [command, "-w", path, "serve", "--port", "0", "--flight-port", "0"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        flight = ""
        for line in child.stdout:
            if "Flight SQL on" in line:
                flight = line.split()[-1]
            elif "answering on" in line:
                yield int(line.rpartition(":")[2]), flight, child.pid
                return
        raise WrongAnswerError("the server ended before it answered")
    finally:
        child.terminate()
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


Ask = Callable[[], Any]


class _Client:
    """A connection that asks one statement again and again; it is closed when nobody has it any more."""

    def __init__(self, port: int, token: str, statement: str, params: Any, accept: str = FORMATS[0]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._body = json.dumps({"statement": statement, "params": params})
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Accept": accept}

    def __call__(self) -> bytes:
        self._connection.request("POST", "/sql", self._body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise WrongAnswerError(content.decode())
        return content

    def __del__(self) -> None:
        self._connection.close()


def _processor_seconds(group: int) -> float:
    """Processor time of this process and of all processes of a group, as far as they live."""
    seconds = time.process_time()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(process.name)) == group:
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


@dataclass(frozen=True)
class Rate:
    """How many statements a second, and what one costs all processes together."""

    each_second: float
    processor_ms: float


def _rate(connect: Callable[[], Ask], seconds: float, group: int) -> Rate:
    """Statements per second from `THREADS` threads."""
    counts, began, end = [0] * THREADS, _processor_seconds(group), time.monotonic() + seconds

    def run(number: int) -> None:
        ask = connect()
        while time.monotonic() < end:
            ask()
            counts[number] += 1

    threads = [threading.Thread(target=run, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Rate(sum(counts) / seconds, (_processor_seconds(group) - began) / max(1, sum(counts)) * 1e3)


def _keep_asking(connect: Callable[[str, Any], Ask], stop: Callable[[], bool]) -> list[threading.Thread]:
    """`CLIENTS` threads that ask the statements by turns."""

    def run(number: int) -> None:
        asks = [connect(*statement) for statement in STATEMENTS.values()]
        while not stop():
            asks[number % len(asks)]()
            number += 1

    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    return threads


def _remote_clients(port: int, token: str, began: Any, ended: Any) -> None:
    """In a process of its own."""
    threads = _keep_asking(lambda *statement: _Client(port, token, *statement), ended.is_set)
    began.set()
    for thread in threads:
        thread.join()


def bench(
    *, quick: bool, results: Results, scratch: Path | None, advance: Callable[[str], None], size: Size | None = None
) -> tuple[str, list[Aim]]:
    """Run everything; gives the report (Markdown) and what was wanted."""
    chosen, host = size or (QUICK if quick else FULL), machine.describe(scratch or Path.cwd())
    with TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "warehouse"
        with windrow.open(path) as wh:
            wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
            for minute in range(10):
                _slide(wh, minute, chosen.rows // 10)
            put_role(wh._store, "bench", ["read", "append", "operate"])
            token = create_token(wh._store, "bench")[1]
            with _server(path) as (port, flight, group):
                lines, aims = _measure(chosen, wh, port, flight, group, token, advance)
    results.write("serve", {"machine": host, "figures": lines, "wanted": verdicts(aims)})
    text = report.table(["", "in this process", "over the network", "ratio"], lines)
    return "\n\n".join([machine.summarise(host), "### What was wanted", report.aims_table(aims), text]), aims


def _measure(
    size: Size, wh: windrow.Warehouse, port: int, flight: str, group: int, token: str, advance: Callable[[str], None]
) -> tuple[list[list[str]], list[Aim]]:
    lines: list[list[str]] = []
    aims: list[Aim] = []
    advance("small statements")
    for name, (statement, params) in STATEMENTS.items():
        for seconds in (1.0, size.seconds):  # the first warms up
            inside = _rate(lambda s=statement, p=params: lambda: wh.sql(s, p).arrow(), seconds, group)  # type: ignore[misc]
            outside = _rate(lambda s=statement, p=params: _Client(port, token, s, p), seconds, group)  # type: ignore[misc]
        lines.append(_compare(f"{name}: statements/s", inside.each_second, outside.each_second, ".0f"))
        lines.append(_compare(f"{name}: processor ms a statement", inside.processor_ms, outside.processor_ms, ".2f"))
        slower = inside.each_second / outside.each_second if outside.each_second else math.inf
        aims.append(Aim(f"{name}: in-process rate / HTTP rate, {THREADS} threads", slower, 2.0))
    advance("all rows")
    lines += _measure_all_rows(size, wh, flight, group, token, aims)
    advance("slides beside 32 clients")
    lines.append(_measure_slides(size, wh, port, token, aims))
    advance("idle event streams")
    lines.append(_measure_events(size, wh, port, group, token, aims))
    advance("memory")
    lines.append(_measure_memory(size, wh, port, flight, group, token, aims))
    return lines, aims


def _compare(what: str, inside: float, outside: float, form: str) -> list[str]:
    return [what, format(inside, form), format(outside, form), f"{outside / inside:.2f}"]


def _measure_all_rows(
    size: Size, wh: windrow.Warehouse, flight: str, group: int, token: str, aims: list[Aim]
) -> list[list[str]]:
    """All rows of the window by turns from this process and over Flight SQL, the first of each left out."""
    clock: dict[str, list[float]] = {"inside": [], "outside": []}
    processor: dict[str, list[float]] = {"inside": [], "outside": []}
    with windrow.connect(flight, token) as remote:
        for _ in range(size.fetches):
            for key, ask in (("inside", wh.sql), ("outside", remote.sql)):
                began, used = time.perf_counter(), _processor_seconds(group)
                if ask(WHOLE).arrow().num_rows != size.rows:  # type: ignore[operator]
                    raise WrongAnswerError("rows are missing")
                clock[key].append(time.perf_counter() - began)
                processor[key].append(_processor_seconds(group) - used)
    medians = {kind: [float(np.median(values[key][1:])) for key in ("inside", "outside")]
               for kind, values in (("s", clock), ("processor s", processor))}  # fmt: skip
    aims.append(Aim(f"{size.rows:,} rows over Flight SQL / .arrow()", medians["s"][1] / medians["s"][0], 2.0))
    return [_compare(f"{size.rows:,} rows: {kind}", *pair, ".3f") for kind, pair in medians.items()]


def _measure_slides(size: Size, wh: windrow.Warehouse, port: int, token: str, aims: list[Aim]) -> list[str]:
    minute, number = 10, 2_000
    taken: dict[str, list[float]] = {"inside": [], "outside": []}
    for key, seconds in taken.items():
        if key == "inside":
            ended: Any = threading.Event()
            threads = _keep_asking(lambda *statement: lambda: wh.sql(*statement).arrow(), ended.is_set)
        else:
            context = multiprocessing.get_context("spawn")
            ended, began = context.Event(), context.Event()
            threads = [context.Process(target=_remote_clients, args=(port, token, began, ended), daemon=True)]  # type: ignore[list-item]
            with checkout_on_path():
                threads[0].start()
            if not began.wait(120):
                raise WrongAnswerError("the clients did not begin")
        time.sleep(2.0)
        for _ in range(size.slides):
            seconds.append(_slide(wh, minute, number))
            minute += 1
        ended.set()
        for thread in threads:
            thread.join(60)
    inside, outside = (float(np.percentile(taken[key], 99)) * 1e3 for key in ("inside", "outside"))
    aims.append(Aim(f"p99 of a slide beside {CLIENTS} clients / beside the same in-process", outside / inside, 2.0))
    return [
        f"slide beside {CLIENTS} clients: p99 ms", f"{inside:.1f}", f"{outside:.1f}", f"{outside / inside:.2f}"
    ]  # fmt: skip


def _measure_events(size: Size, wh: windrow.Warehouse, port: int, group: int, token: str, aims: list[Aim]) -> list[str]:
    """Open the streams, see that statements go on, slide once, and see that everybody hears of it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    statement = STATEMENTS["no stream"]
    alone = _rate(lambda: _Client(port, token, *statement), size.seconds, group).each_second
    streams = []
    for _ in range(size.streams):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        connection.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        streams.append(connection)
    for connection in streams:
        if b": windrow" not in connection.recv(4096) and b": windrow" not in connection.recv(4096):
            raise WrongAnswerError("an event stream did not begin")
    beside = _rate(lambda: _Client(port, token, *statement), size.seconds, group).each_second
    wh.slide("s", to="2026-01-01T12:00:00Z", force=True)
    events = 0
    for connection in streams:
        received = b""
        while b"event: slide" not in received:
            received += connection.recv(4096)
        events += 1
        connection.close()
    aims.append(Aim(f"rate of statements without / beside {size.streams:,} idle event streams", alone / beside, 1.5))
    return [f"{events:,} event streams: statements/s without, beside", f"{alone:.0f}", f"{beside:.0f}",
            f"{beside / alone:.2f}"]  # fmt: skip


def _used_bytes(group: int) -> int:
    """Memory of all processes of a group, pages that they share counted once each in parts."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration, ValueError):
            if os.getpgid(int(process.name)) == group:
                text = (process / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) << 10 for line in text if line.startswith("Pss_Anon:"))
    return total


def _measure_memory(
    size: Size, wh: windrow.Warehouse, port: int, flight: str, group: int, token: str, aims: list[Aim]
) -> list[str]:
    """Rounds of everything for a while: the most that the server's processes held in the middle and last third."""
    held: list[int] = []
    minute, began = 24 * 60, time.monotonic()
    formats = cycle(FORMATS)
    with windrow.connect(flight, token) as remote:
        while (gone := time.monotonic() - began) < size.lasting or len(held) < 6:
            accept = next(formats)
            for statement in STATEMENTS.values():
                _Client(port, token, *statement, accept)()
                remote.sql(*statement).arrow()
            minute += 1
            remote.append("s", _rows(minute, 2_000), batch_id=f"lasting {minute}")
            wh.slide("s", to=_instant(minute + 1))
            if gone * SAMPLES / size.lasting >= len(held):
                held.append(_used_bytes(group))
            time.sleep(ROUND_SECONDS)
    middle, last = (max(held[len(held) * part // 3 : len(held) * (part + 1) // 3]) for part in (1, 2))
    aims.append(Aim(f"most memory in the last third of {size.lasting:g} s / in the middle third", last / middle, 1.1))
    return [f"memory in the middle and last third of {size.lasting:g} s, {minute - 24 * 60:,} rounds: MB",
            f"{middle / 1e6:.0f}", f"{last / 1e6:.0f}", f"{last / middle:.2f}"]  # fmt: skip

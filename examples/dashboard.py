"""A service and a dashboard: an application posts rows over HTTP, a dashboard asks over Arrow Flight SQL.

Run it with a folder, ``python dashboard.py FOLDER``; it makes its own data, and needs ``windrow[serve,client]``.
"""

import datetime as dt
import json
import random
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import windrow

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
MINUTES = 6
TILE = """
    SELECT host, count(*) AS requests, quantile_disc(ms, 0.9) AS p90
    FROM requests [WINDOW 5 MINUTES] GROUP BY host ORDER BY host
"""


def make_minute(minute: int) -> list[dict[str, object]]:
    """The requests of a minute, as the application logs them."""
    choice = random.Random(minute)
    times = sorted(choice.uniform(0.001, 59.999) for _ in range(40))
    return [
        {
            "ts": (START + dt.timedelta(minutes=minute, seconds=round(second, 3))).isoformat(),
            "host": choice.choice(("web0", "web1")),
            "ms": choice.randint(1, 400),
        }
        for second in times
    ]


def _windrow(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "windrow", "-w", str(folder / "warehouse"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main(folder: Path) -> dict[str, object]:
    """An operator's three commands, then the application, then the dashboard."""
    _windrow(folder, "init")
    columns = ["--column", "ts:timestamptz", "--column", "host:text", "--column", "ms:int64"]
    declared = ["--time", "ts", "--key", "host", "--slide", "1 minute", "--lifetime", "1 hour", "--if-not-exists"]
    _windrow(folder, "stream", "create", "requests", *columns, *declared)
    tokens = {}
    for role, right in (("application", "append"), ("dashboard", "read"), ("scheduler", "operate")):
        _windrow(folder, "role", "create", role, "--right", right)
        tokens[role] = _windrow(folder, "token", "create", role)
    # From here on only the network. `--slide requests` would slide by the wall clock; our rows are of the past.
    server = subprocess.Popen(
        [sys.executable, "-m", "windrow", "-w", str(folder / "warehouse"), "serve", "--port", "0", "--flight-port", "0",
         "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        flight, http = (json.loads(server.stdout.readline())["said"].split(" on ")[1] for _ in range(2))

        def post(role: str, path: str, rows: object) -> dict[str, object]:
            headers = {"Authorization": f"Bearer {tokens[role]}", "Content-Type": "application/json"}
            request = urllib.request.Request(http + path, json.dumps(rows).encode(), headers)
            with urllib.request.urlopen(request) as answer:
                reply: dict[str, object] = json.load(answer)
                return reply

        for minute in range(MINUTES):
            # The batch id makes a request that is sent again, because its answer was lost, one append.
            for _ in range(2):
                post("application", f"/streams/requests/append?batch_id={minute}", make_minute(minute))
        post("scheduler", "/streams/requests/slide", {"to": (START + dt.timedelta(minutes=MINUTES)).isoformat()})
        with windrow.connect(flight, token=tokens["dashboard"]) as remote:
            tile = remote.sql(TILE).fetchall()
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    for host, requests, p90 in tile:
        print(f"{host}: {requests} requests in the last five minutes, nine of ten within {p90} ms")
    return {"tile": tile}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

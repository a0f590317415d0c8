"""Leases: rows that end when they end, and a view of who is online.

Run it with a folder, ``python leases.py FOLDER``; it makes its own data.
"""

import datetime as dt
import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import windrow

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
MINUTES = 40
UTC = pa.timestamp("us", "UTC")
LEASES = pa.schema([("ts", UTC), ("host", pa.string()), ("address", pa.string()), ("exp", UTC)])
LOGINS = pa.schema([("ts", UTC), ("host", pa.string()), ("person", pa.string())])


def make_minute(number: int) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The leases and logins of one minute. A lease lives for 2 to 30 minutes: each row has its own end."""
    choice = random.Random(number)
    leases, logins = [], []
    for host in choice.sample(range(40), 6):
        ts = NOON + (number + choice.random()) * MINUTE
        end = ts + choice.randint(2, 30) * MINUTE
        leases.append({"ts": ts, "host": f"h{host}", "address": f"10.0.{number}.{host}", "exp": end})
    for host in choice.sample(range(40), 4):
        ts = NOON + (number + choice.random()) * MINUTE
        logins.append({"ts": ts, "host": f"h{host}", "person": choice.choice(("ann", "bob", "cid"))})
    return leases, logins


def main(folder: Path) -> dict[str, object]:
    """Forty minutes, minute by minute."""
    with windrow.open(folder / "warehouse") as wh:
        lasting = {"expires": "exp", "max_lifetime": "1 hour"}
        wh.create_stream("leases", LEASES, time="ts", key="host", slide="1 minute", **lasting, if_not_exists=True)
        wh.create_stream(
            "logins", LOGINS, time="ts", key="host", slide="1 minute", lifetime="30 minutes", if_not_exists=True
        )
        # Kept up to date from new rows only; its rows leave when one of their partners does.
        wh.create_view(
            "online",
            "SELECT host, address, person, i.ts AS since FROM leases JOIN logins [WINDOW 10 MINUTES] AS i USING (host)",
            key="host",
            if_not_exists=True,
        )
        for number in range(MINUTES):
            leases, logins = make_minute(number)
            wh.append("leases", leases, batch_id=f"minute {number}")
            wh.append("logins", logins, batch_id=f"minute {number}")
            now = NOON + (number + 1) * MINUTE
            if wh.now("leases") is None or wh.now("leases") < now:
                wh.slide("leases", to=now)
                wh.slide("logins", to=now)
        facts: dict[str, object] = {
            "leases": wh.sql("SELECT host, address FROM leases ORDER BY ALL").fetchall(),
            "online": wh.sql("SELECT host, address, person, since FROM online ORDER BY ALL").fetchall(),
        }
        print(len(facts["leases"]), "leases are valid;", len(facts["online"]), "pairs of lease and login")  # type: ignore[arg-type]
        print(wh.probe("leases", key="h7").num_rows, "of them of host h7")
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

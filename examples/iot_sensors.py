"""Sensors that are late, silent or wrong: what is known is answered, and what is missing is said.

Run it with a folder, ``python iot_sensors.py FOLDER``; it makes its own data.
"""

import datetime as dt
import logging
import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import windrow

EIGHT = dt.datetime(2025, 6, 2, 8, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
HALLS = ("north", "south")
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("sensor", pa.string()), ("celsius", pa.float64())])
SILENT = range(6, 9)
"""Minutes in which the gateway of the south hall cannot be reached; it sends what it kept in minute 9."""


def measure(hall: str, minute: int) -> list[dict[str, object]]:
    """The values of one hall and minute; a broken sensor says -273.2."""
    choice = random.Random(f"{hall}{minute}")
    values = []
    for second in range(0, 60, 5):
        broken = choice.random() < 0.05
        celsius = -273.2 if broken else round(20 + minute / 10 + choice.gauss(0, 1), 1)
        ts = EIGHT + minute * MINUTE + dt.timedelta(seconds=second)
        values.append({"ts": ts, "sensor": f"{hall}-{choice.randint(1, 3)}", "celsius": celsius})
    return values


def main(folder: Path) -> dict[str, object]:
    """Twelve minutes of two halls, one of which is silent for three of them."""
    logging.basicConfig(level=logging.ERROR)  # INFO shows every slide and run, WARNING every rejected row
    facts: dict[str, object] = {}
    with windrow.open(folder / "warehouse") as wh:
        wh.create_stream(
            "climate", SCHEMA, time="ts", key="sensor", slide="1 minute", lifetime="1 hour",
            sources=HALLS, on_source_failure="exclude",
            checks={"celsius > -100": "reject"}, rejected_retention="30 days", if_not_exists=True,
        )  # fmt: skip
        # Asked after each minute; a window that late rows have changed is delivered again as a revision.
        wh.add_query(
            "each_minute",
            "SELECT count(*) AS n, round(avg(celsius), 3) AS celsius FROM climate [WINDOW 5 MINUTES SLIDE 1 MINUTE]",
            missed="every", revise="30 minutes", if_not_exists=True,
        )  # fmt: skip
        for minute in range(12):
            end = EIGHT + (minute + 1) * MINUTE
            wh.append("climate", measure("north", minute), source="north")
            wh.heartbeat("climate", source="north", up_to=end)
            if minute == SILENT[0]:
                wh.fail_source("climate", "south", "the gateway does not answer")
            if minute not in SILENT:
                kept = [row for old in SILENT for row in measure("south", old)] if minute == SILENT[-1] + 1 else []
                covers = (EIGHT + SILENT[0] * MINUTE, end) if kept else None
                wh.append("climate", [*kept, *measure("south", minute)], source="south", covers=covers)
                wh.heartbeat("climate", source="south", up_to=end)
            wh.slide("climate")
            wh.run_due()
            if minute == SILENT[-1]:
                answer = wh.sql("SELECT count(*) FROM climate [WINDOW 5 MINUTES]")
                (window,) = answer.windows
                facts["during"] = (answer.fetchall()[0][0], window.complete, [gap.kind for gap in window.gaps])
                print(f"while south is silent: {window.coverage:.0%} of the last five minutes are known")
        facts["rejected"] = wh.rejected("climate").num_rows
        facts["results"] = wh.sql("SELECT _window_end, _complete, n, celsius FROM each_minute ORDER BY ALL").fetchall()
        revised = wh.results("each_minute", revisions=True).arrow()["_revision"].to_pylist()
        facts["revisions"] = sum(number > 0 for number in revised)
        print(f"{facts['rejected']} values rejected, {facts['revisions']} windows delivered again")
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

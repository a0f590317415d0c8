"""Quotes of market makers, and the hammer query: who is at the inside bid, and how often.

Run it with a folder, ``python quotes.py FOLDER``; it makes its own data.
"""

import datetime as dt
import random
import sys
import tempfile
from pathlib import Path

import windrow

OPEN = dt.datetime(2025, 9, 1, 13, 30, tzinfo=dt.UTC)
MINUTES = 40
SECONDS = 90
"""How long a bid counts."""
HAMMER = f"""
    WITH bids AS (
        SELECT *, rangew(INTERVAL {SECONDS} SECONDS, ts, _seq) AS w
        FROM ticks [WINDOW 30 MINUTES] WHERE type = 'bid' AND sid = 'ACME'
    ), inside AS (
        SELECT *, maxw(w, price, _seq) AS best FROM bids
    )
    SELECT mmid, count(*) AS times FROM inside WHERE price = best GROUP BY mmid ORDER BY mmid
"""


def make_minute(minute: int) -> list[dict[str, object]]:
    """Sixty ticks at whole seconds, in the order of their times."""
    choice = random.Random(minute)
    seconds = sorted(choice.randint(1, 60) for _ in range(60))
    return [
        {
            "ts": OPEN + dt.timedelta(minutes=minute, seconds=second),
            "sid": choice.choice(("ACME", "BOLT")),
            "mmid": choice.choice("ABCD"),
            "type": choice.choice(("bid", "bid", "ask")),
            "price": choice.randint(380, 420) / 4,
        }
        for second in seconds
    ]


def main(folder: Path) -> dict[str, object]:
    """Forty minutes; the hammer is asked once by hand, and after each ten minutes by the warehouse itself."""
    with windrow.open(folder / "warehouse") as wh:
        wh.create_stream(
            "ticks", like=make_minute(0), time="ts", key="sid", slide="1 minute", lifetime="1 hour", if_not_exists=True
        )
        standing = HAMMER.replace("30 MINUTES", "30 MINUTES SLIDE 10 MINUTES")
        wh.add_query("hammer", standing, missed="every", sink="csv", if_not_exists=True)
        for minute in range(MINUTES):
            wh.append("ticks", make_minute(minute), batch_id=f"minute {minute}")
        for minute in range(MINUTES):
            end = OPEN + dt.timedelta(minutes=minute + 1)
            if wh.now("ticks") is None or wh.now("ticks") < end:
                wh.slide("ticks", to=end)
        runs = wh.run_due()
        facts: dict[str, object] = {
            "hammer": wh.sql(HAMMER).fetchall(),
            "files": [Path(run.file).name for run in runs if run.file is not None],
        }
        print("at the inside bid:", facts["hammer"])
        print(len(runs), "runs delivered as files")
    return facts


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))

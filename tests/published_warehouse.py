"""A warehouse with a published stream, whose process may be killed while it writes a version."""

import random
import time

import pyarrow as pa

import windrow
from faulty_disks import KillAtStep
from sample_streams import BASE
from windrow.files import FileSystem
from windrow.times import to_datetime

US = pa.timestamp("us", "UTC")


def wall_time() -> int:
    """After all rows, and never twice the same, in whichever process."""
    return BASE + 3_600_000_000 + time.monotonic_ns() // 1000


def open_published(path: str, files: FileSystem | None = None) -> windrow.Warehouse:
    """A warehouse with a published stream, at its wall time."""
    return windrow.open(path, clock=wall_time, **({} if files is None else {"files": files}))


SCHEMA = pa.schema([("ts", US), ("exp", US), ("k", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2))])


def make_published(path: str, *, slides: int = 9, hold: str = "1 microsecond") -> None:
    """Make one with so many versions: of the tenth, which a slide then writes, there is a checkpoint."""
    with open_published(path) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="1 hour")
        wh.publish("s", every="1 microsecond", hold=hold)
        for _ in range(slides):
            slide_published(wh)


def slide_published(wh: windrow.Warehouse) -> "windrow.slide.SlideReport":
    """Take in the rows of the next minute."""
    minute = len(wh.sql("FROM windrow.slides").fetchall())
    times = [BASE + minute * 60_000_000 + n * 1_000_000 for n in range(1, 60)]
    ends = [ts + (n % 5 + 1) * 45_000_000 for n, ts in enumerate(times)]
    columns = [pa.array(times, US), pa.array(ends, US), pa.array([n % 7 for n in range(59)]), pa.nulls(59, pa.string())]
    names = ["ts", "exp", "k", "name", "price"]
    wh.append("s", pa.table([*columns, pa.nulls(59, pa.decimal128(9, 2))], names))
    return wh.slide("s", to=to_datetime(BASE + (minute + 1) * 60_000_000))


def slide_published_until_step(path: str, step: str) -> None:
    """Slide, and be killed at a step of the publication."""
    with open_published(path, KillAtStep(step, 1)) as wh:
        slide_published(wh)


def make_minute(seed: int, minute: int) -> pa.Table:
    """Rows of about one minute, some late and some ahead of the clock, each with a lifetime of its own."""
    noise, start = random.Random(f"{seed} {minute}"), BASE + minute * 60_000_000
    count = noise.randrange(200)
    times = [start + noise.randrange(-210_000_000, 70_000_000) for _ in range(count)]
    ends = [ts + noise.randrange(1, 600_000_000) for ts in times]
    keys, names = [noise.randrange(10**6) for _ in range(count)], [noise.choice(["ä", "", None]) for _ in range(count)]
    columns = [pa.array(times, US), pa.array(ends, US), pa.array(keys, pa.int64()), pa.array(names, pa.string())]
    return pa.table([*columns, pa.nulls(count, pa.decimal128(9, 2))], ["ts", "exp", "k", "name", "price"])


def slide_beside_readers(path: str, seed: int, slides: int) -> None:
    """Slide so often, at random moments; each slide publishes its window, and merges and removals go on meanwhile."""
    noise = random.Random(seed)
    with open_published(path) as wh:
        for minute in range(1, slides + 1):
            rows = make_minute(seed, minute)
            half = noise.randrange(rows.num_rows + 1)
            for part in (rows[:half], rows[half:]):
                wh.append("s", part)
            if minute == slides // 2:
                wh.relayout("s", windrow.Index("round-robin", 3, 2), move="now")
            assert wh.slide("s", to=to_datetime(BASE + minute * 60_000_000)).publish_problem is None
            if noise.random() < 0.2:
                wh.gc()
            time.sleep(noise.uniform(0, 0.03))

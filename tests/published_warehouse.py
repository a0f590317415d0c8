"""A warehouse with a published stream, whose process may be killed while it writes a version."""

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


def make_published(path: str) -> None:
    """Make one with nine versions: the next slide is the tenth, of which there is a checkpoint."""
    with open_published(path) as wh:
        schema = pa.schema([(name, US) for name in ("ts", "exp")] + [("k", pa.int64()), ("name", pa.string())])
        schema = schema.append(pa.field("price", pa.decimal128(9, 2)))
        wh.create_stream("s", schema, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="1 hour")
        wh.publish("s", every="1 microsecond", hold="1 microsecond")
        for _ in range(9):
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

"""Random values of every Arrow type that our Parquet reader and writer know, for comparisons with pyarrow."""

import datetime
import decimal
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

Maker = Callable[[random.Random], Any]


def number(bits: int, *, signed: bool = True) -> Maker:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return lambda r: r.choice([low, high, 0, r.randint(low, high), r.randint(0, 5)])


def unscaled(digits: int, scale: int) -> Maker:
    return lambda r: decimal.Decimal(r.choice([-1, 1]) * r.randrange(10 ** r.randint(0, digits))).scaleb(
        -scale, decimal.Context(prec=80)
    )


def text(r: random.Random) -> str:
    return r.choice(["", "a", "é\x00😀", f"host{r.randrange(9)}", "x" * r.randrange(300)])


VALUE_MAKERS: dict[pa.DataType, Maker] = {
    pa.bool_(): lambda r: r.random() < 0.5,
    pa.int8(): number(8),
    pa.int16(): number(16),
    pa.int32(): number(32),
    pa.int64(): number(64),
    pa.uint8(): number(8, signed=False),
    pa.uint16(): number(16, signed=False),
    pa.uint32(): number(32, signed=False),
    pa.uint64(): number(64, signed=False),
    pa.float16(): lambda r: np.float16(r.choice([0.0, -1.5, 65504.0])),
    pa.float32(): lambda r: r.choice([0.0, -0.0, 1.5, float("inf")]),
    pa.float64(): lambda r: r.choice([0.0, -0.0, r.random(), float("-inf")]),
    pa.date32(): lambda r: datetime.date(1900, 1, 1) + datetime.timedelta(days=r.randrange(90000)),
    pa.time32("ms"): lambda r: r.randrange(86_400_000),
    pa.time64("us"): lambda r: r.randrange(86_400_000_000),
    pa.time64("ns"): lambda r: r.randrange(86_400_000_000) * 1000,
    pa.timestamp("ms"): number(40),
    pa.timestamp("us"): number(50),
    pa.timestamp("us", "UTC"): number(50),
    pa.timestamp("ns", "Europe/Berlin"): number(60),
    pa.duration("us"): number(50),
    pa.duration("s"): number(30),
    pa.decimal32(9, 2): unscaled(9, 2),
    pa.decimal64(18, 3): unscaled(18, 3),
    pa.decimal128(5, 2): unscaled(5, 2),
    pa.decimal128(38, 10): unscaled(38, 10),
    pa.decimal256(76, 5): unscaled(76, 5),
    pa.string(): text,
    pa.large_string(): text,
    pa.binary(): lambda r: r.randbytes(r.randrange(40)),
    pa.large_binary(): lambda r: r.randbytes(r.randrange(4)),
    pa.binary(5): lambda r: r.choice([b"abcde", r.randbytes(5)]),
    pa.null(): lambda r: None,
    pa.dictionary(pa.int32(), pa.string()): text,
    pa.dictionary(pa.int16(), pa.string(), ordered=True): text,
}

"""Windows of earlier commits and times as DataFrames: the rows that `wh.sql` gives as of then."""

from pathlib import Path
from typing import Any

import pytest

import windrow
from minute_streams import create_stream, expected, fill_minutes, minute_start
from windrow import Index

pytestmark = pytest.mark.spark


def test_spark_reads_earlier_states(spark: Any, path: Path) -> None:
    from windrow import spark as door

    door.register(spark)
    with create_stream(path, index=Index("round-robin", 2, 2, maintenance="rebuild"), history="8 minutes") as wh:
        commits = {}
        for minute in range(14):
            fill_minutes(wh, "s", minute, minute + 1)
            commits[minute + 1] = wh.sql("SELECT 1 FROM s").version
        for minutes in (7, 10, 14):
            for as_of in (commits[minutes], minute_start(minutes), minute_start(minutes).isoformat()):
                frame = door.read(spark, wh, "s", as_of=as_of)
                assert sorted(row.v for row in frame.collect()) == expected(minutes)
                assert frame.columns == ["ts", "k", "v"]
                narrow = door.read(spark, wh, "s", window="2 minutes", columns=["v"], where="k = 2", as_of=as_of)
                wanted = [v for v in expected(minutes, back=2) if v % 100 % 5 == 2]
                assert sorted(row.v for row in narrow.collect()) == wanted
        for as_of in (commits[10], minute_start(7).isoformat()):  # the data source, through Python workers
            source = spark.read.format("windrow").options(path=str(path), stream="s", as_of=str(as_of))
            minutes = 10 if as_of == commits[10] else 7
            assert sorted(row.v for row in source.load().collect()) == expected(minutes)
            narrow = source.options(window="2 minutes", columns="v,k").load().where("k = 2")
            assert sorted(row.v for row in narrow.collect()) == [
                v for v in expected(minutes, back=2) if v % 100 % 5 == 2
            ]
        with door.snapshot(spark, wh, as_of=commits[9]) as then:
            assert then.read("s").count() == len(expected(9))
        with pytest.raises(windrow.WindowError, match="before the history"):
            door.read(spark, wh, "s", as_of=commits[2])
        with pytest.raises(Exception, match="before the history"):
            spark.read.format("windrow").options(path=str(path), stream="s", as_of=str(commits[2])).load().collect()
        with pytest.raises(windrow.WindrowError, match="each stream has its own clock"):
            door.snapshot(spark, wh, as_of="2026-01-01")  # type: ignore[arg-type]

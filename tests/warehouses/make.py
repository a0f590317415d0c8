"""Makes a warehouse with every kind of record and file, packs it, and writes down what it answers.

    python tests/warehouses/make.py NAME [FOLDER]

writes NAME.tar.xz and NAME.json beside this file (or into FOLDER), by whatever windrow the interpreter has installed;
NAME is the commit. Only the public interface is used, so that any release can make one. The packed folder is that of a
process which was killed: a pin, a writer's folder in staging/, and files that wait for a reader to end are in it.

`tests/warehouse/test_older_warehouses.py` opens each of them with today's code, compares what it says with the JSON,
goes on with it as `go_on` does, and compares again. Times are those of `CLOCK`; no wall clock is asked.
"""

import datetime as dt
import hashlib
import json
import math
import re
import shutil
import sys
import tarfile
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa

import windrow
from windrow import Index

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
CLOCK = 1_767_268_800_000_000 + 2 * 3_600_000_000
"""14:00 of that day, in microseconds."""
STAMP = pa.timestamp("us", "UTC")
PACKETS = pa.schema([("ts", STAMP), ("src", pa.int64()), ("len", pa.int32()), ("note", pa.string())])
LEASES = pa.schema([("ts", STAMP), ("host", pa.string()), ("port", pa.int32()), ("exp", STAMP)])
TYPES = pa.schema([
    ("at", pa.timestamp("ns")), ("n", pa.int64()), ("f", pa.float64()), ("g", pa.float32()), ("h", pa.float16()), ("u", pa.uint64()), ("flag", pa.bool_()),
    ("d", pa.decimal128(12, 3)), ("wide", pa.decimal256(20, 2)), ("day", pa.date32()), ("ms", pa.timestamp("ms")), ("paris", pa.timestamp("us", "Europe/Paris")),
    ("raw", pa.binary()), ("kind", pa.dictionary(pa.int32(), pa.string())), ("tags", pa.list_(pa.int16())),
    ("where", pa.struct([("x", pa.float32()), ("y", pa.string())])), ("span", pa.duration("us")), ("nothing", pa.null()), ("long", pa.large_string()),
])  # fmt: skip
SIMPLE = pa.schema([("ts", STAMP), ("k", pa.int64())])
KINDS = {
    "in_turn": Index("round-robin", 2, 2, maintenance="norebuild"),
    "by_chance": Index("random", 2, 2, maintenance="rebuild"),
    "by_time": Index("chronological", 2, 2, maintenance="adaptive"),
    "wave_in": Index("wave-insertion", 3, maintenance="rebuild"),
    "wave_out": Index("wave-expiry", 3, maintenance="norebuild"),
}
LAST = 70
"""Minutes: more runs than a query's results keep in the catalog."""
UNWRITABLE = "/proc/windrow"
"""A folder that nobody can make, whoever they are."""


def minute(number: float) -> dt.datetime:
    """A time after noon."""
    return NOON + dt.timedelta(minutes=number)


def open_warehouse(path: Path) -> windrow.Warehouse:
    """With the clock that everything here goes by."""
    return windrow.open(path, clock=lambda: CLOCK)


def packets(number: int) -> pa.Table:
    """What a minute brings, one row of it late."""
    rows = [
        {
            "ts": minute(number - 1 + (s + 1) / 8),
            "src": (number + s) % 5,
            "len": 10 * s + number % 7,
            "note": "abc"[: s % 4],
        }
        for s in range(6)
    ]
    rows.append({"ts": minute(number - 2.5), "src": 9, "len": number, "note": None})
    return pa.Table.from_pylist(rows, PACKETS)


def leases(number: int) -> pa.Table:
    """Rows that live between one and forty minutes."""
    rows = [
        {
            "ts": minute(number - 1 + s / 6),
            "host": ("ant", "bee", None)[s % 3],
            "port": 80 + s % 2,
            "exp": minute(number + 1 + 8 * s),
        }
        for s in range(1, 6)
    ]
    return pa.Table.from_pylist(rows, LEASES)


def types(number: int) -> pa.Table:
    """A row of every type, and one of nulls."""
    row = {
        "at": minute(number).replace(tzinfo=None), "n": number, "f": (math.nan, -0.0, math.inf, 1.5)[number % 4], "g": 0.25, "h": 1.5, "u": 2**64 - 1, "flag": number % 2 == 0,
        "d": Decimal("-1.500"), "wide": Decimal("3.25"), "day": dt.date(2026, 1, 1), "ms": minute(1).replace(tzinfo=None), "paris": minute(2), "raw": b"\x00\xff", "kind": ("x", "yy")[number % 2],
        "tags": [1, None], "where": {"x": 0.5, "y": "q"}, "span": dt.timedelta(seconds=-7), "nothing": None, "long": "λ" * 70,
    }  # fmt: skip
    empty = dict.fromkeys(TYPES.names) | {"at": row["at"], "n": -number}
    return pa.table([pa.array([row[f.name], empty[f.name]], f.type) for f in TYPES], schema=TYPES)


def simple(number: int, first: int = 0) -> pa.Table:
    """Two rows a minute."""
    return pa.Table.from_pylist(
        [{"ts": minute(number - 1 + s / 4), "k": (number * s + first) % 4} for s in (1, 2)], SIMPLE
    )


def create(wh: windrow.Warehouse) -> None:
    """Streams, a table, views and queries."""
    wh.create_stream(
        "packets", PACKETS, time="ts", key="src", slide="1 minute", lifetime="16 minutes", sources=["north", "south", "west"],
        slack="10 seconds", max_skew="5 minutes", on_source_failure="exclude",
    )  # fmt: skip
    every = Index("round-robin", 3, 2, maintenance="rebuild")
    wh.create_stream(
        "leases",
        LEASES,
        time="ts",
        key=["host", "port"],
        slide="2 minutes",
        expires="exp",
        max_lifetime="1 hour",
        index=every,
    )
    wh.create_stream("kinds-of-values", TYPES, time="at", key="kind", slide="10 minutes", origin=minute(3))
    wh.create_stream(
        "turning", SIMPLE, time="ts", key="k", slide="1 minute", lifetime="30 minutes", index=Index("wave-insertion", 4)
    )
    for name, index in KINDS.items():
        wh.create_stream(name, SIMPLE, time="ts", key="k", slide="1 minute", lifetime="6 minutes", index=index)
    wh.create_stream("lasting", SIMPLE, time="ts", key="k", slide="1 minute", index=Index("round-robin", 2, 1))
    wh.create_stream("not-slid", SIMPLE, time="ts", slide="1 minute")
    wh.create_stream("dropped", SIMPLE, time="ts", slide="1 minute")
    wh.put_table("hosts", pa.table({"src": [0, 1, 2], "name": ["zero", "one", "two"]}))
    wh.put_table("dropped_table", pa.table({"x": [1]}))
    wh.create_view(
        "named",
        "SELECT src, name, len FROM packets [WINDOW 10 MINUTES] JOIN hosts USING (src) WHERE len > 5",
        key="src",
    )
    wh.create_view(
        "met",
        "SELECT p.src, l.host FROM packets [WINDOW 4 MINUTES] p JOIN leases l ON p.src + 80 = l.port",
        restore=True,
    )
    wh.create_view("sources_seen", "SELECT DISTINCT src FROM packets")
    wh.create_view("totals", "SELECT src, count(*) AS n FROM packets [WINDOW 5 MINUTES] GROUP BY src", key="src")
    wh.create_view("of_a_view", "SELECT src FROM named UNION SELECT k FROM in_turn")
    wh.create_view(
        "renamed", "SELECT src, name FROM packets [WINDOW 2 MINUTES] JOIN hosts USING (src)", retroactive="hosts"
    )
    thrice = "SELECT p.src, p.len FROM packets [WINDOW 2 MINUTES] p JOIN in_turn i ON p.src = i.k JOIN by_time [WINDOW 2 MINUTES] b ON b.k = i.k"
    wh.create_view("thrice", thrice, slide="5 minutes")
    window = "packets [WINDOW 5 MINUTES SLIDE 1 MINUTE]"
    wh.add_query("sums", f"SELECT src, sum(len) AS bytes, count(*) AS n FROM {window} GROUP BY src ORDER BY src")
    wh.add_query(
        "spread",
        f"SELECT src, round(stddev(len), 6) AS s, median(len) AS m FROM {window} WHERE src < $1 GROUP BY src ORDER BY src",
        params=[4],
        sink="jsonl",
        keep="10 minutes",
    )
    wh.add_query(
        "deviation",
        f"SELECT src, stddev(len) AS s, arg_max(note, len) AS a FROM {window} WHERE src = 1 OR src = 3 GROUP BY src ORDER BY src",
        priority=3,
    )
    wh.add_query(
        "expiring",
        "SELECT host, count(*) AS n FROM leases [WINDOW 20 MINUTES SLIDE 2 MINUTES] GROUP BY host ORDER BY host",
        missed="every",
        sink="csv",
        keep=5,
    )
    wh.add_query(
        "held", "SELECT count(*) AS n, min(ts) AS since FROM packets [WINDOW 3 MINUTES SLIDE 1 MINUTE]", missed="every"
    )
    wh.add_query(
        "skipping",
        "SELECT count(*) AS n FROM packets [WINDOW 3 MINUTES SLIDE 2 MINUTES]",
        missed="skip",
        sink="html",
        keep=3,
    )
    wh.add_query("come", f"SELECT src, max(len) AS longest FROM {window} GROUP BY src", output="inserts")
    large = "SELECT r.range AS i, c.n FROM range(40000) r, (SELECT count(*) AS n FROM leases [WINDOW 10 MINUTES SLIDE 60 MINUTES]) c"
    wh.add_query("large", large, output="deletes", keep=2)
    wh.add_query("large_whole", large, keep=1)
    wh.add_query(
        "unplaced", "SELECT count(*) AS n FROM packets [WINDOW 3 MINUTES SLIDE 10 MINUTES]", sink=f"csv:{UNWRITABLE}"
    )
    wh.add_query("failing", f"SELECT CASE WHEN max(len) > 0 THEN error('too long') END AS x FROM {window}")
    wh.add_query("columnar", "SELECT ts, src FROM packets [WINDOW 1 MINUTE SLIDE 20 MINUTES]", sink="parquet")


def live(wh: windrow.Warehouse, number: int) -> None:
    """One minute."""
    wh.append("packets", packets(number), source=("north", "south")[number % 2], batch_id=f"minute {number}")
    for source in ("north", "south"):
        # So far ahead that the third source, which is silent, is spoken for; later it is declared failed.
        wh.heartbeat("packets", source=source, up_to=minute(number + 5))
    wh.slide("packets", to=minute(number))
    for index, name in enumerate((*KINDS, "turning", "lasting")):
        wh.append(name, simple(number, index))
        wh.slide(name, to=minute(number))
    if number % 2 == 0:
        wh.append("leases", leases(number))
        wh.slide("leases", to=minute(number))
    if number % 20 == 3:
        wh.append("kinds-of-values", types(number))
        wh.slide("kinds-of-values", to=minute(number))


def make(path: Path) -> Any:
    """The warehouse, open, with a snapshot that holds on to an early state."""
    wh = open_warehouse(path)
    create(wh)
    wh.append("dropped", simple(1))
    wh.slide("dropped", to=minute(1))
    for number in range(1, LAST + 1):
        live(wh, number)
        if number <= LAST - 3:
            wh.run_due()
        if number == 20:
            wh.fail_source("packets", "west", "its cable was cut")
        if number == 40:
            wh.alter_stream("turning", lifetime="40 minutes")
            wh.alter_stream("turning", add_column=("note", pa.string()))
            wh.relayout("turning", Index("round-robin", 2, 2), key="k")
            wh.alter_stream("lasting", lifetime="1 hour")
            wh.relayout("lasting", key=["ts"])
            wh.add_query(
                "long_total", "SELECT sum(len) AS n, min(len) AS low FROM packets [WINDOW 16 MINUTES SLIDE 4 MINUTES]"
            )
            wh.add_query("long_count", "SELECT count(*) AS n FROM wave_in [WINDOW 6 MINUTES SLIDE 3 MINUTES]")
        if number == 30:
            wh.put_table("hosts", pa.table({"src": [0, 1, 3], "name": ["null", "one", "three"]}))
    bad = [
        {"ts": None, "src": 1},
        {"ts": minute(-200), "src": 2},
        {"ts": minute(900), "src": 3},
        {"ts": minute(1), "src": 4},
    ]
    wh.append("packets", pa.Table.from_pylist(bad, PACKETS), source="north", batch_id="bad")
    for _ in range(60):
        wh.probe("packets", 3)
        wh.sql("SELECT count(*) FROM packets WHERE len = 4").fetchall()
    early = wh.snapshot()
    wh.relayout("turning", Index("chronological", 3, 2), move="steps", budget=1500)
    wh.drop_stream("dropped")
    wh.drop_table("dropped_table")
    for number in range(LAST + 1, LAST + 4):
        live(wh, number)
    wh.run_due(["sums", "come"])
    # What waits: rows in the spool, of a stream that never slid, of sources that are behind.
    wh.append("packets", packets(LAST + 4), source="north")
    wh.append("in_turn", simple(LAST + 4), batch_id="waiting")
    wh.append("not-slid", simple(1))
    return wh, early


def go_on(wh: windrow.Warehouse) -> None:
    """What happens to it afterwards, by the release that is tested."""
    wh.run_due()
    live(wh, LAST + 4)
    live(wh, LAST + 5)
    wh.slide("not-slid", to=minute(2))
    wh.relayout_step("turning", budget=1500)
    wh.run_due()
    wh.replay("packets")
    wh.gc()
    live(wh, LAST + 6)
    wh.run_due()


# -- what it says --------------------------------------------------------------------------------------------------------

STREAMS = (
    "packets",
    "leases",
    "kinds-of-values",
    "turning",
    "lasting",
    *KINDS,
    "not-slid",
    "named",
    "met",
    "sources_seen",
    "totals",
    "of_a_view",
    "renamed",
    "thrice",
)
QUERIES = (
    "sums",
    "spread",
    "expiring",
    "held",
    "skipping",
    "come",
    "large",
    "large_whole",
    "unplaced",
    "failing",
    "columnar",
    "deviation",
    "long_total",
    "long_count",
)


def _without_coverage(text: str) -> str:
    """A file of results as releases without `_coverage` wrote it: the sixth column, before which there are no texts."""
    if not text.startswith('"_slide"'):
        return re.sub(r'"_coverage":[^,}]*,', "", text)
    if '"_coverage"' not in text.partition("\n")[0]:
        return text
    fields = [line.split(",", 6) for line in text.split("\n")]
    return "\n".join(",".join(line[:5] + line[6:]) for line in fields)


_RUN_FIGURES = "(_staleness, _coverage)" if hasattr(windrow, "GapError") else "(_staleness)"
"""Of a run, what another release tells otherwise, or not at all."""
STATEMENTS = (
    *(f'SELECT * FROM "{name}"' for name in STREAMS),
    *(f"SELECT * EXCLUDE (_staleness) FROM {name} QUALIFY dense_rank() OVER (ORDER BY _slide DESC) <= 5" for name in QUERIES if "large" not in name),
    *(f"SELECT count(*), count(DISTINCT _slide), min(_slide) FROM {name}" for name in QUERIES),
    "SELECT _slide, count(*), min(i), max(i), min(n) FROM large GROUP BY ALL",
    "SELECT _slide, count(*), min(i), max(i), min(n) FROM large_whole GROUP BY ALL",
    "SELECT src, count(*), sum(len), min(ts) FROM packets [WINDOW 5 MINUTES] GROUP BY src",
    "SELECT * FROM packets [ROWS 5]",
    "SELECT * FROM packets [WINDOW 3 MINUTES] WHERE src = 2",
    "SELECT host, port, ts FROM leases WHERE host = 'bee' AND port = 81",
    "SELECT name, count(*) FROM packets JOIN hosts USING (src) GROUP BY name",
    "SELECT ts, src, prev(src, _seq) AS p FROM packets [WINDOW 2 MINUTES]",
    'SELECT n, "where".x, tags FROM "kinds-of-values" WHERE kind = \'yy\'',
    "FROM hosts",
    "SELECT * EXCLUDE (seconds, bytes_written) FROM windrow.slides QUALIFY row_number() OVER (PARTITION BY stream ORDER BY ordinal DESC) <= 3",
    "SELECT stream, count(*), sum(inserted), sum(expired), sum(late) FROM windrow.slides GROUP BY stream",
    "SELECT * FROM windrow.sources",
    "SELECT * FROM windrow.batches ORDER BY batch_id DESC LIMIT 9",
    "SELECT * FROM windrow.rejected",
    "SELECT * EXCLUDE (seconds) FROM windrow.queries",
    "SELECT * EXCLUDE (seconds, bytes) FROM windrow.runs QUALIFY row_number() OVER (PARTITION BY query ORDER BY slide DESC) <= 3",
    "SELECT query, outcome, count(*), sum(rows) FROM windrow.runs GROUP BY ALL",
    "SELECT * EXCLUDE (file, bytes) FROM windrow.segments WHERE stream IN ('packets', 'leases', 'turning', 'in_turn', 'by_chance', 'by_time', 'wave_in', 'wave_out')",
    "SELECT stream, slide, now, index, segments, live_rows, stored_rows, inserted, expired, late, rejected, waiting_for, missing FROM windrow.streams",
)  # fmt: skip
PROBES = (
    ("packets", 2),
    ("leases", ["ant", 80]),
    ("leases", "bee"),
    ("turning", 1),
    ("kinds-of-values", "x"),
    ("named", 1),
    ("by_chance", 0),
    ("totals", 3),
)


def plain(value: Any) -> Any:
    """A value as JSON has it; NaN and zero's sign are told."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return repr(float(f"{value:.12g}"))
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, dt.datetime):
        return (value if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def rows(table: pa.Table) -> list[Any]:
    """Rows as JSON has them, sorted; times of nanoseconds as numbers, which Python has no type for."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) and column.type.unit == "ns" else column
        for column in table.columns
    ]
    actual = [[plain(value) for value in row] for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    return sorted(actual, key=repr)


def digest(rows: list[Any]) -> str:
    """Of rows that the JSON has already, by SQL."""
    return f"{len(rows)} rows {hashlib.sha256(repr(rows).encode()).hexdigest()[:16]}"


def answers(wh: windrow.Warehouse) -> dict[str, Any]:
    """All that is compared."""
    status = wh.status()
    files = sorted(
        path.name
        for path in (wh.path / "results").rglob("*")
        if path.suffix in (".csv", ".jsonl", ".html") and path.is_file()
    )
    texts = {
        name: _without_coverage((wh.path / "results" / name.split("-")[0] / name).read_text())
        for name in files
        if name.endswith(("csv", "jsonl"))
    }
    return {
        "sql": {text: rows(wh.sql(text.replace("(_staleness)", _RUN_FIGURES)).arrow()) for text in STATEMENTS},
        "scan": {name: digest(rows(wh.scan(name).read_all())) for name in STREAMS},
        "probe": [rows(wh.probe(name, tuple(key) if isinstance(key, list) else key)) for name, key in PROBES],
        "rejected": rows(wh.rejected("packets").select([*wh.stream("packets").definition.schema.names, "_reason", "_source", "_batch"])),
        "results": {name: wh.results(name).arrow().num_rows for name in QUERIES},
        "files": files,
        "texts": texts,
        "waiting": status.reclaimable_files > 0,
        "layouts": {each.name: [each.index, each.index_why, each.layouts, each.spooled_rows, plain(each.waiting_for)] for each in status.streams},
        "relayout": {each.name: [each.relayout.index, each.relayout.done] for each in status.streams if each.relayout is not None},
        "views": [[v.name, v.sql, plain(v.inputs), plain(v.tables), v.pattern, v.why, v.restore, v.recomputed, v.index, v.slide] for v in wh.views()],
        "queries": [[q.name, q.sql, plain(q.streams), q.period, q.sink, q.missed, q.output, q.keep, q.slide, q.due, q.waiting, q.runs, q.missed_runs, q.failures, q.error] for q in wh.queries()],
        "problems": list(wh.check().problems),
    }  # fmt: skip


# -- packing -------------------------------------------------------------------------------------------------------------


def pack(path: Path, target: Path) -> None:
    """The folder as a process leaves it that is killed: everything but LMDB's own locks."""

    def without_locks(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.endswith("lock.mdb"):
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:xz", preset=9) as out:
        out.add(path, ".", filter=without_locks)


def unpack(packed: Path, path: Path) -> None:
    """A packed warehouse into a new folder."""
    with tarfile.open(packed) as given:
        given.extractall(path, filter="data")


def empty_databases(path: Path) -> list[str]:
    """Databases of the catalog without any record: a warehouse that has some proves little."""
    with (
        lmdb.open(str(path / "catalog"), max_dbs=64, map_size=1 << 40, readonly=True, lock=False) as env,
        env.begin() as txn,
    ):
        with txn.cursor() as cursor:
            names = [bytes(name) for name, _ in cursor]
        return [name.decode() for name in names if not txn.stat(env.open_db(name, txn=txn, create=False))["entries"]]


def written(value: Any, depth: int = 0) -> str:
    """JSON with a row on each line."""
    if depth == 4 or not isinstance(value, dict | list) or not value:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    if isinstance(value, dict):
        inner = [f"{json.dumps(name, ensure_ascii=False)}: {written(value[name], depth + 1)}" for name in sorted(value)]
    else:
        inner = [written(each, depth + 1) for each in value]
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    return f"{opened}\n" + ",\n".join(inner) + f"\n{closed}"


def main(name: str, folder: Path) -> None:
    """Make, pack, ask, write down."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        wh, early = make(root / "made")
        shutil.copytree(root / "made", root / "killed")  # as if it were killed now: nothing is written meanwhile
        early.close()
        wh.close()
        pack(root / "killed", folder / f"{name}.tar.xz")
        unpack(folder / f"{name}.tar.xz", root / "again")
        report: dict[str, Any] = {"clock": CLOCK, "empty": empty_databases(root / "again")}
        with open_warehouse(root / "again") as again:
            report["before"] = answers(again)
            go_on(again)
            report["after"] = answers(again)
    (folder / f"{name}.json").write_text(written(report) + "\n")
    print(
        f"{name}: {(folder / f'{name}.tar.xz').stat().st_size:,} bytes packed, empty databases: {report['empty'] or 'none'}"
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent)

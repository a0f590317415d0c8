"""Published windows: another engine reads exactly the live rows of one slide, at every version, whatever happened."""

import datetime as dt
import errno
import json
import random
import shutil
import signal
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import published_warehouse
import windrow
from faulty_disks import join_child, start_child
from windrow.files import PUBLICATION_CRASH_POINTS, FileSystem

deltalake = pytest.importorskip("deltalake", reason="deltalake, which reads the tables here, is not installed")

NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("k", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("exp", pa.timestamp("us", "UTC")),
    ]
)
MINUTE = dt.timedelta(minutes=1)


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return int(self.now.timestamp() * 1_000_000)


def make_rows(noise: random.Random, minute: int, count: int) -> list[dict[str, object]]:
    """Rows of about one minute, some late, some ahead of the clock, each with a lifetime of its own."""
    rows = []
    for _ in range(count):
        ts = NOON + dt.timedelta(minutes=minute, seconds=noise.uniform(-150, 70))
        life = dt.timedelta(seconds=noise.uniform(1, 600))
        price = None if noise.random() < 0.1 else Decimal(noise.randrange(10**6)) / 100
        rows.append(
            {
                "ts": ts.replace(microsecond=ts.microsecond // 10 * 10),
                "k": noise.randrange(40),
                "name": noise.choice(["ä", "b", "", None]),
                "price": price,
                "exp": ts.replace(microsecond=ts.microsecond // 10 * 10) + life,
            }
        )
    return rows


def read_table(path: Path, version: int | None = None) -> list[tuple[object, ...]]:
    """All rows of a Delta table, as another engine reads them."""
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path, version=version))
    return sort_rows(pa.table(builder.execute("SELECT ts, k, name, price, exp FROM t").read_all()).to_pylist())


def sort_rows(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """Rows in an order that does not depend on who gave them."""
    return sorted((tuple(row[name] for name in SCHEMA.names) for row in rows), key=repr)


def live(rows: list[dict[str, object]], now: dt.datetime) -> list[tuple[object, ...]]:
    """The rows of the window by its definition."""
    return sort_rows([row for row in rows if row["ts"] <= now < row["exp"]])


@pytest.mark.parametrize(("seed", "maintenance"), [(1, "adaptive"), (2, "rebuild"), (3, "norebuild")])
def test_every_version_is_one_slides_window(tmp_path, seed, maintenance):
    """Slides, late rows, a relayout and checkpoints; older versions stay readable as long as they are held."""
    print("seed", seed)
    noise, clock, accepted = random.Random(seed), Clock(), []
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        index = windrow.Index("round-robin", 2, 3, maintenance=maintenance)
        wh.create_stream(
            "s", SCHEMA, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="1 hour", index=index
        )
        published = wh.publish("s", every="1 second", hold="4 minutes")
        assert (published.version, read_table(published.path)) == (0, [])
        states = {}
        for minute in range(1, 25):
            rows = make_rows(noise, minute, noise.randrange(60))
            dead_before = wh.now("s") or NOON - MINUTE
            accepted += [row for row in rows if row["exp"] > dead_before]
            wh.append("s", pa.Table.from_pylist(rows, SCHEMA))
            clock.now = NOON + minute * MINUTE + dt.timedelta(seconds=1)
            if minute == 12:
                wh.relayout("s", windrow.Index("round-robin", 3, 2), move="now")
            assert wh.slide("s", to=NOON + minute * MINUTE).publish_problem is None
            (published,) = wh.publications()
            assert published.now == wh.now("s")
            states[published.version] = (clock.now, live(accepted, published.now))
            for version, (seen, expected) in states.items():
                if clock.now - seen <= 4 * MINUTE and (version == published.version or minute % 4 == 0):
                    assert read_table(published.path, version) == expected, version
            wh.gc()
        assert wh.check().ok
        names = {path.name for path in (published.path / "_delta_log").iterdir()}
        assert f"{20:020d}.checkpoint.parquet" in names and f"{0:020d}.json" not in names
        wh.unpublish("s")
        assert wh.publications() == [] and not (published.path / "_delta_log").exists()
        assert sort_rows(wh.scan("s").read_all().to_pylist()) == live(accepted, published.now)


def test_nothing_is_copied_and_unchanged_files_are_not_named_again(tmp_path):
    clock = Clock()
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        wh.publish("s", every="1 second")
        for minute in range(1, 4):
            row = {"ts": NOON + minute * MINUTE, "k": minute, "name": "n", "price": None, "exp": None}
            wh.append("s", pa.Table.from_pylist([row], SCHEMA))
            clock.now += MINUTE
            wh.slide("s", to=NOON + minute * MINUTE)
        log = tmp_path / "w/streams/s/_delta_log"
        actions = [json.loads(line) for line in (log / f"{3:020d}.json").read_text().splitlines()]
        assert sorted(name for action in actions for name in action) == ["add", "commitInfo"]
        assert (tmp_path / "w/streams/s" / actions[1]["add"]["path"]).is_file()


def test_at_most_one_version_in_an_interval(tmp_path):
    clock = Clock()
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        wh.publish("s", every="5 minutes")
        versions = []
        for minute in range(1, 12):
            clock.now = NOON + minute * MINUTE
            row = {"ts": NOON + minute * MINUTE, "k": minute, "name": "n", "price": None, "exp": None}
            wh.append("s", pa.Table.from_pylist([row], SCHEMA))
            wh.slide("s", to=NOON + minute * MINUTE)
            versions.append(wh.publications()[0].version)
        assert versions == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2]


def make_plain_rows(count: int) -> pa.Table:
    """Rows of the first seconds after noon."""
    row = {"name": "n", "price": None, "exp": None}
    return pa.Table.from_pylist([{"ts": NOON + dt.timedelta(seconds=n), "k": n, **row} for n in range(count)], SCHEMA)


def ask(path: Path, statement: str) -> list[dict[str, object]]:
    """What another engine answers over the table `t`."""
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    return pa.table(builder.execute(statement).read_all()).to_pylist()


def test_a_view_is_published_when_its_stream_slides(tmp_path):
    clock = Clock()
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        wh.create_view("odd", "SELECT ts AS at, k FROM s WHERE k % 2 = 1")
        published = wh.publish("odd", every="1 second")
        wh.append("s", make_plain_rows(9))
        clock.now += MINUTE
        commit = wh.sql("SELECT 1 FROM s").version
        wh.slide("s", to=NOON + MINUTE)
        assert wh.sql("SELECT 1 FROM s").version == commit + 1, "its version is part of the slide"
        assert ask(published.path, "SELECT k FROM t ORDER BY k") == [{"k": k} for k in (1, 3, 5, 7)]


def test_views_whose_rows_end_early_are_published_as_they_are_scanned(tmp_path):
    """Partners come and go, so rows of an outer join and of an anti join end before the expiry in their files."""
    noise, clock = random.Random(4), Clock()
    statements = {
        "outer": "SELECT a.k, a.name, b.name AS other FROM a LEFT JOIN b ON a.k = b.k",
        "alone": "SELECT a.k, a.name FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
        "counts": "SELECT k, count(*) AS n FROM a [WINDOW 3 MINUTES] GROUP BY k",
    }
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        for stream in "ab":
            wh.create_stream(stream, SCHEMA, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="1 hour")
        for number, statement in enumerate(statements.values()):
            wh.create_view(f"view{number}", statement)
            wh.publish(f"view{number}", every="1 second", hold="1 hour")
        for minute in range(1, 9):
            clock.now = NOON + minute * MINUTE + dt.timedelta(seconds=1)
            for stream in "ab" if minute % 3 else "a":
                rows = [{**row, "k": noise.randrange(5)} for row in make_rows(noise, minute, noise.randrange(9))]
                wh.append(stream, pa.Table.from_pylist(rows, SCHEMA))
                assert wh.slide(stream, to=NOON + minute * MINUTE).publish_problem is None
            if minute == 5:
                wh.erase("b", where="k % 3 = 0")
            for published in wh.publications():
                names = wh.stream(published.stream).definition.schema.names
                shown = ask(published.path, f"SELECT {', '.join(names)} FROM t")
                scanned = wh.scan(published.stream).read_all().select(names).to_pylist()
                assert sorted(map(str, shown)) == sorted(map(str, scanned)), (minute, published.stream)
                assert published.now == wh.now(published.stream)
        assert wh.check().ok


def test_a_column_that_is_added_is_null_in_older_files(tmp_path):
    clock = Clock()
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        published = wh.publish("s", every="1 second")
        wh.append("s", make_plain_rows(9))
        wh.slide("s", to=NOON + MINUTE)
        wh.alter_stream("s", add_column=("extra", pa.int32()))
        wh.append("s", make_plain_rows(1).append_column("extra", pa.array([7], pa.int32())))
        clock.now += 2 * MINUTE
        wh.slide("s", to=NOON + 2 * MINUTE)
        counts = ask(published.path, "SELECT extra, count(*) AS n FROM t GROUP BY extra ORDER BY extra")
        assert counts == [{"extra": 7, "n": 1}, {"extra": None, "n": 9}]


def test_a_column_that_became_wider_is_so_in_older_files(tmp_path):
    clock = Clock()
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        narrow = SCHEMA.set(SCHEMA.get_field_index("price"), pa.field("price", pa.decimal128(4, 1)))
        wh.create_stream("s", narrow, time="ts", key="k", slide="1 minute", lifetime="10 minutes")
        published = wh.publish("s", every="1 second")
        prices = []
        for minute, price in ((1, Decimal("999.9")), (2, Decimal("1234567.89"))):
            rows = make_plain_rows(1).drop_columns("price")
            schema = narrow if minute == 1 else SCHEMA
            rows = rows.append_column("price", pa.array([price], schema.field("price").type)).select(schema.names)
            wh.append("s", rows, evolve="widen")
            clock.now += MINUTE
            wh.slide("s", to=NOON + minute * MINUTE)
            prices.append({"price": price})
            assert ask(published.path, "SELECT price FROM t ORDER BY price") == prices


def test_vectors_of_many_rows(tmp_path):
    """A file of more than two blocks of a bitmap, with few, many and no dead rows in them."""
    count, clock = 150_000, Clock()
    with windrow.open(tmp_path / "w", clock=clock) as wh:
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", expires="exp", max_lifetime="1 hour")
        published = wh.publish("s", every="1 second")
        lives = [n % 3 + 1 if n < 66_000 else 1 if n % 5_000 == 0 else 9 for n in range(count)]
        columns = {
            "ts": pa.array([NOON] * count, SCHEMA.field("ts").type),
            "k": pa.array(range(count)),
            "name": pa.nulls(count, pa.string()),
            "price": pa.nulls(count, pa.decimal128(9, 2)),
            "exp": pa.array([NOON + life * MINUTE for life in lives], SCHEMA.field("exp").type),
        }
        wh.append("s", pa.table(columns, SCHEMA))
        for minute in range(4):
            clock.now += MINUTE
            wh.slide("s", to=NOON + minute * MINUTE)
            keys = [key for key, life in enumerate(lives) if life > minute]
            (seen,) = ask(published.path, "SELECT count(*) AS n, sum(k) AS total, min(k) AS low, max(k) AS high FROM t")
            assert seen == {"n": len(keys), "total": sum(keys), "low": min(keys), "high": max(keys)}


@pytest.mark.parametrize("step", PUBLICATION_CRASH_POINTS)
def test_a_kill_leaves_the_version_before_or_the_next(tmp_path, step):
    """One process is killed at the named step; the next slide goes on, each version exactly once."""
    path = tmp_path / "w"
    published_warehouse.make_published(str(path))
    child = start_child(published_warehouse.slide_published_until_step, str(path), step)
    assert join_child(child) == -signal.SIGKILL
    with published_warehouse.open_published(str(path)) as wh:
        rows, now = wh.scan("s").read_all().to_pylist(), wh.now("s")
        wh.publish("s", every="1 second")
        (published,) = wh.publications()
        assert published.now == now
        assert read_table(published.path) == sort_rows(rows)
        log = published.path / "_delta_log"
        versions = sorted(int(file.stem) for file in log.glob("*.json"))
        assert versions == list(range(versions[0], published.version + 1))
        assert wh.check().ok


@pytest.mark.parametrize("step", ["publish.staged", "publish.committed"])
def test_opening_names_the_version_that_a_killed_slide_recorded(tmp_path, step):
    path = tmp_path / "w"
    published_warehouse.make_published(str(path), slides=4)
    child = start_child(published_warehouse.slide_published_until_step, str(path), step)
    assert join_child(child) == -signal.SIGKILL
    with published_warehouse.open_published(str(path)) as wh:
        (published,) = wh.publications()
        assert published.now == wh.now("s")
        assert read_table(published.path) == sort_rows(wh.scan("s").read_all().to_pylist())
        assert step == "publish.staged" or published.version == 5


def test_names_that_a_power_failure_took_come_back_with_what_they_said(tmp_path):
    """Nothing waits for the folder: until a checkpoint has, the catalog knows what the versions since the last say."""
    path = tmp_path / "w"
    published_warehouse.make_published(str(path), slides=14)
    log = path / "streams/s/_delta_log"
    lost = {log / f"{version:020d}.json": b"" for version in (12, 13, 14)}
    for file in lost:
        lost[file] = file.read_bytes()
        file.unlink()
    with published_warehouse.open_published(str(path)) as wh:
        assert {file: file.read_bytes() for file in lost} == lost
        published_warehouse.slide_published(wh)
        (published,) = wh.publications()
        assert published.version == 15
        assert read_table(published.path) == sort_rows(wh.scan("s").read_all().to_pylist())


def test_a_version_that_an_earlier_release_left_without_a_name_gets_it(tmp_path):
    """It recorded the hidden name of the file and not what the file says."""
    path = tmp_path / "w"
    published_warehouse.make_published(str(path), slides=4)
    log = path / "streams/s/_delta_log"
    table, file, hidden = deltalake.DeltaTable(log.parent).metadata().id, log / f"{4:020d}.json", ".staged"
    with published_warehouse.open_published(str(path)) as wh, wh._store.catalog.write() as tables:
        ((key, entry),) = tables.items("publications")
        assert entry.version == 4
        tables.put("publications", key, msgspec.structs.replace(entry, pending=hidden))
        tables.delete_prefix("published_versions", key)
    content = file.read_bytes()
    file.rename(log / hidden)
    with published_warehouse.open_published(str(path)) as wh:
        assert file.read_bytes() == content
        assert deltalake.DeltaTable(log.parent).metadata().id == table, "the table goes on"
        published_warehouse.slide_published(wh)
        (published,) = wh.publications()
        assert published.version == 5
        assert read_table(published.path) == sort_rows(wh.scan("s").read_all().to_pylist())


class NoNames(FileSystem):
    """A disk that names no file of a published log, for as long as it is told so."""

    fails = False

    def rename(self, source: Path, target: Path) -> None:
        if self.fails and target.suffix == ".json":
            raise OSError(errno.EIO, "the disk has failed")
        super().rename(source, target)


def test_a_slide_is_made_even_if_its_version_cannot_be_named(tmp_path):
    disk = NoNames()
    published_warehouse.make_published(str(tmp_path / "w"), slides=2, hold="1 hour")
    with published_warehouse.open_published(str(tmp_path / "w"), disk) as wh:
        (before,) = wh.publications()
        rows = read_table(before.path)
        disk.fails = True
        for _ in range(3):
            report = published_warehouse.slide_published(wh)
            assert report.moved and "the disk has failed" in report.publish_problem
            assert read_table(before.path) == rows, "other engines still see the version before, whole"
        disk.fails = False
        assert published_warehouse.slide_published(wh).publish_problem is None
        (published,) = wh.publications()
        assert published.now == wh.now("s")
        assert read_table(published.path) == sort_rows(wh.scan("s").read_all().to_pylist())
        versions = sorted(int(file.stem) for file in (published.path / "_delta_log").glob("*.json"))
        assert versions == list(range(published.version + 1))


def test_a_version_is_recorded_in_the_commit_of_its_slide(tmp_path):
    published_warehouse.make_published(str(tmp_path / "w"), slides=2)
    with published_warehouse.open_published(str(tmp_path / "w")) as wh:
        for minute in range(3):
            wh.append("s", published_warehouse.make_minute(5, minute + 2))
            commit = wh.sql("SELECT 1 FROM s LIMIT 1").version
            slid = wh.slide("s", to=wh.now("s") + MINUTE)
            assert slid.moved and slid.publish_problem is None
            assert wh.sql("SELECT 1 FROM s LIMIT 1").version == commit + 1
            assert wh.publications()[0].version == minute + 3


def test_a_lost_log_is_begun_anew(tmp_path):
    path = tmp_path / "w"
    published_warehouse.make_published(str(path))
    shutil.rmtree(path / "streams/s/_delta_log")
    with published_warehouse.open_published(str(path)) as wh:
        published = wh.publish("s")
        assert published.version == 0
        assert read_table(published.path) == sort_rows(wh.scan("s").read_all().to_pylist())
        wh.drop_stream("s")
        assert not (path / "streams/s/_delta_log").exists()


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (pa.field("t", pa.time64("us")), "no type for time64"),
        (pa.field("n", pa.uint8()), "no type for uint8"),
        (pa.field("a b", pa.int64()), "allows no space"),
    ],
)
def test_what_delta_has_not_is_refused(tmp_path, field, words):
    with windrow.open(tmp_path / "w") as wh:
        wh.create_stream("s", SCHEMA.append(field), time="ts", key="k", slide="1 minute", lifetime="1 hour")
        with pytest.raises(windrow.DefinitionError, match=words):
            wh.publish("s")
        with pytest.raises(windrow.DefinitionError, match="not one of delta"):
            wh.publish("s", "iceberg")
        with pytest.raises(windrow.DefinitionError, match="is not published"):
            wh.unpublish("s")
        assert wh.publications() == []


def test_somebody_elses_version_is_not_overwritten(tmp_path):
    path = tmp_path / "w"
    published_warehouse.make_published(str(path))
    with published_warehouse.open_published(str(path)) as wh:
        (published,) = wh.publications()
        foreign = published.path / "_delta_log" / f"{published.version + 1:020d}.json"
        foreign.write_text("{}")
        report = published_warehouse.slide_published(wh)
        assert report.moved and "written by somebody else" in report.publish_problem
        assert foreign.read_text() == "{}"

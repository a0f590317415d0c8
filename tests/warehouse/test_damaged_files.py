"""Any bit of any file flipped, files cut, swapped, replaced or lost: an answer is right, or there is an error of ours.

All ways to read are tried on a handle of its own, so that each is the first to open the file. Rows come from plain
Python, and never from the warehouse.
"""

import contextlib
import datetime as dt
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import lmdb
import pyarrow as pa
import pytest

import windrow
from windrow.catalog.environment import DATABASES

SEED = int(os.environ.get("SEED", "20261118"))
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
CLOCK = 1_767_268_800_000_000 + 3_600_000_000
STAMP = pa.timestamp("us", "UTC")
PLAIN = pa.schema([("ts", STAMP), ("k", pa.int64()), ("amount", pa.float64()), ("note", pa.string())])
MIXED = pa.schema([("ts", STAMP), ("k", pa.int64()), ("tags", pa.list_(pa.int16())), ("kind", pa.string())])
NAMES = [(k, f"name {k}") for k in range(5)]
Row = tuple[Any, ...]
State = dict[str, Any]


def minute(number: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=number)


def plain_rows(slot: int) -> list[Row]:
    return [(minute(slot - i / 60), i % 5, 100.0 * slot + i, f"{slot}-{i}" if i % 7 else None) for i in range(40)]


def mixed_rows(slot: int) -> list[Row]:
    return [(minute(slot - i / 60), i % 3, list(range(i % 4)), "red" if i % 2 else "blue") for i in range(30)]


ROWS = {
    "plain": [row for slot in (1, 2, 3) for row in plain_rows(slot)],
    "mixed": [row for slot in (1, 2, 3) for row in mixed_rows(slot)],
}


def make(path: Path) -> None:
    """Streams of our own writer and of pyarrow's, a column that older files lack, a table and stored results."""
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        for name, schema in (("plain", PLAIN), ("mixed", MIXED)):
            wh.create_stream(name, schema, time="ts", key="k", slide="1 minute", lifetime="60 minutes")
        wh.put_table("names", pa.table({"k": [k for k, _ in NAMES], "name": [name for _, name in NAMES]}))
        wh.add_query("sums", "SELECT sum(amount) AS s FROM plain [WINDOW 1 MINUTE SLIDE 1 MINUTE]", missed="every")
        for slot in (1, 2, 3):
            wh.append("plain", pa.table(list(zip(*plain_rows(slot), strict=True)), schema=PLAIN))
            wh.append("mixed", pa.table(list(zip(*mixed_rows(slot), strict=True)), schema=MIXED))
            wh.slide("plain", to=minute(slot))
            wh.slide("mixed", to=minute(slot))
            if slot == 2:
                wh.alter_stream("plain", add_column=("later", pa.int32()))
            wh.run_due()


def ordered(rows: Any) -> list[Row]:
    return sorted((tuple(row) for row in rows), key=repr)


def table_rows(table: pa.Table) -> list[Row]:
    return ordered(zip(*table.to_pydict().values(), strict=True)) if table.num_rows else []


def expected() -> State:
    plain = [(*row, None) for row in ROWS["plain"]]
    sums = [(sum(row[2] for row in plain_rows(slot)),) for slot in (1, 2, 3)]
    whole = {"plain": ordered(plain), "mixed": ordered(ROWS["mixed"])}
    totals = {"plain": [(120, sum(row[2] for row in plain), sum(row[3] is not None for row in plain))]}
    joined = ordered((name, sum(row[1] == k for row in plain)) for k, name in NAMES)
    return {
        "scan plain": whole["plain"], "scan mixed": whole["mixed"], "probe plain": ordered(r for r in plain if r[1] == 2),
        "probe mixed": ordered(r for r in ROWS["mixed"] if r[1] == 2), "sql": totals["plain"], "files": totals["plain"],
        "files mixed": whole["mixed"], "last": ordered(sorted(plain)[-5:]), "join": joined, "own": totals["plain"],
        "own mixed": whole["mixed"], "own names": ordered(NAMES), "results": ordered(sums), "window": [(40,)],
    }  # fmt: skip


def ways(path: Path) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
    """Every way to read, each on a new handle."""
    totals = "SELECT count(*), sum(amount), count(note) FROM plain"

    def on(act: Callable[[windrow.Warehouse], list[Row]], **options: Any) -> Callable[[], list[Row]]:
        def run() -> list[Row]:
            with windrow.open(path, clock=lambda: CLOCK, **options) as wh:
                return act(wh)

        return run

    def sql(text: str) -> Callable[[windrow.Warehouse], list[Row]]:
        return lambda wh: ordered(wh.sql(text).fetchall())

    def own(text: str) -> Callable[[windrow.Warehouse], list[Row]]:
        def act(wh: windrow.Warehouse) -> list[Row]:
            with wh.snapshot() as snapshot, snapshot.duckdb() as connection:
                return ordered(connection.execute(text).fetchall())

        return act

    for name in ("plain", "mixed"):
        yield f"scan {name}", on(lambda wh, name=name: table_rows(wh.scan(name).read_all()))
        yield f"probe {name}", on(lambda wh, name=name: table_rows(wh.probe(name, key=2)))
    yield "sql", on(sql(totals))
    yield "window", on(sql("SELECT count(*) FROM plain [WINDOW 1 MINUTE]"), cache_bytes=0)
    yield "files", on(sql(totals), cache_bytes=0)
    yield "files mixed", on(sql("SELECT * FROM mixed"), cache_bytes=0)
    yield "last", on(sql("SELECT * FROM plain [ROWS 5]"))
    yield "join", on(sql("SELECT name, count(*) FROM plain JOIN names USING (k) GROUP BY name"), cache_bytes=0)
    yield "own", on(own(totals))
    yield "own mixed", on(own("SELECT * FROM mixed"))
    yield "own names", on(own("SELECT * FROM names"))
    yield "results", on(sql("SELECT s FROM sums"))


READING = {
    "plain": ("scan plain", "probe plain", "sql", "window", "files", "last", "own"),
    "mixed": ("scan mixed", "probe mixed", "files mixed", "own mixed"),
    "tables": ("join", "own names"),
}
"""The ways that read each kind of file."""


def assert_right_or_told(path: Path, truth: State, what: str, kind: str = "", *, told: bool = False) -> None:
    """Each way answers what is true, or says that something is damaged; with `told`, at least one says so."""
    errors = 0
    for name, read in ways(path):
        if kind and name not in READING[kind]:
            continue
        try:
            rows = read()
        except (windrow.WindrowError, duckdb.Error) as error:
            if not isinstance(error, windrow.WindrowError) and not name.startswith("own"):
                raise AssertionError(f"{what}: {name}: {error!r}") from error
            errors += 1
        else:
            assert rows == truth[name], f"{what}: {name}"
    assert errors or not told, f"{what}: nobody said that it is damaged"


@pytest.fixture(scope="module")
def truth() -> State:
    return expected()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "warehouse"
    make(path)
    return path


@contextlib.contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """A file with another content, for a while."""
    sound = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(sound)


def data_files(path: Path) -> dict[str, list[Path]]:
    return {
        kind: sorted(path.glob(pattern))
        for kind, pattern in (
            ("plain", "streams/plain/segments/*"), ("mixed", "streams/mixed/segments/*"), ("tables", "tables/*/*"),
        )
    }  # fmt: skip


def test_what_is_sound_is_answered_by_every_way(made: Path, truth: State) -> None:
    assert {name: read() for name, read in ways(made)} == truth


def flip(content: bytes, bit: int) -> bytes:
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def flip_bits(made: Path, truth: State, kind: str, bits: int) -> None:
    chance = random.Random(f"{SEED} {kind}")
    files = data_files(made)[kind]
    assert files
    for _ in range(bits):
        file = chance.choice(files)
        content = file.read_bytes()
        footer = 8 + int.from_bytes(content[-8:-4], "little")
        low = 0 if chance.random() < 0.5 else len(content) - footer  # half of them in the footer
        bit = chance.randrange(low * 8, len(content) * 8)
        with changed(file, flip(content, bit)):
            assert_right_or_told(made, truth, f"seed {SEED}: bit {bit} of {file.relative_to(made)}", kind)


@pytest.mark.parametrize("kind", ["plain", "mixed", "tables"])
def test_a_flipped_bit_is_never_an_answer(made: Path, truth: State, kind: str) -> None:
    flip_bits(made, truth, kind, 3)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["plain", "mixed", "tables"])
def test_no_flipped_bit_at_all_is_an_answer(made: Path, truth: State, kind: str) -> None:
    for file in data_files(made)[kind][:1]:
        content = file.read_bytes()
        for bit in range(len(content) * 8):
            with changed(file, flip(content, bit)):
                assert_right_or_told(made, truth, f"bit {bit} of {file.relative_to(made)}", kind)


def test_a_flipped_bit_in_a_footer_is_told_and_a_merge_does_not_make_it_permanent(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    victim = data_files(path)["plain"][1]
    content = victim.read_bytes()
    position = content.index(b"amount", len(content) - 8 - int.from_bytes(content[-8:-4], "little"))
    victim.write_bytes(flip(content, position * 8))
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        for read in (lambda: wh.sql("SELECT sum(amount) FROM plain").fetchall(), lambda: wh.scan("plain").read_all()):
            with pytest.raises(windrow.DamageError, match=rf"{victim.name} of stream 'plain' is damaged \(its footer"):
                read()
        with pytest.raises(windrow.DamageError, match=victim.name):
            wh.relayout("plain", key=["k", "ts"], move="now")
        assert wh.check().problems


@pytest.mark.parametrize("other", ["the same stream", "another stream", "an older version", "a device", "a pipe"])
def test_a_file_in_the_place_of_another_is_told(made: Path, truth: State, tmp_path: Path, other: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    files = data_files(path)
    victim = files["plain"][0]
    if other == "the same stream":
        content = victim.read_bytes()
        victim.write_bytes(files["plain"][1].read_bytes())
        files["plain"][1].write_bytes(content)
    elif other == "another stream":
        victim.write_bytes(files["mixed"][0].read_bytes())
    elif other == "an older version":
        rows = [(ts, k, amount + 1, note) for ts, k, amount, note in plain_rows(1)]
        make_like(tmp_path / "other", rows)
        victim.write_bytes(next((tmp_path / "other").glob("streams/plain/segments/*")).read_bytes())
    else:
        victim.unlink()
        os.symlink("/dev/zero", victim) if other == "a device" else os.mkfifo(victim)
    assert_right_or_told(path, truth, other, "plain", told=True)
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        assert any(victim.name in problem for problem in wh.check().problems)


def make_like(path: Path, rows: list[Row]) -> None:
    """A warehouse whose first file has the same size and footer as that of `make`, and other values."""
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        wh.create_stream("plain", PLAIN, time="ts", key="k", slide="1 minute", lifetime="60 minutes")
        wh.append("plain", pa.table(list(zip(*rows, strict=True)), schema=PLAIN))


@pytest.mark.parametrize("kind", ["plain", "mixed", "tables"])
@pytest.mark.parametrize("kept", [0.3, 0.999])
def test_a_file_that_was_cut_off_is_told(made: Path, truth: State, kind: str, kept: float) -> None:
    file = data_files(made)[kind][0]
    with changed(file, file.read_bytes()[: int(file.stat().st_size * kept)]):
        assert_right_or_told(made, truth, f"{kept:.0%} of {file.name}", kind, told=True)


@pytest.mark.parametrize("kind", ["plain", "mixed", "tables"])
def test_a_missing_file_is_told_with_its_name_and_whose_it_is(made: Path, truth: State, kind: str) -> None:
    file = data_files(made)[kind][0]
    hidden = file.rename(file.with_suffix(".away"))
    try:
        assert_right_or_told(made, truth, f"without {file.name}", kind, told=True)
        owner = "table 'names'" if kind == "tables" else f"stream '{kind}'"
        with (
            windrow.open(made, clock=lambda: CLOCK, cache_bytes=0) as wh,
            pytest.raises(windrow.DamageError, match=f"{file.name} of {owner} is missing"),
        ):
            wh.sql(f"SELECT k FROM {'names' if kind == 'tables' else kind}").fetchall()
    finally:
        hidden.rename(file)


def test_a_file_that_goes_after_it_was_read_is_told(made: Path) -> None:
    file = data_files(made)["plain"][0]
    with windrow.open(made, clock=lambda: CLOCK, cache_bytes=0) as wh:
        wh.sql("SELECT sum(amount) FROM plain").fetchall()
        hidden = file.rename(file.with_suffix(".away"))
        try:
            with pytest.raises(windrow.DamageError, match=f"{file.name} is missing"):
                wh.sql("SELECT sum(amount) FROM plain").fetchall()
        finally:
            hidden.rename(file)


def test_files_that_shrink_while_they_are_mapped_are_an_error_and_no_signal(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        assert wh.probe("plain", key=1).num_rows == 24
        wh.scan("mixed").read_all()
        for file in (*data_files(path)["plain"], *data_files(path)["mixed"]):
            os.truncate(file, 100)
        for read in (
            lambda: wh.probe("plain", key=2),
            lambda: wh.scan("plain").read_all(),
            lambda: wh.scan("mixed").read_all(),
            lambda: wh.sql("SELECT sum(amount) FROM plain").fetchall(),
        ):
            with pytest.raises(windrow.DamageError, match=r"is damaged|became shorter"):
                read()


# -- the catalog -------------------------------------------------------------------------------------------------------

READ_ALL = """
import pickle, sys
sys.path[:0] = [{tests!r}, {tests!r} + "/warehouse"]
import duckdb, windrow
import test_damaged_files as damage
from pathlib import Path
path, truth = Path({path!r}), damage.expected()
data = path / "catalog" / "data.mdb"
for line in sys.stdin:
    bit = int(line)
    content = data.read_bytes()
    data.write_bytes(damage.flip(content, bit))
    try:
        damage.assert_right_or_told(path, truth, f"bit {{bit}} of the catalog")
        print("fine", flush=True)
    except AssertionError as error:
        print("WRONG", damage.told_by_check(path), str(error).splitlines()[0], flush=True)
    finally:
        data.write_bytes(content)
"""


def record_places(path: Path) -> list[tuple[str, int, int]]:
    """Where the values of the catalog's records lie in its file: database, first byte, length."""
    data = (path / "catalog" / "data.mdb").read_bytes()
    places = []
    with lmdb.open(str(path / "catalog"), max_dbs=64, readonly=True, lock=False) as env:
        for name in DATABASES:
            database = env.open_db(name.encode(), create=False)
            with env.begin(db=database) as txn:
                for key, value in txn.cursor():
                    position = data.find(key + value)
                    if position >= 0:
                        places.append((name, position, len(key) + len(value)))
    return places


ENDED_BY = (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT)
"""How LMDB may end a process over a damaged page; nobody can catch that."""


def told_by_check(path: Path) -> str:
    """Whether `check` says that something is wrong, in words."""
    try:
        with windrow.open(path, clock=lambda: CLOCK, read_only=True) as wh:
            return "but check tells" if wh.check().problems else "and check is content"
    except windrow.WindrowError:
        return "but check tells"


def page_places(path: Path) -> list[int]:
    """The bytes by which LMDB finds records: headers of pages, places of records in them, lengths, and its first pages."""
    content = (path / "catalog" / "data.mdb").read_bytes()
    size = 4096
    places = [page * size + byte for page in (0, 1) for byte in range(16, 16 + 136)]
    for start in range(2 * size, len(content), size):
        number, _, flags, lower, _ = struct.unpack_from("<QHHHH", content, start)
        if number * size == start and flags & 3:  # branches and leaves
            places += range(start, start + lower)
            for (record,) in struct.iter_unpack("<H", content[start + 16 : start + lower]):
                places += range(start + record, start + record + 8)
    return places


def flip_in_pages(made: Path, tmp_path: Path, bits: int) -> None:
    """As `flip_in_records`; but nobody can compare pages before LMDB follows them, so a process may end by a signal, and
    a record of a kind that is not counted, as a delivered run, may be hidden: then `check` says so.
    """
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    with windrow.open(path, clock=lambda: CLOCK):
        pass
    chance, places = random.Random(SEED), page_places(path)
    chosen = [chance.choice(places) * 8 + chance.randrange(8) for _ in range(bits)]
    ended = hidden = 0
    while chosen:
        done = read_with_flips(path, chosen)
        wrong = [line for line in done.stdout.splitlines() if line != "fine"]
        assert all(line.startswith("WRONG but check tells") for line in wrong), f"seed {SEED}: {wrong}"
        assert not any("scan" in line or "probe" in line or "sql" in line for line in wrong), f"seed {SEED}: {wrong}"
        hidden += len(wrong)
        finished = len(done.stdout.splitlines())
        assert done.returncode in (0, *(-number for number in ENDED_BY)), (
            f"bit {chosen[finished]}: {done.stderr[-2000:]}"
        )
        ended += done.returncode < 0
        chosen = chosen[finished + 1 :]
        shutil.copy(made / "catalog" / "data.mdb", path / "catalog" / "data.mdb")
    print(f"{bits} bits: {ended} of them ended the process, {hidden} hid a record")


def flip_in_records(made: Path, tmp_path: Path, bits: int) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    with windrow.open(path, clock=lambda: CLOCK):
        pass  # what an open does is done
    places = record_places(path)
    chance = random.Random(SEED)
    chosen = []
    for _ in range(bits):
        _, position, length = chance.choice(places)
        chosen.append(position * 8 + chance.randrange(length * 8))
    done = read_with_flips(path, chosen)
    assert done.returncode == 0, f"seed {SEED}, bit {chosen[done.stdout.count('fine')]}: {done.stderr[-2000:]}"
    assert "WRONG" not in done.stdout, f"seed {SEED}: {done.stdout}"


def read_with_flips(path: Path, bits: list[int]) -> subprocess.CompletedProcess[str]:
    """Every way to read, in another process, with one bit of the catalog flipped after the other."""
    program = READ_ALL.format(tests=str(Path(__file__).parents[1]), path=str(path))
    return subprocess.run(
        [sys.executable, "-c", program], input="\n".join(map(str, bits)), text=True, capture_output=True, check=False
    )


def test_a_flipped_bit_in_a_record_of_the_catalog_is_never_an_answer(made: Path, tmp_path: Path) -> None:
    flip_in_records(made, tmp_path, 4)


@pytest.mark.soak
def test_a_thousand_flipped_bits_in_records_are_never_an_answer(made: Path, tmp_path: Path) -> None:
    flip_in_records(made, tmp_path, 1000)


@pytest.mark.soak
def test_a_thousand_flipped_bits_in_pages_hide_no_rows_of_streams(made: Path, tmp_path: Path) -> None:
    flip_in_pages(made, tmp_path, 1000)


def test_a_catalog_that_hides_its_last_commit_is_refused(made: Path, tmp_path: Path) -> None:
    """LMDB takes the first page with the higher number; a flipped bit of it would bring back the commit before.

    The two numbers follow on each other, so any other bit than that worth 2 shows.
    """
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    data = path / "catalog" / "data.mdb"
    content = data.read_bytes()
    for byte in (*range(16 + 128, 16 + 136), *range(4096 + 16 + 128, 4096 + 16 + 136)):
        for bit in set(range(8)) - ({1} if byte in (144, 4096 + 144) else set()):
            data.write_bytes(flip(content, byte * 8 + bit))
            with pytest.raises(windrow.FormatError, match=r"damaged: its two last commits"):
                windrow.open(path, clock=lambda: CLOCK)


@pytest.mark.parametrize("name", ["segments", "gaps"])
def test_a_lost_database_of_the_catalog_is_told_and_not_made_anew(made: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    with lmdb.open(str(path / "catalog"), max_dbs=64) as env:
        database = env.open_db(name.encode(), create=False)
        with env.begin(write=True) as txn:
            txn.drop(database)
    for options in ({}, {"read_only": True}):
        with pytest.raises(windrow.FormatError, match=r"damaged .*cannot be found|damaged .*NOTFOUND"):
            windrow.open(path, clock=lambda: CLOCK, **options)


def test_a_lost_segment_record_is_told(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    with lmdb.open(str(path / "catalog"), max_dbs=64) as env:
        database = env.open_db(b"segments", create=False)
        with env.begin(write=True, db=database) as txn:
            key = next(iter(txn.cursor().iternext(values=False)))
            txn.delete(key)
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        with pytest.raises(windrow.FormatError, match=r"3 segments, 2 of them can be found"):
            wh.sql("SELECT count(*) FROM plain").fetchall()
        assert wh.sql("SELECT count(*) FROM mixed").fetchall() == [(90,)], "other streams are not concerned"
        wh.gc()
        assert len(data_files(path)["plain"]) == 3, "its file stays, for when the catalog is restored"
        assert any("should have 3 segments, 2 can be found" in problem for problem in wh.check().problems)


def test_a_catalog_that_was_cut_off_is_refused_and_kills_nobody(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    data = path / "catalog" / "data.mdb"
    size = data.stat().st_size
    for part in range(19, 0, -1):
        os.truncate(data, size * part // 20)
        with pytest.raises(windrow.FormatError, match=r"cut off|empty|not a catalog"):
            windrow.open(path, clock=lambda: CLOCK)


def test_a_pipe_in_the_place_of_the_catalog_is_refused(made: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(made, tmp_path / "copy"))
    (path / "catalog" / "data.mdb").unlink()
    os.mkfifo(path / "catalog" / "data.mdb")
    with pytest.raises(windrow.FormatError, match=r"is not a file|empty"):
        windrow.open(path, clock=lambda: CLOCK)

"""Orphans: marked first, removed an hour later, and left alone where the catalog may have lost their names.

found          an hour later
──●──────────────────●─────────
  marked             removed, unless a record names it by then
"""

import contextlib
import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pyarrow as pa
import pytest

import child_processes
import recorded_history
import windrow
from child_processes import PER_SLOT
from recorded_history import CLOCK
from windrow import files, orphans
from windrow.catalog.environment import Catalog
from windrow.errors import UnpinnedWarning

INDEX = windrow.Index("round-robin", 2, 2, maintenance="norebuild")
HOUR = 3600 * 1_000_000
SLOTS = [1, 2, 3]


@pytest.fixture
def filled(path: Path) -> Path:
    """A warehouse with a stream of three slots, a file each, and a table."""
    child_processes.create_numbered(str(path), INDEX)
    with recorded_history.open_warehouse(path) as wh:
        for slot in SLOTS:
            child_processes.slide_numbered(wh, slot)
        wh.put_table("hosts", pa.table({"version": [1]}))
    return path


def opened(path: Path, hours: float = 0, **options: object) -> windrow.Warehouse:
    return windrow.open(path, clock=lambda: CLOCK + int(hours * HOUR), **options)


def segments(path: Path) -> list[Path]:
    return sorted((path / "streams" / "s" / "segments").glob("*.parquet"))


def stray(path: Path, number: int = 1) -> Path:
    """A file that a dead writer left."""
    source = segments(path)[0]
    return Path(shutil.copy(source, source.with_name(f"1_2_3_0123456789ab-{number:06d}.parquet")))


def found(wh: windrow.Warehouse) -> list[int]:
    """The slot of each row."""
    return sorted(wh.scan("s").read_all().column("slot").to_pylist())


ALL = sorted(SLOTS * PER_SLOT)


# -- marks -------------------------------------------------------------------------------------------------------------


def test_an_orphan_is_marked_by_one_process_and_removed_an_hour_later_by_another(filled: Path) -> None:
    left = stray(filled)
    with opened(filled) as wh:
        assert left.exists(), "opening only marks it"
        report = wh.gc()
        assert (report.orphans, report.marked, report.refused) == (0, 1, "")
        checked = wh.check()
        assert checked.ok, "a marked orphan is no problem"
        assert checked.orphans == 1
    with opened(filled, 0.99) as wh:
        assert wh.gc().marked == 1
        assert left.exists()
    with opened(filled, 0.5) as early, opened(filled, 1) as wh:
        assert not left.exists(), "opening does what gc does"
        assert early.gc().marked == 0
        assert wh._store.catalog.read(orphans.marked_files) == {}
        assert found(wh) == ALL
        recorded_history.assert_sound(wh)


def test_a_file_that_gets_a_name_loses_its_mark(filled: Path) -> None:
    file = str(segments(filled)[0].relative_to(filled))
    with opened(filled) as wh:
        with wh._store.catalog.exclusive() as tables:
            tables.put("orphans", file.encode(), CLOCK - 9 * HOUR)
            tables.put("orphans", b"streams/s/segments/gone.parquet", CLOCK)
        assert wh.gc().marked == 0
        assert wh._store.catalog.read(orphans.marked_files) == {}
        assert found(wh) == ALL


def test_a_mark_of_a_clock_that_was_wrong_is_made_again(filled: Path) -> None:
    left = stray(filled)
    with opened(filled, 1000) as wh:
        assert wh.gc().marked == 1
    for hours, there in ((0, True), (0.9, True), (1.1, False)):
        with opened(filled, hours):
            assert left.exists() == there


def test_many_orphans_go_in_several_transactions(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_AT_ONCE", 3)
    for number in range(8):
        stray(filled, number)
    with opened(filled) as wh:
        assert wh.gc().marked == 8
    with opened(filled, 2, read_only=True) as wh:
        assert wh.check().orphans == 8
    with opened(filled) as late:
        late._store.clock = lambda: CLOCK + 2 * HOUR
        report = late.gc()
        assert (report.orphans, report.marked) == (8, 0)
        assert len(segments(filled)) == len(SLOTS)


def test_who_has_nothing_to_clear_does_not_wait_for_writers_and_commits_nothing(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    plain = Catalog.exclusive

    @contextlib.contextmanager
    def counted(self: Catalog) -> Iterator[object]:
        taken.append(self)
        with plain(self) as tables:
            yield tables

    with opened(filled) as wh:
        monkeypatch.setattr(Catalog, "exclusive", counted)
        before = wh._store.catalog.last_transaction(), wh.status().version
        with opened(filled) as other:
            other.gc()
        assert taken == []
        left = stray(filled)
        for _ in range(3):
            wh.gc()
        assert len(taken) == 1, "a mark that has time is left alone"
        left.unlink()
        wh.gc()
        after = wh._store.catalog.last_transaction()
        with wh._store.catalog.exclusive():
            pass
        assert wh._store.catalog.last_transaction() == after, "a look is no commit"
        assert wh.status().version == before[1], "and marks are no new version"


def test_a_commit_that_failed_late_keeps_its_files(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happened, and an ordinary read does not see it: only who takes the lock on writing does."""
    committed, read = Catalog.write, Catalog.read

    @contextlib.contextmanager
    def fail_late(self: Catalog) -> Iterator[object]:
        with committed(self) as tables:
            yield tables
        raise windrow.StorageError("the disk is gone")

    def read_stale(self: Catalog, fetch: Callable[[object], object]) -> object:
        return set() if fetch is orphans.named_files else read(self, fetch)

    with opened(filled) as wh:
        with monkeypatch.context() as patched, pytest.raises(windrow.StorageError, match="the disk is gone"):
            patched.setattr(Catalog, "write", fail_late)
            patched.setattr(Catalog, "read", read_stale)
            wh.append("s", child_processes.numbered_rows(4), batch_id="four")
        assert wh.append("s", child_processes.numbered_rows(4), batch_id="four").duplicate
        child_processes.slide_numbered(wh, 4)
        assert found(wh) == sorted([1, 2, 3, 4, 4] * PER_SLOT)
        recorded_history.assert_sound(wh)


def test_a_catalog_without_marks_can_be_read_where_nobody_may_write(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As warehouses were made before orphans were marked."""
    env = lmdb.open(str(filled / "catalog"), max_dbs=64, map_size=1 << 30)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(b"orphans", txn), delete=True)
        txn.delete(b"databases", db=env.open_db(b"meta", txn))  # nor did they say which they have
    env.close()
    left = stray(filled)
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        with pytest.warns(UnpinnedWarning):
            wh = opened(filled, read_only=True)
        with wh:
            assert found(wh) == ALL
            assert [left.name in problem for problem in wh.check().problems] == [True]
    with opened(filled) as wh:
        assert wh.gc().marked == 1


# -- catalogs that have lost something ---------------------------------------------------------------------------------


def empty_file(data: Path) -> None:
    data.write_bytes(b"")


def nothing_in_it(data: Path) -> None:
    shutil.rmtree(data.parent)
    data.parent.mkdir()
    lmdb.open(str(data.parent), max_dbs=64, map_size=1 << 30).close()


@pytest.mark.parametrize("marker", [True, False], ids=["marker", "no marker"])
@pytest.mark.parametrize("damage", [empty_file, nothing_in_it])
def test_an_empty_catalog_is_refused_and_the_rows_are_untouched(filled: Path, damage: object, marker: bool) -> None:
    data = filled / "catalog" / "data.mdb"
    kept = data.read_bytes()
    damage(data)  # type: ignore[operator]
    (marker_file := filled / "windrow.json").rename(filled / ".kept")
    if marker:
        (filled / ".kept").rename(marker_file)
    for hours in (0, 5, 10):
        for options in ({}, {"read_only": True}) if marker else ({},):
            with pytest.raises(windrow.FormatError, match=r"catalog in .* is empty; restore .* rows are untouched"):
                opened(filled, hours, **options)
    assert len(segments(filled)) == len(SLOTS)
    shutil.rmtree(data.parent)
    data.parent.mkdir()
    data.write_bytes(kept)
    with opened(filled) as wh:
        assert found(wh) == ALL
        recorded_history.assert_sound(wh)


def flip(path: Path, table: bytes, back: bool = False) -> None:
    """Flip one bit in the first key of a table of the catalog."""
    env = lmdb.open(str(path / "catalog"), max_dbs=64, map_size=1 << 30)
    db = env.open_db(table, create=False)
    with env.begin(write=True) as txn:
        with txn.cursor(db) as cursor:
            keys = [bytes(key) for key in cursor.iternext(values=False)]
        changed = {bytes([*key[:-12], key[-12] ^ 1, *key[-11:]]): key for key in keys}
        names = {str(p.relative_to(path)).encode() for p in segments(path)}
        new, old = next((n, o) for n, o in changed.items() if (n in names) == back)
        txn.put(new, txn.get(old, db=db), db=db)
        txn.delete(old, db=db)
    env.close()
    (path / "catalog" / "lock.mdb").unlink(missing_ok=True)


def test_a_flipped_bit_in_the_name_of_a_file_removes_nothing(filled: Path) -> None:
    flip(filled, b"files")
    for hours in (0, 5, 10):
        with opened(filled, hours) as wh:
            report = wh.gc()
            assert (report.orphans, report.marked) == (0, 0)
            assert "a record of the catalog's files is damaged" in report.refused
            assert len(segments(filled)) == len(SLOTS)
            assert wh.sql("SELECT version FROM hosts").fetchall() == [(1,)]
            assert any("files is damaged" in problem for problem in wh.check().problems)
            assert found(wh) == ALL, "the segment's own record still knows its file"
    flip(filled, b"files", back=True)
    with opened(filled, 20) as wh:
        assert found(wh) == ALL
        recorded_history.assert_sound(wh)


@pytest.mark.parametrize("lost", ["table", "segment"])
def test_while_a_named_file_is_missing_no_other_is_removed(filled: Path, lost: str) -> None:
    file = segments(filled)[0] if lost == "segment" else next((filled / "tables" / "hosts").iterdir())
    hidden = file.rename(file.with_name("9_9_9_0123456789ab-000001.parquet"))
    for hours in (0, 5, 10):
        with opened(filled, hours) as wh:
            assert file.name in wh.gc().refused
            assert hidden.exists()
    hidden.rename(file)
    with opened(filled, 20) as wh:
        assert found(wh) == ALL
        assert wh.gc().refused == ""


def test_a_catalog_without_anything_in_it_takes_no_file_for_an_orphan(filled: Path) -> None:
    with opened(filled) as wh:
        wh.drop_stream("s")
        wh.drop_table("hosts")
        wh.gc()
        left = filled / "tables" / "hosts" / "1_2_3_0123456789ab-000001.parquet"
        left.write_bytes(b"rows")
    for hours in (0, 5, 10):
        with opened(filled, hours) as wh:
            assert "has no stream, table or query" in wh.gc().refused
            assert any("has no stream, table or query" in problem for problem in wh.check().problems)
            assert left.exists()


def test_a_record_that_cannot_be_read_removes_nothing_and_keeps_nobody_from_the_others(filled: Path) -> None:
    left = stray(filled)
    with opened(filled) as wh, wh._store.catalog.exclusive() as tables:
        tables.put_raw("rejected", b"damaged", b"\xff\xff")
    for hours in (0, 5, 10):
        with opened(filled, hours) as wh:
            assert "cannot be read" in wh.gc().refused
            assert wh.scan("s").read_all().num_rows == len(ALL)
            assert left.exists()


def test_a_folder_in_staging_that_is_cleaned_up_right_after_it_was_made_is_made_again(tmp_path, monkeypatch):
    """Whoever opens the warehouse removes folders whose lock is free, also one whose maker has not come to its lock yet."""
    plain_chmod, cleaned = Path.chmod, []

    def clean_up_first(self: Path, mode: int) -> None:
        if self.parent.name == "staging" and self not in cleaned:
            cleaned.append(self)
            self.rmdir()
        plain_chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", clean_up_first)
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    with windrow.open(tmp_path / "wh") as wh:
        wh.create_stream("s", schema, time="ts", slide="1 minute", lifetime="1 hour")
        rows = [{"ts": dt.datetime(2025, 1, 1, tzinfo=dt.UTC), "n": number} for number in range(20)]
        assert wh.append("s", rows).accepted == 20
        assert wh.sql("SELECT 1", memory_limit="100MB").fetchall() == [(1,)]
    assert len(cleaned) >= 2  # of the writer, and of the spilled rows


def test_a_missing_staging_folder_is_an_error_and_no_endless_loop(tmp_path):
    with pytest.raises(FileNotFoundError):
        files._claim_folder(tmp_path / "nowhere" / "folder")

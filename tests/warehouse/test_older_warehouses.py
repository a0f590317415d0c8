"""Warehouses that earlier releases wrote: today's code says the same of them, and goes on with them.

`tests/warehouses/` has them, packed, each with a JSON of what its own release said before and after `make.go_on`.
"""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

import scratch_folders
import system_calls
import windrow
from system_calls import Server
from warehouses import make
from windrow.catalog.environment import FORMAT

PACKED = sorted(Path(make.__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=PACKED, ids=lambda packed: packed.name.split(".")[0])
def older(request: pytest.FixtureRequest, path: Path) -> tuple[Path, dict[str, Any]]:
    """A warehouse of another release, and what was said of it."""
    packed: Path = request.param
    make.unpack(packed, path)
    return path, json.loads(packed.with_name(packed.name.replace(".tar.xz", ".json")).read_text())


def open_at(path: Path, clock: int, **options: Any) -> windrow.Warehouse:
    return windrow.open(path, clock=lambda: clock, **options)


_RUN_COLUMNS = 14
_SOURCE_COLUMNS = 10
_QUERY_COLUMNS = 16
"""Of what is asked of `windrow.runs` and others; those that were added since stand behind."""


def assert_said(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Part by part, so that a failure shows the statement and its rows."""
    assert set(actual) == set(expected)
    for name, said in expected.items():
        if isinstance(said, dict):
            for each in said:
                assert _without_numbers(each, actual[name].get(each)) == _without_numbers(each, said[each]), each
            assert actual[name].keys() == said.keys()
        else:
            assert _without_wording(actual[name]) == _without_wording(said), name


def _without_wording(said: Any) -> Any:
    """Errors that periodic queries recorded are sentences, which releases word anew: what they speak of stays."""
    if isinstance(said, list):
        return [_without_wording(each) for each in said]
    return make.UNWRITABLE if isinstance(said, str) and "Errno" in said and make.UNWRITABLE in said else said


def _without_numbers(statement: str, rows: Any) -> Any:
    """Rows without what nobody promises: numbers of segments, and how many rows a view without duplicates stores."""
    rows = _without_wording(rows)
    if "FROM windrow.segments" in statement:
        return [[row[0], *row[2:]] for row in rows]
    if "FROM windrow.sources" in statement:
        return [row[:_SOURCE_COLUMNS] for row in rows]
    if "FROM windrow.runs" in statement:
        return [row[:_RUN_COLUMNS] for row in rows]
    if "FROM windrow.queries" in statement:
        return [row[:_QUERY_COLUMNS] for row in rows]
    if "FROM windrow.slides" in statement or "FROM windrow.streams" in statement:
        return [row for row in rows if row[0] not in ("of_a_view", "sources_seen")]
    return rows


def test_every_database_of_the_catalog_has_records(older):
    path, recorded = older
    assert recorded["empty"] == make.empty_databases(path) == []


def test_it_says_what_it_said_goes_on_and_says_what_it_would_have_said(older):
    path, recorded = older
    with open_at(path, recorded["clock"]) as wh:
        assert_said(make.answers(wh), recorded["before"])
        make.go_on(wh)
        assert_said(make.answers(wh), recorded["after"])
        assert wh.status().readers == 0
    with open_at(path, recorded["clock"]) as wh:
        assert_said(make.answers(wh), recorded["after"])
        assert wh.check().problems == ()


def test_it_can_be_read_without_changing_a_byte(older):
    path, recorded = older
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with open_at(path, recorded["clock"], read_only=True) as wh:
        assert_said(make.answers(wh), recorded["before"])
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock.mdb"}
    assert {file for file in before if "pins" not in file.parts} <= set(after)
    assert all(after[file] == data for file, data in before.items() if file in after)


def test_it_is_backed_up_as_it_is_and_converted_when_it_is_restored(older, tmp_path):
    path, recorded = older
    with open_at(path, recorded["clock"], read_only=True) as wh:
        wh.backup(tmp_path / "backup")
    windrow.restore(tmp_path / "backup", tmp_path / "restored")
    with open_at(tmp_path / "restored", recorded["clock"]) as wh:
        assert_said(make.answers(wh), recorded["before"])
        assert wh.check().problems == ()
    assert formats(tmp_path / "restored") == (FORMAT, FORMAT)


def test_what_a_killed_reader_and_writer_left_is_reclaimed(older):
    path, recorded = older
    with open_at(path, recorded["clock"]) as wh:
        waiting = wh.status().reclaimable_files
        assert waiting > 0
        wh.run_due()  # slides that are held for periodic queries keep files too
        report = wh.gc()
        assert (report.pins, report.waiting) == (0, 0)
        assert report.files > 0
        assert wh.check().problems == ()
    assert list((path / "staging").iterdir()) == []
    assert list((path / "catalog" / "pins").iterdir()) == []


def test_it_lives_on_until_everything_it_held_has_expired(older):
    path, recorded = older
    with open_at(path, recorded["clock"] + 2 * 3_600_000_000) as wh:
        last = make.LAST + 90
        for name in ("packets", "turning", "lasting", *make.KINDS):
            wh.slide(name, to=make.minute(last), force=True)
            assert wh.scan(name).read_all().num_rows == 0
        wh.slide("leases", to=make.minute(last + 60))
        assert wh.scan("leases").read_all().num_rows == 0
        assert {row[0] for row in wh.sql("SELECT * FROM totals").fetchall()} == set()
        wh.run_due()
        wh.slide(
            "packets", to=make.minute(last + 1), force=True
        )  # views needed rows of it until their other inputs slid
        wh.gc()
        assert wh.sql("SELECT count(*) FROM windrow.segments WHERE stream = 'packets'").fetchall() == [(0,)]
        assert wh.check().problems == ()


# -- conversion to today's format --------------------------------------------------------------------------------------


def formats(path: Path) -> tuple[int, int]:
    """What the marker and the catalog say, read as the release that wrote the packed warehouse read them."""
    with lmdb.open(str(path / "catalog"), max_dbs=64, readonly=True, lock=False) as env, env.begin() as txn:
        raw = txn.get(b"format", db=env.open_db(b"meta", txn, create=False))
    assert len(raw) == 8
    return int(json.loads((path / "windrow.json").read_text())["format"]), int.from_bytes(raw, "big")


def test_it_is_converted_when_it_is_opened_for_writing_and_every_record_and_file_has_a_checksum(older):
    path, recorded = older
    assert formats(path) == (1, 1)
    with open_at(path, recorded["clock"]) as wh:
        assert wh.check().problems == ()
        for file in (path / "streams").rglob("*.parquet"):
            file.write_bytes(file.read_bytes()[:-9] + b"x" + file.read_bytes()[-8:])
    assert formats(path) == (FORMAT, FORMAT)
    with open_at(path, recorded["clock"]) as wh, pytest.raises(windrow.DamageError, match="its footer"):
        wh.scan("packets").read_all()


def test_a_file_that_was_damaged_before_is_not_taken_for_sound(older):
    path, recorded = older
    for victim in (path / "streams" / "packets" / "segments").glob("*.parquet"):
        content = bytearray(victim.read_bytes())
        content[len(content) // 3] ^= 1
        victim.write_bytes(content)
    with open_at(path, recorded["clock"]) as wh:
        assert any("checksum" in problem for problem in wh.check().problems)
        with pytest.raises(windrow.DamageError, match="stream 'packets' is damaged"):
            wh.scan("packets").read_all()


def test_a_reader_of_the_old_format_goes_on_while_it_is_converted(older):
    path, recorded = older
    with open_at(path, recorded["clock"], read_only=True) as reader:
        reader.scan("packets").read_all()
        with open_at(path, recorded["clock"]):
            assert_said(make.answers(reader), recorded["before"])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if system_calls.compiler() is None:
        pytest.skip("there is no C compiler to build the preloaded library with")
    with scratch_folders.scratch_folder() as folder, Server(system_calls.build(folder)) as server:
        yield server


def kill_conversions(older: tuple[Path, dict[str, Any]], server: Server, sample: int | None) -> None:
    path, recorded = older
    kept, log = path.with_name("kept"), path.with_name("log")
    shutil.copytree(path, kept)
    assert server.call("open_for_writing", str(path), recorded["clock"], str(log), 0).status == 0
    calls = system_calls.read_log(log)
    chosen: Any = range(1, len(calls) + 1)
    if sample is not None:
        syncs = [n for n in chosen if calls[n - 1].name in ("fdatasync", "rename", "fsync")]
        seed = os.environ.get("SEED", "20261118")
        print(f"seed {seed}: {len(calls)} calls, {len(syncs)} of them syncs and renames")
        chosen = sorted(random.Random(seed).sample(syncs, min(sample, len(syncs))))
    for nth in chosen:
        shutil.rmtree(path)
        shutil.copytree(kept, path)
        log.unlink(missing_ok=True)
        outcome = server.call("open_for_writing", str(path), recorded["clock"], str(log), nth)
        assert outcome.killed, f"call {nth}: {outcome}"
        where = f"killed after call {nth} of {len(calls)}: {calls[nth - 1]}"
        assert formats(path) in ((1, 1), (1, FORMAT), (FORMAT, FORMAT)), where
        with open_at(path, recorded["clock"], read_only=True) as wh:
            assert_said(make.answers(wh), recorded["before"])
        with open_at(path, recorded["clock"]) as wh:
            assert wh.check().problems == (), where
            assert sample is not None or assert_said(make.answers(wh), recorded["before"]) is None
        assert formats(path) == (FORMAT, FORMAT), where


def test_a_kill_in_the_conversion_leaves_the_old_format_or_the_new_one(older, server):
    kill_conversions(older, server, 1)


@pytest.mark.soak
def test_a_kill_after_any_call_of_the_conversion_leaves_the_old_format_or_the_new_one(older, server):
    kill_conversions(older, server, None)

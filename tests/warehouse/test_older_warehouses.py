"""Warehouses that earlier releases wrote: today's code says the same of them, and goes on with them.

`tests/warehouses/` has them, packed, each with a JSON of what its own release said before and after `make.go_on`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from warehouses import make

PACKED = sorted(Path(make.__file__).parent.glob("*.tar.xz"))


@pytest.fixture(params=PACKED, ids=lambda packed: packed.name.split(".")[0])
def older(request: pytest.FixtureRequest, path: Path) -> tuple[Path, dict[str, Any]]:
    """A warehouse of another release, and what was said of it."""
    packed: Path = request.param
    make.unpack(packed, path)
    return path, json.loads(packed.with_name(packed.name.replace(".tar.xz", ".json")).read_text())


def open_at(path: Path, clock: int, **options: Any) -> windrow.Warehouse:
    return windrow.open(path, clock=lambda: clock, **options)


def assert_said(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Part by part, so that a failure shows the statement and its rows."""
    assert set(found) == set(expected)
    for name, said in expected.items():
        if isinstance(said, dict):
            for each in said:
                assert found[name].get(each) == said[each], f"{name}: {each}"
        assert found[name] == said, name


def test_every_database_of_the_catalog_has_records(older):
    path, told = older
    assert told["empty"] == make.empty_databases(path) == []


def test_it_says_what_it_said_goes_on_and_says_what_it_would_have_said(older):
    path, told = older
    with open_at(path, told["clock"]) as wh:
        assert_said(make.answers(wh), told["before"])
        make.go_on(wh)
        assert_said(make.answers(wh), told["after"])
        assert wh.status().readers == 0
    with open_at(path, told["clock"]) as wh:
        assert_said(make.answers(wh), told["after"])
        assert wh.check().problems == ()


def test_it_can_be_read_without_changing_a_byte(older):
    path, told = older
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with open_at(path, told["clock"], read_only=True) as wh:
        assert_said(make.answers(wh), told["before"])
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock.mdb"}
    assert {file for file in before if "pins" not in file.parts} <= set(after)
    assert all(after[file] == data for file, data in before.items() if file in after)


def test_what_a_killed_reader_and_writer_left_is_reclaimed(older):
    path, told = older
    with open_at(path, told["clock"]) as wh:
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
    path, told = older
    with open_at(path, told["clock"] + 2 * 3_600_000_000) as wh:
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

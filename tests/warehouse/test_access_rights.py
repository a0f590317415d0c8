"""Who may read what a warehouse writes, and what lies in folders that others may write."""

import contextlib
import datetime as dt
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import windrow
from faulty_disks import RecordingDisk
from windrow.cli import windrow as windrow_command

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
CLOCK = 1_767_268_800_000_000 + 3_600_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])


def fill(wh: windrow.Warehouse, minute: int) -> None:
    if "s" not in wh.streams():
        wh.create_stream("s", SCHEMA, time="ts", key="k", slide="1 minute", lifetime="8 minutes")
    end = NOON + dt.timedelta(minutes=minute)
    wh.append("s", pa.table({"ts": [end - dt.timedelta(seconds=1), None], "k": [1, 2]}, schema=SCHEMA))
    wh.slide("s", to=end)
    wh.put_table("names", pa.table({"k": [minute]}))


def modes(path: Path) -> set[tuple[bool, int]]:
    """The rights that folders and files with data have; locks and pins are empty, or name a process."""
    named = [path, *(p for p in path.rglob("*") if p.suffix != ".lock" and p.parent.name != "pins")]
    return {(p.is_dir(), stat.S_IMODE(p.stat().st_mode) & 0o777) for p in named}


@pytest.mark.parametrize("made", [False, True])
def test_files_and_folders_are_for_their_owner_only(path: Path, made: bool) -> None:
    if made:
        path.mkdir(0o755)
    before = os.umask(0)
    try:
        with windrow.open(path, clock=lambda: CLOCK) as wh:
            fill(wh, 1)
            wh.add_query("c", "SELECT count(*) AS n FROM s [WINDOW 3 MINUTES SLIDE 1 MINUTE]", sink="csv")
            fill(wh, 2)
            wh.run_due()
            wh.sql("SELECT count(*) FROM s").fetchall()
            with wh.snapshot():
                actual = modes(path)
    finally:
        os.umask(before)
    assert actual == {(True, 0o700), (False, 0o600)}


def test_a_group_that_may_list_the_folder_may_read_what_comes_later(path: Path) -> None:
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        fill(wh, 1)
    for file in (path, *path.rglob("*")):  # chmod -R u=rwX,g=rX,o= and g+s on folders, as docs/storage.md says
        file.chmod(0o2750 if file.is_dir() else 0o640)
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        fill(wh, 2)
        wh.put_table("more", pa.table({"k": [1]}))
        assert modes(path) == {(True, 0o750), (False, 0o640)} | {(True, 0o700)} & modes(path)
        assert stat.S_IMODE((path / "tables" / "more").stat().st_mode) == 0o2750


@pytest.mark.parametrize("may_pin", [True, False])
def test_readers_who_may_not_write_get_their_snapshots_or_are_told_at_open(
    path: Path, may_pin: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        fill(wh, 1)
        wh.scan("s").read_all()
    may = os.access
    pins = str(path / "catalog" / "pins")
    monkeypatch.setattr(
        os, "access", lambda at, how: may(at, how) and (how != os.W_OK or (may_pin and str(at) == pins))
    )
    with contextlib.ExitStack() as stack:
        if not may_pin:
            stack.enter_context(pytest.warns(windrow.errors.UnpinnedWarning, match="make that folder writable"))
        wh = stack.enter_context(windrow.open(path, read_only=True, clock=lambda: CLOCK))
        snapshot = stack.enter_context(wh.snapshot())
        assert snapshot.scan("s").read_all().num_rows == 1
        assert bool(os.listdir(pins)) == may_pin


def test_a_sink_in_a_folder_of_others_follows_no_link_and_its_hidden_name_cannot_be_guessed(
    path: Path, tmp_path: Path
) -> None:
    out, victim = tmp_path / "out", tmp_path / "victim"
    out.mkdir()
    victim.write_text("precious")
    query = "SELECT count(*) AS n FROM s [WINDOW 3 MINUTES SLIDE 1 MINUTE]"
    with windrow.open(path, clock=lambda: CLOCK) as wh:
        fill(wh, 1)
        wh.add_query("c", query, missed="every", sink=f"csv:{out}")
        fill(wh, 2)
        wh.run_due()
        (last,) = os.listdir(out)
        slide = int(re.search(r"-(\d+)\.csv", last).group(1))
        following = f"c-20260101T120300Z-{slide + 1}.csv"
        (out / f".{following}.tmp").symlink_to(victim)
        (out / following).symlink_to(victim)
        fill(wh, 3)
        wh.run_due()
    assert victim.read_text() == "precious"
    assert not (out / following).is_symlink()
    assert "n" in (out / following).read_text()


@pytest.mark.parametrize("uri", ["s3://bucket/wh", "hdfs://nn:8020/wh", "file:///srv/wh", "abfss://c@a.net/wh"])
def test_a_uri_is_no_path(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for options in ({}, {"catalog": uri}):
        with pytest.raises(
            windrow.FormatError, match=f"^{uri} is a URI; a warehouse is a folder of .*segments='{uri}'"
        ):
            windrow.open(uri if not options else tmp_path / "wh", **options)
    given = CliRunner().invoke(windrow_command, ["init", uri])
    assert (given.exit_code, "is a URI" in given.output) == (1, True)
    assert list(tmp_path.iterdir()) == []


SPILL = """
import sys, windrow
wh = windrow.open(sys.argv[1])
answer = wh.sql("SELECT i, hash(i) AS h FROM range(3000000) r(i) ORDER BY h", memory_limit="60MB")
print("spilled", flush=True)
sys.stdin.read()
"""


def test_spilled_rows_are_for_the_owner_and_go_when_their_process_is_dead(path: Path) -> None:
    windrow.open(path).close()
    child = subprocess.Popen(
        [sys.executable, "-c", SPILL, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "spilled\n"
    spilled = [file for file in (path / "staging").rglob("*") if file.is_file() and file.stat().st_size]
    (folder,) = {path / "staging" / file.relative_to(path / "staging").parts[0] for file in spilled}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with windrow.open(path) as wh:
        wh.gc()
        assert folder.exists(), "its process lives"
        child.send_signal(signal.SIGKILL)
        child.communicate()
        wh.gc()
        assert not folder.exists()


def test_every_new_folder_and_the_marker_are_durable_before_a_commit_names_what_is_in_them(path: Path) -> None:
    disk = RecordingDisk()
    with windrow.open(path, clock=lambda: CLOCK, files=disk) as wh:
        fill(wh, 1)
        wh.add_query("c", "SELECT count(*) AS n FROM s [WINDOW 3 MINUTES SLIDE 1 MINUTE]", sink="csv")
        fill(wh, 2)
        wh.run_due()
    synced = {Path(event[1]) for event in disk.events if event[0] == "sync"}
    for folder in (path.parent, path, path / "catalog", path / "streams", path / "tables", path / "results"):
        assert folder in synced, folder

"""A warehouse whose files are in an object store answers as one on disk does, whatever of them its folder holds."""

import contextlib
import datetime as dt
import itertools
import os
import threading
from functools import partial
from pathlib import Path

import pytest

import windrow
from object_stores import Fault, FaultyS3, Request, fail_once
from packet_warehouse import NOON, SCHEMA, append_and_slide, make_minute
from stored_packets import MINUTES, answers, expected, forget_files, make_stored_packets, sorted_rows, truth
from windrow.ingest.stored_files import find_stored_files, open_files
from windrow.orphans import data_files

MINUTE = dt.timedelta(minutes=1)


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_answers_are_the_same_whether_files_are_here_or_only_in_the_store(
    kind: str, s3: FaultyS3, tmp_path: Path
) -> None:
    uri = s3.uri("same") if kind == "s3" else f"file://{tmp_path}/objects"
    with make_stored_packets(tmp_path / "w", uri) as wh:
        assert answers(wh) == expected()
    with windrow.open(tmp_path / "w") as wh:  # the store is remembered
        assert answers(wh) == expected()
    forget_files(tmp_path / "w")
    with windrow.open(tmp_path / "w") as wh:
        assert answers(wh) == expected()
        assert wh.check().problems == ()


def test_a_cold_probe_asks_once_for_each_file(s3: FaultyS3, tmp_path: Path) -> None:
    make_stored_packets(tmp_path / "w", s3.uri("cold")).close()
    forget_files(tmp_path / "w")
    s3.requests.clear()
    with windrow.open(tmp_path / "w") as wh:
        wh.probe("packets", key=7)
        asked = s3.reads()
        assert asked
        assert len(asked) == len(set(asked)) == len(s3.requests)
        wh.probe("packets", key=8)
        wh.scan("packets").read_all()
        assert len(set(s3.reads())) == len(s3.reads())


@pytest.mark.parametrize("how", ["probe", "scan", "sql", "worker"])
def test_a_cold_read_asks_for_all_its_files_at_once(how: str, s3: FaultyS3, tmp_path: Path) -> None:
    """No object is given before all have been asked for, so a reader that asks one by one waits in vain."""
    folder = tmp_path / "w"
    make_stored_packets(folder, s3.uri(f"at-once-{how}")).close()
    files = data_files(folder)
    forget_files(folder)
    asked = threading.Barrier(len(files), timeout=20)

    def wait_for_all(request: Request) -> str | None:
        if request.method == "GET" and request.is_of_data:
            asked.wait()
        return None

    with windrow.open(folder) as wh, s3.faulty(wait_for_all):
        if how == "worker":
            stored = find_stored_files(wh._store, files)
            with open_files(str(tmp_path / "elsewhere"), {}, stored) as reader:
                assert reader.provider is not None
                reader.provider.bring(files)
                assert all(reader.path(file).exists() for file in files)
            return
        read = {
            "probe": lambda: wh.probe("packets", key=7), "scan": lambda: wh.scan("packets").read_all(),
            "sql": lambda: wh.sql("SELECT count(*), sum(len) FROM packets").arrow(),
        }  # fmt: skip
        assert read[how]().num_rows
    assert len(data_files(folder)) == len(files) > 1


def test_a_commit_names_only_files_that_are_in_the_store(s3: FaultyS3, tmp_path: Path) -> None:
    with make_stored_packets(tmp_path / "w", s3.uri("before")) as wh:
        batch = make_minute(MINUTES + 1)
        refuse = s3.faulty(lambda request: "503" if request.method == "PUT" else None)
        with refuse, pytest.raises(windrow.StorageError, match="nothing was changed"):
            wh.append("packets", batch, batch_id="late")
        assert answers(wh) == expected()
        assert not wh.append("packets", batch, batch_id="late").duplicate
        assert wh.append("packets", batch, batch_id="late").duplicate
        wh.slide("packets", to=NOON + (batch["ts"][0].as_py() - make_minute(MINUTES)["ts"][0].as_py()) * (MINUTES + 1))
        assert wh.sql("SELECT count(*) FROM packets").fetchall() == [((MINUTES + 1) * batch.num_rows,)]


@pytest.mark.parametrize("kind", ["503", "lost", "unanswered", "cut"])
def test_a_fault_of_any_request_ends_in_all_or_nothing(kind: str, s3: FaultyS3, tmp_path: Path) -> None:
    messages: list[str] = []
    with make_stored_packets(tmp_path / "w", s3.uri(f"each-{kind}")) as wh:
        for number in range(3):
            minute = MINUTES + 1 + number
            before = wh.sql("SELECT count(*) FROM packets").fetchall()[0][0]
            with s3.faulty(fail_once(number % 2, kind)):
                try:
                    append_and_slide(wh, minute)
                except windrow.StorageError as error:
                    messages.append(str(error))
            append_and_slide(wh, minute)
            assert wh.sql("SELECT count(*) FROM packets").fetchall()[0][0] == before + make_minute(minute).num_rows
        forget_files(tmp_path / "w")
        for number in range(2):
            with s3.faulty(fail_once(number, kind)):
                try:
                    wh.sql("SELECT count(*), sum(len) FROM packets").fetchall()
                except windrow.WindrowError as error:
                    messages.append(str(error))
        wh.scan("packets").read_all()
    assert messages
    assert not any("\n" in sentence for sentence in messages)


def note_failure(fault: Fault, failed: list[str], request: Request) -> str | None:
    """A fault that writes down which requests it fails."""
    how = fault(request)
    if how is not None:
        failed.append(request.path)
    return how


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["denied", "503", "lost", "unanswered", "cut"])
def test_each_request_of_a_commit_and_of_its_copy_fails_in_turn(kind: str, s3: FaultyS3, tmp_path: Path) -> None:
    """Soak, because each is tried several times before it is given up."""
    with make_stored_packets(tmp_path / "w", s3.uri(f"in-turn-{kind}"), copy_every="1 hour") as wh:
        for number in itertools.count():
            minute, failed = MINUTES + 1 + number, list[str]()
            steps = [partial(append_and_slide, wh, minute), wh._store.remote.wait_for_copy]
            with s3.faulty(partial(note_failure, fail_once(number, kind), failed)):
                for step in steps:
                    with contextlib.suppress(windrow.StorageError):
                        step()
            for step in steps:  # what was done is known by its batch id, and what was not is done now
                step()
            live = [row for row in truth(minute) if row["ts"] > NOON + (minute - 16) * MINUTE]
            assert sorted_rows(wh.scan("packets").read_all()) == live
            if not failed:
                break
        assert number > 5
        assert wh.check().problems == ()
    windrow.restore(s3.uri(f"in-turn-{kind}"), tmp_path / "new")
    with windrow.open(tmp_path / "new") as new:
        assert new.check().problems == ()
        assert sorted_rows(new.scan("packets").read_all()) == live


def test_a_slow_store_only_takes_time(s3: FaultyS3, tmp_path: Path) -> None:
    s3.delay = 0.03
    make_stored_packets(tmp_path / "w", s3.uri("slow")).close()
    forget_files(tmp_path / "w")
    with windrow.open(tmp_path / "w") as wh:
        assert answers(wh) == expected()
        assert wh.check().problems == ()


def test_a_damaged_cache_file_is_fetched_again(s3: FaultyS3, tmp_path: Path) -> None:
    make_stored_packets(tmp_path / "w", s3.uri("damage")).close()
    damages = [lambda content: content[:-9] + b"\0" * 9, lambda content: content[: len(content) // 2],
               lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:]]  # fmt: skip
    for damage in damages:
        for file in data_files(tmp_path / "w"):
            path = tmp_path / "w" / file
            path.write_bytes(damage(path.read_bytes()))
        with windrow.open(tmp_path / "w") as wh:
            assert answers(wh) == expected()


def test_the_cache_keeps_its_limit_and_readers_what_they_read(s3: FaultyS3, tmp_path: Path) -> None:
    make_stored_packets(tmp_path / "w", s3.uri("limit")).close()
    sizes = [os.path.getsize(tmp_path / "w" / file) for file in data_files(tmp_path / "w")]
    limit = max(sizes) * 2
    with windrow.open(tmp_path / "w", segment_cache=f"{limit}B") as wh:
        for _ in range(2):
            for key in range(3):
                assert wh.probe("packets", key=key).num_rows == sum(1 for row in truth() if row["src"] == key)
            wh.gc()
            assert sum(os.path.getsize(tmp_path / "w" / file) for file in data_files(tmp_path / "w")) <= limit
        with wh.snapshot() as snapshot:
            rows = snapshot.scan("packets")  # is read while others need the room
            statement = snapshot.sql("SELECT * FROM packets")
            for key in range(3):
                wh.probe("packets", key=key)
            assert sorted_rows(rows.read_all()) == truth()
            assert sorted_rows(statement.arrow()) == truth()
        wh.gc()
        assert sum(os.path.getsize(tmp_path / "w" / file) for file in data_files(tmp_path / "w")) <= limit


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("bucket/prefix", "is no URI"),
        ("ftp://host/x", "it may be s3, gs, hdfs or file"),
        ("s3://key:secret@bucket/x", "has credentials in it"),
        ("s3:///x", "names no bucket"),
        ("s3://bucket/x?colour=red", "option 'colour'"),
        ("s3://bucket/../x", "'.' or '..'"),
        ("file://other-host/x", "a folder of this machine"),
    ],
)
def test_a_wrong_uri_is_refused_in_one_sentence(uri: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(windrow.FormatError, match=words) as caught:
        windrow.open(tmp_path / "w", segments=uri)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_bucket_or_right_is_said_and_another_warehouse_is_left_alone(s3: FaultyS3, tmp_path: Path) -> None:
    with pytest.raises(windrow.StorageError, match="no such bucket"):
        windrow.open(tmp_path / "w", segments=s3.uri("x").replace("rows", "no-bucket"))

    def deny(request: Request) -> str | None:
        return "denied" if request.method == "PUT" else None

    with s3.faulty(deny), pytest.raises(windrow.StorageError, match="access was denied"):
        windrow.open(tmp_path / "w", segments=s3.uri("x"))
    with windrow.open(tmp_path / "w", segments=s3.uri("x")):
        pass
    with pytest.raises(windrow.FormatError, match="holds the segments of another warehouse"):
        windrow.open(tmp_path / "v", segments=s3.uri("x"))
    with pytest.raises(windrow.FormatError, match="are in s3://rows/x"):
        windrow.open(tmp_path / "w", segments=s3.uri("y"))


def test_a_warehouse_on_disk_moves_into_a_store(s3: FaultyS3, tmp_path: Path) -> None:
    with windrow.open(tmp_path / "w") as wh:
        wh.create_stream("packets", SCHEMA, time="ts", key="src", slide="1 minute", lifetime="16 minutes")
        for minute in range(1, MINUTES):
            append_and_slide(wh, minute)
        with windrow.open(tmp_path / "w", segments=s3.uri("moved")):
            pass
        with pytest.raises(windrow.StorageError, match="open it again"):
            append_and_slide(wh, MINUTES)
    forget_files(tmp_path / "w")
    with windrow.open(tmp_path / "w") as wh:
        append_and_slide(wh, MINUTES)
        assert answers(wh) == expected()

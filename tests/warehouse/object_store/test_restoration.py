"""What a lost machine leaves: the last copy of the catalog, all that it names, and an epoch that somebody else takes."""

import datetime as dt
import shutil
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

import windrow
from object_stores import FaultyS3
from packet_warehouse import NOON, SCHEMA, append_and_slide, make_minute
from stored_packets import MINUTES, answers, expected, make_stored_packets, sorted_rows, truth
from windrow.catalog.environment import Catalog
from windrow.catalog.object_log import list_objects, read_store_entry, write_store_entry
from windrow.object_store.segment_store import find_place

MINUTE = dt.timedelta(minutes=1)


def rows(wh: windrow.Warehouse) -> list[dict[str, object]]:
    return sorted_rows(wh.sql("SELECT * FROM packets").arrow())


@pytest.mark.parametrize("kind", ["s3", "file"])
def test_restored_is_what_the_last_copy_had(kind: str, s3: FaultyS3, tmp_path: Path) -> None:
    uri = s3.uri("restored") if kind == "s3" else f"file://{tmp_path}/objects"
    lost = make_stored_packets(tmp_path / "lost", uri, copy_every="1 hour")
    copied = lost.append("packets", make_minute(MINUTES + 1).slice(0, 5), durable="store")
    assert copied.durable == "store"
    lost.slide("packets", to=NOON + (MINUTES + 1) * MINUTE)
    report = lost.append("packets", make_minute(MINUTES + 2), batch_id="lost")
    assert report.copied_commit == copied.copied_commit
    assert report.durable == "disk"
    # The machine is lost here: its folder is not looked at again.
    done = windrow.restore(uri, tmp_path / "new")
    assert done.commit == copied.copied_commit
    with windrow.open(tmp_path / "new") as wh:
        assert answers(wh) == expected()
        assert wh.check().problems == ()
        assert any(gap.kind == "restored" for gap in wh.gaps("packets"))
        assert not wh.append("packets", make_minute(MINUTES + 2), batch_id="lost").duplicate
        wh.slide("packets", to=NOON + (MINUTES + 2) * MINUTE)
        wanted = [*truth(MINUTES), *make_minute(MINUTES + 1).slice(0, 5).to_pylist(),
                  *make_minute(MINUTES + 2).to_pylist()]  # fmt: skip
        assert rows(wh) == sorted(wanted, key=lambda row: (row["ts"], row["src"], row["len"]))


def test_a_machine_of_an_older_epoch_refuses_to_commit_and_deletes_nothing(s3: FaultyS3, tmp_path: Path) -> None:
    uri = s3.uri("fenced")
    old = make_stored_packets(tmp_path / "old", uri, copy_every="1 hour")
    old.append("packets", make_minute(MINUTES + 1), batch_id="in the copy", durable="store")
    windrow.restore(uri, tmp_path / "new")
    old_objects = old._store.catalog.read(list_objects)
    s3.requests.clear()
    with pytest.raises(windrow.StorageError, match=r"restored from its object store .* as epoch 2"):
        old.append("packets", make_minute(MINUTES + 2), batch_id="too late")
    with pytest.raises(windrow.StorageError, match="can be read only"):
        old.append("packets", make_minute(MINUTES + 2).slice(0, 1))  # no file: the catalog itself refuses
    old.gc()
    assert not [request for request in s3.requests if "delete" in request.path]
    assert old.sql("SELECT count(*) FROM packets").fetchall() == [(MINUTES * 600,)]
    old.close()
    with windrow.open(tmp_path / "new") as wh:
        assert wh._store.catalog.read(list_objects) == old_objects
        append_and_slide(wh, MINUTES + 2)
        assert wh.append("packets", make_minute(MINUTES + 1), batch_id="in the copy").duplicate
        assert rows(wh) == truth(MINUTES + 2)


def test_of_two_that_restore_at_once_one_has_the_last_epoch(s3: FaultyS3, tmp_path: Path) -> None:
    uri = s3.uri("race")
    make_stored_packets(tmp_path / "lost", uri).close()
    outcomes: list[object] = []

    def restore(number: int) -> None:
        try:
            outcomes.append(windrow.restore(uri, tmp_path / f"new{number}"))
        except windrow.StorageError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=restore, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 3
    committed, refused = [], list[bool]()
    for done in outcomes:
        if isinstance(done, Exception):
            continue
        with windrow.open(done.path) as wh:
            try:
                append_and_slide(wh, MINUTES + 1)
                committed.append(done.path)
            except windrow.StorageError as error:
                refused.append("can be read only" in str(error))
    assert len(committed) == 1
    assert all(refused)


def test_objects_go_only_when_the_last_copy_names_them_nowhere(s3: FaultyS3, tmp_path: Path) -> None:
    uri = s3.uri("deletion")
    with make_stored_packets(tmp_path / "w", uri, copy_every="1 hour") as wh:
        wh.append("packets", make_minute(MINUTES + 1), batch_id="copied", durable="store")
        named = set(wh._store.catalog.read(list_objects))
        wh.slide("packets", to=NOON + 60 * MINUTE)  # everything expires
        assert wh.sql("SELECT count(*) FROM packets").fetchall() == [(0,)]
        wh.slide("packets", to=NOON + 61 * MINUTE)
        # Nothing was copied since: a machine that is restored now still needs every object.
        windrow.restore(uri, tmp_path / "then")
    with windrow.open(tmp_path / "then") as then:
        assert {*then._store.catalog.read(list_objects)} == named
        assert answers(then) == expected()
        then.slide("packets", to=NOON + 60 * MINUTE)
        then.gc()
        then.gc()
        objects = then._store.remote.objects
        left = {name for name in named if objects.size(name) is not None}
        assert left == set(then._store.catalog.read(list_objects)) == set()


@pytest.mark.parametrize("uri", ["gs://bucket/prefix", "hdfs://node:8020/prefix"])
def test_where_writes_have_no_conditions_nothing_is_taken_over(uri: str, tmp_path: Path) -> None:
    with pytest.raises(windrow.StorageError, match="is used without conditional writes") as refused:
        windrow.restore(uri, tmp_path / "new")
    assert "restore from there" in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_of_two_clones_of_a_machine_the_one_that_copies_first_goes_on(s3: FaultyS3, tmp_path: Path) -> None:
    """Both have the same epoch, and know nothing of each other before one of them has copied its catalog."""
    make_stored_packets(tmp_path / "one", s3.uri("clones"), copy_every="1 hour").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for catalog in tmp_path.glob(
        "*/catalog"
    ):  # where a whole machine is cloned, what tells a copied folder is cloned too
        opened = Catalog(catalog, create=False)
        with opened.exclusive() as tables:
            write_store_entry(tables, replace(opened.read(read_store_entry), place=find_place(opened)))
        opened.close()
    with windrow.open(tmp_path / "one") as one, windrow.open(tmp_path / "two") as two:
        for wh in (two, one):
            wh.append("packets", make_minute(MINUTES + 1), batch_id="both")
        two.append("packets", make_minute(MINUTES + 2), batch_id="lost")
        assert one.append("packets", make_minute(MINUTES + 3), durable="store").durable == "store"
        with pytest.raises(windrow.StorageError, match=r"a clone of this machine.*can be read only"):
            two.append("packets", make_minute(MINUTES + 3), batch_id="refused", durable="store")
        with pytest.raises(windrow.StorageError, match="can be read only"):
            two.append("packets", make_minute(MINUTES + 3).slice(0, 1))
        with pytest.raises(windrow.StorageError, match="can be read only"):
            two.gc()
        one.slide("packets", to=NOON + (MINUTES + 3) * MINUTE)
        wanted = [*truth(MINUTES + 1), *make_minute(MINUTES + 3).to_pylist()]
        assert rows(one) == sorted(wanted, key=lambda row: (row["ts"], row["src"], row["len"]))
    windrow.restore(s3.uri("clones"), tmp_path / "new")
    with windrow.open(tmp_path / "new") as wh:
        assert rows(wh) == sorted(wanted, key=lambda row: (row["ts"], row["src"], row["len"]))


def test_what_cannot_be_restored_is_said(s3: FaultyS3, tmp_path: Path) -> None:
    with pytest.raises(windrow.FormatError, match="holds no warehouse"):
        windrow.restore(s3.uri("nothing"), tmp_path / "new")
    make_stored_packets(tmp_path / "w", s3.uri("something")).close()
    with pytest.raises(windrow.FormatError, match="choose a new or empty folder"):
        windrow.restore(s3.uri("something"), tmp_path / "w")
    with windrow.open(tmp_path / "w") as wh:  # a refused restoration takes nothing over
        append_and_slide(wh, MINUTES + 1)
        copy = wh._store.remote.last_copy()
        wh._store.remote.objects.put(copy.name, b"other bytes")
    with windrow.open(tmp_path / "v") as local, pytest.raises(windrow.StorageError, match="has none"):
        local.create_stream("packets", SCHEMA, time="ts", slide="1 minute", lifetime="1 hour")
        local.append("packets", make_minute(1), durable="store")

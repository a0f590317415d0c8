"""A power cut loses what was not synced: any of it, in any order. What was acknowledged is there afterwards.

    create ─ write ─ rename ─ fsync file ─ fsync folder ─ pages of the catalog ─ fdatasync ─ meta page ─ acknowledged
                          ▲ cut here: the file may be missing, empty, half written, or under its old name

An operation is done once. Its calls are written down, and each file is kept as it was at each sync (`system_calls.c`).
Then disks are made as they may be after a cut at any call: names are those of synced folders and any subset of the
later changes, the pages of a file are those of its last sync or of its next one. Each must hold the state before the
operation or after it, and must let the operation be done again.
"""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import pytest

import kills
import scratch_folders
import system_calls
from system_calls import Server

SEED = int(os.environ.get("SEED", "20261118"))
PAGE = 4096
CASES = [name for name in kills.CASES if name != "gc"]  # `gc` has files put into the folder while it works

pytestmark = pytest.mark.skipif(
    system_calls.compiler() is None, reason="there is no C compiler to build the preloaded library with"
)


@dataclass
class File:
    """One file through all its names."""

    versions: list[tuple[int, Path]]
    """As it was at a sync, by the number of that call; a file that was there before has one at 0."""
    last: Path | None
    """As it is at the end."""
    written: list[int] = field(default_factory=list)

    def content(self, now: int, chance: random.Random) -> bytes:
        """After a cut at call `now`: each page of the last sync, or as it was written since then."""
        before = [path for position, path in self.versions if position <= now]
        old = before[-1].read_bytes() if before else b""
        since = max((position for position, _ in self.versions if position <= now), default=0)
        if not any(since < position <= now for position in self.written):
            return old
        later = [path for position, path in self.versions if position > now]
        new = (later[0] if later else self.last).read_bytes() if later or self.last else b""
        size = chance.choice([len(old), len(new)])
        pages = [
            (new if chance.random() < 0.5 else old)[position : position + PAGE].ljust(min(PAGE, size - position), b"\0")
            for position in range(0, size, PAGE)
        ]
        return b"".join(pages)[:size]


@dataclass(frozen=True)
class Change:
    """A change of a name: it may be lost until its folder is synced."""

    at: int
    kind: str
    path: str
    target: str = ""
    file: File | None = None

    @property
    def folder(self) -> str:
        return str(PurePosixPath(self.target or self.path).parent)


def is_of_interest(path: str) -> bool:
    """Locks and pins are of processes, which a power cut ends."""
    return not path.endswith((".lock", "lock.mdb")) and "catalog/pins" not in path and "mapped" not in path


class Recording:
    """What an operation did to the disk, as if it had left out the sync with number `left_out`."""

    def __init__(self, base: Path, lines: list[str], kept: Path, left_out: int = 0) -> None:
        self.base, self.changes, self.synced = base, list[Change](), list[tuple[int, str]]()
        self.source, self.syncs = (base, lines, kept), dict[int, str]()
        self.files = {
            str(path.relative_to(base)): File([(0, path)], None)
            for path in base.rglob("*")
            if path.is_file() and is_of_interest(str(path))
        }
        self.acknowledged = number = 0
        unsynced = ""
        names = dict(self.files)
        for line in lines:
            call, path, target, *_ = line.split("\t")
            if call == "acknowledged":
                self.acknowledged = number
                continue
            number += 1
            if not is_of_interest(path):
                continue
            version = kept / str(number)
            if call in ("fsync", "fdatasync"):
                self.syncs[number] = path
                unsynced = path if number == left_out else ""
                if unsynced:
                    continue
            if call == "create":
                names[path] = File([], version)
                self.changes.append(Change(number, "create", path, file=names[path]))
            elif call.startswith("rename"):
                file = names.pop(path, None)
                if file is not None:
                    names[target] = file
                self.changes.append(Change(number, "rename", path, target, file))
            elif call in ("unlink", "unlinkat", "remove", "rmdir"):
                names.pop(path, None)
                self.changes.append(Change(number, "remove", path))
            elif call.startswith("mkdir"):
                self.changes.append(Change(number, "mkdir", path))
            elif call in ("fsync", "fdatasync") and not version.exists():
                self.synced.append((number, path))
            elif path in names:
                names[path].written.append(number)
                if version.exists() and path != unsynced:  # LMDB's meta page is synced, and it alone
                    names[path].versions.append((number, version))
        self.calls = number

    def make_disk(self, call: int, path: Path, chance: random.Random) -> None:
        """The folder as it may be after a power cut right after call `at`."""
        names = dict(self.files)
        folders = {str(each.relative_to(self.base)) for each in self.base.rglob("*") if each.is_dir()}
        for change in (change for change in self.changes if change.at <= call):
            durable = any(change.at < when <= call and folder == change.folder for when, folder in self.synced)
            if not durable and chance.random() < 0.5:
                continue
            if change.kind == "mkdir":
                folders.add(change.path)
            elif change.kind == "remove":
                names.pop(change.path, None)
            else:
                names.pop(change.path, None)
                if change.file is not None:
                    names[change.target or change.path] = change.file
        for folder in sorted(folders):
            if str(PurePosixPath(folder).parent) in (*folders, "."):
                (path / folder).mkdir(parents=True, exist_ok=True)
        for name, file in names.items():
            if (path / name).parent.is_dir():
                (path / name).write_bytes(file.content(call, chance))


@dataclass
class Stage:
    server: Server
    third: Server
    folder: Path
    recordings: dict[str, Recording] = field(default_factory=dict)

    def recording(self, name: str) -> Recording:
        if name not in self.recordings:
            base, path, kept, log = (self.folder / name / part for part in ("base", "at", "kept", "log"))
            kept.mkdir(parents=True)
            self.server.prepare(name, path)
            shutil.copytree(path, base)
            outcome = self.server.call("operate_kept", name, str(path), str(log), str(kept))
            assert outcome.status == 0 and outcome.acknowledged, outcome.value
            self.recordings[name] = Recording(base, log.read_text().splitlines(), kept)
        return self.recordings[name]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with scratch_folders.scratch_folder() as folder, Server(system_calls.build(folder)) as server, Server() as third:
        yield Stage(server, third, folder)


def cut_power(stage: Stage, name: str, call: int, seed: str, recording: Recording | None = None) -> list[str]:
    """What is wrong after a power cut."""
    recording, path = recording or stage.recording(name), stage.folder / name / "at"
    shutil.rmtree(path)
    path.mkdir()
    recording.make_disk(call, path, random.Random(seed))
    outcome = stage.third.call("succeed", name, str(path), call >= recording.acknowledged)
    wrong = outcome.value if isinstance(outcome.value, list) else [str(outcome.value).strip()]
    return [f"{name}, power cut after call {call} of {recording.calls} (seed {seed}): {line}" for line in wrong]


@pytest.mark.parametrize("name", ["append", "slide-rebuild", "table", "delivery-files"])
def test_a_power_cut_leaves_the_state_before_or_after(stage: Stage, name: str) -> None:
    recording, chance = stage.recording(name), random.Random(f"{SEED} {name}")
    cuts = [recording.acknowledged, recording.calls, *chance.sample(range(1, recording.calls), 2)]
    wrong = [line for index in cuts for line in cut_power(stage, name, index, f"{SEED} {name} {index}")]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["append", "table"])
def test_each_sync_that_is_left_out_is_found(stage: Stage, name: str) -> None:
    """The harness itself: an operation without one of its syncs loses what it has acknowledged, and this is seen."""
    whole = stage.recording(name)
    needed = {number: path for number, path in whole.syncs.items() if number <= whole.acknowledged}
    assert len(needed) >= 3, needed
    for number, path in needed.items():
        spoiled = Recording(*whole.source, left_out=number)
        seeds = (f"{SEED} {name} without {number} {attempt}" for attempt in range(20))
        wrong = (line for seed in seeds for line in cut_power(stage, name, whole.acknowledged, seed, spoiled))
        assert next(wrong, None), f"seed {SEED}: nothing tells that {path} was not synced at call {number}"


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_a_power_cut_after_any_call_leaves_the_state_before_or_after(stage: Stage, name: str) -> None:
    calls = stage.recording(name).calls
    seeds = [f"{SEED} {name} {number}" for number in range(5)]
    wrong = [line for index in range(1, calls + 1) for seed in seeds for line in cut_power(stage, name, index, seed)]
    assert not wrong, "\n".join(wrong)

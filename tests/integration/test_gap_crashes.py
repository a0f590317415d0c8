"""kill -9 while gaps are opened and closed, or a stream is repaired: rows and ledger are of the same commit."""

import random
import shutil
import signal
from pathlib import Path

import pyarrow as pa

import child_processes
import recorded_history
from faulty_disks import CountingDisk, join_child, start_child
from sample_streams import BASE, US
from windrow.files import REPAIR_CRASH_POINTS

STEPS = ("append.committing", "append.committed", "slide.committing", "slide.committed")


def state(path: Path):
    """Rows, and what the ledger and the window say."""
    with child_processes.open_gapped(str(path)) as wh:
        gaps = [(g.kind, g.source, g.start, g.end, g.closed is None) for g in wh.gaps("s", closed=True)]
        with wh.sql("SELECT n FROM s ORDER BY n") as answer:
            return answer.fetchall(), gaps, answer.windows[0].coverage, wh.stream("s").slide


def test_a_kill_leaves_rows_and_gaps_as_before_or_after(tmp_path: Path) -> None:
    path, files, truths = tmp_path / "whole", CountingDisk(), []
    child_processes.open_gapped(str(path)).close()
    truths.append(state(path))
    for number in range(child_processes.GAP_STEPS):
        with child_processes.open_gapped(str(path), files) as wh:
            child_processes.perform_gap_step(wh, number)
        truths.append(state(path))
    assert any("failed" in str(truth[1]) for truth in truths) and truths[-1][2] > truths[-2][2]
    for step in STEPS:
        # Of the appends, the one whose rows cover a gap.
        for nth in (5,) if step.startswith("append") else range(1, files.steps[step] + 1):
            killed, progress = tmp_path / f"{step}-{nth}", tmp_path / f"{step}-{nth}.progress"
            child = start_child(child_processes.make_gaps_until_step, str(killed), str(progress), step, nth)
            assert join_child(child) == -signal.SIGKILL
            done = len(progress.read_bytes())
            actual = state(killed)
            possible = [truths[done], truths[done + 1]]
            # Steps of two operations may be killed between them: then the ledger is still the one of before.
            assert actual in possible or actual[:3] == truths[done][:3], (step, nth, done)
            with child_processes.open_gapped(str(killed)) as wh:
                for number in range(done, child_processes.GAP_STEPS):
                    child_processes.perform_gap_step(wh, number)
            assert state(killed)[0] == truths[-1][0] and state(killed)[2] == truths[-1][2]


def test_a_killed_repair_has_happened_or_not(tmp_path: Path) -> None:
    path = tmp_path / "wh"
    with child_processes.open_gapped(str(path)) as wh:
        for source in ("a", "b"):
            noise, ts = random.Random(source), pa.array([BASE + n * 1_000 for n in range(1, 10_001)], US)
            wh.append("s", pa.table({"ts": ts, "n": [noise.getrandbits(62) for _ in range(10_000)]}), source=source)
        wh.slide("s")
        wh.create_view("odd", "SELECT n FROM s WHERE n % 2 = 1")
        (file, *_) = wh.sql("SELECT file FROM windrow.segments WHERE stream = 's' ORDER BY rows DESC").fetchall()[0]
    data = bytearray((path / file).read_bytes())
    data[200] ^= 0xFF
    (path / file).write_bytes(data)
    shutil.copytree(path, tmp_path / "copy")
    with recorded_history.open_warehouse(tmp_path / "copy") as wh:
        report = wh.repair("s", give_up=True)
        whole = wh.sql("SELECT count(*), sum(n) FROM s").fetchall()
        odd = wh.sql("SELECT count(*), sum(n) FROM s WHERE n % 2 = 1").fetchall()
        assert report.rows_saved and report.rows_lost
    for step in REPAIR_CRASH_POINTS:
        killed = shutil.copytree(path, tmp_path / step)
        assert join_child(start_child(child_processes.repair_until_step, str(killed), step)) == -signal.SIGKILL
        with recorded_history.open_warehouse(killed) as wh:
            happened = [gap.kind for gap in wh.gaps("s") if gap.kind == "damaged"] == ["damaged"]
            assert happened == (step == "repair.committed")
            assert wh.repair("s", give_up=True).repaired is not happened
            assert wh.sql("SELECT count(*), sum(n) FROM s").fetchall() == whole and wh.check().ok
            assert wh.sql("SELECT count(*), sum(n) FROM odd").fetchall() == odd

"""Peak memory of append and slide for growing windows and growing batches, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench import report
from bench.memory_child import Settings
from bench.statistics import Aim

ROOT = Path(__file__).resolve().parent.parent

Peaks = dict[str, dict[str, int]]
"""By setting in words: bytes at the peak of append and of slide, and of the batch."""


def settings(*, quick: bool) -> dict[str, Settings]:
    """What is measured: windows at one batch size, then batches at one window."""
    batch = 2000 if quick else 8000
    sizes = (50, 200) if quick else (150, 450, 1350)
    windows = {f"window {mb} MB": Settings(mb * 1000, 2 * mb * 1000 // batch, updates=12) for mb in sizes}
    larger = (8, 64, 192) if quick else (8, 64, 256, 768)
    growing = {f"batch {mb} MB": Settings(sizes[0] * 1000, 36, mb * 1000) for mb in larger}
    return windows | growing


def run(*, quick: bool, scratch: Path | None, advance: Callable[[str], None]) -> Peaks:
    """Measure them all."""
    peaks = {}
    for name, chosen in settings(quick=quick).items():
        advance(f"memory: {name}")
        command = [sys.executable, "-m", "bench.memory_child", json.dumps(asdict(chosen)), str(scratch or "")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"memory of {name} could not be measured: {done.stderr[-2000:]}")
        peaks[name] = json.loads(done.stdout)
    return peaks


def table(peaks: Peaks) -> str:
    """In megabytes."""
    rows = [
        [name, *(f"{peak[what] / 1e6:.1f}" for what in ("batch", "append", "slide"))] for name, peak in peaks.items()
    ]
    return report.table(["", "batch MB", "append peak MB", "slide peak MB"], rows)


def list_aims(peaks: Peaks) -> list[Aim]:
    """Memory follows the batch up to a chunk, and never the window."""
    windows = [peak for name, peak in peaks.items() if name.startswith("window")]
    batches = [peak for name, peak in peaks.items() if name.startswith("batch")]
    small, large = windows[0], windows[-1]
    slack = 8e6
    return [
        Aim(
            "append's peak memory, largest window / smallest, same batch",
            (large["append"] + slack) / (small["append"] + slack),
            1.25,
        ),
        Aim(
            "slide's peak memory, largest window / smallest, same batch",
            (large["slide"] + slack) / (small["slide"] + slack),
            1.25,
        ),
        Aim(
            "append's peak memory / batch, largest batch",
            batches[-1]["append"] / batches[-1]["batch"],
            1.5,
        ),
    ]

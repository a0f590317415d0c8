"""Results on disk, from which a run can be resumed: samples as Parquet; machine, figures and verdicts as JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.runner import Case, Outcome, Sample


class Results:
    """The results folder of one bench.

    Args:
        folder: It is created if it is missing.
        resume: Take what is already there for a case with the same settings instead of running it again.
    """

    def __init__(self, folder: Path, *, resume: bool = False) -> None:
        self.folder = folder
        self.resume = resume
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, outcome: Outcome, machine: dict[str, Any]) -> None:
        """Write a case's samples and notes."""
        name = _file_name(outcome.case.name)
        columns = {f.name: [getattr(s, f.name) for s in outcome.samples] for f in fields(Sample)}
        pq.write_table(pa.table(columns), self.folder / f"{name}.parquet")
        self.write(name, {"settings": settings(outcome.case), "machine": machine, "notes": outcome.notes})

    def load(self, case: Case) -> Outcome | None:
        """A finished run of the same case, if resuming was asked for."""
        samples, about = (self.folder / f"{_file_name(case.name)}{suffix}" for suffix in (".parquet", ".json"))
        if not (self.resume and samples.exists() and about.exists()):
            return None
        about_run = json.loads(about.read_text())
        if about_run["settings"] != settings(case):
            return None
        return Outcome(case, [Sample(**row) for row in pq.read_table(samples).to_pylist()], about_run["notes"])

    def write(self, name: str, content: dict[str, Any]) -> Path:
        """Write a JSON document, replacing an older one in one step."""
        path = self.folder / f"{name}.json"
        hidden = path.with_suffix(".json.new")
        hidden.write_text(json.dumps(content, indent=1, default=str) + "\n")
        hidden.rename(path)
        return path

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON document that `write` made, if resuming was asked for and it is there."""
        path = self.folder / f"{name}.json"
        if not (self.resume and path.exists()):
            return None
        content: dict[str, Any] = json.loads(path.read_text())
        return content


def settings(case: Case) -> dict[str, Any]:
    """What makes two runs of a case the same, as JSON would give it back."""
    return {
        "steps": case.steps,
        "repetitions": case.repetitions,
        "measures": [measure.name for measure in case.measures],
        "contestants": {c.name: [c.system.__name__, asdict(c.workload)] for c in case.contestants},
    }


def verdicts(aims: Iterable[Any]) -> list[dict[str, Any]]:
    """What was wanted, as JSON."""
    return [{**vars(w), "reached": w.reached} for w in aims]


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())


def total_updates(cases: Iterable[Case]) -> int:
    """For a progress bar."""
    return sum(case.turns for case in cases)

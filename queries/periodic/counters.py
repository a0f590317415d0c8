"""What a serving process has done since it was started."""

from collections import Counter
from dataclasses import dataclass, field

from windrow.queries.periodic.runner import RunReport


@dataclass
class ServerCounters:
    """What a process has done since it was started."""

    started: int
    leading: bool = False
    rounds: int = 0
    errors: int = 0
    last_error: str | None = None
    failing: str | None = None
    """The error of the last round, None if it went well."""
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def add(self, run: RunReport) -> None:
        """Count a run."""
        self.runs[run.query, run.outcome] += 1
        self.seconds[run.query] += run.seconds  # type: ignore[assignment]
        self.rows[run.query] += run.rows

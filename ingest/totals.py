"""What an ingest has brought in, counted as it goes: rows, rejected rows by reason, slides, heartbeats."""

from dataclasses import dataclass, field

from windrow.append import AppendReport


@dataclass
class Totals:
    """Since the ingest was started."""

    batches: int = 0
    duplicates: int = 0
    """Batches that had been appended before, and changed nothing."""
    rows: int = 0
    accepted: int = 0
    late: int = 0
    slides: int = 0
    heartbeats: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    """Rows rejected, by reason."""
    failure: str | None = None
    """Why it ended, if not because everything was read."""

    def add(self, report: AppendReport) -> None:
        """Count one batch."""
        if report.duplicate:
            self.duplicates += 1
            return
        self.batches += 1
        self.rows += report.rows
        self.accepted += report.accepted
        self.late += report.late
        for reason, count in report.rejected.items():
            self.rejected[reason] = self.rejected.get(reason, 0) + count

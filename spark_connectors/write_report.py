"""What became of rows: counted by the tasks, told by the driver. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

#: What a row can come to, in the order in which it is told.
ENDINGS = ("stored", "duplicates", "moved", "purged", "gone")
#: How many refused rows are named for each reason.
NAMED = 5


@dataclass(slots=True)
class Report:
    """Counts of a task, or of several together. Holds no bodies and no headers."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    #: For each reason, the first rows that were refused, and why.
    named: dict[str, list[str]] = field(default_factory=dict)
    #: Files with refused rows.
    files: list[str] = field(default_factory=list)

    def refuse(self, reason: str, row: str, why: str) -> None:
        """Count a row that was refused. `row` names it."""
        self.refused[reason] += 1
        names = self.named.setdefault(reason, [])
        if len(names) < NAMED:
            names.append(f"{row}: {why}" if not names else row)

    def add(self, other: Report) -> None:
        """Count what another one counted."""
        self.counts += other.counts
        self.refused += other.refused
        for reason, names in other.named.items():
            ours = self.named.setdefault(reason, [])
            ours += names[: NAMED - len(ours)]
        self.files += other.files

    @classmethod
    def total(cls, reports: Iterable[Report]) -> Report:
        """All of them together."""
        total = cls()
        for report in reports:
            total.add(report)
        return total

    def told(self) -> str:
        """One line: the counts that are not 0."""
        parts = [f"{self.counts[name]:,} {name}" for name in ENDINGS if self.counts[name]]
        if self.refused:
            parts.append(f"{self.refused.total():,} refused ({self._reasons()})")
        return ", ".join(parts) or "no rows"

    def complaint(self) -> str:
        """Why rows were refused: for each reason how many, and the first of them."""
        return "; ".join(
            f"{reason} {count:,} ({'; '.join(self.named[reason])}{', …' if count > len(self.named[reason]) else ''})"
            for reason, count in self.refused.most_common()
        )

    def _reasons(self) -> str:
        return ", ".join(f"{reason} {count:,}" for reason, count in self.refused.most_common())

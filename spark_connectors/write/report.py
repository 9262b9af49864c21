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

    #: By ending, and `late`: those of `stored` whose deadline had passed by then.
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    #: For each reason, the first rows that were refused, and why the very first was.
    named: dict[str, list[str]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    #: Files with refused rows.
    files: list[str] = field(default_factory=list)

    def refuse(self, reason: str, row: str, why: str) -> None:
        """Count a row that was refused. `row` names it."""
        self.refused[reason] += 1
        self.why.setdefault(reason, why)
        names = self.named.setdefault(reason, [])
        if len(names) < NAMED:
            names.append(row)

    def add(self, other: Report) -> None:
        """Count what another one counted."""
        self.counts += other.counts
        self.refused += other.refused
        for reason, names in other.named.items():
            ours = self.named.setdefault(reason, [])
            ours += names[: NAMED - len(ours)]
        self.why = {**other.why, **self.why}
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
        """Why rows were refused: for each reason how many, the first of them with the cause, and a few more."""
        return "; ".join(
            f"{reason} {count:,} ({self._named(reason, count)})" for reason, count in self.refused.most_common()
        )

    def _named(self, reason: str, count: int) -> str:
        first, *others = self.named[reason]
        more = ", …" if count > len(others) + 1 else ""
        return f"{first}: {self.why[reason]}{'; also ' + ', '.join(others) if others else ''}{more}"

    def _reasons(self) -> str:
        return ", ".join(f"{reason} {count:,}" for reason, count in self.refused.most_common())

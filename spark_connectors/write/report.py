"""The results of a write: tasks count them, and the driver logs and reports them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

#: The outcomes of a row, in the order of a summary. `unavailable`: the dead letter is deleted, leased or delayed.
OUTCOMES = ("stored", "duplicates", "moved", "purged", "unavailable")
#: The counter of the stored rows whose deadline had already passed.
LATE = "late"
#: The number of refused rows that a report names for each reason.
MAX_NAMED = 5
#: The number of queues that a report counts one by one. A mistaken column may name any number of missing ones.
MAX_QUEUES = 10_000


@dataclass(slots=True)
class Report:
    """The counts of a task, or the sum of several. A report holds no bodies and no headers."""

    #: Numbers of rows by outcome, and `late`.
    counts: Counter[str] = field(default_factory=Counter)
    #: Numbers of refused rows by reason.
    refused: Counter[str] = field(default_factory=Counter)
    #: The outcomes of each queue, and `refused`. `None` has rows without a valid name, and queues beyond `MAX_QUEUES`.
    queues: dict[str | None, Counter[str]] = field(default_factory=dict)
    #: For each reason, the names of the first refused rows, and the cause of the very first.
    named: dict[str, list[str]] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    #: Files with refused rows.
    files: list[str] = field(default_factory=list)

    def count(self, queue: str, outcome: str, rows: int) -> None:
        """Count rows of a queue. The queue is the one that the column or the option `queue` names."""
        self.counts[outcome] += rows
        self._of(queue)[outcome] += rows

    def refuse(self, reason: str, row: str, cause: str, queue: str | None = None) -> None:
        """Count a refused row. `row` is its name, and `queue` its queue, if that is a valid name."""
        self.refused[reason] += 1
        self._of(queue)["refused"] += 1
        self.causes.setdefault(reason, cause)
        names = self.named.setdefault(reason, [])
        if len(names) < MAX_NAMED:
            names.append(row)

    def add(self, other: Report) -> None:
        """Add the counts of another report."""
        self.counts += other.counts
        self.refused += other.refused
        for queue, counts in other.queues.items():
            self._of(queue).update(counts)
        for reason, names in other.named.items():
            own = self.named.setdefault(reason, [])
            own += names[: MAX_NAMED - len(own)]
        self.causes = {**other.causes, **self.causes}
        self.files += other.files

    @classmethod
    def total(cls, reports: Iterable[Report]) -> Report:
        """Return the sum of reports."""
        total = cls()
        for report in reports:
            total.add(report)
        return total

    def _of(self, queue: str | None) -> Counter[str]:
        if queue not in self.queues and len(self.queues) >= MAX_QUEUES:
            queue = None
        return self.queues.setdefault(queue, Counter())

    def summary(self) -> str:
        """Return the counts in one line, without zeros."""
        parts = [f"{self.counts[name]:,} {name}" for name in OUTCOMES if self.counts[name]]
        if self.refused:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.refused.most_common())
            parts.append(f"{self.refused.total():,} refused ({reasons})")
        return ", ".join(parts) or "no rows"

    def refusal_summary(self) -> str:
        """Return for each reason the number of refused rows, the first of them with its cause, and a few more."""
        return "; ".join(
            f"{reason} {count:,} ({self._named(reason, count)})" for reason, count in self.refused.most_common()
        )

    def _named(self, reason: str, count: int) -> str:
        first, *others = self.named[reason]
        more = ", …" if count > len(others) + 1 else ""
        return f"{first}: {self.causes[reason]}{'; also ' + ', '.join(others) if others else ''}{more}"

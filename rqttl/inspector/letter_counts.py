"""Dead letters of several queues, counted by source, reason, queue and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from rqttl.inspector.letters import LetterGroups, died_at
from rqttl.types import MessageView

#: The aspects by which letters can be counted.
ASPECTS = ("source", "reason", "hour", "queue")
#: Times are counted by the quarter of an hour: in some time zones an hour begins at a quarter of ours.
QUARTER = timedelta(minutes=15)
#: The last time that every time zone has. Only a damaged letter has a later one.
LATEST = datetime(9999, 12, 30, tzinfo=timezone.utc)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class LetterCounts:
    """The counts of letters, and the number of messages that never died and so are no letters."""

    def __init__(self) -> None:
        self._groups = LetterGroups()
        self._quarters: Counter[int] = Counter()
        self._queues: Counter[str] = Counter()
        self.never_died = 0

    def add(self, letter: MessageView) -> None:
        """Count a letter."""
        self._groups.add(letter)
        self._quarters[(min(died_at(letter), LATEST) - _EPOCH) // QUARTER] += 1
        self._queues[letter.queue] += 1

    @property
    def letters(self) -> int:
        """The number of letters."""
        return self._groups.total()

    @property
    def size(self) -> int:
        """The bytes of their bodies."""
        return self._groups.total("size")

    @property
    def not_ready(self) -> tuple[int, int]:
        """The numbers of leased and of delayed letters."""
        return self._groups.total("leased"), self._groups.total("delayed")

    @property
    def span(self) -> tuple[datetime, datetime]:
        """The times of the first and of the last death."""
        groups = self._groups.ordered()
        return min(group.oldest for group in groups), max(group.newest for group in groups)

    @property
    def quarters(self) -> dict[datetime, int]:
        """The number of letters for each quarter of an hour with a death, by its beginning, the earliest first."""
        return {_EPOCH + quarter * QUARTER: n for quarter, n in sorted(self._quarters.items())}

    def by(self, aspect: str) -> list[tuple[str, int]]:
        """The number of letters of each source, reason or queue, the largest first."""
        counts: Counter[str] = Counter()
        if aspect == "queue":
            counts = self._queues
        else:
            for group in self._groups.ordered():
                counts[str(getattr(group, aspect))] += group.count
        return sorted(counts.items(), key=lambda row: (-row[1], row[0]))

    def by_hour(self) -> dict[datetime, int]:
        """The number of letters for each hour of UTC with a death, the earliest first."""
        hours: Counter[datetime] = Counter()
        for at, n in self.quarters.items():
            hours[at.replace(minute=0)] += n
        return hours

    def to_json(self, names: Sequence[str], aspects: Iterable[str]) -> dict[str, Any]:
        """The counts of letters in the queues `names`, for `json_text.dump`."""
        (leased, delayed), (oldest, newest) = self.not_ready, self.span if self.letters else (None, None)
        tables = {aspect: self.by_hour().items() if aspect == "hour" else self.by(aspect) for aspect in aspects}
        return {
            "queues": list(names),
            "count": self.letters,
            "leased": leased,
            "delayed": delayed,
            "bytes": self.size,
            "oldest_at": oldest,
            "newest_at": newest,
            "never_died": self.never_died,
            "by": {aspect: [{aspect: key, "count": n} for key, n in rows] for aspect, rows in tables.items()},
        }

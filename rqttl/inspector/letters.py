"""Dead letters: read page by page, filtered, grouped and counted. Reading leases nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from rqttl.inspector.message_view import header_text
from rqttl.types import MessageView

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Messages in one page, and the approximate bytes of their bodies.
PAGE = 1_000
PAGE_BYTES = 1 << 22
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The last millisecond of a sequence.
_LAST_MS = 10**13 - 1
#: The aspects by which letters can be counted.
ASPECTS = ("source", "reason", "hour", "queue")
#: A time, or an age.
When = datetime | timedelta


def pages(queue: Queue, since: datetime | None = None) -> Iterator[list[MessageView]]:
    """All messages of a queue in order, in pages that fit into memory; with `since`, those that arrived then or later.

    A letter has arrived at its death or later, so no letter that died since then is missing.
    """
    limit, after = 20, _sequence_before(since) if since else None
    while page := queue.peek(limit, after=after):
        yield page
        after = page[-1].sequence
        size = sum(len(message.body) for message in page)
        limit = max(1, min(PAGE, PAGE_BYTES * len(page) // max(1, size)))


def _sequence_before(time: datetime) -> str:
    """The last sequence before a time."""
    ms = min((time - _EPOCH) // timedelta(milliseconds=1), _LAST_MS)
    return f"{max(1, ms) - 1:013d}-999999"


def died_at(message: MessageView) -> datetime:
    """The time of the latest death; the time of arrival if a message never died."""
    return message.deaths[0].last_at if message.deaths else message.enqueued_at


def _has_header(message: MessageView, name: str, expected: str) -> bool:
    """Return whether a message has this header. A value that is no text is compared as people see it."""
    if name not in message.headers:
        return False
    value = message.headers[name]
    return expected == (value if isinstance(value, str) else header_text(value))


def _as_time(when: When | None, now: datetime) -> datetime | None:
    return now - when if isinstance(when, timedelta) else when


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Conditions on the latest death, the headers and the id of a letter. A message that never died does not match."""

    sources: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    older_than: When | None = None
    newer_than: When | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ids: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Return whether there is no condition, so that every letter matches."""
        return self == LetterFilter()

    @property
    def is_age(self) -> bool:
        """Return whether the age of a letter is the only condition, or there is none."""
        return replace(self, older_than=None, newer_than=None).is_empty

    def since(self, now: datetime) -> datetime | None:
        """The time before which no matching letter died, if there is one; ages count from `now`."""
        return _as_time(self.newer_than, now)

    def at(self, now: datetime) -> Callable[[MessageView], bool]:
        """A function that tells whether a message matches; ages count from `now`."""
        before, since = _as_time(self.older_than, now), _as_time(self.newer_than, now)

        def matches(message: MessageView) -> bool:
            if not message.deaths:
                return False
            death = message.deaths[0]
            return (
                (not self.ids or message.id in self.ids)
                and (not self.sources or death.queue in self.sources)
                and (not self.reasons or death.reason in self.reasons)
                and (before is None or death.last_at < before)
                and (since is None or death.last_at >= since)
                and all(_has_header(message, name, value) for name, value in self.headers)
            )

        return matches


@dataclass(slots=True)
class LetterGroup:
    """Letters whose latest deaths have the same queue and reason. Of messages that never died both are None."""

    source: str | None
    reason: str | None
    oldest: datetime
    newest: datetime
    count: int = 0
    leased: int = 0
    delayed: int = 0
    size: int = 0

    def add(self, message: MessageView, died: datetime) -> None:
        """Count a message."""
        self.count += 1
        self.leased += message.state == "leased"
        self.delayed += message.state == "delayed"
        self.size += len(message.body)
        if died < self.oldest:
            self.oldest = died
        elif died > self.newest:
            self.newest = died


class LetterGroups:
    """Letters counted by source and reason."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str] | None, LetterGroup] = {}

    def add(self, message: MessageView) -> None:
        """Count a message."""
        death = message.deaths[0] if message.deaths else None
        died = died_at(message)
        key = (death.queue, death.reason) if death else None
        group = self._groups.get(key)
        if group is None:
            source, reason = key or (None, None)
            group = self._groups[key] = LetterGroup(source, reason, died, died)
        group.add(message, died)

    def total(self, field: Literal["count", "leased", "delayed", "size"] = "count") -> int:
        """The sum over all groups of their messages, or of the bytes of the bodies (`size`)."""
        return sum(getattr(group, field) for group in self._groups.values())

    def ordered(self) -> list[LetterGroup]:
        """The groups, the largest first, messages that never died last."""
        return sorted(self._groups.values(), key=lambda g: (g.reason is None, -g.count, g.source or "", g.reason or ""))

    def to_json(self) -> list[dict[str, Any]]:
        """All groups, for `json_text.dump`."""
        return [
            {
                "source": g.source,
                "reason": g.reason,
                "count": g.count,
                "leased": g.leased,
                "delayed": g.delayed,
                "bytes": g.size,
                "oldest_at": g.oldest,
                "newest_at": g.newest,
            }
            for g in self.ordered()
        ]


class LetterCounts:
    """The counts of letters, and the number of messages that never died and so are no letters."""

    def __init__(self) -> None:
        self._groups = LetterGroups()
        self._hours: Counter[datetime] = Counter()
        self._queues: Counter[str] = Counter()
        self.never_died = 0

    def add(self, letter: MessageView) -> None:
        """Count a letter."""
        self._groups.add(letter)
        self._hours[died_at(letter).replace(minute=0, second=0, microsecond=0)] += 1
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
    def hours(self) -> dict[datetime, int]:
        """The number of letters for each hour of UTC with a death, the earliest first."""
        return dict(sorted(self._hours.items()))

    def by(self, aspect: str) -> list[tuple[str, int]]:
        """The number of letters of each source, reason or queue, the largest first."""
        counts: Counter[str] = Counter()
        if aspect == "queue":
            counts = self._queues
        else:
            for group in self._groups.ordered():
                counts[str(getattr(group, aspect))] += group.count
        return sorted(counts.items(), key=lambda row: (-row[1], row[0]))

    def to_json(self, names: Sequence[str], aspects: Iterable[str]) -> dict[str, Any]:
        """The counts of letters in the queues `names`, for `json_text.dump`."""
        (leased, delayed), (oldest, newest) = self.not_ready, self.span if self.letters else (None, None)
        tables = {aspect: self.hours.items() if aspect == "hour" else self.by(aspect) for aspect in aspects}
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

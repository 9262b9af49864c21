"""Dead letters: read page by page, filtered, grouped and counted, put back and removed. Reading leases nothing."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Literal

from rqttl import text, units
from rqttl.checks import check_id, check_queue_name, key_and_value
from rqttl.errors import InvalidInput
from rqttl.inspector.message_view import header_text
from rqttl.options import REASONS
from rqttl.types import MessageView, RedriveResult, State

if TYPE_CHECKING:
    from rqttl.queue import Queue

#: Messages in one page, and the approximate bytes of their bodies.
PAGE = 1_000
PAGE_BYTES = 1 << 22
#: Dead letters that one step of `DeadLetters` puts back or removes.
BATCH = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: The last millisecond of a sequence.
_LAST_MS = 10**13 - 1
#: The aspects by which dead letters can be counted.
ASPECTS = ("source", "reason", "hour", "queue", "error")
#: The units by which deaths are counted, and the most rows of their table. Many deaths have a longer unit.
UNITS = {"hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}
MOST_TIMES = 49
#: A time, or an age.
When = datetime | timedelta
#: The longest text of an error, and what differs from one death to the next of the same error: quoted words, ids that
#: hold digits in hexadecimal or between letters, and numbers.
LONGEST_ERROR = 200
_VARIES = re.compile(
    r"""(?<!\w)(?:'[^']*'|"[^"]*"|`[^`]*`)(?!\w)"""
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b0x[0-9a-fA-F]+|\b(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b|\b(?=\w{8})[^\W\d]*\d+[^\W\d]+\d\w*"
    r"|\d+(?:[.,:]\d+)*|\*"
)


def pages(queue: Queue, since: datetime | None = None, state: State | None = None) -> Iterator[list[MessageView]]:
    """All messages of a queue in order, in pages that fit into memory; with `since`, those that arrived then or later.

    `state` is as for `Queue.peek`: without it, scheduled messages are left out.

    A dead letter has arrived at its death or later, so none that died since then is missing.
    """
    limit, after = 20, _sequence_before(since) if since else None
    while page := queue.peek(limit, after, state=state):
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


def _first_line(description: str | None) -> str:
    return next(iter((description or "").strip().splitlines()), "")


def error_of(message: MessageView) -> str:
    """The error of the latest death, alike for deaths of one cause; empty without a description.

    It is the first line of the description, with `…` for numbers, ids, quoted words and `*`, cut to 200 characters.
    """
    line = _first_line(message.deaths[0].description) if message.deaths else ""
    return _VARIES.sub("…", line)[:LONGEST_ERROR]


def _has_header(message: MessageView, name: str, expected: str) -> bool:
    """Return whether a message has this header. A value that is no text is compared as people see it."""
    if name not in message.headers:
        return False
    value = message.headers[name]
    return expected == (value if isinstance(value, str) else header_text(value))


def _as_time(when: When | None, now: datetime) -> datetime | None:
    return now - when if isinstance(when, timedelta) else when


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions on the latest death, the headers and the id of a message. One that never died does not match.

    `error` is the error as `error_of` returns it, or the whole first line of the description; `*` in it stands for any
    characters. An empty one selects deaths without a description.
    """

    sources: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    older_than: When | None = None
    newer_than: When | None = None
    headers: tuple[tuple[str, str], ...] = ()
    ids: frozenset[str] = frozenset()
    error: str | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is no condition, so that every dead letter matches."""
        return self == DeadLetterFilter()

    @property
    def is_age(self) -> bool:
        """Return whether the age is the only condition, or there is none."""
        return replace(self, older_than=None, newer_than=None).is_empty

    def since(self, now: datetime) -> datetime | None:
        """The time before which no matching message died, if there is one; ages count from `now`."""
        return _as_time(self.newer_than, now)

    def at(self, now: datetime) -> Callable[[MessageView], bool]:
        """A function that tells whether a message matches; ages count from `now`."""
        before, since = _as_time(self.older_than, now), _as_time(self.newer_than, now)
        # of what `fnmatch` knows only `*` is special here; its patterns do not run away as `.*` of `re` does
        pattern = re.compile(translate(re.sub(r"([?\[])", r"[\1]", self.error or "")))

        def has_error(message: MessageView) -> bool:
            return any(map(pattern.match, (error_of(message), _first_line(message.deaths[0].description))))

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
                and (self.error is None or has_error(message))
            )

        return matches


def read_error(value: str) -> str:
    """An error to look for. Raises `InvalidInput`."""
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes that are no text; control characters may stand in an error
        raise InvalidInput(f"error: expected text, got {value!r}") from None
    return value


def read_reason(value: str) -> str:
    """A reason of deaths, as people write it. Raises `InvalidInput`."""
    reason = value.lower().replace("-", "_")
    if reason not in REASONS:
        hint = text.did_you_mean(reason, REASONS, f"expected one of {', '.join(REASONS)}")
        raise InvalidInput(f"reason: no such reason {value!r}{hint}")
    return reason


def read_when(value: str) -> When:
    """An age such as 7d, or a time. Raises `InvalidInput`."""
    try:
        return units.as_timedelta(units.duration(value, "age"))
    except InvalidInput:
        pass
    try:
        return units.as_datetime(units.instant(value, "time"))
    except InvalidInput as error:
        line = str(error).replace("expected a time", "expected an age such as 7d, or a time", 1)
        raise InvalidInput(line) from None


#: The words of a filter, as flags of `rqttl dead` without their dashes; how their values are read, and their fields.
WORDS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "source": (check_queue_name, "sources"),
    "reason": (read_reason, "reasons"),
    "error": (read_error, "error"),
    "older-than": (read_when, "older_than"),
    "newer-than": (read_when, "newer_than"),
    "header": (key_and_value, "headers"),
    "id": (lambda value: check_id(value).decode(), "ids"),
}


def read_filter(words: Iterable[tuple[str, str]]) -> DeadLetterFilter:
    """The filter that pairs of a word and a value make, as flags of `rqttl dead` do. Raises `InvalidInput`."""
    fields: dict[str, Any] = {"sources": (), "reasons": (), "headers": (), "ids": ()}
    for word, value in words:
        if word not in WORDS:
            raise InvalidInput(f"filter: no such condition {word!r}; expected one of {', '.join(WORDS)}")
        read, name = WORDS[word]
        try:
            is_list = isinstance(fields.get(name), tuple)
            fields[name] = (*fields[name], read(value)) if is_list else read(value)
        except InvalidInput as error:
            raise InvalidInput(f"{word}: {str(error).partition(': ')[2]}") from None
    return DeadLetterFilter(**fields | {name: frozenset(fields[name]) for name in ("sources", "reasons", "ids")})


@dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters whose latest deaths have the same queue and reason. Both are None for messages that never died.

    Where errors are counted, they have the same `error`, too. `sample` is the sequence of the one that died last.
    """

    source: str | None
    reason: str | None
    oldest: datetime
    newest: datetime
    count: int = 0
    leased: int = 0
    delayed: int = 0
    size: int = 0
    error: str | None = None
    sample: str = ""


class DeadLetterCounts:
    """Messages counted by the source and the reason of their latest death, by its hour in UTC, and by queue.

    With `errors` they are also counted, and grouped, by the error of that death; see `error_of`.
    """

    def __init__(self, *, errors: bool = False) -> None:
        self._errors = errors
        self._groups: dict[tuple[str | None, ...], DeadLetterGroup] = {}
        self._hours: Counter[datetime] = Counter()
        self._queues: Counter[str] = Counter()

    def add(self, message: MessageView) -> None:
        """Count a message."""
        death, died = message.deaths[0] if message.deaths else None, died_at(message)
        source, reason = (death.queue, death.reason) if death else (None, None)
        error = error_of(message) if self._errors else None
        group = self._groups.get((source, reason, error))
        if group is None:
            group = DeadLetterGroup(source, reason, died, died, error=error)
            self._groups[source, reason, error] = group
        if died >= group.newest:
            group.sample = message.sequence
        group.count += 1
        group.leased += message.state == "leased"
        group.delayed += message.state == "delayed"
        group.size += len(message.body)
        group.oldest, group.newest = min(group.oldest, died), max(group.newest, died)
        self._hours[died.replace(minute=0, second=0, microsecond=0)] += 1
        self._queues[message.queue] += 1

    def total(self, field: Literal["count", "leased", "delayed", "size"] = "count") -> int:
        """The number of messages, or the bytes of their bodies (`size`)."""
        return sum(getattr(group, field) for group in self._groups.values())

    def ordered(self) -> list[DeadLetterGroup]:
        """The groups, the largest first, messages that never died last."""

        def place(group: DeadLetterGroup) -> tuple[bool, int, str, str, str]:
            return group.reason is None, -group.count, group.source or "", group.reason or "", group.error or ""

        return sorted(self._groups.values(), key=place)

    def to_json(self) -> list[dict[str, Any]]:
        """The groups, for `text.dump_json`."""
        return [
            {
                **{name: getattr(group, name) for name in ("source", "reason", "count", "leased", "delayed")},
                "bytes": group.size,
                "oldest_at": group.oldest,
                "newest_at": group.newest,
            }
            for group in self.ordered()
        ]

    @property
    def span(self) -> tuple[datetime, datetime] | tuple[None, None]:
        """The times of the first and of the last death."""
        if not self._groups:
            return None, None
        every = self._groups.values()
        return min(group.oldest for group in every), max(group.newest for group in every)

    @property
    def hours(self) -> dict[datetime, int]:
        """The number of messages for each hour with a death, the earliest first."""
        return dict(sorted(self._hours.items()))

    def by(self, aspect: str) -> list[tuple[str, int]]:
        """The number of messages of each source, reason, queue or error, the largest first."""
        counts = self._queues if aspect == "queue" else Counter[str]()
        if aspect != "queue":
            for group in self._groups.values():
                counts[str(getattr(group, aspect))] += group.count
        return sorted(counts.items(), key=lambda row: (-row[1], row[0]))


@dataclass(frozen=True, slots=True)
class Counted:
    """What was read of a queue: dead letters that match, counted, and the number of messages that never died.

    `is_all` is true if there was no more to read; `until` is the arrival of the last of the `read` messages.
    """

    counts: DeadLetterCounts
    read: int
    never_died: int
    until: datetime | None
    is_all: bool = True


def count_within(
    queue: Queue,
    wanted: DeadLetterFilter,
    now: datetime,
    *,
    most: int,
    seconds: float,
    errors: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Counted:
    """Count dead letters, the oldest first, until `most` messages are read, or so many seconds are over."""
    counts, ends, matches = DeadLetterCounts(errors=errors), clock() + seconds, wanted.at(now)
    read, never_died, until = 0, 0, None
    for page in pages(queue, wanted.since(now)):
        part = page[: most - read] if not read or clock() < ends else []
        for message in part:
            never_died += not message.deaths
            until = message.enqueued_at
            if matches(message):
                counts.add(message)
        read += len(part)
        if len(part) < len(page):
            return Counted(counts, read, never_died, until, is_all=False)
    return Counted(counts, read, never_died, until)


def count_times(hours: Mapping[datetime, int]) -> tuple[str, list[tuple[str, int]]]:
    """The shortest unit that has few rows, and the counts of its times."""
    for unit, form in UNITS.items():
        counts: Counter[str] = Counter()
        for at, n in hours.items():
            counts[at.strftime(form)] += n
        if len(counts) <= MOST_TIMES or unit == "year":
            return unit, list(counts.items())
    raise AssertionError  # a year is the longest unit


class DeadLetters:
    """The dead letters of a queue that match a filter. Select them; then put them back or remove them, and no others.

    Only ready ones are selected. Ages in the filter count from `now`, the time of the server. Every method works as far
    as its iterator is taken: so its caller shows the progress, and stops by taking no further step. A second call goes
    on there. A step of an action has up to `batch` of them.
    """

    def __init__(self, queue: Queue, wanted: DeadLetterFilter, now: datetime, batch: int = BATCH) -> None:
        self._batch, self._queue, self._wanted, self._matches = batch, queue, wanted, wanted.at(now)
        #: The selected ones, as sequences with the queues where they died.
        self._chosen: list[tuple[str, str]] = []
        #: The selected ones by where and why they died.
        self.groups = DeadLetterCounts()
        #: Ids in the filter that no dead letter has.
        self.missing = set(wanted.ids)
        #: Matches that are not ready, and messages that never died.
        self.leased = self.delayed = self.never_died = 0
        #: The selected ones that wait for their batch, and those that are put back or removed.
        self.left = self.done = 0
        #: Why others were not put back.
        self.stayed: list[RedriveResult] = []

    def select(self) -> Iterator[int]:
        """Read the queue and change nothing. Yields the number of messages in each page."""
        for page in pages(self._queue):
            for message in page:
                self.never_died += not message.deaths
                if not self._matches(message):
                    continue
                self.missing.discard(message.id)
                self.leased += message.state == "leased"
                self.delayed += message.state == "delayed"
                if message.state == "ready":
                    self.groups.add(message)
                    self._chosen.append((message.sequence, message.deaths[0].queue))
            self.left = len(self._chosen)
            yield len(page)

    def redrive(self, to: str | None = None) -> Iterator[int]:
        """Put them back into the queues where they died, or move all into `to`. Yields the size of each batch.

        See `Queue.redrive_many`; `stayed` has the result of each one that was not moved.
        """

        def put_back(batch: Sequence[tuple[str, str]]) -> int:
            results = self._queue.redrive_many([(sequence, to or origin) for sequence, origin in batch])
            self.stayed += [result for result in results if result.outcome != "moved"]
            return sum(result.outcome == "moved" for result in results)

        return self._in_batches(put_back)

    def purge(self) -> Iterator[int]:
        """Remove them. Yields the size of each batch.

        See `Queue.purge_many`: those that only their age selects, or nothing, count as `unread`.
        """
        unread = self._wanted.is_age
        return self._in_batches(lambda batch: self._queue.purge_many([letter for letter, _ in batch], unread=unread))

    def _in_batches(self, act: Callable[[Sequence[tuple[str, str]]], int]) -> Iterator[int]:
        while self.left:
            batch = self._chosen[-self.left :][: self._batch]
            self.done += act(batch)
            self.left -= len(batch)
            yield len(batch)

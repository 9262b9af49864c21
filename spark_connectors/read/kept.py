"""The messages that the driver has read to find the end of a batch, kept for the tasks that would read them again.

Redis sends an entry of a log as a whole or not at all. So a driver that counts messages reads their bodies, too. Each
task gets what the driver has read of its ranges, up to the size at which Spark warns about large tasks. Messages beyond
the end of a batch serve the next batch, as long as no message has left their queue in the meantime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from spark_connectors.ranges import Range, sequence_number, sequence_text
from spark_connectors.read.watch import WatchedRange
from spark_connectors.redis.digits import Array
from spark_connectors.redis.pages import Page

#: The most bytes that are kept, and the most that a task gets: Spark warns about tasks of more than 1,000 KiB.
_MOST, _MOST_OF_TASK = 4 * 2**20, 768 * 1024
#: The bytes that the pickle of a page has for each entry beside its own, and for itself with its range.
_OF_ENTRY, _OF_PAGE = 20, 250

#: Pages with all messages of a range; `None` for a range that is not kept.
Kept: TypeAlias = tuple[Page, ...] | None
#: A part of a range, as numbers of sequences `(after, upto]`, and its messages.
_Piece: TypeAlias = tuple[int, int, Kept]


@dataclass(frozen=True, slots=True)
class LogVersion:
    """The log of a queue at one moment: how many messages have arrived in it, and how many have left it.

    `removed` is a little less if messages arrived while it was read.
    """

    created_at: int
    enqueued: int
    removed: int

    def still_has(self, earlier: LogVersion) -> bool:
        """True if this log still has all messages of the earlier one. With fewer arrivals it is an older state."""
        same = self.created_at == earlier.created_at and self.enqueued >= earlier.enqueued
        return same and self.removed <= earlier.removed


@dataclass(frozen=True, slots=True)
class _KeptPage:
    """All messages in `(after, upto]`, as numbers of sequences: the number of each, and their page."""

    after: int
    upto: int
    numbers: Array
    page: Page

    def slice(self, after: int, upto: int) -> Page:
        """Return the messages in `(after, upto]`."""
        begin, end = np.searchsorted(self.numbers, [after, upto], "right").tolist()
        return self.page[begin:end]


class PageKeeper:
    """Keeps pages for the tasks of a query, `most` bytes at most. Pages that do not fit are not kept.

    A task gets `most_of_task` bytes at most, and reads the rest.
    """

    def __init__(self, most: int = _MOST, most_of_task: int = _MOST_OF_TASK) -> None:
        self._most = self._room = most
        self._most_of_task = most_of_task
        self._versions: dict[str, LogVersion] = {}
        self._pages: dict[str, list[_KeptPage]] = {}

    def clear(self) -> None:
        """Forget all pages."""
        self.begin({})

    def begin(self, queues: Mapping[str, tuple[int, LogVersion]]) -> None:
        """Begin a batch: forget all pages but those of these queues, after a number, that their logs still have."""
        versions = {name: version for name, (_, version) in queues.items()}
        pages: dict[str, list[_KeptPage]] = {}
        for name, (after, version) in queues.items():
            before = self._versions.get(name)
            if before is not None and version.still_has(before):
                versions[name] = replace(version, removed=before.removed)
                pages[name] = [page for page in self._pages.get(name, ()) if page.upto > after]
        self._versions, self._pages = versions, pages
        self._room = self._most - sum(size(kept.page) for of_queue in pages.values() for kept in of_queue)

    def add(self, queue: str, after: int, upto: int, numbers: Array, page: Page) -> None:
        """Keep a page with all messages of a log in `(after, upto]`. `numbers` are those of their sequences."""
        if (needed := size(page)) <= self._room and after < upto:
            self._room -= needed
            self._pages.setdefault(queue, []).append(_KeptPage(after, upto, numbers, page.compact()))

    def pieces(self, task: Sequence[WatchedRange]) -> list[WatchedRange]:
        """Cut the ranges of a task into those with kept messages and those that it has to read, in their order.

        A task reads messages that may leave the log together with those outside it, so such a range stays whole.
        """
        room, pieces = self._most_of_task, list[WatchedRange]()
        for watched in task:
            if watched.range.detached:
                pieces.append(watched)
                continue
            cuts = self._cut(watched.range, room)
            room -= sum(size(page) for *_, kept in cuts for page in kept or ())
            pieces += [replace(watched, range=part, kept=kept) for part, kept in _with_rows(watched.range, cuts)]
        return pieces

    def _cut(self, part: Range, room: int) -> list[_Piece]:
        """Cut a range into pieces, in order. The kept ones have at most `room` bytes."""
        at, end = sequence_number(part.after), sequence_number(part.upto)
        pieces: list[_Piece] = []
        for whole in sorted(self._pages.get(part.queue, ()), key=lambda whole: whole.after):
            begin, upto = max(at, whole.after), min(end, whole.upto)
            if begin >= upto or (needed := size(page := whole.slice(begin, upto))) > room:
                continue
            room -= needed
            if at < begin:
                pieces.append((at, begin, None))
            before = pieces.pop() if pieces and pieces[-1][2] is not None else (begin, begin, ())
            pieces.append((before[0], upto, (*(before[2] or ()), page)))
            at = upto
        return [*pieces, (at, end, None)] if at < end else pieces


def size(page: Page) -> int:
    """Return the approximate bytes of the pickle of a page."""
    return page.reply_size + len(page) * _OF_ENTRY + _OF_PAGE


def _with_rows(part: Range, pieces: Sequence[_Piece]) -> list[tuple[Range, Kept]]:
    """Make ranges of pieces. The rows of kept ones are exact; each other one has at most the rest of the rows."""
    left = max(1, part.rows - sum(len(page) for *_, kept in pieces for page in kept or ()))
    return [
        (
            replace(
                part,
                after=sequence_text(after),
                upto=sequence_text(upto),
                rows=left if kept is None else sum(map(len, kept)),
            ),
            kept,
        )
        for after, upto, kept in pieces
    ]

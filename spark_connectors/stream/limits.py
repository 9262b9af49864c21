"""Sharing the limit of a batch out over queues: fairly, exactly, and so that none starves. Pure.

All get the same share, and what one does not need goes to the others, in rounds. What cannot be divided goes round: the
next batch begins with the first queue that got nothing in this one. It takes one message in any case, so a message that
is larger than a share, or than the whole limit, is read as well. Only so is a limit ever exceeded: by a batch of one
message.

Nothing here asks Redis: `share_out` says what to look up, and is told what was found.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

#: How many queues are asked at once for a single message.
_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Wish:
    """Look how far one can read in a queue, in `(after, upto]`, for so much; in any case one message if `one`."""

    queue: str
    after: str
    upto: str
    budget: int
    one: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """So many messages, of that many units of the limit, up to `after`. `done`: nothing lies between it and `upto`."""

    after: str
    rows: int
    amount: int
    done: bool


@dataclass(slots=True)
class Part:
    """What a batch reads of one queue, so far."""

    after: str
    upto: str
    rows: int = 0
    amount: int = 0
    done: bool = False

    def add(self, found: Found) -> int:
        """Read on; returns what that costs."""
        self.after, self.done = found.after, found.done
        self.rows, self.amount = self.rows + found.rows, self.amount + found.amount
        return found.amount


Asking = Generator[list[Wish], list[Found], None]


class ShareOut:
    """One batch of at most `limit` units (messages or bytes) from these queues, which may all hold something."""

    def __init__(self, limit: int, parts: Mapping[str, Part], turn: str = "") -> None:
        names = sorted(parts)
        begin = next((i for i, name in enumerate(names) if name >= turn), 0)
        self.order = names[begin:] + names[:begin]
        self.parts = dict(parts)
        self._left = limit

    @property
    def turn(self) -> str:
        """The queue to begin with next time; empty if none has more."""
        names = self._open()
        hungry = (name for name in names if not self.parts[name].rows)
        return next(hungry, next(iter(names[1:] + names[:1]), ""))

    def run(self) -> Asking:
        """Yields what to look up, and wants the answers in the same order; `parts` has the result in the end."""
        yield from self._serve_first()
        while self._left > 0 and (budgets := self._budgets(self._open())):
            wishes = [self._wish(name, budget) for name, budget in budgets.items()]
            progress = yield from self._ask(wishes)
            if not progress and not (yield from self._ask([self._wish(name, 1, one=True) for name in self._open()])):
                return

    def _open(self) -> list[str]:
        return [name for name in self.order if not self.parts[name].done]

    def _wish(self, name: str, budget: int, *, one: bool = False) -> Wish:
        return Wish(name, self.parts[name].after, self.parts[name].upto, budget, one)

    def _serve_first(self) -> Asking:
        """One message for the first that has any. Those asked in vain are done."""
        for i in range(0, len(self.order), _CHUNK):
            chunk = self.order[i : i + _CHUNK]
            answers = yield [self._wish(name, 1, one=True) for name in chunk]
            for name, found in zip(chunk, answers, strict=True):
                self._left -= self.parts[name].add(found)
                if found.rows:
                    return

    def _budgets(self, names: list[str]) -> dict[str, int]:
        """What each may take so that all have got the same; if too little is left for that, one unit for some."""
        behind = sorted(names, key=lambda name: self.parts[name].amount)
        had = sum(self.parts[name].amount for name in behind)
        while behind and self.parts[behind[-1]].amount * len(behind) >= self._left + had:
            had -= self.parts[behind.pop()].amount
        level = (self._left + had) // max(1, len(behind))
        shares = {name: level - self.parts[name].amount for name in behind}
        return {name: share for name, share in shares.items() if share} or dict.fromkeys(behind[: self._left], 1)

    def _ask(self, wishes: list[Wish]) -> Generator[list[Wish], list[Found], bool]:
        """Take what still fits; returns whether anything has changed."""
        changed = False
        for wish, found in zip(wishes, (yield wishes), strict=True):
            if found.amount <= self._left and (found.rows or found.done):
                self._left -= self.parts[wish.queue].add(found)
                changed = True
        return changed

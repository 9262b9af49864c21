"""Looking at queues in a test: what is in them, what died in them, and how many there are of what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from rqttl import codec
from rqttl.errors import InvalidInput
from rqttl.queue import Queue
from rqttl.text import shown
from rqttl.types import Peeked, QueueStats, State

_PAGE = 250
_SHOWN = 10
_STATES = get_args(State)


def messages(queue: Queue, state: State | None = None) -> list[Peeked]:
    """All messages in the queue, or those in one state (`ready`, `leased`, `delayed`), in order.

    What is due happens first, so nothing that has expired is among them. Otherwise nothing changes.
    """
    if state is not None and state not in _STATES:
        raise InvalidInput(f"state: expected one of {', '.join(_STATES)}, got {shown(state)}")
    queue.sweep()
    return [one for one in _all(queue) if state in (None, one.state)]


def bodies(found: Queue | Iterable[Peeked]) -> list[Any]:
    """The values that were sent (or the bytes), in order: of all messages in a queue, or of messages that were found.

    `bodies(orders)`, `bodies(messages(orders, "leased"))`, `bodies(dead_letters(orders))`.
    """
    shown = messages(found) if isinstance(found, Queue) else found
    return [codec.unpack(one.body) if one.content_type == codec.MSGPACK else one.body for one in shown]


def dead_letters(queue: Queue, reason: str | None = None) -> list[Peeked]:
    """The dead letters of a queue, in the order of their deaths, wherever they went.

    They are those messages in other queues of the broker whose newest death was in this one (`letter.deaths[0]` says
    why and when), or only those that died for `reason`. What is due in the queue happens first. A letter that has died
    once more in its dead-letter queue is one of that queue; one that was acked, or dropped for lack of a target, is
    nowhere (`queue.stats().deaths` and `.dropped` count them all).
    """
    queue.sweep()
    letters = []
    for name in queue.broker.queues():
        if name != queue.name:
            letters += [one for one in _all(queue.broker.queue(name)) if _died_in(one, queue.name, reason)]
    return sorted(letters, key=lambda one: (one.deaths[0].last_at, one.sequence))


def assert_depth(queue: Queue, depth: int, state: State | Literal["all"] = "ready") -> None:
    """Assert that so many messages are in the queue in this state: `ready`, `leased`, `delayed`, or in `all`.

    What is due happens first. The failure says what is there instead.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    if state not in (*_STATES, "all"):
        raise InvalidInput(f"state: expected one of {', '.join(_STATES)}, all, got {shown(state)}")
    stats = queue.stats()
    counts = {one: getattr(stats, one) for one in _STATES}
    found = sum(counts.values()) if state == "all" else counts[state]
    if found != depth:
        raise AssertionError("\n".join(_difference(queue, depth, state, found, stats)))


def _all(queue: Queue) -> list[Peeked]:
    found: list[Peeked] = []
    while page := queue.peek(_PAGE, found[-1].sequence if found else None):
        found += page
    return found


def _died_in(letter: Peeked, queue: str, reason: str | None) -> bool:
    return bool(letter.deaths) and letter.deaths[0].queue == queue and reason in (None, letter.deaths[0].reason)


def _difference(queue: Queue, depth: int, state: str, found: int, stats: QueueStats) -> list[str]:
    what = "messages in all" if state == "all" else f"{state} messages"
    states = ", ".join(f"{one} {getattr(stats, one)}" for one in _STATES)
    deaths = ", ".join(f"{reason} {count}" for reason, count in stats.deaths.items() if count)
    there = queue.peek(_SHOWN + 1)
    told = [
        f"queue {queue.name!r}: expected {depth} {what}, found {found}",
        f"  now: {states}; so far: enqueued {stats.enqueued}, acked {stats.acked}, deaths: {deaths or 'none'}",
        *(f"  {one.state}: {one.id} {_short(one.body)}" for one in there[:_SHOWN]),
    ]
    return [*told, "  ..."] if len(there) > _SHOWN else told


def _short(body: bytes) -> str:
    return repr(body) if len(body) <= 40 else f"{body[:40]!r}... ({len(body):,} bytes)"

"""Looking at queues in a test: what is in them, what died in them, and how many there are of what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from rqttl import checks
from rqttl.errors import InvalidInput
from rqttl.options import REASONS
from rqttl.protocol import codec
from rqttl.queue import Queue
from rqttl.text import plain_text, shown
from rqttl.types import MessageView, QueueStats, State

_PAGE = 250
_SHOWN = 10
_MOST = 2**53 - 1
_STATES = get_args(State)


def messages(queue: Queue, state: State | None = None) -> list[MessageView]:
    """All messages in the queue, or those in one state (`ready`, `leased`, `delayed`), in order.

    What is due happens first, so nothing that has expired is among them. Otherwise nothing changes.
    """
    _check_queue(queue)
    wanted = plain_text(state)
    if state is not None and wanted not in _STATES:
        raise InvalidInput(f"state: expected one of {', '.join(_STATES)}, got {shown(state)}")
    queue.sweep()
    return [one for one in _all(queue) if wanted in (None, one.state)]


def bodies(found: Queue | Iterable[MessageView]) -> list[Any]:
    """The values that were sent (or the bytes), in order: of all messages in a queue, or of messages that were found.

    `bodies(orders)`, `bodies(messages(orders, "leased"))`, `bodies(dead_letters(orders))`.
    """
    peeked = messages(found) if isinstance(found, Queue) else checks.items(found, "found", "a queue or messages")
    for one in peeked:
        if not isinstance(one, MessageView):
            raise InvalidInput(f"found: expected messages as `peek` shows them, got {shown(one)}")
    return [codec.unpack(one.body) if one.content_type == codec.MSGPACK else one.body for one in peeked]


def dead_letters(queue: Queue, reason: str | None = None) -> list[MessageView]:
    """The dead letters of a queue, in the order of their deaths, wherever they went.

    They are those messages in other queues of the broker whose newest death was in this one (`letter.deaths[0]` says
    why and when), or only those that died for `reason`. What is due in the queue happens first. A letter that has died
    once more in its dead-letter queue is one of that queue; one that was acked, or dropped for lack of a target, is
    nowhere (`queue.stats().deaths` and `.dropped` count them all).
    """
    _check_queue(queue)
    if reason is not None and plain_text(reason) not in REASONS:
        raise InvalidInput(f"reason: expected one of {', '.join(REASONS)}, got {shown(reason)}")
    reason = plain_text(reason)
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
    _check_queue(queue)
    depth = checks.whole(depth, "depth", 0, _MOST)
    place = plain_text(state)
    if place is None or place not in (*_STATES, "all"):
        raise InvalidInput(f"state: expected one of {', '.join(_STATES)}, all, got {shown(state)}")
    stats = queue.stats()
    counts = {one: getattr(stats, one) for one in _STATES}
    found = sum(counts.values()) if place == "all" else counts[place]
    if found != depth:
        raise AssertionError("\n".join(_difference(queue, depth, place, found, stats)))


def _check_queue(queue: object) -> None:
    if not isinstance(queue, Queue):
        raise InvalidInput(f"queue: expected a Queue, got {shown(queue)}")


def _all(queue: Queue) -> list[MessageView]:
    found: list[MessageView] = []
    while page := queue.peek(_PAGE, found[-1].sequence if found else None):
        found += page
    return found


def _died_in(letter: MessageView, queue: str, reason: str | None) -> bool:
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

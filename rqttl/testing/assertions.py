"""Assertions of a test about queues: their messages, their dead letters, and the number of messages in a state.

They take an `AsyncQueue` of a fake broker, too, without `await`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, get_args

from rqttl import checks
from rqttl.aio.broker import AsyncQueue
from rqttl.errors import InvalidInput
from rqttl.flows import reading
from rqttl.options import REASONS
from rqttl.protocol import codec
from rqttl.queue import Queue
from rqttl.store.driver import RedisDriver, driver_of
from rqttl.text import format_value
from rqttl.types import MessageView, QueueStats, State

_PAGE = 250
_LISTED = 10
_STATES = get_args(State)


def messages(queue: Queue | AsyncQueue, state: State | None = None) -> list[MessageView]:
    """Return all messages in the queue, or those in one state (`ready`, `leased`, `delayed`, `scheduled`), in order.

    Scheduled ones come last, in the order of their due times. Due work is done first, so no message has expired.
    Nothing else changes.
    """
    queue = _sync(queue)
    wanted = _STATES if state is None else (checks.choice(state, "state", _STATES),)
    queue.sweep()
    return [message for message in [*_all(queue), *_all(queue, "scheduled")] if message.state in wanted]


def bodies(queue_or_messages: Queue | AsyncQueue | Iterable[MessageView]) -> list[Any]:
    """Return the values that were sent (or the bytes), in order: of all messages in a queue, or of given messages.

    `bodies(orders)`, `bodies(messages(orders, "leased"))`, `bodies(dead_letters(orders))`.
    """
    if isinstance(queue_or_messages, (Queue, AsyncQueue)):
        queue_or_messages = messages(queue_or_messages)
    return [
        codec.unpack(message.body) if message.content_type == codec.MSGPACK else message.body
        for message in queue_or_messages
    ]


def dead_letters(queue: Queue | AsyncQueue, reason: str | None = None) -> list[MessageView]:
    """Return the dead letters of a queue, in the order of their deaths, wherever they went.

    A dead letter is a message in another queue of the broker whose newest death was in this queue. Its
    `deaths[0]` says why and when. `reason` selects some of them. Due work of the queue is done first. A dead letter
    that has died once more belongs to the queue of that death. One that was acked, or dropped for lack of a target, is
    nowhere (`queue.stats().deaths` and `.dropped` count them all).
    """
    queue = _sync(queue)
    wanted = REASONS if reason is None else (checks.choice(reason, "reason", REASONS),)
    queue.sweep()
    driver = driver_of(queue)
    others = [name for name in driver.perform(reading.names(driver.keyspace)) if name != queue.name]
    dead = [
        message
        for name in others
        for message in _all(Queue(driver, name))
        if message.deaths and message.deaths[0].queue == queue.name and message.deaths[0].reason in wanted
    ]
    return sorted(dead, key=lambda message: (message.deaths[0].last_at, message.sequence))


def assert_depth(queue: Queue | AsyncQueue, depth: int, state: State | Literal["all"] = "ready") -> None:
    """Assert the number of messages in the queue in a state: `ready`, `leased`, `delayed`, `scheduled`, or in `all`.

    Due work is done first. The failure shows the messages of the queue.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    queue = _sync(queue)
    place = checks.choice(state, "state", (*_STATES, "all"))
    stats = queue.stats()
    counts = {name: getattr(stats, name) for name in _STATES}
    actual = sum(counts.values()) if place == "all" else counts[place]
    if actual != depth:
        raise AssertionError("\n".join(_difference(queue, depth, place, actual, stats)))


def _sync(queue: object) -> Queue:
    """Return a queue, or the sync twin of one of an asyncio fake broker, so that no assertion needs an `await`."""
    if isinstance(queue, Queue):
        return queue
    driver = getattr(getattr(queue, "_driver", None), "sync", None)
    if isinstance(queue, AsyncQueue) and isinstance(driver, RedisDriver):
        return Queue(driver, queue.name)
    raise InvalidInput(f"queue: expected a Queue, or an AsyncQueue of a fake broker, got {format_value(queue)}")


def _all(queue: Queue, state: State | None = None) -> list[MessageView]:
    peeked: list[MessageView] = []
    while page := queue.peek(_PAGE, peeked[-1].sequence if peeked else None, state=state):
        peeked += page
    return peeked


def _difference(queue: Queue, depth: int, state: str, actual: int, stats: QueueStats) -> list[str]:
    subject = "messages in all" if state == "all" else f"{state} messages"
    states = ", ".join(f"{name} {getattr(stats, name)}" for name in _STATES)
    deaths = ", ".join(f"{reason} {count}" for reason, count in stats.deaths.items() if count)
    head = [*queue.peek(_LISTED + 1), *queue.scheduled(_LISTED + 1)][: _LISTED + 1]
    lines = [
        f"queue {queue.name!r}: expected {depth} {subject}, found {actual}",
        f"  now: {states}; so far: enqueued {stats.enqueued}, acked {stats.acked}, deaths: {deaths or 'none'}",
        *(f"  {message.state}: {message.id} {_short(message.body)}" for message in head[:_LISTED]),
    ]
    return [*lines, "  ..."] if len(head) > _LISTED else lines


def _short(body: bytes) -> str:
    return repr(body) if len(body) <= 40 else f"{body[:40]!r}... ({len(body):,} bytes)"

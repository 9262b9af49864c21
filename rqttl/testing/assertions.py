"""Assertions of a test about queues: their messages, their dead letters, and the number of messages in a state.

They take an `AsyncQueue` of a fake broker, too, without `await`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from rqttl import checks
from rqttl.aio.queue import AsyncQueue
from rqttl.errors import InvalidInput
from rqttl.flows import reading
from rqttl.options import REASONS
from rqttl.protocol import codec
from rqttl.queue import Queue
from rqttl.store.driver import driver_of
from rqttl.testing.async_fake import AsyncClockedDriver
from rqttl.text import format_value, plain_text
from rqttl.types import MessageView, QueueStats, State

_PAGE = 250
_LISTED = 10
_MOST = 2**53 - 1
_STATES = get_args(State)


def messages(queue: Queue | AsyncQueue, state: State | None = None) -> list[MessageView]:
    """Return all messages in the queue, or those in one state (`ready`, `leased`, `delayed`), in order.

    Due work is done first, so no message has expired. Nothing else changes.
    """
    queue = _sync(queue)
    state_name = plain_text(state)
    if state is not None and state_name not in _STATES:
        raise InvalidInput(f"state: expected one of {', '.join(_STATES)}, got {format_value(state)}")
    queue.sweep()
    return [message for message in _all(queue) if state_name in (None, message.state)]


def bodies(queue_or_messages: Queue | AsyncQueue | Iterable[MessageView]) -> list[Any]:
    """Return the values that were sent (or the bytes), in order: of all messages in a queue, or of given messages.

    `bodies(orders)`, `bodies(messages(orders, "leased"))`, `bodies(dead_letters(orders))`.
    """
    peeked: list[MessageView] = []
    for message in _messages_of(queue_or_messages):
        if not isinstance(message, MessageView):
            raise InvalidInput(
                f"queue_or_messages: expected messages as `peek` shows them, got {format_value(message)}"
            )
        peeked.append(message)
    return [codec.unpack(message.body) if message.content_type == codec.MSGPACK else message.body for message in peeked]


def dead_letters(queue: Queue | AsyncQueue, reason: str | None = None) -> list[MessageView]:
    """Return the dead letters of a queue, in the order of their deaths, wherever they went.

    A dead letter is a message in another queue of the broker whose newest death was in this queue. Its
    `deaths[0]` says why and when. `reason` selects some of them. Due work of the queue is done first. A dead letter
    that has died once more belongs to the queue of that death. One that was acked, or dropped for lack of a target, is
    nowhere (`queue.stats().deaths` and `.dropped` count them all).
    """
    queue = _sync(queue)
    if reason is not None and plain_text(reason) not in REASONS:
        raise InvalidInput(f"reason: expected one of {', '.join(REASONS)}, got {format_value(reason)}")
    reason = plain_text(reason)
    queue.sweep()
    dead = []
    driver = driver_of(queue)
    for name in driver.perform(reading.names(driver.keyspace)):
        if name != queue.name:
            dead += [message for message in _all(Queue(driver, name)) if _died_in(message, queue.name, reason)]
    return sorted(dead, key=lambda message: (message.deaths[0].last_at, message.sequence))


def assert_depth(queue: Queue | AsyncQueue, depth: int, state: State | Literal["all"] = "ready") -> None:
    """Assert the number of messages in the queue in a state: `ready`, `leased`, `delayed`, or in `all`.

    Due work is done first. The failure shows the messages of the queue.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    queue = _sync(queue)
    depth = checks.whole(depth, "depth", 0, _MOST)
    place = plain_text(state)
    if place is None or place not in (*_STATES, "all"):
        raise InvalidInput(f"state: expected one of {', '.join(_STATES)}, all, got {format_value(state)}")
    stats = queue.stats()
    counts = {name: getattr(stats, name) for name in _STATES}
    actual = sum(counts.values()) if place == "all" else counts[place]
    if actual != depth:
        raise AssertionError("\n".join(_difference(queue, depth, place, actual, stats)))


def _messages_of(queue_or_messages: object) -> Sequence[object]:
    if isinstance(queue_or_messages, (Queue, AsyncQueue)):
        return messages(queue_or_messages)
    return checks.items(queue_or_messages, "queue_or_messages", "a queue or messages")


def _sync(queue: object) -> Queue:
    """Return a queue, or the sync twin of one of an asyncio fake broker, so that no assertion needs an `await`."""
    if isinstance(queue, Queue):
        return queue
    driver = getattr(queue, "_driver", None)
    if isinstance(queue, AsyncQueue) and isinstance(driver, AsyncClockedDriver):
        return Queue(driver.sync, queue.name)
    raise InvalidInput(f"queue: expected a Queue, or an AsyncQueue of a fake broker, got {format_value(queue)}")


def _all(queue: Queue) -> list[MessageView]:
    peeked: list[MessageView] = []
    while page := queue.peek(_PAGE, peeked[-1].sequence if peeked else None):
        peeked += page
    return peeked


def _died_in(message: MessageView, queue: str, reason: str | None) -> bool:
    return bool(message.deaths) and message.deaths[0].queue == queue and reason in (None, message.deaths[0].reason)


def _difference(queue: Queue, depth: int, state: str, actual: int, stats: QueueStats) -> list[str]:
    subject = "messages in all" if state == "all" else f"{state} messages"
    states = ", ".join(f"{name} {getattr(stats, name)}" for name in _STATES)
    deaths = ", ".join(f"{reason} {count}" for reason, count in stats.deaths.items() if count)
    head = queue.peek(_LISTED + 1)
    lines = [
        f"queue {queue.name!r}: expected {depth} {subject}, found {actual}",
        f"  now: {states}; so far: enqueued {stats.enqueued}, acked {stats.acked}, deaths: {deaths or 'none'}",
        *(f"  {message.state}: {message.id} {_short(message.body)}" for message in head[:_LISTED]),
    ]
    return [*lines, "  ..."] if len(head) > _LISTED else lines


def _short(body: bytes) -> str:
    return repr(body) if len(body) <= 40 else f"{body[:40]!r}... ({len(body):,} bytes)"

"""Dead letters for tests, thousands in a second, made by the public API."""

from collections.abc import Callable

from rqttl import Broker, Message, Queue

_CHUNK = 1_000

Make = Callable[[int], Message | object]


def numbered(i: int) -> Message:
    """The i-th message, of about 200 bytes."""
    return Message({"number": i, "text": "x" * 170}, id=f"m-{i}", headers={"region": ("eu", "us")[i % 2], "attempt": i})


def uneven(i: int) -> Message:
    """The i-th message, of 3 to 1,602 bytes."""
    return Message(b"x" * (3 + i * i * 37 % 1_600))


def bury(
    broker: Broker,
    count: int,
    *,
    into: str = "orders/dead",
    source: str = "orders",
    reason: str = "maxlen",
    make: Make = numbered,
    first: int = 0,
) -> Queue:
    """Have `count` messages of `source` die for `reason` (a key of `DEATHS`), oldest first; gives the queue `into`.

    `make(i)` is called for i from `first` on. `source` is declared, its letters all go to `into`, and it is left empty.
    """
    queue = broker.declare_queue(source, dead_letter=into, dead_letter_rejected=into)
    for start in range(first, first + count, _CHUNK):
        chunk = [make(i) for i in range(start, min(start + _CHUNK, first + count))]
        queue.enqueue_many(chunk)
        DEATHS[reason](queue, len(chunk))
    return broker.queue(into)


def _by_length(queue: Queue, count: int) -> None:
    queue.update(max_length=0)
    queue.update(max_length=None)


def _by_rejection(queue: Queue, count: int) -> None:
    queue.reject_many(queue.receive_many(count), "no such item")


def _by_age(queue: Queue, count: int) -> None:
    queue.update(message_ttl=0)
    queue.sweep()
    queue.update(message_ttl=None)


DEATHS: dict[str, Callable[[Queue, int], None]] = {"maxlen": _by_length, "rejected": _by_rejection, "expired": _by_age}

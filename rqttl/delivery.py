"""A delivery: a message that was handed out, and the right to settle it while its lease lasts.

Handlers of workers, of `Queue.run` and of `with delivery:` may decide about it by an exception.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar
from zlib import crc32

from rqttl import events as hook
from rqttl import units
from rqttl.checks import cut_description
from rqttl.errors import AlreadySettled, InvalidInput, LeaseLost, RqttlError
from rqttl.events import Events
from rqttl.flows.receive import ReceiveResult
from rqttl.protocol import codec
from rqttl.protocol.commands import QueueConfig
from rqttl.text import format_value, plain_text
from rqttl.types import Death, Duration, Header
from rqttl.units import Ms, as_datetime, as_timedelta

logger = logging.getLogger("rqttl.delivery")

D = TypeVar("D", bound="Delivered")
R = TypeVar("R")


class Decision(Exception):
    """Base class of the decisions of handlers. It is no error: the code that called the handler settles the message."""

    __reduce__ = RqttlError.__reduce__  # a child of a process pool may raise one, too


class Reject(Decision):
    """Refuse the message for good: it dies with reason `rejected`, and `description` goes into the death record.

    A description is cut to 4,096 bytes. Raises `InvalidInput` if it is not text.
    """

    def __init__(self, description: str | None = None) -> None:
        self.description = _checked(description)
        super().__init__(self.description or "rejected")


class Retry(Decision):
    """Give the message back as a failed delivery. Without `delay` the usual one after a failure acts.

    A description is cut to 4,096 bytes. Raises `InvalidInput` if it is not text, and `InvalidDuration`.
    """

    def __init__(self, delay: Duration | None = None, description: str | None = None) -> None:
        self.description = _checked(description)
        super().__init__(self.description or "retry")
        #: In ms; `None` for the usual one.
        self.delay: Ms | None = None if delay is None else units.duration(delay, "delay")


class Release(Decision):
    """Give the message back at once. It counts as no failed delivery."""


def _checked(description: object) -> str | None:
    """Return a description that every settlement takes. A decision must not fail because of its words."""
    if description is None:
        return None
    text = plain_text(description)
    if text is None:
        raise InvalidInput(f"description: expected text, got {format_value(description)}")
    return cut_description(text)


@dataclass(frozen=True, slots=True)
class Settler(Generic[R]):
    """Settles deliveries for the queue or the consumer that handed them out. See `settling.settle`."""

    #: The verb, the deliveries, the delay of a nack or the new lease, and the description.
    settle: Callable[[str, Sequence[Any], Duration | None, str | None], R]
    #: The events of the broker; `None` in a child of a worker.
    events: Events | None = None
    #: With asyncio: makes a task of work, which goes on without the caller.
    keep: Callable[[Coroutine[Any, Any, None]], Awaitable[None]] | None = None


#: The outcome of a delivery whose lease had ended before the settle.
LOST = "lease lost"
#: The outcome of a delivery without a known outcome: the reply was lost, and the lease ended before the next try.
UNKNOWN = "outcome unknown"
#: The outcome of a delivery that could not be settled: its lease ends, and the message comes again.
LEFT = "left to its lease"


class Delivered:
    """The facts of a message that was handed out. Sync and asyncio deliveries add the methods that settle it."""

    __slots__ = (
        "_failed",
        "_header",
        "_lease",
        "_unpacked",
        "_watch",
        "body",
        "config",
        "entry_id",
        "settled",
        "settler",
        "token",
    )

    settler: Settler[Any]

    def __init__(
        self,
        settler: Settler[Any],
        config: QueueConfig,
        entry: tuple[bytes, bytes, bytes],
        token: bytes,
        failed: int,
        lease: int | None,
    ) -> None:
        #: What settles it: the queue or the consumer that handed it out.
        self.settler = settler
        #: The facts of its queue when it was handed out.
        self.config = config
        #: The stored bytes; `entry_id` has those of the sequence.
        self.entry_id, self._header, self.body = entry
        self._failed = failed
        self._lease = lease
        self._unpacked: codec.ParsedHeader | None = None
        #: The token of the lease: the ms of its end, then three digits that count grants. Empty with `auto_ack`.
        self.token = token
        #: The outcome: `ack`, `nack`, `reject`, `auto_ack`, or `lease lost`. `None` until then.
        #: `outcome unknown`: the reply to a settle was lost, and the lease ended before it could be sent again.
        #: `left to its lease`: `Queue.run` could not settle it, and no longer renews its lease.
        self.settled: str | None = None if token else "auto_ack"
        self._watch: AbstractContextManager[None] | None = None

    @property
    def _header_values(self) -> codec.ParsedHeader:
        if self._unpacked is None:
            self._unpacked = codec.unpack_header(self._header)
        return self._unpacked

    @property
    def id(self) -> str:
        """The sender's id, or the sequence under which the message was first stored."""
        return self._header_values.id or self.sequence

    @property
    def sequence(self) -> str:
        """The sequence of the message: its place in the order of the queue, as `Queue.peek` shows it."""
        return self.entry_id.decode()

    @property
    def queue(self) -> str:
        """The name of the queue it was received from."""
        return self.config.name

    @property
    def headers(self) -> Mapping[str, Header]:
        """The headers that the sender gave. They have no effect on rqttl."""
        return self._header_values.headers

    @property
    def content_type(self) -> str:
        """The content type: `application/msgpack` for values, else the sender's, else `application/octet-stream`."""
        return self._header_values.content_type

    @property
    def enqueued_at(self) -> datetime:
        """The time at which the message came into this queue."""
        return as_datetime(codec.enqueued_at(self.entry_id))

    @property
    def expires_at(self) -> datetime | None:
        """The deadline in force when the message was received; `None` = never."""
        return codec.deadline(self.config.retention, self.entry_id, self._header_values.deadline)

    @property
    def leased_until(self) -> datetime | None:
        """The end of the lease; `None` with `auto_ack`."""
        return as_datetime(int(self.token) // 1000) if self.token else None

    @property
    def delivery_count(self) -> int:
        """The number of this delivery: 1, and one more for each failed delivery before it."""
        return self._failed + 1

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The deaths of the message so far, newest first. Queues keep them; no sender can forge them."""
        return self._header_values.deaths

    def decode(self) -> Any:
        """Return the sent value: unpacked for the content type of msgpack, else the bytes. Raises `InvalidInput`."""
        return codec.unpack(self.body) if self.content_type == codec.MSGPACK else self.body

    # For the code that hands out and settles deliveries

    @property
    def lease(self) -> int:
        """The length of the lease in ms."""
        return self._lease or self.config.lease

    @lease.setter
    def lease(self, ms: int) -> None:
        self._lease = ms

    @property
    def words(self) -> tuple[bytes, bytes]:
        """The sequence and the token. Scripts check them before they settle."""
        return self.entry_id, self.token

    @property
    def size(self) -> int:
        """The bytes of header and body."""
        return len(self._header) + len(self.body)

    def checksum(self) -> int:
        """Return a checksum of header and body, which are the same in each delivery of a message in its queue."""
        return crc32(self.body, crc32(self._header))

    def fields(self) -> DeliveryFields:
        """Return the content for another process."""
        return self.entry_id, self._header, self.body, self.token, self._failed, self.lease

    def check_unsettled(self) -> None:
        """Raise `LeaseLost` if an earlier settle met a lost lease, else `AlreadySettled` if there was one."""
        if self.settled == LOST:
            raise LeaseLost(self.queue, [self.id])
        if self.settled is not None:
            raise AlreadySettled(self.queue, self.id, self.settled)

    def settle_as(self, how: str, delay: Ms | None, description: str | None) -> Any:
        """Settle; see `settling.settle`. Awaitable with asyncio."""
        return self.settler.settle(how, [self], None if delay is None else as_timedelta(delay), description)

    def _begin(self) -> None:
        """Begin a block that handles the message, under the eyes of an observer."""
        events = self.settler.events
        if events is not None and events.observer is not None:
            self._watch = hook.handling(events.observer, self)
            self._watch.__enter__()

    def _end(self, error: BaseException | None) -> None:
        if self._watch is not None:
            self._watch.__exit__(None if error is None else type(error), error, error.__traceback__ if error else None)

    def __repr__(self) -> str:
        size, name = len(self.body), type(self).__name__
        return f"<{name} {self.id!r} of {self.queue!r}, {size} bytes, delivery {self.delivery_count}>"


class Delivery(Delivered):
    """A message that was handed out. As a context manager it acks on success and nacks on an exception.

    Such a nack counts as a failed delivery. Its description is the class and the text of the exception. The exceptions
    `rqttl.Reject`, `rqttl.Retry` and `rqttl.Release` settle the delivery in their own ways, and end with the block.

    Settle a delivery once: `ack` (done), `nack` (give back) or `reject` (refuse for good). No other consumer gets the
    message while the lease lasts. After the end of the lease another consumer may get it, and settling raises
    `LeaseLost`. A lease is no lock: work that must not happen twice needs a check of its own.
    """

    __slots__ = ()

    settler: Settler[None]

    def ack(self) -> None:
        """Settle: the work is done, and the message is removed.

        Raises `LeaseLost`, `AlreadySettled`; `OutcomeUnknown` if the reply was lost, and before the repeated call the
        lease had ended and the message did not exist any more.
        """
        self.settler.settle("ack", [self], None, None)

    def nack(self, delay: Duration | None = None, description: str | None = None) -> None:
        """Settle: give the message back as a failed delivery, to its old place and with its old deadline.

        With `delay` the message is ready again after that time, with `0` at once; without `delay` after the
        queue's `redelivery_delay`. It dies at once if its deadline has passed (`expired`), or if this was delivery
        number `max_deliveries` (`delivery_limit`).

        `description`, up to 4096 bytes, explains the failure. The message keeps the last description, and a death by
        `delivery_limit` records it.

        Raises `LeaseLost`, `AlreadySettled`, `OutcomeUnknown` (see `ack`), `InvalidDuration`, `InvalidInput`.
        """
        self.settler.settle("nack", [self], delay, description)

    def reject(self, description: str | None = None) -> None:
        """Settle: refuse the message for good; it dies with reason `rejected`.

        `description`, up to 4096 bytes, goes into the death record.

        Raises `LeaseLost`, `AlreadySettled`, `OutcomeUnknown` (see `ack`), `InvalidInput`.
        """
        self.settler.settle("reject", [self], None, description)

    def release(self) -> None:
        """Settle: give the message back at once. It counts as no failed delivery, so no delay and no limit acts.

        Raises `LeaseLost`, `AlreadySettled`, `OutcomeUnknown` (see `ack`).
        """
        self.settler.settle("release", [self], None, None)

    def renew(self, lease: Duration | None = None) -> None:
        """Extend the lease to `lease` from now; without `lease`, by its last length.

        The consumer of this delivery then renews the lease for the same length.
        Raises `LeaseLost`, `AlreadySettled`, `InvalidDuration`.
        """
        self.settler.settle("renew", [self], lease, None)

    def __enter__(self) -> Delivery:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        # decisions end with the block. A type checker must not believe that of all exceptions
        decided: None = isinstance(error, Decision)  # type: ignore[assignment]
        if self.settled is not None:
            return decided
        if error is None:
            self.settler.settle("ack", [self], None, None)
            return None
        try:
            self.settle_as(*settlement_after(error))
        except LeaseLost:
            pass  # the message is back already
        except Exception as failure:  # noqa: BLE001  # the caller must see the exception of the block
            warn_not_given_back(self, failure)
        return decided


def warn_not_given_back(delivery: Delivered, failure: Exception) -> None:
    """Log that the end of a `with` block could not give the message back."""
    logger.warning(
        "queue %s: could not give message %s back (%s); it comes again when its lease ends",
        delivery.queue,
        delivery.sequence,
        failure,
        exc_info=failure,
    )


def delivered(kind: type[D], settler: Settler[Any], claimed: ReceiveResult, lease: int | None) -> list[D]:
    """Return the entries of a receive as deliveries of a class. `settler` is for the methods of that class."""
    config, token, failures = claimed.config, claimed.token, claimed.failures
    if not failures:
        return [kind(settler, config, entry, token, 0, lease) for entry in claimed.entries]
    return [kind(settler, config, entry, token, failures.get(entry[0], 0), lease) for entry in claimed.entries]


def by_lease(deliveries: Sequence[D]) -> dict[int, list[D]]:
    """Group deliveries by the length of their leases in ms."""
    groups: dict[int, list[D]] = {}
    for item in deliveries:
        groups.setdefault(item.lease, []).append(item)
    return groups


#: One way to settle: `ack`, `nack` after a delay in ms, `reject` or `release`, and a description.
Settlement = tuple[str, Ms | None, str | None]


def settlement_after(error: BaseException) -> Settlement:
    """Return how to settle the delivery of a handler that has raised an error or a decision."""
    if isinstance(error, Reject):
        return "reject", None, error.description
    if isinstance(error, Retry):
        return "nack", error.delay, error.description
    if isinstance(error, Decision):
        return "release", None, None
    return "nack", None, codec.describe(error)


#: A delivery for another process: sequence, header, body, token, failed deliveries, and the length of its lease in ms.
DeliveryFields = tuple[bytes, bytes, bytes, bytes, int, int]


def from_delivery_fields(settler: Settler[None], config: QueueConfig, content: DeliveryFields) -> Delivery:
    """Return the delivery that has these fields. `settler` settles it."""
    sequence, header, body, token, failed, lease = content
    return Delivery(settler, config, (sequence, header, body), token, failed, lease)

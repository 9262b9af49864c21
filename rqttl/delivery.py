"""A delivery: one handing-out of a message, and the right to settle it while its lease lasts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

from rqttl.errors import AlreadySettled, LeaseLost
from rqttl.flows import ReceiveResult
from rqttl.options import QueueOptions
from rqttl.protocol import codec
from rqttl.protocol.commands import QueueConfig
from rqttl.types import Death, Header
from rqttl.units import Duration, as_datetime

logger = logging.getLogger("rqttl.delivery")


@dataclass(frozen=True, slots=True)
class Settler:
    """The functions that settle deliveries: those of the queue or of the consumer that handed them out."""

    ack: Callable[[Sequence[Delivery]], None]
    nack: Callable[[Sequence[Delivery], Duration | None, str | None], None]
    reject: Callable[[Sequence[Delivery], str | None], None]
    renew: Callable[[Sequence[Delivery], Duration | None], None]


#: How a delivery was settled whose lease had ended.
LOST = "lease lost"
#: How a delivery was settled if nobody knows it: the reply was lost, and its lease had ended before the next try.
UNKNOWN = "outcome unknown"
#: How a delivery was settled that could not be settled: its lease is renewed no more, and the message comes again.
LEFT = "left to its lease"


class Delivery:
    """A message that was handed out. As a context manager it acks on success and gives back on an exception.

    What it gives back so is a failed delivery, described by the class and the text of the exception; see `nack`.

    Settle it once: `ack` (done), `nack` (give back) or `reject` (refuse for good). Until then nobody else gets the
    message while the lease lasts; afterwards somebody else may, and settling raises `LeaseLost`. A lease is no lock:
    work that must not happen twice has to check for itself.
    """

    __slots__ = (
        "_failed",
        "_header",
        "_known",
        "_lease",
        "_sequence",
        "_settled",
        "_settler",
        "_token",
        "_unpacked",
        "body",
    )

    def __init__(
        self,
        settler: Settler,
        known: QueueConfig,
        entry: tuple[bytes, tuple[bytes, bytes]],
        token: bytes,
        failed: int,
        lease: int | None,
    ) -> None:
        self._settler = settler
        self._known = known
        self._sequence, (self._header, body) = entry
        self._failed = failed
        self._lease = lease
        self._unpacked: codec.ParsedHeader | None = None
        #: The stored bytes.
        self.body = body
        #: The lease, as scripts know it: the ms of its end, then three digits that count grants. Empty with `auto_ack`.
        self._token = token
        self._settled: str | None = None if token else "auto_ack"

    @property
    def _facts(self) -> codec.ParsedHeader:
        if self._unpacked is None:
            self._unpacked = codec.unpack_header(self._header)
        return self._unpacked

    @property
    def id(self) -> str:
        """The sender's id, or the sequence under which the message was first stored."""
        return self._facts.id or self.sequence

    @property
    def sequence(self) -> str:
        """The place of the message in the order of the queue, as `Queue.peek` shows it."""
        return self._sequence.decode()

    @property
    def settled(self) -> str | None:
        """How it was settled: `ack`, `nack`, `reject`, `auto_ack`, or `lease lost`. `None` as long as it is not.

        `outcome unknown`: the reply to a settle was lost, and the lease ended before it could be sent again.
        `left to its lease`: `Queue.run` could not settle it, and renews its lease no more.
        """
        return self._settled

    @property
    def queue(self) -> str:
        """The name of the queue it was received from."""
        return self._known.name

    @property
    def headers(self) -> Mapping[str, Header]:
        """What the sender put in. Nothing in it has any effect on rqttl."""
        return self._facts.headers

    @property
    def content_type(self) -> str:
        """`application/msgpack` for values, else what the sender said, else `application/octet-stream`."""
        return self._facts.content_type

    @property
    def enqueued_at(self) -> datetime:
        """When the message came into this queue."""
        return as_datetime(codec.enqueued_at(self._sequence))

    @property
    def expires_at(self) -> datetime | None:
        """The deadline in force when it was received; `None` = never."""
        return codec.deadline(self._known.retention, self._sequence, self._facts.deadline)

    @property
    def leased_until(self) -> datetime | None:
        """When the lease ends; `None` with `auto_ack`."""
        return as_datetime(int(self._token) // 1000) if self._token else None

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery, and one more after each that failed."""
        return self._failed + 1

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The deaths of the message so far, newest first. Kept by the queues; no sender can forge it."""
        return self._facts.deaths

    def decode(self) -> Any:
        """The value that was sent: unpacked if it was packed with msgpack, else the bytes. Raises `InvalidInput`."""
        return codec.unpack(self.body) if self.content_type == codec.MSGPACK else self.body

    def ack(self) -> None:
        """Settle: the work is done, the message is removed.

        Raises `LeaseLost`, `AlreadySettled`; `OutcomeUnknown` if the reply was lost, and the lease had ended and the
        message was gone before the call could be repeated.
        """
        self._settler.ack([self])

    def nack(self, delay: Duration | None = None, description: str | None = None) -> None:
        """Settle: give the message back as a failed delivery, to its old place and with its old deadline.

        With `delay` it is handed out again no sooner than that, with `0` at once, and without one after the pause that
        the queue's `redelivery_delay` makes. It is dead at once if its deadline has passed (`expired`) or if this was
        delivery number `max_deliveries` (`delivery_limit`).

        `description`, up to 4096 bytes, says why it failed. The message keeps the last one that it was given, and a
        death by `delivery_limit` records it.

        Raises `LeaseLost`, `AlreadySettled`, `OutcomeUnknown` (see `ack`), `InvalidDuration`, `InvalidInput`.
        """
        self._settler.nack([self], delay, description)

    def reject(self, description: str | None = None) -> None:
        """Settle: refuse the message for good; it dies with reason `rejected`.

        `description`, up to 4096 bytes, goes into the death record.

        Raises `LeaseLost`, `AlreadySettled`, `OutcomeUnknown` (see `ack`), `InvalidInput`.
        """
        self._settler.reject([self], description)

    def renew(self, lease: Duration | None = None) -> None:
        """Extend the lease to `lease` from now; without it, to as long as it was given for.

        A consumer renews the lease of its delivery for as long as the last `renew(lease)` says.
        Raises `LeaseLost`, `AlreadySettled`, `InvalidDuration`.
        """
        self._settler.renew([self], lease)

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled is not None:
            return
        if kind is None:
            self._settler.ack([self])
            return
        try:
            self._settler.nack([self], None, None if error is None else codec.describe(error))
        except LeaseLost:
            pass  # a lost lease has brought the message back already
        except Exception as failure:  # whatever fails here, the handler's own exception is the news
            logger.warning(
                "queue %s: message %s was not given back, and comes again when its lease ends: %s",
                self.queue, self.sequence, failure, exc_info=failure,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<Delivery {self.id!r} of {self.queue!r}, {len(self.body)} bytes, delivery {self.delivery_count}>"


def deliveries(settler: Settler, claimed: ReceiveResult, lease: int | None) -> list[Delivery]:
    """What a receive gave, as deliveries."""
    known, token, failures = claimed.config, claimed.token, claimed.failures
    if not failures:
        return [Delivery(settler, known, entry, token, 0, lease) for entry in claimed.entries]
    return [Delivery(settler, known, entry, token, failures.get(entry[0], 0), lease) for entry in claimed.entries]


# For those who hand out and settle deliveries. A user has no need of these, so they are no methods.


def lease_of(delivery: Delivery) -> int:
    """For how many ms the lease was given."""
    return delivery._lease or delivery._known.lease  # noqa: SLF001  # of this module


def by_lease(deliveries: Sequence[Delivery]) -> dict[int, list[Delivery]]:
    """Group deliveries by the length of their leases in ms."""
    groups: dict[int, list[Delivery]] = {}
    for one in deliveries:
        groups.setdefault(lease_of(one), []).append(one)
    return groups


def options_of(delivery: Delivery) -> QueueOptions:
    """The options of the queue as they were when the message was handed out."""
    return delivery._known.options  # noqa: SLF001  # of this module


def lease_words(delivery: Delivery) -> tuple[bytes, bytes]:
    """The sequence and the token, which a script asks for before it settles anything."""
    return delivery._sequence, delivery._token  # noqa: SLF001  # of this module


def size(delivery: Delivery) -> int:
    """The bytes that a script reads of the message."""
    return len(delivery._header) + len(delivery.body)  # noqa: SLF001  # of this module


def mark(delivery: Delivery, how: str) -> None:
    """Note how a delivery was settled."""
    delivery._settled = how  # noqa: SLF001  # of this module


def prolong(delivery: Delivery, token: bytes) -> None:
    """Note the token of a lease that was renewed."""
    delivery._token = token  # noqa: SLF001  # of this module


def lend(delivery: Delivery, lease: int) -> None:
    """Note for how many ms the lease is given from now on."""
    delivery._lease = lease  # noqa: SLF001  # of this module


def check_unsettled(delivery: Delivery) -> None:
    """Raise `AlreadySettled` if the delivery was settled before, `LeaseLost` if its lease was lost by then."""
    how = delivery.settled
    if how == LOST:
        raise LeaseLost(delivery.queue, [delivery.id])
    if how is not None:
        raise AlreadySettled(delivery.queue, delivery.id, how)

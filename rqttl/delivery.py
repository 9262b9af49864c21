"""A delivery: one handing-out of a message, and the right to settle it while its lease lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

from rqttl import codec
from rqttl.commands import Known
from rqttl.errors import AlreadySettled, LeaseLost
from rqttl.flows import Claimed
from rqttl.types import Death, Header
from rqttl.units import Duration, as_datetime


class Settler(Protocol):
    """Who carries out what a delivery is told."""

    def ack_many(self, deliveries: Sequence[Delivery]) -> None:
        """Done."""

    def nack_many(
        self, deliveries: Sequence[Delivery], delay: Duration | None, *, description: str | None = None
    ) -> None:
        """Give back."""

    def reject_many(self, deliveries: Sequence[Delivery], description: str | None) -> None:
        """Refuse for good."""

    def renew_many(self, deliveries: Sequence[Delivery], lease: Duration | None) -> None:
        """Extend the leases."""


#: How a delivery was settled whose lease had ended.
LOST = "lease lost"


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
        "_settler",
        "_unpacked",
        "body",
        "sequence",
        "settled",
        "token",
    )

    def __init__(
        self,
        settler: Settler,
        known: Known,
        entry: tuple[bytes, tuple[bytes, bytes]],
        token: bytes,
        failed: int,
        lease: int | None,
    ) -> None:
        self._settler = settler
        self._known = known
        sequence, (self._header, body) = entry
        self._failed = failed
        self._lease = lease
        self._unpacked: codec.Unpacked | None = None
        #: The place in the queue's order.
        self.sequence = sequence
        #: The stored bytes.
        self.body = body
        #: The lease, as scripts know it: the ms of its end, then three digits that count grants. Empty with `auto_ack`.
        self.token = token
        #: How it was settled, or `None`.
        self.settled: str | None = None if token else "auto_ack"

    @property
    def _facts(self) -> codec.Unpacked:
        if self._unpacked is None:
            self._unpacked = codec.unpack_header(self._header)
        return self._unpacked

    @property
    def id(self) -> str:
        """The sender's id, or the sequence under which the message was first stored."""
        return self._facts.id or self.sequence.decode()

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
        return as_datetime(codec.enqueued_at(self.sequence))

    @property
    def expires_at(self) -> datetime | None:
        """The deadline in force when it was received; `None` = never."""
        return codec.deadline(self._known.retention, self.sequence, self._facts.deadline)

    @property
    def leased_until(self) -> datetime | None:
        """When the lease ends; `None` with `auto_ack`."""
        return as_datetime(int(self.token) // 1000) if self.token else None

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

        Raises `LeaseLost`, `AlreadySettled`.
        """
        self._settler.ack_many([self])

    def nack(self, delay: Duration | None = None, description: str | None = None) -> None:
        """Settle: give the message back as a failed delivery, to its old place and with its old deadline.

        With `delay` it is handed out again no sooner than that, with `0` at once, and without one after the pause that
        the queue's `redelivery_delay` makes. It is dead at once if its deadline has passed (`expired`) or if this was
        delivery number `max_deliveries` (`delivery_limit`).

        `description`, up to 4096 bytes, says why it failed. The message keeps the last one that it was given, and a
        death by `delivery_limit` records it.

        Raises `LeaseLost`, `AlreadySettled`, `InvalidDuration`, `InvalidInput`.
        """
        self._settler.nack_many([self], delay, description=description)

    def reject(self, description: str | None = None) -> None:
        """Settle: refuse the message for good; it dies with reason `rejected`.

        `description`, up to 4096 bytes, goes into the death record.

        Raises `LeaseLost`, `AlreadySettled`, `InvalidInput`.
        """
        self._settler.reject_many([self], description)

    def renew(self, lease: Duration | None = None) -> None:
        """Extend the lease to `lease` from now; without it, to as long as it was given for.

        Raises `LeaseLost`, `AlreadySettled`, `InvalidDuration`.
        """
        self._settler.renew_many([self], lease)

    @property
    def lease_ms(self) -> int:
        """How long the lease was given for."""
        return self._lease or self._known.lease

    def check_unsettled(self) -> None:
        """Raise `AlreadySettled` if it was settled before, `LeaseLost` if its lease was found lost then."""
        if self.settled == LOST:
            raise LeaseLost(self.queue, [self.id])
        if self.settled is not None:
            raise AlreadySettled(self.queue, self.id, self.settled)

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled is None:
            if kind is None:
                self._settler.ack_many([self])
            else:
                # the handler's own exception is the news; a lost lease has brought the message back already
                with suppress(LeaseLost):
                    self._settler.nack_many([self], None, description=None if error is None else codec.describe(error))

    def __repr__(self) -> str:
        return f"<Delivery {self.id!r} of {self.queue!r}, {len(self.body)} bytes, delivery {self.delivery_count}>"


def deliveries(settler: Settler, claimed: Claimed, lease: int | None) -> list[Delivery]:
    """What a receive gave, as deliveries."""
    known, token, failures = claimed.known, claimed.token, claimed.failures
    if not failures:
        return [Delivery(settler, known, entry, token, 0, lease) for entry in claimed.entries]
    return [Delivery(settler, known, entry, token, failures.get(entry[0], 0), lease) for entry in claimed.entries]

"""The values that go in and come out: messages, receipts, deaths, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Literal, NamedTuple, TypeVar

from rqttl.errors import QueueDamaged
from rqttl.units import Duration, Instant

Header = str | bytes | int | float | bool | None
#: The outcome of a declaration: the queue was made, a queue that a dead letter had made was adopted, or it was there.
Declared = Literal["created", "adopted", "found"]
T = TypeVar("T")
State = Literal["ready", "leased", "delayed"]
#: Any value that msgpack can hold; `bytes` are stored as they are.
Body = object


@dataclass(frozen=True, slots=True)
class Message:
    """One message to enqueue.

    `body`: bytes are stored untouched, any other value is packed with msgpack. `ttl` is how long it lives, `expires_at`
    is the end of its life; give at most one. `id` is free text of up to 255 bytes; without it the queue's own sequence
    is the id.
    """

    body: Body
    ttl: Duration | None = None
    expires_at: Instant | None = None
    headers: Mapping[str, Header] | None = None
    id: str | None = None
    content_type: str | None = None


#: What became of a letter that was to go back: `moved`, or where it stays because there is no room (`full`), because
#: the queue is not there (`no_origin`) or holds the letter already (`same_queue`); `gone` where it is not there, or not
#: ready.
Outcome = Literal["moved", "full", "unavailable", "no_origin", "same_queue"]


class Redriven(NamedTuple):
    """What became of one letter that was to go from a dead-letter queue to `origin`.

    `limit` is the option that left no room, where the outcome is `full`.
    """

    sequence: str
    origin: str
    outcome: Outcome
    limit: str | None = None


class Receipt(NamedTuple):
    """A message was stored. `expires_at` is its effective deadline, `None` if it never expires.

    `duplicate`: it was not, because its id was seen within the queue's `duplicate_window`, or that of such a call.
    `expired`: its time was over when it arrived, so that nobody receives it. The clock of Redis decides, and a message
    with a TTL of 0 that a waiting consumer got is not `expired`.
    """

    id: str
    expires_at: datetime | None = None
    duplicate: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Death:
    """Deaths of one message in one queue for one reason (RabbitMQ: `x-death`).

    `first_at` is the first of them; all other fields describe the newest. `expires_at` is the deadline that was in
    force, whatever the reason of the death; `None` if there was none.
    """

    queue: str
    reason: str
    count: int
    first_at: datetime
    last_at: datetime
    enqueued_at: datetime
    expires_at: datetime | None
    delivery_count: int
    description: str | None


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message as `peek` shows it: nothing about it has changed.

    `sequence` is its place in the queue and what `peek(after=…)` takes. `until` is when the lease or the delay ends.
    `description` is the last one that a failed delivery from this queue was given (`Delivery.nack`), if any.
    """

    id: str
    sequence: str
    queue: str
    state: State
    until: datetime | None
    body: bytes
    headers: Mapping[str, Header]
    content_type: str
    enqueued_at: datetime
    expires_at: datetime | None
    delivery_count: int
    deaths: tuple[Death, ...]
    description: str | None = None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """What a queue holds now, and what has happened in it since it was created.

    `deaths` counts every death by reason; `dropped` those of them that went nowhere, by reason, with `cycle` for
    dead letters that would have gone round for ever (their deaths are counted under their own reason). `redriven`
    counts letters that went from here to another queue.

    `overdue` says for how long the oldest due work (an expired message, a lease or a delay that is over) had been
    waiting when this call looked; 0 if nothing was due. It stays near 0 where a reaper runs. Without a reaper it grows
    until somebody uses the queue.

    `next_lease_end` and `next_delay_end` say when the first of the leased messages is lost to its consumer, and when
    the first of the delayed ones is ready; `None` if there are none. `ends_at` is when the queue expires unless it is
    used before (with `on_expire="keep"`: unless it holds messages then); `None` if it never does.

    A look without a sweep (`sweep=False`) changes nothing, so three numbers differ from those of a swept one while
    something is overdue: expired messages still count as `ready`, ended leases as `leased`, ended delays as `delayed`.
    It reads the numbers of a queue one after the other: in a queue at work they may be some messages apart.
    """

    ready: int
    ready_bytes: int
    leased: int
    delayed: int
    oldest_ready_age: timedelta | None
    consumers: int
    enqueued: int
    delivered: int
    redelivered: int
    acked: int
    refused: int
    purged: int
    redriven: int = 0
    deaths: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    overdue: timedelta = timedelta(0)
    next_lease_end: datetime | None = None
    next_delay_end: datetime | None = None
    ends_at: datetime | None = None


class PerQueue(dict[str, T], Generic[T]):
    """An answer for each of many queues, by name. A queue that is not there is left out.

    `damaged` has the queues that cannot be read, by name, each with the error that names the damage.
    """

    def __init__(self, found: Mapping[str, T] | None = None, damaged: Mapping[str, QueueDamaged] | None = None) -> None:
        super().__init__(found or {})
        self.damaged: dict[str, QueueDamaged] = dict(damaged or {})


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The work of one `Queue.run`.

    `handled` counts calls of the handler that returned, `failed` those that raised. `lost` counts those of them whose
    lease had ended before the message was settled (Redis was away for longer than the lease): it is handled again.
    `unknown` counts those whose settle got no reply until the lease had ended: it may be handled again.
    """

    handled: int
    failed: int
    lost: int
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class Swept:
    """What one bounded sweep did, and what is next. `due` is the next time something happens in the queue, in ms.

    `retired` says that the lifetime of the queue was over and that it was deleted: how many messages were dropped with
    it. It is `None` while the queue is there.
    """

    now: int
    due: int | None
    more: bool
    reclaimed: int
    promoted: int
    expired: int
    trimmed: int
    compacted: int
    retired: int | None = None

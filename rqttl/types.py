"""Types of arguments, and values of the public interface: messages, receipts, deaths, statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

#: A duration as an argument: a `timedelta`, or text with a unit (`"30s"`, `"1500ms"`, `"1.5h"`). `0` needs no unit.
Duration = timedelta | str | Literal[0]
#: A number of bytes as an argument: a whole number, or text such as `"500kB"`, `"10MB"` or `"1.5GiB"`.
Size = int | str
#: A point in time as an argument: an aware `datetime`, ISO 8601 text with a zone, or milliseconds since 1970.
Instant = datetime | str | int
Header = str | bytes | int | float | bool | None
#: Outcomes of a declaration: the queue was created, a queue that a dead letter had created was adopted, or it existed.
Declared = Literal["created", "adopted", "existing"]
State = Literal["ready", "leased", "delayed", "scheduled"]
#: What a purge removes.
Purged = Literal["ready", "scheduled", "all"]
#: Any value that msgpack can hold; `bytes` are stored as they are.
Body = object
#: The content types of packed values, and of bytes without another one.
MSGPACK, BINARY = "application/msgpack", "application/octet-stream"


@dataclass(slots=True)  # not frozen: a batch makes many, and a frozen one costs four times as much
class Message:
    """A message to enqueue.

    A `body` of bytes is stored unchanged; any other value is packed with msgpack. `ttl` is the length of its life and
    `expires_at` the end; at most one of them may be set. `id` is free text of up to 255 bytes; without it the sequence
    is the id. `delay` or `deliver_at` schedules the message: it arrives in the queue then. `subject` is stored as the
    header of that name, words with dots between them for the filters of a topic.
    """

    body: Body
    ttl: Duration | None = None
    expires_at: Instant | None = None
    headers: Mapping[str, Header] | None = None
    id: str | None = None
    content_type: str | None = None
    delay: Duration | None = None
    deliver_at: Instant | None = None
    subject: str | None = None


#: Outcomes of a redrive of one dead letter: it `moved`; or it stays, because the other queue is `full`, does not exist
#: (`no_origin`) or is this one (`same_queue`); or it is `unavailable`: missing, or not ready.
Outcome = Literal["moved", "full", "unavailable", "no_origin", "same_queue"]


class RedriveResult(NamedTuple):
    """The outcome of a redrive of one message from a dead-letter queue to `origin`.

    `limit` names the option that left no room if the outcome is `full`.
    """

    sequence: str
    origin: str
    outcome: Outcome
    limit: str | None = None


class Receipt(NamedTuple):
    """The receipt of an enqueued message. `expires_at` is its effective deadline; `None` means that it never expires.

    `duplicate` is true if the message was not stored, because its id was used within the `duplicate_window` of the
    queue or of such a call. `expired` is true if the message was past its deadline on arrival, by the clock of Redis:
    no consumer receives it. A message with a TTL of 0 that a waiting consumer got is not `expired`. `deliver_at` is the
    due time of a scheduled message; its `expires_at` follows from the options of now, and those of then decide.
    """

    id: str
    expires_at: datetime | None = None
    duplicate: bool = False
    expired: bool = False
    deliver_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """Deaths of one message in one queue for one reason (RabbitMQ: `x-death`).

    `first_at` is the time of the first death; all other fields describe the newest one. `expires_at` is the deadline in
    force at that death, for any reason; `None` if the message had no deadline.
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
class MessageView:
    """A message as `peek` shows it, without a change to the message.

    `sequence` is its place in the order of the queue, for `peek(after=…)`; a scheduled message gets another one when it
    arrives. `until` is the end of a lease or a delay, or the due time of a scheduled message.
    `description` describes the last failed delivery from this queue (`Delivery.nack`), if there is a description.
    `complete` is False if the search that found it (`Queue.message`) did not see the whole queue: others may have its
    id.
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
    complete: bool = True


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Numbers of messages in a queue, and counters since the queue was created.

    `deaths` counts all deaths by reason. `dropped` counts, by reason, deaths that left no dead letter. Its `cycle`
    counts messages that would have entered a queue they already died in; their deaths also count under their own
    reasons. `redriven` counts dead letters and moved messages that went from here to another queue.

    `scheduled` messages have not arrived: `ready`, `ready_bytes` and the limits do not count them. `activated` counts
    those that have arrived, also in `enqueued`, and `cancelled` those that were cancelled.

    Messages of a queue that `passes_on`, a topic or one with `forward_to`, go on to others: nobody receives them here.
    `copies` counts what went on, from a topic each copy, and `unrouted` the messages that no queue got.

    `outgoing` has the number of dead letters on their way to queues in other slots of a cluster, by target; mostly it
    is empty. No other number, here or of the target, and no limit counts them.

    A `paused` queue gives no messages to consumers. With a `rate`, `next_by_rate` is the time from which it lets the
    next message go, which may be past; `None` before the first one.

    `overdue` is the age of the oldest due work (an expired message, an ended lease or delay, an arrival); 0 if nothing
    is due. It stays near 0 while a reaper runs. Without a reaper it grows until the next call on the queue.

    `next_lease_end` and `next_delay_end` are the times at which the first lease and the first delay end, and
    `next_scheduled` is the first due time; `None` if there is none. `ends_at` is the time at which the queue expires
    unless it is used before (with `on_expire="keep"`: unless it holds messages then); `None` if the queue never
    expires.

    Statistics without a sweep (`sweep=False`) change nothing, so three numbers differ while work is overdue: expired
    messages still count as `ready`, ended leases as `leased`, ended delays as `delayed`. The numbers are read one after
    the other, so in a busy queue they may be some messages apart.
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
    scheduled: int = 0
    activated: int = 0
    cancelled: int = 0
    copies: int = 0
    unrouted: int = 0
    deaths: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    outgoing: Mapping[str, int] = field(default_factory=dict)
    overdue: timedelta = timedelta(0)
    next_lease_end: datetime | None = None
    next_delay_end: datetime | None = None
    next_scheduled: datetime | None = None
    ends_at: datetime | None = None
    paused: bool = False
    next_by_rate: datetime | None = None
    passes_on: bool = False

    @property
    def depth(self) -> int:
        """The number of messages in the queue, in any state."""
        return sum(getattr(self, state) for state in get_args(State))


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts of one `Queue.run`.

    `handled` counts calls of the handler that returned, and `failed` calls that raised. `lost` counts messages whose
    lease ended before the settle, because Redis was away for longer than the lease: they are handled again. `unknown`
    counts messages whose settle got no reply before the lease ended: they may be handled again.
    """

    handled: int
    failed: int
    lost: int
    unknown: int = 0


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The result of one bounded sweep. `due` is the time of the next due work in the queue, in ms.

    `retired` is the number of messages that were dropped with the queue at the end of its lifetime. It is `None` if the
    queue was not deleted.
    """

    now: int
    due: int | None
    more: bool
    reclaimed: int
    promoted: int
    expired: int
    trimmed: int
    compacted: int
    activated: int = 0
    retired: int | None = None


class Effect(NamedTuple):
    """Messages that a plan ends: by a shorter TTL, by a lower limit, and with their queues.

    A preview also counts those that would be `ending` later, as in `PolicyResult`. Queues with so many dead messages
    that some are left are `unfinished`: a reaper removes those. `changed` are the queues that only the policies of the
    plan change.
    """

    expired: int = 0
    trimmed: int = 0
    deleted: int = 0
    ending: int = 0
    ending_queues: int = 0
    ends_after_ms: int | None = None
    unfinished: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class NodeInfo(NamedTuple):
    """The node of a cluster that has a queue, and the slot of the queue. `replicated`: the node has a replica."""

    address: str
    slot: int
    replicated: bool


class PolicyResult(NamedTuple):
    """The effect of a change of policies on the queues that exist.

    `changed` has the options in force that changed: for each queue, each option with the values before and after
    (durations in ms). `expired` counts the messages that a shorter `message_ttl` ended, `trimmed` those that a lower
    limit pushed out under `drop-head`. Queues with so many such messages that some are left are `unfinished`: no call
    ever delivers those, and the next calls or a reaper remove them.
    A user may have the right to set policies and no right to change queues: the policies are stored, the queues are
    `denied`, and the next pass of a reaper changes them.
    A preview also counts the messages that would be `ending`, in so many `ending_queues`, as in `UpdateResult`;
    `ends_after_ms` is the shortest of their times.
    """

    changed: Mapping[str, Mapping[str, tuple[Any, Any]]]
    expired: int = 0
    trimmed: int = 0
    unfinished: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    ending: int = 0
    ending_queues: int = 0
    ends_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A running worker or reaper, as it described itself at its last beat. It beats every 10 s.

    Of a consumer (see `Broker.workers`), `slots` are the messages that it holds at most, and `running` has the one that
    it holds for the longest time, of each queue. It counts nothing, and beats every 30 s while it is idle.
    """

    name: str
    #: `worker` or `reaper`, or `consumer`.
    role: str
    host: str
    pid: int
    #: The names or patterns of its queues, with weights such as `orders=3`.
    queues: tuple[str, ...]
    #: The number of handlers that can work at a time.
    slots: int
    #: The messages whose handlers work: queue, id, and the time of the start.
    running: tuple[tuple[str, str, datetime], ...]
    #: The numbers of messages that were acked, and that failed.
    handled: int
    failed: int
    #: The bytes of memory of the process and its children.
    rss: int
    #: The version of rqttl.
    version: str
    started: datetime
    #: The time of the last claim that Redis answered; `None` before the first one.
    last_claim: datetime | None
    #: The time of the last beat.
    beat: datetime
    #: The name of the program without its arguments.
    program: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer (`consume`, `run`, `rqttl receive`) or worker of a queue, as it described itself at its last `beat`.

    It beats every 10 s while it holds messages, and every 30 s while it is idle. In between all numbers are those of
    that time. Calls of `receive` are no consumers.
    """

    name: str
    #: `consumer` or `worker`.
    role: str
    host: str
    pid: int
    #: The name of the program without its arguments, such as `jobs.py`, `shop.jobs` or `rqttl receive`.
    program: str
    #: The version of rqttl.
    version: str
    started: datetime
    #: The number of messages that it holds at most; of a worker, the number of its handlers.
    prefetch: int
    #: The number of messages of this queue that it holds.
    in_flight: int
    #: The id of the message that it holds for the longest time; `None` without one.
    oldest: str | None
    #: The time of the first beat that had this message. It was taken up to one period before.
    oldest_since: datetime | None
    #: The leases of these messages, the 250 oldest at most: the end by sequence.
    leases: Mapping[str, datetime]
    #: The time of the last beat.
    beat: datetime

    def held(self, message: MessageView) -> bool:
        """Return True if it had the lease of this message at its last beat."""
        return message.sequence in self.leases

    def holds(self, message: MessageView) -> bool:
        """Return True if it has the present lease of this message: its end is the one of the last beat."""
        return message.state == "leased" and self.leases.get(message.sequence) == message.until

"""The public interface of one queue. Every method is one flow, and the driver of the broker performs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from rqttl import delivery
from rqttl import events as hook
from rqttl.checks import whole
from rqttl.consuming import settling
from rqttl.consuming.consumer import Consumer, Runner
from rqttl.consuming.handling import check_sizes
from rqttl.delivery import Delivery, Settler
from rqttl.errors import InvalidInput, QueueFull
from rqttl.flows import messages as message_flows
from rqttl.flows import policies, queues, reading, receive, roster, single, sweeping
from rqttl.flows.receive import ReceiveResult
from rqttl.flows.steps import Driver
from rqttl.options import QueueOptions, UpdateResult
from rqttl.policies import Explanation
from rqttl.text import format_value
from rqttl.types import (
    ConsumerInfo,
    Declared,
    Duration,
    Header,
    Instant,
    Message,
    MessageView,
    Purged,
    QueueStats,
    Receipt,
    RedriveResult,
    RunCounts,
    State,
    SweepResult,
)

if TYPE_CHECKING:
    from threading import Event

    from typing_extensions import Unpack

    from rqttl.options import OptionArguments


class Queue:
    """A handle on one queue. Every method that calls Redis raises `QueueNotFound` if the queue does not exist."""

    def __init__(self, driver: Driver, name: str, declared: Declared | None = None) -> None:
        #: The name of the queue.
        self.name = name
        #: `created`, `adopted` or `existing` on a handle from `declare_queue`, else `None`.
        self.declared = declared
        self._driver = driver

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Sending

    def enqueue(
        self,
        body: Message | object,
        *,
        ttl: Duration | None = None,
        expires_at: Instant | None = None,
        headers: Mapping[str, Header] | None = None,
        id: str | None = None,
        content_type: str | None = None,
        delay: Duration | None = None,
        deliver_at: Instant | None = None,
        subject: str | None = None,
    ) -> Receipt:
        """Store one message at the end of the queue.

        `body` is bytes (stored unchanged), any other value (stored as msgpack), or a `Message`. The message is stored
        once if the call returns. The receipt has the deadline. `expired` marks a message that was dead on arrival, and
        `duplicate` one that was not stored, because the queue had its id within its `duplicate_window`.

        With `delay` or `deliver_at` the message is *scheduled*: it arrives then, at the end of the queue, in the order
        of due times. Its TTL and `message_ttl` count from its due time; the options, policies and limits of that time
        act. While the queue is full under `reject-publish`, it stays scheduled. Reapers let messages arrive on time,
        else the next call that receives, sweeps or asks for `stats`.

        `subject` is stored as the header of that name: words with dots between them, such as `orders.eu.created`, up to
        255 bytes. A topic passes the message on to the queues that are bound to it: see `Topic`.

        Raises `QueueFull`, `MessageTooLarge`, `InvalidInput`; `OutcomeUnknown` if the reply was lost: the message may
        be stored or not. With an id and such a window the call is repeated instead, and its receipt may call the
        message a duplicate of itself. Raises `NotReplicated` if Redis does not confirm the `durability` of the queue.
        """
        driver = self._driver
        flow = message_flows.send(
            driver,
            self.name,
            body,
            ttl,
            expires_at,
            headers,
            id,
            content_type,
            delay,
            deliver_at,
            subject,
        )
        return driver.perform(flow)

    def enqueue_many(
        self, messages: Sequence[Message | object], *, duplicate_window: Duration | None = None
    ) -> list[Receipt | QueueFull]:
        """Store many messages, in order, in few round trips.

        The result has for each message its receipt, or the `QueueFull` that refused it; all others are stored. An
        invalid message raises an error, as in `enqueue`, before any message is stored. If another client lowers
        `max_message_bytes` during the call, `MessageTooLarge` may come after some batches of 250 were stored. The call
        ends with the first round trip that is not confirmed: see `NotReplicated`.

        With `duplicate_window` the queue remembers the ids of these messages for that time, in addition to its own
        option. A message is not stored again if its id is in the window of an earlier call or of the option. So a
        writer that gives each message an id may send all of them once more, and the call is repeated after a lost
        reply.
        """
        return self._driver.perform(message_flows.send_many(self._driver.events, self.name, messages, duplicate_window))

    # Scheduled messages

    def scheduled(self, limit: int = 20, after: str | None = None) -> list[MessageView]:
        """Return up to `limit` scheduled messages, the next one first: `peek(state="scheduled")`."""
        return self.peek(limit, after, state="scheduled")

    def cancel(self, id: str) -> int:
        """Cancel the scheduled messages with this id (`Receipt.id`) or `MessageView.sequence`. Returns their number.

        0 means that none is scheduled any more: it has arrived, or was cancelled. A cancelled id is free again in the
        `duplicate_window` of the queue. Raises `OutcomeUnknown` if the reply was lost.
        """
        return self._driver.perform(message_flows.cancel(self._driver.keyspace, self.name, id))

    def reschedule(self, id: str, *, delay: Duration | None = None, deliver_at: Instant | None = None) -> int:
        """Give the scheduled messages with this id or sequence another due time. Returns their number; see `cancel`."""
        return self._driver.perform(message_flows.reschedule(self._driver.keyspace, self.name, id, delay, deliver_at))

    # Single messages

    def message(self, id: str, *, scan: int | None = single.SCAN) -> MessageView | None:
        """Find a message in any state by its id (`Receipt.id`) or `MessageView.sequence`. The call changes nothing.

        By sequence it is one read. By id it looks at scheduled messages, and then through the first `scan` messages of
        the queue (`None`: all). If others may have the id that it did not see, the view has `complete=False`; if it
        found none and did not see all, it raises `SearchIncomplete`. Expired messages are not found.
        """
        return self._driver.perform(single.message(self._driver.keyspace, self.name, id, scan))

    def messages(self, id: str, *, scan: int | None = None) -> list[MessageView]:
        """Find all messages with this id or sequence.

        It looks through the first `scan` messages (`None`: all). See `message` for `complete` and `SearchIncomplete`.
        """
        most = None if scan is None else whole(scan, "scan")
        return self._driver.perform(single.messages(self._driver.keyspace, self.name, id, most))

    def move(self, id: str, to: str, *, dry_run: bool = False) -> int:
        """Move the messages with this id or sequence to the queue `to`, in one step. Returns their number.

        Ready and delayed messages go to the end of `to`. They keep ids, headers, deaths and deadlines, and arrive like
        messages sent with `expires_at`: TTL options and limits of `to` act. Failed deliveries count from 0 again.
        Scheduled messages keep their due times and TTLs. Moved messages count as `redriven`.

        All calls on single messages have these rules:

        * They act on all messages that have the id, in any state but leased. 0: there is none. A search for an id reads
          the whole queue. A message that leaves or arrives during the call may be left out.
        * If one is leased, the call raises `MessageLeased`, which says until when. Nothing is changed then. Hundreds
          of messages with one id, or large ones, take several such steps.
        * Due work comes first, as in `sweep`. With `dry_run` nothing is changed, and the result or the error is that of
          the call.

        Raises `QueueFull` if `to` is a full `reject-publish` queue; `QueueNotFound`, also for `to`; `InvalidInput` if
        `to` is this queue; `SearchIncomplete` if more than 5,000 messages are leased or delayed, which hides some of
        them from the search; `OutcomeUnknown` if the reply was lost.
        """
        return self._driver.perform(single.move(self._driver.keyspace, self.name, id, to, dry_run=dry_run))

    def delete_message(self, id: str, *, dry_run: bool = False) -> int:
        """Remove the messages with this id or sequence for good. Returns their number. See `move`.

        They count as `purged`, and scheduled ones as `cancelled`. Nothing is dead-lettered.
        """
        return self._intervene("delete", id, dry_run=dry_run)

    def expire(self, id: str, *, dry_run: bool = False) -> int:
        """Let the messages with this id or sequence die as `expired`, whatever their TTLs. Returns their number.

        `never_expire` does not keep them. See `move`.
        """
        return self._intervene("expired", id, dry_run=dry_run)

    def dead_letter(self, id: str, description: str | None = None, *, dry_run: bool = False) -> int:
        """Let the messages with this id or sequence die as `rejected`. Returns their number.

        `description` is kept in their history. Without a target for `rejected` they are dropped. See `move`.
        """
        return self._intervene("rejected", id, description, dry_run=dry_run)

    def redeliver_now(self, id: str, *, dry_run: bool = False) -> int:
        """Let the messages with this id or sequence wait no longer. Returns their number, also of ready ones.

        A delayed message is ready in its old place, not a failed delivery. A scheduled one arrives now. See `move`.
        """
        return self._intervene("redeliver", id, dry_run=dry_run)

    def _intervene(self, what: str, id: str, description: str | None = None, *, dry_run: bool) -> int:
        flow = single.intervene(self._driver.keyspace, self.name, what, id, description, dry_run=dry_run)
        return self._driver.perform(flow)

    # Receiving

    def receive(
        self, wait: Duration | None = None, lease: Duration | None = None, *, auto_ack: bool = False
    ) -> Delivery | None:
        """Take the oldest ready message. Wait up to `wait` for one. An expired message is never handed out.

        The message is leased for `lease` (else the queue's `lease`), and comes back if it is not settled in time. With
        `auto_ack` it is removed at once; it is lost if this process dies before its work is done.
        """
        deliveries = self.receive_many(1, wait, lease, auto_ack=auto_ack)
        return deliveries[0] if deliveries else None

    def receive_many(
        self, count: int, wait: Duration | None = None, lease: Duration | None = None, *, auto_ack: bool = False
    ) -> list[Delivery]:
        """Take up to `count` of the oldest ready messages. Wait up to `wait` for the first one. See `receive`.

        Large bodies may bring fewer messages than are ready: one answer holds about 4 MB.
        """
        ms = receive.lease_ms(lease)
        driver, since = self._driver, perf_counter()
        config = driver.configs.get(self.name)
        batches = driver.perform(receive.receive_many(self.name, count, wait, ms, auto_ack=auto_ack, config=config))
        return self.hand_out(batches, ms, since)

    def hand_out(self, batches: Sequence[ReceiveResult], lease: int | None, since: float) -> list[Delivery]:
        """Make deliveries of claimed messages, which an observer sees. For `Broker.receive`."""
        events = self._driver.events
        settler = Settler(self._settle, events)
        received = [item for claimed in batches for item in delivery.delivered(Delivery, settler, claimed, lease)]
        if events.observer is not None:
            hook.received(events.observer, self.name, received, since)
        return received

    def consume(self, prefetch: int = 100, *, lease: Duration | None = None, wait: Duration | None = None) -> Consumer:
        """Iterate over deliveries. Lease up to `prefetch` at a time; a thread renews the leases. See `Consumer`."""
        return Consumer(self._driver, self.name, prefetch, lease=lease, wait=wait)

    def run(
        self,
        handler: Callable[[Delivery], object],
        threads: int = 1,
        *,
        prefetch: int | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        stop: Event | None = None,
        raise_errors: bool = False,
    ) -> RunCounts:
        """Call `handler` with each message: ack it when the handler returns, nack it when the handler raises.

        The loop goes on after an exception. The exception is logged (`rqttl.run`) and kept with the message, as by
        `with delivery:`. The message comes again after the delay of the option `redelivery_delay`. Without that option
        the delay is 1 s, doubled by each failure up to 10 minutes, less up to a quarter at random. A handler may settle
        the delivery itself.

        With one thread the handler runs in the thread that calls `run`, else in `threads` threads of its own. Up to
        `prefetch` messages (10 for each thread) are fetched at a time. Their leases are renewed while handlers work.

        The run ends when no message has come for `wait` (never, without `wait`), and when `stop` is set. Without
        `stop`, and in the main thread only, SIGTERM and SIGINT end it, too; a handler that the program has set is also
        called. With `stop` the signals are those of the program. The run returns when the working handlers are done.
        Fetched messages without a handler are released at once, uncounted. A second signal, a second later or more, has
        its effect from before `run`: usually it ends the process. An exception that is no `Exception` (`SystemExit`,
        `KeyboardInterrupt`) gives the message back and ends the run. While Redis is away the run goes on trying, for
        `wait` at most.

        With `raise_errors` an exception of the handler ends the run, once its message has been given back. A test of a
        handler wants that: otherwise the run returns, and the failure is only in its log and its counts.

        Raises `InvalidInput`, and `QueueNotFound`, also when the queue is deleted meanwhile.
        """
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise InvalidInput(f"stop: expected a threading.Event, got {format_value(stop)}")
        threads, fetched = check_sizes(threads, prefetch, "threads")
        deliveries = self.consume(fetched, lease=lease, wait=wait)
        return Runner(self._driver, deliveries, handler, threads, raise_errors=raise_errors).run(stop)

    # Settling

    def _settle(
        self, how: str, deliveries: Sequence[Delivery], time: Duration | None = None, description: str | None = None
    ) -> None:
        driver = self._driver
        driver.perform(settling.settle(driver.keyspace, self.name, how, deliveries, time, description))

    def ack_many(self, deliveries: Sequence[Delivery]) -> None:
        """Settle many deliveries: done. Settles all whose lease holds, then raises `LeaseLost` for the others."""
        self._settle("ack", deliveries)

    def nack_many(
        self,
        deliveries: Sequence[Delivery],
        delay: Duration | None = None,
        description: str | None = None,
        *,
        counted: bool = True,
    ) -> None:
        """Give many deliveries back; see `Delivery.nack` and `ack_many`.

        `counted=False` is for messages that no handler has seen: these are no failed deliveries. So the queue's delay
        does not act, and `description` is refused.
        """
        self._settle("nack" if counted else "release", deliveries, delay, description)

    def reject_many(self, deliveries: Sequence[Delivery], description: str | None = None) -> None:
        """Refuse many deliveries for good; see `Delivery.reject` and `ack_many`."""
        self._settle("reject", deliveries, None, description)

    def renew_many(self, deliveries: Sequence[Delivery], lease: Duration | None = None) -> None:
        """Extend many leases to `lease` from now; without `lease`, each by its last length. See `ack_many`.

        Without `lease` the call takes one round trip for each different length.
        """
        self._settle("renew", deliveries, lease)

    # Looking and changing

    def peek(self, limit: int = 20, after: str | None = None, *, state: State | None = None) -> list[MessageView]:
        """Return up to `limit` messages in order, of one state or of all but `scheduled`. The call changes nothing.

        For the next page, `after` is the `sequence` of the last message of this one. Expired messages are left out.
        Scheduled messages come in the order of their due times.
        After a compaction some messages may be missing if more than 5,000 are not ready.
        """
        return self._driver.perform(message_flows.peek(self._driver.keyspace, self.name, limit, after, state))

    def stats(self, *, sweep: bool = True) -> QueueStats:
        """Numbers of messages by state, and counters since the queue was created. Due work is swept first.

        With `sweep=False` the call only reads. It counts expired messages, ended leases and ended delays as they are
        stored; see `QueueStats`. Such a call raises `DataDamaged` if a key has another type.
        """
        return self._driver.perform(reading.stats(self._driver.keyspace, self.name, sweep=sweep))

    def consumers(self) -> list[ConsumerInfo]:
        """The consumers (`consume`, `run`, `rqttl receive`) and workers of this queue that live, the oldest first.

        One that was killed is listed for 30 s after its last beat, an idle consumer for 35 s. The call only reads. Its
        work grows with all consumers of the namespace, so it is for people.
        """
        return self._driver.perform(roster.consumers(self._driver.keyspace, self.name))

    def options(self, *, declared: bool = False) -> QueueOptions:
        """The options in force, durations in milliseconds; or the `declared` ones. The call only reads.

        They differ where policies apply: `explain` shows the source of each option.
        """
        return self._driver.perform(reading.options(self._driver.keyspace, self.name, declared=declared))

    def explain(self, ttl: Duration | None = None) -> Explanation:
        """Explain each option in force: its value, its source, and the values that lost.

        `message` of the answer explains the TTL of a message that is sent with `ttl`, step by step. The call only
        reads.
        """
        return self._driver.perform(policies.explain(self._driver.keyspace, self.name, ttl))

    def update(self, **changes: Unpack[OptionArguments]) -> UpdateResult:
        """Change declared options; `None` resets one to its default. They act at once, also on the present messages.

        Programs that declare the queue with other options get `QueueMismatch` from then on; a policy does not do that.
        A shorter `message_ttl` and a lower limit (under `drop-head`) let ready messages die. The result counts them;
        `preview_update` counts them beforehand. Raises `InvalidOption`, `InvalidDuration`, and changes nothing then.
        """
        return self._driver.perform(queues.update(self._driver.keyspace, self.name, changes))

    def preview_update(self, **changes: Unpack[OptionArguments]) -> UpdateResult:
        """Count the messages that `update` would let die, now or later, without changing an option.

        The call sweeps the queue: expired messages die first, and are not counted. The counts are exact while no other
        client uses the queue. Raises as `update` does.
        """
        return self._driver.perform(queues.preview(self._driver.keyspace, self.name, changes))

    def pause(self) -> UpdateResult:
        """Pause the queue: when the call returns, consumers get no message any more. `update(paused=True)`.

        Sending, expiry, redrives and arrivals of scheduled messages go on, and leased messages are settled as usual.
        Consumers that wait go on waiting, and make no calls for messages. A pause outlives restarts, and declarations
        without it. Raises `PolicyDecides` if an operator policy keeps the queue open; nothing is changed then.
        """
        return self._driver.perform(queues.pause(self._driver.keyspace, self.name, paused=True))

    def resume(self) -> UpdateResult:
        """End the pause of the queue, and wake consumers that wait. `update(paused=False)`.

        Raises `PolicyDecides` if a policy keeps the queue paused; nothing is changed then.
        """
        return self._driver.perform(queues.pause(self._driver.keyspace, self.name, paused=False))

    def touch(self) -> None:
        """Mark the queue as used, so that its `expires` and `auto_delete_on_idle` start again."""
        self._driver.perform(queues.touch(self._driver.keyspace, self.name))

    def sweep(self) -> list[SweepResult]:
        """Do the due work: leases, delays, arrivals of scheduled messages, expiry, limits, compaction.

        Reapers do it on time.

        Returns the result of each bounded step. At the end of its lifetime the queue is deleted; then the last result
        has a `retired` that is not `None`.
        """
        return self._driver.perform(sweeping.sweep(self.name))

    def purge(self, state: Purged = "ready") -> int:
        """Remove all messages that are `ready` now, `scheduled`, or both (`all`). Returns their number.

        Nothing is dead-lettered. Scheduled messages count as cancelled. Raises `OutcomeUnknown` if a reply was lost.
        """
        return self._driver.perform(message_flows.purge(self._driver.keyspace, self.name, state))

    def purge_many(self, sequences: Iterable[str], *, unread: bool = False) -> int:
        """Remove chosen messages (`MessageView.sequence`) without dead-lettering them. Returns their number.

        Leased and delayed messages stay, unknown sequences are ignored. The choice is a decision about each message, so
        a reader that follows the queue, such as a stream of Spark, reports no loss. With `unread` the messages count as
        lost, like those of `purge`. Raises `OutcomeUnknown` if a reply was lost.
        """
        return self._driver.perform(
            message_flows.purge_many(self._driver.keyspace, self.name, sequences, unread=unread)
        )

    def redrive(
        self, limit: int | None = None, reason: str | None = None, source: str | None = None, to: str | None = None
    ) -> int:
        """Put dead letters back into the queues where they died last, the oldest first. Returns their number.

        The call moves dead letters that are ready now: at most `limit`, and only those that died of `reason` and in
        `source`. With `to` all of them go to that queue. Each leaves and arrives in one step, with its id, its headers
        and its deaths, like a message without a TTL: the TTLs and limits of its new queue act. It stays here if its
        queue does not exist, is this one, or has no room (`reject-publish`). Such a queue gets no further message by
        this call. A message that dies again may come back here: a redrive ends the check for circles, as a rejection
        does. Raises `QueueNotFound` if `to` does not exist.
        """
        flow = message_flows.redrive(self._driver.keyspace, self.name, limit, reason, source, to)
        return self._driver.perform(message_flows.observed(self._driver.events, self.name, flow))

    def redrive_many(self, letters: Iterable[tuple[str, str]]) -> list[RedriveResult]:
        """Put chosen dead letters back: pairs of a `sequence` and the queue to go to. See `redrive`.

        Returns the result of each, in the order of `letters`. After a lost reply the call is repeated; then a dead
        letter that is gone counts as moved.
        """
        flow = message_flows.redrive_many(self._driver.keyspace, self.name, letters)
        return self._driver.perform(message_flows.observed(self._driver.events, self.name, flow))

    def delete(self, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue with all its messages, without dead-lettering them.

        The bound queues `<topic>/<name>` of a topic are deleted with it; others stay. Returns the number of ready
        messages. Raises `QueueInUse` if the queue has consumers (with `if_unused`) or messages in any state (with
        `if_empty`).
        """
        flow = queues.delete(self._driver.keyspace, self.name, if_unused=if_unused, if_empty=if_empty)
        return self._driver.perform(flow)

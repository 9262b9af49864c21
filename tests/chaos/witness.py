"""The witness: writes down each call of rqttl in this process, before and after it, with what it told.

It stands between the public API and the process, and also sees what `consume` and `run` do by themselves: renewals,
releases, acks that are sent later. Only a process of a campaign installs it, because it replaces methods of classes.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

import rqttl
from rqttl import delivery
from rqttl.consuming import consumer, settling
from rqttl.consuming.base import Session
from rqttl.delivery import LOST, Delivery
from rqttl.flows.steps import Flow, Read
from rqttl.protocol import commands
from rqttl.store.driver import driver_of
from rqttl.worker.queue_source import QueueSource
from tests.chaos.cast import ACCOUNTED, PASSED_TO, copy_of, goals, is_body_of
from tests.chaos.journal import Journal, now

#: Messages that one script call stores at most; a call with more may fail halfway.
ONE_STEP = 250


class Witness:
    """Writes the events of the messages of this process into one journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.broker: rqttl.Broker | None = None
        self._call = threading.local()

    def install(self) -> None:
        """Watch all queues and consumers of this process."""
        hand_out = delivery.delivered

        def delivered(kind: type[Delivery], settler: Any, claimed: Any, lease: int | None) -> list[Delivery]:
            found = hand_out(kind, settler, claimed, lease)
            self._claimed(claimed, lease, found)
            return found

        receive = commands.receive

        def command(config: commands.QueueConfig, count: int, *args: Any, **options: Any) -> commands.Command:
            self._look_at_tickets(config, count, options.get("presence", commands.ABSENT))
            return receive(config, count, *args, **options)

        delivery.delivered = delivered  # type: ignore[assignment]  # these are sync deliveries
        commands.receive = command
        settling.settle = self._settling(settling.settle)
        self._watch_consumers()

    # Sending

    def send(self, queue: rqttl.Queue, messages: Sequence[rqttl.Message], *, single: bool = False) -> bool:
        """Send messages, all of which have ids. Returns False where the outcome is not known."""
        number, parts, delayed = self.journal.number(), goals(queue.name, messages), bool(messages[0].delay)
        for name, some in parts:
            ids = [copy_of(str(message.id), name) for message in some]
            self.journal.write("send", n=f"{number}@{name}", q=name, ids=ids, delayed=delayed)
        told: list[rqttl.Receipt | rqttl.QueueFull]
        try:
            told = [queue.enqueue(messages[0])] if single else queue.enqueue_many(messages)
        except rqttl.QueueFull as full:
            told = [full]
        except rqttl.OutcomeUnknown:
            return False
        except (ConnectionError, TimeoutError, ResponseError, rqttl.ScriptsForgotten):
            # what fails so was never carried out; only a call of several steps may have begun
            outcome = "none" if len(messages) <= ONE_STEP and queue.name not in PASSED_TO else "unknown"
            for name, _ in parts:
                self.journal.write("sent", n=f"{number}@{name}", outcome=outcome)
            raise
        answers = {one.id: self._told(one, answer) for one, answer in zip(messages, told, strict=True)}
        for name, some in parts:
            self.journal.write("sent", n=f"{number}@{name}", told=[answers[one.id] for one in some])
        return True

    def _told(self, message: rqttl.Message, told: rqttl.Receipt | rqttl.QueueFull) -> list[object]:
        if isinstance(told, rqttl.QueueFull):
            return ["refused"]
        if told.id != message.id:
            self.journal.write("wrong", id=message.id, text=f"the receipt names {told.id}")
        if told.duplicate:
            return ["duplicate"]
        return ["expired" if told.expired else "stored", milliseconds(told.expires_at)]

    # Handing out and settling

    def _claimed(self, claimed: Any, lease: int | None, found: Sequence[Delivery]) -> None:
        if claimed.config.name not in ACCOUNTED:
            return
        got = []
        for one in found:
            if not is_body_of(one.id, one.body):
                self.journal.write("wrong", id=one.id, text=f"{one.queue}: the body is another one: {one.body[:60]!r}")
            died = milliseconds(one.deaths[0].last_at) if one.deaths else 0
            name = copy_of(one.id, claimed.config.name)
            got.append([one.sequence, name, milliseconds(one.expires_at), one.delivery_count, died])
        if got:
            name, token = claimed.config.name, claimed.token.decode()
            since = self._call.since
            self.journal.write(
                "claim",
                q=name,
                token=token,
                lease=lease or claimed.config.lease,
                got=got,
                tickets=self._call.tickets,
                looked=since and [since, found[0].sequence],
            )

    def _look_at_tickets(self, known: commands.QueueConfig, count: int, presence: commands.Presence) -> None:
        """Record the tickets that a receive may take up: its own, or at its last look those in the wake-up list.

        An error here is one of the look itself: nothing was handed out.
        """
        tickets, self._call.since = [presence.ticket], None
        if count and presence.consumer and presence.block == 0:
            self._call.since = now()
            look = ("LRANGE", known.keyspace.key(known.name, "wakeup"), 0, -1)
            tickets += driver_of(self.broker).step(Read([look]))[0]
        self._call.tickets = dict(ticket.decode().split(" ") for ticket in tickets if ticket)

    def _settling(self, settle: Callable[..., Flow[None]]) -> Callable[..., Flow[None]]:
        """A flow that settles deliveries, with a journal."""

        def settling(keyspace: Any, queue: str, how: str, deliveries: Sequence[Delivery], *details: Any) -> Flow[None]:
            flow = settle(keyspace, queue, how, deliveries, *details)
            if queue not in ACCOUNTED:
                yield from flow
                return
            number = self._begin(queue, how, deliveries)
            before = [_pair(item) for item in deliveries]
            try:
                yield from flow
            finally:
                self._end(number, "nack" if how == "release" else how, deliveries, before)

        return settling

    def _begin(self, queue: str, how: str, deliveries: Sequence[Delivery], *, collected: bool = False) -> str:
        number = self.journal.number()
        pairs = [_pair(one) for one in deliveries]
        self.journal.write("settle", n=number, q=queue, how=how, got=pairs, collected=collected)
        return number

    def _end(self, number: str, how: str, deliveries: Sequence[Delivery], before: Sequence[tuple[str, str]]) -> None:
        """Write down the outcome as the deliveries have it. After an error it may be open for some of them."""
        outcomes: dict[str, list[str]] = {"done": [], "lost": [], "unknown": []}
        for one, (sequence, token) in zip(deliveries, before, strict=True):
            renewed = how == "renew" and one.settled is None and _pair(one)[1] != token
            outcome = "done" if renewed or one.settled == how else "lost" if one.settled == LOST else "unknown"
            outcomes[outcome].append(sequence)
        tokens = dict(_pair(one) for one in deliveries if how == "renew")
        self.journal.write("settled", n=number, **outcomes, tokens=tokens)

    def _watch_consumers(self) -> None:
        """Write down acks when a consumer or a worker collects them, and again when they were sent."""
        collect, record = consumer.Consumer._collect, Session._record

        def ack(one: consumer.Consumer, deliveries: Sequence[Delivery]) -> None:
            if one.queue in ACCOUNTED:
                self._begin(one.queue, "ack", deliveries, collected=True)
            collect(one, deliveries)

        finish = QueueSource.finish

        def finished(one: QueueSource, item: Delivery) -> None:
            self._begin(one.queue, "ack", [item], collected=True)
            finish(one, item)

        def note(one: Session[Any], sent: Any, claimed: Any) -> None:
            record(one, sent, claimed)
            if sent:
                self.journal.write(
                    "acks",
                    q=one.queue,
                    done=[_pair(ack) for ack in sent if ack.settled == "ack"],
                    lost=[_pair(ack) for ack in sent if ack.settled == LOST],
                )

        consumer.Consumer._collect = ack  # type: ignore[method-assign, assignment]
        QueueSource.finish = finished  # type: ignore[method-assign, assignment]
        Session._record = note  # type: ignore[method-assign, assignment]


def _pair(one: Delivery) -> tuple[str, str]:
    sequence, token = one.words
    return sequence.decode(), token.decode()


def milliseconds(instant: datetime | None) -> int | None:
    """Return an aware datetime, if there is one, as milliseconds since 1970."""
    return None if instant is None else round(instant.timestamp() * 1000)

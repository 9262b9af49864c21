"""The calls of a consumer to Redis, one at a time. They carry the waiting acks."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

from rqttl import flows
from rqttl.consuming import prefetch
from rqttl.consuming.prefetch import AckBatch, Prefetch, RenewalSchedule
from rqttl.flows import Driver, Flow, ReceiveResult
from rqttl.flows.messages import ENDED
from rqttl.protocol.commands import Command, Presence
from rqttl.runtime.interrupt import Interrupt

logger = logging.getLogger("rqttl.consumer")


class Sender:
    """Performs the flows of one consumer. Safe to share between its threads. `stop` ends its waits."""

    def __init__(
        self,
        driver: Driver,
        queue: str,
        consumer: str,
        books: Prefetch,
        schedule: RenewalSchedule,
        stop: Interrupt,
    ) -> None:
        self.queue = queue
        self._driver = driver
        self._consumer = consumer
        self._books = books
        self._schedule = schedule
        self._stop = stop
        #: The lock for calls to Redis. Only one call at a time may change tokens (renewals) or present them (settles).
        self.lock = threading.Lock()

    def fetch(self, count: int, lease: int | None, wait: int, room: int) -> ReceiveResult:
        """Send acks and take up to `count` messages. See `flows.receive`."""
        acks = self._books.acks()
        flow = flows.receive(
            self.queue, count, lease, wait, auto_ack=False, consumer=self._consumer, ttl=prefetch.CONSUMER_TTL_MS,
            room=room, finished=acks.next_words,
        )  # fmt: skip
        return self._perform(flow, acks)

    def report(self, ttl: int = 0, *, leaves: bool = False) -> None:
        """Send all waiting acks. Show that the consumer is present for `ttl` ms, or that it leaves the queue."""
        presence = Presence(self._consumer, 0 if leaves else -1, ttl)
        while True:
            acks = self._books.acks()
            self._perform(flows.heartbeat(self.queue, presence, acks.next_words), acks)
            if not self._books.has_acks:
                return

    def _perform(self, flow: Flow[ReceiveResult], acks: AckBatch) -> ReceiveResult:
        """Carry out a flow that sends acks, and log the acks that came too late."""
        try:
            claimed = self._carry_out(flow, acks)
        except BaseException:
            with self.lock:
                acks.put_back()
            raise
        self._schedule.contacted()
        for ack in acks.missed(claimed.lost):
            self._books.late.add(ack)
            logger.warning("queue %s: the ack of %s came after its lease had ended", ack.queue, ack.id)
        for ack in acks.missed(claimed.unknown):
            self._books.unknown.add(ack)
            logger.warning(
                "queue %s: the ack of %s got no reply until its lease had ended: it may have been carried out",
                ack.queue, ack.id,
            )  # fmt: skip
        return claimed

    def _carry_out(self, flow: Flow[ReceiveResult], acks: AckBatch) -> ReceiveResult:
        """Carry out a flow under the lock. The lock is free while the flow waits for a message."""
        answer: Any = None
        failure: Exception | None = None
        while True:
            with self.lock:
                try:
                    step = flow.send(answer) if failure is None else flow.throw(failure)
                except StopIteration as done:
                    claimed: ReceiveResult = done.value
                    return claimed
                failure = None
                if type(step) is not flows.WaitForWakeup:
                    try:
                        answer = self._step(step, acks)
                    except Exception as error:  # noqa: BLE001  # the flow decides about it
                        failure = error
                    continue
            try:
                answer = self._wait(step)
            except Exception as error:  # noqa: BLE001  # the flow decides about it
                failure = error

    def _step(self, step: flows.Step, acks: AckBatch) -> Any:
        if type(step) is not Command:
            return self._driver.step(step)
        answer = self._driver.step(step.as_replay() if acks.is_in_doubt else step)
        if answer[0] == b"ok":
            acks.confirm()
        return answer

    def _wait(self, step: flows.WaitForWakeup) -> Any:
        self._schedule.begin_wait()
        try:
            return ENDED if self._stop.asked() else self._driver.step(replace(step, interrupt=self._stop))
        finally:
            self._schedule.end_wait()

"""The thread of a consumer: it renews leases, sends acks and shows the presence; and its calls, one at a time."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from rqttl import flows
from rqttl.consuming.prefetch import RenewalSchedule
from rqttl.consuming.turns import Turns, announce_renewal
from rqttl.errors import BrokerClosed
from rqttl.flows.steps import Driver, Flow
from rqttl.runtime.interrupt import Interrupt, Wakeup

T = TypeVar("T")


class Sender:
    """Carries out flows, one at a time. Safe to share between threads. `lock` may be one that several senders share."""

    def __init__(self, driver: Driver, lock: threading.Lock | None = None) -> None:
        self._driver = driver
        self._lock = lock or threading.Lock()

    def perform(self, flow: Flow[T]) -> T:
        """Carry out a flow that does not wait for messages."""
        with self._lock:
            try:
                return self._driver.perform(flow)
            finally:
                flow.close()  # an interrupt has left it in its midst

    def fetch(self, flow: Flow[T]) -> T:
        """Carry out a flow. The lock is free while the flow waits for a message."""
        answer: Any = None
        failure: Exception | None = None
        try:
            while True:
                with self._lock:
                    try:
                        step = flow.send(answer) if failure is None else flow.throw(failure)
                    except StopIteration as done:
                        result: T = done.value
                        return result
                    failure = None
                    waits = type(step) is flows.steps.WaitForWakeup
                    if not waits:
                        answer, failure = self._step(step)
                if waits:
                    answer, failure = self._step(step)
        except BaseException:
            with self._lock:
                flow.close()
            raise

    def _step(self, step: flows.steps.Step) -> tuple[Any, Exception | None]:
        try:
            return self._driver.step(step), None
        except Exception as error:  # noqa: BLE001  # the flow decides about it
            return None, error


class Renewer:
    """Takes a turn at a third of the shortest lease, and once in a second at least, until `close`.

    After `stop` a turn releases the deliveries that were not handed out. Leases are renewed until `close`. Each renewal
    notifies `settled`, because it may show lost leases.
    """

    def __init__(
        self,
        driver: Driver,
        turns: Turns[Any],
        schedule: RenewalSchedule,
        sender: Sender,
        stop: Interrupt,
        settled: Wakeup,
    ) -> None:
        self._driver = driver
        self._turns = turns
        self._schedule = schedule
        self._sender = sender
        self._stop = stop
        self._settled = settled
        self._sooner = Wakeup()
        #: The interrupt that ends the renewal of leases.
        self.closed = Interrupt()
        self._thread = threading.Thread(target=self._run, name=f"rqttl-renewer-{turns.queue}", daemon=True)

    @property
    def has_begun(self) -> bool:
        """True if `start` was called."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.start()

    def hurry(self) -> None:
        """Take the next turn early enough for the present leases."""
        self._sooner.notify()

    def close(self) -> None:
        """Take no further turn."""
        self.closed.ask()
        if self._thread.is_alive():
            self._thread.join()

    def prepare(self, leap: int) -> None:
        """Keep the presence and all leases throughout a leap of the clock by `leap` ms. See `Timing.leaps`."""
        self._announce(self._sender.perform(self._turns.prepare(leap)))

    def _run(self) -> None:
        timing = self._driver.timing
        self._schedule.renewed(timing.now())
        while not self.closed.asked():
            end = self.closed if self._stop.asked() else self._stop
            timing.pause(end, lambda: self._schedule.next_turn(timing.now()), self._sooner)
            if self.closed.asked():
                return
            try:
                self._take_turn()
            except BrokerClosed:
                return  # no call can be sent any more; the thread that iterates raises the error
            except Exception as error:  # noqa: BLE001  # without a renewer all leases would end
                self._turns.log_failure(error)

    def _take_turn(self) -> None:
        if self._stop.asked():
            self._sender.perform(self._turns.release_unseen())
        self._announce(self._sender.perform(self._turns.upkeep()))

    def _announce(self, renewed: int | None) -> None:
        if renewed is not None:
            self._settled.notify()  # leases may be lost
        announce_renewal(self._driver.events, self._turns.queue, renewed)

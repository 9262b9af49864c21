"""The thread that renews leases, sends acks and settles; and the calls of a consumer or worker, one at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from rqttl import flows
from rqttl.errors import BrokerClosed
from rqttl.flows.steps import Driver, Flow
from rqttl.runtime.interrupt import Interrupt, Timing, Wakeup

logger = logging.getLogger("rqttl.consumer")

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
    """A thread that calls `turn` after pauses of `pause()` ms, until `close`. `stop` ends one pause."""

    def __init__(
        self,
        timing: Timing,
        name: str,
        pause: Callable[[], float],
        turn: Callable[[], None],
        stop: Interrupt | None = None,
    ) -> None:
        self._timing, self._pause, self._turn, self._stop = timing, pause, turn, stop
        self._sooner = Wakeup()
        #: The interrupt that ends the turns.
        self.closed = Interrupt()
        #: The time of the last turn.
        self.turned_at = timing.now()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def has_begun(self) -> bool:
        """True if `start` was called."""
        return self._thread.ident is not None

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.start()

    def notify(self) -> None:
        """Take the next turn as soon as `pause` says now."""
        self._sooner.notify()

    def close(self) -> None:
        """Take no further turn."""
        self.closed.ask()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self.closed.asked():
            end = self.closed if self._stop is None or self._stop.asked() else self._stop
            self._timing.pause(end, self._pause, self._sooner)
            self.turned_at = self._timing.now()
            if self.closed.asked():
                return
            try:
                self._turn()
            except BrokerClosed:
                return  # no call can be sent any more; another thread tells it
            except Exception:
                # a listener of events failed: without these turns all leases would end
                logger.exception("the renewer of leases goes on after an error")

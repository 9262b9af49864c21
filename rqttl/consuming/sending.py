"""The sender: it carries out the turns of a consumer, one at a time, for threads."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

from rqttl import flows
from rqttl.flows.steps import Driver, Flow

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

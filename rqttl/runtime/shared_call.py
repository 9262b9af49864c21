"""A call that several threads share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Makes one call at a time, in a thread of its own, so a caller may leave before its end.

    Callers that join while a call runs share its result, so they do not pile up behind a slow call.
    """

    def __init__(
        self,
        call: Callable[[], T],
        name: str,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[Sequence[Future[T]], float], object] = wait,
    ) -> None:
        self._call, self._name, self._clock, self._wait = call, name, clock, wait
        self._lock = threading.Lock()
        self._running: Future[T] | None = None
        self._moved_at = 0.0

    def moved(self) -> None:
        """Note that the call goes on: it calls this after each step."""
        self._moved_at = self._clock()

    def result(self, patience: float) -> T | None:
        """Join the call that runs, or begin one. Returns its result, or `None` if it does not move for so many seconds.

        Raises its exception.
        """
        joined_at, running = self._clock(), self._join()
        left = patience
        while left > 0 and not running.done():
            self._wait([running], left)
            left = max(joined_at, self._moved_at) + patience - self._clock()
        return running.result() if running.done() else None

    def _join(self) -> Future[T]:
        with self._lock:
            if self._running is not None and not self._running.done():
                return self._running
            future: Future[T] = Future()
            threading.Thread(target=self._work, args=(future,), name=self._name, daemon=True).start()
            self._running = future
            return future

    def _work(self, future: Future[T]) -> None:
        try:
            future.set_result(self._call())
        except BaseException as error:  # noqa: BLE001  # all callers see it
            future.set_exception(error)

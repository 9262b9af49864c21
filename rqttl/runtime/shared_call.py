"""A call that several threads share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    """Makes one call at a time, in a thread of its own, so a caller may leave before its end.

    Callers that join while a call runs share its result, so they do not pile up behind a slow call.
    """

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call, self._name = call, name
        self._lock = threading.Lock()
        self._running: Future[T] | None = None

    def join(self) -> Future[T]:
        """Return the future of the call that runs; if none does, begin one."""
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

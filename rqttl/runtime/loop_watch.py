"""A watch over an event loop: a thread that logs a blocked loop, with the stack of the code that blocks it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("rqttl.aio")

#: Seconds between two logs.
QUIET = 60.0


class LoopWatch:
    """Watches one event loop while consumers need it: a blocked loop renews no leases."""

    def __init__(self) -> None:
        self._consumers: dict[object, tuple[str, Callable[[], float]]] = {}
        self._ended: threading.Event | None = None
        self._answered = True
        self._logged = -QUIET

    @contextmanager
    def watching(self, loop: asyncio.AbstractEventLoop, queue: str, patience: Callable[[], float]) -> Iterator[None]:
        """Within this block log a loop that is blocked for more than `patience()` seconds. Call it in the loop."""
        key = object()
        self._consumers[key] = queue, patience
        if self._ended is None:
            self._ended = threading.Event()
            arguments = loop, threading.get_ident(), self._ended
            threading.Thread(target=self._watch, args=arguments, name="rqttl-loop-watch", daemon=True).start()
        try:
            yield
        finally:
            del self._consumers[key]
            if not self._consumers:
                self._ended.set()
                self._ended = None

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, ended: threading.Event) -> None:
        asked, self._answered = time.monotonic(), True
        while not ended.wait(min(1.0, self._patience() / 4)):
            if self._answered:
                asked, self._answered = time.monotonic(), False
                try:
                    loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop is closed
                    return
            elif time.monotonic() - asked > self._patience() and time.monotonic() - self._logged >= QUIET:
                self._logged = time.monotonic()
                self._log(self._logged - asked, thread)

    def _answer(self) -> None:
        self._answered = True

    def _patience(self) -> float:
        return min([patience() for _, patience in list(self._consumers.values())], default=1.0)

    def _log(self, seconds: float, thread: int) -> None:
        frame = sys._current_frames().get(thread)  # noqa: SLF001  # the documented way to the stack of another thread
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        queues = ", ".join(sorted({queue for queue, _ in list(self._consumers.values())}))
        logger.warning("event loop blocked for %.1f s, leases of %s may end; it runs\n%s", seconds, queues, stack)

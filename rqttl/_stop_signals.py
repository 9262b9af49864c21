"""SIGTERM and SIGINT as a request to stop, for a loop that finishes what it has begun."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

#: Seconds within which another signal is still the first one: `timeout` and others send it twice.
SAME = 1.0


class StopSignals:
    """As a context manager: the first SIGTERM or SIGINT calls `stop`, a later one does what it did before.

    So a second SIGINT usually raises `KeyboardInterrupt`, and a second SIGTERM ends the process. A signal that the
    process ignores stays ignored (`nohup`). In any other thread than the main one no signal is handled, because Python
    does not allow it. The previous handlers are back at the end.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._since: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                # None is a handler that Python did not install, and cannot put back
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._meet)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _meet(self, number: int, frame: FrameType | None) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self._stop()
        elif time.monotonic() - self._since > SAME:
            before = self._before[number]
            signal.signal(number, before)
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)

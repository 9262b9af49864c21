"""SIGTERM and SIGINT as a request to stop, for a loop that finishes what it has begun."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from types import FrameType, TracebackType
from typing import Any

#: Seconds within which another signal is still the first one: `timeout` and others send it twice.
SAME = 1.0


class SignalWatch:
    """A context manager for the main thread that calls `then` when a signal comes, whatever the main thread does.

    Python runs signal handlers in the main thread only, between two instructions. A signal that comes right before the
    main thread blocks in a call, or that another thread receives, does not end that call; its handler runs minutes
    later, perhaps. So a second thread receives signals too. `then` may be called several times.
    """

    def __init__(self, numbers: Collection[int], then: Callable[[], None]) -> None:
        self._numbers = frozenset(numbers)
        self._then = then

    def __enter__(self) -> SignalWatch:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="rqttl-signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def _watch(self) -> None:
        while received := os.read(self._reader, 256):
            if not self._numbers.isdisjoint(received):
                self._then()
            if self._before != -1:
                with suppress(OSError):  # whoever used it before, such as an event loop, has closed it or is busy
                    os.write(self._before, received)


class StopSignals:
    """A context manager in which the first SIGTERM or SIGINT calls `stop`. A later one has its previous effect.

    So a second SIGINT usually raises `KeyboardInterrupt`, and a second SIGTERM ends the process. A signal that the
    process ignores stays ignored (`nohup`). In any other thread than the main one no signal is handled, because Python
    does not allow it. The previous handlers are back at the end, and in each child process that is forked meanwhile.

    `stop` may be called several times, and in a signal handler.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._since: float | None = None
        self._before: dict[int, Any] = {}
        self._watch = ExitStack()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            _entered.append(self)
            for number in (signal.SIGTERM, signal.SIGINT):
                # None is a handler that Python did not install, and cannot put back
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._meet)
            self._watch.enter_context(SignalWatch(self._before, self._stop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self in _entered:
            self.restore()
            self._watch.close()
            _entered.remove(self)

    def restore(self) -> None:
        """Put the previous handlers back."""
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


_entered: list[StopSignals] = []


def _leave_to_the_parent() -> None:
    """Restore the handlers in a forked child: `terminate` has to end it, and must not stop the run of its parent."""
    if _entered:
        signal.set_wakeup_fd(-1)
        for signals in _entered:
            signals.restore()


os.register_at_fork(after_in_child=_leave_to_the_parent)

"""SIGTERM and SIGINT as a request to stop, for a loop that finishes its work first."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack, suppress
from types import FrameType, TracebackType
from typing import Any

#: Seconds after the first signal in which a further signal counts as the same one: `timeout` sends it twice.
SAME = 1.0


class SignalWatch:
    """A context manager for the main thread. It calls `then` when a signal comes, even if the main thread is blocked.

    Python runs signal handlers in the main thread only, between two instructions. A signal does not end a blocking call
    of the main thread if it comes right before the call, or if another thread receives it. Its handler may then run
    minutes later. So a thread of its own reads the signals, too. `then` may be called several times.
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
                with suppress(OSError):  # its previous user, such as an event loop, has closed it or is busy
                    os.write(self._before, received)


def ignore_at_exit(numbers: Iterable[int]) -> None:
    """Ignore signals while the interpreter shuts down. It would give them their default effects then."""
    for number in numbers:
        atexit.register(signal.signal, number, signal.SIG_IGN)


class StopSignals:
    """A context manager in which the first SIGTERM or SIGINT calls `stop`. A later signal has its previous effect.

    So a second SIGINT usually raises `KeyboardInterrupt`, and a second SIGTERM ends the process. A signal that the
    process ignores stays ignored (`nohup`). Only the main thread handles signals, because Python allows no other. The
    exit restores the previous handlers; each forked child process has them at once.

    `stop` may be called several times, and in a signal handler. With `ends_process` the exit after a signal keeps the
    handlers: a command that ends must not end in another way because its signal comes twice.
    """

    def __init__(self, stop: Callable[[], None], *, ends_process: bool = False) -> None:
        self._stop = stop
        self._ends_process = ends_process
        self._since: float | None = None
        self._before: dict[int, Any] = {}
        self._watch = ExitStack()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            _entered.append(self)
            for number in (signal.SIGTERM, signal.SIGINT):
                # None stands for a handler that Python did not install and cannot restore
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
            self._watch.enter_context(SignalWatch(self._before, self._stop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self in _entered:
            if self._since is None or not self._ends_process:
                self.restore()
            else:
                ignore_at_exit(self._before)
            self._watch.close()
            _entered.remove(self)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
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


def _restore_in_child() -> None:
    """Restore the handlers in a forked child: `terminate` must end the child, not stop the run of the parent."""
    if _entered:
        signal.set_wakeup_fd(-1)
        for signals in _entered:
            signals.restore()


os.register_at_fork(after_in_child=_restore_in_child)

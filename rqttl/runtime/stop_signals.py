"""SIGTERM and SIGINT as a request to stop, for a loop that finishes its work first."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

#: Seconds after the first signal in which a further signal counts as the same one: `timeout` sends it twice.
SAME = 1.0


@contextmanager
def watching_signals(numbers: Collection[int], then: Callable[[], None]) -> Iterator[None]:
    """Within this block of the main thread call `then` when a signal comes, even if the main thread is blocked.

    Python runs signal handlers in the main thread only, between two instructions. A signal does not end a blocking call
    of the main thread if it comes right before the call, or if another thread receives it. Its handler may then run
    minutes later. So a thread of its own reads the signals, too. `then` may be called several times.
    """
    wanted, (reader, writer) = frozenset(numbers), os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while received := os.read(reader, 256):
            if not wanted.isdisjoint(received):
                then()
            if before != -1:
                with suppress(OSError):  # its previous user, such as an event loop, has closed it or is busy
                    os.write(before, received)

    thread = threading.Thread(target=watch, name="rqttl-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def ignore_at_exit(numbers: Iterable[int]) -> None:
    """Ignore signals while the interpreter shuts down. It would give them their default effects then."""
    for number in numbers:
        atexit.register(signal.signal, number, signal.SIG_IGN)


class StopSignals:
    """A context manager in which the first SIGTERM or SIGINT calls `stop`, and the handler that was there before.

    A later signal has its previous effect: a second SIGINT usually raises `KeyboardInterrupt`, and a second SIGTERM
    ends the process. A signal that the process ignores stays ignored (`nohup`). Only the main thread handles signals,
    because Python allows no other. Several may be entered, and left in any order. The last exit restores the previous
    handlers; each forked child process has them at once.

    `stop` may be called several times, and in a signal handler. With `ends_process` the exit after a signal keeps the
    handlers: a command that ends must not end in another way because its signal comes twice.
    """

    def __init__(self, stop: Callable[[], None], *, ends_process: bool = False) -> None:
        self._stop = stop
        self._ends_process = ends_process

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            _entered.append(self._stop)
            if len(_entered) == 1:
                _handlers.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop in _entered:
            _entered.remove(self._stop)
            if not _entered:
                _handlers.uninstall(ends_process=self._ends_process)


class _Handlers:
    """The handlers of this process while a `StopSignals` is entered, and those from before."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        self._since = None
        for number in (signal.SIGTERM, signal.SIGINT):
            # None stands for a handler that Python did not install and cannot restore
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._handle)
        self._watch = watching_signals(self._before, _stop_all)
        self._watch.__enter__()

    def uninstall(self, *, ends_process: bool) -> None:
        if self._since is not None and ends_process:
            ignore_at_exit(self._before)
        else:
            self.restore()
        self._watch.__exit__(None, None, None)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before, self._since = {}, None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if self._since is None:
            self._since = time.monotonic()
            _stop_all()
            if callable(before) and not _raises_interrupt(before):
                before(number, frame)
        elif time.monotonic() - self._since > SAME:
            signal.signal(number, before)
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)


def _raises_interrupt(handler: Callable[..., object]) -> bool:
    """Tell Python's own handlers of SIGINT, which would break the work off: the default one, and that of asyncio."""
    function = getattr(handler, "func", None)  # of asyncio.Runner: a partial
    return handler is signal.default_int_handler or getattr(function, "__module__", None) == "asyncio.runners"


_entered: list[Callable[[], None]] = []
_handlers = _Handlers()


def _stop_all() -> None:
    for stop in tuple(_entered):
        stop()


def _restore_in_child() -> None:
    """Restore the handlers in a forked child: `terminate` must end the child, not stop the run of the parent."""
    if _entered:
        signal.set_wakeup_fd(-1)
        _entered.clear()
        _handlers.restore()


os.register_at_fork(after_in_child=_restore_in_child)

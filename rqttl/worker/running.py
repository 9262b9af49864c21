"""The surroundings of a running worker: its signals, and a reaper beside it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rqttl.runtime.stop_signals import SAME

if TYPE_CHECKING:
    from rqttl.broker import Broker


class Controlled(Protocol):
    """A worker, for its signals."""

    def stop(self) -> None:
        """Stop, or stop at once if it is stopping."""

    def quiet(self) -> None:
        """Fetch no more."""


class ControlSignals:
    """A context in which signals stop the worker. Only the main thread handles signals, because Python allows no other.

    `wakeup` is a file descriptor that ends the wait of the main thread. A signal that the process ignores stays
    ignored (`nohup`).
    """

    def __init__(self, worker: Controlled, wakeup: int) -> None:
        self._worker = worker
        self._wakeup = wakeup
        self._since: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> ControlSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
            self._fd = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.set_wakeup_fd(self._fd)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if number == signal.SIGTSTP:
            self._worker.quiet()
        elif self._since is None or time.monotonic() - self._since > SAME:
            self._since = time.monotonic()
            self._worker.stop()


class ReaperThread:
    """A context in which `reaper` runs in a thread. `fail` gets its error."""

    def __init__(self, broker: Broker, fail: Callable[[BaseException], None]) -> None:
        from rqttl.reaper import Reaper

        self.reaper = Reaper(broker)
        self._fail = fail
        self._thread = threading.Thread(target=self._run, name="rqttl-reaper", daemon=True)

    def __enter__(self) -> ReaperThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.reaper.stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.reaper.run()
        except BaseException as error:  # noqa: BLE001  # the worker raises it
            self._fail(error)

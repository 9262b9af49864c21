"""The end of `rqttl receive` by a signal: waits end, a write that hangs is given up, nothing is cut off."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType

from rqttl._interrupt import Interrupt
from rqttl._stop_signals import SignalWatch
from rqttl.cli.common.signals import Stop, Stopped, Stopping

#: Seconds within which another signal is still the first one.
SAME = 1.0


class Ending(Stopping):
    """As a context manager: notes which signal asked to end. One that comes later ends the process at once.

    `timeout` and others send the first one twice, so what follows within a second is the same. It raises nothing, so
    that no call to Redis is broken off, but calls `then`, and asks `stop`; `reader` is a file that can be read once it
    was asked.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        #: The signal, or 0.
        self.asked = 0
        #: Ends what waits outside of Redis, such as a pause between two attempts.
        self.stop = Interrupt()
        self._wait_ends = then
        self._since = 0.0
        self._watch = ExitStack()
        self.reader, self._writer = os.pipe()

    def __enter__(self) -> Ending:
        super().__enter__()
        # a signal that comes right before the wait for a message begins would be heard when that wait is over
        self._watch.enter_context(SignalWatch(self._before, self._end_waits))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._watch.close()
        os.close(self.reader)
        os.close(self._writer)

    def raise_if_asked(self, *, expected: bool) -> None:
        """Raise what ends the command with its exit code; but SIGTERM is no failure where it is `expected`."""
        if self.asked and not (expected and self.asked == signal.SIGTERM):
            raise Stopped(Stop(self.asked))

    def _meet(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            if time.monotonic() - self._since > SAME:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.asked, self._since = number, time.monotonic()
        os.write(self._writer, b".")
        self._end_waits()

    def _end_waits(self) -> None:
        self._wait_ends()
        self.stop.ask()

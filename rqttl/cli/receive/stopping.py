"""The end of `rqttl receive` by a signal: waits end, a write that hangs is given up, and no message is cut."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType, TracebackType

from rqttl.cli.common.signals import Interrupted, SignalGuard, SignalReceived
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import SignalWatch, ignore_at_exit

#: Seconds in which a second signal counts as the first one again.
SAME = 1.0


class GracefulStop(SignalGuard):
    """A context manager that remembers the first signal. A second signal ends the process at once.

    `timeout` and other programs send the first signal twice, so a signal within a second is the same one. A signal
    raises nothing, so that no call to Redis is broken off. It calls `end_wait` and asks `interrupt`, and the file
    `reader` is readable from then on. After a signal the exit keeps the handlers: the process ends now, and the same
    signal once more must not end it in another way.
    """

    def __init__(self, end_wait: Callable[[], None]) -> None:
        super().__init__()
        #: The signal, or 0.
        self.asked = 0
        #: Ends waits outside of Redis, such as the pause between two attempts.
        self.interrupt = Interrupt()
        self._end_wait = end_wait
        self._since = 0.0
        self._watch = ExitStack()
        self.reader, self._writer = os.pipe()

    def __enter__(self) -> GracefulStop:
        super().__enter__()
        # without it, a signal right before the wait for a message would act after that wait
        self._watch.enter_context(SignalWatch(self._before, self._end_waits))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.asked:
            ignore_at_exit(self._before)
        else:
            super().__exit__(kind, error, trace)
        self._watch.close()
        os.close(self.reader)
        os.close(self._writer)

    def raise_if_asked(self, *, expected: bool) -> None:
        """Raise the error for the exit code of the signal. SIGTERM raises nothing if it is `expected`."""
        if self.asked and not (expected and self.asked == signal.SIGTERM):
            raise Interrupted(SignalReceived(self.asked))

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            if time.monotonic() - self._since > SAME:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.asked, self._since = number, time.monotonic()
        os.write(self._writer, b".")
        self._end_waits()

    def _end_waits(self) -> None:
        self._end_wait()
        self.interrupt.ask()

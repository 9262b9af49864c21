"""The end of `rqttl receive`: signals, readers that are gone, and a Redis that is away."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType

from rqttl.cli.common import output
from rqttl.cli.common.signals import Interrupted, SignalGuard, SignalReceived
from rqttl.runtime.interrupt import Interrupt
from rqttl.runtime.stop_signals import SignalWatch, ignore_at_exit

#: Seconds after which a reader that has taken nothing counts as one that waits for our end. Then the pipe keeps all
#: bytes, and a written message counts as read.
PATIENCE = 2.0
#: Seconds in which a reader is expected to take a message, and the longest pause between two checks later.
BRISK, PAUSE = 0.0005, 0.05


class Pipe:
    """The write end of a pipe, and the number of bytes that are still in it.

    Only Linux gives that number. Elsewhere, and for a socket, written bytes count as read as long as there is a reader.
    """

    def __init__(self, file: int, interrupted: int) -> None:
        self._file = file
        self._interrupted = interrupted
        self._counted = sys.platform == "linux" and stat.S_ISFIFO(os.fstat(file).st_mode)
        self._written = 0
        self._began: float | None = None

    def wrote(self, size: int) -> None:
        """Count written bytes."""
        self._written += size
        if self._began is None:
            self._began = time.monotonic()

    def wait_until_read(self, *, patient: bool) -> bool:
        """Wait until the reader has taken all bytes; False if a signal asked the command to end before.

        Without `patient` there is no wait. Raises `BrokenPipeError` if the reader went away and left bytes.
        """
        started = time.monotonic()
        while unread := self._unread():
            if self._has_no_reader():
                if self._unread():  # the reader may have taken the last bytes right before it went
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
                return True
            waited = time.monotonic() - started
            if not patient or self._waits_for_our_end(unread):
                return True
            if waited < BRISK:
                os.sched_yield()
            elif select.select([self._interrupted], [], [], min(waited / 8, PAUSE))[0]:
                return False
        return True

    def _unread(self) -> int:
        if not self._counted:
            return int(self._has_no_reader())
        size: int = struct.unpack("i", fcntl.ioctl(self._file, termios.FIONREAD, b"\0" * 4))[0]
        return size

    def _has_no_reader(self) -> bool:
        poll = select.poll()
        poll.register(self._file, 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))

    def _waits_for_our_end(self, unread: int) -> bool:
        """Return whether the reader took nothing for `PATIENCE`, so that it seems to wait for our end."""
        return unread >= self._written and time.monotonic() - (self._began or 0.0) > PATIENCE


def pipe_of(file: int, interrupted: int) -> Pipe | None:
    """The pipe or socket behind a file descriptor; `None` for a terminal, a file or a device."""
    mode = os.fstat(file).st_mode
    return Pipe(file, interrupted) if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


#: Seconds after a note without another one.
QUIET = 60.0


class Outages(logging.Handler):
    """A log handler for new attempts while Redis is away: a note, once a minute. It drops all other records."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._noted = -QUIET

    def emit(self, record: logging.LogRecord) -> None:
        """Print a note for a new attempt, if the last note is old."""
        from rqttl.consuming.patience import AGAIN  # slow to load: it needs redis-py

        if record.msg == AGAIN and time.monotonic() - self._noted >= QUIET:
            self._noted = time.monotonic()
            output.note(record.getMessage())


@contextmanager
def noting_outages() -> Iterator[None]:
    """Print notes on outages within this block."""
    logger, outages = logging.getLogger("rqttl"), Outages()
    logger.addHandler(outages)
    try:
        yield
    finally:
        logger.removeHandler(outages)


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

"""A pipe as the output, and the bytes in it that the reader has not taken. Unread messages are not acked."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
import sys
import termios
import time

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

"""The board of a place for handlers: the times at which each message of the place began and ended. No I/O of its own.

A child writes to its board without a call to the system, and the memory stays when the child is killed. So the worker
knows at any moment which message had begun and which had ended, and a child may report many messages in one frame.
Both processes use the same monotonic clock.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    #: Two times for each key: the begin and the successful end of its message. 0 stands for a time to come.
    Board = memoryview[float]

#: The number of keys of a board, so the number of messages that a place can have.
KEYS = 16_384
_BYTES = KEYS * 2 * 8


def local() -> Board:
    """Return a board of this process."""
    return memoryview(bytearray(_BYTES)).cast("d")


def mapped(fd: int) -> Board:
    """Return the board in the memory behind a file descriptor."""
    return memoryview(mmap.mmap(fd, _BYTES)).cast("d")


@contextmanager
def shared() -> Iterator[int]:
    """The file descriptor of memory for a board that two processes share. A mapping outlives the descriptor."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("rqttl-board")
    else:  # macOS: a file without a name
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, _BYTES)
        yield fd
    finally:
        os.close(fd)

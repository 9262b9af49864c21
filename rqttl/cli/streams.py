"""The standard streams of a command: closed ones at its start, full buffers at its end."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO


def prepare() -> None:
    """Open each stream that the caller closed (`>&-`), before a socket takes its number.

    A closed stdout stays unwritable: a command that has an answer fails as on a full disk, and `receive` acks nothing.
    A character that the encoding of stdout lacks is escaped, as on stderr.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  # until the process ends
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # as above
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush_or_drop(stream: TextIO) -> None:
    """Write the buffer of a stream, or drop it if that fails.

    The interpreter flushes both streams once more at its end. If that fails, it exits with code 120 and ours is lost.
    """
    try:
        stream.flush()
    except OSError:
        drop(stream)


def drop(stream: TextIO) -> None:
    """Send the buffer of a stream, and all later output, to the null device."""
    with suppress(OSError):  # a stream without a file, which the interpreter does not flush
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)

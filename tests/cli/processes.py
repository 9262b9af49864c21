"""The command line as a process of its own: with pipes, or on a terminal of 80 columns."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

PATIENCE = 60.0

#: What rich uses for bold text on a terminal; nothing else may come.
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rqttl.cli", *arguments]


def environment(**changed: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "RQTTL_URL")}
    return {**kept, "TERM": "xterm", **changed}


def on_terminal(*arguments: str, columns: int = 80, **changed: str) -> str:
    """What a command shows on a terminal, its bold text plain; `\\r\\n` is `\\n`."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changed)):
        os.close(theirs)
        shown = bytearray()
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            while piece := os.read(ours, 65536):
                shown += piece
    os.close(ours)
    return STYLE.sub("", shown.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))

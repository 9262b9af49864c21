"""The command line as a process of its own: with pipes, or on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

from tests.waiting import PATIENCE

#: What rich uses for bold text on a terminal; nothing else may come.
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def command(*arguments: str, first: str = "") -> list[str]:
    """The words that start a command. Its process runs the Python statements `first` before it."""
    program = ("-c", f"{first}; from rqttl.cli import main; main()") if first else ("-m", "rqttl.cli")
    return [sys.executable, *program, *arguments]


#: What a machine may happen to set, and what changes how a command behaves.
UNSET = ("COLUMNS", "LINES", "NO_COLOR", "RQTTL_URL", "RQTTL_HOME", "PYTHONUNBUFFERED")


def environment(**changed: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    return {**kept, "TERM": "xterm", **changed}


def output(url: str, *words: str) -> str:
    """What a command says about the Redis of a URL, on both streams."""
    words = "--url", url, *words
    done = subprocess.run(command(*words), env=environment(), capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


#: Makes its standard input the terminal of its session, and becomes the command.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
from tests.waiting import PATIENCE
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command on a terminal of its own, on which Ctrl-C and Ctrl-D act as for a person.

    Use it with `with`. `screen` is its output so far, with bold text plain; `\\r\\n` is `\\n`.
    """

    def __init__(self, *arguments: str, columns: int = 80, first: str = "", **changed: str) -> None:
        self._ours, theirs = pty.openpty()
        self._bytes = bytearray()
        self.resize(columns, 24)
        words = [sys.executable, "-c", _TAKE_TERMINAL, *command(*arguments, first=first)]
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changed), start_new_session=True
        )
        os.close(theirs)

    @property
    def screen(self) -> str:
        return STYLE.sub("", self._bytes.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))

    @property
    def raw(self) -> bytes:
        """The output so far, byte for byte."""
        return bytes(self._bytes)

    @property
    def edits_lines(self) -> bool:
        """True in its usual mode, in which a key is read with the line only."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ICANON)

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal another size."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, text: str, times: int = 1) -> None:
        """Wait until the screen has this text, `times` times."""
        deadline = time.monotonic() + PATIENCE
        while self.screen.count(text) < times:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not come: {self.screen!r}"
            assert self._read(left), f"it ended without {text!r}: {self.screen!r}"

    def type(self, keys: bytes) -> None:
        """Press keys: `b"y\\r"`, `b"\\x03"` for Ctrl-C, `b"\\x04"` for Ctrl-D."""
        os.write(self._ours, keys)

    def end(self) -> int:
        """Wait for its end; the exit code."""
        assert self._ends_within(PATIENCE), f"it goes on: {self.screen!r}"
        return self.process.wait(PATIENCE)

    def interrupt(self) -> int:
        """Press Ctrl-C and wait for its end; once more where one came right before a read that blocks, and got lost."""
        for _ in range(10):
            self.type(b"\x03")
            if self._ends_within(PATIENCE / 10):
                break
        return self.end()

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self._read(1.0):
                return True
        return False

    def _read(self, seconds: float) -> bool:
        """Wait for output and read it. Returns whether more may follow."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # Linux reports the end of a terminal as an error
            return False
        self._bytes += piece
        return bool(piece)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def on_terminal(*arguments: str, columns: int = 80, **changed: str) -> str:
    """The output of a command on a terminal, until it ends."""
    with Terminal(*arguments, columns=columns, **changed) as terminal:
        terminal.end()
        return terminal.screen

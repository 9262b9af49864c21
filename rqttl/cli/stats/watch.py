"""`rqttl stats --watch`: a frame for each snapshot, live on a terminal, else as text or JSON lines."""

from __future__ import annotations

import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

import click

from rqttl.cli.common import errors, exits, output, terminal
from rqttl.cli.stats.frame import FrameSettings, Line, frame
from rqttl.inspector.queues import Snapshot, Trend

#: Seconds between two checks: has the terminal another size, and does Redis answer?
POLL = 0.2
#: Seconds beyond the interval before the frame says that Redis does not answer.
SLOW = 1.0
_STYLES = {"": "", "bold": "\x1b[1m", "alarm": "\x1b[1;31m"}
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


def poll(take: Callable[[], Snapshot], seconds: float, wait: Callable[[float], object]) -> Iterator[Snapshot | str]:
    """A snapshot after each interval; the line of an error if Redis cannot be reached or refuses.

    `wait` lets the seconds of an interval pass.
    """
    following = time.monotonic()
    while True:
        following = max(following + seconds, time.monotonic())
        wait(max(0.0, following - time.monotonic()))
        result: Snapshot | str
        try:
            result = take()
        except Exception as error:  # explained as at the end of a command; bugs are raised
            code, result = errors.explain(error)
            if code not in (exits.REFUSED, exits.UNREACHABLE):
                raise
        yield result


def print_frames(
    trend: Trend, results: Iterator[Snapshot | str], limit: int | None, print_frame: Callable[[], None]
) -> None:
    """Print a frame, then one after each snapshot, `limit` in all. Notes tell that Redis went away and came back."""
    away, frames = False, 1
    print_frame()
    while frames != limit:
        result = next(results)
        if isinstance(result, str):
            if not away:
                output.note(f"{result}; trying again until it does")
            away = True
            continue
        if away:
            output.note("Redis answers again")
        away = False
        trend.add(result)
        print_frame()
        frames += 1


class Live:
    """A watch on a terminal. A thread takes the snapshots, so a Redis that hangs freezes neither screen nor Ctrl-C."""

    def __init__(
        self, trend: Trend, settings: FrameSettings, seconds: float, limit: int | None, names: Sequence[str] = ()
    ) -> None:
        self._trend = trend
        self._settings = settings
        self._seconds = seconds
        self._limit = limit
        self._names = names
        self._inbox: queue.SimpleQueue[Snapshot | str | BaseException] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._trouble: str | None = None
        self._answered = self._replied = time.monotonic()
        self._drawn: tuple[object, ...] = ()

    def run(self, take: Callable[[], Snapshot]) -> None:
        """Watch until the limit of snapshots, or until a signal is raised, and then restore the screen."""
        results = poll(take, self._seconds, self._ended.wait)
        threading.Thread(target=self._fill_inbox, args=(results,), name="rqttl-stats", daemon=True).start()
        try:
            with _screen():
                self._draw()
                for _ in count() if self._limit is None else range(self._limit - 1):
                    if not self._wait_for_snapshot():
                        return
        finally:
            self._ended.set()

    def _fill_inbox(self, results: Iterator[Snapshot | str]) -> None:
        try:
            while not self._ended.is_set():
                self._inbox.put(next(results))
        except BaseException as error:  # noqa: BLE001  # the main thread raises it
            self._inbox.put(error)

    def _wait_for_snapshot(self) -> bool:
        """Draw the frame of the next snapshot. Until it is there, keep the frame up to date. False after a `q`."""
        while not _is_quit():
            with suppress(queue.Empty):
                result = self._inbox.get(timeout=POLL)
                if isinstance(result, BaseException):
                    raise result
                self._replied = time.monotonic()
                self._trouble = result if isinstance(result, str) else None
                if isinstance(result, Snapshot):
                    self._answered = self._replied
                    self._trend.add(result)
                    self._draw()
                    return True
            self._draw()
        return False

    def _draw(self) -> None:
        size = _size()
        lines = frame(self._trend, self._settings.sized(*size), self._troubles())
        if self._drawn != (size, lines):
            _put(lines)
            self._drawn = (size, lines)

    def _troubles(self) -> list[str]:
        now = time.monotonic()
        troubles = []
        if now - self._replied > self._seconds + SLOW:
            troubles.append(f"Redis has not answered for {now - self._replied:,.0f}s; waiting")
        elif self._trouble:
            troubles.append(f"{self._trouble}; trying again (these numbers are {now - self._answered:,.0f}s old)")
        snapshot = self._trend.snapshot
        missing = [name for name in self._names if name not in snapshot.queues]
        if missing:
            troubles.append(f"not there: {', '.join(missing)}")
        return troubles


def is_live() -> bool:
    """Return whether stdout is a terminal on which a frame can be drawn."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


@contextmanager
def _screen() -> Iterator[None]:
    """A screen of its own without a cursor, and keys that act at once. At the end the terminal is as before."""
    keys = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    try:
        if keys:
            tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        _write(_ENTER)
        yield
    finally:
        if keys:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, keys)
        with suppress(OSError):  # the terminal itself may be gone
            _write(_LEAVE)


def _is_quit() -> bool:
    """Return whether somebody has typed `q`."""
    while sys.stdin.isatty() and select.select([sys.stdin], [], [], 0)[0]:
        typed = os.read(sys.stdin.fileno(), 100)
        if not typed or b"q" in typed.lower():
            return True
    return False


def _put(lines: Sequence[Line]) -> None:
    """Draw over the last frame, line by line, which does not flicker."""
    plain = not terminal.coloured()
    styled = [line.text if plain or not line.style else f"{_STYLES[line.style]}{line.text}\x1b[0m" for line in lines]
    _write("\x1b[?7l\x1b[H" + "\n".join(f"{line}\x1b[K" for line in styled) + "\x1b[J\x1b[?7h")


def _write(characters: str) -> None:
    click.echo(characters, nl=False, color=True)

"""`rqttl stats --watch`: looking again and again, and showing it: live on a terminal, else as text or JSON lines."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

import click

from rqttl.cli.common import errors, output
from rqttl.cli.stats.frame import Line, Setting, frame
from rqttl.cli.stats.trend import Look, Trend

#: Seconds after which a changed size of the terminal is noticed, and a Redis that does not answer.
POLL = 0.2
#: Seconds more than the interval that an answer may take before the watch says that it waits.
SLOW = 1.0
_STYLES = {"": "", "bold": "\x1b[1m", "alarm": "\x1b[1;31m"}
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"


#: Lets the time between two looks pass.
pause: Callable[[float], object] = time.sleep


def observe(
    take: Callable[[], Look], seconds: float, wait: Callable[[float], object] | None = None
) -> Iterator[Look | str]:
    """A look after each interval; a line instead where Redis is away or refuses."""
    following = time.monotonic()
    while True:
        following = max(following + seconds, time.monotonic())
        (wait or pause)(max(0.0, following - time.monotonic()))
        seen: Look | str
        try:
            seen = take()
        except Exception as error:  # explained as at the end of a command; bugs are raised
            code, seen = errors.explain(error)
            if code not in (errors.REFUSED, errors.UNREACHABLE):
                raise
        yield seen


def tell(trend: Trend, seen: Iterator[Look | str], most: int | None, show: Callable[[], None]) -> None:
    """Show what there is, then after each look again, `most` times. Where Redis is away say so once; and its return."""
    away, shown = False, 1
    show()
    while shown != most:
        one = next(seen)
        if isinstance(one, str):
            if not away:
                output.note(f"{one}; trying again until it does")
            away = True
            continue
        if away:
            output.note("Redis answers again")
        away = False
        trend.take(one)
        show()
        shown += 1


class Live:
    """A watch on a terminal: a thread looks, so that a Redis that hangs freezes neither the screen nor Ctrl-C."""

    def __init__(
        self, trend: Trend, setting: Setting, seconds: float, most: int | None, names: Sequence[str] = ()
    ) -> None:
        self._trend = trend
        self._setting = setting
        self._seconds = seconds
        self._most = most
        self._names = names
        self._inbox: queue.SimpleQueue[Look | str | BaseException] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._trouble: str | None = None
        self._answered = self._heard = time.monotonic()
        self._drawn: tuple[object, ...] = ()

    def run(self, take: Callable[[], Look]) -> None:
        """Watch until the given number of looks, or until a signal is raised. The screen is as before then."""
        seen = observe(take, self._seconds, self._ended.wait)
        threading.Thread(target=self._look, args=(seen,), name="rqttl-stats", daemon=True).start()
        try:
            with _screen():
                self._draw()
                for _ in count() if self._most is None else range(self._most - 1):
                    self._wait_for_a_look()
        finally:
            self._ended.set()

    def _look(self, seen: Iterator[Look | str]) -> None:
        try:
            while not self._ended.is_set():
                self._inbox.put(next(seen))
        except BaseException as error:  # noqa: BLE001  # raised where it is waited for
            self._inbox.put(error)

    def _wait_for_a_look(self) -> None:
        """Show what there is, also while there is nothing new, until a look has been shown."""
        while True:
            with suppress(queue.Empty):
                one = self._inbox.get(timeout=POLL)
                if isinstance(one, BaseException):
                    raise one
                self._heard = time.monotonic()
                self._trouble = one if isinstance(one, str) else None
                if isinstance(one, Look):
                    self._answered = self._heard
                    self._trend.take(one)
                    self._draw()
                    return
            self._draw()

    def _draw(self) -> None:
        size = _size()
        lines = frame(self._trend, self._setting.sized(*size), self._troubles())
        if self._drawn != (size, lines):
            _put(lines)
            self._drawn = (size, lines)

    def _troubles(self) -> list[str]:
        now = time.monotonic()
        found = []
        if now - self._heard > self._seconds + SLOW:
            found.append(f"Redis has not answered for {now - self._heard:,.0f}s; waiting")
        elif self._trouble:
            found.append(f"{self._trouble}; trying again (what is shown is {now - self._answered:,.0f}s old)")
        look = self._trend.look
        missing = [name for name in self._names if name not in look.queues and name not in look.damaged]
        if missing:
            found.append(f"not there: {', '.join(missing)}")
        return found


def is_live() -> bool:
    """Whether stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


@contextmanager
def _screen() -> Iterator[None]:
    """A screen of its own without a cursor; afterwards the terminal shows what it showed before."""
    try:
        _write(_ENTER)
        yield
    finally:
        with suppress(OSError):  # the terminal itself may be gone
            _write(_LEAVE)


def _put(lines: Sequence[Line]) -> None:
    """Draw over what is there, line by line, which does not flicker."""
    plain = not output.coloured()
    shown = [line.text if plain or not line.style else f"{_STYLES[line.style]}{line.text}\x1b[0m" for line in lines]
    _write("\x1b[?7l\x1b[H" + "\n".join(f"{line}\x1b[K" for line in shown) + "\x1b[J\x1b[?7h")


def _write(said: str) -> None:
    click.echo(said, nl=False, color=True)

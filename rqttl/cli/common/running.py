"""Commands that keep running: their log on stderr, and signals that end them with exact counts."""

from __future__ import annotations

import functools
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from rqttl import text
from rqttl.cli.common import output
from rqttl.cli.common.params import F, with_options


class Log(logging.StreamHandler):  # type: ignore[type-arg]  # generic since Python 3.11
    """The log on stderr. One that nobody reads any more must not fill the screen, nor end the work."""

    def __init__(self, form: str) -> None:
        super().__init__(sys.stderr)
        self._is_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        if not record.exc_text and record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        line = _as_json if self._is_json else _as_text
        return line(output.instant(record.created), record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the name of logging
        """Do nothing."""


def _as_text(at: str, record: logging.LogRecord) -> str:
    """`2026-01-31T12:00:00.000Z INFO queue orders: expired 3`; the lines of a traceback follow, indented."""
    lines = [f"{at} {record.levelname} {text.escape(record.getMessage())}"]
    return "\n    ".join([*lines, *map(text.escape, (record.exc_text or "").splitlines())])


def _as_json(at: str, record: logging.LogRecord) -> str:
    """An object with the time, the level, the event, and the fields of the event."""
    event = getattr(record, "event", None)
    fields = getattr(record, "fields", {}) if event else {"message": record.getMessage()}
    if not event and record.exc_text:
        fields["traceback"] = record.exc_text
    return text.dump_json({"time": at, "level": record.levelname.lower(), "event": event or "log", **fields})


_LOG_OPTIONS = (
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the log on stderr.",
    ),
    click.option("--verbose", "-v", is_flag=True, help="Log more."),
)


def logged(command: F) -> F:
    """Give a command `--log-format` and `--verbose`, and send the log of rqttl to stderr while it runs."""

    @functools.wraps(command)
    def run(*args: Any, log_format: str, verbose: bool, **options: Any) -> Any:
        logger, handler = logging.getLogger("rqttl"), Log(log_format)
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbose else logging.INFO)
        try:
            return command(*args, **options)
        finally:
            logger.setLevel(before)
            logger.removeHandler(handler)

    return with_options(*_LOG_OPTIONS)(run)  # type: ignore[return-value]  # for click, the caller, it is the same


@contextmanager
def noting(is_noted: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Print the warnings of rqttl as notes that `is_noted` chooses."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if is_noted(record):
                output.note(text.escape(record.getMessage()))

    logger, handler = logging.getLogger("rqttl"), Notes(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def is_warning_of_flow(record: logging.LogRecord) -> bool:
    """Return whether a flow warns, unless a command sends the whole log to stderr.

    Consumers, runners and reapers have loggers of their own: the commands that run them print what matters of those.
    """
    handlers = logging.getLogger("rqttl").handlers
    return record.name == "rqttl" and not any(isinstance(other, logging.StreamHandler) for other in handlers)


# Signals that end a command: one waits until the call that is running has been counted

T = TypeVar("T")

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class SignalReceived(KeyboardInterrupt):
    """A signal asked the command to end. It is not an `Exception`, so that no handler takes it for a failure.

    `position` says how far the command was.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.position = ""

    def __str__(self) -> str:
        return f"{_WORDS[signal.Signals(self.number)]}{self.position}"


class SignalGuard:
    """A context manager in which SIGINT, SIGTERM and SIGHUP raise `SignalReceived`, but not within `deferred`.

    A signal that the parent process ignores (`nohup`, `&` in a script) stays ignored. After the first `SignalReceived`,
    and after `finish`, further signals are ignored: only the answer is left to print. For the main thread alone.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._received = 0
        self._deferring = self._breakable = self._over = False

    def __enter__(self) -> SignalGuard:
        for number in _WORDS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def finish(self) -> None:
        """Ignore signals from now on: the work that is left is short and must be whole."""
        self._over = True

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal wait until the end of this block. If the block fails, its error goes first."""
        self._deferring = True
        yield
        self._deferring = False  # not after a failure: then no `SignalReceived` may take the place of the error
        if self._received and not self._over:
            self._raise()

    def call(self, function: Callable[[], T]) -> T:
        """Call a function that may hang, within `deferred`: a second signal does not wait for it."""
        self._breakable = True
        try:
            return function()
        finally:
            self._breakable = False

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._over:
            return
        again, self._received = bool(self._received), number
        if not self._deferring or (again and self._breakable):
            self._raise()

    def _raise(self) -> None:
        self._over = True
        raise SignalReceived(self._received)

"""Commands that keep running: their log, their pages by HTTP, and signals that end them with exact counts."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rqttl import text
from rqttl.cli.common import output

if TYPE_CHECKING:
    from rqttl.worker.health import Route


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO queue orders: expired 3`, with unprintable characters escaped.

    The lines of a traceback follow, indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        line = f"{_time(record)} {record.levelname} {text.escape(record.getMessage())}"
        trace = _trace(record)
        return "\n    ".join([line, *map(text.escape, trace.splitlines())])


class JsonFormatter(logging.Formatter):
    """A JSON object for each line: time, level, event, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as a line."""
        event = getattr(record, "event", None)
        fields = getattr(record, "fields", {}) if event else {"message": record.getMessage()}
        if not event and (trace := _trace(record)):
            fields["traceback"] = trace
        return text.dump_json(
            {"time": _time(record), "level": record.levelname.lower(), "event": event or "log", **fields}
        )


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_text and record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


@contextmanager
def logging_to_stderr(form: str, *, verbose: bool = False) -> Iterator[None]:
    """Send the log of rqttl to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    # a log that nobody reads any more must not fill the screen, nor end the work
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # noqa: ARG005  # the name is logging's
    logger = logging.getLogger("rqttl")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


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


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def serving(place: str, flag: str, routes: Mapping[str, Route]) -> Iterator[None]:
    """A context in which these paths are served at `HOST:PORT`, the value of a flag."""
    from rqttl.worker.health import HealthServer
    from rqttl.worker.settings import address

    host, port = address(place, flag)
    try:
        server = HealthServer(host, port, routes)
    except OSError as error:
        raise click.BadParameter(f"cannot listen on {place}: {error}", param_hint=f"'--{flag}'") from error
    server.start()
    output.note(f"serving {', '.join(routes)} on {server.place}; Ctrl-C ends it")
    try:
        yield
    finally:
        server.close()


# Signals that end a command: one waits until the call that is running has been counted

T = TypeVar("T")

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class SignalReceived(KeyboardInterrupt):
    """A signal asked the command to end. It is not an `Exception`, so that no handler takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupted(click.ClickException):
    """The command ended by a signal; `position` says how far it was. The exit code is 128 + signal, as in a shell."""

    def __init__(self, received: SignalReceived, position: str = "") -> None:
        super().__init__(f"{_WORDS[signal.Signals(received.number)]}{position}")
        self.exit_code = 128 + received.number  # type: ignore[misc]  # click asks the instance


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

"""What commands that keep running show: log lines for people or as JSON, and health and metrics by HTTP."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

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

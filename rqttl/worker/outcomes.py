"""The outcome of a handler, the way in which it settles the message, and the line that the log has for it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from rqttl.decisions import Decision, Reject, Retry
from rqttl.delivery import Delivery
from rqttl.options import QueueOptions
from rqttl.protocol.codec import describe
from rqttl.units import Ms

logger = logging.getLogger("rqttl.worker")

#: The folder of this package: tracebacks begin in the handler.
_OURS = str(Path(__file__).parent)


class Outcome(NamedTuple):
    """The outcome of a message: its kind, the delay in ms and the description that a handler gave, and a traceback.

    The traceback of a failed command is empty. A handler that has decided has none. `level` is that of its log line.
    """

    #: `ack`, `nack`, `reject`, `release`, `timeout` or `crashed`.
    kind: str
    delay: int | None = None
    description: str | None = None
    trace: str | None = None
    level: int = logging.WARNING


ACK = Outcome("ack")
RELEASE = Outcome("release")


class CommandFailed(Exception):
    """A command ended with an exit code that is neither 0, 65 nor 75, or by a signal. The text is its description."""


class NoHandler(Exception):
    """No handler is for messages of this type. A worker of a newer version may have one."""


class HandlerStopped(Exception):
    """The worker has ended what the handler did. The message comes again without a pause."""


def of_error(error: BaseException) -> Outcome:
    """Return the outcome of a handler that raised an error or a decision."""
    if isinstance(error, HandlerStopped):
        return Outcome("crashed", None, str(error))
    if isinstance(error, CommandFailed):
        return Outcome("nack", None, str(error), "")
    if isinstance(error, Reject):
        return Outcome("reject", None, error.description)
    if isinstance(error, Retry):
        return Outcome("nack", error.delay, error.description)
    if isinstance(error, Decision):
        return RELEASE
    if isinstance(error, NoHandler):
        return Outcome("nack", None, str(error), "", logging.ERROR)
    return Outcome("nack", None, describe(error), trace_of(error))


def trace_of(error: BaseException, *hidden: str) -> str:
    """Return the traceback of an error and of all errors behind it, without the frames of rqttl's worker.

    `hidden` are the beginnings of further files that the reader need not see.
    """
    whole = traceback.TracebackException.from_exception(error)
    todo: list[traceback.TracebackException | None] = [whole]
    while todo:
        part = todo.pop()
        if part is not None:
            frames = [frame for frame in part.stack if not frame.filename.startswith((_OURS, *hidden))]
            part.stack = traceback.StackSummary.from_list(frames)
            todo += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return "".join(whole.format()).rstrip()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The pause after a failure, where the queue has no `redelivery_delay`: `first` ms, doubled by each failure.

    `jitter` is the part of the pause that is random. It only shortens the pause.
    """

    first: int = 1_000
    longest: int = 600_000
    jitter: float = 0.2

    def pause(self, failures: int, chance: Callable[[], float]) -> int:
        """Return the pause in ms after so many failures."""
        whole = min(self.longest, self.first << min(failures - 1, 40))
        return round(whole * (1 - self.jitter * chance()))


class Settlement(NamedTuple):
    """One way to settle: `nack` with a delay, `reject`, or `release`. Acks are collected instead."""

    how: Literal["ack", "nack", "reject", "release"]
    delay: Ms | None = None
    description: str | None = None


def settlement(
    outcome: Outcome, options: QueueOptions, failures: int, retries: RetryPolicy, chance: Callable[[], float]
) -> Settlement:
    """Return the settlement of an outcome. This was the delivery number `failures` of the message.

    A crash gives the message back without a pause: its cause may be another message, or the system.
    """
    kind, delay, description, *_ = outcome
    if kind in ("ack", "release"):
        return Settlement("ack" if kind == "ack" else "release")
    if kind == "reject":
        return Settlement("reject", None, description)
    pause = delay
    if pause is None and kind != "crashed" and options.number("redelivery_delay") is None:
        pause = retries.pause(failures, chance)
    return Settlement("nack", None if pause is None else Ms(pause), description)


def log_outcome(item: Delivery, outcome: Outcome, seconds: float, pause: int | None = None) -> None:
    """Log one line for a message: a warning for a failure or a rejection, and anything else for `-v` only.

    `pause` is the delay in ms after a failure. A handler that asks for another try decides so, without a warning until
    the queue gives up.
    """
    level, words = logging.DEBUG, f"{outcome.kind} after {seconds:.3f} s"
    if outcome.kind in ("reject", "nack", "timeout", "crashed"):
        from rqttl.consuming import handling  # it loads redis-py, which children need not have

    if outcome.kind == "reject":
        level, words = outcome.level, handling.rejected(item, outcome.description)
    elif outcome.kind in ("nack", "timeout", "crashed"):
        asked_for = outcome.kind == "nack" and outcome.trace is None and not handling.is_last(item)
        level = logging.DEBUG if asked_for else outcome.level
        words = handling.failed(item, pause, outcome.description)
    if not logger.isEnabledFor(level):
        return
    fields = {
        "queue": item.queue,
        "id": item.id,
        "delivery": item.delivery_count,
        "seconds": round(seconds, 3),
        "outcome": outcome.kind,
        "description": outcome.description,
        "traceback": outcome.trace or None,
    }
    text = f"queue {item.queue}: message {item.id} {words}"
    log_with_trace(level, text, outcome.trace or "", {"event": "message", "fields": fields})


def log_with_trace(level: int, text: str, trace: str, extra: dict[str, object] | None = None) -> None:
    """Log a line with a traceback of another process, which every formatter prints below it."""
    record = logger.makeRecord(logger.name, level, __file__, 0, "%s", (text,), None, extra=extra)
    record.exc_text = trace or None
    logger.handle(record)

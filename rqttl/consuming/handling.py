"""What follows the end of a handler, in runs and workers: its outcome, the way to settle, the log, and the counts."""

from __future__ import annotations

import logging
import random
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rqttl import checks
from rqttl.delivery import LEFT, LOST, UNKNOWN, Decision, Delivered, Retry, Settlement, settlement_after
from rqttl.errors import InvalidInput, LeaseLost, OutcomeUnknown
from rqttl.protocol.commands import BATCH
from rqttl.types import RunCounts
from rqttl.units import Ms

logger = logging.getLogger("rqttl.run")

#: The default number of messages to fetch for each handler that works at the same time.
EACH = 10
#: The folder of workers: tracebacks begin in the handler.
_WORKER = str(Path(__file__).parents[1] / "worker")


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


class WrongHandler(InvalidInput):
    """The result of the handler shows that it is of another kind than the run needs: it would always fail."""


class CommandFailed(Exception):
    """A command ended with an exit code that is neither 0, 65 nor 75, or by a signal. The text is its description."""


class NoHandler(Exception):
    """No handler is for messages of this type. A worker of a newer version may have one."""


class HandlerStopped(Exception):
    """The worker has ended what the handler did. The message comes again without a delay."""


def of_error(error: BaseException) -> Outcome:
    """Return the outcome of a handler that raised an error or a decision."""
    if isinstance(error, HandlerStopped):
        return Outcome("crashed", None, str(error))
    if isinstance(error, CommandFailed):
        return Outcome("nack", None, str(error), "")
    if isinstance(error, NoHandler):
        return Outcome("nack", None, str(error), "", logging.ERROR)
    return Outcome(*settlement_after(error), None if isinstance(error, Decision) else trace_of(error))


def trace_of(error: BaseException, *hidden: str) -> str:
    """Return the traceback of an error and of all errors behind it, without the frames of rqttl's worker.

    `hidden` are the beginnings of further files that the reader need not see.
    """
    whole = traceback.TracebackException.from_exception(error)
    todo: list[traceback.TracebackException | None] = [whole]
    while todo:
        part = todo.pop()
        if part is not None:
            frames = [frame for frame in part.stack if not frame.filename.startswith((_WORKER, *hidden))]
            part.stack = traceback.StackSummary.from_list(frames)
            todo += [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
    return "".join(whole.format()).rstrip()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The delay after a failure, where the queue has no `redelivery_delay`: `first` ms, doubled by each failure.

    `jitter` is the part of the delay that is random. It only shortens the delay, so that messages that failed together
    do not come back together.
    """

    first: int = 1_000
    longest: int = 600_000
    jitter: float = 0.25

    def delay(self, failures: int) -> int:
        """Return the delay in ms after so many failures."""
        whole = min(self.longest, self.first << min(failures - 1, 40))
        return round(whole * (1 - self.jitter * random.random()))


def settlement(item: Delivered, outcome: Outcome, retries: RetryPolicy) -> Settlement:
    """Return the settlement of an outcome.

    A crash gives the message back without a delay: its cause may be another message, or the system.
    """
    kind, delay, description, *_ = outcome
    if kind in ("ack", "release", "reject"):
        return kind, None, description
    if delay is None and kind != "crashed" and item.config.options.number("redelivery_delay") is None:
        delay = retries.delay(item.delivery_count)
    return "nack", None if delay is None else Ms(delay), description


# The log


def log_outcome(
    logger: logging.Logger,
    item: Delivered,
    outcome: Outcome,
    delay: int | None,
    seconds: float = 0.0,
    error: BaseException | None = None,
) -> None:
    """Log one line for a message: a warning for a failure or a rejection, and acks and releases for `-v` only.

    `delay` is in ms, after a failure. A handler that asks for another try decides so: that is no warning until the
    queue gives up. `error` is the exception of a handler of this process.
    """
    asked_for = outcome.kind == "nack" and outcome.trace is None and not _is_last(item)
    level = logging.INFO if asked_for else logging.DEBUG if outcome.kind in ("ack", "release") else outcome.level
    if not logger.isEnabledFor(level):
        return
    if outcome.kind == "reject":
        words = f"rejected: {outcome.description or 'without a reason'} ({_grave(item, 'rejected')})"
    elif outcome.kind in ("ack", "release"):
        words = f"{outcome.kind} after {seconds:.3f} s"
    else:
        words = _failed(item, delay, outcome.description)
    fields = {
        "queue": item.queue,
        "id": name_of(item),
        "delivery": item.delivery_count,
        "seconds": round(seconds, 3),
        "outcome": outcome.kind,
        "description": outcome.description,
        "traceback": outcome.trace or None,
    }
    text = f"queue {item.queue}: message {fields['id']} {words}"
    log_with_trace(logger, level, text, outcome.trace or "", {"event": "message", "fields": fields}, error)


def log_with_trace(
    logger: logging.Logger,
    level: int,
    text: str,
    trace: str,
    extra: dict[str, object] | None = None,
    error: BaseException | None = None,
) -> None:
    """Log a line with a traceback, perhaps of another process, which every formatter prints below it."""
    details = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(logger.name, level, __file__, 0, "%s", (text,), details, extra=extra)
    record.exc_text = trace if trace and error is None else None
    logger.handle(record)


def _failed(item: Delivered, delay: int | None, description: str | None) -> str:
    """Say what becomes of a message after a failed delivery, as far as its options tell. `delay` is in ms."""
    options, words = item.config.options, f": {description}" if description else ""
    most = options.number("max_deliveries")
    number = f"{item.delivery_count} of {most}" if most is not None else f"delivery {item.delivery_count}"
    if item.settled not in (None, LOST):
        return f"failed after its handler had settled it{words}"
    if _is_last(item):
        return f"given up: {_grave(item, 'delivery_limit')} ({number}){words}"
    if delay is None and options.number("redelivery_delay") is not None:
        return f"failed, again after its redelivery_delay ({number}){words}"
    when = (f"in {delay / 1000:.1f} s" if delay >= 100 else f"in {delay} ms") if delay else "at once"
    return f"failed, again {when} ({number}){words}"


def _is_last(item: Delivered) -> bool:
    """Return True if the queue gives up a message after this delivery."""
    most = item.config.options.number("max_deliveries")
    return most is not None and item.delivery_count >= most


def _grave(item: Delivered, reason: str) -> str:
    target = item.config.options.target(reason)
    return f"dead letter in {target}" if target else "the queue has no dead_letter"


def name_of(item: Delivered) -> str:
    """Return the id for the log; the sequence if the header is damaged. Such damage may have failed the handler."""
    try:
        return item.id
    except Exception:  # noqa: BLE001  # the header of another program may have any content
        return item.sequence


# Runs


class HandlerRun:
    """What a run of handlers makes of their ends. Threads and tasks call it after each handler. `stop` ends the run."""

    def __init__(self, stop: Callable[[], object], *, raise_errors: bool) -> None:
        self._stop, self._raise_errors, self._retries = stop, raise_errors, RetryPolicy()
        self._lock = threading.Lock()
        self._handled = self._failed = self._lost = self._unknown = 0

    def settlement(self, item: Delivered, error: BaseException | None) -> Settlement | None:
        """Log the end of a handler. Returns how to settle its message; `None` if the handler has done so."""
        outcome = ACK if error is None else of_error(error)
        if _ends_run(error):
            self._stop()  # before the message is given back, or this run would handle it once more
            settle: Settlement = "nack", None, outcome.description
        else:
            settle = settlement(item, outcome, self._retries)
            if outcome.kind in ("nack", "reject"):
                shown = None if isinstance(error, Decision) else error
                log_outcome(logger, item, outcome, settle[1], error=shown)
        return settle if item.settled in (None, LOST) else None

    def count(self, item: Delivered, error: BaseException | None) -> None:
        """Count a settled message. Raises an error that ends the run: no `Exception`, or a `WrongHandler`.

        With `raise_errors` every error of a handler does.
        """
        if error is not None and _ends_run(error):
            raise error
        failed = isinstance(error, Retry) if isinstance(error, Decision) else error is not None
        with self._lock:
            self._handled += not failed
            self._failed += failed
            self._lost += item.settled == LOST
            self._unknown += item.settled == UNKNOWN
        if self._raise_errors and error is not None and not isinstance(error, Decision):
            raise error

    def result(self, lost: int, unknown: int) -> RunCounts:
        """Return the counts, with the acks that a consumer has missed."""
        return RunCounts(self._handled, self._failed, self._lost + lost, self._unknown + unknown)


def _ends_run(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, WrongHandler) or not isinstance(error, Exception))


def log_unsettled(item: Delivered, error: Exception) -> None:
    """Log the failure of a settle. If the lease still holds, it ends by itself."""
    if isinstance(error, LeaseLost | OutcomeUnknown):
        logger.warning("%s", error)
        return
    item.settled = LEFT
    logger.warning(
        "queue %s: could not settle message %s (%s); it comes again when its lease ends",
        item.queue,
        name_of(item),
        error,
    )


def check_sizes(size: int, prefetch: int | None, name: str) -> tuple[int, int]:
    """Check and return the number of handlers at the same time and the number of messages to fetch."""
    size = checks.whole(size, name, 1, BATCH)
    if prefetch is None:
        return size, min(EACH * size, BATCH)
    return size, checks.whole(prefetch, "prefetch", size, BATCH)

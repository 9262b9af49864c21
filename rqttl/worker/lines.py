"""The line that the log of a worker has for each message."""

from __future__ import annotations

import logging

from rqttl.consuming import handling
from rqttl.delivery import Delivery
from rqttl.worker.outcomes import Outcome

logger = logging.getLogger("rqttl.worker")


def log_outcome(item: Delivery, outcome: Outcome, seconds: float, pause: int | None = None) -> None:
    """Log one line for a message: a warning for a failure or a rejection, and anything else for `-v` only.

    `pause` is the delay in ms after a failure. A handler that asks for another try decides so, without a warning until
    the queue gives up.
    """
    level, words = logging.DEBUG, f"{outcome.kind} after {seconds:.3f} s"
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

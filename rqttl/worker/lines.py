"""The line that the log of a worker has for each message."""

from __future__ import annotations

import logging

from rqttl.delivery import Delivery
from rqttl.worker.outcomes import Outcome

logger = logging.getLogger("rqttl.worker")


def log_outcome(item: Delivery, outcome: Outcome, seconds: float, *, failed: bool) -> None:
    """Log one line for a message: an error for a failure, and anything else for `-v` only.

    A handler that asks for another try decides so; its outcome has no traceback.
    """
    bad = outcome.kind in ("timeout", "crashed") or (outcome.kind == "nack" and outcome.trace is not None)
    bad = bad and failed
    level = logging.ERROR if bad else logging.DEBUG
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
    words = f": {outcome.description}" if outcome.description else ""
    logger.log(
        level,
        "queue %s: message %s, delivery %d: %s after %.3f s%s",
        item.queue,
        item.id,
        item.delivery_count,
        outcome.kind,
        seconds,
        words,
        extra={"event": "message", "fields": fields, "trace": outcome.trace},
    )

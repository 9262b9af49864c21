"""Handlers of messages: the counts of a run, the pause after a failure, and the log. Sync and asyncio runs share it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rqttl import checks, units
from rqttl.decisions import Decision, Reject, Retry
from rqttl.delivery import LEFT, LOST, UNKNOWN, Delivered, config_of, mark
from rqttl.errors import LeaseLost, OutcomeUnknown
from rqttl.protocol import codec
from rqttl.protocol.commands import BATCH
from rqttl.runtime import backoff
from rqttl.types import RunCounts

logger = logging.getLogger("rqttl.run")

#: The default number of messages to fetch for each handler that works at the same time.
EACH = 10


class Tally:
    """The counts of a run. The caller guards it if several threads count."""

    def __init__(self) -> None:
        self._handled = self._failed = self._lost = self._unknown = 0

    @property
    def messages(self) -> int:
        """The number of messages that handlers have finished."""
        return self._handled + self._failed

    def count(self, delivery: Delivered, *, failed: bool) -> None:
        """Count a message that a handler has finished, and the outcome of its settle."""
        self._handled += not failed
        self._failed += failed
        self._lost += delivery.settled == LOST
        self._unknown += delivery.settled == UNKNOWN

    def result(self, lost: int, unknown: int) -> RunCounts:
        """Return the counts, with the acks that a consumer has missed."""
        return RunCounts(self._handled, self._failed, self._lost + lost, self._unknown + unknown)


def crew(size: int, prefetch: int | None, name: str) -> tuple[int, int]:
    """Check and return the number of handlers at the same time and the number of messages to fetch."""
    size = checks.whole(size, name, 1, BATCH)
    if prefetch is None:
        return size, min(EACH * size, BATCH)
    return size, checks.whole(prefetch, "prefetch", size, BATCH)


def delay_after(delivery: Delivered, error: Exception | None, chance: Callable[[], float]) -> units.Duration | None:
    """Return the pause before a message comes again; `None` if there was no error, or options decide."""
    if error is None or config_of(delivery).options.number("redelivery_delay") is not None:
        return None
    return units.as_timedelta(backoff.pause(delivery.delivery_count, chance))


def is_failure(error: Exception | None) -> bool:
    """Return True if a handler that raised `error` has failed. Of the decisions only `Retry` is a failure."""
    return isinstance(error, Retry) if isinstance(error, Decision) else error is not None


def log_outcome(delivery: Delivered, error: Exception | None, pause: units.Duration | None) -> None:
    """Log a failure or a rejection, and what happens next to the message. `pause` is as in `settle_after`."""
    if isinstance(error, Retry):
        pause = pause if error.delay is None else units.as_timedelta(error.delay)
    if isinstance(error, Reject):
        what = rejected(delivery, error.description)
    elif error is not None and is_failure(error):
        words = error.description if isinstance(error, Retry) else codec.describe(error)
        what = failed(delivery, None if pause is None else units.duration(pause, "pause"), words)
    else:
        return
    asked_for = isinstance(error, Retry) and not is_last(delivery)
    logger.log(
        logging.DEBUG if asked_for else logging.WARNING,
        "queue %s: message %s %s",
        delivery.queue,
        name_of(delivery),
        what,
        exc_info=None if isinstance(error, Decision) else error,
    )


def rejected(delivery: Delivered, description: str | None) -> str:
    """Say what becomes of a message that a handler has rejected."""
    return f"rejected: {description or 'without a reason'} ({_grave(delivery, 'rejected')})"


def failed(delivery: Delivered, pause: int | None, description: str | None) -> str:
    """Say what becomes of a message after a failed delivery, as far as its options tell. `pause` is in ms."""
    options, words = config_of(delivery).options, f": {description}" if description else ""
    most = options.number("max_deliveries")
    number = f"{delivery.delivery_count} of {most}" if most is not None else f"delivery {delivery.delivery_count}"
    if delivery.settled not in (None, LOST):
        return f"failed after its handler had settled it{words}"
    if is_last(delivery):
        return f"gave up: {_grave(delivery, 'delivery_limit')} ({number}){words}"
    if pause is None and options.number("redelivery_delay") is not None:
        return f"failed, again after its redelivery_delay ({number}){words}"
    when = f"in {pause / 1000:.1f} s" if pause else "at once"
    return f"failed, again {when} ({number}){words}"


def is_last(delivery: Delivered) -> bool:
    """Return True if the queue gives up a message after this delivery."""
    most = config_of(delivery).options.number("max_deliveries")
    return most is not None and delivery.delivery_count >= most


def _grave(delivery: Delivered, reason: str) -> str:
    target = config_of(delivery).options.target(reason)
    return f"dead letter in {target}" if target else "the queue has no dead_letter"


def log_unsettled(delivery: Delivered, error: Exception) -> None:
    """Log the failure of a settle. If the lease still holds, it ends by itself."""
    if isinstance(error, LeaseLost | OutcomeUnknown):
        logger.warning("%s", error)
        return
    mark(delivery, LEFT)
    logger.warning(
        "queue %s: message %s could not be settled (%s), and comes again when its lease ends",
        delivery.queue,
        name_of(delivery),
        error,
    )


def name_of(delivery: Delivered) -> str:
    """Return the id for the log; the sequence if the header is damaged. Such damage may have failed the handler."""
    try:
        return delivery.id
    except Exception:  # noqa: BLE001  # the header of another program may have any content
        return delivery.sequence

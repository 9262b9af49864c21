"""Handlers of messages: the counts of a run, the pause after a failure, and the log. Sync and asyncio runs share it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress

from redis.exceptions import RedisError

from rqttl import checks, units
from rqttl.decisions import Decision, Reject, Retry
from rqttl.delivery import LEFT, LOST, UNKNOWN, Delivered, config_of, mark
from rqttl.errors import InvalidInput, LeaseLost, OutcomeUnknown, RqttlError
from rqttl.protocol import codec
from rqttl.protocol.commands import BATCH
from rqttl.types import RunCounts

logger = logging.getLogger("rqttl.run")

#: The default number of messages to fetch for each handler that works at the same time.
EACH = 10


class Tally:
    """The counts of a run. Several threads may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handled = self._failed = self._lost = self._unknown = 0

    @property
    def messages(self) -> int:
        """The number of messages that handlers have finished."""
        return self._handled + self._failed

    def count(self, delivery: Delivered, *, failed: bool) -> None:
        """Count a message that a handler has finished, and the outcome of its settle."""
        with self._lock:
            self._handled += not failed
            self._failed += failed
            self._lost += delivery.settled == LOST
            self._unknown += delivery.settled == UNKNOWN

    def result(self, lost: int, unknown: int) -> RunCounts:
        """Return the counts, with the acks that a consumer has missed."""
        return RunCounts(self._handled, self._failed, self._lost + lost, self._unknown + unknown)


#: What to do next with a delivery: `None` calls the handler, and a pair settles: the error of the handler, and a delay.
Next = tuple[BaseException | None, units.Duration | None] | None


class WrongHandler(InvalidInput):
    """The result of the handler shows that it is of another kind than the run needs: it would always fail."""


def handle(
    delivery: Delivered, tally: Tally, chance: Callable[[], float], *, raise_errors: bool
) -> Generator[Next, None, None]:
    """Handle one message: call the handler, settle the delivery unless the handler has done so, log and count.

    Threads and coroutines carry it out; see `drive`. An exception that is no `Exception` gives the message back and
    goes on, and so does a `WrongHandler`. With `raise_errors` every error of a handler does.
    """
    failure: Exception | None = None
    try:
        yield None
    except WrongHandler as error:
        yield from _settle(delivery, error, None)
        raise
    except Exception as error:  # noqa: BLE001  # a handler may raise anything; the run goes on
        failure = error
    except BaseException as error:
        yield from _settle(delivery, error, None)
        raise
    pause = delay_after(delivery, failure, chance)
    log_outcome(delivery, failure, pause)
    yield from _settle(delivery, failure, pause)
    tally.count(delivery, failed=is_failure(failure))
    if raise_errors and failure is not None and not isinstance(failure, Decision):
        raise failure


def _settle(
    delivery: Delivered, error: BaseException | None, pause: units.Duration | None
) -> Generator[Next, None, None]:
    """Settle a delivery unless the handler has done so. A failure is logged; then the lease ends by itself."""
    if delivery.settled in (None, LOST):
        try:
            yield error, pause
        except (RedisError, RqttlError) as failure:
            log_unsettled(delivery, failure)


def drive(flow: Generator[Next, None, None], do: Callable[[Next], object]) -> None:
    """Carry `handle` out in this thread."""
    error: BaseException | None = None
    with suppress(StopIteration):
        while True:
            step = next(flow) if error is None else flow.throw(error)
            error = None
            try:
                do(step)
            except BaseException as failure:  # noqa: BLE001  # `handle` decides about it
                error = failure


async def drive_async(flow: Generator[Next, None, None], do: Callable[[Next], Awaitable[object]]) -> None:
    """Carry `handle` out in this task."""
    error: BaseException | None = None
    with suppress(StopIteration):
        while True:
            step = next(flow) if error is None else flow.throw(error)
            error = None
            try:
                await do(step)
            except BaseException as failure:  # noqa: BLE001  # `handle` decides about it
                error = failure


def check_sizes(size: int, prefetch: int | None, name: str) -> tuple[int, int]:
    """Check and return the number of handlers at the same time and the number of messages to fetch."""
    size = checks.whole(size, name, 1, BATCH)
    if prefetch is None:
        return size, min(EACH * size, BATCH)
    return size, checks.whole(prefetch, "prefetch", size, BATCH)


#: The delay after the first failure, which each further failure doubles, and the longest one, in ms.
FIRST, LONGEST = 1_000, 600_000
#: The part of a delay that is random, so that messages that failed together do not come back together.
JITTER = 0.25


def backoff(failures: int, random: Callable[[], float]) -> int:
    """Return the delay in ms after so many failures. `random` gives numbers from 0 to 1; they only shorten it."""
    whole = min(LONGEST, FIRST << min(failures - 1, 20))
    return round(whole * (1 - JITTER * random()))


def delay_after(delivery: Delivered, error: Exception | None, chance: Callable[[], float]) -> units.Duration | None:
    """Return the pause before a message comes again; `None` if there was no error, or options decide."""
    if error is None or config_of(delivery).options.number("redelivery_delay") is not None:
        return None
    return units.as_timedelta(backoff(delivery.delivery_count, chance))


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

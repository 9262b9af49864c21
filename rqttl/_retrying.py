"""Making a call again while Redis is away, and what may not be made again after a lost reply."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ConnectionError, TimeoutError

from rqttl.commands import Command
from rqttl.errors import OutcomeUnknown

T = TypeVar("T")

#: Seconds between the attempts of a call that may be repeated, or that was never sent.
PAUSES = (0.02, 0.1, 0.3, 1.0)
#: Seconds that a reply may take. Scripts take milliseconds; this covers a server that stalls.
SOCKET_TIMEOUT = 15.0
#: Seconds after which a call that timed out is not made again: one more than a reply may take, so that a connection
#: that has silently died costs one time-out, and a server that hangs two.
PATIENCE = SOCKET_TIMEOUT + 1


class NotSent(Exception):
    """The call certainly did not reach Redis. `__cause__` says why."""


def insist(command: Command, attempt: Callable[[Command], T]) -> T:
    """Run a script. After a lost reply it is repeated if it is repeatable, else this raises `OutcomeUnknown`."""
    started = time.monotonic()
    for pause in (*PAUSES, None):
        try:
            return attempt(command)
        except NotSent as error:
            if pause is None or _too_late(error.__cause__, started):
                raise error.__cause__ from None  # type: ignore[misc]  # NotSent always has a cause
        except (ConnectionError, TimeoutError) as error:
            if not command.repeatable:
                raise OutcomeUnknown(command.queue, command.script.name) from error
            if pause is None or _too_late(error, started):
                raise
            command = command.again()
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def try_again(attempt: Callable[[], T]) -> T:
    """Make a call that may be repeated, also after a lost reply."""
    started = time.monotonic()
    for pause in (*PAUSES, None):
        try:
            return attempt()
        except NotSent as error:
            if pause is None or _too_late(error.__cause__, started):
                raise error.__cause__ from None  # type: ignore[misc]  # NotSent always has a cause
        except (ConnectionError, TimeoutError) as error:
            if pause is None or _too_late(error, started):
                raise
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _too_late(error: BaseException | None, started: float) -> bool:
    return isinstance(error, TimeoutError) and time.monotonic() - started > PATIENCE

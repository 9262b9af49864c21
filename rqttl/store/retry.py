"""Repetition of calls while Redis is away, and the calls that must not be repeated after a lost reply."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from rqttl.errors import OutcomeUnknown, ScriptsForgotten
from rqttl.protocol.commands import Command

T = TypeVar("T")

#: Seconds between the attempts of a call that is repeatable, or that was never sent.
PAUSES = (0.02, 0.1, 0.3, 1.0)
#: Seconds that a reply may take. Scripts take milliseconds; the rest is for a server that stalls.
SOCKET_TIMEOUT = 15.0
#: Seconds after which no call that timed out is repeated. It is one second more than a reply may take: so a dead
#: connection costs one time-out, and a server that hangs costs two.
PATIENCE = SOCKET_TIMEOUT + 1


#: Calls with an effect that a sender or a consumer must check after a lost reply. A user can simply make any other
#: repeatable call again: the messages of a lost `receive` come back when their leases end.
DECISIVE = frozenset(("enqueue", "ack", "nack", "reject", "redrive"))


class NotSent(Exception):
    """Redis has certainly not carried out the call: it did not get the call, or refuses it for now. See `__cause__`."""


def with_retries(command: Command, attempt: Callable[[Command], T]) -> T:
    """Run a script. After a lost reply a repeatable one runs again; any other raises `OutcomeUnknown`.

    A repeated call of `DECISIVE` raises `OutcomeUnknown`, too, if its last attempt fails with any error.
    """
    started = time.monotonic()
    lost = False
    for pause in (*PAUSES, None):
        try:
            return attempt(command)
        except NotSent as error:
            if pause is None or _too_late(error.__cause__, started):
                raise _last(command, lost, error.__cause__) from error.__cause__
        except (ConnectionError, TimeoutError) as error:
            lost = True
            if not command.repeatable:
                raise OutcomeUnknown(command.queue, command.script.name) from error
            if pause is None or _too_late(error, started):
                raise _last(command, lost, error) from error
            command = command.as_replay()
        except (ResponseError, ScriptsForgotten) as error:
            raise _last(command, lost, error) from error
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _last(command: Command, lost: bool, error: BaseException | None) -> BaseException:
    """The error to raise after the last attempt. `lost`: the reply to one of the attempts was lost."""
    if lost and command.script.name in DECISIVE:
        return OutcomeUnknown(command.queue, command.script.name)
    return error or AssertionError("NotSent always has a cause")


def try_again(attempt: Callable[[], T]) -> T:
    """Make a repeatable call, and repeat it also after a lost reply."""
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

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


#: All errors after which `Attempts` decides.
FAILURES = (NotSent, ConnectionError, TimeoutError, ResponseError, ScriptsForgotten)


class Attempts:
    """Decides after each failed attempt of one call: the call is made again after a pause, or an error is raised.

    `command` is a script, and `None` stands for other calls, which are all repeatable. `started` and `now` are times
    in seconds. No clock, no sleep and no I/O: sync and asyncio stores share the rules.
    """

    __slots__ = ("_command", "_lost", "_pauses", "_started", "pause")

    def __init__(self, command: Command | None, started: float) -> None:
        self._command = command
        self._started = started
        self._pauses = iter(PAUSES)
        self._lost = False
        #: Seconds to wait before the next attempt.
        self.pause = 0.0

    def again(self, error: Exception, now: float) -> Command | None:
        """Return the command of the next attempt; raise the error of the whole call if there is none.

        After a lost reply a repeatable script runs again; any other raises `OutcomeUnknown`. A repeated script of
        `DECISIVE` raises `OutcomeUnknown`, too, if its last attempt fails with any error.
        """
        cause = error.__cause__ if isinstance(error, NotSent) else error
        if isinstance(error, ConnectionError | TimeoutError):
            self._lose(error)
        elif not isinstance(error, NotSent):
            raise self._last(error) from error
        pause = next(self._pauses, None)
        if pause is None or (isinstance(cause, TimeoutError) and now - self._started > PATIENCE):
            raise self._last(cause) from (cause if self._command else None)
        self.pause = pause
        return self._command

    def _lose(self, error: Exception) -> None:
        """Record that the reply to an attempt was lost."""
        self._lost = True
        if self._command is not None:
            if not self._command.repeatable:
                raise OutcomeUnknown(self._command.queue, self._command.script.name) from error
            self._command = self._command.as_replay()

    def _last(self, error: BaseException | None) -> BaseException:
        """The error to raise after the last attempt."""
        if self._lost and self._command is not None and self._command.script.name in DECISIVE:
            return OutcomeUnknown(self._command.queue, self._command.script.name)
        return error or AssertionError("NotSent always has a cause")


def with_retries(command: Command, attempt: Callable[[Command], T]) -> T:
    """Run a script by `attempt`, and repeat it as `Attempts` decides."""
    started = time.monotonic()
    attempts: Attempts | None = None
    while True:
        try:
            return attempt(command)
        except FAILURES as error:
            attempts = attempts or Attempts(command, started)
            command = attempts.again(error, time.monotonic()) or command
        time.sleep(attempts.pause)


def try_again(attempt: Callable[[], T]) -> T:
    """Make a repeatable call by `attempt`, and repeat it as `Attempts` decides."""
    attempts = Attempts(None, time.monotonic())
    while True:
        try:
            return attempt()
        except FAILURES as error:
            attempts.again(error, time.monotonic())
        time.sleep(attempts.pause)

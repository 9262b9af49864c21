"""Exchanges: sequences of round trips that run scripts, as generators, and when a call is made again.

An exchange yields the calls of one round trip and receives their replies; a refusal of Redis is among them as a value.
The error of a lost round trip is thrown into the exchange. The sync and the asyncio store share them. No I/O here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

from redis.exceptions import BusyLoadingError, ConnectionError, NoScriptError, ResponseError, TimeoutError

from rqttl.errors import ContractError, OutcomeUnknown, ScriptsForgotten
from rqttl.protocol.commands import Command, Reply
from rqttl.store.refusals import is_read_only, refuses_for_now
from rqttl.text import format_value

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


Calls = Sequence[tuple[Any, ...]]
Exchange = Generator[Calls, list[Any], T]

#: The number of times that one call loads its scripts again.
FORGOTTEN = 5


class Exchanges:
    """The exchanges of one client. `leave` is called when the server is a replica, before the error is raised."""

    def __init__(self, leave: Callable[[], object]) -> None:
        self._loaded: set[str] = set()
        self._leave = leave

    def with_text(self, command: Command) -> Exchange[Reply]:
        """Load the script and run it. Not as a transaction: with full memory Redis would refuse the whole of it."""
        self._loaded.discard(command.script.sha)
        text = ("SCRIPT", "LOAD", command.script.text)
        for _ in range(FORGOTTEN):
            loaded, *replies = yield [text, *_calls([command])]
            (reply,) = self._judged([command], replies)
            if not isinstance(reply, NoScriptError):
                break
            if isinstance(loaded, Exception):
                raise loaded
        if isinstance(reply, NoScriptError):
            raise ScriptsForgotten(command.script.name) from reply
        if isinstance(reply, Exception):
            raise reply
        return cast("Reply", reply)

    def in_one_round_trip(self, commands: Sequence[Command]) -> Exchange[list[Any]]:
        """Run commands in one round trip. Commands that store messages are one transaction.

        Each other command whose script Redis lacks has a `NoScriptError` as its reply.
        """
        if len(commands) > 1 and all(command.script.name == "enqueue" for command in commands):
            return self._ordered(commands)
        return self._scripts(commands)

    def plain(self, calls: Calls) -> Exchange[list[Any]]:
        """Run plain commands of Redis. The replies have errors among them, but no refusal for now."""
        replies = yield calls
        for reply in replies:
            self.raise_if_refused(reply)
        return replies

    def _scripts(self, commands: Sequence[Command]) -> Exchange[list[Any]]:
        loads = self._texts(commands)
        replies = yield [*loads, *_calls(commands)]
        return self._judged(commands, replies[len(loads) :])

    def _ordered(self, commands: Sequence[Command]) -> Exchange[list[Any]]:
        """Run commands as one transaction, so that Redis forgets no script between two of them.

        The same round trip loads the scripts that this client has not loaded yet. If Redis lacks a script even so, it
        has carried out none of the commands. The next try loads the scripts within the transaction.
        """
        results = yield from self._transact(self._texts(commands), [], commands)
        for _ in range(FORGOTTEN):
            if not all(isinstance(reply, NoScriptError) for reply in results):
                break
            self._loaded -= {command.script.sha for command in commands}
            results = yield from self._transact([], self._texts(commands), commands)
        return results

    def _transact(self, before: list[Any], within: list[Any], commands: Sequence[Command]) -> Exchange[list[Any]]:
        try:
            replies = yield [*before, ("MULTI",), *within, *_calls(commands), ("EXEC",)]
        except BusyLoadingError as loading:
            raise NotSent from loading
        opened, *queued, done = replies[len(before) :]
        if isinstance(opened, Exception):
            answers = queued  # the user may make no transaction, so Redis has carried out each command by itself
            raise_if_divided(commands, answers[len(within) :])
        elif isinstance(done, Exception):
            error = next((reply for reply in queued if isinstance(reply, Exception)), done)
            self.raise_if_refused(error)  # Redis has carried out none of them
            raise error
        else:
            answers = done
        return self._judged(commands, answers[len(within) :])

    def _texts(self, commands: Sequence[Command]) -> list[tuple[str, str, str]]:
        """The calls that load the scripts that this client has not loaded yet."""
        missing = {command.script.sha: command.script.text for command in commands}
        return [("SCRIPT", "LOAD", text) for sha, text in missing.items() if sha not in self._loaded]

    def _judged(self, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """Check the replies to commands. Raises `NotSent` if Redis refuses all of them for now, and `ContractError`."""
        if replies and all(refuses_for_now(reply) for reply in replies):
            self.raise_if_refused(replies[0])
        for command, reply in zip(commands, replies, strict=True):
            if not isinstance(reply, Exception):
                check(command, reply)
        self._loaded |= {command.script.sha for command in commands}
        return replies

    def raise_if_refused(self, reply: object) -> None:
        """Raise `NotSent` if Redis refuses for now. It refuses a script at its first write at the latest."""
        if isinstance(reply, Exception) and refuses_for_now(reply):
            if is_read_only(reply):  # the next call must reach another server; other callers get the same refusal
                self._leave()
            raise NotSent from reply


def alone(calls: Calls) -> Exchange[list[Any]]:
    """Make calls in one round trip. Returns the replies, with all errors of Redis among them."""
    return (yield calls)


def strictest(commands: Sequence[Command]) -> Command:
    """Return the command that decides if commands that went together may be repeated."""
    return next((command for command in commands if not command.repeatable), commands[0])


def raise_if_divided(commands: Sequence[Command], replies: Sequence[Any]) -> None:
    """Raise `OutcomeUnknown` if Redis has carried out a part of commands that must not run again.

    The error of the other part says that Redis has not carried out a call. A caller who trusts it repeats all of them.
    """
    errors = [reply for reply in replies if isinstance(reply, Exception)]
    refused = [error for error in errors if not isinstance(error, NoScriptError)]
    command = strictest(commands)
    if refused and len(errors) < len(replies) and not command.repeatable:
        raise OutcomeUnknown(command.queue, command.script.name) from refused[0]


def check(command: Command, reply: Any) -> None:
    """Raise `ContractError` for a reply that no script gives."""
    if type(reply) is list and len(reply) > 1 and reply[0] in (b"ok", b"refused"):
        return
    start = reply[:2] if type(reply) is list else format_value(reply)
    raise ContractError(f"script {command.script.name}: unexpected reply {start!s:.80}")


def _calls(commands: Sequence[Command]) -> list[tuple[Any, ...]]:
    return [("EVALSHA", command.script.sha, *command.words) for command in commands]

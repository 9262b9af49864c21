"""The observer of all commands of a broker. It tells listeners each command and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from rqttl.events import CommandEvent, Events
from rqttl.flows.messages import ENDED

T = TypeVar("T")
C = TypeVar("C")
P = ParamSpec("P")
#: The name of a command, and its queue if it is of one.
Place = tuple[str, str | None]


def ok(_: object) -> str:
    """Return the outcome of a command that got a reply."""
    return "ok"


def reply_outcome(reply: Any) -> str:
    """Return the outcome of a script, or of one command among several. The reply may be an error."""
    if isinstance(reply, Exception):
        return type(reply).__name__
    return reply[1].decode() if isinstance(reply, list) and reply and reply[0] == b"refused" else "ok"


def wait_outcome(answer: tuple[str, bytes] | bytes | Exception | None) -> str:
    """Return the outcome of a wait."""
    if isinstance(answer, Exception):
        return type(answer).__name__
    return "timeout" if answer is None else "interrupted" if answer == ENDED else "ok"


def is_damage(error: Exception) -> bool:
    """Return True for an error of a damaged queue: a key of another type, or a record that lacks a field."""
    text = str(error)
    return "WRONGTYPE" in text or "attempt to " in text  # Lua's error for a missing value


def checked(replies: list[Any], *, tolerant: bool) -> list[Any]:
    """Return the replies. Raises the first error among them; if `tolerant`, the first that is no damage."""
    for reply in replies:
        if isinstance(reply, Exception) and not (tolerant and is_damage(reply)):
            raise reply
    return replies


class Observer:
    """Tells `events` each command that is sent to Redis. Without a listener it only makes the call."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def send(
        self,
        name: str,
        queue: str | None,
        outcome: Callable[[T], str],
        call: Callable[P, T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Send one command by `call`. `outcome` names the outcome of its answer."""
        notify = self._events.notify
        if notify is None:
            return call(*args, **kwargs)
        started = time.perf_counter()
        result = "ok"
        try:
            answer = call(*args, **kwargs)
            result = outcome(answer)
            return answer
        except Exception as error:
            result = type(error).__name__
            raise
        finally:
            notify(CommandEvent(name, queue, time.perf_counter() - started, result))

    def send_all(self, sent: Sequence[C], place: Callable[[C], Place], call: Callable[[], list[Any]]) -> list[Any]:
        """Send commands that travel together by `call`. `place` gives the name and the queue of a command."""
        notify = self._events.notify
        if notify is None:
            return call()
        started = time.perf_counter()
        outcomes: list[str] = []
        try:
            answers = call()
            outcomes = [reply_outcome(answer) for answer in answers]
            return answers
        except Exception as error:
            outcomes = [type(error).__name__] * len(sent)
            raise
        finally:
            seconds = time.perf_counter() - started
            for command, outcome in zip(sent, outcomes, strict=False):  # an interrupt leaves no outcome
                notify(CommandEvent(*place(command), seconds, outcome))

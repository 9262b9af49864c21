"""The seam through which all commands of a broker pass: it tells listeners each command and its outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rqttl.events import CommandEvent, Events
from rqttl.flows.messages import ENDED

T = TypeVar("T")
#: The name of a command, and its queue if it is of one.
Place = tuple[str, str | None]


def ok(_: object) -> str:
    """The outcome of a command that answered."""
    return "ok"


def word(reply: Any) -> str:
    """The outcome of a script, or of one command among several: an error may stand in the place of its reply."""
    if isinstance(reply, Exception):
        return type(reply).__name__
    return reply[1].decode() if isinstance(reply, list) and reply and reply[0] == b"refused" else "ok"


def heard(answer: bytes | Exception | None) -> str:
    """The outcome of a wait."""
    if isinstance(answer, Exception):
        return type(answer).__name__
    return "timeout" if answer is None else "interrupted" if answer == ENDED else "ok"


def is_damage(error: Exception) -> bool:
    """Return True if a damaged queue is the cause: a key of another type, or a record that lacks a field."""
    said = str(error)
    return "WRONGTYPE" in said or "attempt to " in said  # the latter is Lua's, of a value that is not there


def checked(replies: list[Any], *, tolerant: bool) -> list[Any]:
    """The replies. Raises the first error among them; if `tolerant`, the first that is no damage."""
    for reply in replies:
        if isinstance(reply, Exception) and not (tolerant and is_damage(reply)):
            raise reply
    return replies


class Observer:
    """Tells the listeners of `events` what is sent to Redis. Inert unless somebody listens."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def one(self, place: Place, call: Callable[[], T], outcome: Callable[[T], str] = ok) -> T:
        """Send one command."""
        if not self._events.on_command:
            return call()
        started = time.perf_counter()
        said = "ok"
        try:
            answer = call()
            said = outcome(answer)
            return answer
        except Exception as error:
            said = type(error).__name__
            raise
        finally:
            self._tell([place], [said], time.perf_counter() - started)

    def each(self, places: Callable[[], Sequence[Place]], call: Callable[[], list[Any]]) -> list[Any]:
        """Send commands that travel together."""
        if not self._events.on_command:
            return call()
        started = time.perf_counter()
        sent = places()
        said: list[str] = []
        try:
            answers = call()
            said = [word(answer) for answer in answers]
            return answers
        except Exception as error:
            said = [type(error).__name__] * len(sent)
            raise
        finally:
            self._tell(sent, said, time.perf_counter() - started)

    def _tell(self, places: Sequence[Place], outcomes: Sequence[str], seconds: float) -> None:
        for (name, queue), outcome in zip(places, outcomes, strict=False):  # an interrupt leaves no outcome
            for listener in tuple(self._events.on_command):
                listener(CommandEvent(name, queue, seconds, outcome))

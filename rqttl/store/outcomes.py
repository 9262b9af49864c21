"""The outcomes of commands: their names for events, and the errors among replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rqttl.flows.receive import ENDED


def reply_outcome(reply: Any) -> str:
    """Return the outcome of a script, or of one command among several. The reply may be an error."""
    if isinstance(reply, Exception):
        return type(reply).__name__
    return reply[1].decode() if isinstance(reply, list) and reply and reply[0] == b"refused" else "ok"


def reply_outcomes(replies: Sequence[Any]) -> list[str]:
    """Return the outcome of each of several commands."""
    return [reply_outcome(reply) for reply in replies]


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

"""What a check says: how it is, what was found, what to do, and what can be repaired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]
#: `enter` a queue into the registry, `take_out` a name without a queue, `clear` keys without a queue, `mend` a queue,
#: `strike` a member out of the registry that no queue can be called.
Kind = Literal["enter", "take_out", "clear", "mend", "strike"]


@dataclass(frozen=True, slots=True)
class Repair:
    """Something that `repair` can do, safely while the queue is in use. `text` says what, in the imperative.

    `member` is the one to strike; `queue` shows it then.
    """

    kind: Kind
    queue: str
    text: str
    member: bytes = b""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, of the server or of one queue.

    A `problem` loses messages, delivers them wrongly or stops work, now or after the next crash; a `warning` may, or
    says what could not be checked. `advice` is what to do about it, and is empty where there is nothing to do.
    """

    check: str
    level: Level
    found: str
    advice: str = ""
    queue: str | None = None
    repair: Repair | None = None


def ok(check: str, found: str, *, queue: str | None = None) -> Finding:
    """All is well."""
    return Finding(check, "ok", found, queue=queue)


def warning(check: str, found: str, advice: str, *, queue: str | None = None, repair: Repair | None = None) -> Finding:
    """Something may go wrong, or could not be checked."""
    return Finding(check, "warning", found, advice, queue, repair)


def problem(check: str, found: str, advice: str, *, queue: str | None = None, repair: Repair | None = None) -> Finding:
    """Something is wrong."""
    return Finding(check, "problem", found, advice, queue, repair)


def some(names: list[str], most: int = 3) -> str:
    """The first few of some names, and how many there are beyond."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"

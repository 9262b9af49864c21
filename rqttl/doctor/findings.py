"""Findings: the results of checks, each with advice and, where there is one, a repair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]
#: Kinds of repairs: `register` adds a queue to the registry, `unregister` removes a name without a queue from it,
#: `remove_member` removes an entry that is no valid name, `clear` deletes keys without a queue,
#: `repair` repairs a queue, `reconcile` puts the options in force that follow from its policies,
#: `remove_policy` removes a damaged field of the policies, `reset_version` stores a new version of them.
Kind = Literal[
    "register", "unregister", "remove_member", "clear", "repair", "reconcile", "remove_policy", "reset_version"
]


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair that is safe while the queue is in use. `text` describes it in the imperative.

    `member` is the entry of the registry that `remove_member` removes, or the field that `remove_policy` removes;
    `queue` is its readable form then.
    """

    kind: Kind
    queue: str
    text: str
    member: bytes = b""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, of the server or of one queue.

    A `problem` loses messages, delivers them wrongly or stops work, now or after the next crash. A `warning` may do so,
    or names a check that could not be made. `advice` is empty where there is nothing to do.
    """

    check: str
    level: Level
    result: str
    advice: str = ""
    queue: str | None = None
    repair: Repair | None = None


def ok(check: str, result: str, *, queue: str | None = None) -> Finding:
    """A finding that everything is well."""
    return Finding(check, "ok", result, queue=queue)


def warning(check: str, result: str, advice: str, *, queue: str | None = None, repair: Repair | None = None) -> Finding:
    """A finding of a risk, or of a check that could not be made."""
    return Finding(check, "warning", result, advice, queue, repair)


def problem(check: str, result: str, advice: str, *, queue: str | None = None, repair: Repair | None = None) -> Finding:
    """A finding of damage or of a dangerous setting."""
    return Finding(check, "problem", result, advice, queue, repair)


def first_few(names: list[str], most: int = 3) -> str:
    """The first few names as text, and the number of further ones."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"

"""Findings: the results of checks, each with its remedy."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


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


def ok(check: str, result: str) -> Finding:
    """A finding that everything is well."""
    return Finding(check, "ok", result)


def warning(check: str, result: str, advice: str, *, queue: str | None = None) -> Finding:
    """A finding of a risk, or of a check that could not be made."""
    return Finding(check, "warning", result, advice, queue)


def problem(check: str, result: str, advice: str, *, queue: str | None = None) -> Finding:
    """A finding of damage or of a dangerous setting."""
    return Finding(check, "problem", result, advice, queue)

"""Exceptions by which a handler decides about its message, for workers, `Queue.run` and `with delivery:`."""

from __future__ import annotations

from rqttl import units
from rqttl.units import Duration, Ms


class Decision(Exception):
    """Base class of the decisions of handlers. It is no error: the code that called the handler settles the message."""


class Reject(Decision):
    """Refuse the message for good: it dies with reason `rejected`, and `description` goes into the death record."""

    def __init__(self, description: str | None = None) -> None:
        super().__init__(description or "rejected")
        self.description = description


class Retry(Decision):
    """Give the message back as a failed delivery. Without `delay` the usual pause after a failure acts."""

    def __init__(self, delay: Duration | None = None, description: str | None = None) -> None:
        super().__init__(description or "retry")
        #: The pause in ms; `None` for the usual one.
        self.delay: Ms | None = None if delay is None else units.duration(delay, "delay")
        self.description = description


class Release(Decision):
    """Give the message back at once. It counts as no failed delivery."""

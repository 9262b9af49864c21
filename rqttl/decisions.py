"""Exceptions by which a handler decides about its message, for workers, `Queue.run` and `with delivery:`."""

from __future__ import annotations

from rqttl import units
from rqttl.checks import cut_description
from rqttl.errors import InvalidInput
from rqttl.text import format_value, plain_text
from rqttl.units import Duration, Ms


class Decision(Exception):
    """Base class of the decisions of handlers. It is no error: the code that called the handler settles the message."""


class Reject(Decision):
    """Refuse the message for good: it dies with reason `rejected`, and `description` goes into the death record.

    A description is cut to 4,096 bytes. Raises `InvalidInput` for one that is no text.
    """

    def __init__(self, description: str | None = None) -> None:
        self.description = _checked(description)
        super().__init__(self.description or "rejected")


class Retry(Decision):
    """Give the message back as a failed delivery. Without `delay` the usual pause after a failure acts.

    A description is cut to 4,096 bytes. Raises `InvalidInput` for one that is no text, and `InvalidDuration`.
    """

    def __init__(self, delay: Duration | None = None, description: str | None = None) -> None:
        self.description = _checked(description)
        super().__init__(self.description or "retry")
        #: The pause in ms; `None` for the usual one.
        self.delay: Ms | None = None if delay is None else units.duration(delay, "delay")


class Release(Decision):
    """Give the message back at once. It counts as no failed delivery."""


def _checked(description: object) -> str | None:
    """Return a description that every settlement takes. A decision must not fail because of its words."""
    if description is None:
        return None
    text = plain_text(description)
    if text is None:
        raise InvalidInput(f"description: expected text, got {format_value(description)}")
    return cut_description(text)

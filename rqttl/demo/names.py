"""The names that the demo's processes share."""

from __future__ import annotations

#: A namespace of its own: the demo deletes whatever it finds in it.
NAMESPACE = "rqttl-demo"
#: Where calls go that nobody handled in time, or that were rejected. Each queue's own target is made when it is needed.
DEAD_LETTER = "missed.{queue}"


def boarding(carrier: str) -> str:
    """The queue of a carrier's boarding calls."""
    return f"boarding.{carrier}"


def missed(carrier: str) -> str:
    """The queue of its dead letters."""
    return DEAD_LETTER.replace("{queue}", boarding(carrier))

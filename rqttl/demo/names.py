"""The names that the processes of the demo share."""

from __future__ import annotations

#: The namespace of the demo. The demo deletes everything in it.
NAMESPACE = "rqttl-demo"
#: The target of expired and rejected calls. Each queue has its own, which the first dead letter creates.
DEAD_LETTER = "{queue}/dead"


def boarding(carrier: str) -> str:
    """The queue for the boarding calls of a carrier."""
    return f"boarding.{carrier}"


def dead_letters(carrier: str) -> str:
    """The queue for the dead letters of a carrier."""
    return DEAD_LETTER.replace("{queue}", boarding(carrier))

"""`rqttl dead`: looking at dead letters, and putting them back or away."""

from rqttl.cli.dead.group import dead

__all__ = ["dead"]

"""`rqttl dead`: look at dead letters, put them back, remove them."""

from rqttl.cli.dead.show import dead

__all__ = ["dead"]

"""`rqttl receive`: print messages, or write them into files."""

from rqttl.cli.receive.command import receive

__all__ = ["receive"]

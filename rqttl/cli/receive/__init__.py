"""`rqttl receive`: messages to the standard output, to files or to a program."""

from rqttl.cli.receive.command import receive

__all__ = ["receive"]

"""`rqttl send`: store messages from arguments, files and pipes."""

from rqttl.cli.send.command import send

__all__ = ["send"]

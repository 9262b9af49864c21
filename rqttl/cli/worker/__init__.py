"""`rqttl worker`: consume queues with a function or a command, and list the workers that live."""

from rqttl.cli.worker.command import worker

__all__ = ["worker"]

"""`rqttl queue`: declaring, changing and removing queues."""

from rqttl.cli.queue.group import queue

__all__ = ["queue"]

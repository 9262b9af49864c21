"""`rqttl queue`: create queues, change them, look at them, remove them."""

from rqttl.cli.queue.group import queue

__all__ = ["queue"]

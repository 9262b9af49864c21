"""`rqttl stats`: numbers of queues, once or again and again."""

from rqttl.cli.stats.command import stats

__all__ = ["stats"]

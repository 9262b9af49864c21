"""`rqttl stats`: the contents and counters of queues."""

from rqttl.cli.stats.command import stats

__all__ = ["stats"]

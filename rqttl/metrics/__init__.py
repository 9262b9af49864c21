"""Metrics for Prometheus. They need the extra `metrics` (prometheus-client), which is imported at the first use.

`collector(broker)` reads queues at each scrape, and `instrument(broker, registry)` measures the commands of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rqttl import checks
from rqttl.metrics.extra import MetricsUnavailable, require_client
from rqttl.names import check_name_or_pattern

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker
    from rqttl.metrics.collecting import QueueCollector

__all__ = ["LIMIT", "MetricsUnavailable", "collector", "instrument"]

#: The default for the largest number of queues that have metrics of their own.
LIMIT = 1000


def collector(broker: Broker, *, queues: Sequence[str] = (), limit: int = LIMIT) -> QueueCollector:
    """A collector with the metrics of queues, for a registry of prometheus-client: `registry.register(collector(b))`.

    It reads at each scrape, changes nothing, and needs no right to write. `queues` are names and patterns with `*`, `?`
    and `[...]`; without them the metrics are of all queues. If more than `limit` queues match, the metrics are of those
    with the most messages since their creation, and `rqttl_queues_left_out` counts the others.
    Raises `MetricsUnavailable`, `InvalidName` and `InvalidInput`.
    """
    require_client()
    from rqttl.metrics.collecting import QueueCollector

    patterns = (check_name_or_pattern(item, "queues") for item in checks.items(queues, "queues", "names of queues"))
    return QueueCollector(broker, tuple(patterns), checks.whole(limit, "limit", 1))


def instrument(broker: Broker | AsyncBroker, registry: CollectorRegistry) -> Callable[[], None]:
    """Measure each command of a broker in `rqttl_client_command_seconds` of a registry.

    Returns a function that ends it. Several brokers may share a registry; a second call for a broker and its registry
    changes nothing. Raises `MetricsUnavailable` and `InvalidInput`.
    """
    require_client()
    from rqttl.metrics import commands

    return commands.instrument(broker, registry)

"""Metrics for Prometheus. They need the extra `metrics` (prometheus-client), which is imported at the first use.

`collector(broker)` reads queues at each scrape, and `instrument(broker, registry)` measures the commands of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rqttl import checks
from rqttl.checks import check_name_or_pattern
from rqttl.errors import InvalidInput, RqttlError
from rqttl.events import CommandEvent, Events
from rqttl.metrics.table import BOUNDS, CLIENT
from rqttl.text import format_value, install

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker
    from rqttl.metrics.collecting import QueueCollector

__all__ = ["LIMIT", "MetricsUnavailable", "collector", "instrument"]

#: The default for the largest number of queues that have metrics of their own.
LIMIT = 1000
#: The listener of each registry: several brokers may share it.
_listeners: WeakKeyDictionary[CollectorRegistry, Callable[[CommandEvent], None]] = WeakKeyDictionary()


class MetricsUnavailable(RqttlError, ImportError):
    """The package that metrics need is not installed."""

    code = "metrics_unavailable"


def require_client() -> Any:
    """Import prometheus-client. Raises `MetricsUnavailable` with the command that installs it."""
    try:
        return import_module("prometheus_client")
    except ImportError as error:
        raise MetricsUnavailable(f"metrics need the package prometheus-client: {install('metrics')}") from error


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
    client, (metric,) = require_client(), CLIENT
    events = getattr(broker, "events", None)
    if not isinstance(events, Events):
        raise InvalidInput(f"broker: expected a Broker or an AsyncBroker, got {format_value(broker)}")
    if not isinstance(registry, client.CollectorRegistry):
        raise InvalidInput(f"registry: expected a CollectorRegistry, got {format_value(registry)}")
    if registry not in _listeners:
        series = client.Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=BOUNDS).labels
        _listeners[registry] = lambda event: series(event.name, event.outcome).observe(event.seconds)
    report = _listeners[registry]
    events.unsubscribe(report)  # a second call measures no command twice
    events.subscribe(report, CommandEvent)
    return lambda: events.unsubscribe(report)

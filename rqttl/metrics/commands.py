"""The time of each command of a client. It imports prometheus-client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from prometheus_client import Histogram

from rqttl.events import CommandEvent
from rqttl.metrics.table import CLIENT
from rqttl.runtime.histogram import BOUNDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rqttl.broker import Broker

_lock = threading.Lock()
#: The histogram of each registry: several brokers may share it.
_histograms: WeakKeyDictionary[CollectorRegistry, Histogram] = WeakKeyDictionary()


def instrument(broker: Broker, registry: CollectorRegistry) -> Callable[[], None]:
    """Measure the commands of a broker in a registry. Returns a function that ends it."""
    (metric,) = CLIENT
    with _lock:
        histogram = _histograms.get(registry)
        if histogram is None:
            histogram = Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=BOUNDS)
            _histograms[registry] = histogram
    series = histogram.labels

    def report(event: CommandEvent) -> None:
        series(event.name, event.outcome).observe(event.seconds)

    broker.events.subscribe(report, CommandEvent)
    return lambda: broker.events.unsubscribe(report)

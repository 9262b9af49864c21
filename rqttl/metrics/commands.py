"""The time of each command of a client. It imports prometheus-client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Histogram

from rqttl.errors import InvalidInput
from rqttl.events import CommandEvent, Events
from rqttl.metrics.table import CLIENT
from rqttl.runtime.histogram import BOUNDS
from rqttl.text import format_value

if TYPE_CHECKING:
    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker

_lock = threading.Lock()
#: The listener of each registry: several brokers may share it.
_listeners: WeakKeyDictionary[CollectorRegistry, Callable[[CommandEvent], None]] = WeakKeyDictionary()


def instrument(broker: Broker | AsyncBroker, registry: CollectorRegistry) -> Callable[[], None]:
    """Measure the commands of a broker in a registry. Returns a function that ends it."""
    events = getattr(broker, "events", None)
    if not isinstance(events, Events):
        raise InvalidInput(f"broker: expected a Broker or an AsyncBroker, got {format_value(broker)}")
    if not isinstance(registry, CollectorRegistry):
        raise InvalidInput(f"registry: expected a CollectorRegistry, got {format_value(registry)}")
    with _lock:
        if registry not in _listeners:
            _listeners[registry] = _listener(registry)
        report = _listeners[registry]
        events.unsubscribe(report)  # a second call measures no command twice
        events.subscribe(report, CommandEvent)
    return lambda: events.unsubscribe(report)


def _listener(registry: CollectorRegistry) -> Callable[[CommandEvent], None]:
    (metric,) = CLIENT
    series = Histogram(metric.name, metric.meaning, metric.labels, registry=registry, buckets=BOUNDS).labels

    def report(event: CommandEvent) -> None:
        series(event.name, event.outcome).observe(event.seconds)

    return report

"""Metrics for Prometheus. They need the extra `metrics` (prometheus-client), which is imported at the first use.

`collector(broker)` reads queues at each scrape, and `instrument(broker, registry)` measures the commands of a broker.
The table in docs/guides/metrics-and-traces.md is made of `SOURCES`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

from rqttl import checks
from rqttl.checks import check_name_or_pattern
from rqttl.errors import InvalidInput, RqttlError
from rqttl.events import CommandEvent, Events
from rqttl.text import format_value, install

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker
    from rqttl.metrics.collecting import QueueCollector

__all__ = ["LIMIT", "MetricsUnavailable", "collector", "instrument"]

Kind = Literal["gauge", "counter", "histogram", "info"]


class Metric(NamedTuple):
    """A metric: its name, its type, its labels, and its meaning as a sentence."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str


_QUEUE = ("queue",)
QUEUES = (
    Metric("rqttl_queue_messages", "gauge", ("queue", "state"), "Messages in a queue, by state."),
    Metric("rqttl_queue_ready_bytes", "gauge", _QUEUE, "Bytes of the bodies of ready messages."),
    Metric("rqttl_queue_consumers", "gauge", _QUEUE, "Consumers of a queue."),
    Metric(
        "rqttl_queue_oldest_ready_age_seconds",
        "gauge",
        _QUEUE,
        "Age of the oldest ready message; 0 without one. Messages in other states do not count.",
    ),
    Metric("rqttl_queue_overdue_seconds", "gauge", _QUEUE, "Time for which the oldest due work waits for a sweep."),
    Metric("rqttl_queue_limit_messages", "gauge", _QUEUE, "The limit of messages (max-length), where it is set."),
    Metric("rqttl_queue_limit_bytes", "gauge", _QUEUE, "The limit of bytes (max-length-bytes), where it is set."),
    Metric("rqttl_queue_paused", "gauge", _QUEUE, "1 if consumers get nothing, because the queue is paused; else 0."),
    Metric("rqttl_queue_limit_leased", "gauge", _QUEUE, "The limit of leased messages (max-leased), where it is set."),
    Metric("rqttl_queue_limit_rate", "gauge", _QUEUE, "The limit of messages per second (rate), where it is set."),
    Metric("rqttl_queue_enqueued_total", "counter", _QUEUE, "Messages that arrived."),
    Metric("rqttl_queue_delivered_total", "counter", _QUEUE, "Deliveries to consumers."),
    Metric("rqttl_queue_redelivered_total", "counter", _QUEUE, "Deliveries of messages that had failed before."),
    Metric("rqttl_queue_acked_total", "counter", _QUEUE, "Messages that were acked."),
    Metric("rqttl_queue_refused_total", "counter", _QUEUE, "Messages that a full queue refused."),
    Metric("rqttl_queue_purged_total", "counter", _QUEUE, "Messages that a purge removed."),
    Metric("rqttl_queue_redriven_total", "counter", _QUEUE, "Dead letters that went back to another queue."),
    Metric(
        "rqttl_queue_activated_total",
        "counter",
        _QUEUE,
        "Scheduled messages that arrived; they are enqueued ones, too.",
    ),
    Metric("rqttl_queue_cancelled_total", "counter", _QUEUE, "Scheduled messages that were cancelled."),
    Metric(
        "rqttl_queue_copies_total",
        "counter",
        _QUEUE,
        "Messages that went on to other queues; each copy of a topic counts.",
    ),
    Metric("rqttl_queue_unrouted_total", "counter", _QUEUE, "Messages to a topic that no bound queue wanted."),
    Metric(
        "rqttl_queue_outgoing_messages",
        "gauge",
        ("queue", "target"),
        "Dead letters on their way to a queue in another slot of a cluster; no series without any.",
    ),
    Metric("rqttl_queue_deaths_total", "counter", ("queue", "reason"), "Deaths of messages, by reason."),
    Metric("rqttl_queue_dropped_total", "counter", ("queue", "reason"), "Deaths that left no dead letter, by reason."),
    Metric("rqttl_up", "gauge", (), "1 if Redis answered this scrape, else 0."),
    Metric("rqttl_node_up", "gauge", ("node",), "1 if this node answered this scrape, else 0."),
    Metric("rqttl_queues_unreadable", "gauge", (), "Queues without metrics: damaged, or their node is away."),
    Metric("rqttl_reapers", "gauge", (), "Reapers seen in the last 30 s."),
    Metric("rqttl_workers", "gauge", (), "Workers seen in the last 30 s."),
    Metric("rqttl_scrape_duration_seconds", "gauge", (), "Time that this scrape took."),
    Metric("rqttl_queues_left_out", "gauge", (), "Queues without metrics of their own, because of the limit."),
    Metric("rqttl_build_info", "info", ("version", "redis"), "The versions of rqttl and of Redis."),
)
WORKER = (
    Metric("rqttl_worker_messages_total", "counter", ("queue", "outcome"), "Messages of a worker, by outcome."),
    Metric("rqttl_worker_handling_seconds", "histogram", _QUEUE, "Time of a handler for one message."),
    Metric(
        "rqttl_worker_waiting_seconds",
        "histogram",
        _QUEUE,
        "Time from the arrival of a message to the start of its handler, by the clock of Redis.",
    ),
    Metric("rqttl_worker_running", "gauge", _QUEUE, "Messages whose handlers work."),
    Metric("rqttl_worker_slots", "gauge", (), "Messages that the worker can handle at a time."),
    Metric("rqttl_worker_last_claim_timestamp_seconds", "gauge", (), "Time of the last claim that Redis answered."),
    Metric("rqttl_worker_leases_lost_total", "counter", _QUEUE, "Messages whose lease ended before their settle."),
    Metric("rqttl_worker_restarts_total", "counter", ("cause",), "Child processes that were replaced, by cause."),
    Metric("rqttl_worker_reconnects_total", "counter", (), "Ends of outages of Redis."),
)
REAPER = (
    Metric("rqttl_reaper_swept_total", "counter", ("duty",), "Messages that the reaper has swept, by duty."),
    Metric("rqttl_reaper_sweeps_total", "counter", (), "Bounded sweeps of queues."),
    Metric("rqttl_reaper_lag_seconds", "histogram", (), "Delay of the oldest due work at its sweep."),
    Metric("rqttl_reaper_queues", "gauge", (), "Queues that the reaper watches."),
    Metric(
        "rqttl_reaper_queues_expired_total", "counter", (), "Queues that were deleted at the end of their lifetime."
    ),
    Metric("rqttl_reaper_failures_total", "counter", (), "Queues that could not be swept."),
    Metric("rqttl_reaper_last_pass_timestamp_seconds", "gauge", (), "End of the last pass over all queues."),
)
CLIENT = (
    Metric(
        "rqttl_client_command_seconds",
        "histogram",
        ("command", "outcome"),
        "Time of a command of a client, with all its attempts.",
    ),
)
#: All metrics by their sources.
SOURCES = {"queues": QUEUES, "worker": WORKER, "reaper": REAPER, "client": CLIENT}

#: Upper bounds of the histograms, in seconds.
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)


@dataclass(slots=True)
class Histogram:
    """Measured seconds: their number below each of `BOUNDS`, the last one without a bound, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a measurement."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


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

"""Families of prometheus-client and their text, and the collector of the metrics of queues."""

from __future__ import annotations

import concurrent.futures
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any, get_args

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector
from redis.exceptions import RedisError, ResponseError

from rqttl.errors import DataDamaged, RqttlError
from rqttl.flows import reading as reading_flows
from rqttl.flows import registry, roster
from rqttl.flows.reading import COUNTERS, StatsAndRecord
from rqttl.flows.steps import Flow, Read, ReadEachNode
from rqttl.metrics import BOUNDS, QUEUES, Histogram, Kind, Metric
from rqttl.outages import is_away
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import driver_of
from rqttl.types import State

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.broker import Broker

logger = logging.getLogger("rqttl.metrics")
#: Seconds for which a scrape waits for Redis. Prometheus waits for 10 in all by default, and would not see `rqttl_up`
#: then.
PATIENCE = 8.0
#: The fields of a record with its limits, and with its traffic.
_LIMITS = {
    "max_length": "rqttl_queue_limit_messages",
    "max_length_bytes": "rqttl_queue_limit_bytes",
    "max_leased": "rqttl_queue_limit_leased",
}
_TRAFFIC = ("version", "enqueued", "delivered")
_CLASSES: dict[Kind, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}
_VERSION = re.compile(rb"redis_version:([\w.-]+)")


class Families:
    """The families of some metrics, without samples at first."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._families: dict[str, Any] = {}
        for name, kind, labels, meaning in metrics:
            own_labels = () if kind == "info" else labels
            self._families[name] = _CLASSES[kind](name.removesuffix("_info"), meaning, labels=own_labels)

    def add(self, name: str, value: float | Mapping[str, str], *labels: str) -> None:
        """Add a sample of a gauge, of a counter, or of an info."""
        self._families[name].add_metric(labels, value)

    def add_histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add the samples of a histogram."""
        bounds = [*map(str, BOUNDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        self._families[name].add_metric(labels, buckets, histogram.total)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


class Sources(Collector):
    """The families of several sources as one collector."""

    def __init__(self, *sources: Callable[[], Iterable[Family]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Family]:
        """Collect from each source."""
        for source in self._sources:
            yield from source()


def as_text(*sources: Callable[[], Iterable[Family]]) -> str:
    """The families of all sources in the text format of Prometheus."""
    return generate_latest(Sources(*sources)).decode()


class QueueCollector(Collector):
    """Reads the metrics of queues at each scrape. It changes nothing, and needs no right to write."""

    def __init__(self, broker: Broker, patterns: Sequence[str], limit: int, patience: float = PATIENCE) -> None:
        self._driver = driver_of(broker).failing_fast()
        self._patterns, self._limit, self._patience = patterns, limit, patience
        self._joining = threading.Lock()
        self._reading: Future[Families] | None = None
        self._troubles: set[str] = set()

    def describe(self) -> Iterable[Family]:
        """The metrics without samples: a registration reads nothing."""
        return Families(QUEUES)

    def collect(self) -> Iterator[Family]:
        """Read the metrics. If Redis does not answer in time, `rqttl_up` is 0 and the metrics of queues are missing.

        A scrape joins the reading of an earlier one that has not ended, so scrapes do not pile up behind a slow Redis.
        """
        started = time.perf_counter()
        try:
            return iter(self._joined().result(self._patience))
        except concurrent.futures.TimeoutError:
            trouble = f"Redis has not answered within {self._patience:g} s"
        except (RedisError, RqttlError) as error:
            trouble = str(error)
        self._note("scrape", f"the queues cannot be read: {trouble}")
        down = Families(QUEUES)
        down.add("rqttl_up", 0)
        down.add("rqttl_scrape_duration_seconds", time.perf_counter() - started)
        return iter(down)

    def read(self) -> Families:
        """Read the metrics. Raises the errors of Redis and of rqttl."""
        started, families = time.perf_counter(), Families(QUEUES)
        away: reading_flows.Away = {}
        looks, left_out = self._driver.perform(read_queues(self._driver.keyspace, self._patterns, self._limit, away))
        for queue, look in looks.items():
            _add_queue(families, queue, look)
        families.add("rqttl_queues_left_out", left_out)
        families.add("rqttl_queues_unreadable", len(away))
        for queue, error in away.items():
            if isinstance(error, DataDamaged):
                self._note(queue, str(error))
        for node, (reply,) in self._driver.step(ReadEachNode([("TIME",)], keep_errors=True)).items():
            families.add("rqttl_node_up", not is_away(reply), str(node.address))
        try:
            roles = Counter(one.role for one in self._driver.perform(roster.workers(self._driver.keyspace)))
            for role in ("reaper", "worker"):
                families.add(f"rqttl_{role}s", roles[role])
        except ResponseError as error:  # mostly for want of a right
            self._note("HGETALL", f"Redis refuses HGETALL, so metrics are missing: {error}")
        version = self._driver.perform(_redis_version())
        families.add("rqttl_build_info", {"version": import_module("rqttl").__version__, "redis": version})
        families.add("rqttl_up", 1)
        self._troubles.discard("scrape")
        families.add("rqttl_scrape_duration_seconds", time.perf_counter() - started)
        return families

    def _joined(self) -> Future[Families]:
        """Return the reading that goes on, or begin one in a thread, which a scrape may leave before its end."""
        with self._joining:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                threading.Thread(target=self._work, args=(self._reading,), name="rqttl-metrics", daemon=True).start()
            return self._reading

    def _work(self, reading: Future[Families]) -> None:
        try:
            reading.set_result(self.read())
        except BaseException as error:  # noqa: BLE001  # all scrapes that wait see it
            reading.set_exception(error)

    def _note(self, trouble: str, text: str) -> None:
        """Log a trouble, once until it is over."""
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            logger.warning("%s", text)


def read_queues(
    keyspace: Keyspace, patterns: Sequence[str], limit: int, away: reading_flows.Away
) -> Flow[tuple[dict[str, StatsAndRecord], int]]:
    """Read the queues that match: those with the most traffic, if there are more than `limit`, and count the others."""
    registered = yield from registry.registered(keyspace)
    names = [name for name in registered if not patterns or any(fnmatchcase(name, text) for text in patterns)]
    left_out = 0
    if len(names) > limit:
        traffic = {}
        for name, fields in (yield from registry.records(keyspace, names, _TRAFFIC)).items():
            if isinstance(fields, Exception):
                traffic[name] = 0  # a damaged record
            elif fields[0] is not None:
                traffic[name] = sum(int(field) for field in fields[1:] if field and field.isdigit())
        left_out = max(0, len(traffic) - limit)
        names = sorted(sorted(traffic, key=lambda name: (-traffic[name], name))[:limit])
    return (yield from reading_flows.look_closely(keyspace, names, tuple(_LIMITS), away)), left_out


def _add_queue(families: Families, queue: str, look: StatsAndRecord) -> None:
    stats = look.stats
    for state in get_args(State):
        families.add("rqttl_queue_messages", getattr(stats, state), queue, state)
    age = stats.oldest_ready_age
    families.add("rqttl_queue_ready_bytes", stats.ready_bytes, queue)
    families.add("rqttl_queue_consumers", stats.consumers, queue)
    families.add("rqttl_queue_oldest_ready_age_seconds", 0.0 if age is None else age.total_seconds(), queue)
    families.add("rqttl_queue_overdue_seconds", stats.overdue.total_seconds(), queue)
    for counter in COUNTERS:
        families.add(f"rqttl_queue_{counter}_total", getattr(stats, counter), queue)
    for reason, number in stats.deaths.items():
        families.add("rqttl_queue_deaths_total", number, queue, reason)
    for reason, number in stats.dropped.items():
        families.add("rqttl_queue_dropped_total", number, queue, reason)
    for target, number in stats.outgoing.items():
        families.add("rqttl_queue_outgoing_messages", number, queue, target)
    families.add("rqttl_queue_paused", stats.paused, queue)
    if rate := re.fullmatch(rb"(\d+)/(\d+)", look.record.fields.get("rate", b"")):
        families.add("rqttl_queue_limit_rate", int(rate[1]) * 1000 / int(rate[2]), queue)
    for option, metric in _LIMITS.items():
        limit = look.record.fields.get(option, b"")
        if limit.isdigit():
            families.add(metric, int(limit), queue)


def _redis_version() -> Flow[str]:
    """The version of Redis; empty if it refuses `INFO`: the user has no right, or the server has no such command."""
    (reply,) = yield Read([("INFO", "server")], keep_errors=True)
    if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
        raise reply
    match = _VERSION.search(reply) if isinstance(reply, bytes) else None
    return "" if match is None else match[1].decode()

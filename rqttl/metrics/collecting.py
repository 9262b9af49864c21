"""The collector of the metrics of queues. It imports prometheus-client."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from prometheus_client.registry import Collector
from redis.exceptions import RedisError, ResponseError

from rqttl.errors import QueueDamaged, RqttlError
from rqttl.flows.reading import COUNTERS
from rqttl.flows.steps import Flow, Read, Step, drive
from rqttl.metrics.families import Families
from rqttl.metrics.reading import Reading, read_queues
from rqttl.metrics.table import QUEUES
from rqttl.runtime.shared_call import SharedCall
from rqttl.store.driver import driver_of
from rqttl.types import QueueStats, State

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.broker import Broker

logger = logging.getLogger("rqttl.metrics")
#: Seconds for which a scrape waits for an answer of Redis. Prometheus waits for 10 in all by default, and would not see
#: `rqttl_up` then.
PATIENCE = 8.0
T = TypeVar("T")
_VERSION = re.compile(rb"redis_version:([\w.-]+)")


class QueueCollector(Collector):
    """Reads the metrics of queues at each scrape. It changes nothing, and needs no right to write."""

    def __init__(self, broker: Broker, patterns: Sequence[str], limit: int, patience: float = PATIENCE) -> None:
        self._broker, self._driver = broker, driver_of(broker)
        self._patterns, self._limit, self._patience = patterns, limit, patience
        self._reading = SharedCall(self.read, "rqttl-metrics")
        self._troubles: set[str] = set()

    def describe(self) -> Iterable[Family]:
        """The metrics without samples: a registration reads nothing."""
        return Families(QUEUES)

    def collect(self) -> Iterator[Family]:
        """Read the metrics. If Redis does not answer in time, `rqttl_up` is 0 and the metrics of queues are missing.

        Scrapes at the same time share one reading.
        """
        started = time.perf_counter()
        try:
            families = self._reading.result(self._patience)
            if families is not None:
                return iter(families)
            trouble = f"Redis has not answered within {self._patience:g} s"
        except (RedisError, RqttlError) as error:
            trouble = str(error)
        self._note("scrape", f"the queues cannot be read: {trouble}")
        down = Families(QUEUES)
        down.add("rqttl_up", 0)
        down.add("rqttl_scrape_duration_seconds", time.perf_counter() - started)
        return iter(down)

    def read(self) -> Iterable[Family]:
        """Read the metrics. Raises the errors of Redis and of rqttl."""
        started, families = time.perf_counter(), Families(QUEUES)
        self._read(families)
        self._troubles.discard("scrape")
        families.add("rqttl_scrape_duration_seconds", time.perf_counter() - started)
        return families

    def _read(self, families: Families) -> None:
        reading = drive(read_queues(self._driver.keyspace, self._patterns, self._limit), self._step)
        for queue, stats in reading.stats.items():
            _add_queue(families, queue, stats)
        _add_limits(families, reading)
        self._note_damage(reading.stats.damaged)
        families.add("rqttl_queues_left_out", reading.left_out)
        reapers = self._unless_refused("PUBSUB NUMSUB", self._broker.reaper_count)
        if reapers is not None:
            families.add("rqttl_reapers", reapers)
        workers = self._unless_refused("HGETALL", self._broker.workers)
        if workers is not None:
            families.add("rqttl_workers", sum(worker.role == "worker" for worker in workers))
        version = self._driver.perform(_redis_version())
        families.add_info("rqttl_build_info", version=import_module("rqttl").__version__, redis=version)
        families.add("rqttl_up", 1)

    def _step(self, step: Step) -> Any:
        """Perform one step of the reading. Many queues take many, so only a step that hangs ends a scrape."""
        answer = self._driver.step(step)
        self._reading.moved()
        return answer

    def _unless_refused(self, command: str, read: Callable[[], T]) -> T | None:
        """A number, or `None` if Redis refuses the command, mostly for want of a right: its metric is missing then."""
        try:
            return read()
        except ResponseError as error:
            self._note(command, f"Redis refuses {command}, so a metric is missing: {error}")
            return None

    def _note_damage(self, damaged: dict[str, QueueDamaged]) -> None:
        for queue, error in damaged.items():
            self._note(f"queue {queue}", f"no metrics of this queue: {error}")
        gone = {trouble for trouble in self._troubles if trouble.startswith("queue ")}
        self._troubles -= gone - {f"queue {queue}" for queue in damaged}

    def _note(self, trouble: str, text: str) -> None:
        """Log a trouble, once until it is over."""
        if trouble not in self._troubles:
            self._troubles.add(trouble)
            logger.warning("%s", text)


def _add_queue(families: Families, queue: str, stats: QueueStats) -> None:
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


def _add_limits(families: Families, reading: Reading) -> None:
    for queue, (messages, size) in reading.limits.items():
        if messages is not None:
            families.add("rqttl_queue_limit_messages", messages, queue)
        if size is not None:
            families.add("rqttl_queue_limit_bytes", size, queue)


def _redis_version() -> Flow[str]:
    """The version of Redis; empty if it refuses `INFO`: the user has no right, or the server has no such command."""
    (reply,) = yield Read([("INFO", "server")], keep_errors=True)
    if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
        raise reply
    match = _VERSION.search(reply) if isinstance(reply, bytes) else None
    return "" if match is None else match[1].decode()

"""The collector of the metrics of queues. It imports prometheus-client."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from prometheus_client.registry import Collector
from redis.exceptions import RedisError, ResponseError

from rqttl import flows
from rqttl.errors import DataDamaged, RqttlError
from rqttl.flows.reading import COUNTERS, Record
from rqttl.flows.steps import Flow, Read, Step, drive
from rqttl.metrics.exposition import Families
from rqttl.metrics.table import QUEUES
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import driver_of
from rqttl.types import PerQueue, QueueStats, State

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.broker import Broker


T = TypeVar("T")


class SharedCall(Generic[T]):
    """Makes one call at a time, in a thread of its own, so a caller may leave before its end.

    Callers that join while a call runs share its result, so they do not pile up behind a slow call.
    """

    def __init__(
        self,
        call: Callable[[], T],
        name: str,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[Sequence[Future[T]], float], object] = wait,
    ) -> None:
        self._call, self._name, self._clock, self._wait = call, name, clock, wait
        self._lock = threading.Lock()
        self._running: Future[T] | None = None
        self._moved_at = 0.0

    def moved(self) -> None:
        """Note that the call goes on: it calls this after each step."""
        self._moved_at = self._clock()

    def result(self, patience: float) -> T | None:
        """Join the call that runs, or begin one. Returns its result, or `None` if it does not move for so many seconds.

        Raises its exception.
        """
        joined_at, running = self._clock(), self._join()
        left = patience
        while left > 0 and not running.done():
            self._wait([running], left)
            left = max(joined_at, self._moved_at) + patience - self._clock()
        return running.result() if running.done() else None

    def _join(self) -> Future[T]:
        with self._lock:
            if self._running is not None and not self._running.done():
                return self._running
            future: Future[T] = Future()
            threading.Thread(target=self._work, args=(future,), name=self._name, daemon=True).start()
            self._running = future
            return future

    def _work(self, future: Future[T]) -> None:
        try:
            future.set_result(self._call())
        except BaseException as error:  # noqa: BLE001  # all callers see it
            future.set_exception(error)


#: The fields of a record with its limits, and with its traffic.
_LIMITS = ("max_length", "max_length_bytes")
_TRAFFIC = ("version", "enqueued", "delivered")


@dataclass(frozen=True, slots=True)
class Reading:
    """The queues of one scrape. `limits` has the limits of messages and of bytes of each queue that has one."""

    stats: PerQueue[QueueStats]
    limits: Mapping[str, tuple[int | None, int | None]]
    left_out: int


def read_queues(keyspace: Keyspace, patterns: Sequence[str], limit: int) -> Flow[Reading]:
    """Read the queues that match. If there are more than `limit`, read those with the most traffic."""
    names = [name for name in (yield from flows.reading.registered(keyspace)) if _matches(name, patterns)]
    left_out = 0
    if len(names) > limit:
        traffic = _existing((yield from flows.registry.records(keyspace, names, _TRAFFIC)))
        left_out = max(0, len(traffic) - limit)
        names = sorted(sorted(traffic, key=lambda name: (-traffic[name], name))[:limit])
    looks = yield from flows.reading.look_closely(keyspace, names, _LIMITS)
    stats = PerQueue({name: look.stats for name, look in looks.items()}, looks.damaged)
    limits = {name: _limits(look.record) for name, look in looks.items() if _limits(look.record) != (None, None)}
    return Reading(stats, limits, left_out)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _existing(records: Mapping[str, Any]) -> dict[str, int]:
    """The traffic of each existing queue. A damaged record has none."""
    traffic = {}
    for name, fields in records.items():
        if isinstance(fields, Exception):
            traffic[name] = 0
        elif fields[0] is not None:
            traffic[name] = sum(_number(field) or 0 for field in fields[1:])
    return traffic


def _limits(record: Record) -> tuple[int | None, int | None]:
    """The limits of messages and of bytes in a record."""
    messages, size = (_number(record.fields.get(field)) for field in _LIMITS)
    return messages, size


def _number(field: bytes | None) -> int | None:
    """The number in a field; `None` for a field that is not set or holds no number."""
    return int(field) if field is not None and field.isdigit() else None


logger = logging.getLogger("rqttl.metrics")
#: Seconds for which a scrape waits for an answer of Redis. Prometheus waits for 10 in all by default, and would not see
#: `rqttl_up` then.
PATIENCE = 8.0
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

    def _note_damage(self, damaged: dict[str, DataDamaged]) -> None:
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

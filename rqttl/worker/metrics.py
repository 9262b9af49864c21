"""The counters of a worker, as families of prometheus-client, and the answer of `/metrics`."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from email.message import Message as Headers
from typing import TYPE_CHECKING

from rqttl.metrics import LIMIT, MetricsUnavailable, require_client
from rqttl.metrics.table import WORKER, Histogram
from rqttl.worker.health import Answer

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.metrics.exposition import Families

#: The level of gzip. Each line resembles the one before it, so the quickest level makes a fifteenth of a text.
FASTEST = 1
#: The outcomes of a message.
OUTCOMES = ("ack", "nack", "reject", "release", "lost", "timeout", "crashed")
#: The causes for which a child is replaced. Each has a series from the start, so that the first one is an increase.
CAUSES = ("crashed", "timeout", "max_messages", "max_memory")


def answer(headers: Headers, *sources: Callable[[], Iterable[Family]]) -> Answer:
    """The answer of `/metrics` with the families of all sources. Without prometheus-client it names the remedy."""
    try:
        require_client()
    except MetricsUnavailable as error:
        return Answer(501, f"{error}\n".encode())
    from prometheus_client.exposition import choose_encoder, gzip_accepted

    from rqttl.metrics.exposition import Sources

    encode, content_type = choose_encoder(headers.get("Accept", ""))
    body = encode(Sources(*sources))
    if gzip_accepted(headers.get("Accept-Encoding", "")):
        return Answer(200, gzip.compress(body, FASTEST), content_type, "gzip")
    return Answer(200, body, content_type)


def families(snapshot: CountersSnapshot) -> Iterable[Family]:
    """The metrics of a worker. At most `LIMIT` queues have metrics of their own: those that it met first."""
    from rqttl.metrics.exposition import Families

    result = Families(WORKER)
    met = {**snapshot.waiting, **{queue: None for queue, _ in snapshot.messages}}
    for queue in list(met)[:LIMIT]:
        _add_queue(result, snapshot, queue)
    for cause in CAUSES:
        result.add("rqttl_worker_restarts_total", snapshot.restarts.get(cause, 0), cause)
    result.add("rqttl_worker_slots", snapshot.slots)
    result.add("rqttl_worker_reconnects_total", snapshot.reconnects)
    if snapshot.last_claim is not None:
        result.add("rqttl_worker_last_claim_timestamp_seconds", snapshot.last_claim)
    return result


def _add_queue(result: Families, snapshot: CountersSnapshot, queue: str) -> None:
    for outcome in OUTCOMES:
        result.add("rqttl_worker_messages_total", snapshot.messages.get((queue, outcome), 0), queue, outcome)
    if queue in snapshot.handling:
        result.add_histogram("rqttl_worker_handling_seconds", snapshot.handling[queue], queue)
    if queue in snapshot.waiting:
        result.add_histogram("rqttl_worker_waiting_seconds", snapshot.waiting[queue], queue)
    result.add("rqttl_worker_running", snapshot.running.get(queue, 0), queue)
    result.add("rqttl_worker_leases_lost_total", snapshot.leases_lost.get(queue, 0), queue)


@dataclass(slots=True)
class CountersSnapshot:
    """The counters at one moment. `messages` is by queue and outcome; times of day are seconds since 1970.

    Outcomes: `ack`, `nack`, `reject`, `release`, `lost` (the lease had ended), `timeout`, `crashed`.
    """

    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    handling: dict[str, Histogram] = field(default_factory=dict)
    waiting: dict[str, Histogram] = field(default_factory=dict)
    running: Counter[str] = field(default_factory=Counter)
    slots: int = 0
    last_claim: float | None = None
    leases_lost: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    reconnects: int = 0


class Counters:
    """The counters of a worker. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = CountersSnapshot()
        self._sums: Counter[str] = Counter()

    def begun(self, queue: str, waited: float) -> None:
        """A handler has begun a message that was ready for `waited` seconds by the clock of Redis."""
        with self._lock:
            self._now.running[queue] += 1
            self._now.waiting.setdefault(queue, Histogram()).add(max(0.0, waited))

    def ended(self, queue: str, seconds: float) -> None:
        """A handler has ended after so many seconds."""
        with self._lock:
            self._now.running[queue] -= 1
            self._now.handling.setdefault(queue, Histogram()).add(seconds)

    def settled(self, queue: str, outcome: str, number: int = 1) -> None:
        """Messages have an outcome."""
        with self._lock:
            self._now.messages[queue, outcome] += number
            self._sums[outcome] += number
            if outcome == "lost":
                self._now.leases_lost[queue] += number

    def claimed(self, at: float) -> None:
        """Redis has answered a claim, at a time in seconds since 1970."""
        self._now.last_claim = at

    def restarted(self, cause: str) -> None:
        """A child is replaced."""
        with self._lock:
            self._now.restarts[cause] += 1

    def reconnected(self) -> None:
        """Redis answers again after an outage."""
        self._now.reconnects += 1

    def has_slots(self, number: int) -> None:
        """The worker has so many slots for handlers."""
        self._now.slots = number

    def keep(self, queues: Container[str]) -> None:
        """Drop the counters of all other queues, unless handlers work on their messages. Sums of all queues stay."""
        with self._lock:
            now = self._now
            met = {*now.waiting, *now.handling, *now.running, *(queue for queue, _ in now.messages)}
            gone = {queue for queue in met if queue not in queues and not now.running[queue]}
            for counters in (now.waiting, now.handling, now.running, now.leases_lost):
                for queue in gone & counters.keys():
                    del counters[queue]
            for key in [key for key in now.messages if key[0] in gone]:
                del now.messages[key]

    @property
    def handled(self) -> int:
        """The number of messages that were acked."""
        return self._sums["ack"]

    @property
    def failed(self) -> int:
        """The number of messages that failed or were refused."""
        return sum(self._sums[outcome] for outcome in ("nack", "reject", "timeout", "crashed"))

    @property
    def lost(self) -> int:
        """The number of messages whose lease had ended before their outcome was stored."""
        return self._sums["lost"]

    @property
    def last_claim(self) -> float | None:
        """The time of the last claim that Redis answered, in seconds since 1970."""
        return self._now.last_claim

    def snapshot(self) -> CountersSnapshot:
        """Return all counters at this moment."""
        with self._lock:
            return deepcopy(self._now)

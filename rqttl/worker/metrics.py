"""The counters of a worker, as families of prometheus-client, and the answer of `/metrics`."""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from email.message import Message as Headers
from typing import TYPE_CHECKING

from rqttl.metrics import LIMIT, WORKER, Histogram, MetricsUnavailable, require_client
from rqttl.worker.health import Answer

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

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

    from rqttl.metrics.collecting import Sources

    encode, content_type = choose_encoder(headers.get("Accept", ""))
    body = encode(Sources(*sources))
    if gzip_accepted(headers.get("Accept-Encoding", "")):
        return Answer(200, gzip.compress(body, FASTEST), content_type, "gzip")
    return Answer(200, body, content_type)


@dataclass(slots=True)
class QueueCounters:
    """The counters of one queue. Outcomes: `OUTCOMES`; `lost` is that of a message whose lease had ended."""

    outcomes: Counter[str] = field(default_factory=Counter)
    handling: Histogram = field(default_factory=Histogram)
    waiting: Histogram = field(default_factory=Histogram)
    running: int = 0


class Counters:
    """The counters of a worker. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.queues: dict[str, QueueCounters] = {}
        #: The outcomes of all queues.
        self.outcomes: Counter[str] = Counter()
        #: The children that were replaced, by cause.
        self.restarts: Counter[str] = Counter()
        #: The number of messages that handlers can work on at a time.
        self.slots = 0
        #: The number of outages of Redis that have ended.
        self.reconnects = 0
        #: The time of the last claim that Redis answered, in seconds since 1970.
        self.last_claim: float | None = None

    def begun(self, queue: str, waited: float) -> None:
        """A handler has begun a message that was ready for `waited` seconds by the clock of Redis."""
        with self._lock:
            counters = self.queues.setdefault(queue, QueueCounters())
            counters.running += 1
            counters.waiting.add(max(0.0, waited))

    def ended(self, queue: str, seconds: float) -> None:
        """A handler has ended after so many seconds."""
        with self._lock:
            counters = self.queues.setdefault(queue, QueueCounters())
            counters.running -= 1
            counters.handling.add(seconds)

    def settled(self, queue: str, outcome: str, number: int = 1) -> None:
        """Messages have an outcome."""
        with self._lock:
            self.queues.setdefault(queue, QueueCounters()).outcomes[outcome] += number
            self.outcomes[outcome] += number

    def keep(self, queues: Container[str]) -> None:
        """Drop the counters of all other queues, unless handlers work on their messages. Sums of all queues stay."""
        with self._lock:
            for queue in [name for name, its in self.queues.items() if name not in queues and not its.running]:
                del self.queues[queue]

    @property
    def handled(self) -> int:
        """The number of messages that were acked."""
        return self.outcomes["ack"]

    @property
    def failed(self) -> int:
        """The number of messages that failed or were refused."""
        return sum(self.outcomes[outcome] for outcome in ("nack", "reject", "timeout", "crashed"))

    @property
    def lost(self) -> int:
        """The number of messages whose lease had ended before their outcome was stored."""
        return self.outcomes["lost"]

    def families(self) -> Iterable[Family]:
        """The metrics of a worker. At most `LIMIT` queues have metrics of their own: those that it met first."""
        from rqttl.metrics.collecting import Families

        result = Families(WORKER)
        with self._lock:
            for queue, counters in list(self.queues.items())[:LIMIT]:
                for outcome in OUTCOMES:
                    result.add("rqttl_worker_messages_total", counters.outcomes[outcome], queue, outcome)
                result.add_histogram("rqttl_worker_handling_seconds", counters.handling, queue)
                result.add_histogram("rqttl_worker_waiting_seconds", counters.waiting, queue)
                result.add("rqttl_worker_running", counters.running, queue)
                result.add("rqttl_worker_leases_lost_total", counters.outcomes["lost"], queue)
        for cause in CAUSES:
            result.add("rqttl_worker_restarts_total", self.restarts[cause], cause)
        result.add("rqttl_worker_slots", self.slots)
        result.add("rqttl_worker_reconnects_total", self.reconnects)
        if self.last_claim is not None:
            result.add("rqttl_worker_last_claim_timestamp_seconds", self.last_claim)
        return result

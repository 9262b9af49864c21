"""The metrics of a worker as families of prometheus-client, and the answer of `/metrics`."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from email.message import Message as Headers
from typing import TYPE_CHECKING

from rqttl.metrics import LIMIT, MetricsUnavailable
from rqttl.metrics.extra import require_client
from rqttl.metrics.table import WORKER
from rqttl.worker.health import Answer

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

    from rqttl.metrics.families import Families
    from rqttl.worker.counters import CountersSnapshot

#: The level of gzip. Each line resembles the one before it, so the quickest level makes a fifteenth of a text.
FASTEST = 1
#: The outcomes of a message.
OUTCOMES = ("ack", "nack", "reject", "release", "lost", "timeout", "crashed")
#: The causes for which a child is replaced. Each has a series from the start, so that the first one is an increase.
CAUSES = ("crashed", "timeout", "max_messages", "max_memory", "max_age", "reload")


def answer(headers: Headers, *sources: Callable[[], Iterable[Family]]) -> Answer:
    """The answer of `/metrics` with the families of all sources. Without prometheus-client it names the remedy."""
    try:
        require_client()
    except MetricsUnavailable as error:
        return Answer(501, f"{error}\n".encode())
    from rqttl.metrics.exposition import accepted, as_text, gzip_accepted

    form = accepted(headers.get("Accept", ""))
    body = as_text(*sources, form=form).encode()
    if gzip_accepted(headers.get("Accept-Encoding", "")):
        return Answer(200, gzip.compress(body, FASTEST), form.content_type, "gzip")
    return Answer(200, body, form.content_type)


def families(snapshot: CountersSnapshot) -> Iterable[Family]:
    """The metrics of a worker. At most `LIMIT` queues have metrics of their own: those that it met first."""
    from rqttl.metrics.families import Families

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

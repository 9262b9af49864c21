"""The text of metrics: the bytes of prometheus-client, in both formats."""

from __future__ import annotations

import asyncio
import gzip
import math
from collections.abc import Callable, Iterable
from email.message import Message
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as some
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

import rqttl
from rqttl import Broker, InvalidInput
from rqttl.metrics import instrument
from rqttl.metrics.exposition import OPENMETRICS, TEXT, Families, as_text
from rqttl.metrics.table import CLIENT, QUEUES, REAPER, WORKER, Metric
from rqttl.runtime.histogram import Histogram
from rqttl.worker.metrics import answer

pytestmark = pytest.mark.once

METRICS = (*QUEUES, *WORKER, *REAPER)
#: Values of labels, also such that no queue has: they are escaped.
LABELS = some.one_of(some.text(max_size=9), some.text('"\\\n{},= #', max_size=9))
# -0.0 is no value of a metric: the text of a number is remembered, and -0.0 equals 0.0
VALUES = some.one_of(some.integers(0, 2**53), some.floats().filter(lambda value: value or math.copysign(1, value) > 0))


class Kept(Collector):
    """A registry of some families."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def filled(draw: Callable[..., Any], metric: Metric) -> Families:
    """A family with some samples."""
    families = Families([metric])
    for _ in range(draw(some.integers(0, 3))):
        labels = [draw(LABELS) for _ in metric.labels]
        if metric.kind == "histogram":
            histogram = Histogram()
            histogram.add_all(draw(some.lists(some.floats(0, 1e5))))
            families.add_histogram(metric.name, histogram, *labels)
        elif metric.kind == "info":
            families.add_info(metric.name, **dict(zip(metric.labels, labels, strict=True)))
        else:
            families.add(metric.name, draw(VALUES), *labels)
    return families


@pytest.mark.parametrize(
    "form, write", [(TEXT, generate_latest), (OPENMETRICS, openmetrics.generate_latest)], ids=["text", "OpenMetrics"]
)
@given(data=some.data())
def test_the_bytes_are_those_of_prometheus_client(form: Any, write: Callable[[Collector], bytes], data: Any) -> None:
    families = [family for metric in METRICS for family in filled(data.draw, metric)]

    assert as_text(lambda: families[:5], lambda: families[5:], form=form).encode() == write(Kept(families))


def requested(**headers: str) -> Message:
    """The headers of a request."""
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    "accept, form",
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html,application/xhtml+xml;q=0.9", TEXT),
        ("text/plain;version=0.0.4;q=1,*/*;q=0.1", TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6", OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", TEXT),
    ],
)
def test_a_client_gets_the_format_that_it_names(accept: str, form: Any) -> None:
    families = Families(QUEUES)
    families.add("rqttl_up", 1)

    reply = answer(requested(Accept=accept), lambda: families)

    assert (reply.status, reply.content_type, reply.encoding) == (200, form.content_type, "")
    assert reply.body.decode() == as_text(lambda: families, form=form)


def test_a_client_that_takes_gzip_gets_gzip() -> None:
    families = Families(QUEUES)
    families.add("rqttl_up", 1)

    packed = answer(requested(Accept_Encoding="deflate, gzip"), lambda: families)
    plain = answer(requested(Accept_Encoding="deflate"), lambda: families)

    assert (packed.encoding, plain.encoding) == ("gzip", "")
    assert gzip.decompress(packed.body) == plain.body


def test_commands_are_measured_by_name_and_outcome_until_the_end(broker: Broker, client: redis.Redis) -> None:
    registry, (metric,) = CollectorRegistry(), CLIENT
    end = instrument(broker, registry)
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    Broker(client).queue("q").update(max_length=9)
    queue.enqueue(b"y")
    end()
    queue.receive()

    assert registry.get_sample_value(f"{metric.name}_count", {"command": "enqueue", "outcome": "ok"}) == 2
    assert registry.get_sample_value(f"{metric.name}_count", {"command": "enqueue", "outcome": "stale"}) == 1
    assert registry.get_sample_value(f"{metric.name}_count", {"command": "receive", "outcome": "ok"}) is None


def test_two_brokers_share_a_registry(broker: Broker, client: redis.Redis) -> None:
    registry, other = CollectorRegistry(), Broker(client, "other")
    instrument(broker, registry)
    instrument(other, registry)

    broker.declare_queue("q").enqueue(b"x")
    other.declare_queue("q").enqueue(b"x")

    labels = {"command": "enqueue", "outcome": "ok"}
    assert registry.get_sample_value("rqttl_client_command_seconds_count", labels) == 2


def test_a_second_call_for_a_broker_measures_no_command_twice(broker: Broker) -> None:
    registry = CollectorRegistry()
    instrument(broker, registry)
    end = instrument(broker, registry)
    queue, labels = broker.declare_queue("q"), {"command": "enqueue", "outcome": "ok"}
    queue.enqueue(b"x")
    end()
    queue.enqueue(b"x")

    assert registry.get_sample_value("rqttl_client_command_seconds_count", labels) == 1


def test_the_commands_of_an_asyncio_broker_are_measured(redis_url: str) -> None:
    registry = CollectorRegistry()

    async def send() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            instrument(broker, registry)
            await (await broker.declare_queue("q")).enqueue(b"x")

    asyncio.run(send())

    labels = {"command": "enqueue", "outcome": "ok"}
    assert registry.get_sample_value("rqttl_client_command_seconds_count", labels) == 1


@pytest.mark.parametrize("place, wrong", [("broker", (None, CollectorRegistry())), ("registry", (Broker, None))])
def test_a_wrong_broker_or_registry_is_named(broker: Broker, place: str, wrong: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{place}: expected"):
        instrument(broker if wrong[0] is Broker else wrong[0], wrong[1])

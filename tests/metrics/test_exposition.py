"""The answer of `/metrics`, and the measured commands of clients."""

import asyncio
import gzip
from email.message import Message
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry

import rqttl
from rqttl import Broker, InvalidInput
from rqttl.metrics import CLIENT, QUEUES, instrument
from rqttl.metrics.collecting import Families
from rqttl.worker.health import metrics_answer

pytestmark = pytest.mark.once


def requested(**headers: str) -> Message:
    """The headers of a request."""
    message = Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


@pytest.mark.parametrize(
    "accept, form, end",
    [
        ("text/html,application/xhtml+xml;q=0.9", "text/plain; version=0.0.4", "rqttl_up 1.0\n"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text; version=1.0.0",
            "# EOF\n",
        ),
    ],
)
def test_a_client_gets_the_format_that_it_names(accept: str, form: str, end: str) -> None:
    families = Families([metric for metric in QUEUES if metric.name == "rqttl_up"])
    families.add("rqttl_up", 1)

    reply = metrics_answer(requested(Accept=accept), lambda: families)

    assert (reply.status, reply.encoding) == (200, "")
    assert reply.content_type.startswith(form)
    assert reply.body.decode().endswith(end)


def test_a_client_that_takes_gzip_gets_gzip() -> None:
    families = Families(QUEUES)
    families.add("rqttl_up", 1)

    packed = metrics_answer(requested(Accept_Encoding="deflate, gzip"), lambda: families)
    plain = metrics_answer(requested(Accept_Encoding="deflate"), lambda: families)

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


def test_brokers_of_both_interfaces_share_a_registry_and_no_command_is_measured_twice(
    broker: Broker, client: redis.Redis, redis_url: str
) -> None:
    registry, other = CollectorRegistry(), Broker(client, "other")

    async def send() -> None:
        async with rqttl.connect_async(redis_url) as asynchronous:
            instrument(asynchronous, registry)
            await asynchronous.queue("q").enqueue(b"x")

    for one in (broker, broker, other):
        instrument(one, registry)
    broker.declare_queue("q").enqueue(b"x")
    other.declare_queue("q").enqueue(b"x")
    asyncio.run(send())

    labels = {"command": "enqueue", "outcome": "ok"}
    assert registry.get_sample_value("rqttl_client_command_seconds_count", labels) == 3


@pytest.mark.parametrize("place, wrong", [("broker", (None, CollectorRegistry())), ("registry", (Broker, None))])
def test_a_wrong_broker_or_registry_is_named(broker: Broker, place: str, wrong: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"^{place}: expected"):
        instrument(broker if wrong[0] is Broker else wrong[0], wrong[1])

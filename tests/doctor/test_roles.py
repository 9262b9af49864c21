"""The ACL lines of deploy/README.md: a role may make its own calls; others are refused before they change anything."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
from redis.exceptions import NoPermissionError

from rqttl import Broker, Message
from rqttl.metrics import collector
from rqttl.reaper import Reaper
from tests.lua.states import everything
from tests.repository import ROOT
from tests.waiting import until

pytestmark = pytest.mark.once  # Redis 6.2 has no rights to read a key only

As = Callable[[str], Broker]


RULES = dict(
    re.findall(r"^ACL SETUSER (\w+) on >password (.*)$", (ROOT / "deploy/README.md").read_text(), re.MULTILINE)
)


@pytest.fixture
def role(restricted: Callable[..., redis.Redis]) -> As:
    """`role("producer")`: a broker as the user of this name in deploy/README.md."""
    return lambda name: Broker(restricted("reset", "on", "nopass", *RULES[name].split()))


def refused(client: redis.Redis, call: Callable[[], object]) -> None:
    before = everything(client)
    with pytest.raises(NoPermissionError):
        call()
    assert everything(client) == before


def test_a_producer_declares_and_sends_and_does_nothing_else(client: redis.Redis, broker: Broker, role: As) -> None:
    broker.set_policy("p", "limited", {"max_length": 2})
    producer = role("producer")
    queue = producer.declare_queue(
        "orders", dead_letter="orders/dead", duplicate_window="1h", overflow="reject-publish"
    )

    queue.enqueue(b"1", id="a", ttl="1h")
    queue.enqueue(b"1", id="a")
    queue.enqueue_many([b"2", Message(b"3", ttl="1h")])
    producer.declare_queue("limited").enqueue_many([b"x"] * 5)
    producer.declare_queue("orders", dead_letter="orders/dead", duplicate_window="1h", overflow="reject-publish")
    for delay in ("1h", "2h", "0s"):
        queue.enqueue(b"later", id=delay, delay=delay)
    assert queue.reschedule("1h", delay="3h") == queue.cancel("2h") == 1
    assert [view.id for view in queue.scheduled(after=queue.scheduled()[0].sequence)] == ["1h"]
    assert broker.queue("orders").stats(sweep=False).ready == 3
    assert broker.queue("orders").stats().ready == 4
    assert broker.queue("limited").stats().ready == 2

    refused(client, queue.receive)
    refused(client, queue.delete)
    refused(client, lambda: producer.set_policy("p", "#", {"max_length": 1}))


def test_a_consumer_receives_and_settles_and_does_nothing_else(client: redis.Redis, broker: Broker, role: As) -> None:
    sent = broker.declare_queue("orders", dead_letter="orders/dead", max_deliveries=2, redelivery_delay="1h")
    sent.enqueue_many([b"1", b"2", b"3", b"4", b"5", Message(b"6", ttl=0)])
    consumer = role("consumer")
    queue = consumer.queue("orders")

    first, second, third = queue.receive_many(3)
    first.ack()
    second.reject("no")
    third.nack()
    [fourth] = queue.receive_many(1, wait="1s")
    fourth.renew("1m")
    fourth.nack(delay="1h")
    queue.ack_many(queue.receive_many(9))
    assert queue.receive(wait="20ms") is None
    sent.enqueue(b"7")
    with queue.consume(prefetch=2) as deliveries:
        next(deliveries).ack()
    consumer.workers()
    assert broker.queue("orders/dead").stats().ready == 2  # the rejected one, and the one that expired

    later = [sent.enqueue(b"9", delay=delay).id for delay in ("1h", "2h")]
    assert [view.id for view in queue.peek(2, state="scheduled")] == later
    assert [view.id for view in queue.scheduled(after=later[0])] == later[1:]
    refused(client, lambda: queue.cancel(later[0]))
    refused(client, lambda: queue.purge("scheduled"))
    sent.enqueue(b"8", delay="1ms")
    until(lambda: sent.stats(sweep=False).overdue > timedelta(milliseconds=1))
    assert queue.receive(wait="20ms") is None  # a consumer without the rights of a reaper lets no message arrive
    Reaper(broker).run_once()
    assert queue.receive_many(1)[0].body == b"8"

    refused(client, queue.delete)
    refused(client, lambda: consumer.set_policy("p", "#", {"max_length": 1}))


def test_a_reaper_sweeps_and_does_not_change_policies(client: redis.Redis, broker: Broker, role: As) -> None:
    broker.set_policy("p", "orders", {"max_length": 9})
    queue = broker.declare_queue("orders", dead_letter="orders/dead", duplicate_window="1ms")
    broker.declare_queue("short", expires="1ms")
    queue.enqueue_many([Message(b"x", id=str(i), ttl="1ms") for i in range(3)])
    queue.enqueue(b"y", delay="1ms")
    reaper = role("reaper")

    until(lambda: not Reaper(reaper).run_once().failed and broker.queues() == ["orders", "orders/dead"])
    until(lambda: not Reaper(reaper).run_once().failed and broker.queue("orders/dead").stats(sweep=False).ready == 3)
    until(lambda: not Reaper(reaper).run_once().failed and broker.queue("orders").stats(sweep=False).activated == 1)
    refused(client, lambda: reaper.set_policy("p", "#", {"max_length": 1}))


def test_an_exporter_reads_and_changes_nothing(client: redis.Redis, broker: Broker, role: As) -> None:
    broker.declare_queue("orders").enqueue(b"x")
    exporter = role("monitor")
    before = everything(client)

    families = {family.name: family for family in collector(exporter, queues=[], limit=9).collect()}

    assert families["rqttl_reapers"].samples
    assert families["rqttl_queue_messages"].samples
    assert everything(client) == before
    refused(client, lambda: exporter.queue("orders").enqueue(b"x"))
    refused(client, exporter.queue("orders").receive)
    refused(client, lambda: exporter.set_policy("p", "#", {"max_length": 1}))

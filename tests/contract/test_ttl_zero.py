"""TTL 0: now or never. A consumer that already waits gets the message, otherwise it dies on arrival."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from rqttl import Message
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, at
from tests.contract.looks import bodies, dead, taken


@pytest.mark.spec("TTL-19", "TTL-20", "TTL-21", "A-003")
def test_ttl_zero_without_a_waiting_consumer_dies_on_arrival(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")

    queue.enqueue_many([Message(b"zero", ttl=0), b"next"])

    assert taken(queue) == [b"next"]
    assert bodies(clocked.queue("d")) == [b"zero"]


@pytest.mark.spec("TTL-19")
@pytest.mark.parametrize("options, ttl", [({}, 0), ({"message_ttl": 0}, None), ({"default_ttl": 0}, None)], ids=str)
def test_ttl_zero_is_handed_to_a_consumer_that_waits(
    clocked: Clocked, options: dict[str, Any], ttl: Literal[0] | None
) -> None:
    queue = clocked.declare_queue("q", **options)
    clocked.while_waiting(lambda: queue.enqueue(b"zero", ttl=ttl))

    delivery = queue.receive(wait="1s")

    assert delivery is not None
    assert (delivery.body, delivery.delivery_count, delivery.expires_at) == (b"zero", 1, at(0))
    assert delivery.leased_until == at(30_000)
    delivery.ack()
    assert (dead(queue), queue.stats().acked) == ({}, 1)


@pytest.mark.spec("A-003", "A-001")
@pytest.mark.parametrize("ago", [0, 1, 5_000])
def test_a_message_that_expired_before_it_came_goes_to_no_consumer(clocked: Clocked, ago: int) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    batch = [Message(b"late", expires_at=clocked.now - ago), Message(b"zero", ttl=0)]
    clocked.while_waiting(lambda: queue.enqueue_many(batch))

    delivery = queue.receive(wait="1s")

    assert delivery is not None
    assert delivery.body == b"zero"
    assert bodies(clocked.queue("d")) == [b"late"]


@pytest.mark.spec("TTL-19")
def test_ttl_zero_that_was_handed_over_and_given_back_expires(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    clocked.while_waiting(lambda: queue.enqueue(b"zero", ttl=0))
    delivery = queue.receive(wait="1s")
    assert delivery is not None

    delivery.nack()

    assert queue.receive() is None
    assert dead(queue) == {"expired": 1}


@pytest.mark.parametrize("limit, sent", [(0, [b"arriving"]), (1, [b"ready", b"other"])])
def test_a_message_that_was_handed_over_is_not_delivered_past_its_deadline(
    clocked: Clocked, limit: int, sent: list[bytes]
) -> None:
    queue = clocked.declare_queue("q", message_ttl="1s", max_length=limit, dead_letter="d")
    batches = iter([sent])

    def arrive() -> None:
        for body in next(batches, ()):
            queue.enqueue(body)
        clocked.advance("2s")

    clocked.while_waiting(arrive)

    assert queue.receive(wait="4s") is None
    assert dead(queue) == {"expired": len(sent)}
    assert sorted(bodies(clocked.queue("d"))) == sorted(sent)
    assert queue.stats().leased == 0


def test_ttl_zero_goes_to_as_many_as_wait_and_no_further(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    clocked.while_waiting(lambda: queue.enqueue_many([Message(b"%d" % i, ttl=0) for i in range(3)]))

    delivery = queue.receive(wait="1s")

    assert delivery is not None
    assert delivery.body == b"0"
    assert dead(queue) == {"expired": 2}


def test_ttl_zero_that_nobody_fetches_expires(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")

    def arrive() -> None:
        queue.enqueue(b"zero", ttl=0)
        driver_of(clocked).store.client.delete("rqttl:{q}:wakeup")  # the consumer dies with the element that it took

    clocked.while_waiting(arrive)
    assert queue.receive(wait="1ms") is None
    clocked.advance(60_000)

    assert queue.receive() is None
    assert dead(queue)["expired"] >= 1
    assert queue.stats().leased == 0

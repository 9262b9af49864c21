"""Ending waits from outside: at once, and with nothing lost that was handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from rqttl import AlreadySettled, Broker, LeaseLost, WaitEvent
from tests.contract.clocked import Clocked
from tests.contract.looks import bodies, one
from tests.contract.test_waking import LONG, Waiters
from tests.waiting import PATIENCE


@pytest.fixture
def waiters(broker: Broker) -> Iterator[Waiters]:
    with ThreadPoolExecutor(4) as pool:
        yield Waiters(broker, pool)
        broker.interrupt()


def test_all_waits_of_a_broker_end(broker: Broker, client: redis.Redis, waiters: Waiters) -> None:
    queue = broker.declare_queue("q")
    waiting = waiters.start(queue, 3)

    broker.interrupt()

    assert [one.result(timeout=PATIENCE) for one in waiting] == [None] * 3
    assert client.zcard("rqttl:{q}:waiters") == 0


def test_a_signal_handler_may_end_the_wait_that_it_breaks_into(
    broker: Broker, on_alarm: Callable[[Callable[[], None]], None]
) -> None:
    queue = broker.declare_queue("q")
    broker.events.subscribe(lambda _: on_alarm(broker.interrupt), WaitEvent)

    assert queue.receive(wait=LONG) is None


def test_afterwards_nobody_waits_but_everything_works(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    broker.interrupt()

    assert queue.receive(wait=LONG) is None
    queue.enqueue(b"x")
    delivery = one(queue, wait=LONG)
    delivery.ack()
    with queue.consume() as deliveries:
        assert list(deliveries) == []


def test_a_message_that_was_handed_to_a_wait_that_ends_is_received(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q")

    def act(_: WaitEvent) -> None:
        Broker(client).queue("q").enqueue(b"now or never", ttl=0)
        broker.interrupt()

    broker.events.subscribe(act, WaitEvent)
    delivery = one(queue, wait=LONG)

    assert (delivery.body, delivery.delivery_count) == (b"now or never", 1)


def test_a_released_delivery_is_no_failed_one(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_deliveries=1)
    queue.enqueue_many([b"a", b"b"])

    with queue.consume(wait=0) as deliveries:
        delivery = next(deliveries)
        deliveries.release(delivery)
        with pytest.raises(AlreadySettled):
            delivery.ack()

    assert bodies(queue) == [b"a", b"b"]
    assert [one.delivery_count for one in queue.receive_many(2)] == [1, 1]


def test_releasing_too_late_is_told(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"a")

    with queue.consume(wait=0, lease="10s") as deliveries:
        delivery = next(deliveries)
        clocked.advance(10_000)
        with pytest.raises(LeaseLost):
            deliveries.release(delivery)

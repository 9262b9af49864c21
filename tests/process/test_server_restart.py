"""A restart of the server loses nothing: deadlines go on, and clients recover."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from redis.exceptions import ConnectionError

from rqttl import (
    Broker,
    CommandEvent,
    LeaseLost,
    Message,
    MessageView,
    Queue,
    RenewalEvent,
    WaitEvent,
    connect,
)
from rqttl.testing.clock import Clock
from rqttl.testing.clocked import ClockedBroker
from tests.process.leases import hasty_broker
from tests.servers import Server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(durable: Server) -> Iterator[Broker]:
    with connect(durable.url) as broker:
        yield broker


@pytest.fixture(params=["kill", "stop"])
def restart(request: pytest.FixtureRequest, durable: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ends the server, by SIGKILL or by SIGTERM, and starts it on the same data."""
    # a slow machine may need longer to start a server than a call is patient
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.02, *[0.1] * 300))

    def restart() -> None:
        getattr(durable, request.param)()
        durable.start()

    return restart


def servers_time(durable: Server) -> int:
    with durable.client() as client:
        seconds, micros = client.time()
        return int(seconds) * 1000 + int(micros) // 1000


def everything(queue: Queue) -> list[MessageView]:
    return queue.peek(1_000)


@pytest.mark.spec("TTL-27", "A-006", "A-020", "S-045")
def test_messages_deadlines_leases_and_counters_survive(broker: Broker, restart: Callable[[], None]) -> None:
    queue = broker.declare_queue("q", message_ttl="2h", min_ttl="1h", max_ttl="3h", lease="1h", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, ttl="10m" if i % 2 else None, headers={"i": i}) for i in range(300)])
    held, delayed, acked, rejected, returned = queue.receive_many(5)
    delayed.nack("1h")
    acked.ack()
    rejected.reject("for good")
    returned.nack()
    before, letters, counted = everything(queue), everything(broker.queue("d")), queue.stats()

    restart()

    assert (everything(queue), everything(broker.queue("d"))) == (before, letters)
    assert broker.queues() == ["d", "q"]
    assert replace(queue.stats(), oldest_ready_age=counted.oldest_ready_age) == counted
    assert queue.options().message_ttl == 7_200_000
    held.ack()
    redelivered = queue.receive()
    assert redelivered is not None
    assert (redelivered.id, redelivered.delivery_count) == (returned.id, 2)


@pytest.mark.spec("TTL-28", "A-007", "TTL-27", "A-070")
def test_messages_that_expire_while_the_server_is_down_are_dead_lettered_and_not_delivered(
    durable: Server, restart: Callable[[], None]
) -> None:
    clock = Clock()
    with durable.client() as client, ClockedBroker(client, clock=clock) as broker:
        queue = broker.declare_queue("q", dead_letter="d")
        queue.enqueue_many([Message(b"%d" % i, ttl="1m") for i in range(20)] + [b"for ever"])
        held = queue.receive_many(5, lease="1h")

        restart()
        clock.advance("1m")

        (delivery,) = queue.receive_many(100)
        assert delivery.body == b"for ever"
        letters = broker.queue("d").receive_many(100)
        assert [letter.body for letter in letters] == [b"%d" % i for i in range(5, 20)]
        assert {letter.deaths[0].reason for letter in letters} == {"expired"}
        queue.ack_many(held)


@pytest.mark.spec("A-085")
def test_policies_survive_with_the_options_that_they_gave(broker: Broker, restart: Callable[[], None]) -> None:
    broker.declare_queue("orders", max_length=50)
    broker.set_policy("p", "orders.#", {"message-ttl": "5m", "max_deliveries": None}, priority=7)
    broker.set_operator_policy("o", "^o", {"max_length": 9}, syntax="regex")
    policies, caps, options = broker.policies(), broker.operator_policies(), broker.queue("orders").options()

    restart()

    assert (broker.policies(), broker.operator_policies()) == (policies, caps)
    assert broker.queue("orders").options() == options
    assert broker.reconcile().changed == {}
    assert broker.declare_queue("orders.eu").options().as_arguments() == {"message_ttl": "5m", "max_length": 9}
    broker.delete_operator_policy("o")
    assert broker.queue("orders").options().as_arguments() == {"max_length": 50, "message_ttl": "5m"}


def test_a_lease_runs_on_while_the_server_is_down(broker: Broker, durable: Server, restart: Callable[[], None]) -> None:
    queue = broker.declare_queue("q", lease="400ms")
    queue.enqueue(b"x")
    first = queue.receive()
    assert first is not None
    assert first.leased_until is not None

    restart()
    second = queue.receive(wait="1m")

    assert second is not None
    assert second.delivery_count == 2
    assert servers_time(durable) >= first.leased_until.timestamp() * 1000
    with pytest.raises(LeaseLost):
        first.ack()


def test_a_consumer_that_waits_outlives_a_restart(broker: Broker, restart: Callable[[], None]) -> None:
    queue = broker.declare_queue("q")
    waiting = threading.Event()
    broker.events.subscribe(lambda name: waiting.set(), WaitEvent)

    with ThreadPoolExecutor() as pool:
        delivery = pool.submit(queue.receive, wait="10m")
        assert waiting.wait(PATIENCE)
        restart()
        queue.enqueue(b"x")

        found = delivery.result(timeout=PATIENCE)

    assert found is not None
    assert found.body == b"x"


def test_a_consumer_waits_for_redis_no_longer_than_for_messages(broker: Broker, durable: Server) -> None:
    queue = broker.declare_queue("q")

    deliveries = queue.consume(wait=0).__enter__()
    durable.kill()

    with pytest.raises(ConnectionError):
        next(deliveries)

    durable.start()
    deliveries.close()


def test_a_slow_handler_keeps_its_message_over_a_restart(durable: Server, caplog: pytest.LogCaptureFixture) -> None:
    with durable.client() as client, hasty_broker(client) as broker:
        queue = broker.declare_queue("q")
        queue.enqueue(b"x")
        renewals, failures = threading.Semaphore(0), threading.Semaphore(0)
        broker.events.subscribe(lambda event: renewals.release(), RenewalEvent)
        broker.events.subscribe(
            lambda event: failures.release() if event.outcome == "ConnectionError" else None, CommandEvent
        )

        with queue.consume(lease="10m", wait=0) as deliveries:
            for delivery in deliveries:
                with delivery:
                    durable.kill()
                    assert failures.acquire(timeout=PATIENCE)
                    durable.start()
                    assert renewals.acquire(timeout=PATIENCE)

        stats = queue.stats()
        assert (stats.acked, stats.delivered, deliveries.lost) == (1, 1, [])
        assert "could not renew leases" in caplog.text

"""Renewing: for how long, in which rhythm, and what a queue that ends or changes makes of it."""

from __future__ import annotations

import threading

import pytest
import redis

from rqttl import Broker, CommandEvent, LeaseLost, QueueNotFound
from tests.contract.clocked import Clocked, at, ms
from tests.contract.handling import Renewals

LIFE = 10_000


def test_each_of_many_is_renewed_for_as_long_as_it_was_given_for(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([b"%d" % i for i in range(4)])
    held = [*queue.receive_many(2, lease="5s"), *queue.receive_many(1), *queue.receive_many(1, lease="5s")]
    clocked.advance(1_000)

    queue.renew_many(held)

    assert [one.leased_until for one in held] == [at(6_000), at(6_000), at(3_601_000), at(6_000)]
    queue.ack_many(held)


def test_renewing_many_takes_one_call_for_each_length(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"x"] * 6)
    held = [one for lease in ("1m", "2m", "1m") for one in queue.receive_many(2, lease=lease)]
    queue.renew_many(held)
    scripts: list[str] = []
    broker.events.subscribe(lambda event: scripts.append(event.name), CommandEvent)

    queue.renew_many(held)
    assert scripts == ["renew"] * 2
    queue.renew_many(held, "5m")
    assert scripts == ["renew"] * 3


def test_leases_of_one_length_are_renewed_although_one_of_another_was_lost(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"short", b"long"])
    held = [*queue.receive_many(1, lease="1s"), *queue.receive_many(1, lease="1h")]
    clocked.advance(1_000)

    with pytest.raises(LeaseLost) as lost:
        queue.renew_many(held)

    assert lost.value.ids == (held[0].id,)
    assert held[1].leased_until == at(3_601_000)


@pytest.mark.usefixtures("at_rest")
def test_a_lease_that_gets_shorter_while_a_consumer_runs_sets_the_rhythm_of_its_renewals(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h", max_deliveries=1)
    renewals = Renewals(clocked)

    with queue.consume(prefetch=3) as deliveries:
        queue.enqueue(b"long")
        before = next(deliveries)
        queue.update(lease="300ms")
        queue.enqueue(b"short")
        after = next(deliveries)
        renewals.outlast(clocked, after, 300)
        before.ack()
        after.ack()

    assert (deliveries.lost, queue.stats().acked) == ([], 2)


@pytest.mark.usefixtures("at_rest")
def test_a_consumer_goes_on_renewing_for_as_long_as_a_user_has_renewed(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h", max_deliveries=1)
    queue.enqueue(b"x")
    renewals = Renewals(clocked)

    with queue.consume(prefetch=1) as deliveries:
        delivery = next(deliveries)
        delivery.renew("600ms")
        renewals.outlast(clocked, delivery, 600)
        delivery.ack()

    assert (deliveries.lost, queue.stats().acked) == ([], 1)


def test_an_ack_during_a_renewal_that_misses_the_lease_counts_as_late(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q", lease="600ms")
    queue.enqueue(b"x")
    handed, acked = threading.Event(), threading.Event()

    def interfere(event: CommandEvent) -> None:
        if event.name == "receive":
            client.delete("rqttl:{q}:leases")
        elif event.name == "renew" and not acked.is_set():
            assert handed.wait(60)
            delivery.ack()
            acked.set()

    broker.events.subscribe(interfere, CommandEvent)
    with queue.consume(wait=0) as deliveries:
        delivery = next(deliveries)
        handed.set()
        assert acked.wait(60)

    assert (deliveries.lost_count, deliveries.lost) == (1, [delivery.id])


def test_settling_and_renewing_find_no_queue_after_the_end_of_its_lifetime(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), lease="1h")
    queue.enqueue_many([b"%d" % i for i in range(4)])
    held = queue.receive_many(4)
    clocked.advance(LIFE)

    for one, settle in zip(held, ("ack", "renew", "nack", "reject"), strict=True):
        with pytest.raises(QueueNotFound):
            getattr(one, settle)()
    assert clocked.queues() == []


def test_the_holder_of_a_lease_of_a_deleted_queue_finds_no_queue(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"%d" % i for i in range(4)])
    held = queue.receive_many(4)
    queue.delete()

    for one, settle in zip(held, ("ack", "renew", "nack", "reject"), strict=True):
        with pytest.raises(QueueNotFound):
            getattr(one, settle)()


@pytest.mark.parametrize("settle", ["ack", "renew", "nack", "reject"])
def test_a_queue_that_lives_on_because_it_holds_messages_takes_a_settle_at_any_time(
    clocked: Clocked, settle: str
) -> None:
    queue = clocked.declare_queue("q", expires=ms(LIFE), on_expire="keep", lease="1h")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None
    clocked.advance(LIFE)

    getattr(delivery, settle)()

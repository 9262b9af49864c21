"""`stop` ends fetching, and nothing else: leases are renewed, acks are sent, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from rqttl import Broker, Consumer, Delivery, Message, Queue, WaitEvent
from tests.contract.clocked import Clocked
from tests.contract.handling import Renewals
from tests.contract.looks import dead, ready
from tests.contract.test_waking import LONG, Waiters, blocked
from tests.waiting import PATIENCE, until


def test_leases_are_renewed_after_stop_until_the_handler_is_done(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    renewals = Renewals(clocked)

    with queue.consume(lease="600ms") as deliveries:
        for delivery in deliveries:
            with delivery:
                deliveries.stop()
                renewals.outlast(clocked, delivery, 600)
                assert queue.receive() is None

    stats = queue.stats()
    assert (stats.acked, stats.delivered, stats.redelivered, deliveries.lost) == (1, 1, 0, [])


def test_an_ack_after_stop_is_sent_while_the_next_handler_works(queue: Queue) -> None:
    queue.enqueue_many([b"a", b"b"])

    with queue.consume(prefetch=2) as deliveries:
        first, second = next(deliveries), next(deliveries)
        deliveries.stop()
        first.ack()
        until(lambda: queue.stats().acked == 1)
        second.ack()

    assert queue.stats().acked == 2


def test_prefetched_messages_are_free_for_others_as_soon_as_the_consumer_stops(queue: Queue) -> None:
    queue.update(max_deliveries=1)
    queue.enqueue_many([b"1", b"2", b"3"])

    with queue.consume(prefetch=3) as deliveries:
        at_hand = next(deliveries)
        assert queue.stats().leased == 3
        deliveries.stop()
        until(lambda: queue.stats().ready == 2)
        assert [(other.body, other.delivery_count) for other in queue.receive_many(3)] == [(b"2", 1), (b"3", 1)]
        at_hand.ack()

    assert queue.stats().acked == 1


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_stop_ends_a_wait(
    broker: Broker, queue: Queue, client: redis.Redis, pool: ThreadPoolExecutor, again: bool
) -> None:
    waiters = Waiters(broker, pool)
    deliveries = queue.consume()

    def work() -> list[Delivery]:
        with deliveries:
            return list(deliveries)

    (waiting,) = waiters.start(queue, how=work)
    deliveries.stop()
    if again:
        deliveries.stop()

    assert waiting.result(timeout=PATIENCE) == []
    assert client.zcard("rqttl:{q}:waiters") == 0
    assert queue.stats().consumers == 0


def test_a_signal_handler_may_stop_the_consumer_that_it_breaks_into(
    broker: Broker, queue: Queue, on_alarm: Callable[[Callable[[], None]], None]
) -> None:
    with queue.consume(wait=LONG) as deliveries:
        broker.events.subscribe(lambda _: on_alarm(deliveries.stop), WaitEvent)
        assert list(deliveries) == []


def test_stopping_one_consumer_leaves_the_others_waiting(
    broker: Broker, queue: Queue, client: redis.Redis, pool: ThreadPoolExecutor
) -> None:
    waiters = Waiters(broker, pool)
    first, second = queue.consume(), queue.consume()

    def work(deliveries: Consumer) -> list[bytes]:
        handled = []
        with deliveries:
            for delivery in deliveries:
                with delivery:
                    handled.append(delivery.body)
                    deliveries.stop()
        return handled

    (ends,) = waiters.start(queue, how=lambda: work(first))
    (stays,) = waiters.start(queue, how=lambda: work(second))
    assert blocked(client, 2)
    first.stop()
    assert ends.result(timeout=PATIENCE) == []
    queue.enqueue(b"x")

    assert stays.result(timeout=PATIENCE) == [b"x"]


@pytest.mark.parametrize("ready_too", [False, True], ids=["alone", "beside a ready message"])
def test_a_message_that_was_handed_to_a_stopped_wait_dies_of_its_ttl_only(
    clocked: Clocked, client: redis.Redis, ready_too: bool
) -> None:
    queue = clocked.declare_queue("q", max_deliveries=1, dead_letter="d")
    other = Broker(client).queue("q")

    def act(_: WaitEvent) -> None:
        other.enqueue(Message(b"now or never", ttl=0))
        if ready_too:
            other.enqueue(b"later")
        deliveries.stop()

    with queue.consume(prefetch=1) as deliveries:
        clocked.events.subscribe(act, WaitEvent)
        assert list(deliveries) == []

    assert dead(queue) == {"expired": 1}
    assert [(letter.body, letter.delivery_count) for letter in clocked.queue("d").receive_many(2)] == [
        (b"now or never", 1)
    ]
    assert ready(queue) == ([b"later"] if ready_too else [])


def test_a_message_that_arrives_while_stop_ends_the_wait_is_released_uncounted(
    broker: Broker, client: redis.Redis
) -> None:
    queue = broker.declare_queue("q", max_deliveries=1)
    other = Broker(client).queue("q")

    def act(_: WaitEvent) -> None:
        other.enqueue_many([b"a", b"b"])
        deliveries.stop()

    with queue.consume() as deliveries:
        broker.events.subscribe(act, WaitEvent)
        assert list(deliveries) == []

    assert [(again.body, again.delivery_count) for again in queue.receive_many(3)] == [(b"a", 1), (b"b", 1)]


def test_stop_ends_the_wait_for_room_among_unsettled_deliveries(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    queue.enqueue_many([b"a", b"b"])
    shown: list[Delivery] = []
    deliveries = queue.consume(prefetch=1)

    def work() -> None:
        with deliveries:
            shown.append(next(deliveries))
            assert list(deliveries) == []

    working = pool.submit(work)
    until(lambda: len(shown) == 1)
    deliveries.stop()
    working.result(timeout=PATIENCE)

    assert [delivery.body for delivery in shown] == [b"a"]
    assert (ready(queue), queue.stats().leased) == ([b"b"], 1)

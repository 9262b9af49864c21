"""The end of a consumer: unseen messages go back, and a handler at work keeps its message."""

from __future__ import annotations

import logging
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.exceptions import ConnectionError

from rqttl import AlreadySettled, Broker, Delivery, LeaseLost, Queue, QueueNotFound, RenewalEvent
from tests.contract.clocked import Clocked
from tests.contract.handling import Renewals
from tests.contract.looks import bodies, one, ready
from tests.waiting import PATIENCE


def test_an_exception_that_leaves_the_loop_takes_nothing_from_a_thread_that_works(
    broker: Broker, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    queue.enqueue_many([b"mine", b"theirs"])
    go_on = threading.Event()

    def handle(delivery: Delivery) -> None:
        with delivery:
            assert go_on.wait(PATIENCE)

    def loop() -> None:
        with queue.consume(prefetch=2) as deliveries:
            working.append(pool.submit(handle, next(deliveries)))
            raise RuntimeError("the loop failed, not the handler")

    working: list[object] = []
    with pytest.raises(RuntimeError):
        loop()
    assert [other.body for other in queue.receive_many(2)] == [b"theirs"]
    go_on.set()
    pool.shutdown()

    stats = queue.stats()
    assert (stats.acked, stats.redelivered) == (1, 0)


def test_an_unsettled_delivery_stays_leased_and_comes_again_as_failed(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    queue = clocked.declare_queue("q", lease="30s")
    queue.enqueue_many([b"a", b"b"])

    def loop() -> None:
        with queue.consume() as deliveries:
            for _ in deliveries:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()

    assert (ready(queue), queue.stats().leased) == ([b"b"], 1)
    assert "before 1 of its deliveries" in caplog.text
    clocked.advance(30_000)
    assert [(again.body, again.delivery_count) for again in queue.receive_many(2)] == [(b"a", 2), (b"b", 1)]


@pytest.mark.parametrize("settle", ["ack", "nack", "reject", "renew"])
def test_a_delivery_may_be_settled_after_its_consumer_ended_and_that_is_sent_at_once(
    clocked: Clocked, settle: str
) -> None:
    queue = clocked.declare_queue("q", lease="30s")
    queue.enqueue(b"x")
    with queue.consume() as deliveries:
        delivery = next(deliveries)

    getattr(delivery, settle)()

    stats = queue.stats()
    found = {"ack": stats.acked, "nack": stats.ready, "reject": stats.deaths["rejected"], "renew": stats.leased}
    assert found == {**dict.fromkeys(found, 0), settle: 1}
    assert stats.consumers == 0


def test_settling_too_late_after_the_consumer_ended_is_an_error(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="30s")
    queue.enqueue(b"x")
    with queue.consume() as deliveries:
        delivery = next(deliveries)
    clocked.advance(30_000)

    with pytest.raises(LeaseLost):
        delivery.ack()

    assert one(queue).delivery_count == 2


def test_a_pool_inside_the_consumer_finishes_its_work_under_leases(clocked: Clocked) -> None:
    """The order that the documentation gives: the pool's exit waits for handlers while the consumer still renews."""
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"1", b"2", b"3", b"4", b"5"])
    renewals = Renewals(clocked)
    started = threading.Barrier(3)
    lock = threading.Lock()

    def handle(delivery: Delivery) -> None:
        with delivery:
            started.wait(PATIENCE)
            with lock:
                renewals.outlast(clocked, delivery, 600)

    with queue.consume(prefetch=2, lease="600ms") as deliveries, ThreadPoolExecutor(2) as inner:
        for delivery in deliveries:
            inner.submit(handle, delivery)
            if queue.stats().delivered == 2 and len(inner._threads) == 2:
                started.wait(PATIENCE)
                deliveries.stop()

    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.leased, stats.redelivered, deliveries.lost) == (2, 3, 0, 0, [])


def test_acks_of_other_threads_are_all_sent_while_the_consumer_ends(queue: Queue, pool: ThreadPoolExecutor) -> None:
    for _ in range(20):
        queue.enqueue_many([b"x"] * 40)
        with queue.consume(prefetch=40, wait=0) as deliveries:
            settled = [pool.submit(delivery.ack) for delivery in [next(deliveries) for _ in range(40)]]
        for future in settled:
            future.result(timeout=PATIENCE)

    assert (queue.stats().acked, queue.stats().leased) == (800, 0)


def test_a_refill_that_fails_tells_its_error_alone(queue: Queue) -> None:
    def loop() -> None:
        with queue.consume() as deliveries:
            queue.delete()
            next(deliveries)

    with pytest.raises(QueueNotFound) as raised:
        loop()

    assert raised.value.__context__ is None
    assert "During handling" not in "".join(traceback.format_exception(raised.value))


def test_a_failure_at_the_end_does_not_hide_the_exception_that_leaves_the_block(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")

    def fail(**_: object) -> None:
        raise ConnectionError("gone")

    def loop() -> None:
        with queue.consume() as deliveries:
            delivery = next(deliveries)
            monkeypatch.setattr(deliveries._turns, "report", fail)
            delivery.ack()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()

    assert "acks could not be sent" in caplog.text


def test_a_listener_that_fails_does_not_end_the_keeper_of_leases(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    renewals = Renewals(clocked)

    def fail(_: RenewalEvent) -> None:
        raise RuntimeError("a listener")

    clocked.events.subscribe(fail, RenewalEvent)
    with queue.consume(lease="300ms") as deliveries:
        delivery = next(deliveries)
        renewals.outlast(clocked, delivery, 300)
        assert queue.receive() is None
        delivery.ack()

    assert (queue.stats().acked, deliveries.lost) == (1, [])
    assert "goes on after an error" in caplog.text


def test_closing_twice_changes_nothing(queue: Queue) -> None:
    queue.enqueue_many([b"a", b"b"])
    with queue.consume(wait=0) as deliveries:
        delivery = next(deliveries)
        deliveries.close()
        assert (bodies(queue), queue.stats().leased) == ([b"a", b"b"], 1)

    delivery.ack()
    with pytest.raises(AlreadySettled):
        delivery.ack()
    assert list(deliveries) == []
    assert bodies(queue) == [b"b"]

"""The two ends of a consumer: `stop` ends fetching, the end of the context ends renewing. Nothing is lost or doubled."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from redis.exceptions import ConnectionError

from rqttl import AlreadySettled, Broker, Consumer, Delivery, LeaseLost, Message, Queue, QueueNotFound
from tests.contract.clocked import Clocked
from tests.contract.looks import bodies, dead, one, ready
from tests.contract.test_interrupting import on_alarm as on_alarm
from tests.contract.test_waking import LONG, PATIENCE, Waiters, blocked


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.declare_queue("q")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def until(condition: Callable[[], bool]) -> None:
    """Ask until it holds. What hangs is ended by the time-out of the test."""
    while not condition():
        threading.Event().wait(0.01)


class Renewals:
    """Waits until leases have been renewed so many times: so long a handler works."""

    def __init__(self, broker: Broker) -> None:
        self._renewed = threading.Semaphore(0)
        broker.events.on_renewed.append(lambda *_: self._renewed.release())

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self._renewed.acquire(timeout=PATIENCE)


# stop() ends fetching


def test_leases_are_renewed_after_stop_until_the_handler_is_done(broker: Broker, queue: Queue) -> None:
    """Leases are renewed at a third of their time, so four renewals take longer than a lease."""
    queue.enqueue(b"x")
    renewals = Renewals(broker)

    with queue.consume(lease="600ms") as deliveries:
        for delivery in deliveries:
            with delivery:
                deliveries.stop()
                renewals.wait(4)
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


def test_what_was_prefetched_is_free_for_others_as_soon_as_the_consumer_stops(queue: Queue) -> None:
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
def test_stop_ends_a_wait_at_once(
    broker: Broker, queue: Queue, client: redis.Redis, pool: ThreadPoolExecutor, again: bool
) -> None:
    """One block period and no more calls: the wait ends before the period does."""
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
    assert client.zcard("rqttl:{q}:waiting") == 0
    assert queue.stats().consumers == 0


def test_a_signal_handler_may_stop_the_consumer_that_it_breaks_into(
    broker: Broker, queue: Queue, on_alarm: Callable[[Callable[[], None]], None]
) -> None:
    with queue.consume() as deliveries:
        broker.events.on_waiting.append(lambda _: on_alarm(deliveries.stop))
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
def test_what_was_handed_to_a_wait_that_stop_ends_dies_of_its_ttl_and_of_nothing_else(
    clocked: Clocked, client: redis.Redis, ready_too: bool
) -> None:
    queue = clocked.declare_queue("q", max_deliveries=1, dead_letter="d")
    other = Broker(client).queue("q")

    def act(_: str) -> None:
        other.enqueue(Message(b"now or never", ttl=0))
        if ready_too:
            other.enqueue(b"later")
        deliveries.stop()

    with queue.consume(prefetch=1) as deliveries:
        clocked.events.on_waiting.append(act)
        assert list(deliveries) == []

    assert dead(queue) == {"expired": 1}
    assert [(letter.body, letter.delivery_count) for letter in clocked.queue("d").receive_many(2)] == [
        (b"now or never", 1)
    ]
    assert ready(queue) == ([b"later"] if ready_too else [])


def test_what_arrives_while_stop_ends_the_wait_is_released_uncounted(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("q", max_deliveries=1)
    other = Broker(client).queue("q")

    def act(_: str) -> None:
        other.enqueue_many([b"a", b"b"])
        deliveries.stop()

    with queue.consume() as deliveries:
        broker.events.on_waiting.append(act)
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
            for delivery in deliveries:
                shown.append(delivery)

    working = pool.submit(work)
    until(lambda: len(shown) == 1)
    deliveries.stop()
    working.result(timeout=PATIENCE)

    assert [delivery.body for delivery in shown] == [b"a"]
    assert (ready(queue), queue.stats().leased) == ([b"b"], 1)


# The end of the context


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


def test_what_was_handed_out_and_not_settled_stays_leased_and_comes_again_as_failed(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    queue = clocked.declare_queue("q", lease="30s")
    queue.enqueue_many([b"a", b"b"])

    with pytest.raises(ZeroDivisionError), queue.consume() as deliveries:
        for _ in deliveries:
            raise ZeroDivisionError

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


def test_a_pool_inside_the_consumer_finishes_its_work_under_leases(broker: Broker, queue: Queue) -> None:
    """The order that the documentation gives: the pool's exit waits for handlers while the consumer still renews."""
    queue.enqueue_many([b"1", b"2", b"3", b"4", b"5"])
    renewals = Renewals(broker)
    started = threading.Barrier(3)
    lock = threading.Lock()

    def handle(delivery: Delivery) -> None:
        with delivery:
            started.wait(PATIENCE)
            with lock:
                renewals.wait(4)

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


# Errors


def chain(error: BaseException | None) -> list[str]:
    """The classes of an exception and of those that it came upon."""
    return [] if error is None else [type(error).__name__, *chain(error.__context__)]


def test_a_refill_that_fails_tells_its_error_alone(broker: Broker, queue: Queue) -> None:
    with pytest.raises(QueueNotFound) as raised, queue.consume() as deliveries:
        queue.delete()
        broker.events.on_command.clear()
        next(deliveries)

    assert raised.value.__context__ is None
    assert chain(raised.value) == ["QueueNotFound"]
    assert "During handling" not in "".join(traceback.format_exception(raised.value))


def test_a_failure_at_the_end_does_not_hide_the_exception_that_leaves_the_block(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")

    def fail(*_: object) -> None:
        raise ConnectionError("gone")

    with pytest.raises(ZeroDivisionError), queue.consume() as deliveries:
        next(deliveries).ack()
        monkeypatch.setattr(deliveries, "_report", fail)
        raise ZeroDivisionError

    assert "acks could not be sent" in caplog.text


def test_a_listener_that_fails_does_not_end_the_keeper_of_leases(
    broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    queue.enqueue(b"x")
    renewals = Renewals(broker)

    def fail(name: str, count: int) -> None:
        raise RuntimeError("a listener")

    broker.events.on_renewed.append(fail)
    with queue.consume(lease="300ms") as deliveries:
        delivery = next(deliveries)
        renewals.wait(4)
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

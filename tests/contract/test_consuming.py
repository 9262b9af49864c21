"""`consume`: how much it fetches, late acks, and its end: unseen messages go back, a handler at work keeps its own."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError

from rqttl import (
    AlreadySettled,
    Broker,
    CommandEvent,
    Consumer,
    Delivery,
    InvalidInput,
    LeaseLost,
    Message,
    Queue,
    QueueNotFound,
    RenewalEvent,
    WaitEvent,
)
from rqttl.protocol.commands import Command, Reply
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.contract.looks import Renewals, dead, one, ready
from tests.contract.test_waking import LONG, Waiters, blocked
from tests.waiting import PATIENCE, until


def test_acks_go_with_the_next_fetch_in_one_call(broker: Broker, queue: Queue) -> None:
    queue.enqueue_many([b"x"] * 300)
    scripts: list[str] = []

    def note(event: CommandEvent) -> None:
        if threading.current_thread() is threading.main_thread() and event.name != "SCRIPT LOAD":
            scripts.append(event.name)

    broker.events.subscribe(note, CommandEvent)
    with queue.consume(prefetch=100, wait=0) as deliveries:
        scripts.clear()
        for delivery in deliveries:
            delivery.ack()
        assert scripts == ["receive"] * 4  # three with messages, and one that finishes the last of them and finds none

    assert queue.stats().acked == 300


def test_a_fetch_waits_while_other_threads_make_room_up_to_a_fourth(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue_many([b"x"] * 40)
    held: list[Delivery] = []
    acks: list[Delivery] = []  # of a moment

    def moment(*_: object) -> bool:
        for delivery in acks[:2]:
            delivery.ack()
        del acks[:2]
        return False

    with queue.consume(prefetch=16, lease="1h") as deliveries:
        held += (next(deliveries) for _ in range(16))
        monkeypatch.setattr(Interrupt, "wait", moment)
        held.pop().ack()
        next(deliveries)
        assert queue.stats().acked == 1

        held.pop().ack()
        acks += held
        next(deliveries)
        assert queue.stats().acked == 1 + 5


def test_iterating_without_the_context_is_refused(queue: Queue) -> None:
    queue.enqueue(b"x")

    with pytest.raises(InvalidInput, match="with"):
        next(queue.consume())

    assert queue.stats().ready == 1


def test_an_ack_for_a_deleted_queue_is_given_up_and_listed_by_its_id(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rqttl.consumer")
    queue = broker.declare_queue("q")
    queue.enqueue(b"x", id="mine")
    consumer = queue.consume(prefetch=1)

    def run() -> None:
        with consumer as deliveries:
            delivery = next(deliveries)
            queue.delete()
            delivery.ack()
            next(deliveries)

    with pytest.raises(QueueNotFound):
        run()

    assert consumer.lost == ["mine"]
    assert consumer.lost_count == 1
    assert "ack of mine dropped" in caplog.text


@pytest.mark.usefixtures("at_rest")
def test_an_ack_that_comes_too_late_is_logged_and_listed_by_its_id(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue(b"x", id="mine")

    with queue.consume(wait=0) as deliveries:
        delivery = next(deliveries)
        clocked.advance(3_600_000)
        delivery.ack()
        assert [again.delivery_count for again in deliveries] == [2]

    assert deliveries.lost == ["mine"]
    assert "mine" in caplog.text
    with pytest.raises(LeaseLost):
        delivery.ack()
    assert queue.stats().leased == 1


@pytest.mark.usefixtures("at_rest")
def test_an_ack_of_which_nobody_knows_the_outcome_is_logged_and_listed_by_its_id(
    clocked: Clocked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue(b"x", id="mine")
    store = driver_of(clocked).store
    run = store.run

    with queue.consume() as deliveries:
        delivery = next(deliveries)
        clocked.advance(3_600_000)
        another = one(queue)
        another.ack()
        delivery.ack()
        # as if the reply to an earlier try was lost
        monkeypatch.setattr(store, "run", lambda command: run(command.as_replay()))

    assert (deliveries.unknown, deliveries.unknown_count) == (["mine"], 1)
    assert (deliveries.lost, deliveries.lost_count) == ([], 0)
    assert delivery.settled == "outcome unknown"
    assert "mine" in caplog.text


@pytest.mark.usefixtures("at_rest")
@pytest.mark.parametrize("over", [False, True])
def test_an_ack_that_a_failed_call_carried_out_is_no_late_ack(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue(b"x", id="mine")
    store = driver_of(clocked).store
    run = store.run
    failed: list[str] = []

    def lose_the_first_reply(command: Command) -> Reply:
        reply = run(command)
        if not failed:
            failed.append(command.script.name)
            if over:
                clocked.advance(3_600_000)
            raise redis.ConnectionError("the reply was lost, and so were those of all repeated calls")
        return reply

    with queue.consume(wait="2h") as deliveries:
        next(deliveries).ack()
        monkeypatch.setattr(store, "run", lose_the_first_reply)
        assert list(deliveries) == []

    assert failed == ["receive"]
    assert queue.stats().acked == 1
    assert (deliveries.unknown, deliveries.lost) == (["mine"] if over else [], [])


@pytest.mark.usefixtures("at_rest")
def test_of_many_late_acks_all_are_counted_and_the_newest_are_listed(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", lease="1h")
    queue.enqueue_many([Message(b"x", id=str(i)) for i in range(1_100)])

    with queue.consume(prefetch=250) as deliveries:
        for _ in range(5):
            for _ in range(220):
                next(deliveries).ack()
            clocked.advance(3_600_000)

    assert (deliveries.lost_count, len(deliveries.lost), queue.stats().acked) == (1_100, 1_000, 0)


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
    assert "with 1 of its messages unsettled" in caplog.text
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


def test_a_pool_inside_the_consumer_finishes_its_work_under_leases(clocked: Clocked, queue: Queue) -> None:
    """The order that the documentation gives: the pool's exit waits for handlers while the consumer still renews."""
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


def test_a_failure_at_the_end_does_not_hide_the_exception_that_leaves_the_block(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue.enqueue(b"x")

    def fail(**_: object) -> None:
        raise ConnectionError("gone")

    def loop() -> None:
        with queue.consume() as deliveries:
            delivery = next(deliveries)
            monkeypatch.setattr(deliveries._session, "report", fail)
            delivery.ack()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()

    assert "could not send acks" in caplog.text


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
    assert "renewing leases failed; trying again" in caplog.text


def test_an_ack_after_stop_is_sent_while_the_next_handler_works(queue: Queue) -> None:
    queue.enqueue_many([b"a", b"b"])

    with queue.consume(prefetch=2) as deliveries:
        first, second = next(deliveries), next(deliveries)
        deliveries.stop()
        first.ack()
        until(lambda: queue.stats().acked == 1)
        second.ack()

    assert queue.stats().acked == 2


@pytest.mark.parametrize("moment", [CommandEvent, WaitEvent])
@pytest.mark.parametrize("several", [False, True])
def test_an_ack_is_sent_while_the_consumer_waits(
    broker: Broker, queue: Queue, at_rest: None, pool: ThreadPoolExecutor, several: bool, moment: type
) -> None:
    """It comes just before the wait, after the fetch that could have taken it along, or within it."""
    queue.enqueue(b"x")
    held: list[Delivery] = []

    def note(event: Any) -> None:
        if held and getattr(event, "name", "receive") == "receive":
            pool.submit(lambda: held.pop().ack())

    with broker.consume(["q"], lease="1h") if several else queue.consume(lease="1h") as deliveries:
        held.append(next(deliveries))
        broker.events.subscribe(note, moment)
        waiting = pool.submit(next, deliveries, None)
        until(lambda: queue.stats().acked == 1)
        deliveries.stop()
        assert waiting.result(PATIENCE) is None


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


@pytest.mark.parametrize("several", [False, True])
def test_prefetch_changes_under_way_and_bounds_what_is_leased(broker: Broker, queue: Queue, several: bool) -> None:
    queue.enqueue_many([b"%d" % number for number in range(20)])
    consumer = broker.consume(["q"], prefetch=2) if several else queue.consume(prefetch=2)
    with consumer as deliveries:
        held = [next(deliveries) for _ in range(2)]
        deliveries.prefetch = 5
        held += [next(deliveries) for _ in range(3)]
        assert (deliveries.prefetch, queue.stats().leased) == (5, 5)

        deliveries.prefetch = 1
        for delivery in held[:4]:
            delivery.ack()
        with ThreadPoolExecutor(1) as pool:  # it waits for room, which a higher limit makes
            waiting = pool.submit(next, deliveries)
            until(lambda: queue.stats().leased == 1)
            assert not waiting.done()
            deliveries.prefetch = 2
            held.append(waiting.result(PATIENCE))
        assert queue.stats().leased == 2
        with pytest.raises(InvalidInput, match="prefetch: expected"):
            deliveries.prefetch = 0
        held[-1].ack()
        held[-2].ack()


def test_a_released_delivery_is_back_at_once_and_was_no_failure(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_deliveries=1, redelivery_delay="1h")
    queue.enqueue(b"x")
    for _ in range(3):
        delivery = one(queue)
        delivery.release()
        assert (delivery.settled, delivery.delivery_count) == ("nack", 1)
    with pytest.raises(AlreadySettled):
        delivery.release()
    with queue.consume() as deliveries:
        next(deliveries).release()
        assert queue.stats().ready == 1
    assert dead(queue) == {}

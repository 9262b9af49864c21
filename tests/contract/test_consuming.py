"""The loop of `consume`: how much it asks for and when, and what it tells of acks that come too late."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
import redis

from rqttl import (
    AlreadySettled,
    Broker,
    CommandEvent,
    InvalidDuration,
    InvalidInput,
    LeaseLost,
    Message,
    QueueNotFound,
)
from rqttl.protocol.commands import Command, Reply
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked
from tests.contract.looks import bodies, one


def test_acks_go_with_the_next_fetch_in_one_call(broker: Broker) -> None:
    queue = broker.declare_queue("q")
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


def test_messages_come_in_order_and_each_once(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"%d" % i for i in range(500)])

    with queue.consume(prefetch=7, wait=0) as deliveries:
        handled = []
        for delivery in deliveries:
            with delivery:
                handled.append(int(delivery.body))

    assert handled == list(range(500))
    assert bodies(queue) == []


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"prefetch": 0}, InvalidInput),
        ({"prefetch": True}, InvalidInput),
        ({"prefetch": 251}, InvalidInput),
        ({"lease": 0}, InvalidDuration),
        ({"wait": -1}, InvalidDuration),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(broker: Broker, wrong: dict[str, Any], error: type[Exception]) -> None:
    queue = broker.declare_queue("q")

    with pytest.raises(error, match=next(iter(wrong))):
        queue.consume(**wrong)


def test_iterating_without_the_context_is_refused(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")

    with pytest.raises(InvalidInput, match="with"):
        next(queue.consume())

    assert queue.stats().ready == 1


def test_a_missing_queue_is_told_at_the_start(broker: Broker) -> None:
    with pytest.raises(QueueNotFound), broker.queue("missing").consume():
        pass


def test_a_queue_that_is_deleted_ends_the_loop_with_its_error(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")

    def run() -> None:
        with queue.consume(prefetch=1) as deliveries:
            for delivery in deliveries:
                queue.delete()
                delivery.ack()

    with pytest.raises(QueueNotFound):
        run()


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
    assert "the ack of mine was given up" in caplog.text


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


def test_a_delivery_of_a_loop_is_settled_once_too(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")

    with queue.consume(wait=0) as deliveries:
        for delivery in deliveries:
            delivery.ack()
            for again in (delivery.ack, delivery.nack, delivery.reject, delivery.renew):
                with pytest.raises(AlreadySettled):
                    again()


def test_nack_with_a_delay_and_reject_work_inside_the_loop(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d", lease="1h")
    queue.enqueue_many([b"later", b"bad", b"good"])

    with queue.consume(wait=0) as deliveries:
        for delivery in deliveries:
            with delivery:
                if delivery.body == b"later" and delivery.delivery_count == 1:
                    delivery.nack("1m")
                elif delivery.body == b"bad":
                    delivery.reject("bad")

    stats = queue.stats()
    assert (stats.acked, stats.delayed, stats.leased, stats.ready) == (1, 1, 0, 0)
    assert bodies(clocked.queue("d")) == [b"bad"]


def test_expired_messages_are_not_shown_however_long_they_waited_in_the_queue(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", message_ttl="100ms", lease="1h")
    queue.enqueue_many([b"1", b"2", b"3"])
    shown = []

    with queue.consume(prefetch=1, wait=0) as deliveries:
        for delivery in deliveries:
            with delivery:
                shown.append(delivery.body)
                clocked.advance(60)

    assert shown == [b"1", b"2"]


def test_an_outage_takes_time_by_the_clock_of_the_broker_only(
    clocked: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, store, began = clocked.declare_queue("q"), driver_of(clocked).store, clocked.now
    queue.enqueue(b"x")
    run = store.run

    def away(command: Command) -> Reply:
        if clocked.now < began + 3_000:
            raise redis.ConnectionError("gone")
        return run(command)

    with queue.consume(lease="30s") as deliveries:
        monkeypatch.setattr(store, "run", away)
        assert next(deliveries).body == b"x"

    assert clocked.now == began + 500 + 1_000 + 2_000

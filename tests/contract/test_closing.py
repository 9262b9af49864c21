"""A closed broker: later calls and current waits get one typed error, and no message is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rqttl import Broker, BrokerClosed, Policy, Queue, SweepEvent, WaitEvent
from rqttl.reaper import Reaper
from rqttl.store.driver import driver_of
from tests.conftest import FAKE
from tests.contract.looks import one
from tests.contract.test_waking import LONG, Waiters
from tests.unit.test_public_names import PUBLIC
from tests.waiting import PATIENCE

POLICY = Policy.read("p", "#", {"lease": "1m"})
#: One call of each method of a broker and of a queue that talks to Redis or makes a handle.
BROKER: dict[str, Callable[[Broker], object]] = {
    "declare_queue": lambda broker: broker.declare_queue("q"),
    "queue": lambda broker: broker.queue("q"),
    "queues": lambda broker: broker.queues(),
    "stats": lambda broker: broker.stats(),
    "stats of one": lambda broker: broker.stats(["q"]),
    "options": lambda broker: broker.options(),
    "reaper_count": lambda broker: broker.reaper_count(),
    "workers": lambda broker: broker.workers(),
    "server_time": lambda broker: broker.server_time(),
    "set_policy": lambda broker: broker.set_policy("p", "#", {"lease": "1m"}),
    "set_operator_policy": lambda broker: broker.set_operator_policy("p", "#", {"lease": "1m"}),
    "delete_policy": lambda broker: broker.delete_policy("p"),
    "delete_operator_policy": lambda broker: broker.delete_operator_policy("p"),
    "policies": lambda broker: broker.policies(),
    "operator_policies": lambda broker: broker.operator_policies(),
    "preview_policy": lambda broker: broker.preview_policy(POLICY),
    "check_policy": lambda broker: broker.check_policy(POLICY),
    "reconcile": lambda broker: broker.reconcile(),
    "explain": lambda broker: broker.explain("q"),
    "with": lambda broker: broker.__enter__(),
}
QUEUE: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda queue: queue.enqueue(b"x"),
    "enqueue_many": lambda queue: queue.enqueue_many([b"x"]),
    "receive": lambda queue: queue.receive(),
    "receive with a wait": lambda queue: queue.receive(wait=LONG),
    "receive_many": lambda queue: queue.receive_many(5),
    "run": lambda queue: queue.run(lambda _: None, wait="1ms"),
    "consume": lambda queue: queue.consume(),
    "peek": lambda queue: queue.peek(),
    "stats": lambda queue: queue.stats(),
    "options": lambda queue: queue.options(),
    "explain": lambda queue: queue.explain(),
    "update": lambda queue: queue.update(max_length=5),
    "preview_update": lambda queue: queue.preview_update(max_length=5),
    "touch": lambda queue: queue.touch(),
    "sweep": lambda queue: queue.sweep(),
    "purge": lambda queue: queue.purge(),
    "purge_many": lambda queue: queue.purge_many(["1700000000000-100000"]),
    "redrive": lambda queue: queue.redrive(),
    "redrive_many": lambda queue: queue.redrive_many([("1700000000000-100000", "other")]),
    "delete": lambda queue: queue.delete(),
}
SETTLE = ("ack", "nack", "reject", "renew")
#: What asks Redis nothing.
SILENT = {"close", "events", "interrupt", "observer"}


def test_no_method_is_forgotten() -> None:
    """Settling methods have a test of their own; `close`, `events`, `interrupt` and `observer` ask Redis nothing."""
    settling = {f"{how}_many" for how in SETTLE}

    assert {call.split()[0] for call in BROKER} - {"with"} == PUBLIC[Broker] - SILENT
    assert {call.split()[0] for call in QUEUE} == PUBLIC[Queue] - settling - {"broker", "declared", "name"}


@pytest.fixture
def other(broker: Broker) -> Iterator[Broker]:
    """A second broker on the same server, which stays open."""
    other = broker.connect() if FAKE else Broker(driver_of(broker).store.client)  # type: ignore[attr-defined]  # a fake one
    yield other
    other.close()


@pytest.mark.parametrize("call", BROKER)
def test_every_method_of_a_closed_broker_raises(broker: Broker, other: Broker, call: str) -> None:
    other.declare_queue("q")
    for set_policy in (other.set_policy, other.set_operator_policy):
        set_policy("p", "other", {"lease": "1m"})
    broker.close()

    with pytest.raises(BrokerClosed, match="the broker is closed") as refused:
        BROKER[call](broker)

    assert refused.value.code == "closed"
    if call != "reaper_count":
        BROKER[call](other)


@pytest.mark.parametrize("call", QUEUE)
def test_every_method_of_its_queues_raises(broker: Broker, other: Broker, call: str) -> None:
    queue = broker.declare_queue("q")
    broker.close()

    with pytest.raises(BrokerClosed):
        QUEUE[call](queue)

    assert (other.queues(), other.queue("q").stats().enqueued) == (["q"], 0)


@pytest.mark.parametrize("how", SETTLE)
def test_a_delivery_is_not_settled_any_more_and_comes_again(broker: Broker, other: Broker, how: str) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"x")
    delivery = one(queue)
    broker.close()

    with pytest.raises(BrokerClosed):
        getattr(delivery, how)()
    with pytest.raises(BrokerClosed):
        getattr(queue, f"{how}_many")([delivery])

    assert (delivery.settled, other.queue("q").stats().leased) == (None, 1)


def test_closing_twice_does_no_harm(broker: Broker) -> None:
    broker.declare_queue("q")

    broker.close()
    broker.close()
    with pytest.raises(BrokerClosed):
        broker.queues()


def test_a_broker_that_never_connected_can_be_closed(broker: Broker) -> None:
    broker.close()

    with pytest.raises(BrokerClosed):
        broker.queues()


def test_closing_ends_all_waits_with_it(broker: Broker) -> None:
    queue = broker.declare_queue("q")

    with ThreadPoolExecutor(3) as pool:
        waiting = Waiters(broker, pool).start(queue, 3)
        broker.close()

        assert [type(one.exception(timeout=PATIENCE)) for one in waiting] == [BrokerClosed] * 3


def test_closing_ends_a_consumer_that_waits_and_what_it_has_not_sent_comes_again(broker: Broker, other: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"1", b"2"])
    held, blocked, before = threading.Semaphore(0), threading.Event(), threading.enumerate()

    def consume() -> None:
        with queue.consume(prefetch=3) as deliveries:
            for _ in deliveries:
                held.release()

    broker.events.subscribe(lambda _: blocked.set(), WaitEvent)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(consume)
        for _ in range(2):
            assert held.acquire(timeout=PATIENCE)
        assert blocked.wait(PATIENCE)
        broker.close()
        error = ended.exception(timeout=PATIENCE)

    assert type(error) is BrokerClosed
    assert not isinstance(error.__context__, BrokerClosed)  # the way out of the loop says nothing of its own
    assert other.queue("q").stats().leased == 2
    left = [thread for thread in threading.enumerate() if thread not in before]  # earlier ones may still be ending
    assert [thread.name for thread in left if thread.name == "rqttl-renewer-q"] == []


def test_a_consumer_hands_out_nothing_and_takes_no_ack_after_that(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"1", b"2", b"3"])

    deliveries = queue.consume().__enter__()
    delivery = next(deliveries)
    broker.close()

    for call in (delivery.ack, lambda: next(deliveries), lambda: deliveries.release(delivery), deliveries.close):
        with pytest.raises(BrokerClosed):
            call()
    assert delivery.settled is None


def test_the_error_of_a_handler_is_not_hidden_by_a_closed_broker(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue(b"1")

    def work() -> Any:
        with queue.consume() as deliveries:
            next(deliveries)
            broker.close()
            raise KeyError("of the handler")

    with pytest.raises(KeyError, match="of the handler"):
        work()


def test_closing_ends_a_consumer_that_waits_for_room(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    queue.enqueue_many([b"1", b"2"])
    full = threading.Event()

    def consume() -> None:
        with queue.consume(prefetch=1) as deliveries:
            held = next(deliveries)
            full.set()
            next(deliveries)
            held.ack()

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(consume)
        assert full.wait(PATIENCE)
        broker.close()

        assert type(ended.exception(timeout=PATIENCE)) is BrokerClosed


def test_closing_ends_a_run_with_it(broker: Broker) -> None:
    queue = broker.declare_queue("q")
    waits = threading.Event()
    broker.events.subscribe(lambda _: waits.set(), WaitEvent)

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: queue.run(lambda _: None, threads=2))
        assert waits.wait(PATIENCE)
        broker.close()

        assert type(ended.exception(timeout=PATIENCE)) is BrokerClosed


@pytest.mark.skipif(FAKE, reason="a reaper runs on a server only")
def test_closing_ends_a_reaper_that_sleeps(broker: Broker) -> None:
    broker.declare_queue("q")
    asleep = threading.Event()
    broker.events.subscribe(lambda _: asleep.set(), SweepEvent)
    reaper = Reaper(broker, scan_period="1h")

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(reaper.run)
        assert asleep.wait(PATIENCE)
        broker.close()

        assert type(ended.exception(timeout=PATIENCE)) is BrokerClosed

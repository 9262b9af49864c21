"""Idle consumers take arriving messages before a TTL of 0 or a limit acts: more wait than messages are ready."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rqttl import Broker, Message, Queue, WaitEvent
from rqttl.flows.steps import Step, WaitForWakeup
from rqttl.store.driver import driver_of
from tests.contract.test_waking import Waiters, result
from tests.waiting import PATIENCE

LONG = "10m"


@pytest.fixture
def waiters(broker: Broker) -> Iterator[Waiters]:
    with ThreadPoolExecutor(8) as pool:
        yield Waiters(broker, pool)
        for name in broker.queues():  # a consumer that still waits, because a test has failed, finds no queue then
            broker.queue(name).delete()


class Held:
    """Keeps consumers back between their wake-up and their look, as a slow network would."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        driver = driver_of(broker)
        step = driver.step
        self.heard = threading.Semaphore(0)
        self.go_on = threading.Event()

        def carry_out(one: Step) -> Any:
            answer = step(one)
            if type(one) is WaitForWakeup and answer is not None:
                self.heard.release()
                assert self.go_on.wait(PATIENCE)
            return answer

        monkeypatch.setattr(driver, "step", carry_out)

    def wait(self) -> None:
        """Return when one more consumer was woken; it has not looked yet."""
        assert self.heard.acquire(timeout=PATIENCE)


@pytest.fixture
def held(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(broker, monkeypatch)
    yield held
    held.go_on.set()


def bodies(waiting: list[Any]) -> list[bytes]:
    return sorted(result(one).body for one in waiting)


def send(queue: Queue, held: Held) -> None:
    """A message that one of two consumers is woken for, and has not fetched."""
    queue.enqueue(b"first")
    held.wait()


def test_a_message_with_ttl_zero_goes_to_the_second_while_the_first_one_fetches(
    broker: Broker, waiters: Waiters, held: Held
) -> None:
    queue = broker.declare_queue("q")
    waiting = waiters.start(queue, 2)
    send(queue, held)

    receipt = queue.enqueue(b"now", ttl=0)
    held.go_on.set()

    assert not receipt.expired
    assert bodies(waiting) == [b"first", b"now"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
@pytest.mark.parametrize("limit", [0, 1])
def test_a_limit_does_not_act_while_more_wait_than_are_ready(
    broker: Broker, waiters: Waiters, held: Held, overflow: Any, limit: int
) -> None:
    queue = broker.declare_queue("q", max_length=limit, overflow=overflow)
    waiting = waiters.start(queue, 2)
    send(queue, held)

    queue.enqueue(b"second")
    held.go_on.set()

    assert bodies(waiting) == [b"first", b"second"]
    assert (queue.stats().deaths["maxlen"], queue.stats().refused) == (0, 0)


def test_no_more_is_handed_over_than_consumers_wait_though_all_have_taken_their_tickets(
    broker: Broker, waiters: Waiters, held: Held
) -> None:
    queue = broker.declare_queue("q")
    waiting = waiters.start(queue, 2)
    for body in (b"1", b"2"):
        queue.enqueue(body, ttl=0)
        held.wait()

    receipt = queue.enqueue(b"3", ttl=0)
    held.go_on.set()

    assert receipt.expired
    assert bodies(waiting) == [b"1", b"2"]


def test_in_one_batch_each_of_those_that_wait_gets_one_in_order(broker: Broker, waiters: Waiters) -> None:
    queue = broker.declare_queue("q", max_length=1, overflow="reject-publish")
    waiting = waiters.start(queue, 3)

    receipts = queue.enqueue_many([b"1", b"2", Message(b"3", ttl=0), b"4"])

    assert bodies(waiting) == [b"1", b"2", b"3"]
    assert [one.body for one in queue.peek() if one.state == "ready"] == [b"4"]
    assert len(receipts) == 4


def test_a_consumer_at_the_end_of_its_wait_counts_until_it_has_looked(
    broker: Broker, waiters: Waiters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of a block and the look that follows there is a round trip."""
    queue = broker.declare_queue("q")
    driver = driver_of(broker)
    step = driver.step
    over, sent = threading.Event(), threading.Event()

    def carry_out(one: Step) -> Any:
        answer = step(one)
        if type(one) is WaitForWakeup and answer is None and not over.is_set():
            over.set()
            assert sent.wait(PATIENCE)
        return answer

    monkeypatch.setattr(driver, "step", carry_out)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.receive, wait="50ms")
        assert over.wait(PATIENCE)
        receipt = queue.enqueue(b"now", ttl=0)
        sent.set()

        assert not receipt.expired
        assert result(waiting).body == b"now"


def test_run_waits_on_while_threads_are_idle(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that finds a message for one thread is followed by another one for the rest."""
    queue = broker.declare_queue("q")
    handled: list[bytes] = []
    blocking, fetched, sent, stop = (threading.Event() for _ in range(4))
    broker.events.subscribe(lambda name: blocking.set(), WaitEvent)
    driver = driver_of(broker)
    step = driver.step

    def carry_out(one: Step) -> Any:
        answer = step(one)
        if getattr(getattr(one, "script", None), "name", "") == "receive" and answer[7] and not fetched.is_set():
            fetched.set()
            assert sent.wait(PATIENCE)
        return answer

    def handle(delivery: Any) -> None:
        handled.append(delivery.body)
        if len(handled) == 2:
            stop.set()

    monkeypatch.setattr(driver, "step", carry_out)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(queue.run, handle, threads=2, wait="1m", stop=stop)
        assert blocking.wait(PATIENCE)
        queue.enqueue(b"first")
        assert fetched.wait(PATIENCE)
        receipt = queue.enqueue(b"now", ttl=0)
        sent.set()
        counts = running.result(timeout=PATIENCE)

    assert not receipt.expired
    assert (sorted(handled), counts.handled) == ([b"first", b"now"], 2)

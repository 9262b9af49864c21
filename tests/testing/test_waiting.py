"""Waiting on a fake broker: no time passes but the clock's, and every wait ends."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rqttl import Delivery, Queue, WaitEvent
from rqttl.testing import FakeBroker, WaitWouldNeverEnd
from tests.contract.clocked import at
from tests.waiting import PATIENCE

# In the thread of the test


@pytest.mark.parametrize("wait, ms", [("0", 0), ("1ms", 1), ("7s", 7_000), ("1h", 3_600_000), ("52w", 31_449_600_000)])
def test_a_wait_in_vain_takes_its_time_by_the_clock_only(fake: FakeBroker, wait: str, ms: int) -> None:
    queue = fake.declare_queue("q")

    assert queue.receive(wait=wait) is None

    assert fake.clock.now == at(ms)
    assert queue.stats().consumers == 0


def test_a_wait_hears_what_is_sent_meanwhile(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q")

    def send(wait: WaitEvent) -> None:
        queue.enqueue(wait.queue.encode())

    fake.events.subscribe(send, WaitEvent)
    delivery = queue.receive(wait="1h")

    assert delivery is not None
    assert (delivery.body, fake.clock.now) == (b"q", at(0))


# Without an end


def test_an_endless_loop_handles_all_there_will_be_and_says_that_nothing_is_left(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q", max_deliveries=3)
    queue.enqueue_many([b"good", b"bad"])
    handled: list[bytes] = []

    def work() -> None:
        with queue.consume() as deliveries:
            for delivery in deliveries:
                handled.append(delivery.body)
                if delivery.body == b"bad":
                    delivery.nack(delay="10m")
                else:
                    delivery.ack()

    with pytest.raises(WaitWouldNeverEnd, match=r"'q'.*`wait`") as raised:
        work()

    assert raised.value.queue == "q"
    assert handled == [b"good", b"bad", b"bad", b"bad"]
    stats = queue.stats()
    assert (stats.acked, stats.deaths["delivery_limit"], stats.leased) == (1, 1, 0)
    assert fake.clock.now >= at(1_200_000)


def test_an_endless_loop_that_a_listener_stops_or_feeds_is_fine(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q")
    sent = iter(range(3))
    handled = []

    def listen(_: WaitEvent) -> None:
        number = next(sent, None)
        if number is None:
            deliveries.stop()
        else:
            queue.enqueue(number)

    with queue.consume() as deliveries:
        fake.events.subscribe(listen, WaitEvent)
        for delivery in deliveries:
            with delivery:
                handled.append(delivery.decode())

    assert handled == [0, 1, 2]


def test_an_endless_loop_that_settles_nothing_ends_too(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q")
    queue.enqueue(b"x")

    with queue.consume() as deliveries:
        kept = next(deliveries)
        with pytest.raises(WaitWouldNeverEnd):
            next(deliveries)
        kept.ack()

    assert (deliveries.lost, queue.stats().acked) == ([], 1)


# In other threads


class Others:
    """Threads that wait; they tell when they do."""

    def __init__(self, fake: FakeBroker, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._waiting = threading.Semaphore(0)
        fake.events.subscribe(lambda _: self._waiting.release(), WaitEvent)

    def receive(self, queue: Queue, wait: str) -> Future[Delivery | None]:
        """Let another thread wait; returns when it does."""
        return self.do(lambda: queue.receive(wait=wait))

    def do(self, work: Any) -> Future[Any]:
        future = self._pool.submit(work)
        assert self._waiting.acquire(timeout=PATIENCE)
        return future


@pytest.fixture
def others(fake: FakeBroker) -> Iterator[Others]:
    with ThreadPoolExecutor(4) as pool:
        yield Others(fake, pool)
        fake.interrupt()


def test_another_thread_notices_that_the_clock_has_passed_the_end_of_its_wait(fake: FakeBroker, others: Others) -> None:
    waiting = others.receive(fake.declare_queue("q"), "1d")

    fake.clock.advance("1d")

    assert waiting.result(timeout=PATIENCE) is None

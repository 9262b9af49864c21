"""`queue.run`: acks, retries with back-off, its end, and handlers that it refuses. Signals: tests/process."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rqttl import Broker, Delivery, InvalidDuration, InvalidInput, Queue, QueueNotFound, Reject, Retry, RunCounts
from rqttl.runner import Runner
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked, at
from tests.contract.handling import Renewals, fail, forget
from tests.contract.looks import dead, ready
from tests.contract.test_waking import Waiters
from tests.waiting import PATIENCE, until


@pytest.mark.parametrize("threads", [1, 3])
def test_every_message_is_handled_once_and_acked(queue: Queue, threads: int) -> None:
    queue.enqueue_many([b"%d" % i for i in range(100)])
    handled: list[int] = []

    counts = queue.run(lambda delivery: handled.append(int(delivery.body)), threads, wait="0s")

    assert sorted(handled) == list(range(100))
    assert counts == RunCounts(handled=100, failed=0, lost=0)
    stats = queue.stats()
    assert (stats.acked, stats.ready, stats.leased, stats.consumers) == (100, 0, 0, 0)


def test_one_thread_is_the_one_that_calls_and_keeps_the_order(queue: Queue) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])
    handled: list[tuple[bytes, bool]] = []

    queue.run(lambda d: handled.append((d.body, threading.current_thread() is threading.main_thread())), wait="0s")

    assert handled == [(b"1", True), (b"2", True), (b"3", True)]


def test_as_many_handlers_work_at_once_as_there_are_threads(queue: Queue) -> None:
    queue.enqueue_many([b"x"] * 8)
    together = threading.Barrier(4)

    counts = queue.run(lambda _: together.wait(PATIENCE), 4, wait="0s")

    assert counts.handled == 8


def test_no_more_messages_are_begun_than_there_are_threads(queue: Queue, pool: ThreadPoolExecutor) -> None:
    queue.enqueue_many([b"x"] * 8)
    begun, go_on, stop = threading.Semaphore(0), threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        begun.release()
        assert go_on.wait(PATIENCE)

    running = pool.submit(queue.run, handle, 2, prefetch=8, stop=stop)
    assert begun.acquire(timeout=PATIENCE)
    assert begun.acquire(timeout=PATIENCE)
    stop.set()
    until(lambda: queue.stats().ready == 6)
    go_on.set()

    assert running.result(timeout=PATIENCE) == RunCounts(2, 0, 0)
    assert [again.delivery_count for again in queue.receive_many(8)] == [1] * 6


@pytest.mark.parametrize("threads", [1, 2])
def test_slow_handlers_keep_their_leases(clocked: Clocked, threads: int) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue_many([b"x"] * threads)
    renewals = Renewals(clocked)
    turn = threading.Lock()

    def handle(delivery: Delivery) -> None:
        with turn:
            renewals.outlast(clocked, delivery, 600)

    assert queue.run(handle, threads, lease="600ms", wait="0s") == RunCounts(threads, 0, 0)
    assert queue.stats().redelivered == 0


def test_a_handler_may_settle_itself(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"ack", b"nack", b"reject"])

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"ack":
            delivery.ack()
        elif delivery.body == b"nack":
            delivery.nack("1m")
        else:
            delivery.reject("no")

    assert queue.run(handle, wait="0s") == RunCounts(3, 0, 0)
    stats = queue.stats()
    assert (stats.acked, stats.delayed, stats.deaths["rejected"], stats.leased) == (1, 1, 1, 0)
    assert stats.next_delay_end == at(60_000)


# Failing


def test_a_failure_is_logged_with_its_traceback_and_the_next_message_is_handled(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    queue = clocked.declare_queue("q", redelivery_delay="2s")
    queue.enqueue(b"bad", id="order-17")
    queue.enqueue(b"good")

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"bad":
            raise LookupError("no such table")

    assert queue.run(handle, wait="0s") == RunCounts(handled=1, failed=1, lost=0)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("rqttl.run", "WARNING")
    assert record.getMessage() == (
        "queue q: message order-17 failed, again after its redelivery_delay (delivery 1): LookupError: no such table"
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)
    assert queue.stats().delayed == 1


def test_the_log_tells_what_happens_next_to_a_message(clocked: Clocked, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    queue = clocked.declare_queue("q", max_deliveries=2, dead_letter="{queue}/dead")
    queue.enqueue(b"fail", id="f")
    queue.enqueue(b"reject", id="r")
    queue.enqueue(b"retry", id="t")

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"reject":
            raise Reject("not mine")
        raise RuntimeError("broken") if delivery.body == b"fail" else Retry("1m", "later")

    queue.run(handle, wait="1h")

    assert [re.sub(r"in [01]\.\d s", "in a second", record.getMessage()) for record in caplog.records] == [
        "queue q: message f failed, again in a second (1 of 2): RuntimeError: broken",
        "queue q: message r rejected: not mine (dead letter in q/dead)",
        "queue q: message f gave up: dead letter in q/dead (2 of 2): RuntimeError: broken",
        "queue q: message t gave up: dead letter in q/dead (2 of 2): later",
    ]


def test_pauses_double_from_one_second_to_ten_minutes_and_vary_a_little(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"poison")
    pauses = []

    for chance in (0.0, 0.0, 1.0, 0.5, *[0.0] * 8):
        began = clocked.now
        Runner(driver_of(queue), queue.name, fail, wait="0s", chance=lambda chance=chance: chance).run()  # type: ignore[misc]  # bound at once
        ends = queue.stats().next_delay_end
        assert ends is not None
        pauses.append(round(ends.timestamp() * 1000) - began)
        clocked.advance(pauses[-1])

    assert pauses == [1_000, 2_000, 3_000, 7_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 600_000, 600_000]


def test_a_handler_that_gave_back_or_rejected_before_it_failed_has_decided(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", dead_letter="d")
    queue.enqueue_many([b"nack", b"reject"])

    def handle(delivery: Delivery) -> None:
        delivery.nack("1h") if delivery.body == b"nack" else delivery.reject("no")
        raise RuntimeError

    assert queue.run(handle, wait="0s") == RunCounts(0, 2, 0)
    assert queue.stats().next_delay_end == at(3_600_000)
    assert dead(queue) == {"rejected": 1}


def test_a_lease_that_ended_under_the_handler_is_logged_and_counted(
    clocked: Clocked, caplog: pytest.LogCaptureFixture
) -> None:
    queue = clocked.declare_queue("q", lease="30s")
    queue.enqueue_many([b"acked", b"failed", b"fine"])
    handled: list[bytes] = []

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)
        if delivery.delivery_count == 1 and delivery.body != b"fine":
            clocked.advance(30_000)
            if delivery.body == b"failed":
                raise RuntimeError

    counts = queue.run(handle, prefetch=1, wait="0s")

    assert handled == [b"acked", b"acked", b"failed", b"failed", b"fine"]
    assert counts == RunCounts(handled=4, failed=1, lost=2)
    assert "lease" in caplog.text
    assert queue.stats().acked == 3


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_base_exception_gives_the_message_back_and_ends_the_run(
    queue: Queue, kind: type[BaseException], threads: int
) -> None:
    queue.enqueue_many([b"fatal", b"next"])

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"fatal":
            raise kind

    with pytest.raises(kind):
        queue.run(handle, threads, prefetch=2)

    assert [shown.description for shown in queue.peek() if shown.body == b"fatal"] == [kind.__name__]
    counts = {again.body: again.delivery_count for again in queue.receive_many(3)}
    assert counts[b"fatal"] == 2
    assert counts.get(b"next", 1) == 1
    assert queue.stats().consumers == 0


def test_a_run_with_nothing_to_do_ends_after_its_wait(clocked: Clocked) -> None:
    assert clocked.declare_queue("q").run(fail, wait="1h") == RunCounts(0, 0, 0)
    assert clocked.clock.now == at(3_600_000)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_event_stops_a_run_that_waits(broker: Broker, queue: Queue, pool: ThreadPoolExecutor, threads: int) -> None:
    stop = threading.Event()
    waiters = Waiters(broker, pool)
    (running,) = waiters.start(queue, how=lambda: queue.run(forget, threads, stop=stop))

    stop.set()

    assert running.result(timeout=PATIENCE) == RunCounts(0, 0, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_may_end_the_run_that_called_it(queue: Queue, threads: int) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])
    stop, free, begun = threading.Event(), threading.Event(), threading.Barrier(threads)

    def handle(delivery: Delivery) -> None:
        begun.wait(PATIENCE)
        if delivery.body == b"1":
            stop.set()
            until(lambda: queue.stats().ready == 3 - threads)
            free.set()
        assert free.wait(PATIENCE)

    assert queue.run(handle, threads, prefetch=3, stop=stop) == RunCounts(threads, 0, 0)
    assert len(ready(queue)) == 3 - threads


def test_a_queue_that_is_deleted_ends_the_run_with_its_error_after_the_handlers(queue: Queue) -> None:
    queue.enqueue_many([b"1", b"2"])
    both, done = threading.Barrier(2), []

    def handle(delivery: Delivery) -> None:
        both.wait(PATIENCE)
        if delivery.body == b"1":
            queue.delete()
        done.append(delivery.body)

    with pytest.raises(QueueNotFound):
        queue.run(handle, 2, prefetch=2)
    assert sorted(done) == [b"1", b"2"]


def test_a_missing_queue_is_told_at_once(broker: Broker) -> None:
    with pytest.raises(QueueNotFound):
        broker.queue("missing").run(fail)


# Bad input


async def coroutine(_: Delivery) -> None:
    """Do nothing."""


def generator(_: Delivery) -> Iterator[int]:
    yield 1


class Called:
    async def __call__(self, _: Delivery) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    "handler",
    [None, 7, coroutine, generator, functools.partial(coroutine), Called()],
    ids=["none", "number", "coroutine", "generator", "partial", "object"],
)
def test_a_handler_whose_work_would_not_be_done_is_refused(queue: Queue, handler: Any) -> None:
    queue.enqueue(b"x")

    with pytest.raises(InvalidInput, match="handler: expected"):
        queue.run(handler, wait="0s")

    assert queue.stats().ready == 1


def test_a_handler_that_returns_a_coroutine_has_failed(clocked: Clocked, caplog: pytest.LogCaptureFixture) -> None:
    queue = clocked.declare_queue("q")
    queue.enqueue(b"x")
    made: list[Any] = []

    def handle(delivery: Delivery) -> object:
        made.append(coroutine(delivery))
        return made[0]

    assert queue.run(handle, wait="0s") == RunCounts(0, 1, 0)
    made[0].close()
    assert "that nobody awaited: make it async def" in caplog.text


@pytest.mark.parametrize(
    "wrong, error",
    [
        ({"threads": 0}, InvalidInput),
        ({"threads": True}, InvalidInput),
        ({"threads": 251}, InvalidInput),
        ({"threads": "2"}, InvalidInput),
        ({"prefetch": 0}, InvalidInput),
        ({"prefetch": 251}, InvalidInput),
        ({"prefetch": 3, "threads": 4}, InvalidInput),
        ({"prefetch": 1.5}, InvalidInput),
        ({"lease": "0s"}, InvalidDuration),
        ({"wait": "soon"}, InvalidDuration),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_by_name(queue: Queue, wrong: dict[str, Any], error: type[Exception]) -> None:
    queue.enqueue(b"x")

    with pytest.raises(error, match=next(iter(wrong))):
        queue.run(forget, **wrong)

    assert queue.stats().ready == 1

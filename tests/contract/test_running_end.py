"""The end of `queue.run`, and the arguments that it refuses."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rqttl import Broker, Delivery, InvalidDuration, InvalidInput, Queue, QueueNotFound, RunCounts
from tests.contract.clocked import Clocked, at
from tests.contract.handling import fail, forget
from tests.contract.looks import one, ready
from tests.contract.test_waking import Waiters
from tests.waiting import PATIENCE, until


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


def test_an_event_that_is_set_already_lets_nothing_begin(queue: Queue) -> None:
    queue.enqueue(b"x")
    stop = threading.Event()
    stop.set()

    assert queue.run(fail, stop=stop) == RunCounts(0, 0, 0)
    assert one(queue).delivery_count == 1


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

"""Handlers: `queue.run`, decisions by an exception, pauses and the errors of messages. Signals: tests/process."""

import functools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rqttl import (
    Broker,
    CommandEvent,
    Delivery,
    InvalidDuration,
    InvalidInput,
    Queue,
    QueueNotFound,
    Reject,
    Release,
    Retry,
    RunCounts,
)
from rqttl.consuming.handling import HandlerRun
from rqttl.delivery import Decision
from rqttl.testing import dead_letters
from tests.contract.clocked import START, Clocked, at
from tests.contract.looks import Renewals, dead, description, fail, forget, one, ready
from tests.contract.test_waking import Waiters
from tests.waiting import PATIENCE, Gate, until


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


def test_as_many_handlers_work_at_once_as_there_are_threads_and_no_more(queue: Queue, pool: ThreadPoolExecutor) -> None:
    queue.enqueue_many([b"x"] * 8)
    gate, stop = Gate(), threading.Event()

    running = pool.submit(queue.run, gate, 2, prefetch=8, stop=stop)
    gate.reached(2)
    stop.set()
    until(lambda: queue.stats().ready == 6)
    gate.open()

    assert running.result(timeout=PATIENCE) == RunCounts(2, 0, 0)
    assert [again.delivery_count for again in queue.receive_many(8)] == [1] * 6


@pytest.mark.parametrize("threads", [1, 2])
def test_slow_handlers_keep_their_leases(clocked: Clocked, queue: Queue, threads: int) -> None:
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
    caplog.set_level(logging.INFO)
    queue = clocked.declare_queue("q", max_deliveries=2, dead_letter="{queue}/dead")
    queue.enqueue(b"fail", id="f")
    queue.enqueue(b"reject", id="r")
    queue.enqueue(b"retry", id="t")

    def handle(delivery: Delivery) -> None:
        if delivery.body == b"reject":
            raise Reject("not mine")
        raise RuntimeError("broken") if delivery.body == b"fail" else Retry("40ms", "later")

    queue.run(handle, wait="1h")
    clocked.declare_queue("gone", max_deliveries=1).enqueue(b"fail", id="g")
    clocked.queue("gone").run(handle, wait="0s")

    assert [re.sub(r"in [01]\.\d s", "in a second", record.getMessage()) for record in caplog.records] == [
        "queue q: message f failed, again in a second (1 of 2): RuntimeError: broken",
        "queue q: message r rejected: not mine (dead letter in q/dead)",
        "queue q: message t failed, again in 40 ms (1 of 2): later",
        "queue q: message t given up: dead letter in q/dead (2 of 2): later",
        "queue q: message f given up: dead letter in q/dead (2 of 2): RuntimeError: broken",
        "queue gone: message g given up: the queue has no dead_letter (1 of 1): RuntimeError: broken",
    ]


def test_delays_double_from_one_second_to_ten_minutes_and_vary_a_little(
    clocked: Clocked, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(b"poison")
    delays = []

    for chance in (0.0, 0.0, 1.0, 0.5, *[0.0] * 8):
        began = clocked.now
        monkeypatch.setattr("random.random", lambda chance=chance: chance)
        queue.run(fail, wait="0s")
        ends = queue.stats().next_delay_end
        assert ends is not None
        delays.append(round(ends.timestamp() * 1000) - began)
        clocked.advance(delays[-1])

    assert delays == [1_000, 2_000, 3_000, 7_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 600_000, 600_000]


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


def test_a_message_whose_handler_ends_the_run_is_not_handled_by_it_once_more(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue(b"fatal")
    calls, count = list[Delivery](), HandlerRun.count

    def handle(delivery: Delivery) -> None:
        calls.append(delivery)
        raise SystemExit

    def late(*arguments: Any) -> None:
        """Let the run do what it does meanwhile: end the other thread, or give it the message."""
        until(lambda: len(calls) > 1 or [one.name for one in threading.enumerate()].count("rqttl-run-q") == 1)
        count(*arguments)

    monkeypatch.setattr(HandlerRun, "count", late)
    with pytest.raises(SystemExit):
        queue.run(handle, 2, prefetch=2)

    assert len(calls) == 1


def test_a_base_exception_of_a_handler_comes_before_an_error_of_the_run(broker: Broker, queue: Queue) -> None:
    queue.enqueue_many([b"delete", b"fatal"])
    both, deleted, this = threading.Barrier(2), threading.Event(), threading.current_thread()

    def listen(event: CommandEvent) -> None:
        if event.outcome == "not_found" and threading.current_thread() is this:
            deleted.set()

    broker.events.subscribe(listen, CommandEvent)

    def handle(delivery: Delivery) -> None:
        both.wait(PATIENCE)
        if delivery.body == b"delete":
            queue.delete()
        else:
            assert deleted.wait(PATIENCE)
            raise SystemExit

    with pytest.raises(SystemExit):
        queue.run(handle, 2, prefetch=2)


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


def test_a_handler_that_returns_a_coroutine_has_failed(
    clocked: Clocked, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
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


def work(decision: Decision) -> None:
    """A part of a handler that decides."""
    raise decision


def decide(broker: Broker, decision: Decision) -> Delivery:
    queue = broker.declare_queue("q", dead_letter="dead", max_deliveries=5)
    queue.enqueue(b"x", id="1")
    delivery = one(queue)
    with delivery:
        work(decision)
    return delivery


@pytest.mark.parametrize("text", ["no such item", "é" * 5_000, "a" + "\udcff" * 5_000, "name \udcff"])
def test_a_rejection_ends_with_the_block_and_is_a_death_whatever_its_words(broker: Broker, text: str) -> None:
    assert decide(broker, Reject(text)).settled == "reject"

    [letter] = broker.queue("dead").peek()
    description = letter.deaths[0].description or ""
    assert text.encode(errors="backslashreplace").decode().startswith(description)
    assert (letter.deaths[0].reason, len(description.encode()) > min(4_090, len(text) - 1)) == ("rejected", True)


@pytest.mark.parametrize("decision", [Reject, lambda words: Retry("1s", words)])
def test_a_description_that_is_no_text_is_refused_where_it_is_written(decision: Callable[[object], Decision]) -> None:
    with pytest.raises(InvalidInput, match="description: expected text, got ValueError"):
        decision(ValueError("no such item"))


def test_a_run_honours_decisions_and_counts_only_retries_as_failed(broker: Broker) -> None:
    queue = broker.declare_queue("q", dead_letter="dead")
    queue.enqueue_many([b"reject", b"retry", b"done"])
    decisions = {b"reject": Reject("no"), b"retry": Retry("1h", "sold out")}

    def handle(delivery: Delivery) -> None:
        if delivery.body in decisions:
            work(decisions[delivery.body])

    counts = queue.run(handle, wait=0)

    assert (counts.handled, counts.failed) == (2, 1)
    assert (queue.stats().acked, queue.stats().delayed, queue.stats().deaths["rejected"]) == (1, 1, 1)
    assert description(queue) == "sold out"


def test_a_release_counts_as_no_failure(broker: Broker) -> None:
    decide(broker, Release())

    assert one(broker.queue("q")).delivery_count == 1


def fail_with(delivery: Delivery, error: BaseException) -> None:
    """A handler fails."""
    with pytest.raises(type(error)), delivery:
        raise error


def pauses(clocked: Clocked, queue: Queue, how: str, times: int) -> list[int]:
    """Let the only message fail so many times. Returns for how many ms it was away after each failure."""
    found = []
    delivery = one(queue)
    for _ in range(times):
        if how == "nack":
            delivery.nack()
        elif how == "with":
            fail_with(delivery, ValueError("no"))
        else:
            clocked.advance(1_000)  # the lease
        failed = clocked.now
        again = one(queue, wait="10d")
        found.append(clocked.now - failed)
        delivery = again
    return found


@pytest.mark.parametrize("how", ["nack", "with", "lease"])
def test_pauses_grow_with_each_failed_delivery_up_to_the_longest(clocked: Clocked, how: str) -> None:
    queue = clocked.declare_queue(
        "q", lease="1s", redelivery_delay="1s", redelivery_multiplier=2.5, redelivery_max_delay="10s"
    )
    queue.enqueue(b"x")

    assert pauses(clocked, queue, how, 5) == [1_000, 2_500, 6_250, 10_000, 10_000]


@pytest.mark.parametrize("delay, ms", [("30s", 30_000), (0, 0)])
def test_a_delay_of_the_handler_goes_before_the_pause_of_the_queue(clocked: Clocked, delay: Any, ms: int) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s")
    queue.enqueue(b"x")

    one(queue).nack(delay=delay)

    assert one(queue, wait="1h").delivery_count == 2
    assert clocked.now == START + ms


@pytest.mark.spec("S-042")
def test_an_uncounted_return_makes_no_pause_and_cannot_be_described(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s", max_deliveries=1)
    queue.enqueue(b"x")
    delivery = one(queue)

    with pytest.raises(InvalidInput, match=r"^description: expected none with counted=False"):
        queue.nack_many([delivery], counted=False, description="why")
    queue.nack_many([delivery], counted=False)

    assert one(queue).delivery_count == 1


@pytest.mark.spec("TTL-38")
def test_a_message_that_pauses_expires_at_its_deadline(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", redelivery_delay="10s", dead_letter="d")
    queue.enqueue(b"x", ttl="3s")
    one(queue).nack(description="no")

    assert queue.receive(wait="1h") is None
    (letter,) = dead_letters(queue)
    assert (letter.deaths[0].reason, letter.deaths[0].description) == ("expired", None)
    assert (letter.deaths[0].last_at, letter.deaths[0].delivery_count) == (letter.deaths[0].expires_at, 1)


def test_a_message_that_failed_too_often_says_its_last_error(clocked: Clocked) -> None:
    queue = clocked.declare_queue("q", max_deliveries=3, dead_letter="d")
    queue.enqueue(b"x")

    for left in (2, 1, 0):
        fail_with(one(queue), OSError(f"{left} cups left"))

    (letter,) = dead_letters(queue, "delivery_limit")
    assert (letter.deaths[0].description, letter.deaths[0].delivery_count) == ("OSError: 0 cups left", 3)


def test_the_last_error_of_a_message_is_shown_until_it_is_settled(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"x")
    assert description(queue) is None

    fail_with(one(queue), ValueError("first"))
    assert description(queue) == "ValueError: first"
    one(queue).nack(description="second")
    assert description(queue) == "second"
    one(queue).nack()
    assert description(queue) == "second"

    one(queue).ack()
    queue.enqueue(b"x")
    assert description(queue) is None


def test_a_consumer_keeps_the_error_too(clocked: Clocked, queue: Queue) -> None:
    queue.enqueue(b"x")

    with queue.consume(wait=0) as deliveries:
        fail_with(next(deliveries), OSError("disk full"))

    assert description(queue) == "OSError: disk full"

"""Waiting without polling, waking, and ending waits from outside; idle consumers come before a TTL of 0 or a limit."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import pytest
import redis

from rqttl import AlreadySettled, Broker, CommandEvent, Delivery, Message, Queue, QueueNotFound, Receipt, WaitEvent
from rqttl.consuming.base import Session, SharedSession
from rqttl.flows.steps import ENDED, Flow, WaitForWakeup
from rqttl.runtime.interrupt import Interrupt
from rqttl.store.driver import driver_of
from tests.conftest import FAKE
from tests.contract.clocked import START, Clocked
from tests.contract.looks import bodies, one
from tests.contract.test_control import HOUR, found, look, rings
from tests.drivers import redis_of
from tests.waiting import PATIENCE, until

LONG = "10m"  # much longer than a test may take: a consumer that gets a message was woken


class Waiters:
    """Consumers in threads that wait on one queue; they tell when they block."""

    def __init__(self, broker: Broker, pool: ThreadPoolExecutor) -> None:
        self.broker = broker
        self.pool = pool
        self._blocking = threading.Semaphore(0)
        broker.events.subscribe(lambda queue: self._blocking.release(), WaitEvent)

    def start(self, queue: Queue, count: int = 1, how: Callable[[], Any] | None = None) -> list[Future[Any]]:
        """Let so many consumers wait; returns when all of them block."""
        futures = [self.pool.submit(how or (lambda: queue.receive(wait=LONG))) for _ in range(count)]
        self.settle(count)
        return futures

    def settle(self, count: int) -> None:
        """Return when `count` more consumers block in Redis."""
        for _ in range(count):
            assert self._blocking.acquire(timeout=PATIENCE)
        assert blocked(redis_of(self.broker), count)


def blocked(client: redis.Redis, count: int) -> bool:
    """Wait until Redis has so many blocked clients."""
    if not FAKE:  # it cannot tell, and need not: a registered waiter takes each later element of the list
        until(lambda: int(client.info("clients")["blocked_clients"]) >= count)
    return True


@pytest.fixture
def waiters(broker: Broker) -> Iterator[Waiters]:
    with ThreadPoolExecutor(32) as pool:
        yield Waiters(broker, pool)
        for name in broker.queues():  # a consumer that still waits, because a test has failed, finds no queue then
            broker.queue(name).delete()


def calls(client: redis.Redis) -> dict[str, int]:
    """Return how often Redis carried out each command."""
    stats: Any = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(told["calls"]) for name, told in stats.items()}


def result(future: Future[Any]) -> Delivery:
    delivery: Delivery | None = future.result(timeout=PATIENCE)
    assert delivery is not None
    return delivery


def test_waiting_costs_two_calls_and_waking_one_more(queue: Queue, client: redis.Redis, waiters: Waiters) -> None:
    queue.receive(wait="1ms")
    queue.enqueue(b"warm")
    queue.receive(auto_ack=True)
    before = calls(client)

    (waiting,) = waiters.start(queue)
    queue.enqueue(b"x")
    result(waiting)

    after = calls(client)
    scripts = after["evalsha"] - before["evalsha"]
    periods = after["blpop"] - before["blpop"]  # more than one only where the test was slower than a block period
    assert (scripts, periods) == (2 + periods, periods)


@pytest.mark.parametrize("count", [2, 25])
def test_as_many_as_wait_get_one_message_each(queue: Queue, waiters: Waiters, count: int) -> None:
    waiting = waiters.start(queue, count)

    for i in range(count):
        queue.enqueue(b"%d" % i)

    assert sorted(int(result(one).body) for one in waiting) == list(range(count))


def test_a_message_that_is_given_back_wakes(queue: Queue, waiters: Waiters) -> None:
    queue.enqueue(b"x")
    delivery = one(queue)
    (waiting,) = waiters.start(queue)

    delivery.nack()

    assert result(waiting).delivery_count == 2


def test_a_sweep_that_brings_a_message_back_wakes(broker: Broker, waiters: Waiters) -> None:
    queue = broker.declare_queue("q", lease="1m")
    queue.enqueue(b"x")
    delivery = one(queue)
    (waiting,) = waiters.start(queue)

    delivery.renew("1ms")

    assert any(swept.reclaimed for _ in range(100_000) for swept in queue.sweep())
    assert result(waiting).delivery_count == 2


def wait_in_consume(queue: Queue) -> None:
    with queue.consume() as deliveries:
        next(deliveries)


@pytest.mark.parametrize("wait", [lambda queue: queue.receive(wait=LONG), wait_in_consume], ids=["receive", "consume"])
def test_a_deletion_ends_the_waits_of_all_consumers(
    broker: Broker, queue: Queue, waiters: Waiters, wait: Callable[[Queue], object]
) -> None:
    outcomes: list[str] = []
    broker.events.subscribe(lambda event: outcomes.append(f"{event.name} {event.outcome}"), CommandEvent)
    waiting = waiters.start(queue, 3, lambda: wait(queue))

    queue.delete()

    for each in waiting:
        with pytest.raises(QueueNotFound):
            each.result(timeout=PATIENCE)
    assert "BLPOP ok" in outcomes  # on a fake broker a wait in another thread also ends after 400 ms


def test_a_deletion_between_a_look_and_the_wait_ends_the_wait(
    broker: Broker, queue: Queue, client: redis.Redis, waiters: Waiters
) -> None:
    broker.events.subscribe(lambda _: Broker(client).queue("q").delete(), WaitEvent)

    waiting = waiters.pool.submit(lambda: queue.receive(wait=LONG))

    with pytest.raises(QueueNotFound):
        waiting.result(timeout=PATIENCE)


@pytest.mark.spec("TTL-19", "LEN-08")
@pytest.mark.parametrize("ttl, limit", [(0, None), (None, 0)])
def test_each_of_many_that_wait_is_handed_a_message_that_cannot_stay(
    broker: Broker, waiters: Waiters, ttl: Literal[0] | None, limit: int | None
) -> None:
    queue = broker.declare_queue("q", max_length=limit)
    waiting = waiters.start(queue, 10)

    queue.enqueue_many([Message(b"%d" % i, ttl=ttl) for i in range(12)])

    assert sorted(int(result(one).body) for one in waiting) == list(range(10))
    assert sum(queue.stats().deaths.values()) == 2


def test_a_run_with_an_idle_thread_takes_a_message_that_cannot_stay_while_it_fetches_another(
    broker: Broker, queue: Queue, waiters: Waiters
) -> None:
    receipts, handled, stop = list[Receipt](), list[bytes](), threading.Event()

    def send(event: CommandEvent) -> None:
        if event.name == "receive" and not receipts and queue.stats().leased:
            receipts.append(queue.enqueue(b"now", ttl=0))

    def handle(delivery: Delivery) -> None:
        handled.append(delivery.body)
        if len(handled) == 2:
            stop.set()

    (running,) = waiters.start(queue, how=lambda: queue.run(handle, threads=2, wait=LONG, stop=stop))
    broker.events.subscribe(send, CommandEvent)
    queue.enqueue(b"first")

    until(lambda: receipts)
    assert not receipts[0].expired
    running.result(timeout=PATIENCE)
    assert sorted(handled) == [b"first", b"now"]


def test_senders_and_consumers_in_full_swing_lose_no_wake_up(queue: Queue, waiters: Waiters) -> None:
    rounds, consumers = 40, 6

    def work() -> list[bytes]:
        bodies = []
        for _ in range(rounds):
            delivery = one(queue, wait=LONG)
            bodies.append(delivery.body)
            delivery.ack()
        return bodies

    working = waiters.start(queue, consumers, work)
    for i in range(rounds * consumers):
        queue.enqueue(b"%d" % i)

    found = [body for one in working for body in one.result(timeout=PATIENCE)]
    assert sorted(map(int, found)) == list(range(rounds * consumers))


def test_all_waits_of_a_broker_end(broker: Broker, queue: Queue, client: redis.Redis, waiters: Waiters) -> None:
    waiting = waiters.start(queue, 3)

    broker.interrupt()

    assert [one.result(timeout=PATIENCE) for one in waiting] == [None] * 3
    assert client.zcard("rqttl:{q}:waiters") == 0


def test_afterwards_nobody_waits_but_everything_works(broker: Broker, queue: Queue) -> None:
    broker.interrupt()

    assert queue.receive(wait=LONG) is None
    queue.enqueue(b"x")
    delivery = one(queue, wait=LONG)
    delivery.ack()
    with queue.consume() as deliveries:
        assert list(deliveries) == []


def test_a_message_that_was_handed_to_a_wait_that_ends_is_received(
    broker: Broker, queue: Queue, client: redis.Redis
) -> None:
    def act(_: WaitEvent) -> None:
        Broker(client).queue("q").enqueue(b"now or never", ttl=0)
        broker.interrupt()

    broker.events.subscribe(act, WaitEvent)
    delivery = one(queue, wait=LONG)

    assert (delivery.body, delivery.delivery_count) == (b"now or never", 1)


def test_a_released_delivery_is_no_failed_one(broker: Broker) -> None:
    queue = broker.declare_queue("q", max_deliveries=1)
    queue.enqueue_many([b"a", b"b"])

    with queue.consume(wait=0) as deliveries:
        delivery = next(deliveries)
        deliveries.release(delivery)
        with pytest.raises(AlreadySettled):
            delivery.ack()

    assert bodies(queue) == [b"a", b"b"]
    assert [one.delivery_count for one in queue.receive_many(2)] == [1, 1]


@pytest.mark.parametrize(
    "count, block, lease, sends",
    [(0, 0, 60_000, False), (1, 0, 60_000, False), (1, HOUR, 60_000, True), (1, HOUR, 3_000, True)],
    ids=["leaves", "has waited", "takes a message", "takes one that is due next"],
)
@pytest.mark.parametrize("control", [{}, {"max_leased": 1}, {"max_leased": 2}, {"rate": "9/1s"}], ids=str)
def test_who_knows_when_the_queue_is_due_passes_it_on_to_one_that_waits(
    clocked: Clocked, client: redis.Redis, count: int, block: int, lease: int, sends: bool, control: dict[str, Any]
) -> None:
    queue = clocked.declare_queue("q", **control)
    assert [look(clocked, name).due for name in ("first", "second")] == [None, None]
    queue.enqueue(b"late", delay="10s")
    assert rings(client) == 1
    due = look(clocked, "knows").due or 0

    if sends:
        queue.enqueue(b"x")
        assert rings(client) == 1
    assert found(look(clocked, "knows", count, block, lease=lease)) == [b"x"] * sends

    assert rings(client) == 1
    is_full = sends and control == {"max_leased": 1}  # then only the end of the lease helps
    looks = START + lease if is_full else min(due, START + lease)
    assert look(clocked, "first").due == looks
    look(clocked, "third")
    look(clocked, "third", count=0, block=0)
    assert rings(client) == (looks > due)


def perform_until_it_waits(flow: Flow[Any], answer: Any = None) -> Flow[Any]:
    """Returns the wait, or the result if none comes."""
    while True:
        try:
            step = flow.send(answer)
        except StopIteration as done:
            return done.value
        if isinstance(step, WaitForWakeup):
            return step
        answer = yield step


@pytest.mark.parametrize("of_several", [False, True])
@pytest.mark.parametrize("why", ["nothing", "flushed", "forgotten", "killed"])
def test_a_heartbeat_ends_a_wait_that_redis_has_forgotten_or_in_which_due_work_lies(
    clocked: Clocked, client: redis.Redis, why: str, of_several: bool
) -> None:
    queue, driver = clocked.declare_queue("q"), driver_of(clocked)
    queue.enqueue(b"x")
    late = one(queue)
    rest = (1, Interrupt(), lambda: None)
    session: Session[Any] = (
        SharedSession(driver, {"q": None}, *rest) if of_several else Session(driver.keyspace, "q", *rest)
    )
    fetching = session.fetch(1, None, 4 * HOUR, 1)
    wait = driver.perform(perform_until_it_waits(fetching))

    if why == "killed":  # the one that knew of it
        late.nack(delay="10s")
        clocked.go_to(15_001)
    elif why == "flushed":
        client.flushdb()
        clocked.declare_queue("q").enqueue(b"x")
    elif why == "forgotten":
        client.delete("rqttl:{q}:waiters")
        late.nack()
    assert driver.perform(session.look()) == clocked.now

    assert wait.interrupt.asked() is (why != "nothing")
    if why != "nothing":
        assert found(driver.perform(perform_until_it_waits(fetching, ENDED))) == [b"x"]

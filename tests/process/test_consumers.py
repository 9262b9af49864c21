"""The messages of consumers that crash, are slow, or stop in the middle."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from rqttl import Broker, Delivery, Message, Queue, RenewalEvent, SweepEvent
from rqttl.reaper import Reaper
from tests.drivers import broker_of
from tests.process.consuming import Process
from tests.process.leases import LONG, Rival, end_leases, hasty_broker
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


@pytest.fixture
def thief(server: Server, redis_url: str) -> Iterator[redis.Redis]:
    """A client whose calls may last until another process has begun."""
    with server.client(socket_timeout=PATIENCE) as thief:
        yield thief


def drain(queue: Queue, is_done: Callable[[], bool]) -> dict[str, Delivery]:
    """Receive and ack until a condition holds; each message by its id."""
    found: dict[str, Delivery] = {}
    while not is_done():
        for delivery in queue.receive_many(100, wait="50ms"):
            found[delivery.id] = delivery
            delivery.ack()
    return found


def enqueue(queue: Queue, count: int) -> list[str]:
    ids = [f"{i:03}" for i in range(count)]
    queue.enqueue_many([Message(b"x", id=id) for id in ids])
    return ids


def test_the_messages_of_a_killed_consumer_come_back_after_the_lease(
    queue: Queue, client: redis.Redis, spawn: Callable[..., Process]
) -> None:
    ids = enqueue(queue, 20)
    consumer = spawn("consume", lease=LONG)
    for _ in range(4):
        assert consumer.hear()[0] == "handling"
        consumer.go_on()
    assert consumer.hear() == ["handling", "004"]

    consumer.kill()
    end_leases(client)
    found = drain(queue, lambda: queue.stats().acked >= 20)

    # an ack that was on its way when the consumer died is done or not; everything else is there, each once
    again = [id for id in ids[:4] if id in found]
    assert sorted(found) == [*again, *ids[4:]]
    assert {found[id].delivery_count for id in [*again, *ids[4:10]]} == {2}
    assert {found[id].delivery_count for id in ids[10:]} == {1}
    assert (queue.stats().enqueued, queue.stats().ready, queue.stats().leased) == (20, 0, 0)


def test_a_killed_consumer_that_waited_takes_no_wake_up_with_it(
    queue: Queue, client: redis.Redis, spawn: Callable[..., Process]
) -> None:
    first, second = spawn("wait"), spawn("wait")
    for process in (first, second):
        process.hear_waiting()
    until(lambda: bool(client.info("clients")["blocked_clients"] == 2))

    first.kill()
    # until Redis has seen the end of the connection, a wake-up may go to the dead consumer: the tests below
    until(lambda: bool(client.info("clients")["blocked_clients"] == 1))
    queue.enqueue(b"x", id="mine")

    assert second.hear() == ["received", "mine"]


def test_the_wakeup_of_a_consumer_that_died_before_its_look_is_made_up_for(
    queue: Queue, client: redis.Redis, thief: redis.Redis, spawn: Callable[..., Process], pool: ThreadPoolExecutor
) -> None:
    listening = threading.Event()
    broker_of(queue).events.subscribe(lambda _: listening.set(), SweepEvent)
    reaper = Reaper(broker_of(queue), scan_period="1h")
    running = pool.submit(reaper.run)
    stolen = pool.submit(thief.blpop, ["rqttl:{q}:wakeup"], timeout=0)
    until(lambda: bool(client.info("clients")["blocked_clients"] >= 1))
    other = spawn("wait")
    other.hear_waiting()
    assert listening.wait(PATIENCE)

    queue.enqueue(b"x", id="mine")

    assert stolen.result(timeout=PATIENCE)
    # the other one would sleep for much longer than this test may take
    assert other.hear() == ["received", "mine"]
    reaper.stop()
    running.result(timeout=PATIENCE)


def test_without_a_reaper_the_next_message_makes_up_for_a_lost_wake_up(
    queue: Queue, client: redis.Redis, thief: redis.Redis, spawn: Callable[..., Process], pool: ThreadPoolExecutor
) -> None:
    stolen = pool.submit(thief.blpop, ["rqttl:{q}:wakeup"], timeout=0)
    until(lambda: bool(client.info("clients")["blocked_clients"] >= 1))
    other = spawn("wait")
    other.hear_waiting()

    queue.enqueue(b"x", id="first")
    assert stolen.result(timeout=PATIENCE)
    queue.enqueue(b"y", id="second")

    assert other.hear() == ["received", "first"]


def spin(enough: threading.Event) -> None:
    """Work that never waits for anything."""
    while not enough.is_set():
        sum(i * i for i in range(1_000))


@pytest.mark.spec("S-058", "S-049")
@pytest.mark.parametrize("work", [threading.Event.wait, spin], ids=["waiting", "computing"])
def test_a_slow_handler_keeps_its_messages(
    broker: Broker, queue: Queue, work: Callable[[threading.Event], Any], client: redis.Redis
) -> None:
    enqueue(queue, 3)
    hasty, rival = hasty_broker(client), Rival(broker, "q")
    renewed: list[int] = []
    stolen: list[bool] = []
    enough = threading.Event()

    def note(renewal: RenewalEvent) -> None:
        stolen.append(rival.steals())
        renewed.append(renewal.count)
        if len(renewed) >= 4:
            enough.set()

    hasty.events.subscribe(note, RenewalEvent)

    with hasty.queue("q").consume(prefetch=3, lease="1m", wait=0) as deliveries:
        for delivery in deliveries:
            with delivery:
                work(enough)

    assert renewed[:4] == [3] * 4
    assert set(stolen) == {False}
    stats = queue.stats()
    assert (stats.acked, stats.delivered, stats.redelivered, deliveries.lost) == (3, 3, 0, [])

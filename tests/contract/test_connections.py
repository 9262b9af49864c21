"""Clients of users: any pool and any time-out is enough; and a closed broker, which loses no message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from rqttl import Broker, BrokerClosed, CommandEvent, InvalidInput, Policy, PoolExhausted, Queue, SweepEvent, WaitEvent
from rqttl.deployments import Plan
from rqttl.reaper import Reaper
from rqttl.store import connections, exchanges
from rqttl.store.driver import driver_of
from tests.conftest import FAKE
from tests.contract.looks import forget, one
from tests.contract.test_waking import LONG, Waiters, result
from tests.drivers import redis_of
from tests.servers import Server
from tests.unit.test_public import PUBLIC
from tests.waiting import PATIENCE


def client_of(redis_url: str, **options: Any) -> redis.Redis:
    """A client that waits for replies as long as a test waits."""
    return redis.Redis.from_url(redis_url, socket_timeout=PATIENCE, **options)


def test_a_pool_of_one_connection_is_enough(redis_url: str) -> None:
    with client_of(redis_url, max_connections=1) as client, Broker(client) as broker:
        queue = broker.declare_queue("q", dead_letter="d")
        queue.enqueue_many([b"x"] * 1_000)
        scripts: list[str] = []

        assert broker.queues() == ["q"]
        queue.ack_many(queue.receive_many(1_000))
        broker.events.subscribe(lambda event: scripts.append(event.name), CommandEvent)
        assert queue.receive(wait="100ms") is None

        assert len([name for name in scripts if name.islower()]) <= 4, "a wait that cannot listen would poll"


@pytest.mark.parametrize("timeout", [None, 0.5], ids=["default", "short"])
def test_a_wait_may_be_longer_than_the_time_out_of_the_client(redis_url: str, timeout: float | None) -> None:
    options: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
    with redis.Redis.from_url(redis_url, **options) as client, Broker(client) as broker:
        assert broker.declare_queue("q").receive(wait="700ms") is None


def test_a_client_that_decodes_is_refused(server: Server) -> None:
    with server.client(decode_responses=True) as client, pytest.raises(InvalidInput, match="decode_responses"):
        Broker(client)


@pytest.fixture
def broker_of(pool: ThreadPoolExecutor) -> Iterator[Callable[..., Broker]]:
    """Makes brokers on clients of the test. Their waits end with the test, which may have failed."""
    brokers: list[Broker] = []

    def make(client: redis.Redis, **options: Any) -> Broker:
        brokers.append(Broker(client, **options))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.interrupt()
        broker.close()


def test_a_wait_without_a_free_connection_in_a_small_pool_ends_with_the_limit_of_the_pool(
    redis_url: str, pool: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    with client_of(redis_url, max_connections=3) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        waiters = Waiters(broker, pool)
        waiting = waiters.start(queue, 2)

        with pytest.raises(PoolExhausted, match=r"max_connections=3, 2 of them .* raise max_connections") as refused:
            queue.receive(wait=LONG)

        assert (refused.value.limit, refused.value.waiting) == (3, 2)
        assert queue.stats().consumers == 2
        queue.enqueue_many([b"1", b"2"])
        assert sorted(result(one).body for one in waiting) == [b"1", b"2"]


def test_in_a_pool_that_blocks_a_wait_takes_the_place_that_becomes_free(
    redis_url: str, client: redis.Redis, pool: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    options: dict[str, Any] = {"max_connections": 2, "timeout": None, "socket_timeout": PATIENCE}
    with redis.Redis(connection_pool=redis.BlockingConnectionPool.from_url(redis_url, **options)) as small:
        broker = broker_of(small)
        queue, other = broker.declare_queue("q"), broker.declare_queue("other")
        waiters = Waiters(broker, pool)
        waiting = waiters.start(queue)
        begun = threading.Semaphore(0)
        broker.events.subscribe(lambda _: begun.release(), WaitEvent)

        queued = pool.submit(lambda: other.receive(wait=LONG))
        assert begun.acquire(timeout=PATIENCE)
        other.enqueue(b"y")
        assert not queued.done(), "it does not listen"
        queue.enqueue(b"x")

        assert [result(*waiting).body, result(queued).body] == [b"x", b"y"]


@pytest.mark.parametrize("blocks", [False, True], ids=["pool", "blocking pool"])
@pytest.mark.parametrize("how", ["script", "plain"])
def test_a_command_that_gets_no_connection_tells_the_limit(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, broker_of: Callable[..., Broker], blocks: bool, how: str
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.05)
    monkeypatch.setattr(exchanges, "PAUSES", (0.001,))
    kinds = {False: redis.ConnectionPool, True: redis.BlockingConnectionPool}
    options: dict[str, Any] = {
        "max_connections": 1,
        "socket_timeout": PATIENCE,
        **({"timeout": 0.05} if blocks else {}),
    }
    small = kinds[blocks].from_url(redis_url, **options)
    with redis.Redis(connection_pool=small) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        broker.queues()
        own = redis_of(broker).connection_pool
        held = own.get_connection()

        with pytest.raises(PoolExhausted, match="max_connections=1, all are in use"):
            broker.server_time() if how == "plain" else queue.enqueue(b"x")

        own.release(held)
        queue.enqueue(b"x")


def test_a_command_waits_for_a_connection_that_another_thread_has(
    redis_url: str, pool: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    with client_of(redis_url, max_connections=2) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        own = redis_of(broker).connection_pool
        held = [own.get_connection() for _ in range(2 - len(driver_of(broker).store.topology.nodes[0].connections))]
        sent = [pool.submit(queue.enqueue, b"%d" % i) for i in range(4)]
        for connection in held:
            own.release(connection)

        assert len({one.result(timeout=PATIENCE).id for one in sent}) == 4


POLICY = Policy.read("p", "#", {"lease": "1m"})
#: What the methods of a broker and of a queue need; the others need nothing.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("declare_queue", "preview_declaration", "queue", "topic"), ("q",)),
    **dict.fromkeys(("preview_plan", "apply_plan"), (Plan(()),)),
    "declare_topic": ("news",),
    "held_back": (["q"],),
    "explain": ("1m",),  # to a broker a name, to a queue a TTL
    "set_policy": ("p", "#", {"lease": "1m"}),
    "delete_policy": ("p",),
    **dict.fromkeys(("preview_policy", "check_policy"), (POLICY,)),
    "enqueue": (b"x",),
    "enqueue_many": ([b"x"],),
    "receive": (LONG,),
    "receive_many": (5,),
    "run": (print,),
    "purge_many": (["1700000000000-100000"],),
    **dict.fromkeys(("cancel", "reschedule", "message", "messages", "delete_message"), ("me",)),
    **dict.fromkeys(("expire", "dead_letter", "redeliver_now"), ("me",)),
    "move": ("me", "q/other"),
    "redrive_many": ([("1700000000000-100000", "other")],),
}
OF_BROKER = ARGUMENTS | dict.fromkeys(("receive", "consume"), (["q"],))
SETTLE = ("ack", "nack", "reject", "renew")
KEYWORDS = {"reschedule": {"delay": "1s"}}
#: What asks Redis nothing.
SILENT = {"address", "close", "events", "hand_out", "interrupt", "node_of", "observer", "broker", "declared"}
SILENT |= {"name", "namespace"}


@pytest.fixture
def other(broker: Broker) -> Iterator[Broker]:
    """A second broker on the same server, which stays open."""
    other = broker.connect() if FAKE else Broker(redis_of(broker))  # type: ignore[attr-defined]  # a fake one
    yield other
    other.close()


@pytest.mark.parametrize("method", sorted({*PUBLIC[Broker], "__enter__"} - SILENT))
def test_every_method_of_a_closed_broker_raises(broker: Broker, other: Broker, method: str) -> None:
    other.declare_queue("q")
    for operator in (False, True):
        other.set_policy("p", "other", {"lease": "1m"}, operator=operator)
    broker.close()

    with pytest.raises(BrokerClosed, match="the broker is closed") as refused:
        getattr(broker, method)(*OF_BROKER.get(method, ()))

    assert refused.value.code == "closed"
    getattr(other, method)(*OF_BROKER.get(method, ()))


@pytest.mark.parametrize("method", sorted(PUBLIC[Queue] - SILENT - {f"{how}_many" for how in SETTLE}))
def test_every_method_of_its_queues_raises(broker: Broker, queue: Queue, other: Broker, method: str) -> None:
    broker.close()

    with pytest.raises(BrokerClosed):
        getattr(queue, method)(*ARGUMENTS.get(method, ()), **KEYWORDS.get(method, {}))

    assert (other.queues(), other.queue("q").stats().enqueued) == (["q"], 0)


@pytest.mark.parametrize("how", SETTLE)
def test_a_delivery_is_not_settled_any_more_and_comes_again(
    broker: Broker, queue: Queue, other: Broker, how: str
) -> None:
    queue.enqueue(b"x")
    delivery = one(queue)
    broker.close()

    with pytest.raises(BrokerClosed):
        getattr(delivery, how)()
    with pytest.raises(BrokerClosed):
        getattr(queue, f"{how}_many")([delivery])

    assert (delivery.settled, other.queue("q").stats().leased) == (None, 1)


@pytest.mark.parametrize(
    "wait", [lambda queue: queue.receive(wait=LONG), lambda queue: queue.run(forget, threads=2)], ids=["receive", "run"]
)
def test_closing_ends_all_waits_with_it(broker: Broker, queue: Queue, wait: Callable[[Queue], object]) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = Waiters(broker, pool).start(queue, 3, lambda: wait(queue))
        broker.close()

        assert [type(one.exception(timeout=PATIENCE)) for one in waiting] == [BrokerClosed] * 3


def test_closing_ends_a_consumer_that_waits_and_what_it_has_not_sent_comes_again(
    broker: Broker, queue: Queue, other: Broker
) -> None:
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


def test_a_consumer_hands_out_nothing_and_takes_no_ack_after_that(broker: Broker, queue: Queue) -> None:
    queue.enqueue_many([b"1", b"2", b"3"])

    deliveries = queue.consume().__enter__()
    delivery = next(deliveries)
    broker.close()

    for call in (delivery.ack, lambda: next(deliveries), lambda: deliveries.release(delivery), deliveries.close):
        with pytest.raises(BrokerClosed):
            call()
    assert delivery.settled is None


def test_the_error_of_a_handler_is_not_hidden_by_a_closed_broker(broker: Broker, queue: Queue) -> None:
    queue.enqueue(b"1")

    def work() -> Any:
        with queue.consume() as deliveries:
            next(deliveries)
            broker.close()
            raise KeyError("of the handler")

    with pytest.raises(KeyError, match="of the handler"):
        work()


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

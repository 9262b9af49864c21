"""Clients of users: any pool and any time-out is enough."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from rqttl import Broker, CommandEvent, InvalidInput, PoolExhausted, WaitEvent
from rqttl.store import connections, exchanges
from rqttl.store.driver import driver_of
from tests.contract.looks import one
from tests.contract.test_waking import LONG, Waiters, result
from tests.servers import Server
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
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def broker_of(threads: ThreadPoolExecutor) -> Iterator[Callable[..., Broker]]:
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
    redis_url: str, threads: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    with client_of(redis_url, max_connections=3) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        waiters = Waiters(broker, threads)
        waiting = waiters.start(queue, 2)

        with pytest.raises(PoolExhausted, match=r"max_connections=3, 2 of them .* raise max_connections") as refused:
            queue.receive(wait=LONG)

        assert (refused.value.limit, refused.value.waiting) == (3, 2)
        assert queue.stats().consumers == 2
        queue.enqueue_many([b"1", b"2"])
        assert sorted(result(one).body for one in waiting) == [b"1", b"2"]


def test_a_message_that_came_while_a_wait_found_no_connection_is_received(
    redis_url: str, client: redis.Redis, threads: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    with client_of(redis_url, max_connections=2) as small:
        broker = broker_of(small)
        queue, other = broker.declare_queue("q"), broker.declare_queue("other")
        waiting = Waiters(broker, threads).start(other)
        broker.events.subscribe(lambda _: Broker(client).queue("q").enqueue(b"x"), WaitEvent)

        delivery = one(queue, wait=LONG)

        assert delivery.body == b"x"
        other.enqueue(b"y")
        assert result(*waiting).body == b"y"


def test_brokers_that_share_a_pool_share_its_places(
    redis_url: str, threads: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    with client_of(redis_url, max_connections=2) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        waiting = Waiters(broker, threads).start(queue)

        with pytest.raises(PoolExhausted):
            broker_of(client, namespace="other").declare_queue("q").receive(wait=LONG)

        queue.enqueue(b"x")
        assert result(*waiting).body == b"x"


def test_in_a_pool_that_blocks_a_wait_takes_the_place_that_becomes_free(
    redis_url: str, client: redis.Redis, threads: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    options: dict[str, Any] = {"max_connections": 2, "timeout": None, "socket_timeout": PATIENCE}
    with redis.Redis(connection_pool=redis.BlockingConnectionPool.from_url(redis_url, **options)) as small:
        broker = broker_of(small)
        queue, other = broker.declare_queue("q"), broker.declare_queue("other")
        waiters = Waiters(broker, threads)
        waiting = waiters.start(queue)
        begun = threading.Semaphore(0)
        broker.events.subscribe(lambda _: begun.release(), WaitEvent)

        queued = threads.submit(lambda: other.receive(wait=LONG))
        assert begun.acquire(timeout=PATIENCE)
        other.enqueue(b"y")
        assert not queued.done(), "it does not listen"
        queue.enqueue(b"x")

        assert [result(*waiting).body, result(queued).body] == [b"x", b"y"]


def test_in_a_pool_that_blocks_a_wait_fails_after_its_time_out(
    redis_url: str, threads: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    options: dict[str, Any] = {"max_connections": 2, "timeout": 0.1, "socket_timeout": PATIENCE}
    with redis.Redis(connection_pool=redis.BlockingConnectionPool.from_url(redis_url, **options)) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        waiting = Waiters(broker, threads).start(queue)

        with pytest.raises(PoolExhausted, match="max_connections=2"):
            queue.receive(wait=LONG)
        assert broker.declare_queue("other").receive(wait="20ms") is None

        queue.enqueue(b"x")
        assert result(*waiting).body == b"x"


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
        held = small.get_connection()

        with pytest.raises(PoolExhausted, match="max_connections=1, all are in use"):
            broker.server_time() if how == "plain" else queue.enqueue(b"x")

        small.release(held)
        queue.enqueue(b"x")


def test_a_command_waits_for_a_connection_that_another_thread_has(
    redis_url: str, threads: ThreadPoolExecutor, broker_of: Callable[..., Broker]
) -> None:
    with client_of(redis_url, max_connections=2) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        held = [client.connection_pool.get_connection() for _ in range(2 - len(driver_of(broker).store.connections))]
        sent = [threads.submit(queue.enqueue, b"%d" % i) for i in range(4)]
        for connection in held:
            client.connection_pool.release(connection)

        assert len({one.result(timeout=PATIENCE).id for one in sent}) == 4


def test_a_wait_is_not_cut_to_the_time_out_of_the_client(redis_url: str, broker_of: Callable[..., Broker]) -> None:
    connected: list[Any] = []

    def connect(connection: Any) -> None:
        connection._sock.settimeout(PATIENCE)  # a connection without a handshake would end the wait early
        connection.on_connect()
        connection._sock.settimeout(0.05)
        connected.append(connection)

    with redis.Redis.from_url(redis_url, socket_timeout=0.05, redis_connect_func=connect) as client:
        broker = broker_of(client)
        queue = broker.declare_queue("q")
        waits: list[WaitEvent] = []
        broker.events.subscribe(waits.append, WaitEvent)

        assert queue.receive(wait="500ms") is None

        assert waits == [WaitEvent("q")]
        assert {one._sock.gettimeout() for one in connected if one._sock is not None} == {0.05}

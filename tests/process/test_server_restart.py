"""A Redis that restarts loses nothing; one that refuses for now is waited for."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import redis
import redis.asyncio.retry
from redis.backoff import ConstantBackoff
from redis.exceptions import ConnectionError
from redis.retry import Retry

from rqttl import (
    AsyncBroker,
    Broker,
    CommandEvent,
    LeaseLost,
    Message,
    MessageView,
    Queue,
    RenewalEvent,
    SweepEvent,
    WaitEvent,
    Worker,
    connect,
)
from rqttl.reaper import Reaper
from rqttl.store import connections
from rqttl.testing.fake import Clock, ClockedBroker
from tests.chaos.nemeses import REFUSALS
from tests.contract.looks import one
from tests.ports import free_port
from tests.process.leases import hasty_broker
from tests.process.reapers import reaping
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


@pytest.fixture
def broker(durable: Server) -> Iterator[Broker]:
    with connect(durable.url) as broker:
        yield broker


@pytest.fixture(params=["kill", "stop"])
def restart(request: pytest.FixtureRequest, durable: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Ends the server, by SIGKILL or by SIGTERM, and starts it on the same data."""
    # a slow machine may need longer to start a server than a call is patient
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.02, *[0.1] * 300))

    def restart() -> None:
        getattr(durable, request.param)()
        durable.start()

    return restart


def servers_time(durable: Server) -> int:
    with durable.client() as client:
        seconds, micros = client.time()
        return int(seconds) * 1000 + int(micros) // 1000


def everything(queue: Queue) -> list[MessageView]:
    return queue.peek(1_000)


@pytest.mark.spec("TTL-27", "A-006", "A-020", "S-045")
def test_messages_deadlines_leases_and_counters_survive(broker: Broker, restart: Callable[[], None]) -> None:
    queue = broker.declare_queue("q", message_ttl="2h", min_ttl="1h", max_ttl="3h", lease="1h", dead_letter="d")
    queue.enqueue_many([Message(b"%d" % i, ttl="10m" if i % 2 else None, headers={"i": i}) for i in range(300)])
    held, delayed, acked, rejected, returned = queue.receive_many(5)
    delayed.nack("1h")
    acked.ack()
    rejected.reject("for good")
    returned.nack()
    before, letters, counted = everything(queue), everything(broker.queue("d")), queue.stats()

    restart()

    assert (everything(queue), everything(broker.queue("d"))) == (before, letters)
    assert broker.queues() == ["d", "q"]
    assert replace(queue.stats(), oldest_ready_age=counted.oldest_ready_age) == counted
    assert queue.options().message_ttl == 7_200_000
    held.ack()
    redelivered = one(queue)
    assert (redelivered.id, redelivered.delivery_count) == (returned.id, 2)


@pytest.mark.spec("TTL-28", "A-007", "TTL-27", "A-070")
def test_messages_that_expire_while_the_server_is_down_are_dead_lettered_and_not_delivered(
    durable: Server, restart: Callable[[], None]
) -> None:
    clock = Clock()
    with durable.client() as client, ClockedBroker(client, clock=clock) as broker:
        queue = broker.declare_queue("q", dead_letter="d")
        queue.enqueue_many([Message(b"%d" % i, ttl="1m") for i in range(20)] + [b"for ever"])
        held = queue.receive_many(5, lease="1h")

        restart()
        clock.advance("1m")

        (delivery,) = queue.receive_many(100)
        assert delivery.body == b"for ever"
        letters = broker.queue("d").receive_many(100)
        assert [letter.body for letter in letters] == [b"%d" % i for i in range(5, 20)]
        assert {letter.deaths[0].reason for letter in letters} == {"expired"}
        queue.ack_many(held)


@pytest.mark.spec("A-085")
def test_policies_survive_with_the_options_that_they_gave(broker: Broker, restart: Callable[[], None]) -> None:
    broker.declare_queue("orders", max_length=50)
    broker.set_policy("p", "orders.#", {"message-ttl": "5m", "max_deliveries": None}, priority=7)
    broker.set_policy("o", "^o", {"max_length": 9}, syntax="regex", operator=True)
    policies, caps, options = broker.policies(), broker.policies(operator=True), broker.queue("orders").options()

    restart()

    assert (broker.policies(), broker.policies(operator=True)) == (policies, caps)
    assert broker.queue("orders").options() == options
    assert broker.reconcile().changed == {}
    assert broker.declare_queue("orders.eu").options().as_arguments() == {"message_ttl": "5m", "max_length": 9}
    broker.delete_policy("o", operator=True)
    assert broker.queue("orders").options().as_arguments() == {"max_length": 50, "message_ttl": "5m"}


def test_a_lease_runs_on_while_the_server_is_down(broker: Broker, durable: Server, restart: Callable[[], None]) -> None:
    queue = broker.declare_queue("q", lease="400ms")
    queue.enqueue(b"x")
    first = one(queue)
    assert first.leased_until is not None

    restart()
    second = one(queue, wait="1m")
    assert second.delivery_count == 2
    assert servers_time(durable) >= first.leased_until.timestamp() * 1000
    with pytest.raises(LeaseLost):
        first.ack()


def test_a_consumer_that_waits_outlives_a_restart(broker: Broker, restart: Callable[[], None]) -> None:
    queue = broker.declare_queue("q")
    waiting = threading.Event()
    broker.events.subscribe(lambda name: waiting.set(), WaitEvent)

    with ThreadPoolExecutor() as pool:
        delivery = pool.submit(queue.receive, wait="10m")
        assert waiting.wait(PATIENCE)
        restart()
        queue.enqueue(b"x")

        found = delivery.result(timeout=PATIENCE)

    assert found is not None
    assert found.body == b"x"


def test_a_consumer_waits_for_redis_no_longer_than_for_messages(broker: Broker, durable: Server) -> None:
    queue = broker.declare_queue("q")

    deliveries = queue.consume(wait=0).__enter__()
    durable.kill()

    with pytest.raises(ConnectionError):
        next(deliveries)

    durable.start()
    deliveries.close()


def test_a_slow_handler_keeps_its_message_over_a_restart(durable: Server, caplog: pytest.LogCaptureFixture) -> None:
    with durable.client() as client, hasty_broker(client) as broker:
        queue = broker.declare_queue("q")
        queue.enqueue(b"x")
        renewals, failures = threading.Semaphore(0), threading.Semaphore(0)
        broker.events.subscribe(lambda event: renewals.release(), RenewalEvent)
        broker.events.subscribe(
            lambda event: failures.release() if event.outcome == "ConnectionError" else None, CommandEvent
        )

        with queue.consume(lease="10m", wait=0) as deliveries:
            for delivery in deliveries:
                with delivery:
                    durable.kill()
                    assert failures.acquire(timeout=PATIENCE)
                    durable.start()
                    assert renewals.acquire(timeout=PATIENCE)

        stats = queue.stats()
        assert (stats.acked, stats.delivered, deliveries.lost) == (1, 1, [])
        assert "cannot register this process" in caplog.text


REGISTRY = "rqttl:queues{rqttl}"


class Refusing:
    """A server that refuses in one way, from `begin` to `end`."""

    def __init__(self, saving: Server, how: str) -> None:
        self._server, self._how = saving, how
        self._client = saving.client()
        self._client.ping()
        self._within = ExitStack()

    def begin(self) -> None:
        self._within.enter_context(REFUSALS[self._how](self._server, self._client))
        until(self._refuses)

    def end(self) -> None:
        self._within.close()

    def _refuses(self) -> bool:
        try:
            self._client.set("x", 1)
        except redis.ResponseError:
            return True
        return False


@pytest.fixture
def saving(start_server: Callable[..., Server]) -> Server:
    return start_server(save="3600 1000000")  # MISCONF comes of a save that fails


@pytest.fixture(params=["NOREPLICAS", "READONLY", "MISCONF", "BUSY"])
def refusing(request: pytest.FixtureRequest, saving: Server) -> Refusing:
    return Refusing(saving, request.param)


@pytest.fixture
def two_queues(saving: Server) -> Iterator[Broker]:
    with connect(saving.url) as two_queues:
        two_queues.declare_queue("orders", dead_letter="dead")
        two_queues.declare_queue("dead")
        yield two_queues


def test_a_consumer_outlives_a_redis_that_refuses(
    two_queues: Broker, refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    queue = two_queues.queue("orders")
    queue.enqueue(b"first")

    def handle() -> list[bytes]:
        with queue.consume() as deliveries:
            bodies = []
            for delivery in deliveries:
                with delivery:
                    bodies.append(delivery.body)
                    if delivery.body == b"first":
                        refusing.begin()
                if delivery.body == b"last":
                    break
            return bodies

    with ThreadPoolExecutor() as pool:
        bodies = pool.submit(handle)
        until(lambda: "Redis refuses for now" in caplog.text or bodies.done())
        refusing.end()
        queue.enqueue(b"last")

        assert bodies.result(timeout=PATIENCE) == [b"first", b"last"]


def test_a_reaper_outlives_a_redis_that_refuses(two_queues: Broker, refusing: Refusing, saving: Server) -> None:
    with reaping(saving.url, "--scan-period", "1h") as reaper:
        two_queues.queue("orders").enqueue(b"x", ttl="500ms")
        refusing.begin()
        assert reaper.await_event("redis_unavailable")["level"] == "warning"
        refusing.end()

        assert two_queues.queue("dead").receive(wait="60s") is not None
        reaper.await_event("redis_recovered")


def test_an_ordinary_call_that_is_refused_for_longer_raises_the_error_of_redis(
    two_queues: Broker, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.001,))
    refusing.begin()

    with pytest.raises(redis.ResponseError):
        two_queues.queue("orders").enqueue(b"x")

    refusing.end()
    assert two_queues.queue("orders").stats().ready == 0


def test_a_reaper_goes_on_where_full_memory_refuses_its_upkeep(
    two_queues: Broker, saving: Server, caplog: pytest.LogCaptureFixture
) -> None:
    queue = two_queues.queue("orders")
    queue.enqueue(b"x")
    one(queue).reject()
    with saving.client() as client, caplog.at_level(logging.INFO, "rqttl.reaper"):
        client.srem(REGISTRY, "dead")
        client.config_set("maxmemory", 1)

        done = Reaper(two_queues).run_once()

        refused = [record for record in caplog.records if getattr(record, "event", "") == "refused"]
        assert done.failed == 0
        assert [record.levelname for record in refused] == ["WARNING"] * len(refused)
        assert refused
        assert not client.sismember(REGISTRY, "dead")
        client.config_set("maxmemory", 0)
        Reaper(two_queues).run_once()
        assert client.sismember(REGISTRY, "dead")


@pytest.mark.once
def test_a_call_that_cannot_be_repeated_goes_over_no_connection_whose_end_has_come(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "QUICK", 0)
    server = start_server(bind="127.0.0.1", port=(port := free_port()))  # a unix socket refuses the send itself
    with connect(f"redis://127.0.0.1:{port}") as broker, server.client() as client:
        queue = broker.declare_queue("q")
        for _ in range(3):
            queue.enqueue(b"x")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            until(lambda: len(client.client_list()) == 1)

        assert queue.stats().ready == 3


class Tries(redis.UnixDomainSocketConnection):
    """A connection of threads that counts the attempts to open one."""

    made = 0

    def _connect(self) -> Any:
        type(self).made += 1
        return super()._connect()  # type: ignore[no-untyped-call]  # of redis-py


class AsyncTries(redis.asyncio.UnixDomainSocketConnection):
    """The same for an event loop."""

    async def _connect(self) -> None:
        Tries.made += 1
        await super()._connect()  # type: ignore[no-untyped-call]  # of redis-py


async def _run_async(url: str, retry: Any, stopping: threading.Event) -> None:
    async def handle(_: Any) -> None:
        pass

    stop = asyncio.Event()
    client = redis.asyncio.Redis.from_url(url, retry=retry)
    client.connection_pool.connection_class = AsyncTries
    async with AsyncBroker(client) as broker:
        running = asyncio.ensure_future(broker.queue("q").run(handle, stop=stop))
        while not stopping.is_set():
            await asyncio.sleep(0.01)
        stop.set()
        await running


@pytest.mark.once
@pytest.mark.parametrize("way", ["run", "asyncio run", "worker", "reaper"])
def test_a_stop_is_heard_during_an_outage_though_the_client_of_the_user_never_gives_up(
    durable: Server, way: str
) -> None:
    stopping, swept, ended = threading.Event(), list[SweepEvent](), list[object]()
    for_ever = Retry(ConstantBackoff(0.01), -1), redis.asyncio.retry.Retry(ConstantBackoff(0.01), -1)
    client = redis.Redis.from_url(durable.url, connection_class=Tries, retry=for_ever[0])
    broker = Broker(client)
    broker.events.subscribe(swept.append, SweepEvent)
    worker, reaper = Worker(broker, "q", call=len, processes=0), Reaper(broker)
    runs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "run": (lambda: broker.queue("q").run(str, stop=stopping), stopping.set),
        "asyncio run": (lambda: asyncio.run(_run_async(durable.url, for_ever[1], stopping)), stopping.set),
        "worker": (worker.run, worker.stop),
        "reaper": (reaper.run, reaper.stop),
    }
    run, stop = runs[way]
    with connect(durable.url) as other:
        queue = other.declare_queue("q")
        queue.enqueue(b"1")
        threading.Thread(target=lambda: ended.append(run()), daemon=True).start()
        until(lambda: swept if way == "reaper" else queue.stats().acked)

    durable.stop()
    tries = Tries.made
    until(lambda: Tries.made > tries)
    stop()

    until(lambda: ended)
    durable.start()
    assert client.ping()
    assert client.connection_pool.connection_kwargs["retry"] is for_ever[0]

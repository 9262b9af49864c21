"""Event loops: a broker belongs to one, and closing leaves nothing in it."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

import rqttl
from rqttl.runtime.memory import resident_bytes
from rqttl.testing import async_fake_broker
from tests.aio.conftest import Run
from tests.aio.test_cancelling import _until
from tests.waiting import PATIENCE


def test_another_loop_is_a_typed_error(redis_url: str) -> None:
    broker = rqttl.connect_async(redis_url)
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        loop.run_until_complete(broker.declare_queue("q"))
        for call in (broker.queues, broker.aclose, broker.queue("q").receive, broker.__aenter__):
            with pytest.raises(rqttl.InvalidInput, match=r"broker: belongs to another event loop"):
                other.run_until_complete(call())
        assert loop.run_until_complete(broker.queues()) == ["q"]
        loop.run_until_complete(broker.aclose())
    finally:
        loop.close()
        other.close()


def test_a_handle_and_a_broker_may_be_made_outside_of_a_loop(redis_url: str) -> None:
    broker = rqttl.connect_async(redis_url)
    queue = broker.queue("q")

    async def work() -> object:
        async with broker:
            await broker.declare_queue("q")
            return await queue.enqueue(b"x")

    assert isinstance(asyncio.run(work()), rqttl.Receipt)


@pytest.mark.parametrize("observed", [False, True])
def test_a_handler_that_is_no_coroutine_function_ends_the_run_at_its_first_message(
    run: Run, redis_url: str, observed: bool
) -> None:
    """It would fail with each message of the queue, after it has done the work."""
    calls: list[str] = []

    def plain(delivery: rqttl.AsyncDelivery) -> None:
        calls.append(delivery.id)

    async def work() -> rqttl.QueueStats:
        async with rqttl.connect_async(redis_url) as broker:
            broker.observer = rqttl.Observer() if observed else None
            queue = await broker.declare_queue("q")
            await queue.enqueue_many([b"x"] * 5)
            with pytest.raises(rqttl.InvalidInput, match=r"handler: expected an `async def`.* returns NoneType"):
                await queue.run(plain)  # type: ignore[arg-type]  # a wrong argument is the point
            return await queue.stats()

    stats = run(work())

    assert len(calls) == 1
    assert (stats.ready, stats.leased, stats.acked) == (5, 0, 0)


@pytest.mark.parametrize("own", [True, False])
def test_a_signal_reaches_the_program_and_ends_only_runs_without_a_stop_of_their_own(
    run: Run, redis_url: str, own: bool
) -> None:
    """Two runs of one program, which end in any order."""
    got: list[int] = []
    handled: list[str] = []

    async def handle(delivery: rqttl.AsyncDelivery) -> None:
        if len(handled) == 2:
            signal.raise_signal(signal.SIGTERM)
        handled.append(delivery.queue)
        await asyncio.sleep(0)

    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queues = [await broker.declare_queue(name) for name in "ab"]
            for queue in queues:
                await queue.enqueue_many([b"x"] * 4)
            stop = asyncio.Event() if own else None
            wait = "0s" if own else None
            await asyncio.gather(*(queue.run(handle, wait=wait, stop=stop) for queue in queues))

    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        run(work())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]
    assert len(handled) == 8 if own else len(handled) < 8


def test_a_broker_leaves_the_pool_of_the_given_client_alone(run: Run, server: Any, redis_url: str) -> None:
    async def work() -> None:
        client = redis.asyncio.Redis(unix_socket_path=str(server.socket), max_connections=3)
        broker = rqttl.AsyncBroker(client)
        queue = await broker.declare_queue("q")
        assert await queue.receive(wait="1ms") is None
        await broker.aclose()
        pool = client.connection_pool
        assert (len(pool._in_use_connections), len(pool._available_connections)) == (0, 0)
        assert await client.ping()
        await client.aclose()

    run(work())


def test_a_wait_without_a_free_connection_ends_with_the_limit_of_the_pool(
    run: Run, server: Any, redis_url: str
) -> None:
    async def work() -> None:
        client = redis.asyncio.Redis(unix_socket_path=str(server.socket), max_connections=3)
        async with rqttl.AsyncBroker(client) as broker:
            queue = await broker.declare_queue("q")
            waits = [asyncio.ensure_future(queue.receive(wait="1h")) for _ in range(3)]
            done, waiting = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            (failed,) = done
            assert isinstance(failed.exception(), rqttl.PoolExhausted)
            await queue.enqueue_many([b"x", b"y"])
            await asyncio.wait(waiting)
        await client.aclose()

    run(work())


@pytest.mark.parametrize("client", [None, "redis://localhost", redis.Redis()])
def test_a_value_that_is_no_asyncio_client_is_refused(client: Any) -> None:
    with pytest.raises(
        rqttl.InvalidInput, match=r"^client: expected a redis\.asyncio\.Redis or redis\.asyncio\.RedisC"
    ):
        rqttl.AsyncBroker(client)


def test_a_client_that_decodes_is_refused() -> None:
    with pytest.raises(rqttl.InvalidInput, match="decode_responses"):
        rqttl.AsyncBroker(redis.asyncio.Redis(decode_responses=True))


def test_the_embedded_server_starts_at_the_first_call_and_is_left_at_the_end(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        async with rqttl.connect_async(f"embedded://{tmp_path}/data") as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"x")
        async with rqttl.connect_async(f"embedded://{tmp_path}/data") as broker:
            delivery = await broker.queue("q").receive()
            assert delivery is not None
            await delivery.ack()

    run(work())


def test_a_fake_broker_lets_other_tasks_run_before_a_wait_moves_the_clock(run: Run) -> None:
    async def work() -> None:
        async with async_fake_broker(start=1_700_000_000_000) as broker:
            queue = await broker.declare_queue("q", message_ttl="60s", dead_letter="{queue}/dead")
            sending = asyncio.ensure_future(queue.enqueue(b"late"))
            delivery = await queue.receive(wait="5s")
            assert delivery is not None
            assert (delivery.body, broker.clock.ms) == (b"late", 1_700_000_000_000)
            await asyncio.gather(sending, delivery.ack())
            assert await queue.receive(wait="5s") is None
            assert broker.clock.ms == 1_700_000_005_000
            await queue.enqueue(b"dies")
            broker.clock.advance("61s")
            broker.run_reaper()
            assert (await broker.queue("q/dead").stats()).ready == 1

    run(work())


def test_a_consumer_of_a_fake_broker_keeps_its_leases_when_the_clock_advances(run: Run) -> None:
    async def work() -> None:
        async with async_fake_broker() as broker:
            queue = await broker.declare_queue("q", lease="30s")
            await queue.enqueue(b"x")
            async with queue.consume(wait=0) as deliveries:
                async for delivery in deliveries:
                    async with delivery:
                        broker.clock.advance("10m")
            assert (deliveries.lost_count, (await queue.stats()).acked) == (0, 1)

    run(work())


@pytest.mark.slow
def test_1000_waiting_consumers_all_wake_and_aclose_during_1000_waits_leaves_nothing(
    run: Run, redis_url: str, client: Any
) -> None:
    """1,001 connections, and 60 MB at most."""

    async def work() -> None:
        others = asyncio.all_tasks()
        async with rqttl.connect_async(redis_url) as broker:
            queue, handled = await broker.declare_queue("q"), set[bytes]()
            before = resident_bytes()

            async def consume() -> None:
                async with queue.consume(prefetch=1) as deliveries, await deliveries.__anext__() as delivery:
                    handled.add(delivery.body)

            consumers = [asyncio.ensure_future(consume()) for _ in range(1_000)]
            await _until(lambda: client.info("clients")["blocked_clients"] == 1_000)
            assert len(client.client_list()) == 1_002  # these, the shared one, and the client of the test
            assert resident_bytes() - before <= 60_000_000
            await queue.enqueue_many([b"%d" % i for i in range(1_000)])
            await asyncio.gather(*consumers)
            assert len(handled) == 1_000

            waits = [asyncio.ensure_future(queue.receive(wait="1h")) for _ in range(1_000)]
            await _until(lambda: client.info("clients")["blocked_clients"] == 1_000)
            await broker.aclose()
            assert {type(end) for end in await asyncio.gather(*waits, return_exceptions=True)} == {rqttl.BrokerClosed}
            assert asyncio.all_tasks() == others

    run(work())
    deadline = time.monotonic() + PATIENCE
    while len(client.client_list()) > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(client.client_list()) == 1

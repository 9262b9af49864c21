"""A cancelled caller leaves nothing: no lease, no failed delivery, no lost message."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
import redis

import rqttl
from rqttl.aio.driver import AsyncDriver
from rqttl.aio.store import Call
from tests.aio import campaign
from tests.aio.conftest import Run, looped
from tests.servers import Server


@pytest.mark.slow
@pytest.mark.parametrize("loop", campaign.LOOPS)
@pytest.mark.parametrize("scope", campaign.SCOPES)
def test_random_cancellations_lose_nothing_and_redeliver_nothing(server: Server, loop: str, scope: str) -> None:
    assert campaign.run(server, loop, scope, cancels=300, seed=7).faults() == {}


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def _shared(broker: rqttl.AsyncBroker) -> Any:
    return broker._driver.store._shared


async def _state(url: str) -> tuple[int, int, int]:
    """The messages that are ready, leased, and redelivered."""
    async with rqttl.connect_async(url) as broker:
        stats = await broker.queue("q").stats()
        return stats.ready, stats.leased, stats.redelivered


@pytest.mark.parametrize("window", ["before the reply", "after the reply"])
@looped(max_deliveries=1)
async def test_a_receive_that_is_cancelled_gives_its_message_back_uncounted(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, redis_url: str, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    await queue.enqueue(b"x")
    await queue.stats()
    task = asyncio.ensure_future(queue.receive())
    if window == "before the reply":
        await asyncio.sleep(0)
        task.cancel()
    else:
        end = Call.end

        def cancel_too(call: Call, value: Any) -> None:
            end(call, value)
            if call.command is not None and call.command.script.name == "receive":
                task.cancel()

        with monkeypatch.context() as patched:
            patched.setattr(Call, "end", cancel_too)
            await asyncio.wait([task])
    with pytest.raises(asyncio.CancelledError):
        await task
    delivery = await queue.receive(wait="1m")
    assert delivery is not None
    assert delivery.delivery_count == 1
    await delivery.ack()
    await broker.aclose()
    assert await _state(redis_url) == (0, 0, 0)


@looped()
async def test_an_ack_that_is_cancelled_before_it_was_sent_arrives(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, redis_url: str
) -> None:
    await queue.enqueue_many([b"x", b"y"])
    for delivery in await queue.receive_many(2):
        _shared(broker).abandon(OSError("cut"))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await delivery.ack()
        assert scope.cancelled_caught
    await broker.aclose()
    assert await _state(redis_url) == (0, 0, 0)


@pytest.mark.parametrize("fetched", ["receive", "consume"])
@looped()
async def test_a_handler_that_is_cancelled_in_the_pass_in_which_it_raises_gives_its_message_back_at_once(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, fetched: str
) -> None:
    async def handle(delivery: rqttl.AsyncDelivery) -> None:
        async with delivery:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            raise ValueError

    await queue.enqueue_many([b"x"] * 40)
    async with queue.consume(prefetch=40) as deliveries:
        for _ in range(40):
            delivery = await (deliveries.__anext__() if fetched == "consume" else queue.receive())
            assert delivery is not None
            with pytest.raises(asyncio.CancelledError):
                await asyncio.ensure_future(handle(delivery))
        deliveries.stop()
        await _until(lambda: not [task for task in broker._driver._tasks if task is not deliveries._renewer])
        stats = await queue.stats()
        assert (stats.ready, stats.leased) == (40, 0)


@looped()
async def test_a_cancelled_wait_ends_its_presence_and_its_connection(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, client: Any
) -> None:
    tasks = [asyncio.ensure_future(queue.receive(wait="1h")) for _ in range(20)]
    await _until(lambda: client.info("clients")["blocked_clients"] == 20)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await _until(lambda: not broker._driver._tasks)
    assert client.info("clients")["blocked_clients"] == 0
    assert client.zcard("rqttl:{q}:waiters") == 0


@looped()
async def test_a_wait_with_auto_ack_that_is_cancelled_takes_no_message(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, client: Any
) -> None:
    task = asyncio.ensure_future(queue.receive(wait="1h", auto_ack=True))
    await _until(lambda: client.info("clients")["blocked_clients"] == 1)
    task.cancel()
    await queue.enqueue(b"x")
    with suppress(asyncio.CancelledError):
        await task
    await _until(lambda: not broker._driver._tasks)
    assert (await queue.stats()).ready + (await queue.stats()).acked == 1


@looped()
async def test_a_cancelled_iteration_goes_on_with_the_next_one(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, redis_url: str
) -> None:
    async with queue.consume(prefetch=10) as deliveries:
        with anyio.move_on_after(0.01):
            await deliveries.__anext__()
        await queue.enqueue_many([b"1", b"2", b"3"])
        seen = []
        async for delivery in deliveries:
            async with delivery:
                seen.append((delivery.body, delivery.delivery_count))
            if len(seen) == 3:
                break
    assert seen == [(b"1", 1), (b"2", 1), (b"3", 1)]
    await broker.aclose()
    assert await _state(redis_url) == (0, 0, 0)


@looped()
async def test_a_cancelled_consumer_releases_what_no_handler_has_seen(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, redis_url: str
) -> None:
    async def consume(queue: rqttl.AsyncQueue, began: asyncio.Event) -> None:
        async with queue.consume(prefetch=10) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    began.set()
                    await asyncio.sleep(3600)

    began = asyncio.Event()
    await queue.enqueue_many([b"1", b"2", b"3"])
    task = asyncio.ensure_future(consume(queue, began))
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    await broker.aclose()
    assert await _state(redis_url) == (3, 0, 0)


def test_the_work_of_cancelled_callers_belongs_to_the_broker(run: Run, redis_url: str, client: redis.Redis) -> None:
    """`aclose` waits for it."""

    async def work() -> None:
        broker = rqttl.connect_async(redis_url)
        queue = await broker.declare_queue("q")
        client.client_pause(600_000, all=False)  # so the work is still under way below
        try:
            tasks = [asyncio.ensure_future(queue.enqueue(b"x")) for _ in range(100)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert isinstance(broker._driver, AsyncDriver)
            assert broker._driver._tasks
            closing = asyncio.ensure_future(broker.aclose())
            await asyncio.sleep(0)
        finally:
            client.client_unpause()
        await closing
        assert await _state(redis_url) == (100, 0, 0)

    run(work())

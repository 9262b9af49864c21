"""A cancelled caller leaves nothing: no lease, no failed delivery, no lost message."""

import asyncio
import gc
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
import redis

import rqttl
from rqttl.aio.driver import AsyncDriver
from rqttl.aio.store import Call
from tests.aio.conftest import LOOPS, Run, looped

#: The least number of cancellations of each campaign.
CANCELS = int(os.environ.get("RQTTL_TEST_CANCELS", "300"))
CONSUMERS = 8
MESSAGES = 1_500


async def _cancelled_by_asyncio(work: Callable[[], Any], seconds: float) -> bool:
    """Do work for so long. Returns True if it was cancelled."""
    timeout: Any = vars(asyncio).get("timeout")  # Python 3.10 has none
    try:
        if timeout is None:
            await asyncio.wait_for(work(), seconds)
        else:
            async with timeout(seconds):
                await work()
    except asyncio.TimeoutError:
        return True
    return False


async def _cancelled_by_anyio(work: Callable[[], Any], seconds: float) -> bool:
    """Do work within a cancel scope, whose cancellation comes again at every await."""
    with anyio.move_on_after(seconds) as scope:
        await work()
    return scope.cancelled_caught


class Campaign:
    """Consumers that are cancelled at random moments handle all messages, in rounds."""

    def __init__(self, url: str, client: redis.Redis, cancelled: Callable[..., Any], seed: int) -> None:
        self._url, self._client, self._cancelled, self._chance = url, client, cancelled, random.Random(seed)
        self._connections = len(client.client_list())
        self._cancels, self._redelivered, self._done = 0, 0, Counter[int]()
        #: What went wrong.
        self.faults: list[object] = []

    async def run(self) -> None:
        """Play rounds until there were enough cancellations."""
        others = asyncio.all_tasks()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.faults.append(context))
        while self._cancels < CANCELS and not self.faults:
            async with rqttl.connect_async(self._url) as broker:
                queue = await broker.declare_queue("q", max_deliveries=3, lease="10m")
                await queue.purge()
                self._done.clear()
                await queue.enqueue_many(list(range(MESSAGES)))
                await asyncio.gather(*[self._consume(queue) for _ in range(CONSUMERS)])
            async with rqttl.connect_async(self._url) as broker:
                stats = await broker.queue("q").stats()
            counts = self._redelivered, stats.redelivered, stats.leased, sum(stats.deaths.values())
            if (len(self._done), max(self._done.values()), *counts) != (MESSAGES, 1, 0, 0, 0, 0):
                self.faults.append((self._done.most_common(2), *counts))
        self.faults += asyncio.all_tasks() - others

    async def _consume(self, queue: rqttl.AsyncQueue) -> None:
        chance = random.Random(self._chance.random())

        async def work() -> None:
            delivery = await queue.receive(wait="20ms" if chance.random() < 0.5 else None)
            if delivery is not None:
                # in the same step of the task: from here on the message counts as done, and its ack must arrive
                self._done[delivery.decode()] += 1
                self._redelivered += delivery.delivery_count > 1
                await delivery.ack()

        while len(self._done) < MESSAGES:
            # Most moments are within the first millisecond: a message is received and acknowledged in that time, and
            # work that is done cancels nothing.
            was_cancelled = await self._cancelled(work, 0.0003 * chance.random() * 4 ** chance.randrange(4))
            self._cancels += was_cancelled
            if was_cancelled and self._cancels % 20 == 0:
                # a consumer has one; Redis may be late to notice the end of one before, and of those of the last round
                more = len(self._client.client_list()) - self._connections
                if more > 4 * CONSUMERS + 4:
                    self.faults.append(f"{more} connections")


@pytest.mark.slow
@pytest.mark.timeout(max(600, CANCELS / 10))
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("cancelled", [_cancelled_by_asyncio, _cancelled_by_anyio])
def test_random_cancellations_lose_nothing_and_redeliver_nothing(
    redis_url: str, client: redis.Redis, loop: str, cancelled: Callable[..., Any]
) -> None:
    campaign, own = Campaign(redis_url, client, cancelled, seed=7), LOOPS[loop]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            own.run_until_complete(campaign.run())
            own.run_until_complete(own.shutdown_asyncgens())
        finally:
            own.close()
            gc.collect()
    assert campaign.faults == []


async def _until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def _shared(broker: rqttl.AsyncBroker) -> Any:
    return broker._driver.store.topology.nodes[0]._shared


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

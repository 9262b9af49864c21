"""The asyncio interface beside workers: the wait for any of several queues, and the list of workers."""

from __future__ import annotations

import asyncio
import json
import time

import redis

import rqttl
from rqttl import WaitEvent, flows
from rqttl.aio.driver import AsyncDriver
from rqttl.flows.steps import Flow
from rqttl.testing import async_fake_broker
from tests.aio.conftest import Run

#: Much longer than a test may take.
LONG = 600_000


def wait_for_any(queues: list[str], ms: int = LONG) -> Flow[object]:
    return (yield flows.steps.WaitForAnyWakeup(queues, ms))


def driver_of(broker: rqttl.AsyncBroker) -> AsyncDriver:
    return broker._driver


def test_a_wait_for_several_queues_tells_the_queue_and_its_element(
    run: Run, redis_url: str, client: redis.Redis
) -> None:
    async def work() -> tuple[object, list[str]]:
        async with rqttl.connect_async(redis_url) as broker:
            waiting: list[str] = []
            broker.events.subscribe(lambda event: waiting.append(event.queue), WaitEvent)
            wait = asyncio.ensure_future(driver_of(broker).perform(wait_for_any(["a", "b"])))
            while not client.info("clients")["blocked_clients"]:
                await asyncio.sleep(0)
            client.rpush("rqttl:{b}:wakeup", "ticket")
            return await wait, waiting

    assert run(work()) == (("b", b"ticket"), ["a", "b"])


def test_its_time_and_the_end_of_the_broker_end_it(run: Run, redis_url: str) -> None:
    async def work() -> object:
        async with rqttl.connect_async(redis_url) as broker:
            short = await driver_of(broker).perform(wait_for_any(["a", "b"], 10))
            wait = asyncio.ensure_future(driver_of(broker).perform(wait_for_any(["a", "b"])))
            await asyncio.sleep(0)
        return short, await wait

    assert run(work()) == (None, b"ended")


def test_on_a_fake_broker_the_clock_moves_to_its_end() -> None:
    async def work() -> None:
        async with async_fake_broker() as broker:
            before = broker.clock.now
            assert await driver_of(broker).perform(wait_for_any(["a"], 5_000)) is None
            assert (broker.clock.now - before).total_seconds() == 5

    asyncio.run(work())


def test_workers_are_the_same_as_in_the_sync_interface(
    run: Run, redis_url: str, broker: rqttl.Broker, client: redis.Redis
) -> None:
    details = {
        "role": "worker",
        "host": "h",
        "pid": 1,
        "queues": ["q"],
        "slots": 2,
        "running": [],
        "handled": 3,
        "failed": 4,
        "rss": 5,
        "version": "1",
        "started": 6,
        "last_claim": None,
        "beat": int(time.time() * 1000),
    }
    client.hset("rqttl:workers", "me", json.dumps(details))

    async def work() -> list[rqttl.WorkerInfo]:
        async with rqttl.connect_async(redis_url) as own:
            return await own.workers()

    [worker] = run(work())
    assert (worker.name, worker.handled) == ("me", 3)
    assert broker.workers() == [worker]

"""Enqueue calls of one pass of the loop go out as one call, and each has the outcome that it would have alone."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import redis

import rqttl
from rqttl import Broker, Message, MessageTooLarge, QueueFull
from tests.aio.conftest import Run, looped

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "reject": {"max_length": 30, "overflow": "reject-publish"},
    "reject with dead letters": {"max_length": 30, "overflow": "reject-publish-dlx", "dead_letter": "dead"},
    "drop": {"max_length": 7, "dead_letter": "dead"},
    "bytes": {"max_length_bytes": 90, "overflow": "reject-publish"},
    "window": {"duplicate_window": "1h"},
    "at once": {"message_ttl": 0, "dead_letter": "dead"},
    "retention": {"message_ttl": "1h"},
    "size": {"max_message_bytes": 6},
}
KINDS: dict[str, list[object]] = {
    "bodies": [b"%d" % i for i in range(60)],
    "values": [{"v": i} for i in range(60)],
    "ids": [Message(b"%d" % i, id=f"id-{i % 50}") for i in range(60)],
    "one TTL": [Message(b"%d" % i, ttl="1h") for i in range(60)],
    "dead ones": [Message(b"%d" % i, ttl=0 if i % 7 == 0 else None, id=f"{i}") for i in range(60)],
    "mixed": [[b"%d" % i, i, Message(b"%d" % i, id=f"{i}"), Message(i, ttl="1h")][i // 3 % 4] for i in range(60)],
}


def told(result: object) -> object:
    """The outcome of a call, without the sequence and the deadline."""
    if isinstance(result, rqttl.Receipt):
        return result.duplicate, result.expired, result.expires_at is None
    return type(result), getattr(result, "limit", "")


def stored(broker: Broker, *queues: str) -> list[list[bytes]]:
    return [[view.body for view in broker.queue(name).peek(100)] for name in queues]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", OPTIONS)
def test_each_call_has_the_outcome_that_it_would_have_alone(
    run: Run, redis_url: str, broker: Broker, kind: str, way: str
) -> None:
    options = {
        name: value.replace("dead", "dead-alone") if name == "dead_letter" else value
        for name, value in OPTIONS[way].items()
    }
    for name in ("dead", "dead-alone"):
        broker.declare_queue(name)
    alone, alone_told = broker.declare_queue("alone", **options), []
    for message in KINDS[kind]:
        try:
            alone_told.append(told(alone.enqueue(message)))
        except (QueueFull, MessageTooLarge) as error:
            alone_told.append(told(error))

    async def work() -> list[object]:
        async with rqttl.connect_async(redis_url) as own:
            queue = await own.declare_queue("together", **OPTIONS[way])
            return await asyncio.gather(*[queue.enqueue(one) for one in KINDS[kind]], return_exceptions=True)

    assert [told(result) for result in run(work())] == alone_told
    assert stored(broker, "together", "dead") == stored(broker, "alone", "dead-alone")
    counts, alone_counts = broker.queue("together").stats(), alone.stats()
    assert (counts.enqueued, counts.refused, counts.deaths) == (
        alone_counts.enqueued,
        alone_counts.refused,
        alone_counts.deaths,
    )


@looped()
async def test_calls_of_one_pass_take_few_script_calls(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, client: redis.Redis
) -> None:
    other = await broker.declare_queue("other")
    await asyncio.gather(*[queue.enqueue(b"first") for _ in range(3)])
    client.config_resetstat()
    await asyncio.gather(*[queue.enqueue(b"%d" % i) for i in range(200)])
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    await asyncio.gather(*[queue.enqueue(b"%d" % i) for i in range(200, 500)], other.enqueue(b"x"))
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 4  # 250, 50 and the other

    assert [view.body for view in await queue.peek(503)] == [b"first"] * 3 + [b"%d" % i for i in range(500)]


@looped()
async def test_a_refusal_because_of_other_options_repeats_all_calls(
    own: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, broker: Broker
) -> None:
    broker.set_policy("p", "q", {"max_length": 5, "overflow": "reject-publish"})
    sent = await asyncio.gather(*[queue.enqueue(b"%d" % i) for i in range(10)], return_exceptions=True)
    assert [type(one) for one in sent] == [rqttl.Receipt] * 5 + [QueueFull] * 5


@looped()
async def test_full_memory_refuses_each_call_with_an_error_of_its_own(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, full_memory: Callable[..., Any]
) -> None:
    with full_memory():
        sent = await asyncio.gather(*[queue.enqueue(b"x") for _ in range(5)], return_exceptions=True)
    assert all(isinstance(one, redis.ResponseError) and "memory" in str(one) for one in sent), sent
    assert len({id(one) for one in sent}) == 5
    assert (await queue.stats()).ready == 0


@pytest.mark.parametrize("passes", [1, 2, 3])
@looped()
async def test_callers_that_are_cancelled_take_no_message_along_and_disturb_no_other(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, passes: int
) -> None:
    """After one pass of the loop the joined call has not gone out, after two it has."""

    await asyncio.gather(*[queue.enqueue(b"first") for _ in range(3)])
    calls = [asyncio.ensure_future(queue.enqueue(b"%d" % i)) for i in range(20)]
    for _ in range(passes):
        await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    ends = [type(end) for end in await asyncio.gather(*calls, return_exceptions=True)]
    assert ends[1::2] == [rqttl.Receipt] * 10
    assert set(ends[::2]) == {asyncio.CancelledError}

    await asyncio.gather(*[queue.enqueue(b"last") for _ in range(3)])
    bodies = [view.body for view in await queue.peek(100)]
    assert bodies == [b"first"] * 3 + [b"%d" % i for i in range(20)] + [b"last"] * 3

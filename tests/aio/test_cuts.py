"""Connections that are cut at random: each call ends as in the sync interface. `RQTTL_TEST_CUTS=1000` for more runs."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import rqttl
from tests.aio.campaign import LOOPS
from tests.process.proxy import Proxy
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUNS = int(os.environ.get("RQTTL_TEST_CUTS", "40"))
CALLERS = 20

#: A call, and the script whose reply is lost. `queue` is of either interface; so is `delivery`, which it has leased.
CALLS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "enqueue": (lambda queue, *_: queue.enqueue(b"new"), "enqueue"),
    "enqueue_many": (lambda queue, *_: queue.enqueue_many([b"1", b"2"]), "enqueue"),
    "enqueue with an id": (lambda queue, *_: queue.enqueue(b"new", id="mine"), "enqueue"),
    "receive": (lambda queue, *_: queue.receive(), "receive"),
    "ack": (lambda _, delivery, __: delivery.ack(), "ack"),
    "nack": (lambda _, delivery, __: delivery.nack(), "nack"),
    "reject": (lambda _, delivery, __: delivery.reject("bad"), "reject"),
    "renew": (lambda _, delivery, __: delivery.renew("1h"), "renew"),
    "redrive": (lambda _, __, dead: dead.redrive(), "redrive"),
    "sweep": (lambda queue, *_: queue.sweep(), "sweep"),
}


def _outcome(call: Callable[[], Any]) -> str:
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001  # it is the outcome
        return type(error).__name__
    return "delivery" if isinstance(answer, rqttl.Delivery | rqttl.AsyncDelivery) else type(answer).__name__


def _state(queue: rqttl.Queue, dead: rqttl.Queue) -> list[object]:
    kept = [[(message.body, message.state, message.delivery_count) for message in one.peek()] for one in (queue, dead)]
    stats = queue.stats()
    return [*kept, stats.acked, stats.deaths, stats.redelivered, dead.stats().redriven]


def _prepare(broker: rqttl.Broker) -> tuple[rqttl.Queue, rqttl.Queue]:
    queue, dead = broker.declare_queue("q", dead_letter="dead", duplicate_window="1h"), broker.declare_queue("dead")
    queue.enqueue_many([b"letter", b"first", b"second"])
    queue.reject_many(queue.receive_many(1))
    return queue, dead


def _sync(url: str, proxy: Proxy, name: str, faults: list[str]) -> tuple[str, list[object]]:
    call, script = CALLS[name]
    with rqttl.connect(url) as broker:
        queue, dead = _prepare(broker)
        delivery = queue.receive()
        proxy.spoil(*faults, script=script)
        return _outcome(lambda: call(queue, delivery, dead)), _state(queue, dead)


def _asynchronous(url: str, proxy: Proxy, name: str, faults: list[str]) -> tuple[str, list[object]]:
    call, script = CALLS[name]

    async def work(broker: rqttl.AsyncBroker) -> Any:
        async with broker:
            queue = broker.queue("q")
            delivery = await queue.receive()
            proxy.spoil(*faults, script=script)
            return await call(queue, delivery, broker.queue("dead"))

    with rqttl.connect(url) as broker:
        queue, dead = _prepare(broker)
        outcome = _outcome(lambda: asyncio.run(work(rqttl.connect_async(url))))
        return outcome, _state(queue, dead)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_connection_is_cut_ends_as_in_the_sync_interface(
    proxy: Proxy, client: Any, server: Server, name: str
) -> None:
    chance, url = random.Random(name), f"redis://127.0.0.1:{proxy.port}"
    for _ in range(max(2, RUNS // len(CALLS))):
        faults = ["cut"] * chance.randint(1, 3)
        ends = []
        for how in (_sync, _asynchronous):
            client.flushall()
            ends.append(how(url, proxy, name, faults))
            proxy._faults.clear()
        assert ends[0] == ends[1], faults


@pytest.mark.parametrize("loop", LOOPS)
def test_of_many_calls_in_flight_each_one_without_a_reply_is_unknown(proxy: Proxy, client: Any, loop: str) -> None:
    chance, ends = random.Random(loop), Counter[str]()

    async def send(queue: rqttl.AsyncQueue, known: dict[bytes, str], caller: int) -> None:
        for number in range(4):
            body = b"%d %d" % (caller, number)
            try:
                await queue.enqueue(body)
                known[body] = "stored"
            except rqttl.OutcomeUnknown:
                known[body] = "unknown"

    async def work() -> dict[bytes, str]:
        known: dict[bytes, str] = {}
        async with rqttl.connect_async(f"redis://127.0.0.1:{proxy.port}") as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"first")
            proxy.spoil(*["cut" if chance.random() < 0.5 else "refuse" for _ in range(3)], script="enqueue")
            await asyncio.gather(*[send(queue, known, caller) for caller in range(CALLERS)])
        return known

    for _ in range(RUNS // 4):
        client.flushall()
        own = LOOPS[loop]()
        try:
            known = own.run_until_complete(work())
        finally:
            own.close()
        proxy._faults.clear()
        with rqttl.connect(f"redis://127.0.0.1:{proxy.port}") as broker:
            stored = Counter(message.body for message in broker.queue("q").peek(1000))
        assert len(known) == 4 * CALLERS
        assert max(stored.values()) == 1
        assert {body for body, end in known.items() if end == "stored"} <= set(stored)
        ends.update(known.values())
    assert ends["unknown"]
    assert ends["stored"]

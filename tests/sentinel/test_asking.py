"""Which Sentinel is asked and what it tells, who listens to it, and wrong topologies: each is one clear line."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

import rqttl
from tests.ports import free_port
from tests.sentinel.stub import StubSentinel
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.once

StartStub = Callable[[Callable[[str], int | None]], StubSentinel]


@pytest.fixture
def stub() -> Iterator[StartStub]:
    stubs: list[StubSentinel] = []

    def start(primary: Callable[[str], int | None]) -> StubSentinel:
        stubs.append(StubSentinel(primary))
        return stubs[-1]

    yield start
    for one in stubs:
        one.end()


@pytest.fixture
def port(start_server: Callable[..., Server]) -> int:
    """The port of a server."""
    port = free_port()
    start_server(port=port, bind="127.0.0.1")
    return port


CONNECTS = pytest.mark.parametrize("connect", [rqttl.connect, rqttl.connect_async])


def refusal(connect: Any, url: str) -> str:
    """What a broker of either interface says of the wrong topology: one line without secrets."""

    def ask() -> None:
        with rqttl.connect(url, patience=0) as broker:
            broker.queues()

    async def ask_by_asyncio() -> None:
        async with rqttl.connect_async(url, patience=0) as broker:
            await broker.queues()

    with pytest.raises((rqttl.InvalidInput, redis.RedisError)) as refused:
        ask() if connect is rqttl.connect else asyncio.run(ask_by_asyncio())
    assert "\n" not in str(refused.value)
    assert "s3cret" not in f"{refused.value} {refused.value!r}"
    return str(refused.value)


@CONNECTS
def test_the_wrong_topology_is_one_clear_line(connect: Any, port: int, stub: StartStub) -> None:
    def told(sentinels: str, service: str = "main") -> str:
        return refusal(connect, f"redis+sentinel://:s3cret@{sentinels}/{service}")

    assert f"127.0.0.1:{port} is a Redis server, no Sentinel" in told(f"127.0.0.1:{port}")
    assert told(f"127.0.0.1:{stub(lambda _: None).port}", "mian").startswith("service 'mian': no Sentinel names its")
    away = told("127.0.0.1:1,127.0.0.1:2", "main?sentinel_password=s3cret")
    assert "127.0.0.1:1 does not answer" in away
    assert "127.0.0.1:2 does not answer" in away
    with redis.Redis(port=port) as client:
        client.replicaof("127.0.0.1", "1")  # a primary that is away
    assert f"127.0.0.1:{port} is not the primary yet" in told(f"127.0.0.1:{stub(lambda _: port).port}")


def test_the_sentinel_that_answered_last_is_asked_first(port: int, stub: StartStub) -> None:
    first, second = stub(lambda _: None), stub(lambda _: port)
    with rqttl.connect(f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}/main") as broker:
        broker.queues()
        assert (len(first.asked), len(second.asked)) == (1, 1)
        broker._driver.store.renew()
        broker.queues()

        assert (len(first.asked), len(second.asked)) == (1, 2)


def test_a_sentinel_that_has_not_heard_of_the_new_primary_is_asked_after_the_one_that_told_of_it(
    start_server: Callable[..., Server], port: int, stub: StartStub
) -> None:
    new = free_port()
    server = start_server(port=new, bind="127.0.0.1")
    told = stub(lambda _: new)

    def tell_and_name_the_old_one(_: str) -> int:
        until(lambda: told.listeners)
        told.tell("+switch-master", f"main 127.0.0.1 {port} 127.0.0.1 {new}")
        until(lambda: service.switches)
        return port

    late = stub(tell_and_name_the_old_one)
    with rqttl.connect(f"redis+sentinel://127.0.0.1:{late.port},127.0.0.1:{told.port}/main") as broker:
        service = broker._driver.store.topology.nodes[0]._client.connection_pool.connection_kwargs["service"]
        broker.declare_queue("q")

    assert len(late.asked) <= 1  # 0 on a machine that is too busy to let it answer
    with server.client() as client:
        assert client.dbsize()


@pytest.mark.parametrize(
    "channel, text",
    [
        ("+switch-master", "main 127.0.0.1 3 127.0.0.1 1"),
        ("+promoted-slave", "slave 127.0.0.1:1 127.0.0.1 1 @ main 127.0.0.1 3"),
    ],
)
def test_a_wait_ends_when_a_sentinel_tells_of_another_primary(
    port: int, stub: StartStub, channel: str, text: str
) -> None:
    sentinel = stub(lambda _: port)
    with rqttl.connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/main") as broker, redis.Redis(port=port) as client:
        queue = broker.declare_queue("q")
        waiting = threading.Thread(target=queue.receive, args=["1h"])
        waiting.start()

        def blocked() -> set[str]:
            return {one["id"] for one in client.client_list() if one["cmd"] == "blpop"}

        until(lambda: blocked() and sentinel.listeners)
        (before,) = blocked()
        sentinel.tell(channel, text.replace("main", "other"))
        sentinel.tell(channel, text)

        until(lambda: blocked() and before not in blocked())  # it asked again, and waits anew
        broker.interrupt()
        waiting.join()


def test_close_ends_an_asyncio_watcher_that_misses_its_cancellation(
    port: int, stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = redis.asyncio.Connection.send_command
    subscribes = asyncio.Event()

    async def miss(self: Any, *words: Any, **options: Any) -> None:
        await send(self, *words, **options)
        if words[0] == "SUBSCRIBE":
            subscribes.set()
            with suppress(asyncio.CancelledError):  # as `asyncio.wait_for` of Python before 3.12 does at that moment
                await asyncio.Event().wait()

    async def close_at_that_moment() -> None:
        async with rqttl.connect_async(f"redis+sentinel://127.0.0.1:{stub(lambda _: port).port}/main") as broker:
            await broker.queues()
            await subscribes.wait()
            await asyncio.wait_for(broker.aclose(), PATIENCE)

    monkeypatch.setattr(redis.asyncio.Connection, "send_command", miss)
    asyncio.run(close_at_that_moment())


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rqttl-sentinel"]


def test_no_watcher_is_there_before_the_first_call_after_close_or_in_a_forked_child(port: int, stub: StartStub) -> None:
    sentinel = stub(lambda _: port)
    broker = rqttl.connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/main")
    assert watchers() == []
    broker.queues()
    assert len(watchers()) == 1

    child = os.fork()
    if not child:
        broker.close()
        os._exit(len(watchers()))
    assert os.waitpid(child, 0)[1] == 0
    assert len(watchers()) == 1

    broker.close()
    until(lambda: watchers() == [])

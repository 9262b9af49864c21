"""URLs with Sentinels, what brokers show of them, and wrong topologies: each is one clear line."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

import rqttl
from rqttl.telemetry.tracing import server_of
from tests.ports import free_port
from tests.sentinel.stub import StubSentinel
from tests.servers import Server
from tests.waiting import until

pytestmark = pytest.mark.once

CONNECTS = [rqttl.connect, rqttl.connect_async]
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


def names(connect: Any, url: str, **options: Any) -> list[str]:
    """The queues, by either interface."""
    if connect is rqttl.connect:
        with rqttl.connect(url, **options) as broker:
            return list(broker.queues())

    async def work() -> list[str]:
        async with rqttl.connect_async(url, **options) as broker:
            return list(await broker.queues())

    return list(asyncio.run(work()))


def refusal(connect: Any, url: str) -> str:
    with pytest.raises((rqttl.InvalidInput, redis.ConnectionError)) as refused:
        names(connect, url, patience=0)
    assert "\n" not in str(refused.value)
    assert "s3cret" not in f"{refused.value} {refused.value!r}"
    return str(refused.value)


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis+sentinel://a/main", "redis+sentinel://a:26379/main/0"),
        ("redis+sentinel://a:1,b:2/main/", "redis+sentinel://a:1/main/0"),
        ("redis+sentinel://u:s3cret@a,b/main/3", "redis+sentinel://a:26379/main/3"),
        ("rediss+sentinel://:s3cret@[::1]:5,b/main", "rediss+sentinel://::1:5/main/0"),
        ("redis+sentinel://a/main/2?sentinel_username=u&sentinel_password=s3cret", "redis+sentinel://a:26379/main/2"),
        ("redis+sentinel://a/main?socket_timeout=3&db=4", "redis+sentinel://a:26379/main/4"),
    ],
)
def test_a_url_names_sentinels_a_service_and_a_database(connect: Any, url: str, shown: str) -> None:
    assert f"Broker {shown} namespace 'rqttl'>" in repr(connect(url))


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel:///main",
        "redis+sentinel://a,/main",
        "redis+sentinel://a:x/main",
        "redis+sentinel://a/main/x",
        "redis+sentinel://a/main/1/2",
        "redis+sentinel://:s3/cret@a/main",
        "redis+sentinel://:s3#cret@a/main",
        "redis+sentinel://a/main?colour=s3cret",
        "redis+sentinel://a/main?sentinel_colour=s3cret",
        "redis+sentinel://a/main?socket_timeout=s3cret",
        "unix+sentinel://a/main",
    ],
)
def test_a_url_of_another_form_is_refused_without_its_password(connect: Any, url: str) -> None:
    with pytest.raises(rqttl.InvalidInput, match=r"^url: ") as refused:
        connect(url)

    assert "s3" not in str(refused.value)


def test_telemetry_has_the_service_and_the_first_sentinel() -> None:
    with rqttl.connect("redis+sentinel://a:1,b:2/main") as broker:
        assert server_of(broker) == {"server.address": "main@a", "server.port": 1}


@pytest.mark.parametrize("connect", CONNECTS)
@pytest.mark.parametrize("patience", ["30", -1, 5])
def test_patience_has_a_unit(connect: Any, patience: Any) -> None:
    with pytest.raises(rqttl.InvalidDuration, match=r"^patience: "):
        connect("redis+sentinel://a/main", patience=patience)


def test_clients_for_replicas_are_refused() -> None:
    with pytest.raises(rqttl.InvalidInput, match="use master_for"):
        rqttl.Broker(redis.sentinel.Sentinel([("a", 1)]).slave_for("main"))
    with pytest.raises(rqttl.InvalidInput, match="use master_for"):
        rqttl.AsyncBroker(redis.asyncio.sentinel.Sentinel([("a", 1)]).slave_for("main"))


@pytest.mark.parametrize("connect", CONNECTS)
class TestWrongTopology:
    def test_the_address_of_a_server_where_a_sentinel_belongs(
        self, connect: Any, start_server: Callable[..., Server]
    ) -> None:
        port = free_port()
        start_server(port=port, bind="127.0.0.1")

        assert f"127.0.0.1:{port} is a Redis server, no Sentinel" in refusal(
            connect, f"redis+sentinel://:s3cret@127.0.0.1:{port}/main"
        )

    def test_an_unknown_service(self, connect: Any, stub: StartStub) -> None:
        sentinel = stub(lambda _: None)

        line = refusal(connect, f"redis+sentinel://:s3cret@127.0.0.1:{sentinel.port}/mian")

        assert line.startswith("service 'mian': no Sentinel names its primary")

    def test_a_replica_that_a_sentinel_names(
        self, connect: Any, start_server: Callable[..., Server], stub: StartStub
    ) -> None:
        port = free_port()
        with start_server(port=port, bind="127.0.0.1").client() as client:
            client.replicaof("127.0.0.1", "1")  # a primary that is away
        sentinel = stub(lambda _: port)

        line = refusal(connect, f"redis+sentinel://127.0.0.1:{sentinel.port}/main")

        assert f"127.0.0.1:{port} is not the primary yet, or no longer" in line

    def test_all_sentinels_away(self, connect: Any) -> None:
        line = refusal(connect, "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main?sentinel_password=s3cret")

        assert "127.0.0.1:1 does not answer" in line
        assert "127.0.0.1:2 does not answer" in line


def test_the_sentinel_that_answered_last_is_asked_first(start_server: Callable[..., Server], stub: StartStub) -> None:
    port = free_port()
    start_server(port=port, bind="127.0.0.1")
    first, second = stub(lambda _: None), stub(lambda _: port)
    with rqttl.connect(f"redis+sentinel://127.0.0.1:{first.port},127.0.0.1:{second.port}/main") as broker:
        broker.queues()
        assert (len(first.asked), len(second.asked)) == (1, 1)
        broker._driver.store.renew()
        broker.queues()

        assert (len(first.asked), len(second.asked)) == (1, 2)


def test_a_sentinel_that_has_not_heard_of_the_new_primary_is_asked_after_the_one_that_told_of_it(
    start_server: Callable[..., Server], stub: StartStub
) -> None:
    old, new = free_port(), free_port()
    start_server(port=old, bind="127.0.0.1")
    server = start_server(port=new, bind="127.0.0.1")
    told = stub(lambda _: new)

    def tell_and_name_the_old_one(_: str) -> int:
        until(lambda: told.listeners)
        told.tell("+switch-master", f"main 127.0.0.1 {old} 127.0.0.1 {new}")
        until(lambda: service.switches)
        return old

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
    start_server: Callable[..., Server], stub: StartStub, channel: str, text: str
) -> None:
    port = free_port()
    server = start_server(port=port, bind="127.0.0.1")
    sentinel = stub(lambda _: port)
    with rqttl.connect(f"redis+sentinel://127.0.0.1:{sentinel.port}/main") as broker, server.client() as client:
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


def watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rqttl-sentinel"]


def test_no_watcher_is_there_before_the_first_call_after_close_or_in_a_forked_child(
    start_server: Callable[..., Server], stub: StartStub
) -> None:
    port = free_port()
    start_server(port=port, bind="127.0.0.1")
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

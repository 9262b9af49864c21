"""The shared connection: lost, it has the same outcomes as the sync one, and a slow server holds callers back."""

import asyncio
import gc
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

import rqttl
from rqttl.aio import store
from rqttl.protocol.commands import Command
from rqttl.store.topology import Node
from tests import tls
from tests.aio.conftest import LOOPS, Run, looped
from tests.cluster_servers import ClusterServers
from tests.ports import free_port
from tests.process.proxy import Proxy
from tests.servers import SentinelSet, Server, server_binary

#: `RQTTL_TEST_CUTS=1000` for more runs.
RUNS = int(os.environ.get("RQTTL_TEST_CUTS", "40"))
CALLERS = 20


@looped()
async def test_a_call_that_was_never_sent_is_made_again(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, proxy: Proxy
) -> None:
    broker._driver.store.topology.nodes[0]._shared.abandon(OSError("cut"))  # type: ignore[union-attr]  # it is open
    proxy.spoil("refuse")
    await queue.enqueue(b"x")
    assert (await queue.stats()).ready == 1


@looped()
async def test_a_server_that_never_answers_ends_a_call_with_a_time_out(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(b"first")
    # the calls so far may take their time; the next one goes over a new one
    broker._driver.store.topology.nodes[0]._shared.abandon(OSError("cut"))  # type: ignore[union-attr]  # it is open
    monkeypatch.setattr(store, "SOCKET_TIMEOUT", 0.05)
    monkeypatch.setattr(store, "GRACE", 0.05)
    proxy.spoil("swallow", script="enqueue")
    with pytest.raises(rqttl.OutcomeUnknown) as lost:
        await queue.enqueue(b"x")
    assert "Timeout" in str(lost.value.__cause__)


@looped()
async def test_bytes_that_are_no_reply_end_the_line_and_its_calls(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue
) -> None:
    await queue.enqueue(b"first")
    sent = asyncio.ensure_future(queue.enqueue(b"x"))
    await asyncio.sleep(0)
    own: Any = broker._driver.store.topology.nodes[0]._shared
    own._connection._reader.feed_data(b"what?\r\n")
    with pytest.raises(rqttl.OutcomeUnknown):
        await sent
    await queue.enqueue(b"y")
    assert broker._driver.store.topology.nodes[0]._shared is not own


@looped()
async def test_a_connection_that_was_lost_before_its_first_call_is_replaced(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue
) -> None:
    node: Any = broker._driver.store.topology.nodes[0]
    pool, get = node._client.connection_pool, node._client.connection_pool.get_connection
    lost: list[Any] = []

    async def get_and_lose() -> Any:
        connection = await get()
        if not lost:
            lost.append(connection)
            connection._writer.transport.abort()
            await connection._writer.wait_closed()  # the loop has told redis-py
        return connection

    pool.get_connection = get_and_lose
    node._shared.abandon(OSError("cut"))
    await queue.enqueue(b"x")
    assert lost
    assert (await queue.stats()).ready == 1


@looped()
async def test_a_call_of_a_loop_that_was_blocked_goes_over_no_connection_whose_end_has_come(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "QUICK", 0)
    for number in range(4):
        await queue.enqueue(b"%d" % number)
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert len(client.client_list()) == 1
    assert (await queue.stats()).ready == 4


@looped()
async def test_calls_of_one_pass_of_the_loop_go_out_in_one_write(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(b"first")
    own: Any = broker._driver.store.topology.nodes[0]._shared
    writes: list[object] = []
    write = own._writer.write

    def counted(data: bytes) -> None:
        writes.append(data)
        write(data)

    monkeypatch.setattr(own._writer, "write", counted)
    await asyncio.gather(*[queue.enqueue(b"%d" % i) for i in range(100)])
    assert len(writes) <= 2  # the call before was a lone one, so the first of these goes out at once
    assert [view.body for view in await queue.peek(101)] == [b"first", *(b"%d" % i for i in range(100))]


def test_callers_wait_while_redis_takes_nothing(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FULL", 10_000)
    most: list[int] = []

    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queue = await broker.declare_queue("q")

            async def send(number: int) -> None:
                for _ in range(20):
                    await queue.enqueue(b"%04d" % number + b"x" * 50_000)
                    own: Any = broker._driver.store.topology.nodes[0]._shared
                    most.append(own._size + own._writer.transport.get_write_buffer_size())

            await asyncio.gather(*map(send, range(20)))
            assert (await queue.stats()).ready == 400

    run(work())
    assert max(most) < 20 * 51_000


def test_a_replica_or_a_dead_server_ends_a_wait_and_what_looks_next_finds_out(
    run: Run, start_server: Callable[..., Server]
) -> None:
    server = start_server()

    async def work() -> None:
        async with rqttl.connect_async(server.url) as broker:
            await broker.declare_queue("q")
            with server.client() as client:
                client.replicaof("127.0.0.1", 1)
            assert await broker._driver.store.listen("q", ["rqttl:{q}:wakeup"], 600_000, []) is None
            server.kill()
            broker._driver.store.renew()
            assert await broker._driver.store.listen("q", ["rqttl:{q}:wakeup"], 600_000, []) is None

    run(work())


@pytest.mark.parametrize("how", ["ack", "reject"])
def test_a_lost_reply_and_other_options_after_it_make_no_success_a_failure(
    run: Run, redis_url: str, broker: rqttl.Broker, how: str
) -> None:
    """Redis carries out a call, its reply is lost, and Redis refuses the repeated call: the options are other ones."""
    lost: list[str] = []

    async def work() -> None:
        async with rqttl.connect_async(redis_url) as own:
            own.events.subscribe(lambda _: None)  # now each script goes through the store
            queue = await own.declare_queue("q", dead_letter="dead")
            await queue.enqueue(b"x")
            exchanges = own._driver.store.exchanges
            send = exchanges._script

            def lose_one_reply(node: Node, command: Command, reply: Any) -> Generator[Any, Any, Any]:
                answer = yield from send(node, command, reply)
                if command.script.name == {"ack": "receive", "reject": "reject"}[how] and not lost:
                    lost.append(command.script.name)
                    broker.set_policy("p", "q", {"lease": "1m"})
                    raise redis.ConnectionError("the reply was lost")
                return answer

            async with queue.consume(wait=0) as deliveries:
                async for delivery in deliveries:
                    exchanges._script = lose_one_reply  # type: ignore[method-assign]  # the place of a lost reply
                    await getattr(delivery, how)()
                missed = deliveries.lost, deliveries.unknown
            assert (missed, delivery.settled) == (([], []), how)
            assert (await queue.stats()).acked == (how == "ack")

    run(work())
    assert lost


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `certify`."""
    return tls.certify(tmp_path_factory.mktemp("tls"))


@pytest.mark.once
@pytest.mark.slow
def test_calls_go_over_an_encrypted_line_and_over_the_next_one(
    run: Run, start_server: Callable[..., Server], certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FULL", 10_000)
    held: list[store.SharedConnection] = []
    room = store.SharedConnection.room

    async def counted(own: store.SharedConnection) -> None:
        held.append(own)
        await room(own)

    monkeypatch.setattr(store.SharedConnection, "room", counted)
    server, url = tls.secure(start_server, certificates)

    async def work() -> None:
        async with rqttl.connect_async(url + tls.options(certificates)) as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"x")
            first: Any = broker._driver.store.topology.nodes[0]._shared
            with server.hanging():  # so that no bytes of the calls can leave
                calls = asyncio.gather(*[queue.enqueue(b"x" * 50_000) for _ in range(400)])
                while not held:
                    await asyncio.sleep(0)
            await calls
            assert set(held) == {first}
            first._writer.transport.abort()
            while first.usable:
                await asyncio.sleep(0)
            await queue.enqueue(b"x")
            assert broker._driver.store.topology.nodes[0]._shared is not first
            assert (await queue.stats()).ready == 402

    run(work())


# Connections that are cut at random

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("topology", ["server", "sentinel", "cluster"])
def test_no_way_to_close_leaves_a_socket_open(
    run: Run, launch: Callable[..., Server], certificates: Path, topology: str, has_tls: bool
) -> None:
    config: dict[str, Any] = {}
    if has_tls:
        config = {**tls.settings(certificates), "tls_replication": "yes"}
    scheme, options = "redis" + "s" * has_tls, tls.options(certificates) if has_tls else ""
    paused: list[Any] = []
    if topology == "server":
        port = free_port()
        servers: Any = launch(bind="127.0.0.1", **config, **{"tls_port" if has_tls else "port": port})
        url = f"{scheme}://127.0.0.1:{port}/0{options}"
    elif topology == "sentinel":
        servers = SentinelSet(server_binary("7.0"), **config)
        url, paused = servers.url(options=options, scheme=f"{scheme}+sentinel"), servers.sentinels
    else:
        servers = ClusterServers(launch, **config | ({"tls_cluster": "yes"} if has_tls else {}))
        url = f"{scheme}+cluster://127.0.0.1:{servers.ports[0]}{options}"

    async def close(way: str) -> None:
        broker = rqttl.connect_async(url)
        queue = await broker.declare_queue("q")
        waits = [asyncio.ensure_future(queue.receive(wait=wait)) for wait in ("1h", "1ms")]
        await waits[1]
        if way == "a cancelled wait":
            waits[0].cancel()
        if way == "new connections":
            broker._driver.store.renew()
            await queue.stats()
        with ExitStack() as stack:
            for one in paused:
                stack.enter_context(one.hanging())  # it answers no end of TLS
            await broker.aclose()
        await asyncio.wait(waits)
        assert waits[0].cancelled() or waits[0].exception()

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            for way in ("a wait", "a cancelled wait", "new connections"):
                run(close(way))
                gc.collect()
        assert [str(one.message) for one in caught] == []
    finally:
        servers.remove()

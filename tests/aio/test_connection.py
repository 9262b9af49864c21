"""The shared connection: lost, it has the same outcomes as the sync one, and a slow server holds callers back."""

import asyncio
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import redis

import rqttl
from rqttl.aio import store
from rqttl.protocol.commands import Command
from tests import tls
from tests.aio.conftest import Run, looped
from tests.process.proxy import Proxy
from tests.servers import Server


@looped()
async def test_a_call_that_was_never_sent_is_made_again(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, proxy: Proxy
) -> None:
    broker._driver.store._shared.abandon(OSError("cut"))  # type: ignore[union-attr]  # it is open
    proxy.spoil("refuse")
    await queue.enqueue(b"x")
    assert (await queue.stats()).ready == 1


@looped()
async def test_a_server_that_never_answers_ends_a_call_with_a_time_out(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(b"first")
    # the calls so far may take their time; the next one goes over a new one
    broker._driver.store._shared.abandon(OSError("cut"))  # type: ignore[union-attr]  # it is open
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
    own: Any = broker._driver.store._shared
    own._connection._reader.feed_data(b"what?\r\n")
    with pytest.raises(rqttl.OutcomeUnknown):
        await sent
    await queue.enqueue(b"y")
    assert broker._driver.store._shared is not own


@looped()
async def test_a_connection_that_was_lost_before_its_first_call_is_replaced(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue
) -> None:
    store: Any = broker._driver.store
    pool, get = store._client.connection_pool, store._client.connection_pool.get_connection
    lost: list[Any] = []

    async def get_and_lose() -> Any:
        connection = await get()
        if not lost:
            lost.append(connection)
            connection._writer.transport.abort()
            await connection._writer.wait_closed()  # the loop has told redis-py
        return connection

    pool.get_connection = get_and_lose
    store._shared.abandon(OSError("cut"))
    await queue.enqueue(b"x")
    assert lost
    assert (await queue.stats()).ready == 1


@looped()
async def test_calls_of_one_pass_of_the_loop_go_out_in_one_write(
    broker: rqttl.AsyncBroker, queue: rqttl.AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.enqueue(b"first")
    own: Any = broker._driver.store._shared
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
                    own: Any = broker._driver.store._shared
                    most.append(own._size + own._writer.transport.get_write_buffer_size())

            await asyncio.gather(*map(send, range(20)))
            assert (await queue.stats()).ready == 400

    run(work())
    assert max(most) < 20 * 51_000


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

            def lose_one_reply(command: Command, reply: Any) -> Generator[Any, Any, Any]:
                answer = yield from send(command, reply)
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
    files = {"ssl_ca_certs": "ca.crt", "ssl_certfile": "client.crt", "ssl_keyfile": "client.key"}
    options = "&".join(f"{option}={certificates / name}" for option, name in files.items())

    async def work() -> None:
        async with rqttl.connect_async(f"{url}?{options}") as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"x")
            first: Any = broker._driver.store._shared
            server.process.send_signal(signal.SIGSTOP)  # so that no bytes of the calls can leave
            try:
                calls = asyncio.gather(*[queue.enqueue(b"x" * 50_000) for _ in range(400)])
                while not held:
                    await asyncio.sleep(0)
            finally:
                server.process.send_signal(signal.SIGCONT)
            await calls
            assert set(held) == {first}
            first._writer.transport.abort()
            while first.usable:
                await asyncio.sleep(0)
            await queue.enqueue(b"x")
            assert broker._driver.store._shared is not first
            assert (await queue.stats()).ready == 402

    run(work())

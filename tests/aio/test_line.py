"""The line: lost connections have the same outcomes as in the sync interface, and a slow server holds callers back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import rqttl
from rqttl.aio import line
from tests.aio.conftest import Run
from tests.process.proxy import Proxy
from tests.servers import Server


@pytest.fixture
def proxy(server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A line to the shared server that can be spoilt, and short pauses between attempts."""
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.001,) * 4)
    proxy = Proxy(server.socket)
    yield proxy
    proxy.stop_listening()


def _url(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


def test_a_message_with_an_id_and_a_window_is_sent_again(run: Run, proxy: Proxy) -> None:
    async def work() -> None:
        async with rqttl.connect_async(_url(proxy)) as broker:
            queue = await broker.declare_queue("q", duplicate_window="1h")
            await queue.enqueue(b"first", id="0")
            proxy.spoil("cut", script="enqueue")
            receipt = await queue.enqueue(b"x", id="1")
            assert receipt.duplicate
            assert (await queue.stats()).ready == 2

    run(work())


def test_a_call_that_was_never_sent_is_made_again(run: Run, proxy: Proxy) -> None:
    async def work() -> None:
        async with rqttl.connect_async(_url(proxy)) as broker:
            queue = await broker.declare_queue("q")
            broker._driver.store._line.abandon(OSError("cut"))  # type: ignore[union-attr]  # it is open
            proxy.spoil("refuse")
            await queue.enqueue(b"x")
            assert (await queue.stats()).ready == 1

    run(work())


def test_a_server_that_never_answers_ends_a_call_with_a_time_out(
    run: Run, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with rqttl.connect_async(_url(proxy)) as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"first")
            # the calls so far may take their time; the next one goes over a new line
            broker._driver.store._line.abandon(OSError("cut"))  # type: ignore[union-attr]  # it is open
            monkeypatch.setattr(line, "SOCKET_TIMEOUT", 0.05)
            monkeypatch.setattr(line, "GRACE", 0.05)
            proxy.spoil("swallow", script="enqueue")
            with pytest.raises(rqttl.OutcomeUnknown) as lost:
                await queue.enqueue(b"x")
            assert "Timeout" in str(lost.value.__cause__)

    run(work())


def test_bytes_that_are_no_reply_end_the_line_and_its_calls(run: Run, redis_url: str) -> None:
    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"first")
            sent = asyncio.ensure_future(queue.enqueue(b"x"))
            await asyncio.sleep(0)
            own: Any = broker._driver.store._line
            own._connection._reader.feed_data(b"what?\r\n")
            with pytest.raises(rqttl.OutcomeUnknown):
                await sent
            await queue.enqueue(b"y")
            assert broker._driver.store._line is not own

    run(work())


def test_a_connection_that_was_lost_before_its_first_call_is_replaced(run: Run, redis_url: str) -> None:
    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queue = await broker.declare_queue("q")
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
            store._line.abandon(OSError("cut"))
            await queue.enqueue(b"x")
            assert lost
            assert (await queue.stats()).ready == 1

    run(work())


def test_calls_of_one_pass_of_the_loop_go_out_in_one_write(
    run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queue = await broker.declare_queue("q")
            await queue.enqueue(b"first")
            own: Any = broker._driver.store._line
            writes: list[object] = []
            write = own._writer.write

            def counted(data: bytes) -> None:
                writes.append(data)
                write(data)

            monkeypatch.setattr(own._writer, "write", counted)
            await asyncio.gather(*[queue.enqueue(b"%d" % i) for i in range(100)])
            assert len(writes) <= 2  # the call before was a lone one, so the first of these goes out at once
            assert [view.body for view in await queue.peek(101)] == [b"first", *(b"%d" % i for i in range(100))]

    run(work())


def test_callers_wait_while_redis_takes_nothing(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "FULL", 10_000)
    most: list[int] = []

    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queue = await broker.declare_queue("q")

            async def send(number: int) -> None:
                for _ in range(20):
                    await queue.enqueue(b"%04d" % number + b"x" * 50_000)
                    own: Any = broker._driver.store._line
                    most.append(own._size + own._writer.transport.get_write_buffer_size())

            await asyncio.gather(*map(send, range(20)))
            assert (await queue.stats()).ready == 400

    run(work())
    assert max(most) < 20 * 51_000


def test_300_waits_have_a_connection_each_and_all_wake(run: Run, redis_url: str, client: Any) -> None:
    async def work() -> None:
        async with rqttl.connect_async(redis_url) as broker:
            queue = await broker.declare_queue("q")
            waits = [asyncio.ensure_future(queue.receive(wait="1h")) for _ in range(300)]
            while client.info("clients")["blocked_clients"] < 300:
                await asyncio.sleep(0.05)
            assert len(client.client_list()) == 302  # these, the line, and the client of the test
            await queue.enqueue_many([b"%d" % i for i in range(300)])
            deliveries = await asyncio.gather(*waits)
            assert len({delivery.body for delivery in deliveries if delivery is not None}) == 300
            await queue.ack_many([delivery for delivery in deliveries if delivery is not None])

    run(work())

"""Brokers take clients and URLs of Redis, and no error about them tells a password; waits for a place in a pool."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest
import redis

import rqttl
from rqttl.embedded.folder import _warn_of_default_server
from rqttl.store import connections, exchanges
from rqttl.store.connections import Place, Places
from rqttl.store.driver import driver_of
from tests.drivers import redis_of
from tests.servers import Server

CANARY = "s3cr%t"


def test_no_error_of_a_connection_shows_its_password(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "PAUSES", ())
    with rqttl.connect(f"unix://nobody:{CANARY.replace('%', '%25')}@{server.socket}") as broker:
        with pytest.raises(redis.RedisError) as refused:
            broker.declare_queue("orders")

        assert CANARY not in f"{refused.value} {broker!r} {redis_of(broker)!r} {broker.queue('orders')!r}"
        with suppress(redis.RedisError):
            broker.queues()


@pytest.mark.parametrize("connect", [rqttl.connect, rqttl.connect_async])
def test_a_server_that_nobody_has_named_is_logged_once_with_its_folder(
    connect: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RQTTL_HOME", str(tmp_path))
    monkeypatch.delenv("RQTTL_URL", raising=False)
    _warn_of_default_server.cache_clear()

    brokers = [connect("embedded://")]
    assert caplog.records == []
    brokers += [connect(), connect("")]

    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "rqttl")
    assert f"embedded server in {tmp_path}: " in record.getMessage()
    for broker in brokers:
        asyncio.run(broker.aclose()) if connect is rqttl.connect_async else broker.close()


def test_a_server_that_hangs_costs_two_time_outs(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], [0]

    def hang(*_: object, **__: object) -> redis.Redis:
        asked[0] += 1
        now[0] += exchanges.SOCKET_TIMEOUT
        raise redis.TimeoutError("Timeout reading from socket")

    monkeypatch.setattr("rqttl.runtime.interrupt.Timing.seconds", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda _: None)
    with rqttl.connect("redis://localhost:1/0") as broker:
        for send in ("send_one", "round_trip"):
            monkeypatch.setattr(driver_of(broker).store.topology.nodes[0], send, hang)
        for ask in (broker.queue("orders").touch, broker.reaper_count):
            asked[0] = 0
            with pytest.raises(redis.TimeoutError):
                ask()
            assert asked == [2]


@pytest.mark.parametrize("client", [None, "redis://localhost", redis.ConnectionPool()])
def test_a_value_that_is_no_client_is_refused(client: object) -> None:
    with pytest.raises(rqttl.InvalidInput, match=r"^client: "):
        rqttl.Broker(client)  # type: ignore[arg-type]  # what people pass


@pytest.mark.parametrize(
    "timeout,seconds,answer",
    [(0.1, 0.02, None), (0.1, 0.1, False), (0.1, 0.5, False), (None, 0.5, None)],
    ids=["the wait is shorter", "both are equal", "the time-out of the pool is shorter", "no time-out"],
)
def test_the_shorter_limit_decides_although_the_thread_looks_when_both_are_over(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None, seconds: float, answer: Literal[False] | None
) -> None:
    places = Places(redis.BlockingConnectionPool(max_connections=2, timeout=timeout))
    now = time.monotonic()

    class Late:
        """The clock of a thread that sleeps for a second at least."""

        @staticmethod
        def monotonic() -> float:
            return now

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += max(seconds, 1)

    monkeypatch.setattr(connections, "time", Late)
    held = places.take(seconds, lambda: False)

    assert isinstance(held, Place)
    assert places.take(seconds, lambda: False) is answer


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_in_a_pool_that_does_not_block_nobody_waits(seconds: float) -> None:
    places = Places(redis.ConnectionPool(max_connections=2))
    held = places.take(seconds, lambda: False)

    assert isinstance(held, Place)
    assert places.take(seconds, lambda: pytest.fail("it waits")) is False


@pytest.mark.parametrize("connect", [rqttl.connect, rqttl.connect_async])
def test_slotted_is_checked_before_anything_connects(connect: Any) -> None:
    with pytest.raises(rqttl.InvalidInput, match=r"^slotted: expected true or false, got 'no'$"):
        connect("redis://h", slotted="no")


def test_a_server_without_hello_gets_the_hint_to_name_the_protocol() -> None:
    assert "?protocol=2" in str(
        exchanges.explained(redis.ResponseError("unknown command 'HELLO', with args beginning with: '3'"))
    )

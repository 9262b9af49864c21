"""A Redis that refuses for now: consumers, runs and reapers wait for it, and go on when it takes calls again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import redis

from rqttl import Broker, connect
from rqttl.reaper import Reaper
from tests.chaos.nemeses import REFUSALS
from tests.process.reapers import reaping
from tests.servers import Server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

REGISTRY = "rqttl:queues"


class Refusing:
    """A server that refuses in one way, from `begin` to `end`."""

    def __init__(self, server: Server, how: str) -> None:
        self._server, self._how = server, how
        self._client = server.client()
        self._client.ping()
        self._within = ExitStack()

    def begin(self) -> None:
        self._within.enter_context(REFUSALS[self._how](self._server, self._client))
        until(self._refuses)

    def end(self) -> None:
        self._within.close()

    def _refuses(self) -> bool:
        try:
            self._client.set("x", 1)
        except redis.ResponseError:
            return True
        return False


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server(save="3600 1000000")  # MISCONF comes of a save that fails


@pytest.fixture(params=["NOREPLICAS", "READONLY", "MISCONF", "BUSY"])
def refusing(request: pytest.FixtureRequest, server: Server) -> Refusing:
    return Refusing(server, request.param)


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    with connect(server.url) as broker:
        broker.declare_queue("orders", dead_letter="dead")
        broker.declare_queue("dead")
        yield broker


def test_a_consumer_outlives_a_redis_that_refuses(
    broker: Broker, refusing: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue("orders")
    queue.enqueue(b"first")

    def handle() -> list[bytes]:
        with queue.consume() as deliveries:
            bodies = []
            for delivery in deliveries:
                with delivery:
                    bodies.append(delivery.body)
                    if delivery.body == b"first":
                        refusing.begin()
                if delivery.body == b"last":
                    break
            return bodies

    with ThreadPoolExecutor() as pool:
        bodies = pool.submit(handle)
        until(lambda: "Redis refuses for now" in caplog.text or bodies.done())
        refusing.end()
        queue.enqueue(b"last")

        assert bodies.result(timeout=PATIENCE) == [b"first", b"last"]


def test_a_reaper_outlives_a_redis_that_refuses(broker: Broker, refusing: Refusing, server: Server) -> None:
    with reaping(server.url, "--scan-period", "1h") as reaper:
        broker.queue("orders").enqueue(b"x", ttl="500ms")
        refusing.begin()
        assert reaper.await_event("redis_unavailable")["level"] == "warning"
        refusing.end()

        assert broker.queue("dead").receive(wait="60s") is not None
        reaper.await_event("redis_recovered")


def test_an_ordinary_call_that_is_refused_for_longer_raises_the_error_of_redis(
    broker: Broker, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.001,))
    refusing.begin()

    with pytest.raises(redis.ResponseError):
        broker.queue("orders").enqueue(b"x")

    refusing.end()
    assert broker.queue("orders").stats().ready == 0


def test_an_ordinary_call_is_repeated_until_redis_takes_it(
    broker: Broker, refusing: Refusing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rqttl.store.exchanges.PAUSES", (0.01,) * 3000)
    queue = broker.queue("orders")
    queue.enqueue(b"1")
    refusing.begin()
    with ThreadPoolExecutor() as pool:
        sent = pool.submit(queue.enqueue, b"2")
        refusing.end()

        assert sent.result(timeout=PATIENCE).id
    assert [one.body for one in queue.peek()] == [b"1", b"2"]


def test_a_reaper_goes_on_where_full_memory_refuses_its_upkeep(
    broker: Broker, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.queue("orders")
    queue.enqueue(b"x")
    delivery = queue.receive()
    assert delivery is not None
    delivery.reject()
    with server.client() as client, caplog.at_level(logging.INFO, "rqttl.reaper"):
        client.srem(REGISTRY, "dead")
        client.config_set("maxmemory", 1)

        done = Reaper(broker).run_once()

        refused = [record for record in caplog.records if getattr(record, "event", "") == "refused"]
        assert done.failed == 0
        assert [record.levelname for record in refused] == ["WARNING"] * len(refused)
        assert refused
        assert not client.sismember(REGISTRY, "dead")
        client.config_set("maxmemory", 0)
        Reaper(broker).run_once()
        assert client.sismember(REGISTRY, "dead")

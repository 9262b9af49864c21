"""Fixtures of contract tests: a broker with a clock of its own, and the same promises on a fake broker.

With `RQTTL_TEST_REDIS=fake` there is no server: `broker` is a `FakeBroker`, `client` is its client, and `clocked` runs
on that. The few tests that cannot pass then are listed in `fake_cannot.py`, and expected to fail.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rqttl import Broker, Queue
from rqttl.store.addresses import read_url
from rqttl.store.cluster import open_client
from rqttl.testing import FakeBroker, fake_broker
from tests.conftest import AIO, CLUSTER, FAKE
from tests.contract.aio_cannot import AIO_CANNOT, AIO_WAITS
from tests.contract.cluster_cannot import CLUSTER_CANNOT, CLUSTER_WAITS
from tests.contract.fake_cannot import FAKE_CANNOT, FAKE_WAITS
from tests.drivers import redis_of

HERE = Path(__file__).parent


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> Queue:
    """The queue `q`, without options, at the clock of a test that asks for one."""
    broker: Broker = request.getfixturevalue("clocked" if "clocked" in request.fixturenames else "broker")
    return broker.declare_queue("q")


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """No consumer that begins now takes a turn within the test unless a renewal is due: acks wait for a call."""
    monkeypatch.setattr("rqttl.consuming.prefetch.LONGEST_REST", 3_600_000)


@pytest.fixture
def user(client: Any) -> Iterator[Callable[..., Broker]]:
    """`user(*rules)`: a broker as a user with these rules."""
    brokers: list[Broker] = []

    def connect(*rules: str) -> Broker:
        own = ("+cluster|slots",) if CLUSTER else ()
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules, *own)
        if CLUSTER:
            node = client.get_default_node()
            brokers.append(Broker(open_client(read_url(f"redis+cluster://limited:secret@{node.host}:{node.port}"))))
            return brokers[-1]
        kwargs = {**client.connection_pool.connection_kwargs, "username": "limited", "password": "secret"}
        pool = redis.ConnectionPool(connection_class=client.connection_pool.connection_class, **kwargs)
        brokers.append(Broker(redis.Redis(connection_pool=pool)))
        return brokers[-1]

    yield connect
    for broker in brokers:
        broker.close()
    client.execute_command("ACL", "DELUSER", "limited")


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Do something in a signal handler of this thread, a moment from now."""
    before = signal.getsignal(signal.SIGALRM)

    def arrange(action: Callable[[], None]) -> None:
        signal.signal(signal.SIGALRM, lambda *_: action())
        # again and again: one that comes just before a blocking call begins would wait for the end of that call
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)

    yield arrange
    signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that comes later would end this process
    signal.signal(signal.SIGALRM, before)


if FAKE:

    @pytest.fixture
    def broker() -> Iterator[Broker]:
        """A fake broker."""
        with fake_broker() as broker:
            yield broker

    @pytest.fixture
    def client(broker: FakeBroker) -> redis.Redis:
        """A client of the fake broker's Redis. Unlike the broker's own, it may subscribe."""
        from fakeredis import FakeRedis

        from rqttl.testing.fake import FakeClient

        own = redis_of(broker)
        assert isinstance(own, FakeClient)
        return FakeRedis(server=own.fake_server)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On some legs, expect those to fail that cannot pass. They run: who passes has to leave the list."""
    cannot, waits = (FAKE_CANNOT, FAKE_WAITS) if FAKE else (AIO_CANNOT, AIO_WAITS) if AIO else ({}, {})
    if CLUSTER:
        cannot, waits = cannot | CLUSTER_CANNOT, waits | CLUSTER_WAITS
    for item in items if cannot else []:
        names = f"{item.path.name}::{getattr(item, 'originalname', item.name)}", f"{item.path.name}::{item.name}"
        for name in names if item.path.parent == HERE else ():
            if name in cannot or name in waits:
                why = (cannot | waits)[name]
                item.add_marker(pytest.mark.xfail(reason=why, strict=True, run=name not in waits))
                break

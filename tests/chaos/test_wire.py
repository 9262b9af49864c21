"""The line between clients and a server: faithful, until it is asked to lose and to delay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos.wire import FAULTS, Wire
from tests.servers import Server
from tests.waiting import PATIENCE


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    wire = Wire(server.socket, "7")
    yield wire
    wire.close()


@pytest.fixture
def client(wire: Wire) -> Iterator[redis.Redis]:
    with redis.Redis("127.0.0.1", wire.port, socket_timeout=PATIENCE, retry=Retry(NoBackoff(), 0)) as client:
        yield client


def test_a_line_passes_everything_on_until_it_is_told_otherwise(wire: Wire, client: redis.Redis) -> None:
    body = b"x" * 1_000_000

    assert client.echo(body) == body
    assert sum(wire.faults.values()) == 0


def test_every_fault_befalls_a_bad_line_and_it_recovers(wire: Wire, client: redis.Redis) -> None:
    wire.rate = 0.5
    for _ in range(10_000):
        with suppress(redis.ConnectionError, redis.TimeoutError):
            assert client.echo("here") == b"here"
        if set(wire.faults) == set(FAULTS):
            break
    wire.rate = 0.0
    with suppress(redis.ConnectionError, redis.TimeoutError):  # of a connection that a fault still holds
        client.ping()

    assert set(wire.faults) == set(FAULTS)
    assert client.echo("back") == b"back"

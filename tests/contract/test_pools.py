"""Clients that users bring along: their pools and time-outs, whatever they are, are enough."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from rqttl import Broker, InvalidInput
from rqttl._driver import driver_of
from tests.servers import Server


def test_a_pool_of_one_connection_is_enough(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url, max_connections=1) as client, Broker(client) as broker:
        queue = broker.declare_queue("q", dead_letter="d")
        queue.enqueue_many([b"x"] * 1_000)
        scripts: list[str] = []

        assert broker.queues() == ["q"]
        queue.ack_many(queue.receive_many(1_000))
        broker.events.on_command.append(lambda event: scripts.append(event.name))
        assert queue.receive(wait="100ms") is None

        assert len([name for name in scripts if name.islower()]) <= 4, "a wait that cannot listen would poll"


@pytest.mark.parametrize("timeout", [None, 0.5], ids=["default", "short"])
def test_a_wait_may_be_longer_than_the_time_out_of_the_client(redis_url: str, timeout: float | None) -> None:
    options: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
    with redis.Redis.from_url(redis_url, **options) as client, Broker(client) as broker:
        assert broker.declare_queue("q").receive(wait="700ms") is None


def test_a_client_that_decodes_is_refused(server: Server) -> None:
    with server.client(decode_responses=True) as client, pytest.raises(InvalidInput, match="decode_responses"):
        Broker(client)


def test_a_broker_never_waits_longer_than_half_the_time_out_of_a_reply(redis_url: str) -> None:
    for options, most in (({}, 5_000), ({"socket_timeout": 2}, 1_000), ({"socket_timeout": None}, 5_000)):
        with redis.Redis.from_url(redis_url, **options) as client:
            connection = client.connection_pool.get_connection()
            waits, timeout = driver_of(Broker(client)).store.longest_block, connection.socket_timeout
            client.connection_pool.release(connection)
        assert waits <= most
        assert timeout is None or waits <= timeout * 500

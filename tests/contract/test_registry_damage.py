"""Members of the registry that no queue can be called, and a registry of another type, end nothing."""

from __future__ import annotations

import logging

import pytest
import redis

from rqttl import Broker, RegistryDamaged
from rqttl.reaper import Reaper

STRANGERS = [b"\xff\xfe", b"", b"two words", b"x" * 129, "ü".encode(), b"a\nb", b"{}", b"\xed\xa0\x80"]


@pytest.fixture
def strange(broker: Broker, client: redis.Redis) -> Broker:
    """A broker with two queues, in a registry with strangers."""
    broker.declare_queue("a", message_ttl="1h").enqueue(b"x", ttl="1ms")
    broker.declare_queue("b")
    client.sadd("rqttl:queues", *STRANGERS)
    return broker


def test_strangers_in_the_registry_are_skipped_by_all_who_read_it(strange: Broker, client: redis.Redis) -> None:
    assert strange.queues() == ["a", "b"]
    assert sorted(strange.stats()) == sorted(strange.stats(sweep=False)) == sorted(strange.options()) == ["a", "b"]
    assert client.scard("rqttl:queues") == 2 + len(STRANGERS)


def test_a_reaper_takes_strangers_out_with_a_warning_and_goes_on(
    strange: Broker, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="rqttl.reaper"):
        Reaper(strange).run_once()

    assert client.smembers("rqttl:queues") == {b"a", b"b"}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(STRANGERS)
    assert r"registry: b'\xff\xfe' is no name of a queue, removed" in told


def test_a_registry_of_another_type_is_a_typed_error(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("a")
    client.delete("rqttl:queues")
    client.set("rqttl:queues", "not a set")

    for call in (broker.queues, broker.stats, lambda: broker.declare_queue("b"), Reaper(broker).run_once):
        with pytest.raises(RegistryDamaged, match=r"^the key rqttl:queues is no set of queue names"):
            call()

    queue.enqueue(b"x")  # who knows a queue goes on
    assert queue.receive() is not None
    assert client.get("rqttl:queues") == b"not a set"
    assert not client.exists("rqttl:{b}:meta")

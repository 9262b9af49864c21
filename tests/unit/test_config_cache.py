"""The queues that a client knows: which questions Redis is asked, and what makes the client forget."""

from __future__ import annotations

import pytest

from rqttl import QueueNotFound
from rqttl.flows.queues import ConfigCache
from rqttl.flows.steps import GetConfig
from tests.unit.test_flows import KEYSPACE, OK, REFUSED, Drive, known


def test_a_queue_that_nobody_has_asked_for_is_asked_for_once() -> None:
    cache = ConfigCache()
    assert cache.answer(GetConfig("orders")) is None

    drive = Drive(cache.ask(KEYSPACE, GetConfig("orders")))
    assert drive.step.script.name == "lookup"
    drive.answer([OK, b"", b"v1", b"{}", b"{}", b"0"])

    assert drive.result == known()
    assert cache.answer(GetConfig("orders")) is drive.result


def test_a_fresh_look_always_asks_redis() -> None:
    cache = ConfigCache()
    cache.put("orders", known())

    assert cache.answer(GetConfig("orders", fresh=True)) is None
    assert cache.answer(GetConfig("orders")) == known()


def test_the_newest_options_replace_the_known_ones() -> None:
    cache, newest = ConfigCache(), known(b"v2")
    cache.put("orders", known())

    assert cache.answer(GetConfig("orders", newest=newest)) is newest
    assert cache.answer(GetConfig("orders")) is newest


def test_a_queue_that_is_not_there_is_forgotten() -> None:
    cache = ConfigCache()
    cache.put("orders", known())

    with pytest.raises(QueueNotFound):
        Drive(cache.ask(KEYSPACE, GetConfig("orders"))).answer([REFUSED, b"not_found"])

    assert cache.answer(GetConfig("orders")) is None


def test_a_question_that_failed_changes_nothing() -> None:
    cache = ConfigCache()
    cache.put("orders", known())
    flow = cache.ask(KEYSPACE, GetConfig("orders"))
    next(flow)

    with pytest.raises(ConnectionError):
        flow.throw(ConnectionError())

    assert cache.answer(GetConfig("orders")) == known()


def test_a_queue_that_leaves_the_registry_is_forgotten_before_redis_is_told() -> None:
    cache = ConfigCache()
    cache.put("orders", known())

    drive = Drive(cache.unregister(KEYSPACE, "orders"))

    assert drive.step.calls == [("SREM", KEYSPACE.registry, "orders")]
    assert cache.answer(GetConfig("orders")) is None


def test_no_more_queues_are_known_than_the_bound() -> None:
    cache = ConfigCache(10)
    for i in range(100):
        cache.answer(GetConfig(f"q{i}", newest=known()))
        cache.answer(GetConfig("busy", newest=known()))
        assert len(cache) <= 10

    assert cache.answer(GetConfig("busy")) is not None
    assert cache.answer(GetConfig("q0")) is None

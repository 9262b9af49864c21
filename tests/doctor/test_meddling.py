"""Checks and repairs of a queue while others are at work in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from rqttl import Broker
from rqttl.doctor import Repair, repair
from rqttl.protocol.commands import Command
from rqttl.store.driver import RedisDriver, driver_of
from tests.doctor.looking import wrong
from tests.doctor.test_queues import NOBODY, part
from tests.drivers import broker_on


def meddling(broker: Broker, act: Callable[[int], object]) -> Broker:
    """A broker between whose looks at the queue something happens; the number says how many looks there were."""
    looks = 0

    class Meddled(RedisDriver):
        def step(self, one: Any) -> Any:
            nonlocal looks
            if isinstance(one, Command) and one.script.name == "audit":
                looks += 1
                act(looks)
            return super().step(one)

    return broker_on(Meddled(driver_of(broker).store.client, "rqttl"))


def test_a_queue_that_never_stands_still_is_too_busy_and_not_wrong(broker: Broker) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 100)

    found = wrong(meddling(broker, lambda _: (orders.enqueue(b"xyz"), orders.receive(lease="1h"))))

    assert found == [("orders", "warning", "too busy to check its bytes; everything else was checked")]


def test_a_queue_that_comes_to_rest_is_checked(broker: Broker, client: redis.Redis) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 100)
    client.hset(part("meta"), "ready_bytes", 7)

    found = wrong(meddling(broker, lambda looks: looks < 5 and orders.enqueue(b"xyz")))

    assert [text.split(",")[1] for _, _, text in found] == [" but ready bodies have 112: limits are wrong"]


def test_damage_is_found_in_a_busy_queue(broker: Broker, client: redis.Redis) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 100)
    client.zadd(part("requeued"), {NOBODY: 1})

    found = wrong(meddling(broker, lambda _: orders.enqueue(b"xyz")))

    assert [level for _, level, _ in found] == ["problem", "warning"]


def test_a_queue_that_cannot_be_counted_is_repaired_except_for_its_counts(broker: Broker, client: redis.Redis) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 100)
    client.zadd(part("requeued"), {NOBODY: 1})

    done = repair(meddling(broker, lambda _: orders.enqueue(b"xyz")), Repair("repair", "orders", ""))

    assert done == "too busy to count its bytes: try again; 1 sequence without a message removed"
    assert wrong(broker) == []


def test_bytes_are_not_overwritten_when_something_comes_in_at_the_last_moment(
    broker: Broker, client: redis.Redis
) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue_many([b"x"] * 10)
    client.hset(part("meta"), "ready_bytes", 7)
    late = [b"late"]

    class Late(RedisDriver):
        def step(self, one: Any) -> Any:
            if isinstance(one, Command) and one.script.name == "repair" and 10 in one.words and late:
                orders.enqueue(late.pop())
            return super().step(one)

    assert repair(broker_on(Late(client, "rqttl")), Repair("repair", "orders", "")) == "bytes counted again"
    assert client.hget(part("meta"), "ready_bytes") == b"14"


def test_a_queue_that_goes_meanwhile_is_no_finding(broker: Broker) -> None:
    orders = broker.declare_queue("orders")
    orders.enqueue(b"x")

    assert wrong(meddling(broker, lambda looks: looks == 1 and orders.delete())) == []
    assert repair(broker, Repair("repair", "orders", "")) == "left alone: the queue does not exist any more"

"""Brokers that may use keys of one slot in a script: `slotted=True`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from rqttl import Broker
from rqttl.errors import DataDamaged, InvalidInput, InvalidOption
from rqttl.protocol.keys import Keyspace
from rqttl.testing import async_fake_broker, fake_broker

ORDERS = Keyspace().key("orders", "meta")


@pytest.fixture
def broker(client: redis.Redis) -> Iterator[Broker]:
    with Broker(client, slotted=True) as broker:
        yield broker


@pytest.mark.parametrize(
    "slotted, a, b, far",
    [
        (True, "orders", "orders/dead", False),
        (True, "{x}a", "{x}b", False),
        (True, "orders", "dead", True),
        (False, "orders", "dead", False),
    ],
)
def test_queues_are_far_in_different_slots(slotted: bool, a: str, b: str, far: bool) -> None:
    assert Keyspace(slotted=slotted).far(a, b) is far


@pytest.mark.parametrize("option", ["dead_letter", "dead_letter_rejected"])
@pytest.mark.parametrize("target", ["dead", "{queue}.dead"])
def test_a_far_target_is_refused(broker: Broker, option: str, target: str) -> None:
    options: dict[str, Any] = {option: target}
    with pytest.raises(InvalidOption, match=rf"^{option}: .*another slot.*\{{queue\}}/dead"):
        broker.declare_queue("orders", **options)
    assert broker.queues() == []
    queue = broker.declare_queue("orders", dead_letter="{queue}/dead")
    with pytest.raises(InvalidOption, match="another slot"):
        queue.update(**options)
    assert queue.options().dead_letter == "{queue}/dead"


def test_a_near_target_gets_its_letters(broker: Broker) -> None:
    queue = broker.declare_queue("orders", dead_letter="{queue}/dead")
    queue.enqueue(b"a")
    delivery = queue.receive()
    assert delivery
    delivery.reject()
    assert broker.queue("orders/dead").redrive() == 1


def test_a_far_target_of_a_policy_is_a_fault(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    broker.set_policy("far", "#", {"dead_letter": "dead"})
    assert queue.options().dead_letter is None
    assert "another slot" in str(queue.explain()["dead_letter"])


def test_a_record_with_a_far_target_loses_nothing(broker: Broker, client: redis.Redis) -> None:
    queue = broker.declare_queue("orders", dead_letter="{queue}/dead")
    queue.enqueue(b"a")
    far = json.dumps({"dead_letter": "dead"})
    client.hset(ORDERS, mapping={"options": far, "declared": far, "version": "dump"})
    again = Broker(client, slotted=True).queue("orders")
    for call in (again.receive, again.stats, again.sweep):
        with pytest.raises(DataDamaged, match="another slot"):
            call()
    again.update(dead_letter="{queue}/dead")
    assert again.stats().ready == 1


def test_messages_do_not_move_to_a_far_queue(broker: Broker) -> None:
    queue = broker.declare_queue("orders")
    broker.declare_queue("other")
    queue.enqueue(b"a", id="a")
    sequence = queue.peek()[0].sequence
    for call in (
        lambda: queue.move("a", "other"),
        lambda: queue.redrive(to="other"),
        lambda: queue.redrive_many([(sequence, "other")]),
    ):
        with pytest.raises(InvalidInput, match="another slot"):
            call()
    assert queue.stats().ready == 1


def test_fake_brokers_can_be_slotted() -> None:
    async def declare() -> None:
        async with async_fake_broker(slotted=True) as broker:
            await broker.connect_async().declare_queue("orders", dead_letter="dead")

    with pytest.raises(InvalidOption, match="another slot"):
        fake_broker(slotted=True).connect().declare_queue("orders", dead_letter="dead")
    with pytest.raises(InvalidOption, match="another slot"):
        asyncio.run(declare())

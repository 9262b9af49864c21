"""Brokers that may use keys of one slot in a script, `slotted=True`: dead letters for queues in other slots."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from rqttl import Broker
from rqttl.errors import InvalidInput
from rqttl.flows import registry
from rqttl.protocol.keys import Keyspace
from rqttl.store.driver import driver_of
from rqttl.testing import async_fake_broker, fake_broker
from rqttl.testing.fake import ClockedBroker


@pytest.fixture
def broker(client: redis.Redis) -> Iterator[ClockedBroker]:
    with ClockedBroker(client, slotted=True) as broker:
        yield broker


def bury(broker: Broker, *bodies: bytes) -> None:
    queue = broker.declare_queue("orders", dead_letter="dead")
    queue.enqueue_many(bodies)
    for delivery in queue.receive_many(len(bodies)):
        delivery.reject()


def bodies(broker: Broker, queue: str) -> list[bytes]:
    return [view.body for view in broker.queue(queue).peek(99)]


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


@pytest.mark.parametrize("target", ["dead", "{queue}/dead"])
@pytest.mark.parametrize("by_policy", [False, True])
def test_a_target_gets_its_letters_wherever_it_is(broker: ClockedBroker, target: str, by_policy: bool) -> None:
    queue = broker.declare_queue("orders", dead_letter=None if by_policy else target)
    if by_policy:
        broker.set_policy("far", "orders", {"dead_letter": target})
    goes_to = target.replace("{queue}", "orders")
    assert queue.options().target("rejected") == goes_to
    assert queue.explain()["dead_letter"].value == target
    queue.enqueue_many([b"a", b"b", b"c"])
    for delivery in queue.receive_many(2):
        delivery.reject("no")
    queue.update(message_ttl=0)

    assert bodies(broker, goes_to) == [b"a", b"b", b"c"]
    assert [view.deaths[0].reason for view in broker.queue(goes_to).peek(9)] == ["rejected", "rejected", "expired"]
    assert queue.stats().outgoing == {}
    assert broker.queue(goes_to).redrive(to="orders") == 3


@pytest.mark.parametrize("sweep", [False, True])
@pytest.mark.parametrize("part", ["meta", "log"])
def test_letters_are_counted_until_they_have_arrived(
    broker: ClockedBroker, client: redis.Redis, part: str, sweep: bool
) -> None:
    broker.declare_queue("idle")
    client.set(Keyspace().key("dead", part), "of another program")
    bury(broker, b"a", b"b", b"c")

    queue = broker.queue("orders")
    assert queue.stats(sweep=sweep).outgoing == {"dead": 3}
    stats = broker.stats(["orders", "idle"], sweep=sweep)
    assert {name: one.outgoing for name, one in stats.items()} == {"orders": {"dead": 3}, "idle": {}}

    client.delete(Keyspace().key("dead", part))
    broker.clock.advance("1m")
    queue.sweep()
    assert queue.stats(sweep=sweep).outgoing == broker.stats(["orders"], sweep=sweep)["orders"].outgoing == {}
    assert bodies(broker, "dead") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("again", ["declared", "by a letter", "never"])
def test_letters_of_a_deleted_queue_arrive(broker: ClockedBroker, client: redis.Redis, again: str) -> None:
    client.set(Keyspace().key("dead", "meta"), "of another program")
    bury(broker, b"a")
    broker.queue("orders").delete()
    assert broker.queues() == []
    assert client.sismember(Keyspace().registry, "orders")
    client.delete(Keyspace().key("dead", "meta"))
    broker.clock.advance("1m")

    if again == "declared":
        broker.declare_queue("orders")
    elif again == "by a letter":
        broker.declare_queue("other", dead_letter="orders").enqueue(b"x", ttl=0)
    else:
        driver_of(broker).perform(registry.unregister(Keyspace(slotted=True), "orders"))
        assert not client.sismember(Keyspace().registry, "orders")
        assert client.keys("rqttl:{orders}:out*") == []
    assert bodies(broker, "dead") == [b"a"]


def test_single_messages_do_not_move_to_a_far_queue(broker: ClockedBroker) -> None:
    queue = broker.declare_queue("orders")
    broker.declare_queue("other")
    queue.enqueue(b"a", id="a")
    with pytest.raises(InvalidInput, match="another slot"):
        queue.move("a", "other")
    assert queue.stats().ready == 1


def test_fake_brokers_can_be_slotted() -> None:
    async def settle() -> None:
        async with async_fake_broker(slotted=True) as broker:
            queue = await broker.connect_async().declare_queue("orders", dead_letter="dead")
            await queue.enqueue(b"a", ttl=0)
            assert (await broker.queue("dead").stats()).ready == 1

    broker = fake_broker(slotted=True).connect()
    bury(broker, b"a")
    assert bodies(broker, "dead") == [b"a"]
    asyncio.run(settle())

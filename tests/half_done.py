"""Halves of changes: the state that a client leaves that dies between two steps."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

from rqttl import Broker, Message, Policy
from rqttl.flows import policies, steps
from rqttl.protocol import commands
from rqttl.store.driver import driver_of
from rqttl.testing.fake import ClockedBroker


def store_policy(broker: Broker, policy: Policy) -> None:
    """Store a policy, as `set_policy` does, and do not put its options in force."""
    driver = driver_of(broker)
    version = driver.perform(policies.current(driver.keyspace)).version
    command = commands.change_policies(driver.keyspace, version, {policy.field: policy.as_json()})
    driver.perform(steps.run(command))


@contextmanager
def on_the_way(client: redis.Redis, letters: int) -> Iterator[ClockedBroker]:
    """Leave dead letters of the queue `orders` on their way to `dead`, in another slot, whose record is none."""
    client.set("rqttl:{dead}:meta", "of another program")
    with ClockedBroker(client, slotted=True) as broker:
        queue = broker.declare_queue("orders", dead_letter="dead")
        queue.enqueue_many([Message(b"%d" % i, ttl=0) for i in range(letters)])
        yield broker
    client.delete("rqttl:{dead}:meta")

"""Scripts that Redis has forgotten, as after a restart, are loaded again, and nothing gets out of order."""

from __future__ import annotations

import pytest
import redis

import rqttl


@pytest.fixture
def orders(broker: rqttl.Broker) -> rqttl.Queue:
    """A queue."""
    return broker.declare_queue("orders")


def test_a_script_that_redis_has_forgotten_is_loaded_again(orders: rqttl.Queue, client: redis.Redis) -> None:
    client.script_flush()

    orders.enqueue(b"x")
    client.script_flush()
    delivery = orders.receive()

    assert delivery
    assert delivery.body == b"x"


def test_batches_that_went_out_together_keep_their_order_where_the_script_is_gone(
    orders: rqttl.Queue, client: redis.Redis
) -> None:
    bodies = [b"%d" % i for i in range(1500)]
    orders.enqueue_many(bodies)
    orders.purge()
    client.script_flush()

    receipts = orders.enqueue_many(bodies)

    assert [one.body for one in orders.peek(2000)] == bodies
    assert [one.id for one in receipts if isinstance(one, rqttl.Receipt)] == [one.id for one in orders.peek(2000)]

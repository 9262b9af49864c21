"""Samples of the queues, taken by ticks of the test."""

from datetime import timedelta

import redis

from rqttl import Broker
from rqttl.dashboard.sampler import Sampler
from rqttl.inspector.queues import to_json


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_row_has_the_statistics_of_its_queue(broker: Broker) -> None:
    orders = broker.declare_queue("orders", max_length=3, dead_letter="dead")
    orders.enqueue_many([b"x"] * 5)
    sampler = Sampler(broker, clock=Clock())

    sampler.tick()

    row = sampler.sample.row("orders")
    assert row is not None
    stats = broker.stats(["orders"], sweep=False)["orders"]
    assert {**to_json(row.stats), "oldest_ready_age_ms": 0} == {**to_json(stats), "oldest_ready_age_ms": 0}
    assert (row.max_length, row.targets, row.age) == (3, ("dead",) * 4, timedelta(0))
    assert [one.name for one in sampler.sample.rows("full").rows] == ["orders"]
    assert sampler.sample.sources("dead") == ["orders"]


def test_a_clock_of_redis_that_goes_on_gives_rates(broker: Broker, client: redis.Redis) -> None:
    orders, clock = broker.declare_queue("orders"), Clock()
    sampler = Sampler(broker, clock=clock)
    sampler.tick()
    orders.enqueue_many([b"x"] * 5)
    clock.now += 2

    sampler.tick()

    assert sampler.sample.rows("in").rows[0].rates
    history = sampler.sample.history("orders")
    assert history is not None
    assert history.series["depth"][-2:] == (0.0, 5.0)

"""Drivers of the test's own, and drivers between whose steps something happens."""

from collections.abc import Callable
from typing import Any, cast

import redis

from rqttl import Broker, Queue
from rqttl.consuming.heartbeat import Heartbeat
from rqttl.flows.steps import Step
from rqttl.reaper.report import Totals, reaper_details
from rqttl.store.cluster import Cluster
from rqttl.store.driver import RedisDriver, driver_of
from tests.cluster_servers import shared_client


def redis_of(owner: object) -> redis.Redis:
    """The client of redis-py of a broker, a queue or a driver; on a cluster another one."""
    driver = owner if isinstance(owner, RedisDriver) else driver_of(owner)
    topology: Any = driver.store.topology
    on_cluster = isinstance(topology, Cluster)
    client: Any = shared_client(topology.address.port) if on_cluster else topology.nodes[0]._client
    return cast("redis.Redis", client)


def enter_reaper(broker: Broker) -> None:
    """Enter a reaper into the roster."""
    driver = driver_of(broker)
    driver.perform(Heartbeat(driver.keyspace, "reaper", lambda _: reaper_details(Totals())).write())


def broker_on(driver: RedisDriver) -> Broker:
    """A broker that performs everything with this driver."""
    return Broker(redis_of(driver), driver=lambda *_, **__: driver)


def broker_of(queue: Queue) -> Broker:
    """A further broker with the driver of a queue."""
    return broker_on(driver_of(queue))


def before_step(driver: RedisDriver, kind: object, action: Callable[[], object]) -> None:
    """Do something once, right before the driver carries out the first step of this kind, or this very step."""
    step, done = driver.step, False

    def carry_out(one: Step) -> object:
        nonlocal done
        if not done and (one == kind or type(one) is kind):
            done = True
            driver.step = step  # type: ignore[method-assign]
            action()
        # a flow that is under way goes on with this function, also after the action has put another one in its place
        return driver.step(one) if done else step(one)

    driver.step = carry_out  # type: ignore[method-assign, assignment]


def drop_connections(driver: RedisDriver) -> None:
    """Close the connections that a driver keeps, so that its next call makes a new one."""
    for node in driver.store.topology.nodes:
        node.connections.release_idle()
        node._client.connection_pool.disconnect()

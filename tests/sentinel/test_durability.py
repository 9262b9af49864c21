"""Failovers to replicas that lag behind: what Redis has confirmed by `durability` survives them."""

import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import redis

import rqttl
from tests.repository import ROOT
from tests.sentinel.test_failover import WINDOW, Producer, received
from tests.servers import SentinelSet, Server
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: `RQTTL_TEST_FAILOVERS=50` for more of them; `-s` shows the figures.
FAILOVERS = int(os.environ.get("RQTTL_TEST_FAILOVERS", "1"))


def cut(service: SentinelSet, primary: Server) -> None:
    """Cut the links of all replicas, and let none come back: the primary knows no such user."""
    for server in service.servers:
        with server.client() as client:
            client.config_set("masteruser", "nobody")
            client.config_set("masterauth", "wrong")
    with primary.client() as client:
        client.client_kill_filter(_type="replica")


def is_healed(server: Server) -> bool:
    """Let a replica find its primary again. Returns False if Sentinel closes the connection meanwhile."""
    try:
        with server.client() as client:
            return bool(client.config_set("masteruser", "") and client.config_set("masterauth", ""))
    except redis.ConnectionError:
        return False


@pytest.mark.timeout(120 * FAILOVERS)
def test_no_message_that_a_replica_confirms_is_lost(service: SentinelSet) -> None:
    sent, lost, told = {"replica": 0, "primary": 0}, {"replica": 0, "primary": 0}, 0
    for _ in range(FAILOVERS):
        service.settle()
        with service.primary().client() as client:
            client.flushall()
        with rqttl.connect(service.url()) as broker:
            options: list[Any] = [{"durability": name, "duplicate_window": WINDOW} for name in lost]
            queues = [broker.declare_queue(one["durability"], **one) for one in options]
            producers = {queue.name: Producer(queue.enqueue, queue.name, has_ids=True) for queue in queues}
            durable, plain = producers["replica"], producers["primary"]
            for producer in producers.values():
                producer.goes_on()
            primary = service.primary()
            cut(service, primary)
            until(lambda: durable.errors)  # noqa: B023  # it ends within the turn
            plain.goes_on()
            primary.kill()
            until(lambda: service.primary() is not primary)  # noqa: B023  # see above
            for server in service.servers:
                if server is not primary:  # this one is started anew
                    until(lambda: is_healed(server))  # noqa: B023  # see above
            for producer in producers.values():
                producer.goes_on()
            service.settle()
            for producer in producers.values():
                producer.stop()
        assert {type(error) for error in durable.errors} == {rqttl.NotReplicated}
        told += len(durable.errors)
        for name, producer in producers.items():
            sent[name] += len(producer.done)
            lost[name] += len({*producer.done} - received(service, name))
    print(f"{FAILOVERS} failovers: confirmed {sent}, of these lost {lost}; NotReplicated {told}")  # noqa: T201  # see above
    assert lost["replica"] == 0
    assert lost["primary"] > 0  # else the links were not cut


def test_the_recipe_for_a_planned_failover_loses_nothing_that_was_confirmed(service: SentinelSet) -> None:
    (recipe,) = re.findall(r"  ```bash\n(.*?)  ```\n", (ROOT / "deploy/README.md").read_text(), re.DOTALL)
    primary = service.primary()
    recipe = recipe.replace("-h SENTINEL -p 26379", f"-p {service.sentinels[0].port}")
    recipe = recipe.replace("-h OLD -p 6379", f"-p {service.ports[service.servers.index(primary)]}")
    with rqttl.connect(service.url()) as broker:
        queues = [broker.declare_queue(name, durability="replica", duplicate_window=WINDOW) for name in ("a", "b", "c")]
        producers = [Producer(queue.enqueue, queue.name, has_ids=True) for queue in queues]
        for producer in producers:
            producer.goes_on()

        done = subprocess.run(["bash", "-ec", recipe], check=True, capture_output=True, text=True)

        for producer in producers:
            producer.goes_on()
            producer.stop()
    assert done.stdout.split() == ["OK", "2", "OK", "OK"]
    assert service.primary() is not primary
    service.settle()
    for producer in producers:
        assert {*producer.done} <= received(service, producer.name)
    assert [producer.errors for producer in producers] == [[], [], []]


def test_a_change_that_no_replica_has_is_told(
    service: SentinelSet, caplog: pytest.LogCaptureFixture, run: Callable[..., Any]
) -> None:
    def change(broker: rqttl.Broker) -> None:
        broker.declare_queue("q").update(message_ttl="1h")
        broker.set_policy("p", "q", {"message_ttl": "1m"})

    async def declare() -> None:
        async with rqttl.connect_async(service.url()) as broker:
            await broker.declare_queue("r")

    told = [f"{one}: changed, but a failover" for one in ("queue q", "queue q", "policies", "queue r")]
    with caplog.at_level("WARNING", "rqttl"), rqttl.connect(service.url()) as broker:
        change(broker)
        assert caplog.messages == []
        with service.primary().client() as client:
            client.flushall()
        cut(service, service.primary())
        change(broker)
        run(declare())
    for server in service.servers:
        until(lambda: is_healed(server))  # noqa: B023  # it ends within the turn
    assert [message.partition(" now")[0] for message in caplog.messages] == told

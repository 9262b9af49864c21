"""Reapers and policies: each pass puts the options in force that a client left behind."""

from __future__ import annotations

import logging

import pytest
import redis

from rqttl import Broker, Policy
from rqttl.reaper import Reaper
from tests.half_done import store_policy
from tests.process.reapers import reaping
from tests.process.test_reaper_steps import facts
from tests.servers import Server

SHORT = Policy.read("short", "orders.#", {"message_ttl": 0, "max_length": 5})


def test_a_pass_finishes_the_change_of_a_client_that_died(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = broker.declare_queue("orders.eu")
    broker.declare_queue("other")
    queue.enqueue_many([b"x"] * 10)
    store_policy(broker, SHORT)
    assert queue.options()["max_length"] is None

    with caplog.at_level(logging.INFO, "rqttl.reaper"):
        Reaper(broker).run_once()

    assert (queue.options()["message_ttl"], queue.options()["max_length"]) == (0, 5)
    assert queue.stats(sweep=False).ready == 0
    assert facts(caplog, "queue_reconciled") == [{"queue": "orders.eu", "options": ["message_ttl", "max_length"]}]
    assert broker.reconcile().changed == {}


def test_a_pass_gives_a_found_dead_letter_queue_the_options_of_its_policies(
    broker: Broker, client: redis.Redis
) -> None:
    broker.set_policy("graves", "dead", {"max_length": 7})
    broker.declare_queue("orders", dead_letter="dead").enqueue(b"x")
    broker.queue("orders").reject_many(broker.queue("orders").receive_many(1))
    # the state after the death of the client that got the reply with `created`
    client.srem("rqttl:queues", "dead")
    client.hset("rqttl:{dead}:meta", mapping={"policies": 0, "options": "{}", "option_set": "default"})
    client.hdel("rqttl:{dead}:meta", "max_length")

    Reaper(broker).run_once()

    assert "dead" in broker.queues()
    assert broker.queue("dead").options()["max_length"] == 7


@pytest.mark.parametrize("field", ["version", "policy short"])
def test_damaged_policies_stop_no_duty(
    broker: Broker, client: redis.Redis, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = broker.declare_queue("orders")
    queue.enqueue(b"x", ttl="1ms")
    client.hset("rqttl:policies", mapping={"version": 3, field: "damage"})

    with caplog.at_level(logging.WARNING, "rqttl.reaper"):
        assert Reaper(broker).run_once().failed == 0

    assert any("options in force do not follow the policies" in message for message in caplog.messages)
    assert facts(caplog, "refused")[0]["error"] == "DataDamaged"


def test_a_running_reaper_brings_queues_up_to_date(server: Server, broker: Broker) -> None:
    queue = broker.declare_queue("orders.eu")
    with reaping(server.url, "--scan-period", "100ms") as reaper:
        store_policy(broker, SHORT)

        assert reaper.await_event("queue_reconciled")["queue"] == "orders.eu"

    assert queue.options()["max_length"] == 5

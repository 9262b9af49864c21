"""Requests of a script for other queues come after its own success, and never look like a failure of it."""

from __future__ import annotations

import logging

import pytest
import redis

from rqttl import Broker, CommandEvent
from rqttl.store.driver import driver_of
from tests.contract.clocked import Clocked


def test_a_message_that_was_stored_is_reported_as_stored_although_redis_went_away_after_it(
    clocked: Clocked, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = clocked.declare_queue("orders", max_length=1, dead_letter="dead")
    queue.enqueue(b"1")

    def away(*_: object, **__: object) -> object:
        raise redis.ConnectionError("gone")

    with monkeypatch.context() as outage, caplog.at_level(logging.WARNING, "rqttl"):
        outage.setattr(driver_of(clocked).store, "execute", away)
        receipt = queue.enqueue(b"2")

    assert [one.id for one in queue.peek()] == [receipt.id]
    assert [record.getMessage() for record in caplog.records] == [
        "queue dead: created was not followed up, a reaper will: gone"
    ]
    assert clocked.queue("dead").stats().ready == 1


def test_a_target_that_was_deleted_meanwhile_is_no_error_of_the_sender(clocked: Clocked, client: redis.Redis) -> None:
    queue = clocked.declare_queue("orders", max_length=1, dead_letter="dead")
    clocked.declare_queue("dead", max_length=1)
    queue.enqueue_many([b"1", b"2"])
    other = Broker(client)

    def delete(event: CommandEvent) -> None:
        if (event.name, event.queue) == ("enqueue", "orders"):
            clocked.events.unsubscribe(delete)
            other.queue("dead").delete()

    clocked.events.subscribe(delete, CommandEvent)
    queue.enqueue(b"3")

    assert [one.body for one in queue.peek()] == [b"3"]
    assert clocked.queues() == ["orders"]

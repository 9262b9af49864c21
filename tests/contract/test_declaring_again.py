"""Declarations and updates with a tiny lifetime, and what declaring again costs."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Broker, CommandEvent, QueueNotFound
from tests.contract.clocked import Clocked


@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_a_queue_whose_lifetime_is_over_at_once_was_declared_all_the_same(clocked: Clocked, option: Any) -> None:
    clocked.events.subscribe(lambda event: clocked.advance(1) if event.name == "declare" else None, CommandEvent)

    lifetime: Any = {option: "1ms"}
    queue = clocked.declare_queue("q", **lifetime)

    assert queue.declared == "created"
    with pytest.raises(QueueNotFound):
        queue.stats()


@pytest.mark.parametrize("option", ["expires", "auto_delete_on_idle"])
def test_an_update_after_which_the_lifetime_is_over_at_once_tells_its_effect(clocked: Clocked, option: Any) -> None:
    queue = clocked.declare_queue("q")
    clocked.events.subscribe(lambda event: clocked.advance(1) if event.name == "update" else None, CommandEvent)

    lifetime: Any = {option: "1ms"}
    result = queue.update(**lifetime)

    assert (result.after[option], result.expired, result.trimmed) == (1, 0, 0)


def test_declaring_a_queue_that_is_there_takes_two_round_trips(broker: Broker) -> None:
    broker.declare_queue("q", max_length=5).enqueue(b"x")  # so the server knows the script
    calls: list[str] = []
    broker.events.subscribe(lambda event: calls.append(event.name), CommandEvent)

    queue = broker.declare_queue("q", max_length=5)
    queue.enqueue(b"x")

    assert calls == ["SISMEMBER", "declare", "enqueue"]

"""Declarations and updates with a tiny lifetime; the differences and the cost of a second declaration."""

from __future__ import annotations

from typing import Any

import pytest

from rqttl import Broker, CommandEvent, QueueMismatch, QueueNotFound
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

    # the registry and the version of the policies come in one round trip
    assert calls == ["SISMEMBER", "HGET", "declare", "enqueue"]


@pytest.mark.spec("DEC-05")
@pytest.mark.parametrize("option, value", [("message_ttl", "1m"), ("expires", "1m"), ("dead_letter", "d")])
def test_an_option_that_one_declaration_lacks_is_a_difference(broker: Broker, option: str, value: str) -> None:
    broker.declare_queue("with", **dict[str, Any]({option: value}))
    broker.declare_queue("without")

    with pytest.raises(QueueMismatch) as lacking:
        broker.declare_queue("with")
    with pytest.raises(QueueMismatch) as more:
        broker.declare_queue("without", **dict[str, Any]({option: value}))

    [(requested, declared)] = lacking.value.differences.values()
    assert (requested, more.value.differences) == (None, {option: (declared, None)})

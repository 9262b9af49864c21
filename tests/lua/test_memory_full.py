"""While Redis has no memory left, producers are refused and consumers go on.

Redis judges memory only until the first write of a script, so this is a matter of which write comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis

from rqttl import Broker, OptionArguments
from tests.lua.scenarios import CONSUMERS, MAKERS, PRODUCERS, Scenario
from tests.lua.states import Lab, State


@pytest.fixture
def full_memory(client: redis.Redis) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Redis refuses all calls that need memory, within the context."""

    @contextmanager
    def full() -> Iterator[None]:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)

    yield full
    client.config_set("maxmemory", 0)


Full = Callable[[], AbstractContextManager[None]]


@pytest.mark.parametrize("way", PRODUCERS)
def test_an_enqueue_is_refused_and_leaves_no_trace(lab: Lab, full_memory: Full, way: str) -> None:
    command = PRODUCERS[way].prepare(lab)
    before = lab.dump()

    with full_memory(), pytest.raises(redis.ResponseError) as refusal:
        lab.run(command)

    assert "OOM" in str(refusal.value) or isinstance(refusal.value, redis.exceptions.OutOfMemoryError)
    assert lab.dump() == before


def without_version(state: State) -> State:
    for queue in state.values():
        queue.get("meta", {}).pop("version", None)  # of a queue that was deleted only its trace is left
    return state


def run_with_and_without_memory(lab: Lab, full_memory: Full, scenario: Scenario) -> tuple[Any, Any]:
    """The replies to a command with free memory and without. It has to leave the same in both cases."""
    expected = lab.run(scenario.prepare(lab))
    after = without_version(lab.snapshot())

    lab.client.flushall()
    command = scenario.prepare(lab)
    with full_memory():
        reply = lab.run(command)

    assert without_version(lab.snapshot()) == after
    return expected, reply


@pytest.mark.parametrize("way", CONSUMERS)
def test_settles_looks_sweeps_and_removals_go_on_as_ever(lab: Lab, full_memory: Full, way: str) -> None:
    expected, reply = run_with_and_without_memory(lab, full_memory, CONSUMERS[way])

    assert reply[0] == b"ok"
    assert reply == expected


def test_the_declaration_of_a_new_queue_is_refused_and_leaves_no_trace(lab: Lab, full_memory: Full) -> None:
    command = MAKERS["declare"].prepare(lab)
    before = lab.dump()

    with full_memory(), pytest.raises(redis.ResponseError):
        lab.run(command)

    assert lab.dump() == before


@pytest.mark.parametrize("way", ["declare again", "declare again, mortal", "adopt"])
def test_a_queue_that_is_there_is_declared_all_the_same(lab: Lab, full_memory: Full, way: str) -> None:
    expected, reply = run_with_and_without_memory(lab, full_memory, MAKERS[way])

    assert reply[:3] == expected[:3]


@pytest.mark.parametrize("options", [{}, {"expires": "1h"}, {"auto_delete_on_idle": "1h", "max_length": 5}])
def test_a_program_that_starts_anew_declares_its_queue_and_works_on(
    client: redis.Redis, full_memory: Full, options: OptionArguments
) -> None:
    Broker(client).declare_queue("q", **options).enqueue_many([b"1", b"2"])

    with full_memory():
        queue = Broker(client).declare_queue("q", **options)
        with queue.consume(wait="0s") as deliveries:
            for delivery in deliveries:
                delivery.ack()

    assert queue.declared == "existing"
    assert queue.stats().acked == 2


def test_a_new_queue_is_in_no_list_after_its_declaration_was_refused(client: redis.Redis, full_memory: Full) -> None:
    broker = Broker(client)

    with full_memory(), pytest.raises(redis.ResponseError):
        broker.declare_queue("q")

    assert (broker.queues(), client.keys("*")) == ([], [])

"""While Redis has no memory left, producers are refused and consumers go on.

Redis judges memory only until the first write of a script, so this is a matter of which write comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from tests.lua.scenarios import CONSUMERS, MAKERS, PRODUCERS
from tests.lua.states import Lab, State


@pytest.fixture
def full_memory(client: redis.Redis) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Redis refuses whatever needs memory, within the context."""

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


@pytest.mark.parametrize("way", CONSUMERS)
def test_whoever_settles_looks_sweeps_or_removes_goes_on_as_ever(lab: Lab, full_memory: Full, way: str) -> None:
    expected = lab.run(CONSUMERS[way].prepare(lab))
    after = without_version(lab.snapshot())

    lab.client.flushall()
    command = CONSUMERS[way].prepare(lab)
    with full_memory():
        reply = lab.run(command)

    assert reply[0] == b"ok"
    assert reply == expected
    assert without_version(lab.snapshot()) == after


@pytest.mark.parametrize("way", ["declare", "adopt"])
def test_a_declaration_that_needs_memory_is_refused_and_leaves_no_trace(lab: Lab, full_memory: Full, way: str) -> None:
    command = MAKERS[way].prepare(lab)
    before = lab.dump()

    with full_memory(), pytest.raises(redis.ResponseError):
        lab.run(command)

    assert lab.dump() == before

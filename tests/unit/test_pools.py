"""A thread that waits for a connection: which of its two limits ends the wait, however late the thread looks."""

from __future__ import annotations

import time
from typing import Literal

import pytest
import redis

from rqttl.store import connections
from rqttl.store.connections import Place, Places


@pytest.mark.parametrize(
    "timeout,seconds,answer",
    [(0.1, 0.02, None), (0.1, 0.1, False), (0.1, 0.5, False), (None, 0.5, None)],
    ids=["the wait is shorter", "both are equal", "the time-out of the pool is shorter", "no time-out"],
)
def test_the_shorter_limit_decides_although_the_thread_looks_when_both_are_over(
    monkeypatch: pytest.MonkeyPatch, timeout: float | None, seconds: float, answer: Literal[False] | None
) -> None:
    places = Places(redis.BlockingConnectionPool(max_connections=2, timeout=timeout))
    now = time.monotonic()

    class Late:
        """The clock of a thread that sleeps for a second at least."""

        @staticmethod
        def monotonic() -> float:
            return now

        @staticmethod
        def sleep(seconds: float) -> None:
            nonlocal now
            now += max(seconds, 1)

    monkeypatch.setattr(connections, "time", Late)
    held = places.take(seconds, lambda: False)

    assert isinstance(held, Place)
    assert places.take(seconds, lambda: False) is answer


@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_in_a_pool_that_does_not_block_nobody_waits(seconds: float) -> None:
    places = Places(redis.ConnectionPool(max_connections=2))
    held = places.take(seconds, lambda: False)

    assert isinstance(held, Place)
    assert places.take(seconds, lambda: pytest.fail("it waits")) is False

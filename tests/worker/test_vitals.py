"""The health of a worker: whether it lives, whether it is ready, and the signs of life for systemd."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from rqttl import Worker
from rqttl.testing import fake_broker
from rqttl.worker.health import SIGN_EVERY, Systemd, watchdog_interval

pytestmark = pytest.mark.once


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that seems to work: it never runs."""
    with fake_broker() as broker:
        worker = Worker(broker, "q", call="m:f", processes=2)
        worker._fetcher.answered_at = worker._fetcher.turned_at
        worker._supervisor._children = [SimpleNamespace(is_ready=True, retiring="", pid=0)] * 2  # type: ignore[list-item]
        yield worker
        worker._supervisor._children = []


def test_a_worker_whose_loops_turn_is_alive_also_without_redis(worker: Worker) -> None:
    worker._fetcher.is_away, worker._fetcher.answered_at = True, None
    worker._fetcher.turned_at -= 60_000
    assert "fetcher" in worker.trouble()
    with worker._sources.lock:  # a loop may wait for Redis
        assert worker.trouble() == ""
        worker._turned_at -= 31.0
        assert "supervision" in worker.trouble()
    worker._turned_at = time.monotonic()
    worker._fetcher.turned_at += 60_000
    worker._sources.renewer.turned_at -= 31_000
    assert "keeper" in worker.trouble()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_worker_is_ready_only_if_it_can_handle_messages_now(worker: Worker, is_full: bool) -> None:
    assert worker.obstacle() == ""
    worker._turned_at -= 31.0
    assert "supervision" in worker.obstacle()
    answered_at = worker._fetcher.answered_at
    assert answered_at is not None
    worker._fetcher.answered_at = answered_at - 41_000
    child = SimpleNamespace(slots=1, running={1: None} if is_full else {})
    worker._in_flight.children = [child]  # type: ignore[list-item]
    assert ("no claim for 41 s" in worker.obstacle()) != is_full
    worker._fetcher.answered_at = None
    assert "has not answered a claim" in worker.obstacle()
    worker._sources.is_away = True
    assert "does not answer" in worker.obstacle()
    worker._supervisor._children.pop()
    assert "1 of 2 child" in worker.obstacle()
    worker.quiet()
    assert "fetches no more" in worker.obstacle()


@pytest.mark.parametrize(
    "variables, seconds",
    [
        ({}, None),
        ({"WATCHDOG_PID": "7"}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "7"}, 1e-6),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        *[({"WATCHDOG_USEC": value}, None) for value in ("", "0", "-1", "5s", "1.5", "٣")],
    ],
)
def test_the_interval_of_the_watchdog_is_read_as_systemd_says(variables: dict[str, str], seconds: float | None) -> None:
    assert watchdog_interval(variables, 7) == seconds


@pytest.mark.parametrize("microseconds, seconds", [("3000000", 1.0), ("600000000", SIGN_EVERY), (None, SIGN_EVERY)])
def test_signs_of_life_come_at_half_the_interval_at_most(microseconds: str | None, seconds: float) -> None:
    variables = {} if microseconds is None else {"WATCHDOG_USEC": microseconds}
    assert Systemd(variables).every == pytest.approx(seconds)

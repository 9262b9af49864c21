"""The health of a worker: whether it lives, whether it is ready, and the signs of life for systemd."""

from __future__ import annotations

import pytest

from rqttl.worker.health import SIGN_EVERY, Signs, Vitals, watchdog_interval

pytestmark = pytest.mark.once

HEALTHY: dict[str, object] = {
    "supervised": 0.0,
    "fetched": 0.0,
    "kept": 0.0,
    "answered": 1.0,
    "calls_redis": False,
    "is_away": False,
    "is_full": False,
    "is_stopping": False,
    "children": 2,
    "ready_children": 2,
}


def vitals(**changes: object) -> Vitals:
    return Vitals(**{**HEALTHY, **changes})  # type: ignore[arg-type]  # the fields by name


def test_a_worker_whose_loops_turn_is_alive_also_without_redis() -> None:
    assert vitals(is_away=True, answered=1e6, calls_redis=True, fetched=60.0, kept=60.0).trouble() == ""
    assert "fetcher" in vitals(fetched=31.0).trouble()
    assert "keeper" in vitals(kept=31.0).trouble()
    assert "supervision" in vitals(supervised=31.0, calls_redis=True).trouble()


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"is_stopping": True}, "fetches no more"),
        ({"ready_children": 1}, "1 of 2 child"),
        ({"is_away": True}, "does not answer"),
        ({"answered": None}, "has not answered a claim"),
        ({"answered": 41.0}, "no claim for 41 s"),
        ({"supervised": 31.0}, "supervision"),
    ],
)
def test_a_worker_is_ready_only_if_it_can_handle_messages_now(changes: dict[str, object], reason: str) -> None:
    assert vitals().obstacle() == ""
    assert reason in vitals(**changes).obstacle()


def test_a_full_worker_needs_no_claim_to_be_ready() -> None:
    assert vitals(answered=1000.0, is_full=True).obstacle() == ""


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
    assert Signs(None, variables).every == pytest.approx(seconds)

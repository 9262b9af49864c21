"""Type checkers refuse durations and instants without a unit, before the program runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checked import said_of

pytestmark = pytest.mark.timeout(600)  # mypy begins without a cache
PROLOGUE = """
from datetime import datetime, timedelta, timezone

import rqttl
from rqttl.reaper import Reaper
from rqttl.testing import fake_broker

broker = fake_broker()
queue = broker.declare_queue("q")
delivery = queue.receive_many(1)[0]
ttl: rqttl.Duration = "60s"
until: rqttl.Instant = "2026-11-21T10:00Z"
headers: dict[str, rqttl.Header] = {"region": "eu", "retries": 3}
seconds: int = 60
"""
DURATIONS = [
    'queue.enqueue(b"x", ttl={})',
    'rqttl.Message(b"x", ttl={})',
    "queue.receive({})",
    "queue.receive(lease={})",
    "queue.receive_many(5, wait={})",
    "queue.receive_many(5, lease={})",
    "queue.consume(lease={})",
    "queue.consume(wait={})",
    "delivery.nack({})",
    "delivery.renew({})",
    "queue.nack_many([delivery], delay={})",
    "queue.renew_many([delivery], lease={})",
    'queue.enqueue_many([b"x"], duplicate_window={})',
    "broker.clock.advance({})",
    "Reaper(broker, scan_period={})",
]
INSTANTS = ['queue.enqueue(b"x", expires_at={})', 'rqttl.Message(b"x", expires_at={})', "broker.clock.set({})"]

RIGHT = [
    *[call.format(one) for call in DURATIONS for one in ("ttl", '"1500ms"', "timedelta(seconds=1)", "0")],
    *[call.format(one) for call in INSTANTS for one in ("until", "1795255200000", "datetime.now(timezone.utc)")],
    'queue.enqueue(b"x", headers=headers)',
]
WRONG = [
    *[call.format(one) for call in DURATIONS for one in ("60", "1.5", "seconds")],
    *[call.format(one) for call in INSTANTS for one in ("60.0", "timedelta(seconds=1)")],
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """For `right` and `wrong`, the calls that mypy refuses."""
    written = {name: (PROLOGUE + "\n".join(calls)).split("\n") for name, calls in (("right", RIGHT), ("wrong", WRONG))}
    said = said_of({f"{name}.py": "\n".join(lines) for name, lines in written.items()}, tmp_path_factory, "units")
    found: dict[str, list[str]] = {name: [] for name in written}
    for line in said.splitlines():
        place, _, error = line.partition(": error: ")
        if error:
            path, number = place.split(":")[:2]
            assert "incompatible type" in error, line
            found[Path(path).stem].append(written[Path(path).stem][int(number) - 1])
    return found


def test_a_value_with_a_unit_is_taken(refused: dict[str, list[str]]) -> None:
    assert refused["right"] == []


def test_a_number_without_a_unit_is_refused_wherever_a_duration_or_an_instant_is_meant(
    refused: dict[str, list[str]],
) -> None:
    assert refused["wrong"] == WRONG


def test_the_names_for_annotations_are_public_and_hold_the_documented_types() -> None:
    from datetime import datetime, timedelta
    from typing import Literal, get_args

    import rqttl

    assert {"Duration", "Instant", "Header"} <= set(rqttl.__all__)
    assert set(get_args(rqttl.Duration)) == {timedelta, str, Literal[0]}
    assert set(get_args(rqttl.Instant)) == {datetime, str, int}
    assert set(get_args(rqttl.Header)) == {str, bytes, int, float, bool, type(None)}

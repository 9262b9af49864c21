"""The clock of a fake broker: it stands still, moves on request, and refuses invalid times."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from rqttl import InvalidDuration, InvalidInput
from rqttl.testing import Clock, FakeBroker, fake_broker
from tests.contract.clocked import START, at


def test_it_begins_where_it_is_told_and_stands_still(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q")

    queue.enqueue_many([b"x"] * 10)

    assert fake.clock.now == fake.server_time() == at(0)
    assert {one.enqueued_at for one in queue.peek()} == {at(0)}


def test_it_begins_now_if_it_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.1234)

    assert Clock().ms == 1_800_000_000_123


@pytest.mark.parametrize(
    "start", [START, "2023-11-14 22:13:20Z", datetime(2023, 11, 14, 22, 13, 20, tzinfo=timezone.utc)], ids=str
)
def test_a_start_is_an_aware_datetime_text_or_milliseconds(start: datetime | str | int) -> None:
    with fake_broker(start=start) as broker:
        assert broker.clock.now == at(0)


@pytest.mark.parametrize("duration", ["5s", "5000ms", timedelta(seconds=5)], ids=str)
def test_it_goes_forward_by_every_form_of_a_duration(fake: FakeBroker, duration: str | timedelta) -> None:
    fake.clock.advance(duration)

    assert fake.clock.now == at(5_000)


@pytest.mark.parametrize("wrong", ["5", 5, -1, 1.5, timedelta(seconds=-1), None], ids=str)
def test_an_invalid_duration_is_refused_and_no_time_passes(fake: FakeBroker, wrong: Any) -> None:
    with pytest.raises(InvalidDuration, match="duration"):
        fake.clock.advance(wrong)

    assert fake.clock.now == at(0)


@pytest.mark.parametrize(
    "wrong",
    ["2023-11-14", datetime(2023, 1, 1), 10**12 - 1, 10**13, True],  # noqa: DTZ001 - naive on purpose
    ids=str,
)
def test_an_invalid_time_or_one_too_far_away_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="start"):
        fake_broker(start=wrong)
    with pytest.raises(InvalidInput, match="now"):
        Clock(START).set(wrong)


def test_it_does_not_run_over_its_end() -> None:
    clock = Clock(10**13 - 1)

    with pytest.raises(InvalidInput, match="2286"):
        clock.advance("1ms")

    assert clock.ms == 10**13 - 1


def test_it_is_set_forward_and_back(fake: FakeBroker) -> None:
    queue = fake.declare_queue("q")
    first = queue.enqueue(b"x").id

    fake.clock.set(START + 1_000)
    second = queue.enqueue(b"x").id
    fake.clock.set(START - 1_000)
    third = queue.enqueue(b"x").id

    assert fake.clock.now == at(-1_000)
    assert first < second < third


def test_it_shows_the_time() -> None:
    assert repr(Clock(START)) == "<Clock 2023-11-14T22:13:20.000+00:00>"

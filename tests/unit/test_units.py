"""Durations and instants, as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqttl import InvalidDuration, InvalidInput, units
from rqttl.units import MAX_DURATION, MAX_INSTANT


@pytest.mark.parametrize(
    "written,ms",
    [
        (0, 0), (1500, 1500), (MAX_DURATION, MAX_DURATION), ("0ms", 0), ("1500ms", 1500), ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000), ("1d", 86_400_000), ("1w", 604_800_000), (" 5 s ", 5_000), ("007s", 7_000),
        (timedelta(seconds=1.5), 1500), (timedelta(0), 0), (timedelta(days=3650), MAX_DURATION),
    ],
)  # fmt: skip
def test_a_duration_is_read_as_whole_milliseconds(written: units.Duration, ms: int) -> None:
    assert units.duration(written, "ttl") == ms


@pytest.mark.parametrize(
    "written",
    [
        -1, MAX_DURATION + 1, True, False, 1.0, 1.5, float("nan"), None, b"5s", [], "", "5", "5 seconds", "-5s", "1.5s",
        "5S", "5s5m", "s", "٣s", "9" * 19 + "s", "9" * 18 + "w", "1e3ms", timedelta(microseconds=1),
        timedelta(seconds=-1), timedelta.max, 10**30,
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_name_and_value(written: object) -> None:
    with pytest.raises(InvalidDuration, match=r"^message_ttl: expected .*, got ") as refused:
        units.duration(written, "message_ttl")  # type: ignore[arg-type]  # what people pass

    assert refused.value.code == "invalid_duration"
    assert isinstance(refused.value, ValueError)


def test_a_duration_may_have_a_least_value() -> None:
    assert units.duration(1, "lease", least=1) == 1
    with pytest.raises(InvalidDuration, match=r"^lease: expected 1 to 315360000000 ms \(10 years\), got '0s'"):
        units.duration("0s", "lease", least=1)


@given(st.integers(0, MAX_DURATION))
def test_what_is_shown_is_read_back_as_the_same(ms: int) -> None:
    assert units.duration(units.as_text(ms), "ttl") == ms


@pytest.mark.parametrize("ms,text", [(0, "0ms"), (1, "1ms"), (60_000, "1m"), (90_000, "90s"), (604_800_000, "1w")])
def test_durations_are_shown_in_the_largest_unit_that_fits(ms: int, text: str) -> None:
    assert units.as_text(ms) == text


@given(st.text(max_size=8) | st.binary(max_size=4) | st.floats() | st.booleans() | st.none() | st.integers())
def test_any_duration_is_read_or_refused(written: object) -> None:
    try:
        ms = units.duration(written, "x")  # type: ignore[arg-type]  # what people pass
    except InvalidDuration:
        return
    assert 0 <= ms <= MAX_DURATION


UTC = timezone.utc
NAIVE = datetime(2023, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    "written,ms",
    [
        (0, 0), (MAX_INSTANT, MAX_INSTANT), (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2023, 11, 14, 22, 13, 20, 123_999, tzinfo=UTC), 1_700_000_000_123),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
        (datetime.max.replace(tzinfo=UTC), MAX_INSTANT),
    ],
)  # fmt: skip
def test_an_instant_is_read_as_milliseconds_since_1970(written: units.Instant, ms: int) -> None:
    assert units.instant(written, "expires_at") == ms


@pytest.mark.parametrize("written", [-1, MAX_INSTANT + 1, True, 1.5, "tomorrow", None, NAIVE, timedelta(1)])
def test_what_is_no_instant_is_refused(written: object) -> None:
    with pytest.raises(InvalidInput, match=r"^expires_at: expected "):
        units.instant(written, "expires_at")  # type: ignore[arg-type]  # what people pass


@given(st.integers(0, MAX_INSTANT))
def test_an_instant_is_shown_and_read_back_as_the_same(ms: int) -> None:
    shown = units.as_datetime(ms)

    assert shown.tzinfo is UTC
    assert units.instant(shown, "x") == ms


def test_what_lies_beyond_the_last_year_is_shown_as_its_last_moment() -> None:
    assert units.as_datetime(MAX_INSTANT + MAX_DURATION) == units.as_datetime(MAX_INSTANT)

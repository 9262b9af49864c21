"""Durations and instants, as people write them."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from numbers import Number
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqttl import Duration, Instant, InvalidDuration, InvalidInput, units
from rqttl.text import format_value
from rqttl.units import MAX_DURATION, MAX_INSTANT


@pytest.mark.parametrize(
    "written,ms",
    [
        (0, 0),
        ("0", 0),
        ("1500ms", 1500),
        ("30s", 30_000),
        ("1d", 86_400_000),
        (" 5 s ", 5_000),
        ("1.5s", 1_500),
        ("0.25h", 900_000),
        ("315360000000ms", MAX_DURATION),
        (timedelta(seconds=1.5), 1500),
        (timedelta(0), 0),
        (timedelta(days=3650), MAX_DURATION),
        (timedelta(microseconds=1), 1),
        (timedelta(microseconds=1_001), 2),
        (timedelta(seconds=60, microseconds=999), 60_001),
        ("0.1ms", 1),
    ],
)
def test_a_duration_is_read_as_whole_milliseconds_and_a_part_of_one_is_rounded_up(written: Duration, ms: int) -> None:
    assert units.duration(written, "ttl") == ms


def refusal(read: Callable[..., int], written: object) -> str:
    with pytest.raises(InvalidDuration if read is units.duration else InvalidInput) as refused:
        read(written, "when")
    return str(refused.value)


@pytest.mark.parametrize(
    "written,told",
    [
        (60, "'60s' or '60ms'"),
        ("60", "'60s' or '60ms'"),
        (1.5, "'1.5s' or '1.5ms'"),
        ("1.50", "'1.5s' or '1.5ms'"),
        (Decimal("2.5"), "'2.5s' or '2.5ms'"),
        (np.int64(60), "'60s' or '60ms'"),
        (0.0, "0"),
        (315_360_000, "'315360000s' or '315360000ms'"),
        (315_360_001, "'315360001ms'"),  # in seconds more than ten years
    ],
    ids=repr,
)
def test_a_number_without_a_unit_is_refused_with_what_it_may_mean(written: Any, told: str) -> None:
    said = f"when: expected a duration with a unit, got {written!r}: write {told}"

    assert refusal(units.duration, written) == said


@given(st.integers(1, MAX_DURATION) | st.floats(0.0001, MAX_DURATION) | st.decimals(1, MAX_DURATION, places=3))
def test_the_spelling_that_a_refusal_proposes_is_taken(number: Any) -> None:
    _, _, hint = refusal(units.duration, number).partition(": write ")
    ms, seconds = math.ceil(Decimal(str(number))), math.ceil(Decimal(str(number)) * 1000)
    meant = [seconds, ms] if seconds <= MAX_DURATION else [ms]
    assert [units.duration(text.strip("'"), "ttl") for text in hint.split(" or ")] == meant


@pytest.mark.parametrize(
    "written",
    [-1, "-1", timedelta(microseconds=-1), timedelta(seconds=-1), MAX_DURATION + 1, "315360000001ms", "9" * 18 + "w"],
    ids=repr,
)
def test_a_negative_or_too_long_duration_is_refused_with_the_range(written: Any) -> None:
    assert refusal(units.duration, written) == f"when: expected 0 to 315360000000 ms (10 years), got {written!r}"


@pytest.mark.parametrize(
    "written",
    [
        True,
        float("nan"),
        Decimal("nan"),
        Fraction(1, 3),
        None,
        b"5s",
        "",
        "5 seconds",
        "-5s",
        "5s5m",
        "٣s",
        "9" * 19 + "s",
        "1,5s",
        np.timedelta64(5, "s"),
    ],
    ids=repr,
)
def test_an_invalid_duration_is_refused_with_name_and_value(written: Any) -> None:
    with pytest.raises(InvalidDuration) as refused:
        units.duration(written, "message_ttl")

    kind = "a number" if isinstance(written, str) else "a timedelta or text"
    rule = f"expected {kind} with a unit such as '30s', '5m' or '1500ms'"
    got = repr(written) if isinstance(written, (str, Number)) else format_value(written)
    assert str(refused.value) == f"message_ttl: {rule}, got {got}"
    assert refused.value.code == "invalid_duration"
    assert isinstance(refused.value, ValueError)


def test_a_duration_may_have_a_least_value() -> None:
    assert units.duration("1ms", "lease", least=1) == 1
    for nothing in ("0s", 0, "0", timedelta(0)):
        with pytest.raises(InvalidDuration, match=r"^lease: expected 1 to 315360000000 ms \(10 years\), got "):
            units.duration(nothing, "lease", least=1)


@given(st.integers(0, MAX_DURATION))
def test_a_printed_duration_is_read_back_as_the_same(ms: int) -> None:
    assert units.duration(units.as_text(ms), "ttl") == ms


@pytest.mark.parametrize("ms,text", [(0, "0ms"), (1, "1ms"), (60_000, "1m"), (90_000, "90s"), (604_800_000, "1w")])
def test_durations_are_shown_in_the_largest_unit_that_fits(ms: int, text: str) -> None:
    assert units.as_text(ms) == text


UTC = timezone.utc
TEN = 1_795_255_200_000  # 2026-11-21 10:00 UTC
YEAR_2001 = 978_307_200_000


@pytest.mark.parametrize(
    "written,ms",
    [
        (YEAR_2001, YEAR_2001),
        (MAX_INSTANT, MAX_INSTANT),
        (str(YEAR_2001), YEAR_2001),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        ("1969-12-31T00:00Z", 0),
        (datetime(2023, 11, 14, 22, 13, 20, 123_999, tzinfo=UTC), 1_700_000_000_123),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
        (datetime.max.replace(tzinfo=UTC), MAX_INSTANT),
        ("9999-12-31T23:59:59.999Z", MAX_INSTANT),
        ("2026-11-21T10:00:00+00:00", TEN),
        ("2026-11-21T10:00:00.123456+00:00", TEN + 123),
        ("2026-11-21 10:00Z", TEN),
        ("2026-11-21 12:00+02", TEN),
        ("2026-11-21T04:30-05:30", TEN),
    ],
)
def test_an_instant_is_read_as_milliseconds_since_1970(written: Instant, ms: int) -> None:
    assert units.instant(written, "expires_at") == ms


@pytest.mark.parametrize(
    "written,told",
    [
        (1_795_255_200, "1795255200, which is in seconds: write 1795255200000"),
        ("1795255200", "'1795255200', which is in seconds: write 1795255200000"),
        (1_795_255_200.25, "1795255200.25, which is in seconds: write 1795255200250"),
        (YEAR_2001 // 1000, "978307200, which is in seconds: write 978307200000"),
        (float(TEN), f"{TEN}.0: write {TEN}"),
        (np.int64(TEN), f"{np.int64(TEN)!r}: write {TEN}"),
        (f"{TEN}.5", f"'{TEN}.5': write {TEN}"),
        *[
            (n, f"{n}, which is not from 978307200000 (2001) to 253402300799999 (9999)")
            for n in (0, 1, -1, YEAR_2001 - 1, MAX_INSTANT + 1, 10**18)
        ],
    ],
    ids=repr,
)
def test_a_number_that_is_no_time_in_milliseconds_is_refused_with_the_right_one(written: Any, told: str) -> None:
    assert refusal(units.instant, written) == f"when: expected milliseconds since 1970, got {told}"


@pytest.mark.parametrize(
    "written",
    [
        True,
        None,
        timedelta(1),
        ["x" * 500],
        b"2026-11-21T10:00Z",
        "",
        "tomorrow",
        "2026-11-21",
        "2026-11-21 10:00",
        "٢٠٢٦-11-21 10:00Z",
        "9" * 5000,
        float("nan"),
        10**5_000,
    ],
    ids=lambda written: str(type(written)),
)
def test_an_invalid_instant_is_refused_in_a_short_line(written: Any) -> None:
    said = refusal(units.instant, written)

    kind = "" if isinstance(written, str) else "an aware datetime, "
    rule = f"expected {kind}a time with its zone such as '2026-11-21 10:00Z', or milliseconds since 1970"
    assert said.startswith(f"when: {rule}, got ")
    assert len(said) < 220


@pytest.mark.parametrize("written", ["2026-13-21 10:00Z", "2026-11-21 25:00Z", "0000-11-21 10:00Z"])
def test_a_time_that_does_not_exist_is_refused(written: str) -> None:
    with pytest.raises(InvalidInput, match=f"^expires_at: no such time: '{written}'"):
        units.instant(written, "expires_at")


def test_an_instant_beyond_the_last_year_is_shown_as_its_last_moment() -> None:
    assert units.as_datetime(MAX_INSTANT + MAX_DURATION) == units.as_datetime(MAX_INSTANT)


@pytest.mark.parametrize("text, right", [("100/min", "100/1m"), ("5/Seconds", "5/1s"), ("1 / hours", "1/1h")])
def test_a_word_in_the_time_of_a_rate_is_answered_with_its_unit(text: str, right: str) -> None:
    with pytest.raises(InvalidInput, match=f"write '{right}'$"):
        units.rate(text, "rate")

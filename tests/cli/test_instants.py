"""Absolute times as they are written."""

from __future__ import annotations

import pytest

from rqttl import InvalidInput
from rqttl.cli.instants import instant

TEN = 1_795_255_200_000  # 2026-11-21 10:00 UTC


@pytest.mark.parametrize(
    "written, ms",
    [
        ("2026-11-21T10:00:00+00:00", TEN),
        ("2026-11-21T10:00:00.123456+00:00", TEN + 123),
        ("2026-11-21T10:00:00.5Z", TEN + 500),
        ("2026-11-21T10:00:00,123456789z", TEN + 123),
        ("2026-11-21 10:00Z", TEN),
        (" 2026-11-21 10:00 Z ", TEN),
        ("2026-11-21 12:00+02", TEN),
        ("2026-11-21 12:00+0200", TEN),
        ("2026-11-21T04:30-05:30", TEN),
        (str(TEN), TEN),
        (TEN, TEN),
        (0, 0),
        ("0", 0),
        ("1969-12-31T00:00Z", 0),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_what_is_written_is_read(written: object, ms: int) -> None:
    assert instant(written, "expires_at") == ms


@pytest.mark.parametrize(
    "written, told",
    [
        ("2026-11-21 10:00", "expires_at: expected a time with its zone such as '2026-11-21 10:00Z'"),
        ("2026-11-21", "expires_at: expected a time with its zone"),
        ("tomorrow", "got 'tomorrow'"),
        ("", "got ''"),
        ("٢٠٢٦-11-21 10:00Z", "expires_at: expected a time with its zone"),
        ("2026-13-21 10:00Z", "expires_at: no such time: '2026-13-21 10:00Z'"),
        ("2026-11-21 25:00Z", "expires_at: no such time"),
        ("0000-11-21 10:00Z", "expires_at: no such time"),
        (1_763_745_600, "got 1763745600; if these are seconds, add 000"),
        ("1763745600", "if these are seconds, add 000"),
        (-1, "milliseconds since 1970, got -1"),
        (10**18, "milliseconds since 1970, got 1000000000000000000"),
        ("9" * 5000, "expires_at: expected a time with its zone"),
        (1.5, "got '1.5'"),
        (True, "got 'True'"),
        (["x" * 500], "expires_at: expected a time with its zone"),
    ],
)
def test_what_is_no_time_is_refused_in_a_short_line(written: object, told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        instant(written, "expires_at")

    assert told in str(caught.value)
    assert len(str(caught.value)) < 220

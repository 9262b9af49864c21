"""Durations and instants: what people write, turned into whole milliseconds and back. Nothing else converts time.

And sizes, as people read them.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import NewType

from rqttl.errors import InvalidDuration, InvalidInput

Ms = NewType("Ms", int)
Duration = timedelta | int | str
Instant = datetime | int

#: Ten years, the longest duration anywhere (RabbitMQ TTL-06).
MAX_DURATION = Ms(315_360_000_000)
#: The last millisecond that `datetime` can show.
MAX_INSTANT = Ms(253_402_300_799_999)

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZES = ("B", "kB", "MB", "GB", "TB")
_TEXT = re.compile(r"\s*(\d{1,18})\s*(ms|s|m|h|d|w)\s*", re.ASCII)
_ISO = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:[.,](\d{1,9}))?\s*(?:([Zz])|([+-]\d\d):?(\d\d)?)\s*", re.ASCII
)
#: In ms this is in 1973. What is less was meant to be seconds.
_LEAST_INSTANT = 100_000_000_000
_EXPECTED = "expected a time with its zone such as '2026-11-21 10:00Z', or milliseconds since 1970"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def duration(value: Duration, name: str, *, least: int = 0) -> Ms:
    """Read a duration: a `timedelta`, whole milliseconds, or text such as `"30s"`, `"5m"`, `"1500ms"`.

    Raises `InvalidDuration`, naming `name`, for anything else and for what is not within `least` and ten years.
    """
    ms = _milliseconds(value, name)
    if not least <= ms <= MAX_DURATION:
        raise InvalidDuration(f"{name}: expected {least} to {MAX_DURATION} ms (10 years), got {value!r}")
    return Ms(ms)


def _milliseconds(value: Duration, name: str) -> int:
    if isinstance(value, timedelta):
        if value % _MILLISECOND:
            raise InvalidDuration(f"{name}: expected whole milliseconds, got {value!r}")
        return value // _MILLISECOND
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match:
            return int(match[1]) * _UNITS[match[2]]
        raise InvalidDuration(
            f"{name}: expected a number with a unit such as '30s', '5m' or '1500ms', got {value[:80]!r}"
        )
    raise InvalidDuration(f"{name}: expected a timedelta, milliseconds as int, or text such as '30s', got {value!r}")


def instant(value: Instant, name: str) -> Ms:
    """Read an absolute time: an aware `datetime` or milliseconds since 1970. Raises `InvalidInput`."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"{name}: expected a datetime with a time zone, got the naive {value!r}")
        return Ms((value - _EPOCH) // _MILLISECOND)
    if not isinstance(value, bool) and isinstance(value, int) and 0 <= value <= MAX_INSTANT:
        return Ms(value)
    raise InvalidInput(f"{name}: expected an aware datetime or milliseconds since 1970, got {value!r}")


def instant_of_text(value: object, name: str) -> int:
    """The ms since 1970 of an absolute time: ISO 8601 with its zone, the `T` may be a space, or ms as a number.

    Raises `InvalidInput`, naming `name`; also for seconds since 1970.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, str):
        return max(0, int(instant(_iso(value, name), name)))
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{name}: {_EXPECTED}, got {str(value)[:80]!r}")
    if 0 < value < _LEAST_INSTANT:
        raise InvalidInput(f"{name}: expected milliseconds since 1970, got {value}; if these are seconds, add 000")
    return int(instant(value, name))


def _iso(value: str, name: str) -> datetime:
    found = _ISO.fullmatch(value)
    if not found:
        raise InvalidInput(f"{name}: {_EXPECTED}, got {value[:80]!r}")
    date, minutes, seconds, fraction, _, hours, rest = found.groups()
    zone = f"{hours}:{rest or '00'}" if hours else "+00:00"
    try:
        return datetime.fromisoformat(f"{date}T{minutes}{seconds or ':00'}.{(fraction or '').ljust(6, '0')[:6]}{zone}")
    except ValueError as error:
        raise InvalidInput(f"{name}: no such time: {value[:80]!r} ({error})") from None


def as_datetime(ms: int) -> datetime:
    """The aware UTC datetime of a stored instant. What lies beyond year 9999 is shown as its last moment."""
    return _EPOCH + timedelta(milliseconds=min(ms, MAX_INSTANT))


def as_text(ms: int) -> str:
    """The shortest text that `duration` reads back as `ms`."""
    for unit in ("w", "d", "h", "m", "s"):
        if ms and ms % _UNITS[unit] == 0:
            return f"{ms // _UNITS[unit]}{unit}"
    return f"{ms}ms"


def as_size(n: int) -> str:
    """1234567 -> 1.2 MB."""
    value, unit = float(n), _SIZES[0]
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"

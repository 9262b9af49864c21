"""Parsers and formatters of durations and instants, and of sizes. All conversions of time are here.

Inside rqttl, times are whole milliseconds.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from numbers import Number
from typing import NewType

from rqttl.errors import InvalidDuration, InvalidInput
from rqttl.text import format_value, plain_text, plain_whole
from rqttl.types import Duration, Instant

#: Milliseconds: the form in which times are stored, compared and sent.
Ms = NewType("Ms", int)

#: Ten years, the longest duration anywhere.
MAX_DURATION = Ms(315_360_000_000)
#: The last millisecond that `datetime` can show.
MAX_INSTANT = Ms(253_402_300_799_999)

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
#: The most messages of a rate, and of a burst.
MOST_MESSAGES = 1_000_000
_SIZES = ("B", "kB", "MB", "GB", "TB")
_SIZE = re.compile(r"(\d{1,16}(?:\.\d{1,15})?)\s*([kmgt]?)(i?)b?", re.ASCII | re.IGNORECASE)
_TEXT = re.compile(r"(\d{1,18}(?:\.\d{1,25})?)\s*(ms|s|m|h|d|w)", re.ASCII)
_WORD = re.compile("(sec|second|min|minute|hour|day)s?", re.ASCII | re.IGNORECASE)
_RATE = re.compile(r"(\d{1,7})\s*/\s*(.+)", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,60}(?:\.\d{1,25})?", re.ASCII)
_ISO = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:[.,](\d{1,9}))?\s*(?:([Zz])|([+-]\d\d):?(\d\d)?)\s*", re.ASCII
)
#: The year 2001 in ms. As seconds it is the year 32970, so no number is valid in both units.
_LEAST_INSTANT = 978_307_200_000
_EXPECTED = "a time with its zone such as '2026-11-21 10:00Z', or milliseconds since 1970"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def duration(value: Duration, name: str, *, least: int = 0) -> Ms:
    """Read a duration: a `timedelta`, text with a unit such as `"30s"`, `"5m"`, `"1500ms"`, `"1.5h"`, or `0`.

    Parts of a millisecond are rounded up. A number without a unit is refused, because some readers take it for seconds
    and some for milliseconds. Raises `InvalidDuration` with `name`, also for a duration below `least` ms or above ten
    years.
    """
    ms = _milliseconds(value, name, least)
    if not least <= ms <= MAX_DURATION:
        raise InvalidDuration(_range(name, least, value))
    return Ms(ms)


def milliseconds(value: int, name: str) -> Ms:
    """Check a number of milliseconds whose name has the unit, such as `ttl_ms`. Raises `InvalidDuration`."""
    number = plain_whole(value)
    if number is None or not 0 <= number <= MAX_DURATION:
        raise InvalidDuration(_range(name, 0, value))
    return Ms(number)


def rate(value: object, name: str) -> tuple[int, Ms]:
    """Read a rate: messages, and the time for them, at most a day: `"100/1m"`, `"5/s"`. Raises `InvalidInput`."""
    match = _RATE.fullmatch((plain_text(value) or "").strip())
    if not match or not 1 <= int(match[1]) <= MOST_MESSAGES:
        rule = f"expected 1 to {MOST_MESSAGES} messages and a time, such as '100/1m' or '5/s'"
        raise InvalidInput(f"{name}: {rule}, got {_format_refused(value)}")
    time = match[2].strip()
    if _WORD.fullmatch(time):
        rule = f"write '{match[1]}/1{time[0].lower()}'"
        raise InvalidInput(f"{name}: expected a time such as '1m', got {_format_refused(value)}: {rule}")
    per = duration(f"1{time}" if time in _UNITS else time, name, least=1)
    if per > _UNITS["d"]:
        raise InvalidInput(f"{name}: expected a time of at most 1d, got {_format_refused(value)}")
    return int(match[1]), per


def written_rate(stored: object) -> object:
    """A rate as text that `rate` reads, of its stored form: `100/1m` for `100/60000`."""
    messages, _, per = str(stored).partition("/")
    return f"{messages}/{as_text(int(per))}" if per.isdigit() else stored


def _range(name: str, least: int, value: object) -> str:
    return f"{name}: expected {least} to {MAX_DURATION} ms (10 years), got {_format_refused(value)}"


def _milliseconds(value: object, name: str, least: int) -> int:
    if isinstance(value, timedelta):
        length = timedelta(value.days, value.seconds, value.microseconds)
        if length < timedelta(0):
            return -1
        return length // _MILLISECOND + bool(length % _MILLISECOND)
    text = plain_text(value)
    if text is not None:
        match = _TEXT.fullmatch(text.strip())
        if match:
            return _rounded_up(Decimal(match[1]) * _UNITS[match[2]])
        if text.strip() == "0":
            return 0
    if type(value) is int and value == 0:
        return 0
    number = _number(value)
    if number is None:
        kind = "a number" if isinstance(value, str) else "a timedelta or text"
        rule = f"expected {kind} with a unit such as '30s', '5m' or '1500ms'"
        raise InvalidDuration(f"{name}: {rule}, got {_format_refused(value)}")
    readings = _readings(number, least)
    if not readings:
        raise InvalidDuration(_range(name, least, value))
    raise InvalidDuration(f"{name}: expected a duration with a unit, got {_format_refused(value)}: write {readings}")


def _readings(number: Decimal, least: int) -> str:
    """The possible meanings of a number without a unit, as texts with units."""
    if number == 0:
        return "" if least else "0"
    shortest = format(number, "f")
    if "." in shortest:
        shortest = shortest.rstrip("0").rstrip(".")
    texts = [f"'{shortest}{unit}'" for unit in ("s", "ms") if least <= number * _UNITS[unit] <= MAX_DURATION]
    return " or ".join(texts)


def _number(value: object) -> Decimal | None:
    """The number of a numeric value or text; `None` for any other value."""
    if isinstance(value, bool) or not isinstance(value, str | Number):
        return None
    try:
        text = (plain_text(value) or str(value)).strip()
    except Exception:  # noqa: BLE001  # a method of the value fails, or the number has too many digits
        return None
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _format_refused(value: object) -> str:
    """Format a refused value. Numbers, texts and times are written in full, up to 80 characters."""
    if isinstance(value, (str, Number, timedelta, datetime)):
        with suppress(Exception):  # as in `_number`
            return repr(value)[:80]
    return format_value(value)


def _rounded_up(ms: Decimal) -> int:
    whole = int(ms)
    return whole + (ms > whole)


def size(value: object) -> int | None:
    """Read a number of bytes: a whole number, or text with a unit. `None` for any other value.

    `kB`, `MB`, `GB` and `TB` are powers of 1000, `KiB`, `MiB`, `GiB` and `TiB` powers of 1024; the `B` may be left out.
    """
    text = plain_text(value)
    if text is None:
        return plain_whole(value)
    match = _SIZE.fullmatch(text.strip())
    if not match or (match[3] and not match[2]):
        return None
    power = "_kmgt".index(match[2].lower() or "_")
    return _rounded_up(Decimal(match[1]) * (1024 if match[3] else 1000) ** power)


def instant(value: Instant, name: str) -> Ms:
    """Read a point in time: an aware `datetime`, ISO 8601 text with a zone, or milliseconds since 1970.

    In text the `T` may be a space, and digits alone are milliseconds. A time before 1970 is read as 1970. A number of
    milliseconds before 2001 is refused, because it is probably in seconds. Raises `InvalidInput` with `name`.
    """
    text = plain_text(value)
    if text is not None and not _NUMBER.fullmatch(text.strip()):
        return _since_epoch(_iso(text, name), name)
    if isinstance(value, datetime):
        return _since_epoch(value, name)
    plain = plain_whole(value) if text is None else text
    number = _number(value if plain is None else plain)
    if number is None:
        raise InvalidInput(f"{name}: expected an aware datetime, {_EXPECTED}, got {_format_refused(value)}")
    if _LEAST_INSTANT <= number <= MAX_INSTANT and plain is not None and number == int(number):
        return Ms(int(number))
    raise InvalidInput(f"{name}: expected milliseconds since 1970, got {_format_refused(value)}{_correction(number)}")


def _since_epoch(value: datetime, name: str) -> Ms:
    if value.utcoffset() is None:
        raise InvalidInput(f"{name}: expected a datetime with a time zone, got the naive {_format_refused(value)}")
    return Ms(max(0, (value - _EPOCH) // _MILLISECOND))


def _correction(number: Decimal) -> str:
    """The fault of a number that is no valid time in ms, and the number to write instead."""
    if _LEAST_INSTANT <= number <= MAX_INSTANT:
        return f": write {int(number)}"
    if _LEAST_INSTANT <= number * 1000 <= MAX_INSTANT:
        return f", which is in seconds: write {int(number * 1000)}"
    return f", which is not from {_LEAST_INSTANT} (2001) to {MAX_INSTANT} (9999)"


def _iso(value: str, name: str) -> datetime:
    match = _ISO.fullmatch(value)
    if not match:
        raise InvalidInput(f"{name}: expected {_EXPECTED}, got {_format_refused(value)}")
    date, minutes, seconds, fraction, _, zone_hours, zone_minutes = match.groups()
    zone = f"{zone_hours}:{zone_minutes or '00'}" if zone_hours else "+00:00"
    try:
        return datetime.fromisoformat(f"{date}T{minutes}{seconds or ':00'}.{(fraction or '').ljust(6, '0')[:6]}{zone}")
    except ValueError as error:
        raise InvalidInput(f"{name}: no such time: {value[:80]!r} ({error})") from None


def as_datetime(ms: int) -> datetime:
    """The aware UTC datetime of a stored instant. A time beyond year 9999 becomes its last millisecond."""
    return _EPOCH + timedelta(milliseconds=min(ms, MAX_INSTANT))


def as_timedelta(ms: int) -> timedelta:
    """Milliseconds as a duration that `duration` takes."""
    return timedelta(milliseconds=ms)


def as_text(ms: int) -> str:
    """The shortest text that `duration` reads back as `ms`."""
    for unit in ("w", "d", "h", "m", "s"):
        if ms and ms % _UNITS[unit] == 0:
            return f"{ms // _UNITS[unit]}{unit}"
    return f"{ms}ms"


def as_size(n: int) -> str:
    """Format a number of bytes: 1234567 -> 1.2 MB."""
    value, unit = float(n), _SIZES[0]
    for unit in _SIZES:
        if value < 999.5 or unit == _SIZES[-1]:
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"

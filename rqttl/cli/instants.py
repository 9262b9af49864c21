"""Absolute times as people and programs write them."""

from __future__ import annotations

import re
from datetime import datetime

import click

from rqttl import units
from rqttl.errors import InvalidInput

_TEXT = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:[.,](\d{1,9}))?\s*(?:([Zz])|([+-]\d\d):?(\d\d)?)\s*", re.ASCII
)
#: In ms this is in 1973. What is less was meant to be seconds.
_LEAST = 100_000_000_000
_EXPECTED = "expected a time with its zone such as '2026-11-21 10:00Z', or milliseconds since 1970"


def instant(value: object, name: str) -> int:
    """The ms since 1970 of an absolute time: ISO 8601 with its zone, the `T` may be a space, or ms as a number.

    Raises `InvalidInput`, naming `name`; also for seconds since 1970.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    if isinstance(value, str):
        return max(0, int(units.instant(_datetime(value, name), name)))
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"{name}: {_EXPECTED}, got {str(value)[:80]!r}")
    if 0 < value < _LEAST:
        raise InvalidInput(f"{name}: expected milliseconds since 1970, got {value}; if these are seconds, add 000")
    return int(units.instant(value, name))


def _datetime(value: str, name: str) -> datetime:
    found = _TEXT.fullmatch(value)
    if not found:
        raise InvalidInput(f"{name}: {_EXPECTED}, got {value[:80]!r}")
    date, minutes, seconds, fraction, _, hours, rest = found.groups()
    zone = f"{hours}:{rest or '00'}" if hours else "+00:00"
    try:
        return datetime.fromisoformat(f"{date}T{minutes}{seconds or ':00'}.{(fraction or '').ljust(6, '0')[:6]}{zone}")
    except ValueError as error:
        raise InvalidInput(f"{name}: no such time: {value[:80]!r} ({error})") from None


def read_instant(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """The ms since 1970 of what `instant` takes. For `callback`."""
    if value is None:
        return None
    try:
        return instant(value, "time")
    except InvalidInput as error:
        raise click.BadParameter(str(error).removeprefix("time: "), context, option) from None

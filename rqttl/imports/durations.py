"""Durations of Service Bus: ISO 8601, or the `d.hh:mm:ss` of old templates."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil

from rqttl.errors import InvalidImport
from rqttl.text import format_value

_NUMBER = r"(\d{1,12}(?:[.,]\d{1,12})?)"
_ISO = re.compile(
    rf"P(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?",
    re.ASCII,
)
_CLOCK = re.compile(r"(?:(\d{1,12})\.)?(\d{1,2}):(\d{1,2}):(\d{1,2}(?:\.\d{1,12})?)", re.ASCII)
_WEEK, _DAY, _HOUR, _MINUTE, _SECOND = 604_800_000, 86_400_000, 3_600_000, 60_000, 1_000
_EXPECTED = "expected an ISO 8601 duration such as 'PT30S', 'P1D' or 'P14D'"


def parse_duration(text: str, place: str) -> int:
    """The milliseconds of a duration, exact, with parts of a millisecond rounded up. Raises `InvalidImport`.

    Only the last part of a duration may have a fraction. Years and months are refused, because their lengths vary.
    """
    clock = _CLOCK.fullmatch(text)
    if clock:
        return _milliseconds(clock.groups(), (_DAY, _HOUR, _MINUTE, _SECOND))
    match = _ISO.fullmatch(text)
    if not match or text[-1] in "PT":
        raise InvalidImport(place, f"{_EXPECTED}, got {format_value(text)}")
    years, months, *parts = match.groups()
    if years or months:
        unit = "years" if years else "months"
        raise InvalidImport(place, f"{_EXPECTED}, got {format_value(text)}: {unit} have no fixed length, write days")
    present = [part for part in parts if part]
    if any("." in part or "," in part for part in present[:-1]):
        raise InvalidImport(place, f"{_EXPECTED}, got {format_value(text)}: only the last part may have a fraction")
    return _milliseconds(tuple(parts), (_WEEK, _DAY, _HOUR, _MINUTE, _SECOND))


def _milliseconds(parts: tuple[str | None, ...], units: tuple[int, ...]) -> int:
    pairs = [(part.replace(",", "."), unit) for part, unit in zip(parts, units, strict=True) if part]
    return ceil(sum(Fraction(part) * unit for part, unit in pairs))

"""How things are written for people: short, and escaped, so that no body and no error can act on a terminal."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

from rqttl.units import as_size

#: Longer texts are cut where people read them.
LONGEST = 2_000


def visible(text: str | bytes, longest: int | None = None) -> str:
    """A text with everything escaped that is not plainly printable: controls, bidi marks, bytes that are no UTF-8."""
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if longest is not None and size > longest:
        return f"{visible(text[:longest])}… ({size:,} {unit})"
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_json(value: Any) -> str:
    """One line of JSON in ASCII, safe to show."""
    return json.dumps(value, default=_plain, separators=(", ", ": ")).replace("\x7f", "\\u007f")


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return visible(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def count(n: int) -> str:
    """12345 -> 12,345."""
    return f"{n:,}"


def plural(n: int, noun: str) -> str:
    """1 message, 2 messages."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def size(n: int) -> str:
    """1234567 -> 1.2 MB."""
    return as_size(n)


def age(time: timedelta | None) -> str:
    """How long, in at most two units: 12s, 3m 4s, 2d 5h. `-` for None."""
    if time is None:
        return "-"
    seconds = time.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f}s"
    left, said = int(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        n, left = divmod(left, length)
        if n:
            said.append(f"{n}{unit}")
        elif said:
            break
    return " ".join(said[:2])


def moment(at: datetime | None, now: datetime, *, utc: bool = False) -> str:
    """When, as people say it: `in 12s`, `3m ago`, `now`; exact with `utc`: `2026-01-31 12:00:00.000Z`. `-` for None."""
    if at is None:
        return "-"
    if utc:
        exact = at.astimezone(timezone.utc).isoformat(sep=" ", timespec="milliseconds")
        return exact.replace("+00:00", "Z")
    away = at - now
    if abs(away) < timedelta(milliseconds=50):
        return "now"
    return f"in {age(away)}" if away > timedelta(0) else f"{age(-away)} ago"

"""Text for people: refused values, counts, ages, times, escaped text, JSON; and plain values of arguments."""

from __future__ import annotations

import difflib
import json
import math
import re
import reprlib
import unicodedata
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

#: Characters of a refused value in an error message.
_LONGEST = 80
#: Bits of the largest whole number that is written out: Python refuses larger ones, or takes long.
_WRITTEN_BITS = 256
#: Types whose values are written out: the `repr` of another type may be huge, or hold a password.
_WRITTEN = (str, bytes, bytearray, bool, int, float)

#: Characters of a body or a header that a command prints, unless the user asks for all.
LONGEST = 2_000
#: Combining marks that one character may have; further marks are escaped.
MARKS = 4
#: Invisible characters that Python calls printable: fillers, joiners, most variation selectors.
_UNSEEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0))))
)
_USER = re.compile(r"(\w:/{1,2})\S*@")
_PASSWORD = re.compile(r"((?:password|username)=)[^&\s]+")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST


def plain_text(value: object) -> str | None:
    """The text of a `str` or a subclass; `None` for any other value. No method of the subclass runs."""
    return str.__str__(value) if isinstance(value, str) else None


def plain_whole(value: object) -> int | None:
    """The number of an `int` or a subclass except `bool`; `None` for any other value."""
    return int.__int__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def plain_number(value: object) -> int | float | None:
    """The number of an `int` or a `float`; otherwise as `plain_whole`."""
    return float.__float__(value) if isinstance(value, float) else plain_whole(value)


def type_name(value: object) -> str:
    """The full name of the type of a value: `redis.asyncio.client.Redis`, `int`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_value(value: object, expected: type = str) -> str:
    """Format a refused value. A value of another type than the expected one comes with its type.

    So a number in the place of a text is `int 17` and never `'17'`.
    """
    if value is None:
        return "None"
    kind, name = type(value), type_name(value)
    if kind not in _WRITTEN:
        return name
    if isinstance(value, int) and value.bit_length() > _WRITTEN_BITS:
        return f"{name} of {value.bit_length()} bits"
    short = _SHORT.repr(value)
    if isinstance(value, (str, bytes, bytearray)) and len(value) > _LONGEST:
        short = f"{short} ({len(value)} {'characters' if isinstance(value, str) else 'bytes'})"
    return short if kind is expected else f"{name} {short}"


def install(extra: str) -> str:
    """The command that installs an extra. It needs a checkout, because the package is in no index."""
    return f"`pip install '.[{extra}]'` in a checkout of rqttl"


def plural(n: int, noun: str) -> str:
    """Format a number with its noun: `1 message`, `2 messages`."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


def first_few(names: list[str], most: int = 3) -> str:
    """The first few names as text, and the number of further ones."""
    text = ", ".join(names[:most])
    return text if len(names) <= most else f"{text} and {len(names) - most:,} more"


def nearest(word: str, names: Iterable[str], likeness: float = 0.6, *, ignore_case: bool = False) -> str | None:
    """The name that is most like a word; `None` if no name is like it."""
    by_spelling = {name.lower() if ignore_case else name: name for name in names}
    spelling = word.lower() if ignore_case else word
    near = difflib.get_close_matches(spelling, list(by_spelling), n=1, cutoff=likeness)
    return by_spelling[near[0]] if near else None


def did_you_mean(
    word: str, names: Iterable[str], otherwise: str = "", *, likeness: float = 0.6, ignore_case: bool = False
) -> str:
    """`; did you mean NAME?` for the end of an error. If no name is like the word, `otherwise` stands there."""
    near = nearest(word, names, likeness, ignore_case=ignore_case)
    hint = f"did you mean {near}?" if near else otherwise
    return f"; {hint}" if hint else ""


def escape(text: str | bytes, longest: int | None = None) -> str:
    """Escape controls, bidi and invisible characters and broken UTF-8 in a text, and cut it to `longest`.

    Combining marks are escaped if many of them are on one character.
    """
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if longest is not None and size > longest:
        return f"{escape(_beginning(text, longest))}… ({size:,} {unit})"
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isascii() and text.isprintable():
        return text
    marks, escaped = 0, []
    for c in text:
        marks = marks + 1 if unicodedata.category(c) in ("Mn", "Me") else 0
        plain = c.isprintable() and c not in _UNSEEN and marks <= MARKS
        escaped.append(c if plain else c.encode("unicode_escape").decode())
    return "".join(escaped)


def _beginning(text: str | bytes, length: int) -> str | bytes:
    """The first `length` characters or bytes, without half a character at the end."""
    if isinstance(text, bytes):
        for back in range(min(4, length)):
            if text[length - back] & 0xC0 != 0x80:
                return text[: length - back]
    return text[:length]


def without_secrets(line: str) -> str:
    """A line without the users and passwords of URLs."""
    return _PASSWORD.sub(r"\1***", _USER.sub(r"\1***@", line))


def format_count(n: int) -> str:
    """Format a number: 12345 -> 12,345."""
    return f"{n:,}"


def format_rate(n: float | None) -> str:
    """A rate per second, `-` if it is unknown. Only 0 is shown as 0."""
    if n is None or not n:
        return "-" if n is None else "0"
    return f"{n:,.0f}" if n >= 9.95 else f"{n:.1f}" if n >= 0.05 else "<0.1"


def format_age(time: timedelta | None) -> str:
    """Format a duration in at most two units: 12s, 3m 4s, 2d 5h. `-` for `None`."""
    if time is None:
        return "-"
    seconds = time.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f}s"
    remaining, parts = int(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        n, remaining = divmod(remaining, length)
        if n:
            parts.append(f"{n}{unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def format_time(at: datetime | None, now: datetime, *, utc: bool = False) -> str:
    """Format a time as an age (`in 12s`, `3m ago`, `now`), or with `utc` exactly: `2026-01-31 12:00:00.000Z`."""
    if at is None:
        return "-"
    if utc:
        exact = at.astimezone(timezone.utc).isoformat(sep=" ", timespec="milliseconds")
        return exact.replace("+00:00", "Z")
    away = at - now
    if abs(away) < timedelta(milliseconds=50):
        return "now"
    return f"in {format_age(away)}" if away > timedelta(0) else f"{format_age(-away)} ago"


# JSON, also of values that it lacks: bytes, times, NaN, infinity, keys that are no text


def load_object(text: str | bytes) -> dict[str, Any]:
    """Read a JSON object from Redis, where any program may write. Raises only `ValueError`, also for deep nesting."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    return value


def replace_for_json(value: object) -> object:
    """The text for a value that JSON lacks."""
    if isinstance(value, bytes):
        return escape(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)


def dump_json(value: Any) -> str:
    """Format a value as one line of strict JSON in ASCII, safe on a terminal. Values that JSON lacks become texts."""
    return dump_readable_json(value, ascii_only=True).replace("\x7f", "\\u007f")


def dump_readable_json(
    value: Any,
    replace: Callable[[object], object] = replace_for_json,
    *,
    ascii_only: bool = False,
    separators: tuple[str, str] | None = None,
) -> str:
    """Format a value as one line of strict JSON, with all letters unchanged. The caller escapes it for a terminal.

    `replace` maps values and keys that JSON lacks to ones that it has.
    """

    def encode(value: Any) -> str:
        return json.dumps(value, default=replace, ensure_ascii=ascii_only, allow_nan=False, separators=separators)

    try:
        return encode(value)
    except (ValueError, TypeError):  # for NaN, infinity and keys that are bytes `json` does not call `default`
        return encode(_strict(value, replace))


def _strict(value: Any, replace: Callable[[object], object]) -> Any:
    if isinstance(value, dict):
        return {_strict_key(key, replace): _strict(item, replace) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item, replace) for item in value]
    return replace(value) if isinstance(value, float) and not math.isfinite(value) else value


def _strict_key(key: Any, replace: Callable[[object], object]) -> Any:
    if isinstance(key, float) and not math.isfinite(key):
        return replace(key)
    return key if isinstance(key, (str, int, float, type(None))) else str(replace(key))

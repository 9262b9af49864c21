"""How things are written for people: short, and escaped, so that no body and no error can act on a terminal."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from datetime import datetime, timedelta, timezone
from typing import Any

from rqttl.units import as_size

#: Longer texts are cut where people read them.
LONGEST = 2_000
#: Combining marks on one character from which on they are escaped.
MARKS = 4
#: What Python calls printable though nothing is seen of it: fillers, joiners, most variation selectors.
_UNSEEN = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE0E), *range(0xE0100, 0xE01F0))))
)
#: A word, with whatever stands in backticks or in quotes in it.
_UNBROKEN = re.compile(r"(?:`[^`]*`|(?<!\w)'[^']*'|\S)+")
_USER = re.compile(r"(\w:/{1,2})\S*@")
_PASSWORD = re.compile(r"((?:password|username)=)[^&\s]+")


def visible(text: str | bytes, longest: int | None = None) -> str:
    """A text with everything escaped that is not plainly seen: controls, bidi and invisible characters, broken UTF-8.

    So are combining marks where too many of them are stacked on one character.
    """
    size, unit = len(text), "bytes" if isinstance(text, bytes) else "characters"
    if longest is not None and size > longest:
        return f"{visible(_beginning(text, longest))}… ({size:,} {unit})"
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isascii() and text.isprintable():
        return text
    marks, shown = 0, []
    for c in text:
        marks = marks + 1 if unicodedata.category(c) in ("Mn", "Me") else 0
        plain = c.isprintable() and c not in _UNSEEN and marks <= MARKS
        shown.append(c if plain else c.encode("unicode_escape").decode())
    return "".join(shown)


def _beginning(text: str | bytes, length: int) -> str | bytes:
    """The first so many, and not half a character at the end."""
    if isinstance(text, bytes):
        for back in range(min(4, length)):
            if text[length - back] & 0xC0 != 0x80:
                return text[: length - back]
    return text[:length]


def width(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fitted(text: str, cells: int) -> str:
    """A text cut to so many cells of a terminal."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    return f"{set_cell_size(text, cells - 1)}…"


def folded(text: str, cells: int) -> list[str]:
    """A text in lines of at most so many cells of a terminal: between words where it can be, else anywhere."""
    from rich.cells import cell_len, chop_cells

    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip(" ")
        if cell_len(longer) <= cells:
            lines[-1] = longer
        else:
            lines += chop_cells(word, cells)
    return lines if lines[0] or len(lines) == 1 else lines[1:]


def folded_at_words(line: str, cells: int) -> str:
    """A line in lines of so many cells of a terminal. No word and nothing in backticks or quotes is broken.

    So what is longer than a line is left as long as it is, and can be copied.
    """
    if width(line) <= cells:
        return line
    lines = [""]
    for word in _UNBROKEN.findall(line):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if width(longer) <= cells or not lines[-1].strip():
            lines[-1] = longer
        else:
            lines.append(f"  {word}")
    return "\n".join(lines)


def chopped(text: str, cells: int | None) -> list[str]:
    """A text in pieces of so many cells of a terminal, nothing left out; whole for None."""
    from rich.cells import chop_cells

    return [text] if cells is None or not text else chop_cells(text, max(cells, 2))


def without_secrets(line: str) -> str:
    """A line with the user and password of each URL in it left out."""
    return _PASSWORD.sub(r"\1***", _USER.sub(r"\1***@", line))


def as_json(value: Any) -> str:
    """One line of strict JSON in ASCII, safe to show. What JSON does not know (NaN, bytes) is a text."""
    return _dumped(value, ascii_only=True).replace("\x7f", "\\u007f")


def as_readable(value: Any) -> str:
    """The same for people, who read all letters; not yet safe to show."""
    return _dumped(value, ascii_only=False)


def _dumped(value: Any, *, ascii_only: bool) -> str:
    def dump(value: Any) -> str:
        return json.dumps(value, default=_plain, ensure_ascii=ascii_only, allow_nan=False)

    try:
        return dump(value)
    except (ValueError, TypeError):  # NaN and infinity, and keys that are bytes
        return dump(_strict(value))


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {_strict_key(key): _strict(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _strict_key(key: Any) -> Any:
    key = _strict(key)
    return key if isinstance(key, (str, int, float, type(None))) else str(_plain(key))


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

"""Values of callers: the plain ones, and the text of refused ones for messages of errors."""

from __future__ import annotations

import reprlib

#: Characters of a value that a message shows.
_LONGEST = 80
#: Whole numbers of more bits are not written out: Python refuses to, or it takes long.
_WRITTEN_BITS = 256
#: Only values of these types are shown: the `repr` of anything else may be huge, or hold a password.
_WRITTEN = (str, bytes, bytearray, bool, int, float)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST


def plain_text(value: object) -> str | None:
    """The text of a `str`, of a subclass too; None for any other value. No method of the subclass runs."""
    return str.__str__(value) if isinstance(value, str) else None


def plain_whole(value: object) -> int | None:
    """The number of an `int`, of a subclass too but not of `bool`; None for any other value."""
    return int.__int__(value) if isinstance(value, int) and not isinstance(value, bool) else None


def plain_number(value: object) -> int | float | None:
    """The number of an `int` or a `float`, as `plain_whole` does."""
    return float.__float__(value) if isinstance(value, float) else plain_whole(value)


def type_name(value: object) -> str:
    """The full name of the type of a value: `redis.asyncio.client.Redis`, `int`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shown(value: object, expected: type = str) -> str:
    """Show a value that was refused. A value of another type than the one expected comes with its type.

    So a number where text is expected is `int 17` and never `'17'`.
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
    """The command that installs what an extra brings. The package is in no index, so it needs a checkout."""
    return f"`pip install '.[{extra}]'` in a checkout of rqttl"

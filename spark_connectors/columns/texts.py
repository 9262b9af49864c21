"""What people sent, as text: header values, and msgpack bodies as JSON."""

from __future__ import annotations

import json
import math
from typing import TypeAlias

import msgpack

from rqttl import codec
from rqttl.errors import InvalidInput

#: Content type and headers of a message, as text.
Extras: TypeAlias = tuple[str, list[tuple[str, str | None]]]


def unpack_extras(extras: bytes) -> Extras:
    """Read the end of a packed header, empty or not. What is none says nothing."""
    if not extras:
        return codec.BINARY, []
    try:
        kind, headers = msgpack.unpackb(extras, raw=False, unicode_errors="replace")
        content_type = codec.MSGPACK if kind == 1 else kind if kind and isinstance(kind, str) else codec.BINARY
        found = headers.items() if isinstance(headers, dict) else ()
        return content_type, [(str(name), of_header(value)) for name, value in found]
    except (ValueError, TypeError, RecursionError):
        return codec.BINARY, []  # msgpack's own exceptions are ValueErrors


def of_header(value: object) -> str | None:
    """A header's value: text as it is, flags and numbers as JSON has them, bytes as UTF-8 or else as `0x…`."""
    if value is None or isinstance(value, str):
        return value
    return of_bytes(value) if isinstance(value, bytes) else json.dumps(value, default=str)


def of_bytes(value: bytes) -> str:
    """Bytes as text if they are UTF-8, else in hexadecimal digits after `0x`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def of_body(body: bytes) -> str | None:
    """The JSON text of a msgpack body; `None` if it is not valid msgpack, whatever its sender said.

    Bytes in it become text as in headers; numbers that JSON does not have become null.
    """
    try:
        value = codec.unpack(body)
        try:
            return _dump(value)
        except (TypeError, ValueError):
            return _dump(_plain(value))
    except (InvalidInput, RecursionError):
        return None


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_other)


def _other(value: object) -> object:
    if isinstance(value, bytes):
        return of_bytes(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _plain(value: object) -> object:
    """A value with nothing in it that JSON cannot say."""
    if isinstance(value, dict):
        return {_key(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return of_bytes(value) if isinstance(value, bytes) else value


def _key(name: object) -> str:
    return of_header(name) or "null" if not isinstance(name, str) else name

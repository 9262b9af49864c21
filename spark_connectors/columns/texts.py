"""Texts made of the data of senders: header values as text, and msgpack bodies as JSON."""

from __future__ import annotations

import json
import math
from typing import TypeAlias

import msgpack

from rqttl.errors import InvalidInput
from rqttl.protocol import codec

#: Content type and headers of a message, as text.
Extras: TypeAlias = tuple[str, list[tuple[str, str | None]]]


def unpack_extras(extras: bytes) -> Extras:
    """Unpack content type and headers from the end of a packed header, empty or not. Damaged parts are dropped."""
    if not extras:
        return codec.BINARY, []
    try:
        kind, headers = msgpack.unpackb(extras, raw=False, unicode_errors="replace")
        content_type = codec.MSGPACK if kind == 1 else kind if kind and isinstance(kind, str) else codec.BINARY
        pairs = headers.items() if isinstance(headers, dict) else ()
        return content_type, [(str(name), header_text(value)) for name, value in pairs]
    except (ValueError, TypeError, RecursionError):
        return codec.BINARY, []  # msgpack's own exceptions are ValueErrors


def header_text(value: object) -> str | None:
    """Convert a header value to text: flags and numbers as in JSON, bytes as UTF-8 or else as `0x…`."""
    if value is None or isinstance(value, str):
        return value
    return bytes_text(value) if isinstance(value, bytes) else json.dumps(value, default=str)


def bytes_text(value: bytes) -> str:
    """Decode bytes as UTF-8. Other bytes become `0x` and hexadecimal digits."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def body_json(body: bytes) -> str | None:
    """Convert a msgpack body to JSON text; `None` for a body that is not valid msgpack.

    Bytes become text as in headers. NaN and infinities become null.
    """
    try:
        value = codec.unpack(body)
        try:
            return _dump(value)
        except (TypeError, ValueError):
            return _dump(_json_value(value))
    except (InvalidInput, RecursionError):
        return None


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_bytes_value)


def _bytes_value(value: object) -> object:
    if isinstance(value, bytes):
        return bytes_text(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _json_value(value: object) -> object:
    """Replace all parts of a value that JSON cannot express."""
    if isinstance(value, dict):
        return {_json_key(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return bytes_text(value) if isinstance(value, bytes) else value


def _json_key(name: object) -> str:
    return header_text(name) or "null" if not isinstance(name, str) else name

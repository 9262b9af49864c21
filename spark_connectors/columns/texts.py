"""Texts made of the data of senders: header values as text, and msgpack bodies as JSON."""

from __future__ import annotations

from typing import TypeAlias

import msgpack

from rqttl import json_text
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
    return bytes_text(value) if isinstance(value, bytes) else json_text.dump_readable(value)


def bytes_text(value: bytes) -> str:
    """Decode bytes as UTF-8. Other bytes become `0x` and hexadecimal digits."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def body_json(body: bytes) -> str | None:
    """Convert a msgpack body to JSON text; `None` for a body that is not valid msgpack.

    Bytes become text as in headers. NaN and infinities become null, times of msgpack become text.
    """
    try:
        return json_text.dump_with(codec.unpack(body), _json_value, separators=(",", ":"))
    except (InvalidInput, RecursionError):
        return None


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        return bytes_text(value)
    return None if isinstance(value, float) else str(value)

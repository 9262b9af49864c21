"""Texts made of the data of senders: header values as text, and msgpack bodies as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import msgpack

from rqttl import text
from rqttl.errors import InvalidInput
from rqttl.protocol import codec

#: JSON by its content type, also with parameters, such as `application/json; charset=utf-8` and `application/x+json`.
_JSON_TYPE = re.compile(r"(application|text)/([\w.-]+\+)?json\s*(;|$)", re.IGNORECASE)
#: Content type and headers of a message.
Extras: TypeAlias = tuple[str, list[tuple[str, Any]]]


def unpack_extras(extras: bytes, convert: Callable[[object], Any]) -> Extras:
    """Unpack content type and headers from the end of a packed header, empty or not. Damaged parts are dropped.

    `convert` makes the value of a header.
    """
    if not extras:
        return codec.BINARY, []
    try:
        kind, headers = msgpack.unpackb(extras, raw=False, unicode_errors="replace")
        content_type = codec.MSGPACK if kind == 1 else kind if kind and isinstance(kind, str) else codec.BINARY
        pairs = headers.items() if isinstance(headers, dict) else ()
        return content_type, [(str(name), convert(value)) for name, value in pairs]
    except (ValueError, TypeError, RecursionError):
        return codec.BINARY, []  # msgpack's own exceptions are ValueErrors


def packed_headers(extras: bytes) -> bytes | None:
    """Return the headers at the end of a packed header as msgpack, with the types of their values."""
    _, headers = unpack_extras(extras, lambda value: value)
    return msgpack.packb(dict(headers)) if headers else None


def header_text(value: object) -> str | None:
    """Convert a header value to text: flags and numbers as in JSON, bytes as UTF-8 or else as `0x…`."""
    if value is None or isinstance(value, str):
        return value
    return bytes_text(value) if isinstance(value, bytes) else text.dump_readable_json(value)


def header_bytes(value: object) -> bytes | None:
    """Convert a header value to bytes: bytes as they are, all else as UTF-8."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else text.dump_readable_json(value)).encode()


def bytes_text(value: bytes) -> str:
    """Decode bytes as UTF-8. Other bytes become `0x` and hexadecimal digits."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def body_json(body: bytes, content_type: str) -> str | None:
    """Convert a msgpack body to JSON text, or pass JSON text through; `None` for other and for damaged bodies.

    Bytes become text as in headers. NaN and infinities become null, times of msgpack become text.
    """
    if _JSON_TYPE.match(content_type):
        return _checked_json(body)
    if content_type != codec.MSGPACK:
        return None
    try:
        return text.dump_readable_json(codec.unpack(body), _json_value, separators=(",", ":"))
    except (InvalidInput, RecursionError):
        return None


def _checked_json(body: bytes) -> str | None:
    try:
        text = body.decode()
        json.loads(text, parse_constant=int)  # `NaN` is no JSON, and no int
    except (ValueError, RecursionError):
        return None
    return text


def _json_value(value: object) -> object:
    if isinstance(value, bytes):
        return bytes_text(value)
    return None if isinstance(value, float) else str(value)

"""A message to send: from flags, which are for all messages, and from a line of JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NoReturn

from rqttl.errors import InvalidInput
from rqttl.protocol import codec
from rqttl.protocol.codec import envelope_of
from rqttl.text import did_you_mean
from rqttl.types import Message
from rqttl.units import instant

#: The fields of a message that a sender sets.
SENDER_FIELDS = ("body", "body_base64", "headers", "id", "ttl", "expires_at", "content_type")
#: The fields that `rqttl receive --json` adds. A sender cannot set them, so they are ignored.
BROKER_FIELDS = (
    "queue",
    "sequence",
    "state",
    "until",
    "leased_until",
    "body_bytes",
    "enqueued_at",
    "delivery_count",
    "deaths",
    "description",
)

_KNOWN = frozenset((*SENDER_FIELDS, *BROKER_FIELDS))
_JSON_TYPES = ("application/json", "+json")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Defaults:
    """The flags, for every message. At most one of `ttl` and `expires_at` (ms since 1970) is set."""

    ttl: timedelta | None = None
    expires_at: int | None = None
    headers: Mapping[str, str] | None = None
    id: str | None = None
    content_type: str | None = None

    @cached_property
    def weight(self) -> int:
        """The bytes that the defaults add to a message, at most."""
        named = sum(len(name.encode()) + len(value.encode()) + 10 for name, value in (self.headers or {}).items())
        return 64 + len((self.content_type or "").encode()) + len((self.id or "").encode()) + named

    @cached_property
    def _are_empty(self) -> bool:
        return self == Defaults()

    def check(self) -> None:
        """Raise `InvalidInput` if no message can have these values, before anything is read or sent."""
        envelope_of(
            Message(b"", self.ttl, self.expires_at, self.headers, self.id, self.content_type), self.content_type
        )

    def message(self, body: bytes) -> Message | bytes:
        """A message with this body; only the body, if no flag is set."""
        if self._are_empty:
            return body
        return Message(body, self.ttl, self.expires_at, self.headers, self.id, self.content_type)


def read_json(line: bytes, defaults: Defaults) -> Message | None:
    """The message that a line of JSON describes; `None` for a blank line. Raises `InvalidInput`.

    A field of the line overrides the flag. Headers are overridden one by one; `ttl` or `expires_at`
    overrides both flags. A field that is null counts as absent, except `body`. `body_base64` overrides `body`.
    """
    if not line or line.isspace():
        return None
    fields = _object(line)
    for name in fields:
        if name not in _KNOWN:
            hint = did_you_mean(name, SENDER_FIELDS, f"there are {', '.join(SENDER_FIELDS)}")
            raise InvalidInput(f"unknown field {name[:80]!r}{hint}")
    content_type = fields.get("content_type")
    if content_type is None:
        content_type = defaults.content_type
    elif content_type == codec.BINARY:
        content_type = None  # the type of bytes without a content type
    ttl, expires_at = fields.get("ttl"), fields.get("expires_at")
    if expires_at is not None:
        expires_at = instant(expires_at, "expires_at")
    elif ttl is None:
        ttl, expires_at = defaults.ttl, defaults.expires_at
    id = fields.get("id")
    if id == fields.get("sequence"):
        id = None  # the sequence of another queue is no id; the message gets a new sequence
    if id is not None and not isinstance(id, str):
        raise InvalidInput(f"id: expected text, got {_json_type(id)}")
    return Message(_body(fields, content_type), ttl, expires_at, _headers(fields, defaults), id, content_type)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = _decoder.decode(line.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not JSON: byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise InvalidInput(f'expected an object such as {{"body": "hello"}}, got {_json_type(value)}')
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _body(fields: Mapping[str, Any], content_type: object) -> object:
    """The bytes to store, or a value that is stored as msgpack."""
    encoded = fields.get("body_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (ValueError, TypeError):
            raise InvalidInput("body_base64: expected text in base64") from None
    if "body" not in fields:
        raise InvalidInput("body: missing; give body or body_base64")
    body = fields["body"]
    if content_type == codec.MSGPACK:
        return body
    if isinstance(body, str):
        return _utf8(body)
    if content_type is None:
        return body
    if isinstance(content_type, str) and content_type.partition(";")[0].strip().lower().endswith(_JSON_TYPES):
        return _utf8(json.dumps(body, ensure_ascii=False, separators=(",", ":")))
    raise InvalidInput(f"body: expected text where content_type is {content_type!r}, got {_json_type(body)}")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"body: character {error.start + 1} is half of a surrogate pair") from None


def _headers(fields: Mapping[str, Any], defaults: Defaults) -> Mapping[str, Any] | None:
    headers = fields.get("headers")
    if headers is None:
        return defaults.headers
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers: expected an object, got {_json_type(headers)}")
    return {**defaults.headers, **headers} if defaults.headers else headers


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

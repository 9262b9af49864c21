"""What is said of a message to send: by the flags for all, by a JSON line for itself."""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from rqttl import codec
from rqttl.cli.common.instants import instant
from rqttl.errors import InvalidInput
from rqttl.types import Message

OURS = ("body", "body_base64", "headers", "id", "ttl", "expires_at", "content_type")
#: What a broker says of a message when it shows one. It is not for the sender to say, so it is read over.
BROKERS = (
    "queue", "sequence", "state", "until", "leased_until", "body_bytes", "enqueued_at", "delivery_count",
    "deaths", "description",
)  # fmt: skip

_KNOWN = frozenset((*OURS, *BROKERS))
_JSON_TYPES = ("application/json", "+json")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Defaults:
    """What the flags say of every message. At most one of `ttl` and `expires_at` (ms since 1970) is set."""

    ttl: timedelta | None = None
    expires_at: int | None = None
    headers: Mapping[str, str] | None = None
    id: str | None = None
    content_type: str | None = None

    @property
    def weight(self) -> int:
        """Bytes that this can add to a message, at most."""
        named = sum(len(name.encode()) + len(value.encode()) + 10 for name, value in (self.headers or {}).items())
        return 64 + len((self.content_type or "").encode()) + len((self.id or "").encode()) + named

    @property
    def silent(self) -> bool:
        """Whether nothing is said."""
        return self == Defaults()

    def check(self) -> None:
        """Raise `InvalidInput` if no message can have these, before anything is read or sent."""
        codec.pack_said(self.message(b""), self.content_type)

    def message(self, body: bytes) -> Message:
        """A message with this body."""
        return Message(body, self.ttl, self.expires_at, self.headers, self.id, self.content_type)


def read_json(line: bytes, defaults: Defaults) -> Message | None:
    """The message that a line of JSON describes; `None` for a blank line. Raises `InvalidInput`.

    What the line says goes before what the flags say: its headers one by one, its `ttl` or `expires_at` before both of
    theirs. A field that is null counts as not given, except `body`. Where `body_base64` is there too, it is the body.
    """
    if not line or line.isspace():
        return None
    said = _object(line)
    if not said.keys() <= _KNOWN:
        _refuse_unknown(said)
    kind = said.get("content_type")
    if kind is None:
        kind = defaults.content_type
    elif kind == codec.BINARY:
        kind = None  # what bytes are where nothing is said
    ttl, expires_at = said.get("ttl"), said.get("expires_at")
    if expires_at is not None:
        expires_at = instant(expires_at, "expires_at")
    elif ttl is None:
        ttl, expires_at = defaults.ttl, defaults.expires_at
    id = said.get("id")
    if id == said.get("sequence"):
        id = None  # it had none of its own, and gets one from the queue that it goes to
    if id is not None and not isinstance(id, str):
        raise InvalidInput(f"id: expected text, got {_kind(id)}")
    return Message(_body(said, kind), ttl, expires_at, _headers(said, defaults), id, kind)


def _object(line: bytes) -> dict[str, Any]:
    try:
        said = _decoder.decode(line.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not JSON: byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON that can be read: {error}") from None
    if not isinstance(said, dict):
        raise InvalidInput(f'expected an object such as {{"body": "hello"}}, got {_kind(said)}')
    return said


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def _refuse_unknown(said: Mapping[str, Any]) -> NoReturn:
    name = next(name for name in said if name not in _KNOWN)
    near = difflib.get_close_matches(name, OURS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(OURS)}"
    raise InvalidInput(f"unknown field {name[:80]!r}; {hint}")


def _body(said: Mapping[str, Any], kind: object) -> object:
    """The bytes to store, or a value to be stored as msgpack."""
    encoded = said.get("body_base64")
    if encoded is not None:
        return _base64(encoded)
    if "body" not in said:
        raise InvalidInput("body: missing; give body or body_base64")
    body = said["body"]
    if kind == codec.MSGPACK:
        return body
    if isinstance(body, str):
        return _utf8(body)
    if kind is None:
        return body
    if isinstance(kind, str) and kind.partition(";")[0].strip().lower().endswith(_JSON_TYPES):
        return _utf8(json.dumps(body, ensure_ascii=False, separators=(",", ":")))
    raise InvalidInput(f"body: expected text where content_type is {kind!r}, got {_kind(body)}")


def _base64(encoded: object) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)  # type: ignore[arg-type]  # what is no text raises
    except (ValueError, TypeError):
        raise InvalidInput("body_base64: expected text in base64") from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"body: character {error.start + 1} is half of a surrogate pair") from None


def _headers(said: Mapping[str, Any], defaults: Defaults) -> Mapping[str, Any] | None:
    headers = said.get("headers")
    if headers is None:
        return defaults.headers
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers: expected an object, got {_kind(headers)}")
    return {**defaults.headers, **headers} if defaults.headers else headers


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")

"""Messages as they are shown: their bodies for people, and all their facts for programs."""

from __future__ import annotations

import base64
from typing import Any

from rqttl import codec
from rqttl.cli import text
from rqttl.delivery import Delivery
from rqttl.errors import InvalidInput
from rqttl.types import Death, Peeked

Shown = Delivery | Peeked


def value(message: Shown) -> Any:
    """The value of a msgpack body that is well-formed, else the bytes."""
    if message.content_type != codec.MSGPACK:
        return message.body
    try:
        return codec.unpack(message.body)
    except InvalidInput:
        return message.body


def body(message: Shown, longest: int = text.LONGEST) -> str:
    """A body for people: escaped, and cut to `longest`."""
    said = value(message)
    return text.visible(said if isinstance(said, bytes) else text.as_json(said), longest)


def facts(message: Shown) -> dict[str, Any]:
    """All that is known of a message, for `text.as_json`. A body that is no text is `body_base64`."""
    said: dict[str, Any] = {"id": message.id, "queue": message.queue}
    decoded = value(message)
    if not isinstance(decoded, bytes):
        said["body"] = decoded
    else:
        try:
            said["body"] = message.body.decode("utf-8")
        except UnicodeDecodeError:
            said["body_base64"] = base64.b64encode(message.body).decode()
    return said | {
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "enqueued_at": message.enqueued_at,
        "expires_at": message.expires_at,
        "delivery_count": message.delivery_count,
        "deaths": [death_facts(death) for death in message.deaths],
    }


def death_facts(death: Death) -> dict[str, Any]:
    """All that is known of a death."""
    return {name: getattr(death, name) for name in Death.__dataclass_fields__}

"""Messages as they are shown: their bodies for people, and all their facts for programs."""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

from rqttl import codec
from rqttl.cli.common import text
from rqttl.delivery import Delivery
from rqttl.errors import InvalidInput
from rqttl.types import Death, Header, Peeked

Shown = Delivery | Peeked

#: Values that are nested deeper are shown as the bytes they are.
DEEPEST = 100


def value(message: Shown) -> Any:
    """The value of a msgpack body that is well-formed and not absurdly deep, else the bytes."""
    if message.content_type != codec.MSGPACK:
        return message.body
    try:
        found = codec.unpack(message.body)
    except InvalidInput:
        return message.body
    return message.body if _deeper(found, DEEPEST) else found


def _deeper(found: Any, levels: int) -> bool:
    if not isinstance(found, (dict, list)):
        return False
    inner = found.values() if isinstance(found, dict) else found
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def body(message: Shown, longest: int | None = text.LONGEST) -> str:
    """A body for people: escaped, and cut to `longest`."""
    said = value(message)
    return text.visible(said if isinstance(said, bytes) else text.as_readable(said), longest)


def body_lines(message: Shown, longest: int | None) -> list[str]:
    """The lines of a body that has several, else the one, as `body`."""
    said = value(message)
    if not isinstance(said, bytes) or b"\n" not in said[:longest]:
        return [body(message, longest)]
    lines = said[:longest].removesuffix(b"\n").split(b"\n")
    shown = [text.visible(line.removesuffix(b"\r")) for line in lines]
    return shown if longest is None or len(said) <= longest else [*shown, f"… ({len(said):,} bytes)"]


def header(value: Header, longest: int | None = text.LONGEST) -> str:
    """The value of a header for people: escaped, and cut."""
    return text.visible(value if isinstance(value, (str, bytes)) else text.as_readable(value), longest)


def state(message: Peeked, now: datetime, *, utc: bool = False) -> str:
    """`ready`, `leased, 29s left`, or with `utc` `delayed until 2026-01-31 12:00:00.000Z`."""
    if message.until is None:
        return message.state
    if utc:
        return f"{message.state} until {text.moment(message.until, now, utc=True)}"
    left = message.until - now
    return f"{message.state}, {text.age(left)} left" if left.total_seconds() > 0 else f"{message.state}, over"


def facts(message: Shown, *, with_body: bool = True) -> dict[str, Any]:
    """All that is known of a message, for `text.as_json`.

    A body that is no text is `body_base64`; a value that JSON cannot quite hold is both.
    """
    said: dict[str, Any] = {
        "id": message.id,
        "sequence": message.sequence,
        "queue": message.queue,
    }
    if isinstance(message, Peeked):
        said |= {"state": message.state, "until": message.until}
    elif message.leased_until is not None:
        said |= {"leased_until": message.leased_until}
    if with_body:
        said |= _body_facts(message)
    return said | {
        "body_bytes": len(message.body),
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "enqueued_at": message.enqueued_at,
        "expires_at": message.expires_at,
        "delivery_count": message.delivery_count,
        **({"description": message.description} if isinstance(message, Peeked) else {}),
        "deaths": [death_facts(death) for death in message.deaths],
    }


def _body_facts(message: Shown) -> dict[str, Any]:
    decoded = value(message)
    exact = {"body_base64": base64.b64encode(message.body).decode()}
    if not isinstance(decoded, bytes):
        said = {"body": decoded}
        return said if json.loads(text.as_json(decoded)) == decoded else said | exact
    if message.content_type == codec.MSGPACK:
        return exact  # as a text it would be taken for the value
    try:
        return {"body": message.body.decode("utf-8")}
    except UnicodeDecodeError:
        return exact


def death_facts(death: Death) -> dict[str, Any]:
    """All that is known of a death."""
    return {name: getattr(death, name) for name in Death.__dataclass_fields__}

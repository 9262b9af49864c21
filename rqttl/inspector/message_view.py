"""A message as JSON, and its body and headers as values and as text."""

import base64
import codecs
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from rqttl import text
from rqttl.delivery import Delivery
from rqttl.errors import InvalidInput
from rqttl.policies import Explanation
from rqttl.protocol import codec
from rqttl.types import ConsumerInfo, Header, Message, MessageView
from rqttl.units import as_size, as_text

Viewed = Delivery | MessageView

#: The nesting of the deepest value that is decoded; a deeper body stays bytes.
DEEPEST = 100


def body_value(message: Viewed) -> Any:
    """The value of a msgpack body. The bytes, if the body is no msgpack, is damaged, or is nested too deep."""
    if message.content_type != codec.MSGPACK:
        return message.body
    try:
        value = codec.unpack(message.body)
    except InvalidInput:
        return message.body
    return message.body if _is_deeper(value, DEEPEST) else value


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inner)


def body_text(message: Viewed, longest: int | None = text.LONGEST) -> str:
    """A body for people: escaped, and cut to `longest`."""
    value = body_value(message)
    return text.escape(value if isinstance(value, bytes) else text.dump_readable_json(value), longest)


def header_text(value: Header, longest: int | None = text.LONGEST) -> str:
    """The value of a header for people: escaped, and cut to `longest`."""
    return text.escape(value if isinstance(value, (str, bytes)) else text.dump_readable_json(value), longest)


def state_text(message: MessageView, now: datetime, *, utc: bool = False) -> str:
    """`ready`, `leased, 29s left`, `scheduled, due in 29s`; with `utc` `delayed until 2026-01-31 12:00:00.000Z`."""
    if message.until is None:
        return message.state
    if message.state == "scheduled":
        return f"scheduled, due {text.format_time(message.until, now, utc=utc)}"
    if utc:
        return f"{message.state} until {text.format_time(message.until, now, utc=True)}"
    left = message.until - now
    return f"{message.state}, {text.format_age(left)} left" if left.total_seconds() > 0 else f"{message.state}, over"


def holder(message: MessageView, consumers: Iterable[ConsumerInfo]) -> ConsumerInfo | None:
    """The consumer that has a leased message: by its present lease, else the last one that said so."""
    holders = [one for one in consumers if message.state == "leased" and one.held(message)]
    return max(holders, key=lambda one: (one.holds(message), one.beat), default=None)


def holder_text(message: MessageView, holder: ConsumerInfo | None, now: datetime) -> str:
    """`shop.jobs on web-1, pid 4711`; with the age of what it said if its lease was another one."""
    if holder is None:
        return "not known: taken by a plain receive, or a moment ago"
    name = f"{text.escape(holder.program)} on {text.escape(holder.host)}, pid {holder.pid}"
    return name if holder.holds(message) else f"{name}, as of {text.format_age(now - holder.beat)} ago"


def facts(
    message: MessageView, held: str | None, now: datetime, longest: int | None = text.LONGEST, *, utc: bool = False
) -> list[tuple[str, str]]:
    """What is known of a message beside its headers, deaths and body, for people. `held` names its holder."""
    return [
        ("id", text.escape(message.id)),
        ("sequence", message.sequence),
        ("queue", message.queue),
        ("state", state_text(message, now, utc=utc)),
        *([("held by", held)] if held else []),
        ("enqueued", text.format_time(message.enqueued_at, now, utc=utc)),
        ("expires", text.format_time(message.expires_at, now, utc=utc) if message.expires_at else "never"),
        ("deliveries", text.format_count(message.delivery_count)),
        *([("last failure", text.escape(message.description, longest))] if message.description else []),
        ("content type", text.escape(message.content_type)),
        ("size", as_size(len(message.body))),
    ]


#: The bytes of the largest body that is decoded as a whole.
_DECODED = 1 << 20


def readable_body(message: MessageView, longest: int) -> tuple[str, str]:
    """A body as JSON, as text, or as lines of bytes, cut to `longest` and not escaped; first the name of that form."""
    value = body_value(message) if len(message.body) <= _DECODED else message.body
    if not isinstance(value, bytes):
        return "JSON", json.dumps(json.loads(text.dump_readable_json(value)), indent=2, ensure_ascii=False)[:longest]
    try:  # without the beginning of a character at the end
        shown = codecs.getincrementaldecoder("utf-8")().decode(value[:longest])
    except UnicodeDecodeError:
        return "bytes", _hex(value[:longest])
    with suppress(ValueError, RecursionError):
        if shown[:1] in ("{", "[") and len(value) <= longest:
            return "JSON", json.dumps(json.loads(shown), indent=2, ensure_ascii=False)[:longest]
    return "text", shown


def _hex(data: bytes) -> str:
    """Lines of 16 bytes: the place, hexadecimal numbers, and ASCII."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:06x}  {part.hex(' '):47}  {shown}")
    return "\n".join(lines)


#: The options that give a message its deadline, the one that may shorten all others first.
_RULES = ("message_ttl", "default_ttl", "max_ttl", "min_ttl")


def deadline_rule(message: MessageView, explanation: Explanation) -> str:
    """What made the deadline of a message, as far as its length tells: an option with its source, or its own TTL."""
    if message.expires_at is None:
        return "no rule gives it a deadline"
    begun = message.until if message.state == "scheduled" and message.until else message.enqueued_at
    ms = round((message.expires_at - begun) / timedelta(milliseconds=1))
    for name in _RULES:
        if explanation[name].value == ms:
            return f"{name.replace('_', '-')} {as_text(ms)} ({explanation[name].source})"
    return f"its own TTL, {as_text(ms)}" if ms >= 0 else "its own deadline, which was past on arrival"


def deadline_text(ttl: int | None, now: datetime) -> str:
    """What becomes of a message that is sent now and gets a TTL of so many ms."""
    if ttl is None:
        return "the message never expires"
    if ttl == 0:
        return "the message is dead on arrival, unless a consumer waits for it"
    return f"sent now, the message expires at {text.format_time(now + timedelta(milliseconds=ttl), now, utc=True)}"


def overhead(message: Message) -> int:
    """The bytes of a call that all fields of a message but its body take, at most. Raises `InvalidInput`."""
    return 64 + sum(map(len, codec.envelope_of(message, message.content_type)))


def to_json(message: Viewed) -> dict[str, Any]:
    """All facts of a message, for `text.dump_json`.

    A body that is no text is `body_base64`. A value that JSON cannot hold exactly is `body` and `body_base64`.
    """
    document: dict[str, Any] = {"id": message.id, "sequence": message.sequence, "queue": message.queue}
    if isinstance(message, MessageView):
        document |= {"state": message.state, "until": message.until}
    elif message.leased_until is not None:
        document |= {"leased_until": message.leased_until}
    return document | {
        **_body_to_json(message),
        "body_bytes": len(message.body),
        "content_type": message.content_type,
        "headers": dict(message.headers),
        "enqueued_at": message.enqueued_at,
        "expires_at": message.expires_at,
        "delivery_count": message.delivery_count,
        **({"description": message.description} if isinstance(message, MessageView) else {}),
        "deaths": [asdict(death) for death in message.deaths],
    }


def _body_to_json(message: Viewed) -> dict[str, Any]:
    value = body_value(message)
    exact = {"body_base64": base64.b64encode(message.body).decode()}
    if not isinstance(value, bytes):
        document = {"body": value}
        return document if json.loads(text.dump_json(value)) == value else document | exact
    if message.content_type == codec.MSGPACK:
        return exact  # text would pass for the value
    try:
        return {"body": message.body.decode("utf-8")}
    except UnicodeDecodeError:
        return exact

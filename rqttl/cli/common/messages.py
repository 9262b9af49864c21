"""Messages for people: the state in words, and bodies of several lines."""

from __future__ import annotations

from datetime import datetime

from rqttl import text
from rqttl.inspector.message_view import Viewed, body_text, body_value
from rqttl.types import MessageView


def body_lines(message: Viewed, longest: int | None) -> list[str]:
    """The lines of a body; a body without a newline is one line, as `body_text` has it."""
    value = body_value(message)
    if not isinstance(value, bytes) or b"\n" not in value[:longest]:
        return [body_text(message, longest)]
    lines = value[:longest].removesuffix(b"\n").split(b"\n")
    escaped = [text.escape(line.removesuffix(b"\r")) for line in lines]
    return escaped if longest is None or len(value) <= longest else [*escaped, f"… ({len(value):,} bytes)"]


def format_state(message: MessageView, now: datetime, *, utc: bool = False) -> str:
    """`ready`, `leased, 29s left`, or with `utc` `delayed until 2026-01-31 12:00:00.000Z`."""
    if message.until is None:
        return message.state
    if utc:
        return f"{message.state} until {text.format_time(message.until, now, utc=True)}"
    left = message.until - now
    return f"{message.state}, {text.format_age(left)} left" if left.total_seconds() > 0 else f"{message.state}, over"

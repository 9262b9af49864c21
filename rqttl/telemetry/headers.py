"""The context of a trace in the headers of a message, by the propagator that the application has configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanContext

from rqttl.types import Header, Message


class _Texts(Getter[Mapping[str, Header]]):
    """Reads headers. A header that is no text is as good as missing."""

    def get(self, carrier: Mapping[str, Header], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[str, Header]) -> list[str]:
        return list(carrier)


_TEXTS = _Texts()
_EMPTY = Context()


def extract(headers: Mapping[str, Header] | None, context: Context = _EMPTY) -> tuple[Context, SpanContext | None]:
    """Return a context with the values of headers, and the creation context of the message; `None` without one."""
    if not headers or not isinstance(headers, Mapping):
        return context, None
    extracted = propagate.extract(headers, context, _TEXTS)
    span = trace.get_current_span(extracted)
    created = span.get_span_context()
    return extracted, created if created.is_valid and span is not trace.get_current_span(context) else None


def inject(message: Message | object, context: Context) -> Message | object:
    """Return a message with a context in its headers. The message has no creation context of its own."""
    carrier: dict[str, Header] = {}
    propagate.inject(carrier, context)
    if not isinstance(message, Message):
        return Message(message, headers=carrier)
    own: object = message.headers
    if own is not None and not isinstance(own, Mapping):
        return message  # the call refuses it
    return replace(message, headers={**(own or {}), **carrier})

"""The context of a trace in the headers of a message, by the propagator that the application has configured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanContext

from rqttl.errors import RqttlError
from rqttl.protocol import codec
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


def extract(headers: Mapping[str, Header], context: Context) -> tuple[Context, SpanContext | None]:
    """Return a context with the values of headers, and the creation context of the message; `None` without one."""
    if not headers:
        return context, None
    extracted = propagate.extract(headers, context, _TEXTS)
    span = trace.get_current_span(extracted)
    if span is trace.get_current_span(context):
        return extracted, None
    created = span.get_span_context()
    return extracted, created if created.is_valid else None


def creation_context(headers: Mapping[str, Header] | None) -> SpanContext | None:
    """Return the creation context that headers bring; `None` without one."""
    if not headers or not isinstance(headers, Mapping):
        return None
    created = trace.get_current_span(propagate.extract(headers, _EMPTY, _TEXTS)).get_span_context()
    return created if created.is_valid else None


def inject(message: Message | object, context: Context) -> Message | object:
    """Return a message with a context in its headers. The message has no creation context of its own.

    Its own headers stay as they are, but one of a trace that cannot be read gives way. A message whose headers would be
    too large, or are no mapping, stays without the context.
    """
    carrier: dict[str, Header] = {}
    propagate.inject(carrier, context)
    if not carrier:
        return message
    if not isinstance(message, Message):
        return Message(message, headers=carrier)
    own: object = message.headers
    if own is not None:
        if not isinstance(own, Mapping):
            return message  # the call refuses it
        replaced = _of_span(context, own) if carrier.keys() & own.keys() else {}
        carrier.update({**own, **replaced})
        if _is_too_large(message.content_type, carrier):
            return message
    if type(message) is not Message:
        return replace(message, headers=carrier)
    return Message(message.body, message.ttl, message.expires_at, carrier, message.id, message.content_type)


def _of_span(context: Context, own: Mapping[str, Header]) -> dict[str, Header]:
    """The headers with the span of a context, without its baggage. A value that the call refuses has none instead."""
    carrier: dict[str, Header] = {}
    propagate.inject(carrier, trace.set_span_in_context(trace.get_current_span(context), _EMPTY))
    return {
        name: value for name, value in carrier.items() if isinstance(own.get(name), str | bytes | int | float | None)
    }


def _is_too_large(content_type: str | None, headers: Mapping[str, Header]) -> bool:
    lengths = sum(len(name) + (len(value) if isinstance(value, str | bytes) else 9) for name, value in headers.items())
    if lengths + 5 * len(headers) < codec.MAX_HEADER_BYTES // 8:  # a character has up to 4 bytes
        return False
    try:
        codec.pack_extras(content_type, headers)
    except RqttlError:
        return True
    return False


def packed(message: Message | object) -> tuple[Message | object, int | None]:
    """Return a message with the bytes of its body, and their number. The call refuses a message that has none."""
    body = message.body if isinstance(message, Message) else message
    if type(body) is bytes:
        return message, len(body)
    try:
        data, kind = codec.pack_body(body)
    except RqttlError:
        return message, None
    if not isinstance(message, Message):
        return Message(data, content_type=kind), len(data)
    return replace(message, body=data, content_type=message.content_type or kind), len(data)

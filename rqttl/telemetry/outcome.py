"""Parts of spans that several operations share: links, the number of messages, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from opentelemetry.trace import Link, Span, Status, StatusCode, Tracer

from rqttl.decisions import Decision, Reject, Release, Retry
from rqttl.errors import RqttlError
from rqttl.observing import Received
from rqttl.telemetry import headers, names
from rqttl.telemetry.instruments import Instruments
from rqttl.telemetry.place import Place

#: The largest number of links of one span, which is the default of the SDK.
LINKS = 128
_ERROR = Status(StatusCode.ERROR)


class Tools(NamedTuple):
    """The tools of one observer: they make spans and count."""

    tracer: Tracer
    instruments: Instruments
    place: Place


def links_to(deliveries: Sequence[Received]) -> list[Link]:
    """Return links to the creation contexts of messages."""
    created = [headers.creation_context(item.headers) for item in deliveries[:LINKS]]
    return [Link(context) for context in created if context is not None]


def count_or_id(deliveries: Sequence[Received]) -> dict[str, str | int]:
    """Return the attributes of a call with several messages, or with one."""
    if len(deliveries) == 1:
        return {names.MESSAGE_ID: deliveries[0].id, names.BODY_SIZE: len(deliveries[0].body)}
    return {names.MESSAGE_COUNT: len(deliveries)} if deliveries else {}


def fail(span: Span, error: BaseException | None) -> str | None:
    """Mark the span of a call that has failed, without the text of its error. Returns the type of the error."""
    kind = None if error is None else error_type(error)
    if kind is not None:
        span.set_attribute(names.ERROR_TYPE, kind)
        span.set_status(_ERROR)
    return kind


def with_error(labels: Mapping[str, str | int], kind: str | None) -> Mapping[str, str | int]:
    """Return labels with the type of an error."""
    return labels if kind is None else {**labels, names.ERROR_TYPE: kind}


def error_type(error: BaseException) -> str | None:
    """Return the code of an error of rqttl, else the name of its class; `None` for `Release`, which is no error."""
    if isinstance(error, RqttlError):
        return error.code
    if isinstance(error, Decision):
        kinds = {Reject: "rejected", Retry: "retry", Release: None}
        return next((kind for cls, kind in kinds.items() if isinstance(error, cls)), None)
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"

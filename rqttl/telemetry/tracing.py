"""The observer that makes spans and metrics of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter, time_ns
from types import TracebackType
from typing import Literal

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind

from rqttl.observing import Observer, Received, Sending
from rqttl.telemetry import headers, names
from rqttl.telemetry.outcome import Tools, count_or_id, fail, links_to, with_error
from rqttl.telemetry.sending import TracedBatch, TracedMessage
from rqttl.types import Message

_NOTHING: AbstractContextManager[object] = nullcontext()


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of an application; see `rqttl.telemetry.instrument`."""

    parent: Literal["message", "link"] = "message"
    settle: bool = False


class Tracing(Observer):
    """Makes a span for each call, and counts messages and seconds."""

    def __init__(self, tools: Tools, choices: Choices) -> None:
        self._tools = tools
        self._choices = choices

    def sending(self, queue: str, messages: Sequence[Message | object]) -> Sending:
        """See `Observer`."""
        return (TracedMessage if len(messages) == 1 else TracedBatch)(self._tools, queue, messages)

    def received(self, queue: str, deliveries: Sequence[Received], seconds: float) -> None:
        """Make a span with links to the creation contexts of the messages, the first 128 of them."""
        common = self._tools.place.common(queue, names.RECEIVE)
        self._tools.instruments.consumed.add(len(deliveries), common.labels)
        self._tools.instruments.operation.record(seconds, common.operation_labels)
        now = time_ns()
        span = self._tools.tracer.start_span(
            common.span,
            kind=SpanKind.CLIENT,
            links=links_to(deliveries),
            attributes={**common.attributes, **count_or_id(deliveries)},
            start_time=now - int(seconds * 1e9),
        )
        span.end(now)

    def handling(self, delivery: Received) -> AbstractContextManager[object]:
        """See `Observer`."""
        return Processing(self._tools, self._choices, delivery)

    def settling(self, queue: str, how: str, deliveries: Sequence[Received]) -> AbstractContextManager[object]:
        """See `Observer`."""
        return Settling(self._tools, queue, how, deliveries) if self._choices.settle else _NOTHING


class Processing:
    """The span of one handler. It is the current span while the handler works."""

    __slots__ = ("_began", "_choices", "_delivery", "_labels", "_span", "_token", "_tools")

    def __init__(self, tools: Tools, choices: Choices, delivery: Received) -> None:
        self._tools, self._choices, self._delivery = tools, choices, delivery

    def __enter__(self) -> None:
        tools, delivery = self._tools, self._delivery
        common = tools.place.common(delivery.queue, names.PROCESS)
        self._labels = common.labels
        current = contexts.get_current()
        context, created = headers.extract(delivery.headers, current)
        attributes = {
            **common.attributes,
            names.MESSAGE_ID: delivery.id,
            names.BODY_SIZE: len(delivery.body),
            names.DELIVERY_COUNT: delivery.delivery_count,
        }
        if delivery.deaths:
            attributes[names.REASON] = delivery.deaths[0].reason
        self._span = tools.tracer.start_span(
            common.span,
            context if self._choices.parent == "message" else current,
            SpanKind.CONSUMER,
            attributes,
            [Link(created)] if created is not None else None,
        )
        self._token = contexts.attach(trace.set_span_in_context(self._span, context))
        self._began = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = perf_counter() - self._began
        contexts.detach(self._token)
        self._tools.instruments.process.record(seconds, with_error(self._labels, fail(self._span, error)))
        self._span.end()


class Settling:
    """The span of one call that settles."""

    __slots__ = ("_began", "_labels", "_span", "_tools")

    def __init__(self, tools: Tools, queue: str, how: str, deliveries: Sequence[Received]) -> None:
        self._tools = tools
        common = tools.place.common(queue, names.SETTLE[how])
        self._labels = common.operation_labels
        self._began = perf_counter()
        self._span = tools.tracer.start_span(
            common.span,
            kind=SpanKind.CLIENT,
            links=links_to(deliveries),
            attributes={**common.attributes, **count_or_id(deliveries)},
        )

    def __enter__(self) -> None:
        """Begin the call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        labels = with_error(self._labels, fail(self._span, error))
        self._tools.instruments.operation.record(perf_counter() - self._began, labels)
        self._span.end()

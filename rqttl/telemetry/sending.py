"""The spans of calls that send messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter, time_ns
from types import TracebackType

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind

from rqttl import units
from rqttl.errors import QueueFull, RqttlError
from rqttl.observing import Sending
from rqttl.telemetry import headers, names
from rqttl.telemetry.outcome import LINKS, Tools, fail, with_error
from rqttl.types import Message, Receipt


class _Traced(Sending):
    """The span of a call, its metrics, and the messages with their contexts."""

    _span: Span

    def __init__(self, tools: Tools, queue: str, messages: Sequence[Message | object]) -> None:
        super().__init__(messages)
        self._tools = tools
        self._common = tools.place.common(queue, names.ENQUEUE)
        self._began = perf_counter()
        #: The refusals of messages by the type of their errors.
        self._refused: dict[str, int] = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = fail(self._span, error)
        self._count(failed)
        self._span.end()

    def _count(self, failed: str | None) -> None:
        instruments, labels, sent = self._tools.instruments, self._common.labels, len(self.messages)
        if failed is None:
            for kind, number in self._refused.items():
                instruments.sent.add(number, with_error(labels, kind))
                sent -= number
        if sent:
            instruments.sent.add(sent, with_error(labels, failed))
        refused = next(iter(self._refused)) if not sent else None
        seconds = perf_counter() - self._began
        instruments.operation.record(seconds, with_error(self._common.operation_labels, failed or refused))


class TracedMessage(_Traced):
    """The call that sends one message. Its span is the creation context, unless the message brings one."""

    def __enter__(self) -> Sequence[Message | object]:
        message, size = headers.packed(self.messages[0])
        own = headers.creation_context(message.headers) if isinstance(message, Message) else None
        current = contexts.get_current()
        self._span = self._tools.tracer.start_span(
            self._common.span,
            current,
            SpanKind.PRODUCER if own is None else SpanKind.CLIENT,
            {**self._common.attributes, **_attributes(message, size)},
            None if own is None else [Link(own)],
        )
        self.messages = [message if own else headers.inject(message, trace.set_span_in_context(self._span, current))]
        return self.messages

    def stored(self, results: Sequence[Receipt | QueueFull]) -> None:
        """See `Sending`."""
        (result,) = results
        if isinstance(result, Receipt):
            self._span.set_attribute(names.MESSAGE_ID, result.id)
        else:
            fail(self._span, result)
            self._refused[result.code] = 1


class TracedBatch(_Traced):
    """The call that sends several messages. Each has a span of its own as its creation context, or brings one."""

    def __enter__(self) -> Sequence[Message | object]:
        current, tracer = contexts.get_current(), self._tools.tracer
        creating = self._tools.place.common(self._common.queue, names.CREATE)
        self._created: list[tuple[Span, int] | None] = []
        links: list[Link] = []
        sent: list[Message | object] = []
        for body in self.messages:
            message, size = headers.packed(body)
            own = headers.creation_context(message.headers) if isinstance(message, Message) else None
            if own is None:
                attributes = {**creating.attributes, **_attributes(message, size)}
                span = tracer.start_span(creating.span, current, SpanKind.PRODUCER, attributes)
                own = span.get_span_context()
                message = headers.inject(message, trace.set_span_in_context(span, current))
                self._created.append((span, time_ns()))
            else:
                self._created.append(None)
            sent.append(message)
            if len(links) < LINKS and own.is_valid:
                links.append(Link(own))
        attributes = {**self._common.attributes, names.MESSAGE_COUNT: len(sent)}
        self._span = tracer.start_span(self._common.span, current, SpanKind.CLIENT, attributes, links)
        self.messages = sent
        return sent

    def stored(self, results: Sequence[Receipt | QueueFull]) -> None:
        """See `Sending`."""
        for result, created in zip(results, self._created, strict=True):
            if isinstance(result, QueueFull):
                self._refused[result.code] = self._refused.get(result.code, 0) + 1
            if created is None:
                continue
            if isinstance(result, QueueFull):
                fail(created[0], result)
            else:
                created[0].set_attribute(names.MESSAGE_ID, result.id)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for created in self._created:
            if created is not None:
                created[0].end(created[1])
        super().__exit__(kind, error, trace)


def _attributes(message: Message | object, size: int | None) -> Mapping[str, str | int]:
    """Return the attributes of a message that is sent."""
    attributes: dict[str, str | int] = {} if size is None else {names.BODY_SIZE: size}
    if isinstance(message, Message):
        if isinstance(message.id, str) and message.id:
            attributes[names.MESSAGE_ID] = message.id
        if message.ttl is not None:
            try:
                attributes[names.TTL] = int(units.duration(message.ttl, "ttl"))
            except RqttlError:  # the call refuses the message
                return attributes
    return attributes

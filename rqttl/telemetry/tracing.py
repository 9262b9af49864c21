"""The observer that makes spans and metrics of OpenTelemetry, with the names of its conventions for messaging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import lru_cache, partial
from time import time_ns
from typing import Any, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from rqttl import units
from rqttl.delivery import Decision, Reject, Retry
from rqttl.errors import QueueFull, RqttlError
from rqttl.events import Observer, Operation
from rqttl.policies.patterns import compile_pattern
from rqttl.protocol.codec import pack_extras
from rqttl.types import Header, Message, Receipt

# The conventions of version 1.44 and our own names. A test compares them with the package. The conventions are still in
# development: these names change only together with a line in the changelog.

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"

SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
TEMPLATE = "messaging.destination.template"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
MESSAGE_ID = "messaging.message.id"
BODY_SIZE = "messaging.message.body.size"
MESSAGE_COUNT = "messaging.batch.message_count"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
ERROR_TYPE = "error.type"

SENT_MESSAGES = "messaging.client.sent.messages"
CONSUMED_MESSAGES = "messaging.client.consumed.messages"
OPERATION_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"

DELIVERY_COUNT = "messaging.rqttl.delivery_count"
REASON = "messaging.rqttl.reason"
TTL = "messaging.rqttl.ttl_ms"
DELIVER_AT = "messaging.rqttl.deliver_at"

#: The bounds of the histograms in seconds, as the conventions give them.
BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
#: The type of each operation. The names of its spans begin with its name.
TYPES = {
    "enqueue": "send",
    "create": "create",
    "receive": "receive",
    "process": "process",
    **dict.fromkeys(("ack", "nack", "reject", "release", "redrive"), "settle"),
}

#: The largest number of links of one span, which is the default of the SDK.
LINKS = 128
_ERROR = Status(StatusCode.ERROR)
_EMPTY = Context()

Attributes = dict[str, str | int]


class Common(NamedTuple):
    """The name of a span, and the attributes that all spans and points of one operation on a queue have.

    Only points of the duration of an operation have its type: `labels` are those of all others.
    """

    span: str
    attributes: Attributes
    labels: Attributes
    operation_labels: Attributes


class Place:
    """The names and attributes of the queues of one broker; without a broker, of those of a child.

    A queue that matches one of `templates`, patterns of the syntax `wildcard`, goes by that pattern in names of spans
    and in metrics.
    """

    def __init__(self, broker: object | None, templates: Sequence[str]) -> None:
        self._broker = broker
        self._templates = [compile_pattern(text, "wildcard") for text in templates]
        self._server: Attributes = {}
        self._common: Callable[[str, str, bool], Common] = lru_cache(4096)(self._read)

    def common(self, queue: str, operation: str) -> Common:
        """Return the name and the attributes of an operation on a queue."""
        if not self._server and self._broker is not None:
            self._server = server_of(self._broker)
        return self._common(queue, operation, bool(self._server))

    def _read(self, queue: str, operation: str, _: bool) -> Common:
        template = next((pattern.text for pattern in self._templates if pattern.matches(queue)), None)
        place: Attributes = {DESTINATION: queue} if template is None else {TEMPLATE: template}
        labels: Attributes = {SYSTEM: "rqttl", OPERATION_NAME: operation, **self._server, **place}
        operation_labels = {**labels, OPERATION_TYPE: TYPES[operation]}
        attributes = {**operation_labels, DESTINATION: queue}
        return Common(f"{operation} {template or queue}", attributes, labels, operation_labels)


def server_of(broker: object) -> Attributes:
    """Return the address of the server of a broker; empty while it is unknown: an embedded server may start later."""
    server = getattr(broker, "address", None)
    if server is None:
        return {}
    if server.path:
        return {SERVER_ADDRESS: server.path}
    if server.service:
        return {SERVER_ADDRESS: f"{server.service}@{server.host}", SERVER_PORT: server.port}
    return {SERVER_ADDRESS: server.host, SERVER_PORT: server.port} if server.host else {}


class Instruments:
    """The counters and histograms of one meter: the metrics of the semantic conventions."""

    def __init__(self, meter: Meter) -> None:
        sent = "Number of messages producer attempted to send to the broker."
        consumed = "Number of messages that were delivered to the application."
        called = "Duration of messaging operation initiated by a producer or consumer client."
        histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=BOUNDARIES)
        self.sent = meter.create_counter(SENT_MESSAGES, "{message}", sent)
        self.consumed = meter.create_counter(CONSUMED_MESSAGES, "{message}", consumed)
        self.operation = histogram(OPERATION_DURATION, description=called)
        self.process = histogram(PROCESS_DURATION, description="Duration of processing operation.")


class Tracing(Observer):
    """Makes a span for each call, and counts messages and seconds.

    The span of a handler is a child of the creation context of its message if `is_child`. `settle` adds those of calls
    that settle.
    """

    def __init__(self, tracer: Tracer, instruments: Instruments, place: Place, *, is_child: bool, settle: bool) -> None:
        self._tracer, self._instruments, self._place = tracer, instruments, place
        self._is_child, self._settle = is_child, settle

    def message(self, operation: Operation) -> AbstractContextManager[object]:
        """See `Observer`."""
        own = {"enqueue": self._enqueue, "process": self._process, "receive": self._receive}.get(operation.name)
        if own is not None:
            return own(operation)
        if not self._settle:
            return nullcontext()
        common = self._place.common(operation.queue, operation.name)
        span = self._client_span(common, operation)
        return self._measured(operation, span, self._instruments.operation, common.operation_labels)

    @contextmanager
    def _enqueue(self, operation: Operation) -> Iterator[None]:
        """Make a span for each message as its creation context, unless it brings one.

        The span of a single message is that of the call, and several messages have one more for it.
        """
        current, many = contexts.get_current(), len(operation.messages) != 1
        common = self._place.common(operation.queue, "enqueue")
        creating = self._place.common(operation.queue, "create") if many else common
        sent, created, links = self._created(operation.messages, creating, current)
        whole = None if many else created[0]
        if whole is None:
            attributes = {**common.attributes, **({MESSAGE_COUNT: len(sent)} if many else _attributes(sent[0]))}
            whole = self._tracer.start_span(common.span, current, SpanKind.CLIENT, attributes, links)
        operation.messages, ended = sent, time_ns()
        failed: str | None = None
        try:
            with self._measured(operation, whole, self._instruments.operation, common.operation_labels):
                yield
                for span, result in zip(created if many else [whole], operation.results, strict=True):
                    if span is not None:
                        if isinstance(result, QueueFull):
                            _fail(span, result)
                        else:
                            span.set_attributes(_stored(result))
        except BaseException as error:
            failed = error_type(error)
            raise
        finally:
            for span in created if many else []:
                if span is not None:
                    span.end(ended)
            codes = Counter([getattr(result, "code", None) for result in operation.results] or [failed] * len(sent))
            for code, number in codes.items():
                self._instruments.sent.add(number, _with_error(common.labels, code))

    def _created(
        self, messages: Sequence[Message | object], common: Common, context: Context
    ) -> tuple[list[Message | object], list[Span | None], list[Link]]:
        """Begin the span of each message without a creation context. Returns the messages with one, spans and links."""
        sent: list[Message | object] = []
        created: list[Span | None] = []
        links: list[Link] = []
        for message in messages:
            span = None
            _, own = extract(message.headers if isinstance(message, Message) else None)
            if own is None:
                attributes = {**common.attributes, **_attributes(message)}
                span = self._tracer.start_span(common.span, context, SpanKind.PRODUCER, attributes)
                own = span.get_span_context()
            created.append(span)
            sent.append(message if span is None else inject(message, trace.set_span_in_context(span, context)))
            if len(links) < LINKS and own.is_valid:
                links.append(Link(own))
        return sent, created, links

    @contextmanager
    def _receive(self, operation: Operation) -> Iterator[None]:
        """Make a span with links to the creation contexts of the messages, the first 128 of them."""
        yield
        common, seconds, now = self._place.common(operation.queue, "receive"), operation.seconds(), time_ns()
        self._instruments.consumed.add(len(operation.messages), common.labels)
        self._instruments.operation.record(seconds, common.operation_labels)
        self._client_span(common, operation, start_time=now - int(seconds * 1e9)).end(now)

    @contextmanager
    def _process(self, operation: Operation) -> Iterator[None]:
        """Make the span of one handler. It is the current span while the handler works."""
        (delivery,) = operation.messages
        common = self._place.common(operation.queue, "process")
        current = contexts.get_current()
        context, created = extract(delivery.headers, current)
        counts = {BODY_SIZE: len(delivery.body), DELIVERY_COUNT: delivery.delivery_count}
        attributes = {**common.attributes, MESSAGE_ID: delivery.id, **counts}
        if delivery.deaths:
            attributes[REASON] = delivery.deaths[0].reason
        parent, links = context if self._is_child else current, [Link(created)] if created is not None else None
        span = self._tracer.start_span(common.span, parent, SpanKind.CONSUMER, attributes, links)
        token = contexts.attach(trace.set_span_in_context(span, context))
        with self._measured(operation, span, self._instruments.process, common.labels):
            try:
                yield
            finally:
                contexts.detach(token)

    @contextmanager
    def _measured(self, operation: Operation, span: Span, histogram: Histogram, labels: Attributes) -> Iterator[None]:
        failed = None
        try:
            yield
        except BaseException as error:
            failed = _fail(span, error)
            raise
        finally:
            histogram.record(operation.seconds(), _with_error(labels, failed))
            span.end()

    def _client_span(self, common: Common, operation: Operation, **options: Any) -> Span:
        """Begin the span of a call about deliveries."""
        deliveries = operation.messages
        counted: Attributes = {MESSAGE_COUNT: len(deliveries)} if deliveries else {}
        if len(deliveries) == 1:
            counted = {MESSAGE_ID: deliveries[0].id, BODY_SIZE: len(deliveries[0].body)}
        return self._tracer.start_span(
            common.span,
            kind=SpanKind.CLIENT,
            links=[Link(own) for item in deliveries[:LINKS] if (own := extract(item.headers)[1]) is not None],
            attributes={**common.attributes, **counted},
            **options,
        )


def _fail(span: Span, error: BaseException) -> str | None:
    """Mark the span of a call that has failed, without the text of its error. Returns the type of the error."""
    kind = error_type(error)
    if kind is not None:
        span.set_attribute(ERROR_TYPE, kind)
        span.set_status(_ERROR)
    return kind


def error_type(error: BaseException) -> str | None:
    """Return the code of an error of rqttl, else the name of its class; `None` for `Release`, which is no error."""
    if isinstance(error, RqttlError):
        return error.code
    if isinstance(error, Decision):
        return "rejected" if isinstance(error, Reject) else "retry" if isinstance(error, Retry) else None
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _with_error(labels: Attributes, kind: str | None) -> Attributes:
    return labels if kind is None else {**labels, ERROR_TYPE: kind}


def _attributes(message: Message | object) -> Attributes:
    """Return the attributes of a message that is sent."""
    body = message.body if isinstance(message, Message) else message
    attributes: Attributes = {BODY_SIZE: len(body)} if isinstance(body, bytes) else {}
    if isinstance(message, Message):
        if isinstance(message.id, str) and message.id:
            attributes[MESSAGE_ID] = message.id
        with suppress(RqttlError):  # the call refuses the message
            if message.ttl is not None:
                attributes[TTL] = int(units.duration(message.ttl, "ttl"))
    return attributes


def _stored(receipt: Receipt) -> Attributes:
    """Return the attributes of a message that was stored."""
    due = receipt.deliver_at
    return {MESSAGE_ID: receipt.id} if due is None else {MESSAGE_ID: receipt.id, DELIVER_AT: due.isoformat()}


# The context of a trace in the headers of a message, by the propagator that the application has configured


def extract(headers: Mapping[str, Header] | None, context: Context = _EMPTY) -> tuple[Context, SpanContext | None]:
    """Return a context with the values of headers, and the creation context of the message; `None` without one."""
    if not headers or not isinstance(headers, Mapping):
        return context, None
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    extracted = propagate.extract(texts, context)
    span = trace.get_current_span(extracted)
    created = span.get_span_context()
    return extracted, created if created.is_valid and span is not trace.get_current_span(context) else None


def inject(message: Message | object, context: Context) -> Message | object:
    """Return a message with a context in its headers, or as it is if it has no room for one.

    The message has no creation context of its own.
    """
    carrier: dict[str, Header] = {}
    propagate.inject(carrier, context)
    if not isinstance(message, Message):
        return Message(message, headers=carrier)
    own: object = message.headers
    if own is not None and not isinstance(own, Mapping):
        return message  # the call refuses it
    headers = {**(own or {}), **carrier}
    try:
        pack_extras(message.content_type, headers)
    except RqttlError:  # too large with the context, or refused anyway
        return message
    return replace(message, headers=headers)

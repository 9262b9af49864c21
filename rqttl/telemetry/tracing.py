"""The observer that makes spans and metrics of OpenTelemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from rqttl import checks, units
from rqttl.decisions import Decision, Reject, Retry
from rqttl.errors import InvalidInput, QueueFull, RqttlError
from rqttl.events import Observer, Operation, joined, members, observe_new
from rqttl.telemetry import headers, names
from rqttl.telemetry.place import Attributes, Common, Place
from rqttl.text import format_value
from rqttl.types import Message, Receipt

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker

#: The largest number of links of one span, which is the default of the SDK.
LINKS = 128
_ERROR = Status(StatusCode.ERROR)


def attach(
    broker: Broker | AsyncBroker | None,
    parent: Literal["message", "link"],
    templates: Sequence[str],
    tracer_provider: TracerProvider | None,
    meter_provider: MeterProvider | None,
    *,
    settle: bool,
) -> Callable[[], None]:
    """See `rqttl.telemetry.instrument`."""
    if parent not in ("message", "link"):
        raise InvalidInput(f"parent: expected 'message' or 'link', got {format_value(parent)}")
    patterns = checks.items(templates, "templates", "patterns of queues")
    version: str = import_module("rqttl").__version__
    tracer = trace.get_tracer("rqttl", version, tracer_provider, names.SCHEMA)
    instruments = Instruments(metrics.get_meter("rqttl", version, meter_provider, names.SCHEMA))

    def make(owner: object | None) -> Tracing:
        return Tracing(tracer, instruments, Place(owner, patterns), is_child=parent == "message", settle=settle)

    if broker is None:
        make(None)  # it checks the templates
        observe_new(make)
        return lambda: observe_new(None)
    tracing = make(broker)
    others = [observer for observer in members(broker.observer) if not isinstance(observer, Tracing)]
    broker.observer = joined([*others, tracing])

    def end() -> None:
        broker.observer = joined([observer for observer in members(broker.observer) if observer is not tracing])

    return end


class Instruments:
    """The counters and histograms of one meter: the metrics of the semantic conventions."""

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, meaning: str) -> Histogram:
            return meter.create_histogram(
                name, "s", meaning, explicit_bucket_boundaries_advisory=list(names.BOUNDARIES)
            )

        sent = "Number of messages producer attempted to send to the broker."
        consumed = "Number of messages that were delivered to the application."
        self.sent = meter.create_counter(names.SENT_MESSAGES, "{message}", sent)
        self.consumed = meter.create_counter(names.CONSUMED_MESSAGES, "{message}", consumed)
        self.operation = seconds(
            names.OPERATION_DURATION, "Duration of messaging operation initiated by a producer or consumer client."
        )
        self.process = seconds(names.PROCESS_DURATION, "Duration of processing operation.")


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
        if operation.name == "enqueue":
            return (self._enqueue if len(operation.messages) == 1 else self._enqueue_many)(operation)
        if operation.name == "process":
            return self._process(operation)
        if operation.name == "receive":
            return self._receive(operation)
        return self._settling(operation) if self._settle else nullcontext()

    @contextmanager
    def _enqueue(self, operation: Operation) -> Iterator[None]:
        """Make the span of one message. It is the creation context, unless the message brings one."""
        common = self._place.common(operation.queue, names.ENQUEUE)
        message, size = headers.packed(operation.messages[0])
        own = headers.creation_context(message.headers) if isinstance(message, Message) else None
        current = contexts.get_current()
        span = self._tracer.start_span(
            common.span,
            current,
            SpanKind.PRODUCER if own is None else SpanKind.CLIENT,
            {**common.attributes, **_attributes(message, size)},
            None if own is None else [Link(own)],
        )
        operation.messages = [message if own else headers.inject(message, trace.set_span_in_context(span, current))]
        with self._sent(operation, common, span):
            yield
            (result,) = operation.results
            _conclude(span, result)

    @contextmanager
    def _enqueue_many(self, operation: Operation) -> Iterator[None]:
        """Make a span for each message as its creation context, unless it brings one, and one for the call."""
        current, creating = contexts.get_current(), self._place.common(operation.queue, names.CREATE)
        created: list[tuple[Span, int] | None] = []
        links: list[Link] = []
        sent: list[Message | object] = []
        for body in operation.messages:
            message, size = headers.packed(body)
            own = headers.creation_context(message.headers) if isinstance(message, Message) else None
            if own is None:
                attributes = {**creating.attributes, **_attributes(message, size)}
                span = self._tracer.start_span(creating.span, current, SpanKind.PRODUCER, attributes)
                own = span.get_span_context()
                message = headers.inject(message, trace.set_span_in_context(span, current))
                created.append((span, time_ns()))
            else:
                created.append(None)
            sent.append(message)
            if len(links) < LINKS and own.is_valid:
                links.append(Link(own))
        common = self._place.common(operation.queue, names.ENQUEUE)
        attributes = {**common.attributes, names.MESSAGE_COUNT: len(sent)}
        operation.messages = sent
        whole = self._tracer.start_span(common.span, current, SpanKind.CLIENT, attributes, links)
        with self._sent(operation, common, whole):
            try:
                yield
                for result, one in zip(operation.results, created, strict=True):
                    if one is not None:
                        _conclude(one[0], result)
            finally:
                for one in created:
                    if one is not None:
                        one[0].end(one[1])

    @contextmanager
    def _sent(self, operation: Operation, common: Common, span: Span) -> Iterator[None]:
        """Count the messages of a call that sends."""
        failed, refused = None, Counter[str]()
        try:
            yield
            refused = Counter(result.code for result in operation.results if isinstance(result, QueueFull))
        except BaseException as error:
            failed = _fail(span, error)
            raise
        finally:
            sent = len(operation.messages) - refused.total()
            for code, number in refused.items():
                self._instruments.sent.add(number, _with_error(common.labels, code))
            if sent:
                self._instruments.sent.add(sent, _with_error(common.labels, failed))
            failed = failed or (None if sent else next(iter(refused), None))
            self._instruments.operation.record(operation.seconds(), _with_error(common.operation_labels, failed))
            span.end()

    @contextmanager
    def _receive(self, operation: Operation) -> Iterator[None]:
        """Make a span with links to the creation contexts of the messages, the first 128 of them."""
        yield
        common, seconds, now = self._place.common(operation.queue, names.RECEIVE), operation.seconds(), time_ns()
        self._instruments.consumed.add(len(operation.messages), common.labels)
        self._instruments.operation.record(seconds, common.operation_labels)
        self._client_span(common, operation, start_time=now - int(seconds * 1e9)).end(now)

    @contextmanager
    def _process(self, operation: Operation) -> Iterator[None]:
        """Make the span of one handler. It is the current span while the handler works."""
        (delivery,) = operation.messages
        common = self._place.common(operation.queue, names.PROCESS)
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
        span = self._tracer.start_span(
            common.span,
            context if self._is_child else current,
            SpanKind.CONSUMER,
            attributes,
            [Link(created)] if created is not None else None,
        )
        token = contexts.attach(trace.set_span_in_context(span, context))
        with self._measured(operation, span, self._instruments.process, common.labels):
            try:
                yield
            finally:
                contexts.detach(token)

    @contextmanager
    def _settling(self, operation: Operation) -> Iterator[None]:
        common = self._place.common(operation.queue, names.SETTLE[operation.name])
        span = self._client_span(common, operation)
        with self._measured(operation, span, self._instruments.operation, common.operation_labels):
            yield

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
        created = [headers.creation_context(item.headers) for item in deliveries[:LINKS]]
        counted: Attributes = {names.MESSAGE_COUNT: len(deliveries)} if deliveries else {}
        if len(deliveries) == 1:
            counted = {names.MESSAGE_ID: deliveries[0].id, names.BODY_SIZE: len(deliveries[0].body)}
        return self._tracer.start_span(
            common.span,
            kind=SpanKind.CLIENT,
            links=[Link(context) for context in created if context is not None],
            attributes={**common.attributes, **counted},
            **options,
        )


def _conclude(span: Span, result: Receipt | QueueFull) -> None:
    """Mark the span of a message with the result of its sending."""
    if isinstance(result, Receipt):
        span.set_attribute(names.MESSAGE_ID, result.id)
    else:
        _fail(span, result)


def _fail(span: Span, error: BaseException) -> str | None:
    """Mark the span of a call that has failed, without the text of its error. Returns the type of the error."""
    kind = error_type(error)
    if kind is not None:
        span.set_attribute(names.ERROR_TYPE, kind)
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
    return labels if kind is None else {**labels, names.ERROR_TYPE: kind}


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

"""The cost of observers, without Redis: `make bench-observing`.

No message goes to Redis, so the figures are those of rqttl and of OpenTelemetry alone. They are times of the CPU, each
the best of several rounds. *Off* is the check for an observer in one call. *On* is a
message that is sent, received and handled, with spans and metrics that the SDK records. *The SDK alone* makes the same
spans, points and headers without rqttl: no observer can take less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import Link, SpanKind

from rqttl import observing
from rqttl.events import Events
from rqttl.observing import Observer
from rqttl.telemetry import names
from rqttl.telemetry.attaching import attach
from rqttl.telemetry.instruments import Instruments
from rqttl.telemetry.place import Attributes, Place
from rqttl.types import Message, Receipt

N, ROUNDS, BATCH = 20_000, 7, 100
MICRO = 1e6
OPERATIONS = (names.ENQUEUE, names.RECEIVE, names.PROCESS)


class Handed:
    """A delivery without a lease."""

    def __init__(self, message: object) -> None:
        self.id, self.queue, self.deaths, self.delivery_count = "1", "orders", (), 1
        self.headers = (message.headers or {}) if isinstance(message, Message) else {}
        self.body = b"x" * 200


class Owner:
    """A broker without a server, but with its address, which spans and points have."""

    observer: Observer | None = None
    _client = SimpleNamespace(connection_pool=SimpleNamespace(connection_kwargs={"path": "/run/redis.sock"}))


def best(work: Callable[[], object], count: int) -> float:
    """The µs of one of `count` steps, in the fastest round."""
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times) / count * MICRO


def off() -> float:
    """The µs of the check for an observer, less those of the loop."""
    events = Events()

    def checked() -> None:
        for _ in range(N):
            if events.observer is not None:
                raise AssertionError

    def empty() -> None:
        for _ in range(N):
            pass

    return best(checked, N) - best(empty, N)


def observer_with(sampler: Sampler, broker: Owner) -> None:
    """Give a broker the observer of OpenTelemetry."""
    tracers, meters = TracerProvider(sampler), MeterProvider([InMemoryMetricReader()])
    attach(broker, "message", (), tracers, meters, settle=False)  # type: ignore[arg-type]  # as good as a broker


def send_and_handle(observer: Observer, count: int) -> None:
    """The calls of an observer for `count` messages that are sent, received and handled."""
    bodies = [b"x" * 200] * count
    with observing.sending(observer, "orders", bodies) as sent:
        sent.stored([Receipt("1")] * count)
    handed = [Handed(message) for message in sent.messages]
    observing.received(observer, "orders", handed, time.perf_counter())
    for item in handed:
        with observing.handling(observer, item):
            pass


def on(sampler: Sampler, count: int) -> float:
    """The µs of a message with the observer."""
    broker = Owner()
    observer_with(sampler, broker)
    assert broker.observer is not None
    observer = broker.observer
    rounds = 2_000 // count

    def work() -> None:
        for _ in range(rounds):
            send_and_handle(observer, count)

    return best(work, rounds * count)


def alone(sampler: Sampler) -> float:
    """The µs of the SDK for one message: what `on` makes of it, with the same attributes."""
    tracer = TracerProvider(sampler).get_tracer("bench", schema_url=names.SCHEMA)
    points = Instruments(MeterProvider([InMemoryMetricReader()]).get_meter("bench"))
    enqueue, receive, process = (Place(Owner(), ()).common("orders", one) for one in OPERATIONS)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    size: Attributes = {names.BODY_SIZE: 200}
    facts: Attributes = {**size, names.MESSAGE_ID: "1", names.DELIVERY_COUNT: 1}
    current, carrier = contexts.get_current(), dict(headers)

    def make() -> None:
        for _ in range(2_000):
            sent = tracer.start_span(enqueue.span, current, SpanKind.PRODUCER, {**enqueue.attributes, **size})
            propagate.inject(carrier, trace.set_span_in_context(sent, current))
            sent.set_attribute(names.MESSAGE_ID, "1")
            sent.end()
            propagate.extract(headers, current)
            links = [Link(sent.get_span_context())]
            tracer.start_span(receive.span, current, SpanKind.CLIENT, {**receive.attributes, **facts}, links).end()
            context = propagate.extract(headers, current)
            tracer.start_span(process.span, context, SpanKind.CONSUMER, {**process.attributes, **facts}, links).end()
            points.sent.add(1, enqueue.labels)
            points.operation.record(0.1, enqueue.operation_labels)
            points.consumed.add(1, receive.labels)
            points.operation.record(0.1, receive.operation_labels)
            points.process.record(0.1, process.labels)

    return best(make, 2_000)


def main() -> int:
    """Print the table. Returns 1 if a goal is missed."""
    missed = False
    for name, figure, goal in (
        ("off: µs of a call", off(), 0.1),
        ("on, spans not sampled: µs of a message, one at a time", on(ALWAYS_OFF, 1), None),
        ("on, spans not sampled: µs of a message, batches of 100", on(ALWAYS_OFF, BATCH), None),
        ("the SDK alone, spans not sampled: µs of a message, one at a time", alone(ALWAYS_OFF), None),
        ("on: µs of a message, one at a time (3 spans, 5 points)", on(ALWAYS_ON, 1), None),
        ("on: µs of a message, batches of 100 (2 spans, 1 point)", on(ALWAYS_ON, BATCH), None),
        ("the SDK alone: µs of a message, one at a time", alone(ALWAYS_ON), None),
    ):
        bad = goal is not None and figure > goal
        missed = missed or bad
        print(f"{name:<66} {figure:>8.3f} {'' if goal is None else f'<= {goal}':>8} {'!' * bad}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

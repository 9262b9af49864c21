"""The cost of observers, without Redis: `make bench-observing`.

No message goes to Redis, so the figures are those of rqttl and of OpenTelemetry alone. They are times of the CPU, each
the best of several rounds. *Off* is the check for an observer in one call. *On* is a
message that is sent, received and handled, with spans and metrics that the SDK records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from rqttl import observing
from rqttl.events import Events
from rqttl.observing import Observer
from rqttl.telemetry.attaching import attach
from rqttl.telemetry.names import SCHEMA
from rqttl.types import Message, Receipt

N, ROUNDS, BATCH = 20_000, 7, 100
MICRO = 1e6


class Handed:
    """A delivery without a lease."""

    def __init__(self, message: object) -> None:
        self.id, self.queue, self.deaths, self.delivery_count = "1", "orders", (), 1
        self.headers = (message.headers or {}) if isinstance(message, Message) else {}
        self.body = b"x" * 200


class Owner:
    """A broker without a server."""

    observer: Observer | None = None


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


def spans(sampler: Sampler) -> float:
    """The µs of one bare span of the SDK, with the attributes of a message."""
    tracer = TracerProvider(sampler).get_tracer("bench", schema_url=SCHEMA)
    attributes = {f"messaging.attribute.{number}": "value" for number in range(7)}

    def make() -> None:
        for _ in range(2_000):
            tracer.start_span("enqueue orders", attributes=attributes).end()

    return best(make, 2_000)


def main() -> int:
    """Print the table. Returns 1 if a goal is missed."""
    missed = False
    for name, figure, goal in (
        ("off: µs of a call", off(), 0.1),
        ("on, spans not sampled: µs of a message, one at a time", on(ALWAYS_OFF, 1), None),
        ("on, spans not sampled: µs of a message, batches of 100", on(ALWAYS_OFF, BATCH), None),
        ("on: µs of a message, one at a time (3 spans, 4 points)", on(ALWAYS_ON, 1), None),
        ("on: µs of a message, batches of 100 (2 spans, 1 point)", on(ALWAYS_ON, BATCH), None),
        ("a bare span of the SDK, recorded: µs", spans(ALWAYS_ON), None),
    ):
        bad = goal is not None and figure > goal
        missed = missed or bad
        print(f"{name:<60} {figure:>8.3f} {'' if goal is None else f'<= {goal}':>8} {'!' * bad}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

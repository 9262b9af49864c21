"""Observers of OpenTelemetry for one broker, or for all brokers that are made from now on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from opentelemetry import metrics, trace

from rqttl import checks
from rqttl.errors import InvalidInput
from rqttl.observing import joined, members, observe_new
from rqttl.telemetry import names
from rqttl.telemetry.instruments import Instruments
from rqttl.telemetry.outcome import Tools
from rqttl.telemetry.place import Place
from rqttl.telemetry.tracing import Choices, Tracing
from rqttl.text import format_value

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker


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
        return Tracing(Tools(tracer, instruments, Place(owner, patterns)), Choices(parent, settle))

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

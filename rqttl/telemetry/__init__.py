"""Traces and metrics of OpenTelemetry. They need the extra `otel`, which is imported at the first use.

`instrument(broker)` is for one broker. `opentelemetry-instrument` finds `RqttlInstrumentor`, which is for all brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from rqttl import checks
from rqttl.errors import InvalidInput, RqttlError
from rqttl.events import joined, members, observe_new
from rqttl.text import format_value, install

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from rqttl.aio.broker import AsyncBroker
    from rqttl.broker import Broker

__all__ = ["TelemetryUnavailable", "instrument"]


class TelemetryUnavailable(RqttlError, ImportError):
    """The packages of OpenTelemetry are not installed."""

    code = "telemetry_unavailable"


def instrument(
    broker: Broker | AsyncBroker | None = None,
    *,
    parent: Literal["message", "link"] = "message",
    settle: bool = False,
    templates: Sequence[str] = (),
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Callable[[], None]:
    """Make spans and metrics of the calls of a broker; without a broker, of all that are made from now on.

    The span of a handler is a child of the creation context of its message; with `parent="link"` it is only linked to
    it. `settle` adds spans of `ack`, `nack`, `reject`, `release` and `redrive`. `templates` are patterns of queues, as
    policies have them: a queue that matches one goes by that pattern in names of spans and in metrics. The providers
    are those of the application by default.

    A broker keeps its other observers. Returns a function that ends it. Without a broker it is also for the handlers
    in the children of a worker: call it in the module of the handler. Raises `TelemetryUnavailable`, `InvalidInput`.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise TelemetryUnavailable(f"telemetry needs the package opentelemetry-api: {install('otel')}") from error
    from rqttl.telemetry.tracing import SCHEMA, Instruments, Place, Tracing

    if parent not in ("message", "link"):
        raise InvalidInput(f"parent: expected 'message' or 'link', got {format_value(parent)}")
    patterns = checks.items(templates, "templates", "patterns of queues")
    version: str = import_module("rqttl").__version__
    tracer = trace.get_tracer("rqttl", version, tracer_provider, SCHEMA)
    instruments = Instruments(metrics.get_meter("rqttl", version, meter_provider, SCHEMA))

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

"""Traces and metrics of OpenTelemetry. They need the extra `otel`, which is imported at the first use.

`instrument(broker)` is for one broker. `opentelemetry-instrument` finds `RqttlInstrumentor`, which is for all brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from rqttl.errors import RqttlError
from rqttl.text import install

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
        import_module("opentelemetry.trace")
    except ImportError as error:
        raise TelemetryUnavailable(f"telemetry needs the package opentelemetry-api: {install('otel')}") from error
    from rqttl.telemetry.tracing import attach

    return attach(broker, parent, templates, tracer_provider, meter_provider, settle=settle)
